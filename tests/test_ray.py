"""`tnctl train cluster=ray` with a Ray of this machine, whose processes are killed."""

import contextlib
import json
import os
import re
import signal
import time
from importlib.util import find_spec
from pathlib import Path

import cluster_commands
import pytest
from cluster_commands import (
    KEEP_SHOWS,
    Training,
    check_rows,
    is_locked,
    number_rows,
    state_of,
    trained_once,
)  # fmt: skip
from tls_files import make_authority, make_certificate

pytestmark = pytest.mark.ray
needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed")
AGAIN = "start again from the last checkpoint"
NAMES = {
    "command": "cluster.start=ray",
    "driver": "tnctl.launch.ray_driver",
    "head": "gcs_server",
    "raylet": "raylet/raylet",
    "actor": "ray::WorkerActor",
    "worker": "tnctl.launch.worker",
}


class RayTraining(Training):
    """A command that trains with two workers, which Ray supervises."""

    def __init__(self, folder, *overrides, **options):
        super().__init__(folder, "cluster.start=ray", *overrides, **options)

    def tree(self):
        """The command lines of the command and all processes below it, by process id."""
        lines, pids = {}, [self.supervisor.pid]
        for pid in pids:
            try:
                lines[pid] = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
                for task in Path(f"/proc/{pid}/task").iterdir():
                    pids += map(int, (task / "children").read_text().split())
            except OSError:
                continue
        return lines

    def pids(self, kind):
        lines = self.tree()
        return sorted(pid for pid, line in lines.items() if NAMES[kind] in line)

    def workers(self):
        pids = self.pids("worker")
        self.seen.update(pids)
        return pids


def all_end(pids, seconds=60):
    deadline = time.monotonic() + seconds
    while alive := [pid for pid in pids if state_of(pid) not in (None, "Z")]:
        assert time.monotonic() < deadline, [
            Path(f"/proc/{pid}/cmdline").read_bytes() for pid in alive
        ]
        time.sleep(0.05)


def listening(pids):
    """The addresses that processes listen on, as the kernel writes them: hexadecimal."""
    inodes = set()
    for pid in pids:
        with contextlib.suppress(OSError):  # of a process that has ended
            for descriptor in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    inodes.update(re.findall(r"socket:\[(\d+)\]", os.readlink(descriptor)))
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and words[9] in inodes:
                yield words[1].partition(":")[0]


def sessions():
    """The folders of each Ray that a command has started, or that was left by one."""
    return set(Path(os.environ.get("TMPDIR", "/tmp")).glob("tnctl-ray-*/session*"))


@pytest.mark.alone
@needs_ray
def test_a_run_whose_actor_is_killed(parts):
    folders = sessions()
    with RayTraining(parts, "train.epochs=2") as training:
        training.until_saved()
        tree = training.tree()
        assert all(any(name in line for line in tree.values()) for name in NAMES.values()), tree
        addresses = set(listening(tree))
        os.kill(training.pids("actor")[1], signal.SIGKILL)
        training.until_restarted()
        tree |= training.tree()
        assert training.supervisor.wait(timeout=240) == 0, training.said
    assert re.search(r"worker \d was lost with the Ray actor .* all workers start", training.said)
    assert "resuming from run/checkpoints/" in training.said and "Traceback" not in training.said
    assert trained_once(training.run, epochs=2)
    all_end(tree)
    assert addresses == {"0100007F", "0000000000000000FFFF00000100007F"}
    assert sessions() <= folders


@pytest.mark.alone
@pytest.mark.long
@needs_ray
@pytest.mark.parametrize("kind", ["worker", "actor", "raylet", "head", "driver"])
def test_a_killed_process_of_a_local_ray(parts, kind):
    with RayTraining(parts, timeout=30) as training:
        training.until_saved()
        tree = training.tree()
        os.kill(training.pids(kind)[0], signal.SIGKILL)
        killed = time.monotonic()
        training.until(lambda: training.said.count("resuming from") == 1)
        print(f"{kind}: under way again after {time.monotonic() - killed:.1f} s")
        tree |= training.tree()
        assert training.supervisor.wait(timeout=120) == 0, training.said
    assert training.said.count(AGAIN) == 1
    assert trained_once(training.run) and "Traceback" not in training.said
    all_end(tree)


@pytest.mark.alone
@pytest.mark.long
@needs_ray
def test_nothing_outlives_the_command(parts):
    with RayTraining(parts) as training:
        training.until_saved()
        tree = training.tree()
        training.supervisor.kill()
        training.supervisor.wait()
        all_end([*training.seen], seconds=5)
        all_end(tree, seconds=5)
        cluster_commands.until(lambda: not is_locked(parts / "run"), seconds=5)
    with RayTraining(parts) as training:
        assert training.supervisor.wait(timeout=240) == 0, training.said
    assert trained_once(training.run)


@pytest.mark.alone
@pytest.mark.long
@needs_ray
def test_a_server_that_is_killed_and_encrypted_connections(parts):
    make_authority(parts)
    make_certificate(parts, "worker")
    settings = ["cluster.mode=async", "cluster.servers=1", "cluster.workers=2"]
    for key, name in (
        ("certificate", "worker.pem"), ("key", "worker.key"), ("authority", "authority.pem"),
    ):  # fmt: skip
        settings.append(f"cluster.tls.{key}={parts / name}")
    number_rows(parts)
    with RayTraining(parts, *settings, *KEEP_SHOWS, timeout=30) as training:
        training.until(lambda: training.checkpoints() and len(training.workers()) == 3)
        tree = training.tree()
        names = {pid: Path(f"/proc/{pid}/comm").read_text() for pid in training.workers()}
        [server] = [pid for pid, name in names.items() if name.startswith("tnctl server 2")]
        os.kill(server, signal.SIGKILL)
        training.until(lambda: training.said.count("resuming from") == 1)
        tree |= training.tree()
        assert training.supervisor.wait(timeout=240) == 0, training.said
    assert "server 0 was killed by SIGKILL: all workers start again" in training.said
    assert training.said.count(AGAIN) == 1 and "Traceback" not in training.said
    check_rows(training.run)
    lines = map(json.loads, (training.run / "log.jsonl").read_text().splitlines())
    assert any('"role": "server"' in json.dumps(line) for line in lines)
    log = (training.run / "workers/server-0.log").read_text()
    assert log.count("== workers started, generation") == 2
    all_end(tree)
