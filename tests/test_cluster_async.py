"""Asynchronous training of several workers, in one process."""

import itertools
import math
import os
import signal
import threading
import time
from collections import Counter
from pathlib import Path

import cluster_in_one_process
import numpy as np
import pytest
from test_cluster import conf_of, digest_of, with_cluster

from tnctl.checkpoint import inspection, rows
from tnctl.checkpoint import load as loading
from tnctl.cluster.owners.arrivals import Arrivals
from tnctl.cluster.owners.owned import ArrivingPart
from tnctl.cluster.workers import share
from tnctl.cluster.workers.server import RowServer
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


def async_conf(workspace, monkeypatch, *overrides, staleness=None, servers=0, output="run"):
    conf = conf_of(workspace, monkeypatch, *overrides, output=output)
    return with_cluster(conf, (1, servers), "async", staleness=staleness)


class Seen:
    """What owners and workers do: pushes of each owner by pause, leases, and models by rank."""

    def __init__(self, monkeypatch):
        self.pushes, self.by_rank, self.leased, self.ahead = {}, {}, Counter(), Counter()
        push, pause, released = ArrivingPart.push_one, ArrivingPart.pause, Arrivals._released
        begin, start = Share.__init__, RowServer.start
        lease, iterate = Leases.lease_unit, Leases.__iter__

        def push_one(owned, *arguments):
            self.pushes.setdefault(owned, [0])[-1] += 1
            push(owned, *arguments)

        def pause_and_count(owned):
            pause(owned)
            self.pushes.setdefault(owned, [0]).append(0)

        def note_share(share, *arguments):
            begin(share, *arguments)
            self.by_rank[share.node.rank] = share

        def note_server(server, steps):
            start(server, steps)
            self.by_rank[server.node.rank] = server

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
        monkeypatch.setattr(RowServer, "start", note_server)
        monkeypatch.setattr(Arrivals, "_released", look)
        monkeypatch.setattr(Leases, "lease_unit", lease_unit)
        monkeypatch.setattr(Leases, "__iter__", units_of_rank_0)

    @property
    def models(self):
        return [self.by_rank[rank].model for rank in sorted(self.by_rank)]

    def check_clocks(self, workers, owners, steps):
        """N pushes are a step; one that a pause has cut is a whole one, on all owners."""
        assert len(self.pushes) == owners
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


@pytest.mark.parametrize("staleness", [None, 2])
def test_a_request_to_stop_saves_while_a_worker_reads_nothing(parts, monkeypatch, staleness):
    """With a bound worker 0 is held by the one that hangs."""
    overrides = ["data.train=part-*.csv", "train.batch_size=64"]
    conf = async_conf(parts, monkeypatch, *overrides, staleness=staleness)
    read, is_free = share.training_batches, threading.Event()
    trained, numbers = Share.train, itertools.count(1)

    def hangs(conf, features, passes, remainders, skipped):
        for number, batch in enumerate(read(conf, features, passes, remainders, skipped)):
            if number == 3 and not isinstance(remainders, Leases):
                assert is_free.wait(60)
            yield batch

    def train_and_stop(share, rate_factor):
        has_trained = trained(share, rate_factor)
        # Before rank 0 has trained there is nothing to save.
        if has_trained and share.node.rank == 0 and next(numbers) == 3:
            threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGTERM)).start()
        return has_trained

    with monkeypatch.context() as patch:
        patch.setattr(share, "training_batches", hangs)
        patch.setattr(Share, "train", train_and_stop)
        with pytest.raises(Stopped, match="is saved"):
            cluster_in_one_process.train_together(conf, 2)
        assert not is_free.is_set()
    is_free.set()
    report, errors = cluster_in_one_process.train_together(conf, 2)
    assert not errors and [epoch.examples for epoch in report.epochs] == [3000]


@pytest.mark.parametrize("servers", [0, pytest.param(2, marks=pytest.mark.long)])
def test_checkpoints_have_the_life_of_rows_of_all_owners(parts, monkeypatch, servers):
    """Deltas between pushes, evictions, and a worker that is held: what is saved is what is."""
    seen = Seen(monkeypatch)
    slow(monkeypatch, 1, 0.15)
    conf = async_conf(parts, monkeypatch, *LIFE, "data.train=part-*.csv", "train.batch_size=64",
                      staleness=3, servers=servers)  # fmt: skip
    report, errors = cluster_in_one_process.train_together(conf, 3)
    assert not errors and [epoch.examples for epoch in report.epochs] == [3000, 3000]
    seen.check_clocks(3, 1 + servers if servers else 3, report.steps)
    assert max(seen.ahead) == 3
    checkpoint = loading.newest("run")
    assert checkpoint.step == report.steps
    models = seen.models[-servers or None :]
    for place, table in enumerate(checkpoint.manifest.tables):
        saved = b"".join(part.tobytes() for part in rows.stream(checkpoint, table.name))
        owned = [model.tables[place] for model in models]
        assert saved == b"".join(part.tobytes() for each in owned for part in each.records())
        assert all(each.rows and each.figures(0).evicted for each in owned)
    assert all(np.isfinite(model.dense.flat_weights).all() for model in models)
    assert len({model.dense.step for model in models}) == 1
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
