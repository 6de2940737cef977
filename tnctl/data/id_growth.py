"""How many distinct ids there will be at the end of the data, from a sample of its beginning.

Two laws bound it. With D distinct ids among n values of the sample, f1 of them seen once and f2
twice, and m values to come:

- Heaps' law D(n) = K n^b holds if new ids keep appearing as at the end of the sample. Its local
  exponent b falls as ids run out, so it is the upper bound.
- Chao's estimate of the ids not seen yet, f0 = f1^2 / (2 f2), is a lower bound (Chao 1984), and
  D + f0 (1 - (1 - f1 / (n f0 + f1))^m) is the part of it that appears in m more values (Colwell
  et al. 2012, equation 9).

Between them: log D as a parabola of log n, fitted to the last three doublings, until its top.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

DOUBLINGS = 3
# Fewer rows than this at the first of the points say nothing.
FEWEST_ROWS = 8


@dataclass(frozen=True)
class Growth:
    """Distinct ids in the sample and, with bounds, at the end of the data."""

    now: int
    exponent: float  # of Heaps' law at the sample's end: 0 no new ids, 1 every value is new
    end: float
    low: float
    high: float


def growth(
    first_rows: NDArray[np.int64],
    counts: NDArray[np.int64],
    rows: int,
    total: float,
    most: float = math.inf,
) -> Growth:
    """The growth of ids that first came in rows `first_rows`, `counts` times each, of `rows`.

    `first_rows` int64 [ids] counts rows from 0, `counts` is int64 [ids].
    `total` is the rows of all data, `most` how many ids there can be.
    """
    now = len(first_rows)
    further = math.log(max(total / rows, 1))
    if not now or not further:
        return Growth(now, 0.0, now, now, now)
    sizes = [rows >> back for back in range(DOUBLINGS + 1)]
    if sizes[-1] < FEWEST_ROWS:
        return Growth(now, 1.0, now * total / rows, now, min(now * total / rows, most))
    seen = np.searchsorted(np.sort(first_rows), sizes)
    x, y = np.log(sizes), np.log(np.maximum(seen, 1))
    line = np.polyfit(x, y, 1)
    bend, slope = np.polyfit(x - x[0], y, 2)[:2]
    exponent = float(np.clip(max(slope, (y[0] - y[1]) / math.log(2)), 0, 1))
    # Three deviations of the exponent, whose last doubling counts `fresh` ids, and the scatter of
    # the points about Heaps' law: both grow with the distance.
    fresh = float(seen[0] - seen[1])
    scatter = float(np.std(y - np.polyval(line, x)))
    error = 3 * math.sqrt(fresh) / (now * math.log(2)) * further
    error += 2 * scatter * (1 + further / (DOUBLINGS * math.log(2)))
    high = now * math.exp(exponent * further + error)
    low = _chao(now, counts, total / rows) * math.exp(-error)
    slope = float(np.clip(slope, 0, 1))
    top = min(further, -slope / (2 * bend)) if bend < 0 else further
    middle = now * math.exp(slope * top + min(bend, 0) * top**2)
    # Every value of the rows to come can be a new id, and no more.
    high = min(high, now + counts.sum() * (total / rows - 1), most)
    low = min(max(low, now), high)
    return Growth(now, exponent, min(max(middle, low), high), low, high)


def _chao(now: int, counts: NDArray[np.int64], times: float) -> float:
    """The ids when there are `times` as many values, from the lower bound of those to come."""
    once, twice = int((counts == 1).sum()), int((counts == 2).sum())
    if not once:
        return now
    values = int(counts.sum())
    unmet = once * once / (2 * twice) if twice else once * (once - 1) / 2
    if not unmet:
        return now
    share = once / (values * unmet + once)
    return now - unmet * math.expm1(values * (times - 1) * math.log1p(-share))
