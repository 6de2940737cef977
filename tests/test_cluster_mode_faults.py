"""Processes of each mode are killed, stopped and cut off: every row is trained once per pass."""

import os
import re
import signal
import time

import cluster_commands
import conftest
import pytest
import real_faults
from cluster_commands import Training, all_ended

pytestmark = [pytest.mark.alone, pytest.mark.long]
MODES = {
    "async": ["cluster.mode=async"],
    "bounded": ["cluster.mode=async", "cluster.staleness=4", "cluster.wire=bfloat16"],
    "backup": ["cluster.backup=1"],
}


@pytest.fixture
def parts(workspace):
    cluster_commands.split_training_data(workspace)
    real_faults.number_rows(workspace)
    return workspace


# Bounded is async that waits: what does not meet its waiting is tried without.
of_all_modes = pytest.mark.parametrize("mode", MODES, indirect=True)


@pytest.fixture(params=["async", "backup"])
def mode(request):
    return [*MODES[request.param], *real_faults.KEEP_SHOWS]


def ends(training):
    """It trains to the end, every row once."""
    assert training.wait() == 0, training.said
    real_faults.check_rows(training.run)
    assert "Traceback" not in training.said


@of_all_modes
@pytest.mark.parametrize("rank", [0, 1])
def test_a_worker_is_killed(parts, mode, rank):
    with Training(parts, *mode) as training:
        training.until_saved()
        training.signal(rank, signal.SIGKILL)
        ends(training)
    assert f"worker {rank} was killed by SIGKILL: all workers start again" in training.said
    assert "resuming from run/checkpoints/" in training.said


def test_the_command_is_killed(parts, mode):
    with Training(parts, *mode) as training:
        training.until_saved()
        training.supervisor.kill()
        training.supervisor.wait()
        cluster_commands.until(lambda: all_ended(training.seen), 10)
    real_faults.resume(parts, *mode)
    real_faults.check_rows(parts / "run")


def test_a_short_stop_costs_time_only(parts, mode):
    with Training(parts, *mode) as training:
        training.until_saved()
        for rank in range(2):
            training.signal(rank, signal.SIGSTOP)
            time.sleep(1.5)
            training.signal(rank, signal.SIGCONT)
        ends(training)
    assert "start again" not in training.said


@pytest.mark.parametrize("rank", [0, 1])
def test_a_worker_is_stopped_too_long(parts, mode, rank):
    with Training(parts, *mode, timeout=5) as training:
        training.until_saved()
        training.signal(rank, signal.SIGSTOP)
        ends(training)
    assert re.search(f"worker {rank} (has been silent|was stopped) for ", training.said)


# What is asked to stop, and how the training is resumed.
ASKED = [
    ([1], ["cluster.workers=3"]),
    (["command"], ["cluster.mode=sync", "cluster.backup=0", "cluster.staleness=null"]),
    (["command", 0, 1], None),
]


@pytest.mark.parametrize(("to", "overrides"), ASKED)
def test_a_request_to_stop_saves_and_others_may_resume(parts, mode, to, overrides):
    with Training(parts, *mode) as training:
        training.until_saved()
        pids = training.workers()
        for target in to:
            os.kill(training.supervisor.pid if target == "command" else pids[target], 15)
        assert training.wait() == 143, training.said
    assert "is saved. Run the same command again to resume" in training.said
    if overrides is None:  # one process
        alone = [text for text in cluster_commands.TRAIN if not text.startswith("cluster")]
        done = conftest.run_process(*alone, *real_faults.KEEP_SHOWS, cwd=parts)
        assert done.code == 0 and "resuming from run/checkpoints/" in done.err, done.err
    else:
        real_faults.resume(parts, *mode, *overrides)
    real_faults.check_rows(parts / "run")


@of_all_modes
def test_a_cut_network(parts, mode):
    training = real_faults.train_through_a_cut(parts, 8, *mode)
    real_faults.check_rows(training.run)


def test_a_full_disk(parts, mode):
    real_faults.train_on_a_full_disk(parts, *mode)


# Put before all modules of a worker: its gradient is NaN at a batch of the training.
NAN = """
import dataclasses, os, sys, threading, time
def patch():
    while not hasattr(sys.modules.get("tnctl.cluster.workers.remote"), "RemoteParameters"):
        time.sleep(0.005)
    parameters = sys.modules["tnctl.cluster.workers.remote"].RemoteParameters
    push = parameters.push
    def pushed(self, batch, gradients, rate_factor):
        if self._node.rank == 1 and self.steps >= 150:
            first, *others = gradients.dense
            gradients = dataclasses.replace(gradients, dense=[first * float("nan"), *others])
        push(self, batch, gradients, rate_factor)
    parameters.push = pushed
""" + cluster_commands.IN_WORKERS.format(call="patch")  # fmt: skip


@of_all_modes
def test_a_gradient_that_is_nan(parts, mode):
    (parts / "patched").mkdir()
    (parts / "patched/sitecustomize.py").write_text(NAN)
    environment = cluster_commands.importing(parts / "patched")
    with Training(parts, *mode, environment=environment) as training:
        assert training.wait() == 1
    line = r"tnctl train: worker 1: step \d+: a gradient is NaN, infinite or beyond 2\^58"
    assert re.match(line, training.said.splitlines()[-1]), training.said
    assert "Traceback" not in training.said and "start again" not in training.said
    real_faults.resume(parts, *mode)
    real_faults.check_rows(parts / "run")
