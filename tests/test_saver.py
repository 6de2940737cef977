"""Saving while training goes on: deltas, chains, tombstones, pruning, crashes, full disks."""

import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from dataless_runs import LIFE, Run, conf_of

from tnctl import files
from tnctl.checkpoint import load as loading
from tnctl.checkpoint import merging, rows, spool, staging
from tnctl.checkpoint.chain import before
from tnctl.checkpoint.saver import Saver
from tnctl.errors import Failure
from tnctl.files import streams
from tnctl.manifest import DamagedError
from tnctl.tables import REMOVED_DTYPE

TABLE = "embedding3"


def opened(folder):
    return loading.open_checkpoint(str(folder))


def all_of(parts, dtype=None):
    arrays = list(parts)
    return np.concatenate(arrays) if arrays else np.empty(0, dtype)


def full_copy(checkpoint, conf, folder):
    """What the chain of a checkpoint amounts to, as a full one."""
    model = loading.load(checkpoint, conf)
    staging.save(
        model,
        str(folder),
        clock=checkpoint.clock,
        position=checkpoint.position,
        finished=False,
        golden=checkpoint.golden(),
        metrics=checkpoint.manifest.metrics,
    )
    return opened(folder)


# ---- Chains -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("compression", "life"), [("none", LIFE), ("zstd", {})], ids=["life", "compressed"]
)
def test_a_chain_is_the_full_checkpoint(tmp_path, compression, life):
    conf = conf_of(tmp_path / "run", {"full_every": 4, "compression": compression}, life)
    run, folders, records = Run(conf), [], []
    for steps in (3, 4, 1, 0, 5):
        run.train(steps)
        run.evict()
        folders.append(run.save(extras={"running": b"\0\1"}))
        records.append(run.records())
    kinds = [opened(folder).manifest.kind for folder in folders]
    assert kinds == ["full", "delta", "delta", "delta", "full"]
    if life:
        assert sum(f.evicted for f in map(run.model.tables[0].figures, (0, 1))) > 0
    for number, folder in enumerate(folders):
        checkpoint = opened(folder)
        assert [link.folder for link in checkpoint.chain()] == folders[
            4 * (number // 4) : number + 1
        ]
        assert checkpoint.extra("running") == b"\0\1" and checkpoint.extra("other") is None
        again = loading.load(checkpoint, conf)
        assert Run(conf, model=again).records() == records[number]
        copy = full_copy(checkpoint, conf, tmp_path / f"full{number}")
        assert loading.digest(copy) == loading.digest(checkpoint)
        for name in ("rows", "groups", "sketch"):
            assert getattr(copy.table(TABLE), name) == getattr(checkpoint.table(TABLE), name)
    assert len({loading.digest(opened(folder)) for folder in folders}) == 4  # one had no steps


def test_training_goes_on_from_a_chain_as_if_it_had_not_stopped(tmp_path):
    """The same rows, sketch, figures and removed keys."""
    straight = Run(conf_of(tmp_path / "a", {"full_every": 3}, LIFE))
    for _ in range(4):
        straight.train(3)
        straight.evict()
        last = straight.save()
    conf = conf_of(tmp_path / "b", {"full_every": 3}, LIFE)
    stopped = Run(conf)
    for _ in range(4):
        stopped.train(3)
        stopped.evict()
        folder = stopped.save()
        checkpoint = loading.newest(conf.output)
        assert checkpoint.folder == folder
        model = loading.load(checkpoint, conf)
        stopped = Run(conf, checkpoint, model, stopped.steps)
    assert loading.digest(opened(last)) == loading.digest(opened(folder))
    for link, other in zip(opened(last).chain(), opened(folder).chain(), strict=True):
        assert link.table(TABLE) == other.table(TABLE)
        kept = [all_of(rows.tombstones(c, TABLE), REMOVED_DTYPE) for c in (link, other)]
        np.testing.assert_array_equal(*kept)


@pytest.mark.parametrize("count", [1, 2, 8, 64])
def test_any_number_of_ranges(tmp_path, count, monkeypatch):
    run = Run(conf_of(tmp_path / "run", {"full_every": 2}, {"eviction": {"unseen_steps": 2}}))
    size = run.train(8, 300).model.tables[0].record_dtype.itemsize
    monkeypatch.setattr(rows, "BYTES_PER_FILE", run.model.tables[0].rows * size / count)
    full = run.save()
    assert len(opened(full).table(TABLE).files) == count
    # A delta has ranges of its own.
    monkeypatch.setattr(rows, "BYTES_PER_FILE", 1 << 30)
    run.train(2, 300).evict()
    delta = run.save()
    for folder in (full, delta):
        checkpoint = opened(folder)
        whole = all_of(rows.stream(checkpoint, TABLE))
        for parts in (1, 3, 16, 256):
            edges = [2**64 * i // parts for i in range(parts + 1)]
            slices = [
                records
                for first, end in itertools.pairwise(edges)
                for records in rows.stream(checkpoint, TABLE, first, end - 1)
            ]
            np.testing.assert_array_equal(all_of(slices), whole)
    assert Run(run.conf, model=loading.load(opened(delta), run.conf)).records() == run.records()


def test_tombstones_are_the_removed_keys_without_a_row(tmp_path):
    """Against a dict: removed since the parent, not there again; the newest step of each."""
    life = {"eviction": {"unseen_steps": 2}}
    run = Run(conf_of(tmp_path / "run", {"full_every": 3}, life))
    removed, previous = {}, {}
    keys = merging.KeyHashes({0: "user", 1: "item"})
    for number in range(7):
        run.train(3)
        there = present(run)
        run.evict()
        removed |= dict.fromkeys(there - present(run), run.steps)
        folder = run.save()
        checkpoint = opened(folder)
        there = present(run)
        removed = {key: step for key, step in removed.items() if key not in there}
        tombstones = all_of(rows.tombstones(checkpoint, TABLE), REMOVED_DTYPE)
        as_dict = {(int(g), int(i)): int(step) for i, g, step in tombstones}
        assert as_dict == removed
        hashes = keys.hashes(tombstones)
        assert (np.lexsort((tombstones["group"], hashes)) == np.arange(len(tombstones))).all()
        if number % 3:  # a delta has those since its parent alone
            of_delta = checkpoint.table(TABLE).tombstones
            since = {key for key, step in removed.items() if step > previous["step"]}
            assert (of_delta.rows if of_delta else 0) == len(since)
        previous = {"step": run.steps}
    assert removed


def present(run):
    return {
        (int(record["group"]), int(record["id"]))
        for table in run.model.tables
        for records in table.records()
        for record in records
    }


def test_old_tombstones_go(tmp_path):
    run = Run(conf_of(tmp_path / "run", {"tombstone_days": 2}, {"eviction": {"unseen_steps": 1}}))
    steps = []
    for day in (1, 2, 5, 6):
        run.days.append((day, run.steps + 1))
        for table in run.model.tables:
            table.set_days(run.days)
        run.train(3)
        run.evict()
        kept = all_of(rows.tombstones(opened(run.save()), TABLE), REMOVED_DTYPE)
        steps.append(set(kept["step"].tolist()))
    # Of day 1: day 1. Day 2: both. Day 5: those before day 4 go. Day 6: day 5 and 6.
    assert steps[0] == {3}
    assert steps[1] <= {3, 6} and 6 in steps[1]
    assert steps[2] == {9}
    assert steps[3] <= {9, 12} and 12 in steps[3]


def test_what_a_day_without_a_step_removes_is_in_its_delta(tmp_path):
    """Its first step is one that was not done; a month lies between it and the day before."""
    conf = conf_of(tmp_path / "run", {"full_every": 5}, {"eviction": {"unseen_days": 2}})
    run = Run(conf)
    for day, steps in ((1, 3), (2, 3), (40, 0)):
        run.days.append((day, run.steps + 1))
        for table in run.model.tables:
            table.set_days(run.days)
        run.train(steps)
        removed = run.evict()
        folder = run.save()
    assert removed and opened(folder).manifest.kind == "delta"
    assert Run(conf, model=loading.load(opened(folder), conf)).records() == run.records()


def test_a_signal_while_it_is_waited_for_does_not_complete_a_checkpoint(tmp_path, monkeypatch):
    class Interrupted(Exception):
        pass

    def interrupt(*_):
        raise Interrupted

    complete, is_interrupted = spool.Spool.complete, threading.Event()

    def slowly(self, content):
        os.kill(os.getpid(), signal.SIGTERM)
        assert is_interrupted.wait(60)
        time.sleep(0.2)
        return complete(self, content)

    monkeypatch.setattr(spool.Spool, "complete", slowly)
    run = Run(conf_of(tmp_path / "run")).train(2)
    handler = signal.signal(signal.SIGTERM, interrupt)
    try:
        with pytest.raises(Interrupted):
            run.save()
    finally:
        signal.signal(signal.SIGTERM, handler)
    is_interrupted.set()
    run.saver.wait()
    assert opened(str(tmp_path / "run/checkpoints/step-0000000002")).step == 2


def test_removed_keys_are_not_lost_with_a_failed_checkpoint(tmp_path, monkeypatch):
    run = Run(conf_of(tmp_path / "run", {"full_every": 5}, {"eviction": {"unseen_steps": 1}}))
    run.train(3)
    run.save()
    run.train(3)
    assert run.evict()
    there = present(run)
    monkeypatch.setattr(
        spool.Spool, "complete", lambda *_: (_ for _ in ()).throw(Failure("no network"))
    )
    with pytest.raises(Failure, match="no network"):
        run.save()
    monkeypatch.undo()
    run.train(1)
    checkpoint = opened(run.save())
    assert checkpoint.manifest.kind == "delta"
    gone = all_of(rows.tombstones(checkpoint, TABLE), REMOVED_DTYPE)
    assert len(gone) and there
    assert Run(run.conf, model=loading.load(checkpoint, run.conf)).records() == run.records()


def test_a_broken_chain_is_refused(tmp_path):
    conf = conf_of(tmp_path / "run", {"full_every": 4})
    run = Run(conf)
    first, second, third = (run.train(2).save() for _ in range(3))

    def refused(*words):
        for use in (loading.load, lambda c, _: list(rows.stream(c, TABLE))):
            with pytest.raises(DamagedError) as caught:
                use(opened(third), conf)
            for word in words:
                assert word in str(caught.value), caught.value

    os.rename(second, tmp_path / "kept")
    refused(third, second, "not there", f"checkpoint={first}")
    assert loading.newest(conf.output).folder == first
    # Another one in its place, whole in itself.
    shutil.copytree(first, second)
    refused(second, "another")
    shutil.rmtree(second)
    os.rename(tmp_path / "kept", second)
    loading.load(opened(third), conf)


def test_a_second_checkpoint_of_a_step_stands_beside_the_first(tmp_path):
    run = Run(conf_of(tmp_path / "run", {"full_every": 2}))
    run.train(3)
    names = [Path(run.save()).name for _ in range(3)]
    assert names == ["step-0000000003", "step-0000000003-02", "step-0000000003-03"]
    assert loading.newest(run.conf.output).name == names[-1]
    assert len({loading.digest(opened(f"{run.conf.output}/checkpoints/{n}")) for n in names}) == 1


# ---- Merging ----------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_merging_is_a_dict_that_newer_sources_update(seed):
    rng = np.random.default_rng(seed)
    keys = merging.KeyHashes({0: "a", 1: "b", 5: "c"})
    dtype = np.dtype([("id", "<u8"), ("group", "<u2"), ("value", "<u4")])
    sources, expected = [], {}
    for number in range(int(rng.integers(1, 5))):
        count = int(rng.integers(0, 300))
        records = np.zeros(count, dtype)
        records["id"], records["group"] = rng.integers(0, 150, count), rng.choice([0, 1, 5], count)
        records = np.unique(records)
        records["value"] = number
        records = records[np.lexsort((records["group"], keys.hashes(records)))]
        cuts = np.sort(rng.integers(0, len(records) + 1, int(rng.integers(0, 30))))
        sources.append(np.split(records, cuts))
        for record in records.tolist():
            expected.setdefault(record[:2], record[2])  # the newest come first
    wanted = range(0, len(sources), 2)
    merged = all_of(
        (
            winners
            for block in merging.newest([iter(parts) for parts in sources], keys)
            for winners in block.of(wanted, dtype)
        ),
        dtype,
    )
    assert {record[:2]: record[2] for record in merged.tolist()} == {
        key: value for key, value in expected.items() if value in wanted
    }
    order = np.lexsort((merged["group"], keys.hashes(merged)))
    assert (order == np.arange(len(merged))).all()


def test_keys_of_several_groups_may_share_a_hash():
    """Ids that were chosen so: id ^ salt is the same."""
    from tnctl.tables.columns import group_salt

    keys = merging.KeyHashes({0: "a", 1: "b"})
    dtype = np.dtype([("id", "<u8"), ("group", "<u2")])
    twin = 77 ^ group_salt("a") ^ group_salt("b")
    both = np.array([(77, 0), (twin, 1)], dtype)
    assert len(set(keys.hashes(both).tolist())) == 1
    sources = [[both[1:]], [both[:1], both[1:]]]
    for cut in (sources, sources[::-1], [[both], [both[:1]]]):
        merged = [
            s for b in merging.newest([iter(x) for x in cut], keys) for s in b.of(range(2), dtype)
        ]
        np.testing.assert_array_equal(all_of(merged), both)


# ---- What stays -------------------------------------------------------------


def test_the_newest_the_best_and_what_they_are_built_on_stay(tmp_path):
    run = Run(conf_of(tmp_path / "run", {"full_every": 2, "keep": 2}))
    kept = []
    for number in range(7):
        run.train(2)
        if number == 2:
            run.saver.protect(run.steps)
        run.save()
        kept.append(sorted(os.listdir(tmp_path / "run/checkpoints")))
    names = {n: f"step-{n:010d}" for n in range(2, 15, 2)}
    # Odd ones are full: 2, 6, 10, 14; and 4, 8, 12 are built on the one before.
    assert kept[2] == [names[2], names[4], names[6]]
    assert kept[4] == [names[6], names[8], names[10]]
    assert kept[6] == [names[6], names[10], names[12], names[14]]
    for name in kept[6]:
        loading.load(opened(tmp_path / "run/checkpoints" / name), run.conf)


def test_leftovers_go_and_what_is_foreign_stays(tmp_path):
    parent = tmp_path / "run/checkpoints"
    killed = spool.Spool(str(parent / "step-0000000007"), tmp_path)
    with killed.writing("tables/embedding2/00000.rows.zst") as stream:
        stream.write(b"half")
    for name in ("step-0000000001/tables", "step-0000000005/mine", "mine", "step-by-step"):
        (parent / name).mkdir(parents=True)
        (parent / name / "dense.bin").write_text("mine")
    (parent / "notes.txt").write_text("mine")
    Run(conf_of(tmp_path / "run")).train(5).save()
    assert sorted(os.listdir(parent)) == [
        "mine", "notes.txt", "step-0000000001", "step-0000000005", "step-0000000005-02",
        "step-by-step",
    ]  # fmt: skip
    assert (parent / "step-0000000001/tables/dense.bin").read_text() == "mine"
    assert os.listdir(parent / "step-0000000005") == ["mine"]


def test_spools_of_dead_processes_go(tmp_path):
    mine = spool.Spool("memory://mine", tmp_path)
    dead = files.TemporaryFolder("spool", tmp_path)
    os.close(dead._end.detach()[2][1])  # as when its process is killed
    (Path(dead.name) / "tables").mkdir()
    (tmp_path / "tnctl.spool.mine/tables").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    Run(conf_of(f"memory://{tmp_path.name}", {"spool": str(tmp_path)})).train().save()
    assert not Path(dead.name).parent.exists() and len(os.listdir(tmp_path)) == 3
    mine.abandon()
    assert sorted(os.listdir(tmp_path)) == ["other", "tnctl.spool.mine"]


def test_the_spool_is_empty_afterwards(tmp_path):
    url = f"memory://spooled-{tmp_path.name}"
    run = Run(conf_of(url, {"spool": str(tmp_path / "spool"), "full_every": 2}))
    for _ in range(3):
        folder = run.train(2).save()
    assert not any((tmp_path / "spool").iterdir())
    assert Run(run.conf, model=loading.load(opened(folder), run.conf)).records() == run.records()
    assert run.saver.bytes_written > 10_000 and run.saver.seconds_stalled > 0


# ---- When it goes wrong -----------------------------------------------------


@pytest.mark.parametrize("where", ["spool", "output"])
def test_without_room_nothing_is_begun(tmp_path, monkeypatch, where):
    output = f"memory://full-{tmp_path.name}" if where == "spool" else tmp_path / "run"
    run = Run(conf_of(output, {"spool": str(tmp_path / "spool")})).train(2)
    monkeypatch.setattr(files, "free_bytes", lambda _: 1000)
    with pytest.raises(Failure, match=rf"no space is left .* \(1,000 B of .*{where}="):
        run.save()
    monkeypatch.undo()
    opened(run.save())


class Killed(BaseException):
    """As if the process had ended here: nothing is cleaned up."""


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_a_process_that_ends_anywhere_leaves_the_one_before(tmp_path, monkeypatch, compression):
    """At each opening, write, sync and replacement of a file."""
    conf = conf_of(tmp_path / "run", {"full_every": 2, "compression": compression})
    run = Run(conf)
    first = run.train(2).save()
    monkeypatch.setattr(spool.Spool, "abandon", lambda _: None)
    steps, reached, at = 0, 1, -1
    while reached > at:
        at += 1
        reached = die_at(at, monkeypatch, lambda: run.train(1).save())
        steps += 1
        newest = loading.newest(conf.output)
        if reached > at:
            # Its last operation comes after the manifest is there.
            assert newest.folder == first or newest.step == run.steps, at
            first = newest.folder
            assert sum(map(len, rows.stream(newest, TABLE))) == newest.table(TABLE).rows
            # The next process; it would export the graph anew.
            exported = run.saver._graph
            run.saver = Saver(conf, newest)
            run.saver._graph = exported
    assert steps > 20
    assert newest.step == run.steps
    complete = {"step-0000000002", Path(first).name, newest.name}
    assert complete == set(os.listdir(tmp_path / "run/checkpoints"))  # each process cleaned up
    assert Run(conf, model=loading.load(newest, conf)).records() == run.records()


def die_at(at, monkeypatch, action):
    """Run an action that ends at a file operation's number; returns how many there were."""
    count = 0
    with monkeypatch.context() as patch:

        def dying(function):
            def called(*arguments, **options):
                nonlocal count
                count += 1
                if count > at:
                    raise Killed
                return function(*arguments, **options)

            return called

        patch.setattr(os, "fsync", dying(os.fsync))
        patch.setattr(os, "replace", dying(os.replace))
        opening = dying(files.open_output)
        for module in (files, streams):
            patch.setattr(module, "open_output", opening)
        try:
            action()
        except Killed:
            return count
    return count if count <= at else at


KINDS = {
    "rows": f"tables/{TABLE}/00000.rows",
    "tombstones": f"tables/{TABLE}/tombstones.bin",
    "sketch": f"tables/{TABLE}/sketch.bin",
    "dense": "dense.bin",
    "conf": "conf.json",
    "golden": "golden.jsonl",
    "extra": "extra/running",
    "zstd": f"tables/{TABLE}/00000.rows.zst",
}


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Two full checkpoints with every kind of file, plain and compressed."""
    made = {}
    for compression in ("none", "zstd"):
        output = tmp_path_factory.mktemp("two") / compression
        run = Run(conf_of(output, {"compression": compression}, LIFE))
        for _ in range(2):
            run.train(8)
            run.evict()
            run.save(extras={"running": b"figures"})
        made[compression] = run.conf
    return made


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("damage", ["flip", "cut", "gone", "longer"])
def test_damage_is_named_and_the_one_before_offered(two, tmp_path, kind, damage):
    conf = two["zstd" if kind == "zstd" else "none"]
    shutil.copytree(conf.output, tmp_path / "run")
    older, newer = sorted((tmp_path / "run/checkpoints").iterdir())
    path = newer / KINDS[kind]
    data = bytearray(path.read_bytes())
    if damage == "flip":
        data[len(data) * 2 // 3] ^= 4
    elif damage == "cut":
        del data[-5:]
    elif damage == "longer":
        data += b"\0\0"
    path.write_bytes(data)
    if damage == "gone":
        path.unlink()
    checkpoint = opened(newer)
    use = {
        "conf": checkpoint.conf,
        "golden": checkpoint.golden,
        "extra": lambda: checkpoint.extra("running"),
        "tombstones": lambda: list(rows.tombstones(checkpoint, TABLE)),
        "rows": lambda: list(rows.stream(checkpoint, TABLE)),
        "zstd": lambda: list(rows.stream(checkpoint, TABLE)),
    }.get(kind, lambda: loading.load(checkpoint, conf))
    with pytest.raises(DamagedError) as caught:
        use()
    assert str(path) in str(caught.value)
    assert f"checkpoint={older}" in str(caught.value)
    assert before(checkpoint, caught.value.folder).folder == str(older)


# A child per kill: the imports take longer than all else.
SAVING = """
import os, sys
sys.path.insert(0, sys.argv[1])
from dataless_runs import Run, conf_of, LIFE
from tnctl.checkpoint import load
for _ in sys.stdin:
    if child := os.fork():
        os.waitpid(child, 0)
        print("gone", flush=True)
        continue
    conf = conf_of(sys.argv[2], {"full_every": 3, "keep": 2}, LIFE)
    last = load.newest(conf.output)
    run = Run(conf, last, load.load(last, conf) if last else None, last.step if last else 0)
    while True:
        run.train(1, 3000)
        run.evict()
        run.save(wait=False)
        if run.steps == (last.step if last else 0) + 2:
            print(os.getpid(), flush=True)
"""


@pytest.mark.parametrize("kills", [
    pytest.param(3, marks=pytest.mark.short), pytest.param(30, marks=pytest.mark.long),
])  # fmt: skip
def test_killed_while_it_saves(tmp_path, kills):
    """Really: what is there is whole, as of an unkilled run, and a process goes on from it."""
    rng, reached = random.Random(kills), 0
    with subprocess.Popen(
        [sys.executable, "-c", SAVING, str(Path(__file__).parent), str(tmp_path / "run")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True, bufsize=1,
    ) as parent:  # fmt: skip
        for _ in range(kills):
            parent.stdin.write("another\n")
            saving_process = int(parent.stdout.readline())
            time.sleep(rng.random() / 2)
            os.kill(saving_process, signal.SIGKILL)
            assert parent.stdout.readline() == "gone\n"
            newest = loading.newest(str(tmp_path / "run"))
            assert newest.step > reached
            reached = newest.step
            list(rows.stream(newest, TABLE))
    conf = conf_of(tmp_path / "run", {"full_every": 3}, LIFE)
    unkilled = Run(conf)
    while unkilled.steps < reached:
        unkilled.train(1, 3000)
        unkilled.evict()
    assert Run(conf, model=loading.load(newest, conf)).records() == unkilled.records()
