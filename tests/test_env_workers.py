"""`tnctl train cluster=env`: each worker is started by a command of its own."""

import contextlib
import json
import os
import signal
import threading

import cluster_commands
import cluster_in_one_process
import env_commands
import pytest
from cluster_commands import trained_once
from conftest import CONF
from env_commands import TOKEN, Scheduled, free_port, of_tnctl
from test_cluster import conf_of, digest_of

from benchmarks import network_nodes
from tnctl import files, schema
from tnctl.errors import Failure
from tnctl.launch import environment, run

pytestmark = pytest.mark.alone


def own(workers=2, servers=0):
    port, of_all = free_port(), {"TNCTL_SERVERS": str(servers)} if servers else {}
    return [of_tnctl(rank, workers, port) | of_all for rank in range(workers + servers)]


def test_two_commands_end_with_the_bytes_of_one(parts, monkeypatch):
    with Scheduled(parts, own(), "train.epochs=1", "data.test=null") as training:
        training.until(lambda: None not in [command.worker() for command in training.commands])
        for command in training.commands:
            for pid in (command.process.pid, command.worker()):
                with open(f"/proc/{pid}/cmdline", "rb") as file:
                    assert TOKEN.encode() not in file.read()
        assert training.wait() == [0, 0], training.said
    said = [command.said for command in training.commands]
    assert said[0].startswith("worker 0 of 2 (TNCTL_RANK), worker 0 is at 127.0.0.1:")
    # On a busy machine one may wait for the other, and say so.
    lines = [line for line in said[1].splitlines() if "Waiting up to" not in line]
    assert len(lines) == 1 and lines[0].startswith("worker 1 of 2 (TNCTL_RANK)")
    assert trained_once(training.run, epochs=1) and TOKEN not in training.said
    log = (training.run / "workers/rank-1.log").read_text()
    assert log.startswith("== workers started, generation 1\n") and TOKEN not in log
    assert not (training.run / "workers/rank-0.log").exists()
    overrides = [
        text for text in env_commands.TRAIN if text.startswith(("data.", "train.", "save"))
    ]
    overrides += ["data.test=null", "train.epochs=1"]
    conf = conf_of(parts, monkeypatch, *overrides, output="threads")
    cluster_in_one_process.train_together(conf, 2)
    assert digest_of("threads") == digest_of("run")


# ---- Faults ----------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize(("workers", "servers", "rank", "name"), [
    (2, 0, 0, "worker 0"), (1, 1, 1, "server 0"),
])  # fmt: skip
def test_a_worker_or_server_is_killed(parts, workers, servers, rank, name):
    with Scheduled(parts, own(workers, servers), timeout=10) as training:
        training.until_saved()
        os.kill(training.commands[rank].worker(), signal.SIGKILL)
        assert training.wait() == [0, 0], training.said
    said = [command.said for command in training.commands]
    other = "worker 1" if rank == 0 else "worker 0"
    assert f"{name} was killed by SIGKILL: all workers start again" in said[rank]
    assert f"{other} has lost another one: all workers start again" in said[1 - rank]
    assert "resuming from run/checkpoints/" in said[0] and "Traceback" not in training.said
    assert trained_once(training.run)


@pytest.mark.long
def test_a_command_is_killed_and_started_again_by_its_scheduler(parts):
    """At the same address, which must not make the others take it for the process before."""
    port = free_port()
    config = {"cluster": {"worker": [f"127.0.0.1:{port}", f"localhost:{free_port()}"]}}
    variables = [
        {"TF_CONFIG": json.dumps(config | {"task": {"type": "worker", "index": rank}})}
        for rank in range(2)
    ]
    for rank in range(2):
        with Scheduled(parts, variables, f"output=run-{rank}", timeout=10) as training:
            training.run = parts / f"run-{rank}"
            training.until_saved()
            pid = training.commands[rank].worker()
            training.commands[rank].process.kill()
            training.commands[rank].process.wait()
            training.until(lambda pid=pid: cluster_commands.all_ended([pid]))
            training.start(rank)
            assert training.wait() == [0, 0], training.said
        assert trained_once(training.run) and "Traceback" not in training.said


@pytest.mark.long
def test_without_restarts_the_exit_code_asks_the_scheduler_for_one(parts):
    with Scheduled(parts, own(), "cluster.restarts=0", timeout=10) as training:
        training.until_saved()
        os.kill(training.commands[1].worker(), signal.SIGKILL)
        assert training.wait() == [75, 75], training.said
        assert training.said.count("tnctl train: workers were lost once: worker") == 2
        for rank in range(2):
            training.start(rank)
        assert training.wait() == [0, 0], training.said
    assert trained_once(training.run) and "Traceback" not in training.said


@pytest.mark.long
def test_sigterm_saves_and_ends_all(parts):
    with Scheduled(parts, own()) as training:
        training.until_saved()
        training.commands[1].process.send_signal(signal.SIGTERM)
        assert training.wait() == [143, 143], training.said
        assert "stopped after step " in training.commands[0].said
        assert "worker 0: stopped after step " in training.commands[1].said
        for rank in range(2):
            training.start(rank)
        assert training.wait() == [0, 0], training.said
    assert trained_once(training.run) and "Traceback" not in training.said


@pytest.mark.long
def test_a_worker_with_another_conf_ends_all(parts):
    with Scheduled(parts, own()[:1]) as training:
        training.variables += [of_tnctl(1, 2, training.variables[0]["TNCTL_ADDRESS"][10:])]
        training.start(1, "seed=7")
        assert training.wait() == [2, 2], training.said
    for command, refused in zip(training.commands, ("", "worker 0 has "), strict=True):
        line = "refused worker 1: worker 1 has another conf (seed): all workers need the same"
        assert command.said.splitlines()[-1] == f"tnctl train: {refused}{line}"


@pytest.mark.long
def test_the_network_of_a_worker_is_down_for_longer_than_its_restarts(parts):
    """While its interface is down it has no route: it waits for that as for worker 0."""
    if (reason := network_nodes.reason_against()) is not None:
        pytest.skip(reason)
    with network_nodes.two_nodes() as nodes:
        address = f"{nodes.addresses[0]}:29400"
        variables = [of_tnctl(rank) | {"TNCTL_ADDRESS": address} for rank in range(2)]
        prefixes = [nodes.command(rank, []) for rank in range(2)]
        with Scheduled(parts, variables, timeout=5, prefixes=prefixes) as training:
            training.until_saved()
            nodes.run(1, "ip", "link", "set", network_nodes.LINK, "down")
            training.until(lambda: "worker 1 cannot reach worker 0 at" in training.commands[1].said)
            nodes.run(1, "ip", "link", "set", network_nodes.LINK, "up")
            assert training.wait() == [0, 0], training.said
    line = (
        f"worker 1 cannot reach worker 0 at {address}: Network is unreachable. "
        "Waiting up to 120 s for it (cluster.patience), of which 11"
    )
    assert line in training.commands[1].said
    assert training.said.count("all workers start again") == 2
    assert trained_once(training.run) and "Traceback" not in training.said


@pytest.mark.long
def test_workers_that_do_not_come_are_waited_for_and_then_the_scheduler_is_asked(parts):
    with Scheduled(parts, own()[:1], "cluster.patience=3") as training:
        assert training.wait() == [75], training.said
    line = "tnctl train: 1 of 2 workers did not join within 3 s (cluster.patience): worker 1"
    assert training.said.splitlines()[-1] == line
    assert "start again" not in training.said


# ---- What is refused before anything is started ------------------------------------


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "own.yaml").write_text(CONF)
    for name in list(os.environ):
        if name.startswith(env_commands.OTHERS):
            monkeypatch.delenv(name)
    for name, value in (of_tnctl(0) | {"TNCTL_TOKEN": TOKEN}).items():
        monkeypatch.setenv(name, value)
    return tmp_path


RUN = ("train", "conf=own.yaml", "output=run", "cluster=env")


@pytest.mark.parametrize(("given", "words"), [
    (["overwrite=true"], "overwrite=true is not for cluster=env"),
    (["cluster.workers=3"], "cluster.workers=3, and the environment (TNCTL_RANK) says 2 workers"),
    (["cluster.workers=1"], "cluster.workers=1, and the environment (TNCTL_RANK) says 2 workers"),
])  # fmt: skip
def test_a_command_that_contradicts_is_refused(cli, folder, given, words):
    done = cli(*RUN, *given, cwd=folder)
    assert done.code == 2 and words in done.line and not (folder / "run").exists()


def test_backup_workers_of_a_number_that_the_environment_says(cli, folder):
    done = cli(*RUN, "cluster.backup=2", cwd=folder)
    assert done.code == 2 and not (folder / "run").exists()
    assert "cluster.backup=2 leaves no worker for a step: it must be below" in done.err


def test_an_output_of_its_own_is_noticed(cli, folder, monkeypatch):
    monkeypatch.setenv("TNCTL_RANK", "1")
    done = cli(*RUN, "cluster.patience=1", cwd=folder)
    last = done.err.splitlines()[-1]
    assert done.code == 75 and "worker 0 has not begun within 1 s, or has another output" in last
    assert "TNCTL_TOKEN" not in os.environ


def test_worker_0_waits_for_the_end_of_the_process_before_it(folder, monkeypatch, capfd):
    monkeypatch.chdir(folder)
    with contextlib.ExitStack() as stack:
        stack.enter_context(files.locked("run"))
        with pytest.raises(Failure, match=r"another tnctl command .* is working in run"):
            run._wait_for_lock("run", 1.5)
        said = capfd.readouterr().err
        assert (
            "is working in run. Wait for it, or choose another output. Waiting up to 1.5 s" in said
        )
        threading.Timer(0.7, stack.close).start()
        cluster = schema.Cluster(start="env", workers=2, patience=60)
        with run.logs_of("run", cluster, environment.place(os.environ), overwrite=False):
            assert (folder / "run/workers/rank-1.log").exists()


def test_check_needs_the_number_of_workers(cli, folder):
    done = cli("check", "conf=own.yaml", "cluster=env", cwd=folder)
    assert done.code == 2 and "Give cluster.workers=N" in done.err
