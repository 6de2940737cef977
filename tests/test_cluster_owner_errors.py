"""Rows of another owner, and a disk that is full late, end a cluster; here one of threads."""

import errno
import os
from pathlib import Path

import cluster_in_one_process
import numpy as np
import pytest
from dataless_runs import conf_of as conf_without_data
from test_cluster import conf_of

from tnctl.checkpoint import load as loading
from tnctl.cluster.joining.membership import Membership
from tnctl.cluster.messages.exchange import Sizes, new_exchange, new_read
from tnctl.cluster.messages.shapes import shapes
from tnctl.cluster.owners.barrier import Barrier
from tnctl.cluster.owners.owned import OwnedPart
from tnctl.cluster.transport.kinds import Kind
from tnctl.cluster.workers import worker
from tnctl.data.statistics_document import Statistics
from tnctl.errors import Failure
from tnctl.tables import key_hashes

OF_OTHERS = r"^worker 0: TN_NOT_OWNED: a key is of a shard that the table does not own$"


@pytest.fixture
def owning(tmp_path):
    """The nodes of two workers, the model whose part worker 0 owns, and what travels to it."""
    model = worker.built(conf_without_data(tmp_path), Statistics(), 0, Membership(2))
    shape = shapes(model, 2, [])[0]
    nodes = cluster_in_one_process.cluster(2)
    nodes[0].serve_owner(Barrier(shape, 2, OwnedPart(model, Membership(2), 0, 0, [])))
    return nodes, model, shape


def ids_by_owner(model):
    """Ids of the first share group that worker 0 owns, and as many of worker 1."""
    [layout] = model.layout.tables
    ids = np.arange(40, dtype=np.uint64)
    names = {number: name for name, number in layout.groups.items()}
    shards = key_hashes(names, np.zeros(40, np.uint16), ids) >> np.uint64(58)
    return ids[shards < 32][:5], ids[shards >= 32][:5]


def ended(nodes, future):
    """Both workers have ended by the line that the future raises."""
    with pytest.raises(Failure, match=OF_OTHERS) as failed:
        future.result(10)
    assert failed.value.exit_code == 1
    assert {str(node.error) for node in nodes} == {str(failed.value)}


def test_a_read_of_rows_of_another_owner_ends_all(owning, capfd):
    nodes, model, shape = owning
    of_0, of_1 = ids_by_owner(model)
    for ids in (of_0, of_1):
        body, read = new_read(shape, [len(ids)], dense=False)
        read.keys[0].ids[:] = ids
        future = nodes[1].request(0, Kind.READ, body)
        if ids is of_0:
            assert len(future.result(10))
    ended(nodes, future)
    assert "Traceback" not in capfd.readouterr().err


def test_a_pull_of_rows_of_another_owner_ends_all_and_inserts_nothing(owning, capfd):
    nodes, model, shape = owning
    futures = []
    for node, ids in zip(nodes, ids_by_owner(model), strict=True):
        body, exchange = new_exchange(shape, 1, Sizes(0, (0,)), Sizes(4, (len(ids),)))
        exchange.keys[0].ids[:] = ids
        futures.append(node.request(0, Kind.EXCHANGE, body))
    for future in futures:
        ended(nodes, future)
    assert model.tables[0].rows == 0 and "Traceback" not in capfd.readouterr().err


def no_space_to_sync(monkeypatch, is_failing):
    """The disk is full when worker 1's rows are synced: what was written had no blocks yet."""
    sync = os.fsync

    def failing(descriptor):
        if is_failing(Path(f"/proc/self/fd/{descriptor}").readlink()):
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", failing)


def test_a_disk_that_is_full_when_a_follower_finishes_its_part(parts, monkeypatch):
    conf = conf_of(parts, monkeypatch, "data.train=part-*.csv", "train.batch_size=64",
                   "save.every_steps=16")  # fmt: skip
    failed = []

    def is_failing(path):
        if path.name == "00001.rows" and "step-0000000016" not in str(path):
            failed.append(path)
        return path in failed

    with monkeypatch.context() as patch:
        no_space_to_sync(patch, is_failing)
        with pytest.raises(Failure, match=r"^worker 1: .*00001\.rows.*no space is left") as line:
            cluster_in_one_process.train_together(conf, 2, golden=0)
    assert failed and "\n" not in str(line.value) and line.value.exit_code == 1
    assert loading.newest("run").folder == "run/checkpoints/step-0000000016"
    report, errors = cluster_in_one_process.train_together(conf, 2, golden=0)
    assert not errors and [epoch.examples for epoch in report.epochs] == [3000]
