"""Histograms: how many numbers fall between powers of two."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

EXPONENTS = 2200  # all of float64's, from -1074 on
LEAST = -1100
DRAWN = 14


class Histogram:
    """Counts of numbers from 0 on: zero by itself, then [2^k, 2^(k+1)) for every k."""

    def __init__(self) -> None:
        self.zeros = 0
        self._counts = np.zeros(EXPONENTS, np.int64)

    def add(self, values: NDArray[np.float64]) -> None:
        """Count values, float64 [n]; negative ones and those that are not finite are left out."""
        above = values[np.isfinite(values) & (values > 0)]
        self.zeros += int((values == 0).sum())
        exponents = np.frexp(above)[1].astype(np.int64) - 1 - LEAST
        self._counts += np.bincount(exponents, minlength=EXPONENTS)

    def bins(self) -> list[tuple[float, float, int]]:
        """(from, below, count), ascending, without gaps; zero is the bin from 0 below 0."""
        zero = [(0.0, 0.0, self.zeros)] if self.zeros else []
        filled = np.flatnonzero(self._counts)
        if not len(filled):
            return zero
        low, counts = int(filled[0]), self._counts[filled[0] : filled[-1] + 1].tolist()
        edges = [2.0 ** (place + LEAST) for place in range(low, low + len(counts))]
        return zero + [(edge, 2 * edge, count) for edge, count in zip(edges, counts, strict=True)]

    def to_json(self) -> list[dict[str, Any]]:
        """The bins that have something in them."""
        return [
            {"from": low, "below": high, "rows": count} for low, high, count in self.bins() if count
        ]


def drawn(bins: list[tuple[float, float, int]]) -> list[tuple[float, float, int]]:
    """At most 14 bins: the lowest above zero become one."""
    zero = [entry for entry in bins if entry[1] == 0]
    rest = bins[len(zero) :]
    surplus = len(zero) + len(rest) - DRAWN
    if surplus <= 0:
        return bins
    lowest, rest = rest[: surplus + 1], rest[surplus + 1 :]
    joined = (lowest[0][0], lowest[-1][1], sum(count for _, _, count in lowest))
    return [*zero, joined, *rest]
