"""Round trips of frames between two processes on this machine, as training sends them.

    python -m benchmarks.streams [--rounds N] [--pause MILLISECONDS]

An owner answers each frame with one of the size that it asks for. "pull" sends the ids of 13,000
rows and gets their 9 floats each, "push" sends these floats and gets 8 bytes, "exchange" sends and
gets them; "pull 812" is the part of 13,000 rows that each of 16 owners has. "exchange 2.5 MB" is
the exchange of a step of two workers, with dense weights. CPU is that of the asking process.
"""

import argparse
import os
import secrets
import subprocess
import sys
import threading
import time

import numpy as np

from tnctl.cluster.streams import Endpoint

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


def ignored(*_: object) -> None:
    """A callback that nothing depends on."""


def endpoint(rank, token, on_frame, on_connected=ignored):
    return Endpoint(
        "127.0.0.1:0", token, rank, 2, on_frame=on_frame, on_connected=on_connected,
        on_lost=ignored, on_stranger=ignored,
    )  # fmt: skip


def serve() -> None:
    """The owner: its token is the first line of the standard input, whose end ends it."""
    token = sys.stdin.readline().strip()
    content = np.zeros(max(back for _, back in SIZES.values()), np.uint8)

    def answer(peer, frame):
        size = int.from_bytes(frame[:8], "little")
        owner.send(peer, [content[:size].data])

    owner = endpoint(0, token, answer)
    print(owner.port, flush=True)
    sys.stdin.read()
    print(time.process_time(), flush=True)
    os._exit(0)


def measure(worker, arrived, there, back, rounds, pause):
    """Milliseconds of each round trip."""
    content = np.zeros(there, np.uint8)
    content[:8] = np.frombuffer(back.to_bytes(8, "little"), np.uint8)
    times = []
    for _ in range(rounds):
        time.sleep(pause / 1000)
        started = time.perf_counter()
        arrived.clear()
        worker.send(0, [content.data])
        arrived.wait()
        times.append((time.perf_counter() - started) * 1000)
    return times[rounds // 10 :]


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
    arrived, connected = threading.Event(), threading.Event()
    worker = endpoint(1, token, lambda *_: arrived.set(), lambda _: connected.set())
    worker.connect(0, f"127.0.0.1:{port}")
    connected.wait()
    print(f"{'':16} {'median ms':>10} {'95 % ms':>9} {'CPU ms':>8}")
    for name, (there, back) in SIZES.items():
        cpu_started = time.process_time()
        times = measure(worker, arrived, there, back, given.rounds, given.pause)
        cpu = (time.process_time() - cpu_started) * 1000 / given.rounds
        print(
            f"{name:16} {np.median(times):10.2f} {np.percentile(times, 95):9.2f} {cpu:8.2f}",
            flush=True,
        )
    owner.stdin.close()
    print(f"CPU of the owner in all: {float(owner.stdout.readline()):.2f} s")
    os._exit(0)


if __name__ == "__main__":
    serve() if sys.argv[1:] == ["serve"] else main()
