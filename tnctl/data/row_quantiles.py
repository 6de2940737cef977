"""Boundaries that give buckets about equal numbers of rows: ids=row_quantiles."""

import numpy as np
from numpy.typing import NDArray

# Up to this many distinct values are counted each; of more, ranges of neighbours are.
RANGES_KEPT = 65_536
SIGN = np.uint64(2**63)


class RowCounts:
    """How many rows have each value; with too many distinct values, how many are in each range.

    A range has the values that differ in the last bits of their float64 alone. No more bits are
    left out than are needed for the ranges of all values to fit. So the ranges and their counts
    are the same in whatever order and parts the values come, and every count is exact.
    """

    def __init__(self) -> None:
        self._keys = np.empty(0, np.uint64)  # of ranges, ascending
        self._counts = np.empty(0, np.int64)
        self._bits = np.uint64(0)  # that are left out

    @property
    def values(self) -> NDArray[np.float64]:
        """The lowest value of each range, ascending float64 [ranges]."""
        keys = self._keys << self._bits
        return np.where(keys & SIGN, keys ^ SIGN, ~keys).view(np.float64)

    def add(self, values: NDArray[np.float64]) -> None:
        """Take in float64 [n], all finite."""
        if not len(values):
            return
        # Adding 0 makes one value of 0 and -0.
        words = (values + 0.0).view(np.uint64)
        # In the order of the numbers: the words of negative ones descend.
        keys = np.where(words & SIGN, ~words, words | SIGN) >> self._bits
        keys, counts = np.unique(keys, return_counts=True)
        self._take(np.concatenate([self._keys, keys]), np.concatenate([self._counts, counts]))
        while len(self._keys) > RANGES_KEPT:
            self._bits += np.uint64(1)
            self._take(self._keys >> np.uint64(1), self._counts)

    def _take(self, keys: NDArray[np.uint64], counts: NDArray[np.int64]) -> None:
        """Add the counts of equal keys."""
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        starts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
        self._keys, self._counts = keys[starts], np.add.reduceat(counts[order], starts)

    def boundaries(self, buckets: int) -> NDArray[np.float64]:
        """Ascending boundaries, float64 [1 to buckets - 1]: the lowest value of each bucket.

        The first bucket needs none, unless there is no other.
        """
        buckets_of_values = shared_out(self._counts, buckets)
        first = np.flatnonzero(np.diff(buckets_of_values)) + 1
        return self.values[first if len(first) else [0]]


def shared_out(counts: NDArray[np.int64], buckets: int) -> NDArray[np.int64]:
    """The bucket of each value, ascending int64 [n] below `buckets`.

    `counts` int64 [n], all above 0, says how many rows have each of the ascending values. Those
    that fill a bucket have it alone; the others share the rest evenly.
    """
    alone = np.zeros(len(counts), bool)
    while True:
        shared = np.where(alone, 0, counts)
        rows, free = int(shared.sum()), buckets - int(alone.sum())
        full = shared * free > rows
        if not full.any():
            break
        alone |= full
    if not rows:
        return np.arange(len(counts))
    rows_below = np.cumsum(shared) - shared
    # Values that are alone cut the others into runs. A run has as many buckets as are nearest to
    # its rows, and a value of it the bucket in which the middle of its own rows is.
    ends = np.concatenate([[0], rows_below[alone], [rows]])
    places = (2 * ends * free + rows) // (2 * rows)
    run = np.cumsum(alone) - alone
    rows_of_run, buckets_of_run = np.diff(ends)[run], np.diff(places)[run]
    middle = 2 * (rows_below - ends[run]) + shared
    within = middle * buckets_of_run // np.maximum(2 * rows_of_run, 1)
    return np.minimum(run + places[run] + within, buckets - 1)
