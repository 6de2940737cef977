"""What a message between two processes costs: CPU of both, and how long nobody computes.

    python -m benchmarks.cluster_transport CPU CPU

Round trips of requests as in streams.py, each process on one CPU, of equal sizes there and back;
and small requests to all of several peers at a time, which are in one process. The answer has the
CPU time of the process that answers. The result is a line of JSON, in seconds.
"""

import json
import os
import secrets
import statistics
import subprocess
import sys
import time

import numpy as np

from benchmarks.streams import Worker
from tnctl.cluster.transport.frames import Kind

SIZES = (1024, 1 << 17, 1 << 19, 1 << 21)
PEERS = 8
BLOCKS, IN_A_BLOCK = 6, 12
FIRST = 2  # of a block, which are left out
PAUSE = 0.002  # seconds, for a step computes between two messages


class TimedOwner(Worker):
    """Answers with as many bytes as it is asked for, which begin with its CPU time."""

    def read(self, _, body):
        size = int.from_bytes(body[:8], "little")
        self.content[:8].view(np.float64)[0] = time.process_time()
        return self.content[:size].data


def serve(cpu: int) -> None:
    """Answer until the end of the standard input, whose first line is the token."""
    os.sched_setaffinity(0, {cpu})
    token = sys.stdin.readline().strip()
    owners = [TimedOwner(rank, token, PEERS + 1) for rank in range(PEERS)]
    print(*(owner.endpoint.port for owner in owners), flush=True)
    sys.stdin.read()
    os._exit(0)


def round_trips(worker, size: int, peers: int) -> list[tuple[float, float, float]]:
    """Seconds of requests to so many peers at a time: by the clock, CPU here, CPU of the peers."""
    body = np.zeros(size, np.uint8)
    body[:8] = np.frombuffer(size.to_bytes(8, "little"), np.uint8)
    trips, clock, used, answered = [], 0.0, time.process_time(), 0.0
    for _ in range(IN_A_BLOCK):
        time.sleep(PAUSE)
        started = time.perf_counter()
        futures = [worker.node.request(peer, Kind.READ, body.data) for peer in range(peers)]
        replies = [future.result() for future in futures]
        clock = time.perf_counter() - started
        earlier, used = used, time.process_time()
        was_answered = answered
        answered = max(float(np.frombuffer(reply, np.float64, 1)[0]) for reply in replies)
        trips.append((clock, used - earlier, answered - was_answered))
    return trips[FIRST:]


def measure(worker) -> list[dict[str, float]]:
    """Medians for each size and number of peers, whose blocks take turns."""
    kinds = [*((size, 1) for size in SIZES), (SIZES[0], PEERS)]
    trips = {kind: [] for kind in kinds}
    for _ in range(BLOCKS):
        for kind in kinds:
            trips[kind] += round_trips(worker, *kind)
    return [
        {
            "peers": peers,
            "bytes": 2 * size * peers,
            "seconds": statistics.median(clock for clock, _, _ in of_kind),
            "cpu": statistics.median((asking + answering) / 2 for _, asking, answering in of_kind),
        }
        for (size, peers), of_kind in trips.items()
    ]


def main() -> None:
    cpu, cpu_of_owners = map(int, sys.argv[1:])
    os.sched_setaffinity(0, {cpu})
    token = secrets.token_urlsafe(32)
    owners = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.cluster_transport", "serve", str(cpu_of_owners)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    owners.stdin.write(token + "\n")
    owners.stdin.flush()
    worker = Worker(PEERS, token, PEERS + 1)
    for rank, port in enumerate(owners.stdout.readline().split()):
        worker.connected.clear()
        worker.endpoint.connect(rank, f"127.0.0.1:{port}")
        worker.connected.wait()
    print(json.dumps(measure(worker)), flush=True)
    owners.stdin.close()
    owners.wait()
    os._exit(0)


if __name__ == "__main__":
    serve(int(sys.argv[2])) if sys.argv[1] == "serve" else main()
