"""Round trips of calls between two processes on this machine, as training makes them.

    python -m benchmarks.calls [--rounds N] [--pause MILLISECONDS]

An owner answers each call with a reply of the size that it asks for. "pull" sends the ids of 13,000
rows and gets their 9 floats each, "push" sends these floats and gets 8 bytes, "exchange" sends and
gets them; "pull 812" is the part of 13,000 rows that each of 16 owners has. "exchange 2.5 MB" is
the exchange of a step of two workers, with dense weights. Each goes from the main thread to the
future's result through `Node.request` (tnctl/cluster/node.py). CPU is that of the asking process.
"""

import argparse
import os
import secrets
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from functools import partial

import numpy as np

from tnctl.cluster.node import Node
from tnctl.cluster.transport.kinds import Kind
from tnctl.cluster.transport.rpc import Endpoint

ROWS, FLOATS = 13_000, 9
SMALL = ROWS // 16
# Bytes there and back.
SIZES = {
    "pull": (8 * ROWS, 4 * FLOATS * ROWS),
    "push": (4 * FLOATS * ROWS, 8),
    "exchange": (4 * FLOATS * ROWS, 4 * FLOATS * ROWS),
    "pull 812": (8 * SMALL, 4 * FLOATS * SMALL),
    "push 812": (4 * FLOATS * SMALL, 8),
    "exchange 2.5 MB": (2_500_000, 2_500_000),
}
GENERATION = 1


class Worker:
    """A process whose node answers reads with as many bytes as they ask for."""

    def __init__(self, rank, token, ranks=2):
        self.process = f"{rank}"
        self.content = bytes(max(back for _, back in SIZES.values()))
        self.endpoint = Endpoint("127.0.0.1:0", token, rank, ranks, self)
        self.node = Node(rank, ranks, GENERATION, self.call, lambda _: None)
        self.node.serve_owner(self)

    def call(self, peer, envelope, body):
        return self.endpoint.call(peer, "Call", body, envelope.to_bytes())

    def stayed(self, *_):
        return Future()

    def called(self, peer, envelope, body):
        return self.node.answer(peer, envelope, body)

    def read(self, _, body):
        """As an owner: an answer of the size that is asked for."""
        return self.content[: int.from_bytes(body[:8], "little")]


def serve() -> None:
    """The owner: its token is the first line of the standard input, whose end ends it."""
    owner = Worker(0, sys.stdin.readline().strip())
    print(owner.endpoint.port, flush=True)
    sys.stdin.read()
    print(time.process_time(), flush=True)
    os._exit(0)


def measure(worker, there, back, rounds, pause):
    """Milliseconds of each round trip, and of CPU in the mean."""
    body = back.to_bytes(8, "little") + bytes(max(there - 8, 0))
    times, cpu = [], 0.0
    for _ in range(rounds):
        time.sleep(pause / 1000)
        started, used = time.perf_counter(), time.process_time()
        worker.node.request(0, Kind.READ, body).result()
        times.append((time.perf_counter() - started) * 1000)
        cpu += (time.process_time() - used) * 1000
    return times[rounds // 10 :], cpu / rounds


def main() -> None:
    """Start an owner, and print a line for each size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--pause", type=float, default=2.0)
    given = parser.parse_args()
    token = secrets.token_urlsafe(32)
    owner = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.calls", "serve"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    owner.stdin.write(token + "\n")
    owner.stdin.flush()
    worker, connected = Worker(1, token), threading.Event()
    address = f"127.0.0.1:{int(owner.stdout.readline())}"
    worker.endpoint.connect(0, address, lambda _: connected.set())
    connected.wait()
    worker.endpoint.watch(0, "0", *[partial(print, flush=True)] * 3)
    print(f"{'':18} {'median ms':>10} {'95 % ms':>9} {'CPU ms':>8}")
    for name, (there, back) in SIZES.items():
        times, cpu = measure(worker, there, back, given.rounds, given.pause)
        print(
            f"{name:18} {np.median(times):10.2f} {np.percentile(times, 95):9.2f} {cpu:8.2f}",
            flush=True,
        )
    owner.stdin.close()
    print(f"CPU of the owner in all: {float(owner.stdout.readline()):.2f} s")
    os._exit(0)


if __name__ == "__main__":
    serve() if sys.argv[1:] == ["serve"] else main()
