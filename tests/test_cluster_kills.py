"""Processes of each mode are killed, stopped and cut off, disks fill: every row is trained once.

`make test-all` sends 2 SIGKILLs and 1 SIGSTOP in each mode at random moments. This sends 20 and 10:

    TNCTL_KILLS=20 .venv/bin/python -m pytest -s tests/test_cluster_kills.py -k random_moments

It shows the seed of each mode, with which TNCTL_KILLS_SEED=SEED draws the same victims and moments.
"""

import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import cluster_commands
import conftest
import pytest
from cluster_commands import (
    FILES,
    KEEP_SHOWS,
    ROWS,
    SECONDS,
    Training,
    all_ended,
    check_rows,
    is_locked,
    lives,
    resume,
    shows_of_rows,
    state_of,
)
from test_cluster import digest_of

pytestmark = pytest.mark.alone
MODES = {
    "sync": [],
    "async": ["cluster.mode=async"],
    "backup": ["cluster.backup=1"],
    "servers": ["cluster.servers=1", "cluster.mode=async", "cluster.staleness=4",
                "cluster.wire=bfloat16"],
}  # fmt: skip
AGAIN = "all workers start again"


@pytest.fixture
def parts(workspace):
    cluster_commands.split_training_data(workspace)
    cluster_commands.number_rows(workspace)
    return workspace


@pytest.fixture(params=MODES)
def mode(request):
    return [*MODES[request.param], *KEEP_SHOWS]


# ---- SIGKILL and SIGSTOP at random moments ---------------------------------------------

SEED = "TNCTL_KILLS_SEED"
COPIES = 10  # of each row, for some 20 s of training
MOST_SECONDS = 12.0  # between two faults; a start takes some 6
NOTICED = 5.0 + 3.0  # seconds: the default of cluster.timeout, and a busy machine


@pytest.mark.long
@pytest.mark.parametrize("mode", MODES)
def test_kills_and_stops_at_random_moments(workspace, mode):
    cluster_commands.split_training_data(workspace)
    for number in range(FILES):
        path = workspace / f"clicks/part-{number}.csv"
        header, *lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join([header, *(COPIES * lines)]))
    cluster_commands.number_rows(workspace)
    settings = [*MODES[mode], *KEEP_SHOWS, "train.epochs=1", "cluster.restarts=1000"]
    kills = int(os.environ.get("TNCTL_KILLS", "2"))
    seed = int(os.environ.get(SEED, random.randrange(10**6)))
    print(f"\n{mode}: {kills} SIGKILLs and {-(-kills // 2)} SIGSTOPs, {SEED}={seed}", flush=True)
    chance = random.Random(seed)
    faults = kills * [signal.SIGKILL] + -(-kills // 2) * [signal.SIGSTOP]
    chance.shuffle(faults)
    runs = [train(workspace, "run-0", settings, chance, [])] if mode == "sync" else []
    while faults:  # a training that ends has done what was there in time
        runs.append(train(workspace, f"run-{len(runs)}", settings, chance, faults))
    if mode == "sync":
        assert len({digest_of(run) for run in runs}) == 1


def train(folder, output, settings, chance, faults):
    """Train to the end, through faults that are taken from a list: the folder of the run."""
    with Training(folder, *settings, f"output={output}", timeout=5) as training:
        training.run = folder / output
        while faults and training.supervisor.poll() is None:
            if strike(training, chance, faults[-1]):
                faults.pop()
        saved = None
        while happens(training, lambda saved=saved: training.checkpoints() != saved):
            saved = training.checkpoints()  # on a busy machine it is slow, and goes on
        assert training.wait() == 0, training.said
    check_rows(training.run, epochs=1, count=COPIES * ROWS)
    assert "Traceback" not in training.said
    return training.run


def strike(training, chance, fault):
    """Kill or stop a process at a random moment, and wait for what follows; False without one."""
    time.sleep(chance.uniform(0, MOST_SECONDS))
    if not happens(training, lambda: processes(training)):
        return False
    generation = processes(training)
    pid, restarts = chance.choice(generation), training.said.count(AGAIN)
    seconds = chance.choice((None, chance.uniform(0.2, 2))) if fault == signal.SIGSTOP else None
    try:
        os.kill(pid, fault)
    except ProcessLookupError:
        return False
    struck = time.monotonic()
    if seconds is not None:
        time.sleep(seconds)
        os.kill(pid, signal.SIGCONT)
        time.sleep(3)
        assert training.said.count(AGAIN) == restarts, training.said
        print(f"{fault.name} for {seconds:.1f} s", flush=True)
        return True
    happens(training, lambda: not all(map(lives, generation)))
    noticed = time.monotonic() - struck
    happens(training, lambda: training.said.count(AGAIN) > restarts)
    print(f"{fault.name} to {generation.index(pid)}, noticed in {noticed:.1f} s, all start again "
          f"{time.monotonic() - struck:.1f} s after it", flush=True)  # fmt: skip
    assert noticed < NOTICED, training.said
    return True


def processes(training):
    """The workers and servers that live, also those that still start."""
    pid = training.supervisor.pid
    with contextlib.suppress(OSError):
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [int(child) for child in children if lives(child) and is_started_as_worker(child)]
    return []


def is_started_as_worker(pid):
    with contextlib.suppress(OSError):
        return b"tnctl.launch.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def happens(training, condition):
    """Wait for a condition: whether it holds before the training ends."""
    deadline = time.monotonic() + SECONDS
    while not condition():
        if training.supervisor.poll() is not None:
            return False
        assert time.monotonic() < deadline, training.said
        training.workers()
        time.sleep(0.02)
    return True


# ---- Lost processes ---------------------------------------------------------------------


def test_a_short_stop_costs_time_and_nothing_outlives_the_supervisor(parts):
    with Training(parts, *KEEP_SHOWS) as training:
        training.until_saved()
        training.signal(1, signal.SIGSTOP)
        time.sleep(1.5)
        training.signal(1, signal.SIGCONT)
        training.until_saved(training.checkpoints())
        assert "start again" not in training.said
        training.supervisor.kill()
        training.supervisor.wait()
        cluster_commands.until(lambda: all_ended(training.seen), 10)
        cluster_commands.until(lambda: not is_locked(parts / "run"), 10)
    resume(parts, *KEEP_SHOWS)
    check_rows(parts / "run")


def snapshot(run):
    """Size and time of each file of a run, but for the logs of workers."""
    return {
        str(path.relative_to(run)): (path.stat().st_size, path.stat().st_mtime_ns)
        for path in run.rglob("*")
        if path.is_file() and path.parent.name != "workers"
    }


@pytest.mark.long
@pytest.mark.parametrize("rank", [0, 1])
def test_a_worker_that_was_stopped_too_long_writes_nothing(parts, rank):
    """The supervisor would kill it: here it is stopped too, and so sees none of it."""
    with Training(parts, *KEEP_SHOWS, timeout=5) as training:
        training.until_saved()
        pids = training.workers()
        supervisor, stopped, other = training.supervisor.pid, pids[rank], pids[1 - rank]
        os.kill(supervisor, signal.SIGSTOP)
        os.kill(stopped, signal.SIGSTOP)
        training.until(lambda: state_of(other) == "Z")
        files_then = snapshot(training.run)
        os.kill(stopped, signal.SIGCONT)
        training.until(lambda: state_of(stopped) == "Z")
        code = int(Path(f"/proc/{stopped}/stat").read_text().split()[-1])
        assert snapshot(training.run) == files_then
        os.kill(supervisor, signal.SIGCONT)
        assert training.wait() == 0, training.said
    assert os.waitstatus_to_exitcode(code) == 75
    logs = [training.said, (training.run / "workers/rank-1.log").read_text()]
    assert re.search(rf"worker {rank}: this process was stopped for \d", logs[rank]), logs
    assert re.search(rf"worker {1 - rank}: worker {rank} could not be reached", logs[1 - rank])
    assert AGAIN in training.said and "Traceback" not in training.said
    check_rows(training.run)


@pytest.mark.long
def test_a_day_that_is_interrupted_is_trained_once(parts, monkeypatch):
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
    settings = ["data.validation=null", "data.test=null", "gate.enabled=false"]
    with Training(parts, *MODES["servers"], *KEEP_SHOWS, *settings) as training:
        training.until(lambda: "looking at 2024-01-02" in training.said)
        training.until_saved(training.checkpoints())
        training.signal(2, signal.SIGKILL)
        assert training.wait() == 0, training.said
    assert f"server 0 was killed by SIGKILL: {AGAIN}" in training.said
    assert shows_of_rows(training.run) == {1: ROWS}
    days = json.loads((training.run / "report.json").read_text())["days"]
    assert [day["day"] for day in days] == ["2024-01-01", "2024-01-02"]
    assert "Traceback" not in training.said


# ---- A request to stop -------------------------------------------------------------------

# What is asked in which mode, by its place among the workers and servers, and what resumes.
ASKED = [
    ("sync", [1], []),
    ("async", ["command"], ["cluster.mode=sync"]),
    ("backup", ["command", 0, 1], None),  # one process
    ("servers", [2], ["cluster.workers=3", "cluster.servers=0"]),
]


@pytest.mark.long
@pytest.mark.parametrize(("mode", "to", "then"), ASKED)
def test_sigterm_saves_and_the_same_or_another_cluster_resumes(parts, mode, to, then):
    settings = [*MODES[mode], *KEEP_SHOWS]
    with Training(parts, *settings) as training:
        training.until_saved()
        pids = training.workers()
        for target in to:
            os.kill(training.supervisor.pid if target == "command" else pids[target], 15)
        assert training.wait() == 143, training.said
    line = r"^tnctl train: stopped after step ([\d,]+): run/checkpoints/step-(\d+) is saved\. Run "
    match = re.search(line, training.said, re.MULTILINE)
    assert match and int(match[2]) == int(match[1].replace(",", "")), training.said
    assert "Traceback" not in training.said
    if then is None:
        alone = [text for text in cluster_commands.TRAIN if not text.startswith("cluster")]
        done = conftest.run_process(*alone, *KEEP_SHOWS, cwd=parts)
        assert done.code == 0 and "resuming from run/checkpoints/" in done.err, done.err
    else:
        resume(parts, *settings, *then)
    check_rows(parts / "run")


# ---- A cut network -------------------------------------------------------------------------

ENTER_OWN = ["unshare", "-n", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
# What takes the network of a run away and gives it back: it is silent, or there is no route.
CUTS = {
    "silent": ("tc qdisc add dev lo root pfifo limit 0", "tc qdisc del dev lo root"),
    "down": ("ip link set lo down", "ip link set lo up"),
}


@pytest.fixture
def networks():
    if not all(map(shutil.which, ("unshare", "nsenter", "ip", "tc"))):
        pytest.skip("there is no iproute2")
    tried = subprocess.run([*ENTER_OWN, "true"], capture_output=True, text=True)
    if tried.returncode:
        pytest.skip(f"networks of one's own are not permitted here: {tried.stderr}")


@pytest.mark.long
@pytest.mark.usefixtures("networks")
@pytest.mark.parametrize(("mode", "cut", "seconds"), [
    ("sync", "silent", 2), ("servers", "down", 2), *((mode, "silent", 8) for mode in MODES),
    ("sync", "down", 15), ("async", "down", 15),
])  # fmt: skip
def test_a_cut_network(parts, mode, cut, seconds):
    settings = [*MODES[mode], *KEEP_SHOWS, "save.keep=100"]
    with Training(parts, *settings, prefix=ENTER_OWN, timeout=5) as training:
        training.until_saved()
        pids, saved = training.workers(), training.checkpoints()
        with network_of(training.supervisor.pid) as enter:
            for command in CUTS[cut]:
                enter(command)
                time.sleep(seconds * (command == CUTS[cut][0]))
        if seconds < 3:
            training.until_saved(saved)
            assert training.workers() == pids, training.said
        assert training.wait() == 0, training.said
    check_rows(training.run)
    assert "Traceback" not in training.said
    assert (AGAIN in training.said) == (seconds > 3)
    if seconds > 3:
        who = r"(?:worker|server) \d"  # a server may notice it first
        reason = rf"{who}: {who} could not be reached for (\d+\.\d) s"
        noticed = re.search(reason, training.said)
        assert noticed, training.said
        assert float(noticed[1]) < NOTICED
        assert "resuming from run/checkpoints/" in training.said


@contextlib.contextmanager
def network_of(pid):
    """Runs commands in the network of a process, which is not that of this one."""
    network = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)

    def enter(command):
        entered = ["nsenter", f"--net=/proc/self/fd/{network}", *command.split()]
        subprocess.run(entered, check=True, pass_fds=[network])

    try:
        # To take this machine's own interface down would cut off all that run here.
        assert not os.path.samestat(os.fstat(network), os.stat("/proc/self/ns/net"))
        yield enter
    finally:
        os.close(network)


# ---- What one process reports ----------------------------------------------------------------


@pytest.mark.long
def test_a_full_disk(parts, mode):
    """A real one, which fills while workers train; they train on when it has room."""
    settings = [*mode, "output=disk/run", "save.keep=1"]
    with conftest.small_disk(parts / "disk", 4) as disk:
        with Training(parts, *settings) as training:
            training.run = disk / "run"
            training.until_saved()
            with (disk / "ballast").open("wb", buffering=0) as ballast:
                training.until(lambda: fills(ballast))
            assert training.wait() == 1, training.said
        last = training.said.splitlines()[-1]
        assert last.startswith("tnctl train: ") and "Traceback" not in training.said
        assert "no space is left there" in last and "disk/run" in last
        (disk / "ballast").unlink()
        resume(parts, *settings, run="disk/run")
        check_rows(disk / "run")


def fills(file):
    try:
        while file.write(bytes(4096)):
            pass
    except OSError:
        return True
    return False


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


@pytest.mark.long
def test_a_gradient_that_is_nan(parts, mode):
    (parts / "patched").mkdir()
    (parts / "patched/sitecustomize.py").write_text(NAN)
    environment = cluster_commands.importing(parts / "patched")
    with Training(parts, *mode, environment=environment) as training:
        assert training.wait() == 1
    line = r"tnctl train: worker 1: step \d+: a gradient is NaN, infinite or beyond 2\^58"
    assert re.match(line, training.said.splitlines()[-1]), training.said
    assert "Traceback" not in training.said and "start again" not in training.said
    resume(parts, *mode)
    check_rows(parts / "run")
