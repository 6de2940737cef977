"""Compare step functions in one process, in turns, and say how sure the ratios are.

A machine's speed drifts and other processes come and go, so contenders take turns of half a
second: what disturbs one disturbs its neighbour, and ratios are taken within a round.
"""

import math
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

Step = Callable[[int], object]
NAMED = ("numpy", "tensorflow", "keras", "tnctl")


@dataclass(frozen=True)
class Interval:
    """A median and the bounds that hold it with 95 % confidence."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Comparison:
    """Units per second of each contender in each round, and cores that others used per round."""

    units: int
    rates: dict[str, list[float]]
    others: list[float]

    def rate(self, name: str) -> float:
        return statistics.median(self.rates[name])

    def ratio(self, name: str, base: str) -> Interval:
        """How fast `name` is as a multiple of `base`."""
        pairs = zip(self.rates[name], self.rates[base], strict=True)
        return interval_of_median([a / b for a, b in pairs])


def interval_of_median(values: Sequence[float]) -> Interval:
    """The median, between the order statistics that enclose it in 95 % of samples."""
    ordered, n = sorted(values), len(values)
    below, tail = 0, 0.5**n  # tail: the chance that at most `below` values lie under the median
    while tail <= 0.025:
        below += 1
        tail += math.comb(n, below) * 0.5**n
    outer = max(below - 1, 0)
    return Interval(statistics.median(ordered), ordered[outer], ordered[n - 1 - outer])


def compare(
    steps: Mapping[str, Step], units: int, rounds: int = 20, seconds: float = 0.5, warm_up: int = 8
) -> Comparison:
    """Run the contenders in turns; a step works on `units` samples (or ids) and returns when done.

    Each round gives every contender one block of about `seconds`, in an order that reverses from
    round to round. Step functions are called with 0, 1, 2, ... each.
    """
    counts = dict.fromkeys(steps, 0)

    def run(name: str) -> None:
        steps[name](counts[name])
        counts[name] += 1

    for name in steps:
        for _ in range(warm_up):
            run(name)
    rates: dict[str, list[float]] = {name: [] for name in steps}
    others = []
    for number in range(rounds):
        start, used = time.perf_counter(), cpu_of_others()
        for name in list(steps)[:: -1 if number % 2 else 1]:
            run(name)  # refills the caches after the other's turn
            first, begin = counts[name], time.perf_counter()
            while (passed := time.perf_counter() - begin) < seconds:
                run(name)
            rates[name].append((counts[name] - first) * units / passed)
        # clocks tick in 10 ms, so an idle machine can come out slightly below 0
        others.append(max(0.0, (cpu_of_others() - used) / (time.perf_counter() - start)))
    return Comparison(units, rates, others)


def cpu_of_others() -> float:
    """Seconds of CPU that all other processes have used, stolen time included (Linux, else NaN)."""
    try:
        fields = Path("/proc/stat").read_text().split(maxsplit=9)[1:9]
    except FileNotFoundError:
        return math.nan
    user, nice, system, _, _, irq, softirq, steal = map(int, fields)
    ticks = user + nice + system + irq + softirq + steal
    return ticks / os.sysconf("SC_CLK_TCK") - time.process_time()


def machine() -> str:
    """Two lines: the processor; the versions of what is imported."""
    model = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line for line in lines if line.startswith("model name")).split(": ", 1)[1]
    except (FileNotFoundError, StopIteration):
        pass
    named = [f"{name} {sys.modules[name].__version__}" for name in NAMED if name in sys.modules]
    versions = ", ".join([f"Python {platform.python_version()}", *named])
    return f"{model}, {os.cpu_count()} cores\n{versions}"


def table(rows: Sequence[Sequence[str]]) -> str:
    """Aligned text: the first row is the heading, the first column words, the others numbers."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        numbers = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join([row[0].ljust(widths[0]), *numbers]).rstrip())
    return "\n".join(lines)


def show(title: str, unit: str, comparisons: Mapping[str, Comparison]) -> None:
    """Print one table; a comparison's first contender is the base of its ratios."""
    rows = [[title, f"{unit}/s", "ms/step", "of base", "95 % interval"]]
    for heading, comparison in comparisons.items():
        base = next(iter(comparison.rates))
        for name in comparison.rates:
            rate, ratio = comparison.rate(name), comparison.ratio(name, base)
            row = [f"{heading}  {name}", f"{rate:,.0f}", f"{1e3 * comparison.units / rate:.2f}"]
            if name == base:
                row += ["base", ""]
            else:
                row += [f"{ratio.median:.1%}", f"{ratio.low:.1%} - {ratio.high:.1%}"]
            rows.append(row)
    print(machine())
    print(table(rows))
    for heading, comparison in comparisons.items():
        mean, worst = statistics.mean(comparison.others), max(comparison.others)
        print(
            f"{heading}  {len(comparison.others)} rounds; "
            f"other processes used {mean:.2f} cores (worst round {worst:.2f})"
        )
