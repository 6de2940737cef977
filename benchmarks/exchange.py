"""An exchange of rows between a worker and an owner in one process, beside the calls of one table.

W1's layout (benchmarks/table.py): a table of 1 million keys, rows of 9 weights, batches of 106,496
ids, 500 distinct ones in each of 26 slots. Each call's median over `--rounds` batches, in turns
with the local calls; sending is not a part of it.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from benchmarks import timing
from benchmarks.table import BATCH_SIZE, fill, new_table
from benchmarks.workload import DIM, NUMERIC, SLOTS, keys_of
from tnctl.tables import KeyWorkspace, PullWorkspace, RankKeys, SlotPlan, Workspace, aligned

PLANS = [SlotPlan(slot, "sum", slot * DIM) for slot in range(SLOTS)]
WIDTHS = (1, SLOTS * DIM + NUMERIC)
SIZES = np.full(SLOTS, 1_000_000 // SLOTS)
BATCHES, DISTINCT = 32, 500


def make_batches() -> NDArray[np.uint64]:
    """Ids uint64 [BATCHES, BATCH_SIZE * SLOTS]; each batch has other keys."""
    rng = np.random.default_rng(3)
    ids = np.empty((BATCHES, BATCH_SIZE, SLOTS), np.uint64)
    for batch in ids:
        for slot, size in enumerate(SIZES):
            ranks = rng.choice(size, DISTINCT, replace=False)
            batch[:, slot] = keys_of(slot, rng.choice(ranks, BATCH_SIZE))
    return ids.reshape(BATCHES, -1)


class Stopwatch:
    """Milliseconds of each named call, a list of them each."""

    def __init__(self) -> None:
        self.times: dict[str, list[float]] = {}

    def __call__(self, name: str, call: Callable[[], object]) -> None:
        start = time.perf_counter()
        call()
        self.times.setdefault(name, []).append(1e3 * (time.perf_counter() - start))


class Exchanging:
    """A worker of `peers` owners, all of whose shards one table has; messages reuse memory."""

    def __init__(self, threads: int, peers: int) -> None:
        self.table = new_table(threads)
        fill(self.table, SIZES)
        self.worker, self.pull = KeyWorkspace(self.table, PLANS), PullWorkspace(self.table)
        self.first_shards = [64 * peer // peers for peer in range(peers + 1)]
        most = BATCH_SIZE * SLOTS
        self.ids, self.groups = np.empty(most, np.uint64), np.empty(most, np.uint16)
        self.occurrences, self.waits = np.empty(most, np.uint32), np.empty(most, np.uint32)
        self.rows, self.sums = (
            np.empty((most, DIM + 1), np.float32),
            np.empty((most, DIM + 1), np.float32),
        )

    def step(
        self,
        stopwatch: Stopwatch,
        ids: NDArray[np.uint64],
        offsets: NDArray[np.uint32],
        outputs: list[NDArray[np.float32]],
        gradients: list[NDArray[np.float32]],
    ) -> int:
        """One step; returns how many keys there were."""
        worker, pull = self.worker, self.pull
        ends = [0]

        def keys() -> None:
            counts = worker.number_keys(ids, offsets, BATCH_SIZE, self.first_shards)
            for peer, n in enumerate(counts):
                part = slice(ends[-1], ends[-1] + n)
                worker.write_keys(peer, self.ids[part], self.groups[part], self.occurrences[part])
                ends.append(part.stop)

        def answer() -> None:
            part = slice(0, ends[-1])
            pull.find([RankKeys(self.ids[part], self.groups[part], self.occurrences[part])], True)
            pull.read(0, self.rows[part])
            pull.write_waits(0, self.waits[part])

        def gather() -> None:
            parts = [slice(*ends[peer : peer + 2]) for peer in range(len(ends) - 1)]
            waits = [self.waits[part] for part in parts]
            worker.set_rows([self.rows[part] for part in parts], waits)
            worker.gather(outputs)

        def accumulate() -> None:
            worker.accumulate(gradients)
            for peer in range(len(ends) - 1):
                worker.write_sums(peer, self.sums[ends[peer] : ends[peer + 1]])

        def apply() -> None:
            pull.push_sums(0, self.sums[: ends[-1]])
            pull.apply()

        stopwatch("worker  number_keys, write_keys", keys)
        stopwatch("owner   find, read, write_waits", answer)
        stopwatch("worker  set_rows, gather", gather)
        stopwatch("worker  accumulate, write_sums", accumulate)
        stopwatch("owner   push_sums, apply", apply)
        return ends[-1]


def measure(threads: int, peers: int, rounds: int) -> None:
    flat = make_batches()
    offsets = np.arange(flat.shape[1] + 1, dtype=np.uint32)
    outputs = [aligned((BATCH_SIZE, width)) for width in WIDTHS]
    gradients = [aligned((BATCH_SIZE, width)) for width in WIDTHS]
    for gradient in gradients:
        gradient[:] = np.random.default_rng(1).standard_normal(gradient.shape) * 0.01
    table, exchanging = new_table(threads), Exchanging(threads, peers)
    fill(table, SIZES)
    local = Workspace(table, PLANS)
    stopwatch, keys = Stopwatch(), 0
    for i in range(rounds + 8):
        if i == 8:
            stopwatch = Stopwatch()  # the first rounds insert rows and take memory
        ids = flat[i % len(flat)]
        stopwatch("local   find", lambda ids=ids: local.find(ids, offsets, BATCH_SIZE, True))
        stopwatch("local   gather", lambda: local.gather(outputs))
        stopwatch("local   accumulate", lambda: local.accumulate(gradients))
        stopwatch("local   apply", local.apply)
        keys = exchanging.step(stopwatch, ids, offsets, outputs, gradients)
    medians = {name: statistics.median(times) for name, times in stopwatch.times.items()}
    print(f"\n{threads} threads, {peers} peers, {flat.shape[1]:,} ids, {keys:,} keys")
    print(timing.table([["call", "ms"], *([n, f"{ms:.3f}"] for n, ms in medians.items())]))
    for side in ("local", "worker", "owner"):
        milliseconds = sum(ms for name, ms in medians.items() if name.startswith(side))
        print(f"{side}: {milliseconds:.3f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure an exchange of rows.")
    parser.add_argument("--rounds", type=int, default=128)
    rounds = parser.parse_args().rounds
    print(timing.machine())
    for threads, peers in ((1, 1), (2, 1), (2, 3)):
        measure(threads, peers, rounds)


if __name__ == "__main__":
    main()
