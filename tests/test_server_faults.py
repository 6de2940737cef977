"""Faults of dedicated servers end or restart the training with a line that names the server."""

import itertools
import json
import os
import signal

import cluster_commands
import cluster_in_one_process
import numpy as np
import pytest
import real_faults
from cluster_commands import FILES, ROWS, Training, trained_once
from env_commands import Scheduled, free_port, of_tnctl
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


@pytest.fixture
def parts(workspace):
    """The workspace with its training data in files of different sizes."""
    cluster_commands.split_training_data(workspace)
    return workspace


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
    send = RemoteParameters._send

    def failing(parameters, pulled, **flags):
        if parameters._pushed and parameters.steps >= 3 and parameters._node.rank == 1:
            for push in parameters._pushed[1:]:
                push.dense[:] = np.nan
        return send(parameters, pulled, **flags)

    monkeypatch.setattr(RemoteParameters, "_send", failing)


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


# ---- Processes -------------------------------------------------------------------

ONE_EACH = ["cluster.workers=1", "cluster.servers=1"]


@pytest.mark.alone
@pytest.mark.long
def test_a_killed_server_is_started_again_and_every_row_is_trained_once(parts):
    real_faults.number_rows(parts)
    settings = [*ONE_EACH, "cluster.mode=async", *real_faults.KEEP_SHOWS]
    with Training(parts, *settings) as training:
        training.until_saved()
        training.signal(1, signal.SIGKILL)
        assert training.wait() == 0, training.said
    assert "server 0 was killed by SIGKILL: all workers start again" in training.said
    assert "resuming from run/checkpoints/" in training.said
    real_faults.check_rows(training.run)
    assert "Traceback" not in training.said


@pytest.mark.alone
@pytest.mark.long
@pytest.mark.parametrize("killed", [0, 1])
def test_a_day_that_is_interrupted_is_trained_once(parts, monkeypatch, killed):
    """Process 0 is the worker, 1 its server."""
    real_faults.number_rows(parts)
    for number in range(FILES):
        day = parts / f"clicks/2024-01-0{1 + number % 2}"
        day.mkdir(exist_ok=True)
        (parts / f"clicks/part-{number}.csv").rename(day / f"part-{number}.csv")
    of_days = {
        "data.train=part-*.csv": "data.train='{day}/*.csv'",
        "train.epochs=3": "train.epochs=1",
    }
    train = [of_days.get(text, text) for text in cluster_commands.TRAIN]
    monkeypatch.setattr(cluster_commands, "TRAIN", train)
    settings = [
        *ONE_EACH, "cluster.mode=async", *real_faults.KEEP_SHOWS, "data.validation=null",
        "data.test=null", "gate.enabled=false",
    ]  # fmt: skip
    with Training(parts, *settings) as training:
        training.until(lambda: "looking at 2024-01-02" in training.said)
        training.until_saved(training.checkpoints())
        training.signal(killed, signal.SIGKILL)
        assert training.wait() == 0, training.said
    assert "was killed by SIGKILL: all workers start again" in training.said
    assert real_faults.shows_of_rows(training.run) == {1: ROWS}
    days = json.loads((training.run / "report.json").read_text())["days"]
    assert [day["day"] for day in days] == ["2024-01-01", "2024-01-02"]
    assert "Traceback" not in training.said


@pytest.mark.alone
@pytest.mark.long
def test_commands_of_a_scheduler_train_with_a_server_that_is_killed(parts):
    port = free_port()
    common = of_tnctl(0, 1, port) | {"TNCTL_SERVERS": "1"}
    variables = [common | {"TNCTL_ROLE": role} for role in ("worker", "server")]
    with Scheduled(parts, variables, timeout=10) as training:
        training.until_saved()
        os.kill(training.commands[1].worker(), signal.SIGKILL)
        assert training.wait() == [0, 0], training.said
    of_worker, of_server = (command.said for command in training.commands)
    assert "server 0 was killed by SIGKILL: all workers start again" in of_server
    assert "worker 0 has lost another one: all workers start again" in of_worker
    assert "resuming from run/checkpoints/" in of_worker and "Traceback" not in training.said
    assert trained_once(training.run)
    log = (training.run / "workers/server-0.log").read_text()
    assert log.startswith("== workers started, generation 1\n")
