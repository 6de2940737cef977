"""The training step in float32 and bfloat16: tnctl beside the floor and plain TensorFlow, in turns.

The model is DeepFM on W1, tnctl's own TrainingStep on a table that already has all 10 million
keys. `tnctl` is what a batch costs in training: the batch is an array, as the data layer gives it.
"""

from typing import Any

import numpy as np

from benchmarks import timing
from benchmarks.floor import make_fastest_floor
from benchmarks.tensorflow_by_hand import make_by_hand
from benchmarks.workload import HIDDEN, NUMERIC, SLOTS, Workload, all_keys, load
from tnctl.data.batches import Batch
from tnctl.data.statistics_document import Statistics
from tnctl.model.building import Model, build
from tnctl.schema import Conf, Numeric, Slot, Train
from tnctl.tables import SlotPlan, Workspace
from tnctl.training.step import TrainingStep

PREFILL = 100_000
PRECISIONS = ("float32", "bfloat16")
RATIOS = (
    ("tnctl", "TensorFlow by hand"),
    ("tnctl, bfloat16", "TensorFlow by hand, bfloat16"),
    ("tnctl, bfloat16", "floor, bfloat16"),
    ("tnctl, bfloat16", "tnctl"),
)


def main() -> None:
    workload = load()
    comparisons = {}
    for batch_size in (4096, 1024):
        windows = batches(workload, batch_size)
        steps = {"floor": make_fastest_floor(batch_size)}
        for precision in PRECISIONS:
            kind = "" if precision == "float32" else f", {precision}"
            steps |= {
                f"tnctl{kind}": tnctl_step(windows, batch_size, precision),
                f"TensorFlow by hand{kind}": make_by_hand(
                    workload, batch_size, xla=precision == "float32", precision=precision
                ),
            }
        steps["floor, bfloat16"] = make_fastest_floor(batch_size, "bfloat16")
        comparisons[f"B={batch_size}"] = timing.compare(steps, batch_size, rounds=24)
    timing.show("training step", "samples", comparisons)
    for heading, comparison in comparisons.items():
        for name, base in RATIOS:
            ratio = comparison.ratio(name, base)
            interval = f"{ratio.low:.2f} - {ratio.high:.2f}"
            print(f"{heading}  {name} / {base}: {ratio.median:.2f} ({interval})")


def tnctl_step(windows: list[Batch], batch_size: int, precision: str) -> timing.Step:
    """A training step of tnctl over batches of the workload, on a table with all keys."""
    model = build(conf_of(batch_size, precision=precision), Statistics())
    fill(model)
    step = TrainingStep(model, batch_size)
    return lambda i: step(windows[i % len(windows)])


def conf_of(batch_size: int, **train: Any) -> Conf:
    """DeepFM on W1's 26 slots and 13 numbers."""
    return Conf(
        recipe={"name": "deepfm", "hidden": list(HIDDEN)},
        slots={f"s{i}": Slot(ids="integer") for i in range(SLOTS)},
        numeric={f"n{i}": Numeric() for i in range(NUMERIC)},
        train=Train(batch_size=batch_size, **train),
    )


def fill(model: Model) -> None:
    """Give the table all keys of all slots."""
    [table] = model.tables
    for slot in range(SLOTS):
        batch, keys = Workspace(table, [SlotPlan(slot, "sum", 0)]), all_keys(slot).astype(np.uint64)
        for start in range(0, len(keys), PREFILL):
            ids = keys[start : start + PREFILL]
            batch.find(ids, np.arange(len(ids) + 1, dtype=np.uint32), len(ids), insert=True)


def batches(workload: Workload, batch_size: int) -> list[Batch]:
    """The workload as the data layer hands it over."""
    offsets = np.arange(batch_size * SLOTS + 1, dtype=np.uint32)
    whole = len(workload.labels) // batch_size
    return [
        Batch(
            [np.ascontiguousarray(workload.ids[rows], np.uint64).reshape(-1)],
            [offsets],
            [None],
            workload.numeric[rows],
            workload.labels[rows].reshape(-1, 1),
        )
        for rows in (slice(i * batch_size, (i + 1) * batch_size) for i in range(whole))
    ]


if __name__ == "__main__":
    main()
