"""Faults of dedicated servers end or restart the training with a line that names the server."""

import itertools

import cluster_in_one_process
import numpy as np
import pytest
from test_cluster import conf_of
from test_cluster_faults import full_disk
from test_cluster_servers import IN_PARTS, with_servers

from tnctl import system
from tnctl.checkpoint import load as loading
from tnctl.cluster.node import Node
from tnctl.cluster.workers import server
from tnctl.cluster.workers.remote import RemoteParameters
from tnctl.errors import Failure
from tnctl.system import Limit
from tnctl.tables import NotFiniteError
from tnctl.training import row_life


def fails_in_exchange(error):
    """In the thread of server 1 that answers exchanges, in one of the first steps."""

    def patch(monkeypatch):
        exchange, calls = Node._exchange, itertools.count()

        def failing(node, *arguments):
            if node.rank == 3 and next(calls) == 5:
                raise error
            return exchange(node, *arguments)

        monkeypatch.setattr(Node, "_exchange", failing)

    return patch


def sends_nan(monkeypatch):
    """A worker whose dense gradients are NaN on their way to servers."""
    write_push = RemoteParameters._write_push

    def failing(parameters, owner, pushed, exchange):
        write_push(parameters, owner, pushed, exchange)
        if parameters.steps >= 3 and owner and parameters._peers.rank == 1:
            exchange.push.dense[:] = np.nan

    monkeypatch.setattr(RemoteParameters, "_write_push", failing)


NO_SPACE = r"^server 1: .*00001\.rows.*no space is left there\. Free some"
OF_MEMORY = (
    r"^server 1: out of memory \(TN_NO_MEMORY\)\. Run the same command again with more memory"
)
BUG = r"^server 1: ValueError: a bug\. Its traceback is in workers/server-1\.log"
NAN = r"^step \d+: worker 1: a gradient of a dense weight is NaN, infinite or beyond"


@pytest.mark.parametrize(("mode", "fault", "line"), [
    ("sync", full_disk, NO_SPACE),
    ("async", fails_in_exchange(MemoryError("TN_NO_MEMORY")), OF_MEMORY),
    ("async", sends_nan, NAN),
    pytest.param("async", full_disk, NO_SPACE, marks=pytest.mark.long),
    pytest.param("sync", fails_in_exchange(MemoryError("TN_NO_MEMORY")), OF_MEMORY,
                 marks=pytest.mark.long),
    pytest.param("sync", fails_in_exchange(ValueError("a bug")), BUG, marks=pytest.mark.long),
    pytest.param("sync", fails_in_exchange(NotFiniteError("a sum")), "^server 1: .*a sum",
                 marks=pytest.mark.long),
    pytest.param("sync", sends_nan, NAN, marks=pytest.mark.long),
])  # fmt: skip
def test_what_a_server_reports_ends_all_with_one_line(parts, monkeypatch, mode, fault, line):
    conf = with_servers(conf_of(parts, monkeypatch, *IN_PARTS, "save.every_steps=4"), 2, mode=mode)
    fault(monkeypatch)
    with pytest.raises(Failure, match=line) as failed:
        cluster_in_one_process.train_together(conf, 2, golden=0)
    assert "\n" not in str(failed.value)


def test_memory_that_runs_short_for_a_server_is_reported_and_saved(parts, monkeypatch):
    conf = with_servers(conf_of(parts, monkeypatch, *IN_PARTS), 2)
    held = itertools.count(0, 1 << 20)
    for module in (row_life, server):
        monkeypatch.setattr(module, "SECONDS_BETWEEN_CHECKS", 0.01)
    monkeypatch.setattr(row_life, "table_bytes", lambda _: next(held))
    shortage = row_life.MemoryWatch.shortage

    def of_server_1(watch, model):
        return shortage(watch, model) if model.tables[0]._shards.first else None

    monkeypatch.setattr(row_life.MemoryWatch, "shortage", of_server_1)
    limit = Limit("the memory of this machine", 4 << 30, 300 << 20)
    monkeypatch.setattr(system, "tightest", lambda **_: limit)
    with pytest.raises(Failure, match="before memory runs out: server 1: the memory of") as failed:
        cluster_in_one_process.train_together(conf, 2)
    text = str(failed.value)
    assert "is saved. Run the same command again with more memory" in text and "\n" not in text
    assert loading.newest("run").folder == text.split(" is saved")[0].split()[-1]
