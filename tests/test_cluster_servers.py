"""Dedicated servers: they own all rows and dense weights, and workers own none."""

import dataclasses
import itertools
import json
import signal
from pathlib import Path

import cluster_commands
import cluster_in_one_process
import pytest
from cluster_commands import Training, trained_once
from test_cluster import conf_of, digest_of
from test_cluster_async import LIFE as LIFE_OF_ROWS
from test_cluster_equality import (  # noqa: F401 - a fixture
    LIFE,
    PLAIN,
    check,
    confs,
    states,
)

from tnctl import schema
from tnctl.checkpoint import inspection, rows
from tnctl.checkpoint import load as loading
from tnctl.cluster.joining.membership import Membership
from tnctl.cluster.messages.shapes import first_floats
from tnctl.cluster.rank_0 import cluster_workers
from tnctl.cluster.rank_0.cluster_processes import ClusterProcesses
from tnctl.cluster.workers.server import RowServer
from tnctl.errors import Stopped
from tnctl.evaluation.model_readers import LocalReader
from tnctl.tables import DenseTable, Pool, RowOptimizer
from tnctl.training.run import train

IN_PARTS = ["data.train=part-*.csv", "train.batch_size=64"]


@pytest.fixture
def parts(workspace):
    """The workspace with its training data in files of different sizes."""
    cluster_commands.split_training_data(workspace)
    return workspace


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


@pytest.mark.parametrize("workers, servers, overrides", [
    (1, 1, PLAIN), pytest.param(2, 2, LIFE, marks=pytest.mark.long),
    pytest.param(3, 5, LIFE, marks=pytest.mark.long),
])  # fmt: skip
def test_servers_end_with_the_bits_of_workers(confs, workers, servers, overrides):  # noqa: F811
    """Those of one process that trains the batches of the workers (tests/micro_batches.py)."""
    conf = with_servers(confs(workers, *overrides), servers)
    report = together(conf, workers)
    after_steps, reference = states(conf, workers)
    check(report, reference, after_steps)
    owned = [
        sum(1 for entry in table.files if entry.rows)
        for table in loading.newest("run").manifest.tables
    ]
    assert min(owned) >= servers


def test_one_worker_and_its_server_without_staleness_are_one_process(workspace, monkeypatch):
    train(conf_of(workspace, monkeypatch, output="alone"), golden=20)
    conf = conf_of(workspace, monkeypatch, output="cluster")
    conf = with_servers(conf, 1, mode="async", staleness=0, warmup_batches=0)
    cluster_in_one_process.train_together(conf, 1, golden=20)
    assert digest_of("alone") == digest_of("cluster")
    lines = [Path(run, "checkpoints").glob("*/golden.jsonl") for run in ("alone", "cluster")]
    alone, cluster = (sorted(paths)[-1].read_bytes() for paths in lines)
    assert alone == cluster


# ---- Every row once --------------------------------------------------------------


@pytest.mark.parametrize("mode, then, then_mode", [
    ("sync", (2, 0), "async"), pytest.param("sync", (3, 1), "sync", marks=pytest.mark.long),
    pytest.param("async", (1, 3), "async", marks=pytest.mark.long),
    pytest.param("async", (2, 2), "sync", marks=pytest.mark.long),
])  # fmt: skip
def test_a_pass_continues_with_other_servers(parts, monkeypatch, mode, then, then_mode):
    """Also in another mode."""
    conf = conf_of(parts, monkeypatch, *IN_PARTS, "train.epochs=2", "life.shows.keep=true",
                   "evaluation.every_steps=5")  # fmt: skip
    with monkeypatch.context() as patch:
        cluster_in_one_process.stop_at(patch, cluster_workers.ClusterBatches, 6)
        with pytest.raises(Stopped, match="is saved"):
            together(with_servers(conf, 2, mode=mode), 2)
    workers, servers = then
    report = together(with_servers(conf, servers, mode=then_mode), workers)
    assert [epoch.examples for epoch in report.epochs] == [3000, 3000]
    shows = cluster_in_one_process.shows_of_users("run")
    assert shows == cluster_in_one_process.expected_shows(parts)
    lines = [json.loads(line) for line in Path("run/log.jsonl").read_text().splitlines()]
    figures = [line["timing"]["workers"] for line in lines if "workers" in line.get("timing", {})]
    of_servers = [worker for worker in figures[-1] if worker["role"] == "server"]
    assert len(of_servers) == servers
    assert all(server["rows"] and server["sent_bytes"] for server in of_servers)
    rows_of_workers = [worker["rows"] for worker in figures[-1] if worker["role"] == "worker"]
    assert any(rows_of_workers) == (not servers)


@pytest.mark.parametrize("workers, servers, staleness", [
    pytest.param(2, 2, None, marks=pytest.mark.long), pytest.param(3, 2, 0, marks=pytest.mark.long),
])  # fmt: skip
def test_asynchronous_checkpoints_have_the_rows_of_all_servers(
    parts, monkeypatch, workers, servers, staleness
):
    """Deltas between steps, evictions, batch norm; all servers are at the step of the workers."""
    row_servers, start = {}, RowServer.start

    def note_start(server, steps):
        start(server, steps)
        row_servers[server.node.rank] = server

    monkeypatch.setattr(RowServer, "start", note_start)
    conf = conf_of(parts, monkeypatch, *IN_PARTS, *LIFE_OF_ROWS, "train.batch_size=64")
    report = together(with_servers(conf, servers, mode="async", staleness=staleness), workers)
    assert [epoch.examples for epoch in report.epochs] == [3000, 3000]
    checkpoint = loading.newest("run")
    assert checkpoint.step == report.steps
    steps = [server.node._owner.parameters.steps for server in row_servers.values()]
    assert steps == [report.steps] * servers
    models = [row_servers[rank].model for rank in sorted(row_servers)]
    assert len({model.dense.step for model in models}) == 1
    for place, table in enumerate(checkpoint.manifest.tables):
        saved = b"".join(part.tobytes() for part in rows.stream(checkpoint, table.name))
        owned = [model.tables[place] for model in models]
        assert saved == b"".join(part.tobytes() for each in owned for part in each.records())
        assert all(each.rows and each.figures(0).evicted for each in owned)
    folders = sorted(Path("run/checkpoints").iterdir())
    assert len(folders) > 4 and not inspection.verify(str(folders[-1])).findings


@pytest.mark.long
@pytest.mark.parametrize("overrides", [["cluster.backup=1"], ["optimizer.clip_norm=0.3"]])
def test_backup_workers_and_clipping_with_servers(parts, monkeypatch, overrides):
    conf = conf_of(parts, monkeypatch, *IN_PARTS, "cluster=local", "cluster.servers=2",
                   *overrides)  # fmt: skip
    assert [epoch.examples for epoch in together(conf, 3).epochs] == [3000]


def test_the_model_of_a_checkpoint_is_read(workspace, monkeypatch):
    conf = conf_of(workspace, monkeypatch)
    train(conf)
    checkpoint = loading.newest("run")
    conf = with_servers(conf, 2)
    with cluster_in_one_process.following(conf, 2) as (node, errors):
        readers = ClusterProcesses(node).readers(checkpoint, conf)
        metrics = readers.metrics("test")
    assert not errors
    assert metrics == LocalReader(checkpoint, conf).metrics("test")


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
