"""Hybrid training of several workers, in one process."""

import dataclasses
import math
import signal
import time
from collections import Counter
from pathlib import Path

import cluster_commands
import cluster_in_one_process
import numpy as np
import pytest
from test_cluster import conf_of, digest_of
from test_cluster_async import LIFE
from test_cluster_confs import same_models

from tnctl import schema
from tnctl.checkpoint import dense_file, rows, verification
from tnctl.checkpoint import load as loading
from tnctl.cluster.owners.async_owner import AsyncOwner
from tnctl.cluster.owners.hybrid_owned import DensePart, RowPart
from tnctl.cluster.rank_0.hybrid_workers import HybridClusterWorkers
from tnctl.cluster.workers.hybrid_remote import HybridParameters
from tnctl.cluster.workers.hybrid_share import HybridShare
from tnctl.errors import Failure, Stopped
from tnctl.tables import SparseTable
from tnctl.training.training_run import train

FILES = ["data.train=part-*.csv", "train.batch_size=64"]
FROZEN = [
    f"slots.{name}.frozen=true"
    for name in ("user_id", "item_id", "device", "region", "interests", "price_range")
]


@pytest.fixture
def parts(workspace):
    """The workspace with its training data in files of different sizes."""
    cluster_commands.split_training_data(workspace)
    return workspace


def cluster_conf(workspace, monkeypatch, *overrides, mode="hybrid", output="run", **of_cluster):
    conf = conf_of(workspace, monkeypatch, *overrides, output=output)
    of_cluster.setdefault("warmup_batches", 0)
    return dataclasses.replace(conf, cluster=schema.Cluster(mode=mode, **of_cluster))


class Seen:
    """What owners and workers do: steps and pushes of each owner, and the shares by rank."""

    def __init__(self, monkeypatch):
        self.shares, self.pushes, self.ahead = {}, Counter(), Counter()
        self.alignment = set()
        join, push, released = HybridShare._join, RowPart.push_one, AsyncOwner._released

        def note_share(share, steps):
            join(share, steps)
            self.shares[share.node.rank] = share

        def push_one(owned, *arguments):
            self.pushes[owned] += 1
            [share] = [s for s in self.shares.values() if s.hybrid_owner.rows.parameters is owned]
            self.alignment.add(share.owned.steps - owned.steps)
            push(owned, *arguments)

        def look(owner, rank):
            answers = released(owner, rank)
            pulled = [p.number for w in owner._workers for p in w.open if not p.is_held]
            ahead = max(pulled, default=0) - 1 - owner.slowest
            self.ahead[ahead] += ahead > -math.inf
            return answers

        monkeypatch.setattr(HybridShare, "_join", note_share)
        monkeypatch.setattr(RowPart, "push_one", push_one)
        monkeypatch.setattr(AsyncOwner, "_released", look)

    def check(self, workers, steps):
        """Both parts of all owners have counted the same steps; all owners the same pushes."""
        assert len(self.shares) == workers and self.alignment == {1}
        for share in self.shares.values():
            owner = share.hybrid_owner
            assert owner.rows.parameters.steps == share.owned.steps == steps
            assert share.model.dense.step == steps and not owner.rows.due
        assert len(set(self.pushes.values())) == 1


@pytest.mark.parametrize("overrides", [pytest.param([], marks=pytest.mark.long), LIFE])
def test_one_worker_in_lock_step_ends_with_the_bytes_of_the_local_path(
    workspace, monkeypatch, overrides
):
    train(conf_of(workspace, monkeypatch, *overrides, output="alone"), golden=20)
    conf = cluster_conf(workspace, monkeypatch, *overrides, staleness=0, output="cluster")
    cluster_in_one_process.train_together(conf, 1, golden=20)
    assert digest_of("alone") == digest_of("cluster")


def dense_of(output):
    checkpoint = loading.newest(output)
    return checkpoint.step, dense_file.floats(checkpoint.folder, checkpoint.manifest)


@pytest.mark.long
@pytest.mark.parametrize("workers", [2, pytest.param(3, marks=pytest.mark.long)])
def test_dense_weights_over_frozen_rows_have_the_bytes_of_sync(parts, monkeypatch, workers):
    """Also their optimizer's state, the moving statistics, and what a pass reports."""
    overrides = [
        *FILES, *FROZEN, "optimizer.dense.name=adam", "recipe.batch_norm=true",
        "recipe.dropout=0.2", "save.every_steps=5",
        "optimizer.dense.weight_decay=0.01",
    ]  # fmt: skip
    reports = []
    for mode in ("sync", "hybrid"):
        conf = cluster_conf(parts, monkeypatch, *overrides, mode=mode, output=mode)
        report, errors = cluster_in_one_process.train_together(conf, workers)
        assert not errors
        reports.append(report)
    (steps, expected), (hybrid_steps, received) = dense_of("sync"), dense_of("hybrid")
    assert steps == hybrid_steps and len(received) > 100
    np.testing.assert_array_equal(expected, received)
    synchronous, hybrid = reports
    for first, second in zip(synchronous.epochs, hybrid.epochs, strict=True):
        assert (first.step, first.examples, first.loss) == (
            second.step, second.examples, second.loss,
        )  # fmt: skip


def test_rows_that_all_have_written_are_those_of_sync_at_twice_the_rate(workspace, monkeypatch):
    """With SGD two updates by the mean of a batch are one of both, at twice the rate."""
    header, *lines = (workspace / "clicks/train.csv").read_text().splitlines(keepends=True)
    for rank in range(2):
        text = "".join([header, *lines[640 * rank :][:640]])
        (workspace / f"clicks/half-{rank}.csv").write_text(text)
    common = [
        "data.train=half-*.csv", "data.shuffle=false", "train.batch_size=64", "train.epochs=2",
        "optimizer.embedding.name=sgd", "optimizer.linear.name=sgd", "life.shows.keep=true",
    ]  # fmt: skip
    for mode, rate, options in [("sync", 0.1, {}), ("hybrid", 0.05, {"staleness": 0})]:
        rates = [f"optimizer.{part}.learning_rate={rate}" for part in ("embedding", "linear")]
        conf = cluster_conf(
            workspace, monkeypatch, *common, *rates, mode=mode, output=mode, **options
        )
        report, errors = cluster_in_one_process.train_together(conf, 2, golden=20)
        assert not errors and report.steps == 20
    same_models(loading.newest("sync"), loading.newest("hybrid"))


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.long), 2])
def test_every_row_is_trained_once_also_when_another_number_of_workers_resumes(
    parts, monkeypatch, workers
):
    overrides = [*FILES, "train.epochs=2", "life.shows.keep=true", "save.every_steps=3"]
    conf = cluster_conf(parts, monkeypatch, *overrides)
    with monkeypatch.context() as patch:
        seen = Seen(patch)
        cluster_in_one_process.stop_at(patch, HybridClusterWorkers, 6)
        with pytest.raises(Stopped, match="is saved"):
            cluster_in_one_process.train_together(conf, 3)
    checkpoint = loading.newest("run")
    assert checkpoint.position.units.workers == 3
    seen.check(3, checkpoint.step)
    if workers == 1:
        report = train(dataclasses.replace(conf, cluster=schema.Cluster()))
    else:
        conf = dataclasses.replace(conf, cluster=schema.Cluster(mode="sync"))
        report, errors = cluster_in_one_process.train_together(conf, workers)
        assert not errors
    assert [epoch.examples for epoch in report.epochs] == [3000, 3000]
    shows = cluster_in_one_process.shows_of_users("run")
    assert shows == cluster_in_one_process.expected_shows(parts)


@pytest.mark.long
@pytest.mark.parametrize(("workers", "staleness"), [
    (3, 0), pytest.param(3, None, marks=pytest.mark.long),
    pytest.param(2, 1, marks=pytest.mark.long),
])  # fmt: skip
def test_checkpoints_have_the_life_of_rows_of_all_owners(parts, monkeypatch, workers, staleness):
    """Deltas between steps, evictions, batch norm: what is saved is what is."""
    seen = Seen(monkeypatch)
    slow(monkeypatch, 1, 0.02)
    overrides = [*FILES, *LIFE, "train.batch_size=64"]
    conf = cluster_conf(parts, monkeypatch, *overrides, staleness=staleness)
    report, errors = cluster_in_one_process.train_together(conf, workers)
    assert not errors and [epoch.examples for epoch in report.epochs] == [3000, 3000]
    seen.check(workers, report.steps)
    assert max(seen.ahead) <= (2 if staleness is None else staleness)
    checkpoint = loading.newest("run")
    assert checkpoint.step == report.steps
    for place, table in enumerate(checkpoint.manifest.tables):
        saved = b"".join(part.tobytes() for part in rows.stream(checkpoint, table.name))
        owned = [seen.shares[rank].model.tables[place] for rank in range(workers)]
        assert saved == b"".join(part.tobytes() for each in owned for part in each.records())
        assert all(each.figures(0).evicted for each in owned)
    weights = [seen.shares[rank].model.dense.flat_weights for rank in range(workers)]
    assert np.isfinite(weights[0]).all()
    assert all((each == weights[0]).all() for each in weights[1:])
    folders = sorted(Path("run/checkpoints").iterdir())
    assert len(folders) > 4
    assert not verification.verify(str(folders[-1])).findings
    steps = [evaluation.step for evaluation in report.evaluations]
    assert steps == sorted(set(steps)) and len(steps) >= 3


def slow(monkeypatch, rank, seconds):
    """A worker that takes longer for each batch."""
    trained = HybridShare._train

    def train_slowly(share, *arguments, **options):
        if share.node.rank == rank:
            time.sleep(seconds)
        return trained(share, *arguments, **options)

    monkeypatch.setattr(HybridShare, "_train", train_slowly)


def test_learning_rates_of_rows_and_dense_weights_are_those_of_the_step(parts, monkeypatch):
    of_dense, of_rows = [], []
    reduce, push_one, set_rate = DensePart.reduce, RowPart.push_one, SparseTable.set_learning_rate
    rates = {}

    def note_reduce(owned, pulled, pushes, rate):
        of_dense.append(rate)
        reduce(owned, pulled, pushes, rate)

    def note_push(owned, *arguments):
        of_rows.append(rates.get(0))
        push_one(owned, *arguments)

    def note_rate(table, segment, rate):
        rates[segment] = rate / table.segments[segment].optimizer.learning_rate
        set_rate(table, segment, rate)

    monkeypatch.setattr(DensePart, "reduce", note_reduce)
    monkeypatch.setattr(RowPart, "push_one", note_push)
    monkeypatch.setattr(SparseTable, "set_learning_rate", note_rate)
    conf = cluster_conf(parts, monkeypatch, *FILES, "optimizer.schedule.warmup_steps=10")
    report, errors = cluster_in_one_process.train_together(conf, 1)
    assert not errors and report.steps == len(of_dense) > 12
    assert of_dense[:12] == pytest.approx([min(step / 10, 1) for step in range(12)])
    assert of_rows == pytest.approx(of_dense)


@pytest.mark.long  # tests/test_hybrid_owner.py has the owner's part of it
@pytest.mark.parametrize("part", ["dense", "rows"])
def test_a_gradient_that_is_nan_ends_all_with_one_line(parts, monkeypatch, part):
    send = HybridParameters._send_dense if part == "dense" else HybridParameters._send

    def broken(parameters, *arguments, **options):
        pushed = parameters._pushed
        if parameters.steps == 3 and pushed is not None:
            if part == "dense":
                parameters._gradient[:] = np.nan
            else:
                pushed.parts[0][0].sums[:] = np.nan
        return send(parameters, *arguments, **options)

    monkeypatch.setattr(HybridParameters, send.__name__, broken)
    conf = cluster_conf(parts, monkeypatch, *FILES)
    words = r"^step 3: worker [01]: a gradient of .* is NaN, infinite or beyond"
    with pytest.raises(Failure, match=words) as failed:
        cluster_in_one_process.train_together(conf, 2)
    assert "\n" not in str(failed.value)


@pytest.mark.alone
@pytest.mark.long
def test_a_signal_saves_and_another_mode_resumes(parts):
    with cluster_commands.Training(parts, "cluster.mode=hybrid") as training:
        training.until_saved()
        training.signal(1, signal.SIGTERM)
        assert training.wait() == 143, training.said
    assert "is saved. Run the same command again to resume" in training.said
    with cluster_commands.Training(parts, "cluster.mode=async") as training:
        assert training.wait() == 0, training.said
    assert cluster_commands.trained_once(training.run) and "Traceback" not in training.said
