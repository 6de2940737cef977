"""Ten days of training whose ids change: memory and AUC with eviction, and without.

On every day 30 % of the ids in use give way to new ones, which are never met before, and the old
ones never come back. Each day's examples are predicted before they are trained on; its AUC is of
these predictions. Every run has a process of its own, so that its resident memory is its own.
"""

import argparse
import gc
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.workload import splitmix64
from tnctl.data.batches import Batch
from tnctl.data.statistics_document import Statistics
from tnctl.model.building import build
from tnctl.schema import Conf, Embedding, Eviction, Life, Slot, Train
from tnctl.tables import StreamingAuc
from tnctl.training import row_life
from tnctl.training.step import TrainingStep

DAYS = 10
NEW = 0.3
SLOTS = 8
BATCH = 1024
DEVIATION = 0.7  # of what an id adds to the logit
BIAS = -1.5
LIVES = {"kept": Life(), "evicted": Life(eviction=Eviction(unseen_days=1))}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--examples", type=int, default=500_000, help="of each day")
    parser.add_argument("--ids", type=int, default=200_000, help="in use on a day, of each slot")
    parser.add_argument("--life", choices=LIVES, help="only this run, as JSON")
    given = parser.parse_args()
    if given.life:
        print(json.dumps(simulate(LIVES[given.life], given.examples, given.ids)))
        return
    results = {name: run(name, given.examples, given.ids) for name in LIVES}
    print(f"{SLOTS} slots of {given.ids:,} ids, {given.examples:,} examples a day, {NEW:.0%} new\n")
    print("day  " + "".join(f"{name:>14}{'MiB':>8}{'AUC':>9}" for name in results))
    for day in range(DAYS):
        cells = [f"{result['rows'][day]:>14,}{result['resident'][day] / 2**20:>8,.0f}"
                 f"{result['auc'][day]:>9.4f}" for result in results.values()]  # fmt: skip
        print(f"{day + 1:<5}" + "".join(cells))
    print()
    for name, result in results.items():
        memory = result["resident"][-1] / result["resident"][2]
        tables = result["tables"][-1] / result["tables"][2]
        print(f"{name:<8} day {DAYS} / day 3: resident {memory:.3f}, tables {tables:.3f}")
    differences = np.subtract(results["evicted"]["auc"], results["kept"]["auc"])
    print(
        f"AUC with eviction - without: {differences[2:].min():+.5f} to {differences[2:].max():+.5f}"
    )


def run(name: str, examples: int, ids: int) -> dict[str, Any]:
    """The figures of a run in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.days", "--life", name]
    command += ["--examples", str(examples), "--ids", str(ids)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def simulate(rules: Life, examples: int, ids: int, threads: int = 0) -> dict[str, list[float]]:
    """Train day after day; figures at each day's end: rows, bytes of tables, resident bytes, AUC.

    The AUC is that of a day's predictions before each was trained on.
    """
    conf = Conf(
        recipe={"name": "deepfm", "hidden": [32]},
        slots={f"s{i}": Slot(ids="integer") for i in range(SLOTS)},
        embedding=Embedding(width=8),
        train=Train(batch_size=BATCH, threads=threads or None),
        life=rules,
    )
    model = build(conf, Statistics())
    step, [table] = TrainingStep(model, BATCH), model.tables
    calendar: list[tuple[int, int]] = []
    figures: dict[str, list[float]] = {"rows": [], "tables": [], "resident": [], "auc": []}
    for day in range(1, DAYS + 1):
        calendar.append((day, step.steps + 1))
        table.set_days(calendar)
        auc = StreamingAuc()
        for number in range(examples // BATCH):
            window = batch_of_day(day, number, ids)
            result = step(window)
            auc.update(
                np.ascontiguousarray(result.logits[:, 0]), np.ascontiguousarray(window.labels[:, 0])
            )
        row_life.end_of_period(model)
        table.take_removed()  # as a checkpoint does
        gc.collect()
        figures["rows"].append(table.rows)
        figures["tables"].append(table.index_bytes + table.row_bytes)
        figures["resident"].append(resident())
        area = auc.result()
        figures["auc"].append(np.nan if area is None else area)
    return figures


def batch_of_day(day: int, number: int, ids: int) -> Batch:
    """Ids by Zipf's law of those in use on a day; labels of what each id adds to the logit."""
    draw = np.random.default_rng([day, number])
    ranks = np.floor(ids ** draw.random((BATCH, SLOTS))).astype(np.int64)
    used = in_use(ranks, day)
    keys = splitmix64(used << np.uint64(4) | np.arange(SLOTS, dtype=np.uint64))
    # The difference of two uniform draws, scaled to deviation 1.
    halves = [(keys >> np.uint64(shift) & np.uint64(2**31 - 1)) / 2.0**31 for shift in (0, 31)]
    logits = BIAS + DEVIATION * 6**0.5 * (halves[0] - halves[1]).sum(axis=1) / SLOTS**0.5
    labels = draw.random(BATCH) < 1 / (1 + np.exp(-logits))
    offsets = np.arange(BATCH * SLOTS + 1, dtype=np.uint32)
    flat = np.ascontiguousarray(keys.reshape(-1))
    numeric = np.empty((BATCH, 0), np.float32)
    return Batch([flat], [offsets], [None], numeric, labels.astype(np.float32)[:, np.newaxis])


def in_use(ranks: NDArray[np.int64], day: int) -> NDArray[np.uint64]:
    """What stands at a rank on a day: what was new there on the last day that it changed.

    Each day's change is a draw of its own, so an id lasts for as long as chance has it.
    """
    since = np.zeros(ranks.shape, np.uint64)
    for number in range(2, day + 1):
        state = ranks.astype(np.uint64) << np.uint64(8) | np.uint64(number)
        changes = splitmix64(state) < np.uint64(int(NEW * 2**64))
        since[changes] = number
    return ranks.astype(np.uint64) << np.uint64(8) | since


def resident() -> int:
    """Bytes of this process in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main()
