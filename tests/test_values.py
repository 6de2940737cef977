"""Values beside the ids of exported rows, against sets of pairs, and through the command."""

import json
import random
from contextlib import closing
from datetime import datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dataless_runs import Run, conf_of

from tnctl import manifest
from tnctl.checkpoint.chain import open_checkpoint
from tnctl.data.id_encoders import Lists
from tnctl.data.slot_encoder import Encoder
from tnctl.data.slot_values import SlotValues, intervals
from tnctl.errors import Failure, UserError
from tnctl.schema import Data, Slot
from tnctl.serving.rows import value_files, value_runs, value_source
from tnctl.serving.rows.embeddings import open_embeddings
from tnctl.serving.rows.export import export
from tnctl.serving.rows.export_document import ExportManifest, Filter
from tnctl.serving.rows.file_format import hashes_of
from tnctl.serving.rows.folding import fold
from tnctl.serving.rows.value_runs import ValueRuns
from tnctl.tables.columns import hash_bytes

SLOTS = {
    "user": {"ids": "integer"},
    "item": {"ids": "integer", "separator": "|"},
    "last_item": {"ids": "integer", "group": "item"},
    "both": {"cross": ["user", "last_item"], "ids": "modulo", "size": 50},
}


def pairs_in(folder, slot):
    """What a file of values has, as rows [(id, value)] in their order."""
    table = pq.read_table(Path(folder) / f"{slot}.values.parquet")
    assert table.column_names == ["id", "value"]
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


# ---- Reading values ---------------------------------------------------------

COLUMNS = {
    "texts": ({}, pa.array(["Ann", "Bob", None, "", "NA", "Ann", "é"])),
    "integers": ({}, pa.array([3, None, -4, 3], pa.int32())),
    "a dictionary": ({}, pa.array(["a", "b", None, "a"]).dictionary_encode()),
    "split": ({"separator": "|", "pooling": "mean"}, pa.array(["a|b", "", None, "b||c", "NA"])),
    "lists": ({"pooling": "sum"}, pa.array([["a", None], [], None, ["b", "a"]])),
    "a seed": ({"seed": 7, "missing": "value"}, pa.array(["a", None, "b"])),
    "modulo": ({"ids": "modulo", "size": 2}, pa.array(list("abcdefgh"))),
    "decimal texts": ({"ids": "integer"}, pa.array(["7", "007", "-1", None])),
    "out of a list": (
        {"ids": "vocabulary", "vocabulary": ["x", "y"], "oov": 2}, pa.array(["y", "p", "q", "x"]),
    ),
    "a sequence": ({"pooling": "none", "max_length": 1}, pa.array([["a", "b"], ["c"]])),
    "nothing": ({}, pa.nulls(3)),
    "hours of timestamps": (
        {"ids": "hour"},
        pa.array([datetime(2026, 1, 2, 3), None, datetime(2026, 1, 2, 5)], pa.timestamp("s")),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", COLUMNS)
def test_values_are_those_that_the_ids_are_made_of(name):
    """Each value once, with the id that it has alone in a row."""
    settings, column = COLUMNS[name]
    slot, data = Slot(**settings), Data(missing=["NA"])
    lists = Lists(None, slot.vocabulary)
    reader = SlotValues("s", slot, data, lists)
    named = reader.read(column, lambda row: ("file", row))
    ignored = {"separator", "max_length"}
    alone = {key: value for key, value in settings.items() if key not in ignored}
    alone = Slot(**alone | {"pooling": "sum", "missing": "none"})
    encoder = Encoder("s", alone, data, lists)
    expected = set()
    for row in column.to_pylist():
        parts = row if isinstance(row, list) else [row]
        if slot.separator and row:
            parts = row.split(slot.separator)
        for value in parts:
            ids = encoder.encode(pa.array([value]), lambda row: ("file", row)).ids.tolist()
            if value == "" and slot.separator:
                ids = []  # an empty part is missing; a whole text may be empty
            expected |= {(id_, str(value)) for id_ in ids}
    named_pairs = list(zip(named.ids.tolist(), named.values.to_pylist(), strict=True))
    assert len(named_pairs) == len(set(named_pairs))
    assert set(named_pairs) == expected
    known = reader.known()
    if slot.missing == "value":
        assert known.values.to_pylist() == [None]
        assert known.ids.tolist() == [hash_bytes(b"", 7)]
    else:
        assert not len(known.ids)


def test_buckets_are_named_by_their_intervals():
    edges = np.array([-1.5, 0.0, 1e20])
    reader = SlotValues(
        "s",
        Slot(ids="boundaries", boundaries=edges.tolist(), missing="value"),
        Data(),
        Lists(edges),
    )
    assert reader.of_buckets
    known = reader.known()
    texts = ["(-inf, -1.5)", "[-1.5, 0.0)", "[0.0, 1e+20)", "[1e+20, inf)", None]
    assert known.values.to_pylist() == texts
    assert known.ids.tolist() == [0, 1, 2, 3, 4]
    assert intervals(np.array([])) == ["(-inf, inf)"]


def test_bytes_that_are_no_text_are_left_out():
    column = pa.array([b"a", b"\xff\xfe", b"b", b"\xff\xfe", "é".encode()])
    named = SlotValues("s", Slot(), Data(), Lists()).read(column, lambda row: ("file", row))
    assert named.values.to_pylist() == ["a", "b", "é"]
    assert named.ids.tolist() == [hash_bytes(text.encode(), 0) for text in ("a", "b", "é")]
    assert named.not_text == 1


# ---- Sorting in bounded memory ----------------------------------------------


@pytest.mark.parametrize("most", [1, 2000, 1 << 30])
def test_runs_are_a_sorted_set(tmp_path, monkeypatch, most):
    monkeypatch.setattr(value_runs, "RUNS_MERGED", 3)
    monkeypatch.setattr(value_runs, "ROWS_PER_BATCH", 5)
    draw, runs, expected = random.Random(most), ValueRuns(tmp_path, "user", most), set()
    for _ in range(40):
        values = [f"v{draw.randrange(300)}" for _ in range(draw.randrange(20))]
        ids = np.array([int(value[1:]) % 40 for value in values], np.uint64)
        runs.add(ids, pa.array(values, pa.large_string()))
        expected |= set(zip(ids.tolist(), values, strict=True))
    tables = list(runs.sorted())
    whole = pa.concat_tables(tables)
    named_pairs = list(
        zip(*(whole.column(name).to_pylist() for name in ("id", "value")), strict=True)
    )
    hashed = hashes_of("user", np.arange(40, dtype=np.uint64)).tolist()
    order = sorted(expected, key=lambda pair: (hashed[pair[0]], hash_bytes(pair[1].encode(), 0)))
    assert named_pairs == order
    if most < 1 << 30:  # runs were merged, and do not pile up
        assert 1 <= len(list(tmp_path.iterdir())) <= 8
    assert len(tables) > 1 or most == 1 << 30


# ---- Exports ----------------------------------------------------------------


@pytest.fixture(scope="module")
def trained_ids(tmp_path_factory):
    """A run of integer ids below 60, two of its checkpoints, and data with their values."""
    folder = tmp_path_factory.mktemp("values")
    run = Run(conf_of(folder / "run", slots=SLOTS))
    first = run.train(3).save(golden=[])
    second = run.train(2, ids=20).save(golden=[])
    lines = [f"{n},{n}|{n + 1}|0{n},{n * 3}" for n in range(0, 80, 2)]
    (folder / "a.csv").write_text("\n".join(["user,item,last_item", *lines, "x,,5"]) + "\n")
    (folder / "users.csv").write_text("name,user\nAnn,4\nBob,6\nAnn,4\n")
    return folder, run, first, second


def expected_pairs(folder, slot, texts):
    """The pairs that a set of texts gives, of ids that the export has a row of."""
    with closing(open_embeddings(str(folder))) as embeddings:
        group = next(s.group for s in embeddings.manifest.slots if s.slot == slot)
        ids = np.array(sorted({int(text) for text in texts}), np.uint64)
        known = ids[embeddings.lookup(group, ids)[1]].tolist()
    return {(int(text), text) for text in texts if int(text) in known}


@pytest.mark.parametrize("encoding", ["parquet", "text", "dictionary"])
def test_an_export_names_its_rows(trained_ids, tmp_path, encoding, monkeypatch):
    folder, run, first, _ = trained_ids
    monkeypatch.setattr(value_source, "LEAST_BYTES", 300)
    monkeypatch.setattr(value_source, "BYTES_IN_MEMORY", 300)
    monkeypatch.setattr(value_runs, "ROWS_PER_BATCH", 7)
    monkeypatch.setattr(value_files, "ROWS_PER_GROUP", 10)
    run.conf.data.bad_rows = 1
    content = export(
        open_checkpoint(first), run.conf, str(tmp_path / "e"), encoding=encoding, golden=0,
        values=f"{folder}/a.csv",
    )  # fmt: skip
    assert manifest.read(str(tmp_path / "e"), ExportManifest) == content
    assert content.version == 3
    assert [entry.slot for entry in content.values] == ["user", "item", "last_item"]  # no cross
    numbers = range(0, 80, 2)
    texts = {
        "user": {str(n) for n in numbers},
        "item": {text for n in numbers for text in (str(n), str(n + 1), f"0{n}")},
        "last_item": {str(3 * n) for n in numbers},
    }
    for entry in content.values:
        named_pairs = pairs_in(tmp_path / "e", entry.slot)
        assert set(named_pairs) == expected_pairs(tmp_path / "e", entry.slot, texts[entry.slot])
        assert len(named_pairs) == len(set(named_pairs)) == entry.values > 0
        assert entry.ids == len({id_ for id_, _ in named_pairs})
        # In the order of the rows.
        group = "user" if entry.slot == "user" else "item"
        keys = hashes_of(group, np.array([id_ for id_, _ in named_pairs], np.uint64))
        assert (keys[1:] >= keys[:-1]).all()
    groups = pq.ParquetFile(tmp_path / "e/item.values.parquet").metadata
    assert groups.num_row_groups == -(-groups.num_rows // 10)


def test_values_of_a_chain_are_folded(trained_ids, tmp_path):
    """A delta names its own rows; the fold names what any export of the chain names."""
    folder, run, first, second = trained_ids
    only = {"golden": 0, "filter": Filter(slots=("user", "item"))}
    base, delta, plain = (str(tmp_path / name) for name in ("base", "delta", "plain"))
    export(open_checkpoint(first), run.conf, base, values=f"{folder}/a.csv", **only)
    content = export(
        open_checkpoint(second), run.conf, delta, since=base, values=f"{folder}/users.csv", **only
    )
    assert [(entry.slot, entry.file) for entry in content.values] == [
        ("user", "user.values.parquet")
    ]
    changed = set(pq.read_table(f"{delta}/user.parquet")["id"].to_pylist())
    assert set(pairs_in(delta, "user")) == {(n, str(n)) for n in (4, 6) if n in changed}

    folded = fold(delta, str(tmp_path / "folded"))
    assert manifest.read(str(tmp_path / "folded"), ExportManifest) == folded
    assert folded.version == 3
    for slot in ("user", "item"):
        assert set(pairs_in(base, slot)) <= set(pairs_in(tmp_path / "folded", slot))
    named = set(pairs_in(base, "user")) | set(pairs_in(delta, "user"))
    assert set(pairs_in(tmp_path / "folded", "user")) == named
    content = export(open_checkpoint(second), run.conf, plain, since=base, **only)
    assert (content.version, content.values) == (1, None)


def test_a_damaged_file_of_values(trained_ids, tmp_path):
    folder, run, first, _ = trained_ids
    to = tmp_path / "e"
    content = export(
        open_checkpoint(first), run.conf, str(to), golden=0, values=f"{folder}/users.csv"
    )
    path = to / "user.values.parquet"
    data, [entry] = path.read_bytes(), content.values
    for damaged in (data[:-9], b"", data[:40] + bytes([data[40] ^ 1]) + data[41:]):
        path.write_bytes(damaged)
        with pytest.raises(Failure, match=r"user\.values\.parquet is damaged"):
            open_embeddings(str(to))
    # And without the help of a checksum.
    pq.write_table(pq.read_table(to / "user.parquet"), path)
    with pytest.raises(Failure, match="its columns are not those"):
        list(value_files.stored(str(to), entry, "user"))
    rows = pa.Table.from_pylist([{"id": n, "value": "a"} for n in range(9)], value_files.SCHEMA)
    pq.write_table(rows, path)
    with pytest.raises(Failure, match="not in the order of their ids"):
        list(value_files.stored(str(to), entry, "user"))
    pq.write_table(rows.slice(0, 1), path)
    with pytest.raises(Failure, match="not as many values"):
        list(value_files.stored(str(to), entry, "user"))
    for change, words in (
        ({"file": "x.parquet"}, "file of the values of slot user"),
        ({"ids": 99}, "fewer values than ids"),
        ({"slot": "nobody", "file": "nobody.values.parquet"}, "or of others"),
    ):
        document = json.loads((to / "manifest.json").read_text())
        document["values"][0] |= change
        del document["sha256"]
        (to / "m.json").write_bytes(manifest.sealed(document))
        with pytest.raises(Failure, match=words):
            manifest.read(str(to), ExportManifest, "m.json")


def test_data_that_cannot_name_ids(trained_ids, tmp_path):
    folder, run, first, _ = trained_ids
    (folder / "none.csv").write_text("name,label\nAnn,1\n")
    for named, words in (
        (f"{folder}/none.csv", "no column of an exported slot is there. Slots are read from: user"),
        (f"{folder}/absent.csv", "no such file was found"),
        ("true", r"values=true: .* a split of the conf \(train\), or the name or a glob"),
        ("validation", "the conf has no data.validation"),
        ("train", "none.csv was not found"),
    ):
        with pytest.raises(UserError, match=words):
            export(open_checkpoint(first), run.conf, str(tmp_path / "e"), golden=0, values=named)
        assert not (tmp_path / "e").exists()


# ---- The command ------------------------------------------------------------


def test_the_command_finds_a_user_by_name(run_copy, cli):
    """What the export has of a value is what the run itself has of it."""
    import tnctl

    done = cli("export-embeddings", "output=run", "values=train", cwd=run_copy)
    assert done.code == 0, done.err
    folder = run_copy / "run/embeddings"
    run = tnctl.open(run_copy / "run")
    for slot, group in (("user_id", "user_id"), ("device", "shared"), ("interests", "interests")):
        named = pq.read_table(folder / f"{slot}.values.parquet")
        rows = pq.read_table(folder / f"{group}.parquet")
        stored = dict(zip(rows["id"].to_pylist(), rows["embedding"].to_pylist(), strict=True))
        expected = run.embeddings(slot, named["value"].to_pylist())
        assert named["id"].to_pylist() == expected["id"].to_pylist()
        assert [stored[id_] for id_ in named["id"].to_pylist()] == expected["embedding"].to_pylist()
        assert len(named) > 1
    missing = pq.read_table(folder / "item_id.values.parquet").filter(
        pa.compute.field("value").is_null()
    )
    assert len(missing) == 1
    buckets = pairs_in(folder, "price_range")
    assert sorted(id_ for id_, _ in buckets) == list(range(8))
    for arguments, words in (
        (["to=redis://h:1/0"], "values= is of files"),
        (["data.train=clicks/{day}.csv"], "values='clicks/*.csv'"),
    ):
        done = cli("export-embeddings", "output=run", "values=train", *arguments, cwd=run_copy)
        assert done.code == 2, done.err
        assert words in done.last
