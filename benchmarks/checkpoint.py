"""Saving and loading a checkpoint beside a plain copy of the same bytes, and what each costs.

The copy reads files that are not in the page cache and writes them to the disk (fsync), a file
after the other, as `cp` and `sync` do. Save and load take turns with it; ratios are within a turn.
What a checkpoint costs training is the time that the same steps take more when one is saved on the
way, standing still and the work of the background together.
"""

import argparse
import os
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks import timing

if TYPE_CHECKING:
    from tnctl.model.building import Model

SLOTS = 26
WIDTH = 8
BATCH_SIZE = 4096
STEPS = 100  # of training, with and without a checkpoint
INSERTED_AT_ONCE = 1 << 17
MIB = 1 << 20


class Peak:
    """The most memory that the process held inside the block, in bytes (Linux)."""

    def __init__(self) -> None:
        self.before = self.most = 0

    @contextmanager
    def watching(self) -> Iterator["Peak"]:
        self.before = self.most = resident()
        ended = threading.Event()

        def watch() -> None:
            while not ended.wait(0.005):
                self.most = max(self.most, resident())

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield self
        finally:
            ended.set()
            thread.join()


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def forget(folder: Path) -> None:
    """Drop a folder's files from the page cache, as far as they are on the disk."""
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def copy(source: Path, target: Path) -> None:
    """A plain copy of a folder, all of it on the disk at the end."""
    for path in sorted(source.rglob("*")):
        if path.is_file():
            to = target / path.relative_to(source)
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, to)
            descriptor = os.open(to, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)


def made(rows: int, folder: Path, compression: str):
    """A model with so many rows of 64 bytes in memory, inserted in random order."""
    from tnctl import schema
    from tnctl.data.statistics_document import Statistics
    from tnctl.model import building
    from tnctl.model.layout import slot_plans
    from tnctl.tables import Workspace

    conf = schema.from_values(
        {
            "output": str(folder),
            "recipe": {"name": "deepfm"},
            "slots": {f"slot{number}": {} for number in range(SLOTS)},
            "embedding": {"width": WIDTH},
            "data": {"train": "none.csv"},
            "save": {"keep": 2, "full_every": 2, "compression": compression},
        }
    )
    model = building.build(conf, Statistics())
    [table], [layout] = model.tables, model.layout.tables
    batch, rng = Workspace(table, slot_plans(conf.slots, layout)), np.random.default_rng(1)
    table.set_step(1)
    for first in range(0, rows, INSERTED_AT_ONCE):
        count = min(INSERTED_AT_ONCE, rows - first)
        ids = rng.integers(0, 2**63, count, dtype=np.uint64)
        ends = np.linspace(0, count, SLOTS + 1).astype(np.uint32)
        batch.find(ids, ends, 1, insert=True)
    return model


def seconds(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def trainer(model) -> Callable[[], None]:
    """Some steps on ids that the table has, or makes in the first call."""
    from tnctl.data.batches import Batch
    from tnctl.training.step import TrainingStep

    rng, step = np.random.default_rng(2), TrainingStep(model, BATCH_SIZE)
    cells = BATCH_SIZE * SLOTS
    windows = [
        Batch(
            [rng.integers(0, 2_000, cells, dtype=np.uint64)],
            [np.arange(cells + 1, dtype=np.uint32)],
            [None],
            np.zeros((BATCH_SIZE, 0), np.float32),
            rng.integers(0, 2, (BATCH_SIZE, 1)).astype(np.float32),
        )
        for _ in range(10)
    ]

    def train() -> None:
        for number in range(STEPS):
            step(windows[number % len(windows)])

    return train


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--compression", default="none")
    parser.add_argument("--folder", help="where to write (default: the temporary folder)")
    given = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with tempfile.TemporaryDirectory(dir=given.folder) as temporary:
        measure(given.rows, given.rounds, given.compression, Path(temporary))


@dataclass
class Figures:
    """What the rounds measured, an entry each: rates in bytes a second, times in seconds."""

    rates: dict[str, list[float]] = field(
        default_factory=lambda: {"copy": [], "save": [], "load": []}
    )
    stalls: list[float] = field(default_factory=list)  # training stands still
    cpu: list[float] = field(default_factory=list)  # of a save
    costs: list[float] = field(default_factory=list)  # what a save adds to training
    # The most bytes beside the model.
    memory: dict[str, int] = field(default_factory=lambda: {"save": 0, "load": 0})


class Checkpoints:
    """Saves a model, each time at the next step, into the folder `run`."""

    def __init__(self, model: "Model", run: Path) -> None:
        from tnctl.checkpoint.saver import Saver

        self.saver, self._model, self._run, self._step = Saver(model.conf, None), model, run, 0

    def save(self) -> Path:
        """Start to save a full checkpoint; its folder."""
        from tnctl.checkpoint.document import Clock, Metrics, Position
        from tnctl.checkpoint.staging import Contents

        self._step += 1
        contents = Contents(
            clock=Clock(self._step),
            position=Position(),
            finished=False,
            golden=[],
            metrics=Metrics(),
        )
        return self._run / self.saver.save(self._model, contents, full=True)

    def save_and_wait(self) -> Path:
        """Save a full checkpoint; its folder, complete."""
        folder = self.save()
        self.saver.wait()
        return folder


def measure(rows: int, rounds: int, compression: str, root: Path) -> None:
    """Save, copy and load in turns, then train with and without a save; print the figures."""
    model = made(rows, root / "run", compression)
    [table] = model.tables
    checkpoints, figures = Checkpoints(model, root / "run"), Figures()
    first = seconds(checkpoints.save_and_wait)
    train = trainer(model)
    train()
    for _ in range(rounds):
        folder = measure_save(checkpoints, figures)
        size = size_of(folder)
        forget(folder)
        figures.rates["copy"].append(size / seconds(partial(copy, folder, root / "copy")))
        shutil.rmtree(root / "copy")
        forget(folder)
        measure_load(model, folder, figures)
        alone = seconds(train)
        figures.costs.append(
            seconds(lambda: (checkpoints.save(), train(), checkpoints.saver.wait())) - alone
        )
    print(timing.machine())
    print(timing.table(rate_lines(figures.rates)))
    print(
        f"{table.rows:,} rows, {size / MIB:,.0f} MiB; training stands still for "
        f"{statistics.median(figures.stalls):.2f} s a save (the first, with the graph: "
        f"{first:.2f} s in all), which takes {statistics.median(figures.cpu):.2f} s of CPU"
    )
    cost = statistics.median(figures.costs)
    print(f"a checkpoint costs training {cost:.2f} s: one each minute leaves {1 - cost / 60:.1%}")
    held = table.index_bytes + table.row_bytes
    print(
        f"memory beside the table's {held / MIB:,.0f} MiB: saving "
        f"{figures.memory['save'] / held:.1%}, loading {figures.memory['load'] / held:.1%}"
    )


def size_of(folder: Path) -> int:
    """The bytes of a folder's files."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def measure_save(checkpoints: Checkpoints, figures: Figures) -> Path:
    """Save once: rate, stall, CPU and memory; the folder of the checkpoint."""
    stalled, worked = checkpoints.saver.seconds_stalled, time.process_time()
    with Peak().watching() as peak:
        started = time.perf_counter()
        folder = checkpoints.save_and_wait()
        took = time.perf_counter() - started
    figures.stalls.append(checkpoints.saver.seconds_stalled - stalled)
    figures.cpu.append(time.process_time() - worked)
    figures.memory["save"] = max(figures.memory["save"], peak.most - peak.before)
    figures.rates["save"].append(size_of(folder) / took)
    return folder


def measure_load(model: "Model", folder: Path, figures: Figures) -> None:
    """Load a checkpoint of the model once: rate and memory."""
    from tnctl.checkpoint import load

    size, checkpoint = size_of(folder), load.open_checkpoint(str(folder))
    with Peak().watching() as peak:
        started = time.perf_counter()
        loaded = load.load(checkpoint, model.conf)
        figures.rates["load"].append(size / (time.perf_counter() - started))
        # What stays is the model.
        most = max(peak.most, resident()) - resident()
    figures.memory["load"] = max(figures.memory["load"], most)
    assert loaded.tables[0].rows == model.tables[0].rows


def rate_lines(rates: dict[str, list[float]]) -> list[list[str]]:
    """The lines of a table: median rates, and their ratios to the copy of the same round."""
    lines = [["", "MiB/s", "of the copy"]]
    for name, of_rounds in rates.items():
        ratios = [rate / base for rate, base in zip(of_rounds, rates["copy"], strict=True)]
        interval = timing.interval_of_median(ratios)
        shown = f"{interval.median:.0%} ({interval.low:.0%} - {interval.high:.0%})"
        median = f"{statistics.median(of_rounds) / MIB:,.0f}"
        lines.append([name, median, "" if name == "copy" else shown])
    return lines


if __name__ == "__main__":
    main()
