"""`cluster=ray` on a cluster of several nodes, here raylets of this machine; what it is told."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest
from cluster_commands import trained_once
from conftest import CONF, write_clicks
from test_ray import RayTraining, all_end, listening, needs_ray

from tnctl.errors import UserError
from tnctl.launch import run
from tnctl.launch.ray_actor import Place
from tnctl.launch.ray_driver import address_of_ray, hosts_of
from tnctl.launch.ray_placement import cpus_of_each, cpus_on_node

pytestmark = pytest.mark.ray
# Starts a head without CPUs and nodes of one CPU each, and says their processes.
NODES = """
import json, os, sys
from ray.cluster_utils import Cluster
quiet = {"include_dashboard": False}
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **quiet})
nodes = [cluster.add_node(num_cpus=1, **quiet) for _ in range(int(sys.argv[1]))]
raylets = [node.all_processes["raylet"][0].process.pid for node in nodes]
print(json.dumps({"address": cluster.address, "raylets": raylets}), flush=True)
sys.stdin.read()
os._exit(0)  # the kernel kills what it has started
"""
QUICK = {  # a node is taken for dead after 3 s
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": "0" * 64,
    "RAY_worker_niceness": "0",
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
}


@contextmanager
def nodes_of_ray(count):
    """A cluster of a head and `count` nodes: what NODES says, and the variables of a command."""
    with subprocess.Popen(
        [sys.executable, "-c", NODES, str(count)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env=os.environ | QUICK, text=True,
    ) as process:  # fmt: skip
        lines = iter(process.stdout.readline, "")
        nodes = json.loads(next(line for line in lines if line.startswith("{")))
        yield nodes, QUICK | {"RAY_ADDRESS": nodes["address"]}
        process.stdin.close()


def children(pid):
    """The process ids of what a process has started; those of one that ends may be missing."""
    pids = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            pids += map(int, (task / "children").read_text().split())
    return pids


def processes_below(raylets):
    """The processes of nodes: {kind: {index of the node: process id}}."""
    pids = {"actor": {}, "worker": {}}
    for index, raylet in enumerate(raylets):
        for child in children(raylet):
            with contextlib.suppress(OSError):
                if b"ray::WorkerActor" in Path(f"/proc/{child}/cmdline").read_bytes():
                    pids["actor"][index] = child
                    for worker in children(child):
                        pids["worker"][index] = worker
    return pids


class TrainingOnNodes(RayTraining):
    """A command that trains on the nodes of a Ray."""

    def __init__(self, folder, raylets, environment, *overrides):
        self.raylets = raylets
        super().__init__(folder, *overrides, environment=environment, timeout=30)

    def workers(self):
        return list(processes_below(self.raylets)["worker"].values())


@pytest.mark.alone
@pytest.mark.long
@needs_ray
def test_a_killed_node_is_replaced_by_another(parts):
    with (
        nodes_of_ray(3) as (nodes, environment),
        TrainingOnNodes(parts, nodes["raylets"], environment) as training,
    ):
        training.until_saved()
        pids = processes_below(nodes["raylets"])
        host = nodes["address"].partition(":")[0]
        in_hexadecimal = bytes(map(int, reversed(host.split(".")))).hex().upper()
        addresses = {word[-8:] for word in listening(pids["worker"].values())}
        assert addresses == {in_hexadecimal}
        index = next(iter(pids["worker"]))
        os.kill(nodes["raylets"][index], signal.SIGKILL)
        killed = time.monotonic()
        all_end([pids["actor"][index], pids["worker"][index]], seconds=5)
        training.until(lambda: "resuming from" in training.said)
        print(f"under way again after {time.monotonic() - killed:.1f} s")
        replaced = processes_below(nodes["raylets"])["worker"]
        assert len(replaced) == 2 and index not in replaced
        assert training.supervisor.wait(timeout=240) == 0, training.said
    assert trained_once(training.run) and "Traceback" not in training.said


@pytest.mark.parametrize(("nodes", "workers", "cpus"), [
    ([8, 8], 2, 8), ([8, 8], 4, 4), ([8, 8], 3, 4), ([0, 16, 16], 2, 16), ([8, 6], 3, 4),
    ([2], 3, 1), ([], 2, 1), ([64] * 8, 64, 8),
])  # fmt: skip
def test_cpus_of_each_worker(nodes, workers, cpus):
    assert cpus_of_each(nodes, workers) == cpus


@pytest.mark.parametrize(("nodes", "workers", "servers", "cpus"), [
    ([8, 8], 2, 2, 7), ([8, 8], 2, 1, 7), ([8, 8, 8], 2, 2, 8), ([16, 2], 1, 2, 16),
    ([8], 2, 2, 3), ([2], 1, 1, 1), ([1], 2, 2, 1),
])  # fmt: skip
def test_cpus_of_each_worker_beside_servers(nodes, workers, servers, cpus):
    assert cpus_of_each(nodes, workers, servers) == cpus


def test_workers_of_a_node_share_no_cpus():
    assert cpus_on_node(range(8), 2, None) == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert cpus_on_node(range(8), 2, 4) == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert cpus_on_node(range(2), 3, 1) == [(0,), (0,), (1,)]
    for _ in range(20):
        parts = cpus_on_node(range(9), 2, 3)
        assert [len(part) for part in parts] == [3, 3] and not set(parts[0]) & set(parts[1])


def test_workers_of_one_node_listen_on_this_machine_only():
    def place(node, address):
        return Place(actor="", node=node, address=address, port=0, cpus=(0,))

    assert hosts_of([place("a", "10.0.0.1"), place("a", "10.0.0.1")]) == ["127.0.0.1"] * 2
    assert hosts_of([place("a", "10.0.0.1"), place("b", "fd00::2")]) == ["10.0.0.1", "fd00::2"]


def test_an_address_of_ray(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert address_of_ray() is None
    for address in ("", "local", "auto", "10.0.0.1:6379"):
        monkeypatch.setenv("RAY_ADDRESS", address)
        assert address_of_ray() == (None if address in ("", "local") else address)
    for address in ("ray://10.0.0.1:10001", "http://10.0.0.1:8265"):
        monkeypatch.setenv("RAY_ADDRESS", address)
        with pytest.raises(UserError, match="give the command to `ray job submit`"):
            address_of_ray()


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "own.yaml").write_text(CONF)
    write_clicks(tmp_path / "clicks")
    return tmp_path


def test_without_ray_a_line_names_the_extra(cli, folder, monkeypatch):
    monkeypatch.setattr(run, "find_spec", lambda name: None if name == "ray" else find_spec(name))
    done = cli("train", "conf=own.yaml", "output=run", "cluster=ray", cwd=folder)
    assert done.code == 2 and "pip install 'tnctl[ray]'" in done.line
    assert not (folder / "run").exists()


def test_cpus_of_workers_are_rays(cli, folder):
    done = cli("train", "conf=own.yaml", "cluster=local", "cluster.cpus=2", cwd=folder)
    assert done.code == 2 and "cluster.cpus is for cluster=ray" in done.line


@pytest.mark.alone
@needs_ray
def test_a_ray_that_is_not_there_is_one_line(cli, folder, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    begin = time.monotonic()
    done = cli("train", "conf=own.yaml", "output=run", "cluster=ray", cwd=folder)
    assert done.code == 1 and "127.0.0.1:1" in done.line
    assert time.monotonic() - begin < 60
