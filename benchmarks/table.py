"""The sparse table alone: ids/s of find, gather, accumulate and apply; bytes per key.

W1's layout: 26 groups, a row has a linear weight and 8 factors, both with row-wise AdaGrad; a
batch is 4096 examples with one id per slot, all of them already in a table of 10 million keys.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks import timing
from benchmarks.workload import DIM, KEYS, NUMERIC, SLOTS, keys_of, load, slot_sizes
from tnctl.tables import (
    InitialWeights,
    Pool,
    RowOptimizer,
    Segment,
    SlotPlan,
    SparseTable,
    Workspace,
    aligned,
)

BATCH_SIZE = 4096
CELLS = BATCH_SIZE * SLOTS
BATCHES = 64
MILLION = 1_000_000
WEIGHTS_AND_STATE = 4 * (DIM + 1 + 2)  # one accumulator for the embedding, one for linear


@dataclass(frozen=True)
class Filling:
    """Keys per second, and after each chunk (rows, reserved bytes); what the process grew by."""

    rate: float
    sizes: list[tuple[int, int]]
    resident: int


def new_table(threads: int) -> SparseTable:
    rule = RowOptimizer("adagrad", learning_rate=0.05)
    segments = [Segment("linear", 1, "sum", rule), Segment("embedding", DIM, "concat", rule)]
    table = SparseTable(segments, seed=1, pool=Pool(threads))
    for group in range(SLOTS):
        initial = [InitialWeights("zeros", 0.0), InitialWeights("uniform", 0.01)]
        table.add_group(group, f"slot{group}", initial)
    return table


def new_batch(table: SparseTable) -> Workspace:
    return Workspace(table, [SlotPlan(slot, "sum", slot * DIM) for slot in range(SLOTS)])


def fill(table: SparseTable, sizes: NDArray[np.int64]) -> Filling:
    """Insert the first sizes[slot] keys of every slot, all slots mixed."""
    ids = np.concatenate([keys_of(slot, np.arange(size)) for slot, size in enumerate(sizes)])
    groups = np.repeat(np.arange(SLOTS), sizes)
    order = np.random.default_rng(2).permutation(len(ids))
    batch, readings, seconds, resident_before = new_batch(table), [], 0.0, resident()
    for first in range(0, len(ids), CELLS):
        chosen = order[first : first + CELLS]
        chosen = chosen[np.argsort(groups[chosen], kind="stable")]
        # one example, whose 26 cells hold as many ids as fell to their groups
        ends = np.cumsum(np.bincount(groups[chosen], minlength=SLOTS))
        offsets = np.concatenate([[0], ends]).astype(np.uint32)
        part = ids[chosen]
        start = time.perf_counter()
        batch.find(part, offsets, 1, insert=True)
        seconds += time.perf_counter() - start
        readings.append((table.rows, table.index_bytes + table.row_bytes))
    if table.rows != len(ids):
        raise AssertionError(f"{table.rows:,} rows after inserting {len(ids):,} keys")
    return Filling(len(ids) / seconds, readings, resident() - resident_before)


def resident() -> int:
    """Bytes of memory that this process occupies (Linux; elsewhere 0)."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
    except FileNotFoundError:
        return 0


def make_step(table: SparseTable, ids: NDArray[np.uint64]) -> Callable[[int], None]:
    """The sparse part of a training step, over batches of ids [n, examples, slots]."""
    batch, (count, examples, slots) = new_batch(table), ids.shape
    flat = ids.reshape(count, -1)
    offsets = np.arange(examples * slots + 1, dtype=np.uint32)
    # as wide as the training step's x, where the numeric features stand beside the embeddings
    widths = (1, slots * DIM + NUMERIC)
    outputs = [aligned((examples, width)) for width in widths]
    gradients = [aligned((examples, width)) for width in widths]
    for gradient in gradients:
        gradient[:] = np.random.default_rng(1).standard_normal(gradient.shape) * 0.01

    def step(i: int) -> None:
        batch.find(flat[i % count], offsets, examples, insert=True)
        batch.gather(outputs)
        batch.accumulate(gradients)
        batch.apply()

    return step


def measure_memory(keys: int) -> list[list[str]]:
    """Rows of a table: bytes per key beyond weights and state while it grows to `keys`."""
    filling = fill(new_table(2), slot_sizes() * (keys // KEYS))
    beyond = [(rows, size / rows - WEIGHTS_AND_STATE) for rows, size in filling.sizes]
    counted = [size for rows, size in beyond if rows >= MILLION]
    grown = filling.resident / keys - WEIGHTS_AND_STATE
    return [
        ["bytes per key beyond weights and state", ""],
        [f"mean of 1-{keys // MILLION} M keys", f"{statistics.mean(counted):.1f}"],
        ["least", f"{min(counted):.1f}"],
        ["most", f"{max(counted):.1f}"],
        [f"at {keys // MILLION} M keys", f"{beyond[-1][1]:.1f}"],
        [f"at {keys // MILLION} M keys, by resident memory", f"{grown:.1f}"],
        ["keys/s inserted, 2 threads", f"{filling.rate:,.0f}"],
    ]


def zipf_batches() -> NDArray[np.uint64]:
    return load().ids[: BATCHES * BATCH_SIZE].reshape(BATCHES, BATCH_SIZE, SLOTS)


def uniform_batches(sizes: NDArray[np.int64]) -> NDArray[np.uint64]:
    rng, shape = np.random.default_rng(3), (BATCHES, BATCH_SIZE)
    columns = [keys_of(slot, rng.integers(0, size, shape)) for slot, size in enumerate(sizes)]
    return np.stack(columns, axis=2)


def measure_speed(
    sizes: NDArray[np.int64], ids: NDArray[np.uint64], rounds: int
) -> timing.Comparison:
    steps = {}
    for threads in (1, 2):
        table = new_table(threads)
        fill(table, sizes)
        steps["1 thread" if threads == 1 else f"{threads} threads"] = make_step(table, ids)
    return timing.compare(steps, CELLS, rounds, warm_up=BATCHES)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the sparse table.")
    parser.add_argument("--full", action="store_true", help="memory up to 20 M keys, not 10 M")
    parser.add_argument("--rounds", type=int, default=20, help="rounds per distribution")
    given = parser.parse_args()
    memory = measure_memory(2 * KEYS if given.full else KEYS)
    # uniform over all keys: groups of equal size, so that every cell meets a cold row
    equal = np.full(SLOTS, KEYS // SLOTS)
    comparisons = {
        "Zipf": measure_speed(slot_sizes(), zipf_batches(), given.rounds),
        "uniform": measure_speed(equal, uniform_batches(equal), given.rounds),
    }
    timing.show("find + gather + push", "ids", comparisons)
    print()
    print(timing.table(memory))


if __name__ == "__main__":
    main()
