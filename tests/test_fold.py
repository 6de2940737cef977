"""Chains of exports: what is stacked, and what they fold to, is what a full export has."""

import dataclasses
import json
import random
import shutil
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dataless_runs import IDS, Run, conf_of
from mutated_documents import reseal

from tnctl import files, manifest
from tnctl.checkpoint import load as loading
from tnctl.errors import Failure, UserError
from tnctl.serving.rows import file_formats, row_formats
from tnctl.serving.rows.embeddings import open_embeddings
from tnctl.serving.rows.export import export
from tnctl.serving.rows.export_document import ExportManifest, Filter
from tnctl.serving.rows.folding import fold

LIFE = {
    "sketch": 65_536,
    "shows": {"keep": True, "cvm": True, "decay": 0.5},
    "eviction": {"unseen_steps": 5},
}
ADAGRAD = {"name": "adagrad", "learning_rate": 0.1, "weight_decay": 0.05}
ALL = np.arange(IDS + 5, dtype=np.uint64)  # the last ones nobody ever trained
CHAINS = {
    "parquet": {"encoding": "parquet"},
    "text": {"encoding": "text"},
    "dictionary": {"encoding": "dictionary"},
    "parquet, float16, by shows": {
        "encoding": "parquet", "precision": "float16", "filter": Filter(min_show=0.6),
    },
    "parquet, int8, the top": {
        "encoding": "parquet", "precision": "int8", "filter": Filter(top=9),
    },
    "text, by shows": {"encoding": "text", "filter": Filter(min_show=0.6)},
    "dictionary, int8, the top by shows": {
        "encoding": "dictionary", "precision": "int8", "filter": Filter(top=12, min_show=0.3),
    },
    "dictionary, float16, a slot": {
        "encoding": "dictionary", "precision": "float16", "filter": Filter(slots=("last_item",)),
    },
}  # fmt: skip


def new_day(run, days=1):
    run.days.append(((run.days[-1][0] if run.days else 0) + days, run.steps + 1))
    for table in run.model.tables:
        table.set_days(run.days)


def story(folder, seed, saves=7, decay=True):
    """Checkpoints of a run in which rows come, change, go, come again, and are left alone."""
    chance = random.Random(seed)
    more = {"optimizer": {"embedding": ADAGRAD}} if decay else {}
    run = Run(conf_of(folder / "run", {"full_every": 3}, LIFE, **more))
    new_day(run)
    checkpoints = []
    for number in range(saves):
        for _ in range(chance.randint(1, 4)):
            event = chance.choice(["train", "train", "few ids", "evict", "day", "nothing"])
            if event == "train" or not run.steps:
                run.train(chance.randint(1, 2))
            elif event == "few ids":
                run.train(2, ids=6)
            elif event == "evict":
                run.evict()
            elif event == "day" and run.days[-1][1] <= run.steps:
                new_day(run, chance.randint(1, 2))
        if checkpoints and checkpoints[-1].step == run.steps:
            run.train()  # a checkpoint's folder is named by its step
        if number == saves - 2:
            run.train(6, ids=6).evict()
        checkpoints.append(loading.open_checkpoint(run.save(golden=[])))
    return run.conf, checkpoints


@pytest.fixture(scope="module")
def chain_of_exports(tmp_path_factory):
    seed = random.SystemRandom().randrange(1000)
    return seed, *story(tmp_path_factory.mktemp("story"), seed)


@pytest.fixture
def small_parts(monkeypatch):
    """Row groups, and what is read and written at once, of a few rows."""
    monkeypatch.setattr(row_formats.BlockFormat, "rows_per_block", 7)
    monkeypatch.setattr(row_formats, "BYTES_PER_READ", 500)


def chain(conf, checkpoints, folder, **how):
    """A full export of the first and a delta of each other checkpoint; their folders."""
    made = []
    for number, checkpoint in enumerate(checkpoints):
        to = f"{folder}/{number}"
        export(checkpoint, conf, to, since=made[-1] if made else None, golden=0, **how)
        made.append(to)
    return made


def contents(folder):
    """The bytes of all files but the manifest."""
    bytes_of = {path.name: path.read_bytes() for path in Path(folder).iterdir()}
    del bytes_of[manifest.NAME]
    return bytes_of


def lookups(url):
    """Every id of every group, in an order of chance and some of them twice."""
    ids = np.random.default_rng(0).permutation(np.concatenate([ALL, ALL[::3]]))
    with closing(open_embeddings(str(url))) as embeddings:
        return {
            group: [array.tobytes() for array in embeddings.lookup(group, ids)]
            for group in embeddings.groups
        }


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("how", CHAINS.values(), ids=CHAINS)
def test_a_chain_is_a_full_export(tmp_path, chain_of_exports, how):
    unchanged_by_stacking_and_folding(tmp_path, *chain_of_exports, how)


@pytest.mark.long
@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("decay", [True, False])
def test_many_chains_are_full_exports(tmp_path, decay):
    for seed in random.SystemRandom().sample(range(100_000), 2):
        chain_of_exports = story(tmp_path / f"{seed}", seed, decay=decay)
        for name, how in CHAINS.items():
            unchanged_by_stacking_and_folding(
                tmp_path / f"{seed}/{name}", seed, *chain_of_exports, how
            )
        shutil.rmtree(tmp_path / f"{seed}")


def without_errors(content):
    """A manifest without the figures that fold adds up over a chain."""
    groups = tuple(dataclasses.replace(entry, error=None) for entry in content.groups)
    return dataclasses.replace(content, groups=groups, sha256="")


def unchanged_by_stacking_and_folding(tmp_path, seed, conf, checkpoints, how):
    """A chain over all checkpoints has, at each of them, what a full export has."""
    made = chain(conf, checkpoints, tmp_path / "chain", **how)
    removed = 0
    for number, (checkpoint, newest) in enumerate(zip(checkpoints, made, strict=True)):
        full = tmp_path / f"full{number}"
        content = export(checkpoint, conf, str(full), golden=0, **how)
        assert lookups(newest) == lookups(full), (seed, number)
        removed += sum(entry.removed for entry in manifest.read(newest, ExportManifest).groups)
        if number < len(made) // 2:
            continue
        folded = tmp_path / f"folded{number}"
        told_of = fold(newest, str(folded))
        assert contents(folded) == contents(full), (seed, number)
        assert lookups(folded) == lookups(full)
        if how.get("precision", "float32") == "float32":
            assert told_of == content  # the checksum of its text too
            continue
        assert list(told_of.files.items()) == list(content.files.items())
        assert all(entry.error for made in (told_of, content) for entry in made.groups)
        assert without_errors(told_of) == without_errors(content)
    assert removed, seed
    # Folding what was folded, and a delta on it, are no other.
    middle = len(made) // 2
    last = str(tmp_path / "on a folded one")
    export(checkpoints[-1], conf, last, since=str(tmp_path / f"folded{middle}"), golden=0, **how)
    fold(last, str(tmp_path / "again"))
    fold(str(tmp_path / "again"), str(tmp_path / "and again"))
    for name in ("again", "and again"):
        assert contents(tmp_path / name) == contents(full), seed


@pytest.fixture(scope="module")
def chained(chain_of_exports, tmp_path_factory):
    """A folder with a chain of every encoding; nobody writes to it."""
    _, conf, checkpoints = chain_of_exports
    folder = tmp_path_factory.mktemp("chains")
    for encoding in file_formats():
        chain(conf, checkpoints[:4], folder / encoding, encoding=encoding)
        export(checkpoints[3], conf, f"{folder}/{encoding}/full", encoding=encoding, golden=0)
    return folder


@pytest.fixture
def broken(chained, tmp_path):
    """A copy to break."""
    return shutil.copytree(chained, tmp_path / "chains")


@pytest.mark.parametrize("encoding", file_formats())
def test_folding_to_another_storage_and_back(chained, tmp_path, encoding):
    there = f"memory://fold/{encoding}"
    for number in range(4):
        files.upload_folder(chained / encoding / str(number), f"{there}/{number}")
    fold(f"{there}/3", f"{there}/folded")
    fold(f"{there}/3/", str(tmp_path / "here"))
    fold(str(chained / encoding / "3"), f"{there}/from here/")
    files.download_folder(f"{there}/folded", tmp_path / "there")
    files.download_folder(f"{there}/from here", tmp_path / "from here")
    for name in ("here", "there", "from here"):
        assert contents(tmp_path / name) == contents(chained / encoding / "full")
    assert lookups(f"{there}/folded") == lookups(chained / encoding / "full")


def test_folding_needs_no_tensorflow(chained, tmp_path, process):
    chain = chained / "dictionary/3"
    done = process(
        "fold", f"embeddings={chain}", f"to={tmp_path}/folded", cwd=tmp_path,
        env={"PYTHONPROFILEIMPORTTIME": "1"},
    )  # fmt: skip
    assert done.code == 0
    assert " numpy\n" in done.err and " tensorflow\n" not in done.err


@pytest.mark.parametrize("encoding", file_formats())
def test_every_changed_byte_is_found(broken, cli, ran, encoding):
    """One line, and nothing that counts; whichever part of the chain it is."""
    chance = random.Random(3)
    for path in sorted((broken / encoding).glob("[0-3]/*")):
        whole = path.read_bytes()
        changed = bytearray(whole)
        changed[chance.randrange(len(whole))] ^= 1 << chance.randrange(8)
        for bad in (bytes(changed), whole[:-1], None):
            path.unlink() if bad is None else path.write_bytes(bad)
            done = cli("fold", f"embeddings={encoding}/3", "to=folded", cwd=broken)
            assert done.code == 1, done.err
            assert f"{encoding}/{path.parent.name}" in done.line and path.name in done.line
            assert not (broken / "folded").exists()
        path.write_bytes(whole)
    ran("fold", f"embeddings={encoding}/3", "to=folded", cwd=broken)
    assert contents(broken / "folded") == contents(broken / encoding / "full")


def test_chains_that_are_none(broken, chain_of_exports):
    _, conf, checkpoints = chain_of_exports
    parquet = broken / "parquet"

    def refused(*words):
        with pytest.raises(Failure) as caught:
            open_embeddings(str(parquet / "3"))
        for word in words:
            assert word in str(caught.value), caught.value

    # The base was exported again: the same rows, under another manifest.
    base = (parquet / "1").rename(parquet / "kept")
    refused("2 is a delta of", "1 has no manifest.json", "so it holds no complete tnctl embeddings")
    export(checkpoints[1], conf, str(parquet / "1"), golden=0)
    refused("2 is a delta of what was in", "1, which holds another export now. Export in full")
    shutil.rmtree(parquet / "1")
    base.rename(parquet / "1")
    open_embeddings(str(parquet / "3")).close()


def test_a_chain_can_be_moved(broken, tmp_path):
    rows = lookups(broken / "dictionary/3")
    shutil.move(broken / "dictionary", tmp_path / "elsewhere")
    assert lookups(tmp_path / "elsewhere/3") == rows


def test_no_more_than_eight_deltas(tmp_path, ran):
    run = Run(conf_of(tmp_path / "run", life=LIFE))
    made = []
    for number in range(10):
        checkpoint = loading.open_checkpoint(run.train().save(golden=[]))
        to = str(tmp_path / str(number))
        if number == 9:
            with pytest.raises(UserError, match=r"8.*[Ff]old"):
                export(checkpoint, run.conf, to, since=made[-1], golden=0)
            break
        export(checkpoint, run.conf, to, since=made[-1] if made else None, golden=0)
        made.append(to)
    lookups(made[-1])
    done = ran("fold", "embeddings=8", "to=folded", cwd=tmp_path)
    assert "of 9 exports to folded" in done.err
    export(checkpoint, run.conf, to, since=str(tmp_path / "folded"), golden=0)
    export(checkpoint, run.conf, str(tmp_path / "full"), golden=0)
    assert lookups(to) == lookups(tmp_path / "full")


def test_what_fold_refuses(broken, cli):
    def refused(*arguments):
        done = cli("fold", *arguments, cwd=broken)
        assert done.code == 2, done.err
        return done.line

    assert "fold needs embeddings=URL" in refused()
    assert "fold needs to=URL" in refused("embeddings=parquet/3")
    assert "takes no graph=" in refused("embeddings=parquet/3", "to=a", "graph=b")
    assert "Received: seed=1" in refused("embeddings=parquet/3", "to=a", "seed=1")
    assert "applied in place" in refused("embeddings=redis://localhost", "to=a")
    rows = lookups(broken / "parquet/3")
    for to in ("parquet/0/", "./text/../parquet/2/inner"):
        line = refused("embeddings=parquet/3", f"to={to}")
        assert "which this command reads" in line
    (broken / "mine").mkdir()
    (broken / "mine/notes.txt").write_text("mine")
    assert "mine holds notes.txt, which tnctl did not write there" in refused(
        "embeddings=parquet/3", "to=mine"
    )
    assert lookups(broken / "parquet/3") == rows
    done = cli("fold", "embeddings=run", "to=a", cwd=broken)
    assert done.code == 1 and "run has no manifest.json" in done.line


def test_what_was_folded_before_is_replaced(broken, ran):
    for encoding in ("dictionary", "parquet", "text", "dictionary"):
        ran("fold", f"embeddings={encoding}/3", "to=folded", cwd=broken)
        assert contents(broken / "folded") == contents(broken / encoding / "full")


def add_values(folder, slot):
    """Give an export the file of values that earlier versions of tnctl wrote with values=."""
    name = f"{slot}.values.parquet"
    columns = {"id": pa.array([1, 2], pa.uint64()), "value": pa.array(["1", "2"])}
    pq.write_table(pa.table(columns), folder / name)
    document = json.loads((folder / manifest.NAME).read_text())
    document["files"][name] = None
    (folder / manifest.NAME).write_text(json.dumps(document))
    reseal(folder, version=3, values=[{"slot": slot, "file": name, "values": 2, "ids": 2}])
    return folder / name


def test_values_of_earlier_versions_are_read_and_replaced_and_not_folded(broken, chain_of_exports):
    _, conf, checkpoints = chain_of_exports
    old, delta, full = (broken / "parquet/full", broken / "delta", broken / "newest")
    path = add_values(old, "user")
    assert manifest.read(str(old), ExportManifest).values[0].file == path.name
    assert lookups(old) == lookups(broken / "parquet/3")
    content = export(checkpoints[4], conf, str(delta), since=str(old), golden=0)
    assert (content.version, content.values) == (1, None)
    export(checkpoints[4], conf, str(full), golden=0)
    folded = fold(str(delta), str(broken / "folded"))
    assert (folded.version, folded.values) == (1, None)
    assert contents(broken / "folded") == contents(full)

    data = path.read_bytes()
    path.write_bytes(data[:-1])
    with pytest.raises(Failure, match=r"user\.values\.parquet is damaged"):
        open_embeddings(str(old))
    path.write_bytes(data)
    export(checkpoints[4], conf, str(old), golden=0)
    assert contents(old) == contents(full)
