"""N workers are one process that trains their batches one by one and adds them in rank order."""

import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path

import cluster_in_one_process
import numpy as np
import pytest
from micro_batches import MicroBatches
from test_cluster import conf_of

from tnctl import schema
from tnctl.checkpoint import dense_file, load, owners, rows
from tnctl.checkpoint.chain import open_checkpoint
from tnctl.cluster.rank_0 import cluster_workers

ROWS = (165, 101, 48, 70)  # of the workers: batches of 16, of which the last may be short
STEPS_OF_PASS = 11
EVERY = 4  # steps between checkpoints
COMMON = [
    "data.train=worker-*.csv", "data.shuffle=false", "data.validation=null", "data.test=null",
    "train.batch_size=16", "train.epochs=2", f"save.every_steps={EVERY}", "save.keep=0",
    "~slots.price_range",
]  # fmt: skip
PLAIN = [
    "optimizer.embedding.name=adagrad", "optimizer.linear.name=ftrl", "optimizer.dense.name=adam",
    "slots.interests.pooling=sqrtn",
]  # fmt: skip
CLIP_NORM = 0.8
LIFE = [
    f"optimizer.clip_norm={CLIP_NORM}", "optimizer.embedding.l2=0.001",
    "life.admission.after=2", "life.sketch=1048576", "life.shows.cvm=true",
    "life.eviction.unseen_steps=4", "life.eviction.every_steps=3",
    "optimizer.embedding.lazy_l2=0.001", "optimizer.embedding.initial_gradients=10",
    "optimizer.dense.weight_decay=0.01", "optimizer.schedule.warmup_steps=5",
    "recipe.batch_norm=true", "recipe.dropout=0.2", "save.full_every=3",
    "slots.interests.pooling=none", "slots.interests.max_length=3",
    "+optimizer.groups.item_id.embedding.name=adam",
]  # fmt: skip


@pytest.fixture
def confs(workspace, monkeypatch):
    """Makes confs of runs whose worker r reads worker-r.csv."""
    header, *lines = (workspace / "clicks/train.csv").read_text().splitlines(keepends=True)

    def conf(workers, *overrides, output="run"):
        first = 0
        for rank, count in enumerate(ROWS[:workers]):
            text = "".join([header, *lines[first : first + count]])
            (workspace / f"clicks/worker-{rank}.csv").write_text(text)
            first += count
        return conf_of(workspace, monkeypatch, *COMMON, *overrides, output=output)

    return conf


def states(conf, workers):
    """The state after each step by its number, and the model of MicroBatches at the end."""
    reference, after_steps = MicroBatches(conf, workers), {}

    def add():
        model = reference.model
        after_steps[reference.steps] = (
            [b"".join(part.tobytes() for part in table.records()) for table in model.tables],
            [table.sketch.tobytes() for table in model.tables],
            np.concatenate(dense_file.arrays_of(model)),
        )

    reference.train(add)
    return after_steps, reference


def assert_equal(folder, state):
    """A checkpoint has these rows and counts of ids that wait, and these dense weights."""
    checkpoint = open_checkpoint(str(folder))
    tables, sketches, dense = state
    for table, expected, sketch in zip(checkpoint.manifest.tables, tables, sketches, strict=True):
        saved = b"".join(part.tobytes() for part in rows.stream(checkpoint, table.name))
        if saved != expected:
            arrays = [np.frombuffer(b, table.record_dtype) for b in (saved, expected)]
            np.testing.assert_array_equal(*arrays, err_msg=f"{folder} {table.name}")
        counts = [
            block.tobytes()
            for entry in table.all_sketch_files
            for block in rows.sketch_blocks(checkpoint, entry)
        ]
        assert b"".join(counts) == sketch, f"{folder} {table.name}"
    saved_dense = dense_file.floats(checkpoint.folder, checkpoint.manifest)
    np.testing.assert_array_equal(saved_dense, dense, err_msg=str(folder))


def check(report, reference, after_steps, output="run"):
    """All checkpoints of the run are the states of their steps, and its figures those of all."""
    folders = sorted(Path(output, "checkpoints").iterdir())
    steps = [int(folder.name.partition("-")[2]) for folder in folders]
    last = 2 * STEPS_OF_PASS
    expected = {*range(EVERY, last, EVERY), STEPS_OF_PASS, last}
    assert steps == sorted(expected)
    for folder, step in zip(folders, steps, strict=True):
        assert_equal(folder, after_steps[step])
    assert report.epochs[-1].loss == reference.loss
    assert report.epochs[-1].examples == reference.examples == sum(ROWS[: reference.workers])


@pytest.mark.parametrize("workers, servers, overrides", [
    (1, 0, PLAIN), (2, 0, PLAIN), pytest.param(3, 0, PLAIN, marks=pytest.mark.long),
    (1, 1, PLAIN), pytest.param(2, 2, LIFE, marks=pytest.mark.long),
    pytest.param(3, 5, LIFE, marks=pytest.mark.long),
])  # fmt: skip
def test_rows_and_dense_weights_have_the_bits_of_micro_batches(confs, workers, servers, overrides):
    conf = replace(confs(workers, *overrides), cluster=schema.Cluster(servers=servers))
    report, errors = cluster_in_one_process.train_together(conf, workers)
    assert not errors
    after_steps, reference = states(conf, workers)
    check(report, reference, after_steps)
    for table in load.newest("run").manifest.tables:
        assert sum(1 for entry in table.files if entry.rows) >= (servers or workers)


class Background:
    """Some checkpoints are completed only when training is two steps further; counts by step."""

    def __init__(self, monkeypatch, steps):
        self.completed, self._trained = Counter(), 0
        self._change, staged = threading.Condition(), {}
        stage, finish = owners.PartWriter.stage, owners.PartWriter.finish
        train = cluster_workers.ClusterWorkers.train

        def remember(writer, tables, request):
            staged[writer] = int(request.folder.partition("-")[2])
            return stage(writer, tables, request)

        def finish_later(writer):
            if (step := staged[writer]) in steps:
                with self._change:
                    is_later = self._change.wait_for(lambda: self._trained >= step + 2, 120)
                    self.completed[step] += is_later
            return finish(writer)

        def count(workers, *arguments):
            has_batch = train(workers, *arguments)
            with self._change:
                self._trained += 1
                self._change.notify_all()
            return has_batch

        monkeypatch.setattr(owners.PartWriter, "stage", remember)
        monkeypatch.setattr(owners.PartWriter, "finish", finish_later)
        monkeypatch.setattr(cluster_workers.ClusterWorkers, "train", count)


@pytest.mark.parametrize("workers", [pytest.param(2, marks=pytest.mark.long), 3])
def test_the_life_of_rows_has_the_bits_of_micro_batches(confs, monkeypatch, workers):
    """Admission, shows, eviction between steps, decay, batch norm; saved while training goes on."""
    conf = confs(workers, *LIFE)
    background = Background(monkeypatch, {4, 12, 16})  # others are followed by one step or none
    report, errors = cluster_in_one_process.train_together(conf, workers)
    assert not errors
    assert background.completed == dict.fromkeys((4, 12, 16), workers)
    after_steps, reference = states(conf, workers)
    check(report, reference, after_steps)
    tables = reference.model.tables
    assert len(tables) == 2 and all(table.rows > 5 for table in tables)
    assert all(table.figures(0).evicted for table in tables)
    assert min(reference.norms) < CLIP_NORM < max(reference.norms)
