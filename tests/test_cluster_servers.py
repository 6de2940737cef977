"""Dedicated servers: they own all rows and dense weights, and workers own none."""

import dataclasses
import itertools
import signal
from pathlib import Path

import cluster_in_one_process
import pytest
from cluster_commands import Training, trained_once
from test_cluster import conf_of, digest_of

from tnctl import schema
from tnctl.cluster.joining.membership import Membership
from tnctl.cluster.messages.shapes import first_floats
from tnctl.tables import DenseTable, Pool, RowOptimizer
from tnctl.training.run import train

IN_PARTS = ["data.train=part-*.csv", "train.batch_size=64"]


def with_servers(conf, servers, **settings):
    return dataclasses.replace(conf, cluster=schema.Cluster(servers=servers, **settings))


def together(conf, workers):
    report, errors = cluster_in_one_process.train_together(conf, workers)
    assert not errors
    return report


# ---- Who owns what ---------------------------------------------------------------


@pytest.mark.parametrize("workers, servers", [(1, 1), (3, 2), (64, 64)])
def test_servers_have_all_shards_and_workers_none(workers, servers):
    membership = Membership(workers, servers)
    assert list(membership.writers) == list(range(workers, workers + servers))
    assert membership.owners == (0, *membership.writers)
    owned = [membership.shards(rank) for rank in range(membership.size)]
    assert [shards.count for shards in owned[:workers]] == [0] * workers
    assert sum(shards.count for shards in owned) == 64 and all(s.count for s in owned[workers:])
    assert membership.first_shards == [0, *(shards.first for shards in owned[workers:]), 64]
    assert membership.name(workers) == "server 0" and membership.name(0) == "worker 0"


@pytest.mark.parametrize("floats, servers, slices", [
    (1000, 4, [1008]), (20_000, 4, [8192, 11_808]), (2**20, 4, [2**18] * 4),
])  # fmt: skip
def test_a_small_dense_model_lies_on_few_servers(floats, servers, slices):

    class Tables:
        dense = DenseTable([floats], RowOptimizer("sgd", 0.1), Pool(1))

    starts = first_floats(Tables, 3, servers)
    assert len(starts) == servers + 2
    sizes = [last - first for first, last in itertools.pairwise(starts)]
    assert sizes[0] == 0  # of worker 0, which has the figures alone
    assert [size for size in sizes if size] == slices


# ---- The same bytes --------------------------------------------------------------


def test_one_worker_and_its_server_without_staleness_are_one_process(workspace, monkeypatch):
    train(conf_of(workspace, monkeypatch, output="alone"), golden=20)
    conf = conf_of(workspace, monkeypatch, output="cluster")
    conf = with_servers(conf, 1, mode="async", staleness=0, warmup_batches=0)
    cluster_in_one_process.train_together(conf, 1, golden=20)
    assert digest_of("alone") == digest_of("cluster")
    lines = [Path(run, "checkpoints").glob("*/golden.jsonl") for run in ("alone", "cluster")]
    alone, cluster = (sorted(paths)[-1].read_bytes() for paths in lines)
    assert alone == cluster


# ---- Processes -------------------------------------------------------------------


@pytest.mark.alone
def test_a_server_never_imports_tensorflow_and_all_start_again_without_it(parts):
    with Training(parts, "cluster.workers=1", "cluster.servers=1") as training:
        training.until_saved()
        maps = [Path(f"/proc/{pid}/maps").read_text() for pid in training.workers()]
        training.signal(1, signal.SIGKILL)
        assert training.wait() == 0, training.said
    assert ["tensorflow" in text for text in maps] == [True, False]
    assert "server 0 was killed by SIGKILL: all workers start again" in training.said
    assert trained_once(training.run) and "Traceback" not in training.said
    assert "workers started, generation 2" in (training.run / "workers/server-0.log").read_text()
