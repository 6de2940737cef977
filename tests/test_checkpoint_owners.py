"""Checkpoints that several owners write, each with the rows of its range of hashes, and load."""

import dataclasses
import json
import os
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from dataless_runs import LIFE, Run, conf_of

from tnctl import documents, files, manifest
from tnctl.checkpoint import (
    compaction,
    inspection,
    owners,
    rows,
    spool,
    staging,
)
from tnctl.checkpoint import load as loading
from tnctl.checkpoint.saver import Saver
from tnctl.errors import Failure, UserError
from tnctl.manifest import DamagedError
from tnctl.model import building
from tnctl.tables import REMOVED_DTYPE, Shards, shards_of

TABLE = "embedding3"
COUNTS = (1, 2, 3)
STEPS = (8, 7, 6, 8)
BELOW = 3  # what each owner but the first counts too few ids that wait


class PartOfTable:
    """The rows of some shards of a table, as the table of one of the owners has them.

    `removed` are the keys that were removed since the last time, of all shards.
    """

    def __init__(self, table, rank, count, removed):
        self._table, self._removed = table, removed
        self._rank, self._count, self._hashes = rank, count, shards_of(rank, count).hashes

    def __getattr__(self, name):
        return getattr(self._table, name)

    def _all(self):
        return list(self._table.records(*self._hashes))

    @property
    def rows(self):
        return sum(map(len, self._all()))

    def group_rows(self, number):
        return sum(int((rows["group"] == number).sum()) for rows in self._all())

    def figures(self, number):
        figures = self._table.figures(number)
        return dataclasses.replace(figures, evicted=0) if self._rank else figures

    def waiting(self, number):
        if self._rank:
            return -BELOW
        return self._table.waiting(number) + BELOW * (self._count - 1)

    def take_removed(self):
        first, last = map(np.uint64, self._hashes)
        hashes = self._table.hashes(self._removed["group"], self._removed["id"])
        return self._removed[(hashes >= first) & (hashes <= last)]


def through_json(document):
    """The document that another process reads."""
    return documents.parse(type(document), json.dumps(documents.plain(document)).encode())


class Divided:
    """N owners in one process; what they are told and report passes through JSON.

    Each has a part of the model's tables, or those of `loaded`, by rank.
    """

    def __init__(self, conf, count, loaded=None):
        self.writers = [owners.PartWriter(conf, shards_of(rank, count)) for rank in range(count)]
        self.loaded = loaded
        self.removed = {}  # by rank: the keys that its table has not given yet

    def remove(self, keys):
        """The keys, REMOVED_DTYPE [n], have no row any more."""
        self.removed = dict.fromkeys(range(len(self.writers)), keys)

    def _part_of(self, model, rank, taken=False):
        nothing = np.empty(0, REMOVED_DTYPE)
        removed = self.removed.pop(rank, nothing) if taken else nothing
        tables = [PartOfTable(table, rank, len(self.writers), removed) for table in model.tables]
        if self.loaded is not None:
            tables = self.loaded[rank]
        return SimpleNamespace(layout=model.layout, tables=tables)

    def measure(self, model, *, is_delta):
        return [
            through_json(writer.measure(self._part_of(model, rank), is_delta=is_delta))
            for rank, writer in enumerate(self.writers)
        ]

    def stage(self, model, requests):
        return [
            through_json(writer.stage(self._part_of(model, rank, True), through_json(request)))
            for rank, (writer, request) in enumerate(zip(self.writers, requests, strict=True))
        ]

    def finish(self):
        return [through_json(writer.finish()) for writer in self.writers]

    def committed(self):
        for writer in self.writers:
            writer.committed()

    def abandon(self):
        for writer in self.writers:
            writer.abandon()


@pytest.fixture(autouse=True)
def _graph(monkeypatch):
    """No checkpoint here is computed with."""
    monkeypatch.setattr(staging.InferenceGraph, "write", write_graph)


def write_graph(_self, opening, _model):
    with opening("graph/saved_model.pb") as stream:
        stream.write(b"a graph")


class DividedRun(Run):
    """A run whose checkpoints N owners write."""

    def __init__(self, conf, count, **more):
        super().__init__(conf, **more)
        self.owners = Divided(conf, count)
        self.saver = Saver(conf, self.last, self.owners)

    def save(self, wait=True, **more):
        self.owners.remove(np.concatenate([t.take_removed() for t in self.model.tables]))
        return super().save(wait, **more)


@pytest.fixture(scope="module")
def _written(tmp_path_factory):
    """The same run, written by each number of owners: a full one, two deltas, a full one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(staging.InferenceGraph, "write", write_graph)
        patch.setattr(rows, "BYTES_PER_FILE", 200)  # so that an owner has several files
        made = {}
        for compression in ("none", "zstd"):
            home = tmp_path_factory.mktemp(compression)
            save = {"full_every": 3, "compression": compression}
            run = Run(conf_of(home / "all", save, LIFE))
            confs = {count: conf_of(home / str(count), save, LIFE) for count in COUNTS}
            savers = {
                count: Saver(conf, None, Divided(conf, count)) for count, conf in confs.items()
            }
            folders = {count: [] for count in COUNTS}
            records = []
            for steps in STEPS:
                run.train(steps)
                run.evict()
                [removed] = [table.take_removed() for table in run.model.tables]
                for count, saver in savers.items():
                    saver._owners.remove(removed)
                    run.conf, run.saver = confs[count], saver
                    folders[count].append(run.save())
                records.append(run.records())
            made[compression] = confs, folders, records
    return made


@pytest.fixture(params=["none", "zstd"])
def written(request, _written):
    return _written[request.param]


def opened(folder):
    return loading.open_checkpoint(str(folder))


def all_of(arrays, dtype=None):
    arrays_read = list(arrays)
    return np.concatenate(arrays_read) if arrays_read else np.empty(0, dtype)


def in_json(folder):
    return json.loads(Path(folder, "manifest.json").read_text())


# ---- What is written --------------------------------------------------------


@pytest.mark.parametrize("count", COUNTS[1:])
def test_the_model_does_not_depend_on_how_many_wrote_it(written, count):
    _, folders, _ = written
    for single, several in zip(folders[1], folders[count], strict=True):
        single, several = opened(single), opened(several)
        assert loading.digest(several) == loading.digest(single)
        assert several.manifest.kind == single.manifest.kind
        assert several.table(TABLE).groups == single.table(TABLE).groups
        assert several.table(TABLE).rows == single.table(TABLE).rows
        gone = [all_of(rows.tombstones(c, TABLE), REMOVED_DTYPE) for c in (single, several)]
        np.testing.assert_array_equal(*gone)
        assert len(gone[0])
    groups = single.table(TABLE).groups
    assert sum(group.waiting for group in groups) > 0 < sum(group.evicted for group in groups)


def test_version_1_is_what_one_owner_writes(written):
    _, folders, _ = written
    alone, divided = in_json(folders[1][1]), in_json(folders[3][1])
    assert (alone["version"], divided["version"]) == (1, 2)
    assert list(alone["tables"][0])[-2:] == ["tombstones", "sketch"]
    [table] = divided["tables"]
    assert table["tombstones"] is None and table["sketch"] is None
    assert [Path(f["file"]).name for f in table["sketch_files"]] == [
        f"sketch-{rank:05d}.bin" for rank in range(3)
    ]
    assert len(table["files"]) > 3
    # The files are in the same order.
    kinds = [list(dict.fromkeys(map(kind_of, content["files"]))) for content in (alone, divided)]
    assert kinds[0] == kinds[1]


def kind_of(name):
    return re.sub(r"-?\d{5}", "", Path(name).name)


def test_an_owner_reads_its_range_alone(written, monkeypatch):
    _, folders, _ = written
    checkpoint = opened(folders[3][2])
    read = []
    real = files.open_input
    monkeypatch.setattr(files, "open_input", lambda url, **o: read.append(url) or real(url, **o))
    list(rows.stream(checkpoint, TABLE, *shards_of(2, 3).hashes))
    assert read
    for link in checkpoint.chain():
        first, _ = shards_of(2, 3).hashes
        within = {e.file for e in link.table(TABLE).entries if e.hashes[1] >= first}
        assert {url[len(link.folder) + 1 :] for url in read if url.startswith(link.folder)} == {
            name for name in within if link is not checkpoint.chain()[0] or "tomb" not in name
        }


@pytest.mark.parametrize("loaders", [1, 2, 5])
def test_loaded_by_any_number_and_saved_again(written, tmp_path, loaders):
    confs, folders, records = written
    checkpoint, conf = opened(folders[3][2]), confs[3]
    by_rank = []
    for rank in range(loaders):
        model = building.build(conf, checkpoint.statistics)
        loading.fill(checkpoint, model, shards_of(rank, loaders))
        by_rank.append(model)
    [whole] = records[2]
    loaded = b"".join(r.tobytes() for m in by_rank for r in m.tables[0].records())
    assert loaded == whole
    again = conf_of(tmp_path / "again", {"compression": conf.save.compression}, LIFE)
    divided = Divided(again, loaders, [model.tables for model in by_rank])
    run = Run(again, model=by_rank[0], steps=checkpoint.step)
    run.saver = Saver(again, None, divided)
    saved = opened(run.save(clock=checkpoint.clock))
    assert loading.digest(saved) == loading.digest(checkpoint)
    assert saved.table(TABLE).groups == checkpoint.table(TABLE).groups


def test_commands_that_read_checkpoints(written, tmp_path):
    _, folders, _ = written
    for number in (1, 2):
        single, several = opened(folders[1][number]), opened(folders[3][number])
        assert inspection.verify(several.folder).findings == []
        shown = [inspection.inspect(c) for c in (single, several)]
        for content in shown:
            content["tables"][0]["files"] = 0
            for group in content["tables"][0]["groups"]:  # sums of floats, block after block
                group |= {key: round(group[key], 9) for key in ("mean_norm", "shows", "clicks")}
        assert shown[0]["tables"] == shown[1]["tables"]
        compared = inspection.compare(single, several)
        assert sum(g.removed + g.added + g.changed for g in compared.groups) == 0
        folded = tmp_path / f"folded{number}"
        compaction.compact(several, str(folded))
        assert loading.digest(opened(folded)) == loading.digest(single)
        assert inspection.verify(str(folded)).findings == []
        gone = [all_of(rows.tombstones(c, TABLE)) for c in (single, opened(folded))]
        np.testing.assert_array_equal(*gone)


def test_a_run_continues_with_another_number_of_owners(tmp_path):
    """A chain of checkpoints that 1, 3 and 2 owners wrote is that of one owner."""
    save = {"full_every": 4, "keep": 2}
    alone, changing = Run(conf_of(tmp_path / "a", save, LIFE)), None
    for steps, count in zip((4, 3, 3, 2, 3), (1, 3, 2, 3, 1), strict=True):
        for run in (alone, changing):
            if run is not None:
                run.train(steps)
                run.evict()
        if changing is None:
            changing = DividedRun(conf_of(tmp_path / "b", save, LIFE), 1).train(steps)
            changing.evict()
        else:
            last = loading.newest(changing.conf.output)
            changing.owners = Divided(changing.conf, count)
            changing.saver = Saver(changing.conf, last, changing.owners)
        single, other = opened(alone.save()), opened(changing.save())
        assert loading.digest(single) == loading.digest(other)
        gone = [all_of(rows.tombstones(c, TABLE), REMOVED_DTYPE) for c in (single, other)]
        np.testing.assert_array_equal(*gone)
    names = [sorted(os.listdir(tmp_path / name / "checkpoints")) for name in "ab"]
    assert names[0] == names[1]  # pruned alike, and nothing of a pruned one is left


def test_owners_of_another_storage(tmp_path):
    url = f"memory://owners-{tmp_path.name}"
    run = DividedRun(conf_of(url, {"spool": str(tmp_path / "spool")}, LIFE), 3)
    run.train(9).evict()
    checkpoint = opened(run.save())
    assert inspection.verify(checkpoint.folder).findings == []
    assert Run(run.conf, model=loading.load(checkpoint, run.conf)).records() == run.records()
    assert not any((tmp_path / "spool").iterdir())


# ---- When it goes wrong -----------------------------------------------------


class Killed(BaseException):
    """As if all processes had ended here: nothing is cleaned up."""


@pytest.mark.parametrize(("killed", "compression"), [(False, "none"), (True, "zstd")])
def test_a_crash_after_any_file_leaves_the_one_before(tmp_path, monkeypatch, killed, compression):
    conf = conf_of(tmp_path / "run", {"full_every": 2, "compression": compression}, LIFE)
    run = DividedRun(conf, 2)
    first = run.train(4, 200).save()
    run.train(3, 200).evict()
    [removed] = [table.take_removed() for table in run.model.tables]
    run.owners.remove(removed)
    at, reached, foreign = -1, 0, 0
    while reached > at:
        at += 1
        reached = crash_at(at, monkeypatch, lambda: Run.save(run), killed)
        arrays_read = loading.newest(conf.output)
        if reached <= at:
            break
        assert arrays_read.folder == first, at
        for path in (tmp_path / "run/checkpoints").iterdir():
            if path.name != Path(first).name and not (path / "mine.txt").exists():
                assert killed  # without a kill nothing is left
                (path / "mine.txt").write_text("mine")
                foreign += 1
        if killed:  # an owner that lives keeps the removed keys
            run.owners = Divided(conf, 2)
            run.owners.remove(removed)
        run.saver = Saver(conf, arrays_read, run.owners)
    assert at > 10
    assert arrays_read.folder != first and arrays_read.manifest.kind == "delta"
    assert Run(conf, model=loading.load(arrays_read, conf)).records() == run.records()
    assert len(all_of(rows.tombstones(arrays_read, TABLE), REMOVED_DTYPE)) > 0
    left = [path for path in (tmp_path / "run/checkpoints").iterdir() if path.name not in
            {Path(first).name, arrays_read.name}]  # fmt: skip
    assert len(left) == foreign and all(os.listdir(path) == ["mine.txt"] for path in left)


def crash_at(at, monkeypatch, action, killed):
    """Run an action that fails after so many files; returns how many there were."""
    count = 0

    def after(function):
        def called(*arguments, **options):
            nonlocal count
            result = function(*arguments, **options)
            count += 1
            if count == at + 1:
                raise Killed if killed else Failure("no network")
            return result

        return called

    with monkeypatch.context() as patch:
        patch.setattr(spool.StagedFiles, "_finish", after(spool.StagedFiles._finish))
        patch.setattr(rows, "write_files", after(rows.write_files))
        patch.setattr(rows, "write_tombstones", after(rows.write_tombstones))
        patch.setattr(rows, "write_sketch", after(rows.write_sketch))
        patch.setattr(spool, "FINISHERS", 1)
        if killed:
            patch.setattr(spool.Spool, "abandon", lambda _: None)
            patch.setattr(owners.PartWriter, "abandon", lambda _: None)
        try:
            action()
        except (Killed, Failure):
            return count
    return min(count, at)


def test_a_worker_that_does_not_share_the_output_is_refused(tmp_path):
    run = DividedRun(conf_of(tmp_path / "run", {}, LIFE), 2).train(2)
    apart = conf_of(tmp_path / "elsewhere", {}, LIFE)
    run.owners.writers[1] = owners.PartWriter(apart, shards_of(1, 2))
    with pytest.raises(Failure, match=r"elsewhere.* share"):
        run.save()
    assert not (tmp_path / "elsewhere").exists()


def test_no_owner_writes_through_a_link(tmp_path, monkeypatch):
    run = DividedRun(conf_of(tmp_path / "run", {}, LIFE), 2).train(2)
    real = run.owners.stage
    (tmp_path / "mine").write_text("mine")

    def stage(model, requests):
        folder = tmp_path / f"run/checkpoints/{requests[1].folder}/tables/{TABLE}"
        folder.mkdir(parents=True)
        (folder / "sketch-00001.bin").symlink_to(tmp_path / "mine")
        return real(model, requests)

    monkeypatch.setattr(run.owners, "stage", stage)
    with pytest.raises(UserError, match="did not write"):
        run.save()
    assert (tmp_path / "mine").read_text() == "mine"


@pytest.mark.parametrize("name", ["tombstones-00001.bin", "sketch-00001.bin"])
def test_a_damaged_file_is_found_by_who_reads_it(_written, tmp_path, name):
    confs, folders, _ = _written["none"]
    shutil.copytree(Path(folders[3][2]).parent, tmp_path / "checkpoints")
    checkpoint = opened(tmp_path / "checkpoints" / Path(folders[3][2]).name)
    path = Path(checkpoint.folder, "tables", TABLE, name)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert inspection.verify(checkpoint.folder).findings
    conf = confs[3]
    for rank in range(3):
        model = building.build(conf, checkpoint.statistics)
        if rank != 1:
            loading.fill(checkpoint, model, shards_of(rank, 3))
            continue
        with pytest.raises(DamagedError, match=name):
            loading.fill(checkpoint, model, shards_of(rank, 3))


def resealed(folder, content):
    del content["sha256"]
    Path(folder, "manifest.json").write_bytes(manifest.sealed(content))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda c, _: c.update(version=4), "reads up to 3"),
        (lambda _, t: t["sketch_files"][0].update(bytes=0), "rows or counters need"),
    ],
)
def test_manifests_of_several_owners_are_checked(_written, tmp_path, change, said):
    _, folders, _ = _written["none"]
    shutil.copytree(folders[3][0], tmp_path / "one")
    content = in_json(tmp_path / "one")
    change(content, content["tables"][0])
    resealed(tmp_path / "one", content)
    with pytest.raises(Failure, match=said):
        opened(tmp_path / "one")


def test_every_shard_has_one_owner():
    for count in range(1, 65):
        shards = [number for rank in range(count) for number in range(*bounds(rank, count))]
        assert shards == list(range(64))
    assert Shards(63, 1).hashes == (63 << 58, 2**64 - 1)
    for rank, count in ((0, 65), (2, 2), (-1, 2), (0, 0)):
        with pytest.raises(ValueError, match="owners"):
            shards_of(rank, count)


def bounds(rank, count):
    shards = shards_of(rank, count)
    return shards.first, shards.end
