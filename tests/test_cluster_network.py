"""How long exchanges are on the way between machines is in the figures of each worker."""

import json
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue

import cluster_in_one_process
import pytest
from cluster_in_one_process import Transport
from test_cluster import conf_of

from tnctl.cluster import node
from tnctl.cluster.owners.owner import Owner


class SlowTransport(Transport):
    """Links of so many bytes per second in each direction; each node is on a machine of its own."""

    def __init__(self, bytes_per_second):
        self._rate = bytes_per_second
        self._links = {}

    def start(self, nodes):
        super().start(nodes)
        for sender in nodes:
            sender.on_machine = 1
            for receiver in nodes:
                link = self._links[sender.rank, receiver.rank] = SimpleQueue()
                threading.Thread(target=self._transmit, args=[link], daemon=True).start()

    def _transmit(self, link):
        while (sent := link.get()) is not None:
            size, arrive = sent
            time.sleep(size / self._rate)
            arrive()

    def call(self, caller, peer, envelope, body):
        link, reply = self._links[caller, peer], Future()
        arguments = caller, peer, envelope.to_bytes(), bytes(body), reply
        link.put((len(body), lambda: self.threads.submit(self.deliver, *arguments)))
        back = Future()
        reply.add_done_callback(
            lambda reply: self._links[peer, caller].put(
                (len(reply.result().body), lambda: back.set_result(reply.result()))
            )
        )
        return back

    def close(self):
        for link in self._links.values():
            link.put(None)


@pytest.fixture
def figures(parts, monkeypatch):
    """Trains two workers over a transport; for each worker, its figures by line of the log."""
    monkeypatch.setattr(node, "LEAST_TIMED", 0)

    def train(transport, *overrides):
        conf = conf_of(
            parts, monkeypatch, "data.train=part-*.csv", "train.batch_size=64", *overrides
        )
        _, errors = cluster_in_one_process.train_together(conf, 2, transport, golden=0)
        assert not errors
        lines = [json.loads(line) for line in Path("run/log.jsonl").read_text().splitlines()]
        steps = [line["timing"]["workers"] for line in lines if line["event"] == "step"]
        worker_0, worker_1 = zip(*steps, strict=True)  # fails if no line was logged
        return worker_0, worker_1

    return train


RATE = 400_000  # bytes per second: a step of the small conf takes some 30 ms


@pytest.mark.parametrize("mode", ["sync", pytest.param("async", marks=pytest.mark.long)])
def test_a_slow_network_is_measured(figures, mode):
    overrides = ["cluster=local", "cluster.workers=2", f"cluster.mode={mode}"]

    def fits(worker):
        seconds = worker["network_seconds"]
        # Less on a loaded machine, whose threads wake up late; 8 times more if these were bits.
        is_the_rate = 0.2 * RATE * seconds < worker["received_bytes"] < 1.5 * RATE * seconds
        return is_the_rate and seconds > 0.3 * worker["exchange_seconds"]

    # A machine that stands still spoils the line of that time only.
    for lines in figures(SlowTransport(RATE), *overrides, "cluster.warmup_batches=0"):
        assert any(map(fits, lines)), lines


def test_owners_that_are_slow_are_not_the_network(figures, monkeypatch):
    exchange = Owner.exchange

    def slowly(self, *arguments):
        time.sleep(0.05)
        return exchange(self, *arguments)

    monkeypatch.setattr(Owner, "exchange", slowly)
    for lines in figures(SlowTransport(1e9)):  # half of an owner's time is for the other worker
        assert any(0 < line["network_seconds"] < 0.25 * line["owner_seconds"] for line in lines)
