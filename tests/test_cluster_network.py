"""The display names the network where it limits, and only there; relay and namespaces work."""

import json
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from queue import SimpleQueue

import cluster_in_one_process
import pytest
from test_cluster import conf_of, parts  # noqa: F401 - a fixture

from benchmarks import cluster_network, network_nodes
from benchmarks.cluster_network import Network
from tnctl.cluster import node
from tnctl.cluster.owners.owner import Owner
from tnctl.cluster.transport import frames
from tnctl.training import worker_watch


class SlowTransport:
    """Links of so many bytes per second in each direction, between nodes of several machines."""

    def __init__(self, bytes_per_second, machines=2):
        self._rate, self._machines = bytes_per_second, machines
        self._links, self._threads = {}, []

    def start(self, nodes):
        for sender in nodes:
            sender.on_machine = len(nodes) // self._machines
            for receiver in nodes:
                queue = self._links[sender.rank, receiver.rank] = SimpleQueue()
                thread = threading.Thread(target=self._deliver, args=[queue, receiver])
                thread.start()
                self._threads.append(thread)

    def _deliver(self, queue, receiver):
        while (content := queue.get()) is not None:
            time.sleep(len(content) / self._rate)
            receiver.receive(frames.parse(content))

    def send(self, sender, receiver, frame):
        self._links[sender, receiver].put(frame.to_bytes())

    def close(self):
        for queue in self._links.values():
            queue.put(None)
        for thread in self._threads:
            thread.join()


@pytest.fixture
def slow_lines(parts, monkeypatch):  # noqa: F811
    """Trains with two workers over a transport; what log.jsonl says is slow, and its lines."""
    monkeypatch.setattr(worker_watch, "SECONDS", 0.1)
    monkeypatch.setattr(node, "LEAST_TIMED", 0)

    def train(transport, *overrides):
        conf = conf_of(
            parts, monkeypatch, "data.train=part-*.csv", "train.batch_size=64", *overrides
        )
        _, errors = cluster_in_one_process.train_together(conf, 2, transport, golden=0)
        assert not errors
        lines = [json.loads(line) for line in Path("run/log.jsonl").read_text().splitlines()]
        timing = [line["timing"] for line in lines if line["event"] == "step"]
        return [line["slow"] for line in timing if "slow" in line], timing

    return train


RATE = 400_000  # bytes per second: a step of the small conf takes some 30 ms


@pytest.mark.parametrize("mode", ["sync", pytest.param("async", marks=pytest.mark.long)])
def test_a_slow_network_is_named(slow_lines, mode):
    overrides = ["train.epochs=3", "cluster=local", "cluster.workers=2", f"cluster.mode={mode}"]
    overrides += ["cluster.warmup_batches=0"]
    slow, timing = slow_lines(SlowTransport(RATE), *overrides)
    words = "the network between worker 0 and 1 carries "
    assert slow and slow[-1].startswith(words), slow
    carried = float(slow[-1].removeprefix(words).split()[0])
    # Less on a loaded machine, whose threads wake up late; 8 times more if these were bits.
    assert 0.2 * RATE < carried * 1e6 < 1.5 * RATE
    for worker in timing[-1]["workers"]:
        assert worker["network_seconds"] > 0.3 * worker["exchange_seconds"]


def test_owners_that_are_slow_are_not_the_network(slow_lines, monkeypatch):
    exchange = Owner.exchange

    def slowly(self, rank, body):
        time.sleep(0.02)
        return exchange(self, rank, body)

    monkeypatch.setattr(Owner, "exchange", slowly)
    slow, timing = slow_lines(SlowTransport(1e9), "train.epochs=2")
    assert slow and slow[-1].startswith("exchanging takes "), slow
    assert 0 < timing[-1]["workers"][0]["network_seconds"] < 0.2


@pytest.mark.long
def test_one_machine_has_no_network(slow_lines):
    slow, timing = slow_lines(SlowTransport(RATE, machines=1), "train.epochs=2")
    assert not any("network" in line for line in slow)
    assert all(worker["network_seconds"] == 0 for worker in timing[-1]["workers"])


@pytest.mark.alone
@pytest.mark.long
def test_100_megabits_between_two_nodes_are_named(tmp_path, monkeypatch):
    if (reason := network_nodes.reason_against()) is not None:
        pytest.skip(reason)
    monkeypatch.chdir(tmp_path)
    overrides = [
        "data.train=0:30000", "train.batch_size=512", "train.threads=1", "recipe.hidden=[2048,512]",
        "train.epochs=100", "evaluation.ablate=false", "cluster.timeout=30",
    ]  # fmt: skip
    network = Network("100 Mbit/s", 1e8, is_slow=True)
    measured = cluster_network.run(network, "deepfm", tmp_path / "run", overrides, 90)
    words = "the network between worker 0 and 1 carries "
    assert measured.slow.startswith(words), measured
    assert 9 < float(measured.slow.removeprefix(words).split()[0]) < 12.6
