"""Asynchronous training of several workers, in one process."""

import dataclasses
import math
import os
import signal
import threading
import time
from collections import Counter
from pathlib import Path

import cluster_commands
import cluster_in_one_process
import numpy as np
import pytest
from test_cluster import conf_of, digest_of

from tnctl import schema
from tnctl.checkpoint import inspection, rows
from tnctl.checkpoint import load as loading
from tnctl.cluster.owners.arrivals import Arrivals
from tnctl.cluster.owners.owned import ArrivingPart
from tnctl.cluster.rank_0.cluster_workers import ClusterWorkers
from tnctl.cluster.workers import share
from tnctl.cluster.workers.share import Leases, Share
from tnctl.errors import Stopped
from tnctl.training.run import train

LIFE = [
    "life.admission.after=2", "life.sketch=1048576", "life.shows.cvm=true",
    "life.eviction.unseen_steps=4", "life.eviction.every_steps=3",
    "optimizer.embedding.lazy_l2=0.001", "optimizer.dense.name=adam",
    "slots.interests.pooling=none", "slots.interests.max_length=3", "train.epochs=2",
    "recipe.dropout=0.2", "recipe.batch_norm=true",
    "evaluation.every_steps=9", "save.every_steps=4", "save.keep=0", "save.full_every=3",
]  # fmt: skip


@pytest.fixture
def parts(workspace):
    """The workspace with its training data in files of different sizes."""
    cluster_commands.split_training_data(workspace)
    return workspace


def async_conf(workspace, monkeypatch, *overrides, staleness=None, output="run"):
    conf = conf_of(workspace, monkeypatch, *overrides, output=output)
    cluster = schema.Cluster(mode="async", staleness=staleness, warmup_batches=0)
    return dataclasses.replace(conf, cluster=cluster)


class Seen:
    """What owners and workers do: pushes of each owner by pause, leases, and models by rank."""

    def __init__(self, monkeypatch):
        self.pushes, self.shares, self.leased, self.ahead = {}, {}, Counter(), Counter()
        push, pause, released = ArrivingPart.push_one, ArrivingPart.pause, Arrivals._released
        begin, lease, iterate = Share.__init__, Leases.lease_unit, Leases.__iter__

        def push_one(owned, *arguments):
            self.pushes.setdefault(owned, [0])[-1] += 1
            push(owned, *arguments)

        def pause_and_count(owned):
            pause(owned)
            self.pushes.setdefault(owned, [0]).append(0)

        def note_share(share, *arguments):
            begin(share, *arguments)
            self.shares[share.node.rank] = share

        def look(owner, rank):
            answers = released(owner, rank)
            if not owner.is_draining:
                pulled = [p.number for w in owner._workers for p in w.open if not p.is_held]
                ahead = max(pulled, default=0) - 1 - owner.slowest
                self.ahead[ahead] += ahead > -math.inf
            return answers

        def lease_unit(leases):
            unit = lease(leases)
            self.leased["all"] += unit is not None
            return unit

        def units_of_rank_0(leases):
            for unit in iterate(leases):
                self.leased["rank 0"] += 1
                yield unit

        monkeypatch.setattr(ArrivingPart, "push_one", push_one)
        monkeypatch.setattr(ArrivingPart, "pause", pause_and_count)
        monkeypatch.setattr(Share, "__init__", note_share)
        monkeypatch.setattr(Arrivals, "_released", look)
        monkeypatch.setattr(Leases, "lease_unit", lease_unit)
        monkeypatch.setattr(Leases, "__iter__", units_of_rank_0)

    def check_clocks(self, workers, steps):
        """N pushes are a step; one that a pause has cut is a whole one, on all owners."""
        assert len(self.pushes) == workers
        assert len({tuple(counts) for counts in self.pushes.values()}) == 1
        for owned, counts in self.pushes.items():
            assert owned.steps == steps == sum(-(-count // workers) for count in counts)


def slow(monkeypatch, rank, seconds):
    """A worker that takes longer for each batch."""
    trained = Share.train

    def train_slowly(share, rate_factor):
        if share.node.rank == rank:
            time.sleep(seconds)
        return trained(share, rate_factor)

    monkeypatch.setattr(Share, "train", train_slowly)


@pytest.mark.parametrize("overrides", [pytest.param([], marks=pytest.mark.long), LIFE])
def test_one_worker_in_lock_step_ends_with_the_bytes_of_the_local_path(
    workspace, monkeypatch, overrides
):
    train(conf_of(workspace, monkeypatch, *overrides, output="alone"), golden=20)
    conf = async_conf(workspace, monkeypatch, *overrides, staleness=0, output="cluster")
    cluster_in_one_process.train_together(conf, 1, golden=20)
    assert digest_of("alone") == digest_of("cluster")


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.long), 2])
def test_every_row_is_trained_once_also_when_another_number_of_workers_resumes(
    parts, monkeypatch, workers
):
    overrides = ["data.train=part-*.csv", "train.batch_size=64", "train.epochs=2"]
    conf = async_conf(parts, monkeypatch, *overrides, "life.shows.keep=true", "save.every_steps=3")
    with monkeypatch.context() as patch:
        seen = Seen(patch)
        cluster_in_one_process.stop_at(patch, ClusterWorkers, 6)
        with pytest.raises(Stopped, match="is saved"):
            cluster_in_one_process.train_together(conf, 3)
    checkpoint = loading.newest("run")
    assert checkpoint.position.units.workers == 3
    seen.check_clocks(3, checkpoint.step)
    if workers == 1:
        report = train(dataclasses.replace(conf, cluster=schema.Cluster()))
    else:
        report, errors = cluster_in_one_process.train_together(conf, workers)
        assert not errors
    assert [epoch.examples for epoch in report.epochs] == [3000, 3000]
    shows = cluster_in_one_process.shows_of_users("run")
    assert shows == cluster_in_one_process.expected_shows(parts)


@pytest.mark.parametrize("staleness", [None, 2])
def test_a_request_to_stop_saves_while_a_worker_reads_nothing(parts, monkeypatch, staleness):
    """With a bound worker 0 is held by the one that hangs."""
    overrides = ["data.train=part-*.csv", "train.batch_size=64"]
    conf = async_conf(parts, monkeypatch, *overrides, staleness=staleness)
    read, is_free = share.training_batches, threading.Event()

    def hangs(conf, features, passes, remainders, skipped):
        for number, batch in enumerate(read(conf, features, passes, remainders, skipped)):
            if number == 3 and not isinstance(remainders, Leases):
                threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGTERM)).start()
                assert is_free.wait(60)
            yield batch

    with monkeypatch.context() as patch:
        patch.setattr(share, "training_batches", hangs)
        with pytest.raises(Stopped, match="is saved"):
            cluster_in_one_process.train_together(conf, 2)
        assert not is_free.is_set()
    is_free.set()
    report, errors = cluster_in_one_process.train_together(conf, 2)
    assert not errors and [epoch.examples for epoch in report.epochs] == [3000]


def test_checkpoints_have_the_life_of_rows_of_all_owners(parts, monkeypatch):
    """Deltas between pushes, evictions, and a worker that is held: what is saved is what is."""
    seen = Seen(monkeypatch)
    slow(monkeypatch, 1, 0.05)
    conf = async_conf(parts, monkeypatch, *LIFE, "data.train=part-*.csv", "train.batch_size=64",
                      staleness=3)  # fmt: skip
    report, errors = cluster_in_one_process.train_together(conf, 3)
    assert not errors and [epoch.examples for epoch in report.epochs] == [3000, 3000]
    seen.check_clocks(3, report.steps)
    assert max(seen.ahead) == 3
    checkpoint = loading.newest("run")
    assert checkpoint.step == report.steps
    for place, table in enumerate(checkpoint.manifest.tables):
        saved = b"".join(part.tobytes() for part in rows.stream(checkpoint, table.name))
        owned = [seen.shares[rank].model.tables[place] for rank in range(3)]
        assert saved == b"".join(part.tobytes() for each in owned for part in each.records())
        assert all(each.figures(0).evicted for each in owned)
    weights = [seen.shares[rank].model.dense.flat_weights for rank in range(3)]
    assert all(np.isfinite(each).all() for each in weights)
    folders = sorted(Path("run/checkpoints").iterdir())
    assert len(folders) > 4
    assert not inspection.verify(str(folders[-1])).findings
    steps = [evaluation.step for evaluation in report.evaluations]
    assert steps == sorted(set(steps)) and len(steps) >= 3


def test_fast_workers_read_the_units_of_a_slow_one(workspace, monkeypatch):
    files = 40
    header, *lines = (workspace / "clicks/train.csv").read_text().splitlines(keepends=True)
    for number in range(files):
        text = "".join([header, *lines[number::files]])
        (workspace / f"clicks/part-{number:02}.csv").write_text(text)
    seen = Seen(monkeypatch)
    slow(monkeypatch, 1, 0.2)
    conf = async_conf(workspace, monkeypatch, "data.train=part-*.csv", "train.batch_size=64")
    report, errors = cluster_in_one_process.train_together(conf, 2)
    assert not errors and report.epochs[0].examples == 3000
    assert seen.leased["all"] == files
    assert files // 2 < seen.leased["rank 0"] < files  # worker 1 asked for the others
    assert max(seen.ahead) > 4  # nobody was held
