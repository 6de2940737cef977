"""What a step of `tnctl train` takes in one process, timed from within."""

import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import wraps
from pathlib import Path
from typing import Any
from unittest import mock

FIRST_SHARE = 0.3  # of the steps, which are left out
FEWEST_STEPS = 8


class StepTimes:
    """Seconds of each local step: of all, of the step itself, its parameters and its figures."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.rows: list[dict[str, float]] = []
        self.walls: list[float] = []
        self._spent: Counter[str] = Counter()
        self._ended: tuple[float, float] | None = None

    def measured(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        @wraps(function)
        def run(*arguments: Any, **named: Any) -> Any:
            if name == "step":
                self._end()
            started = self._clock()
            value = function(*arguments, **named)
            self._spent[name] += self._clock() - started
            return value

        return run

    def _end(self) -> None:
        """A step begins, so the one before it has ended."""
        now = self._clock(), time.perf_counter()
        if self._ended is not None:
            self.rows.append({**self._spent, "all": now[0] - self._ended[0]})
            self.walls.append(now[1] - self._ended[1])
        self._ended, self._spent = now, Counter()

    def summary(self) -> dict[str, float]:
        """Medians without the first steps; the spread is the standard deviation, of the median."""
        first = int(len(self.rows) * FIRST_SHARE)
        rows, walls = self.rows[first:], self.walls[first:]
        if len(rows) < FEWEST_STEPS:
            sys.exit("too few steps: use more --rows or a smaller --batch")
        median = {
            name: statistics.median(row.get(name, 0.0) for row in rows)
            for name in ("all", "step", "parameters", "figures")
        }
        low, middle, high = statistics.quantiles(walls, n=4)
        return {
            "seconds": median["all"],
            "compute": median["step"] - median["parameters"],
            "parameters": median["parameters"],
            "figures": median["figures"],
            "rest": max(median["all"] - median["step"] - median["figures"], 0.0),
            "spread": (high - low) / 1.349 / middle,  # of a normal distribution
            "steps": float(len(rows)),
        }


def local_step(conf_file: Path, output: str, batch: int, cpus: Sequence[int]) -> dict[str, float]:
    """Train a conf in this process, and return what a step takes."""
    from tnctl.cli import compose
    from tnctl.model.parameters import LocalParameters
    from tnctl.schema import Conf
    from tnctl.training.pass_sums import PassSums
    from tnctl.training.step import TrainingStep
    from tnctl.training.training_run import train

    times = StepTimes(time.process_time if len(cpus) == 1 else time.perf_counter)
    calls: list[tuple[Any, str, str]] = [
        (TrainingStep, "__call__", "step"),
        (LocalParameters, "pull", "parameters"),
        (LocalParameters, "push", "parameters"),
        (PassSums, "add", "figures"),
    ]

    def run(conf: Conf) -> int:
        train(conf, overwrite=True, golden=0)
        return 0

    with ExitStack() as stack:
        for holder, name, part in calls:
            call = times.measured(getattr(holder, name), part)
            stack.enter_context(mock.patch.object(holder, name, call))
        compose.with_conf(conf_file, [f"output={output}", f"train.batch_size={batch}"], run)
    return times.summary()
