"""Round trips of frames between two processes on this machine, as training sends them.

    python -m benchmarks.streams [--rounds N] [--pause MILLISECONDS]

An owner answers each frame with one of the size that it asks for. "pull" sends the ids of 13,000
rows and gets their 9 floats each, "push" sends these floats and gets 8 bytes, "exchange" sends and
gets them; "pull 812" is the part of 13,000 rows that each of 16 owners has. "exchange 2.5 MB" is
the exchange of a step of two workers, with dense weights. Each is measured as frames alone, from a
thread to the callback of the stream, and as requests of training (tnctl/cluster/node.py): from the
main thread to the future's result, through the threads of the protocol of both processes. The two
take turns. CPU is that of the asking process.
"""

import argparse
import os
import secrets
import subprocess
import sys
import threading
import time

import numpy as np

from tnctl.cluster.node import Node
from tnctl.cluster.transport.frames import HEADER_BYTES, Kind, parse
from tnctl.cluster.transport.streams import Endpoint

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
BARE = bytes(HEADER_BYTES)  # of a frame that is no request


class Worker:
    """An endpoint whose frames are requests and replies of a node, or bare ones."""

    def __init__(self, rank, token, ranks=2):
        self.arrived, self.connected = threading.Event(), threading.Event()
        self.content = np.zeros(max(back for _, back in SIZES.values()), np.uint8)
        self.endpoint = Endpoint(
            "127.0.0.1:0", token, rank, ranks,
            on_frame=self.on_frame,
            on_connected=lambda _: self.connected.set(),
            on_lost=lambda *_: None,
            on_stranger=lambda *_: None,
        )  # fmt: skip
        self.node = Node(rank, ranks, GENERATION, self.send)
        self.node.serve_owner(self)

    def send(self, peer, frame):
        self.endpoint.send(peer, [frame.header(), memoryview(frame.body)])

    def on_frame(self, peer, content):
        if content[: len(BARE)] != BARE:
            self.node.receive(parse(content))
        elif self.endpoint.rank == 0:
            self.endpoint.send(peer, [BARE, self.read(peer, content[len(BARE) :])])
        else:
            self.arrived.set()

    def read(self, _, body):
        """As an owner: an answer of the size that is asked for."""
        return self.content[: int.from_bytes(body[:8], "little")].data


def serve() -> None:
    """The owner: its token is the first line of the standard input, whose end ends it."""
    owner = Worker(0, sys.stdin.readline().strip())
    print(owner.endpoint.port, flush=True)
    sys.stdin.read()
    print(time.process_time(), flush=True)
    os._exit(0)


def by_frames(worker, body):
    worker.arrived.clear()
    worker.endpoint.send(0, [BARE, body])
    worker.arrived.wait()


def by_requests(worker, body):
    worker.node.request(0, Kind.READ, body).result()


def measure(worker, there, back, rounds, pause):
    """Milliseconds of each round trip, and of CPU in all, by the way of sending."""
    body = np.zeros(max(there, 8), np.uint8)
    body[:8] = np.frombuffer(back.to_bytes(8, "little"), np.uint8)
    ways = {"frames": by_frames, "requests": by_requests}
    times, cpu = {way: [] for way in ways}, dict.fromkeys(ways, 0.0)
    for _ in range(rounds):
        for way, run in ways.items():
            time.sleep(pause / 1000)
            started, used = time.perf_counter(), time.process_time()
            run(worker, body.data)
            times[way].append((time.perf_counter() - started) * 1000)
            cpu[way] += (time.process_time() - used) * 1000
    return {way: (of_way[rounds // 10 :], cpu[way] / rounds) for way, of_way in times.items()}


def main() -> None:
    """Start an owner, and print a line for each size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--pause", type=float, default=2.0)
    given = parser.parse_args()
    token = secrets.token_urlsafe(32)
    owner = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.streams", "serve"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    owner.stdin.write(token + "\n")
    owner.stdin.flush()
    port = int(owner.stdout.readline())
    worker = Worker(1, token)
    worker.endpoint.connect(0, f"127.0.0.1:{port}")
    worker.connected.wait()
    print(f"{'':26} {'median ms':>10} {'95 % ms':>9} {'CPU ms':>8}")
    for name, (there, back) in SIZES.items():
        measured = measure(worker, there, back, given.rounds, given.pause)
        for way, (times, cpu) in measured.items():
            print(
                f"{name + ', ' + way:26} {np.median(times):10.2f} "
                f"{np.percentile(times, 95):9.2f} {cpu:8.2f}",
                flush=True,
            )
    owner.stdin.close()
    print(f"CPU of the owner in all: {float(owner.stdout.readline()):.2f} s")
    os._exit(0)


if __name__ == "__main__":
    serve() if sys.argv[1:] == ["serve"] else main()
