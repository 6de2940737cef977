"""As many rows of a split as fit into memory, chosen by hash in one pass."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from tnctl.data.batches import Batch, taken
from tnctl.tables import columns as c_columns

SALT = 0x626173656C696E65  # "baseline", so that no other draw of the seed is like it
EVERY_HASH = 2**64 - 1


class RowSample:
    """All rows of a split or, if these are too many, those with the lowest hashes.

    The hash is a function of the seed and of a row's number in the split, so how many fit decides
    which rows these are. `parts` are in file order.
    """

    def __init__(
        self, seed: int, budget: float, most: int | None, cost: Callable[[Batch], float]
    ) -> None:
        """`budget` bounds the sum of `cost`, in bytes; `most` the rows."""
        self.parts: list[Batch] = []
        self.rows_seen = 0
        self._start = c_columns.mix64(np.array([seed ^ SALT], np.uint64))
        self._hashes: list[NDArray[np.uint64]] = []
        self._costs: list[float] = []
        self._highest = np.uint64(EVERY_HASH)
        self._budget, self._most, self._cost = budget, most, cost

    @property
    def rows(self) -> int:
        """The rows that are held."""
        return sum(part.rows for part in self.parts)

    def add(self, window: Batch) -> None:
        """The next rows of the split."""
        numbers = np.arange(self.rows_seen, self.rows_seen + window.rows, dtype=np.uint64)
        self.rows_seen += window.rows
        self.parts.append(window)
        self._hashes.append(c_columns.mix64(self._start ^ numbers))
        self._costs.append(self._cost(window))
        self._drop(len(self.parts) - 1)
        # Half at a time, so that rows are copied seldom.
        while self.rows and sum(self._costs) > self._budget:
            self._keep(self.rows // 2)
        if self._most is not None and self.rows > 2 * self._most:
            self._keep(self._most)

    def finish(self) -> None:
        """Hold at most `most` rows, now that there are no more."""
        if self._most is not None and self.rows > self._most:
            self._keep(self._most)

    def _keep(self, rows: int) -> None:
        """Leave out all but the `rows` with the lowest hashes, now and later."""
        hashes = np.sort(np.concatenate(self._hashes))
        # No two numbers have one hash. None is kept below the lowest.
        self._highest = hashes[rows - 1] if rows else hashes[0] - np.uint64(1)
        for place in range(len(self.parts)):
            self._drop(place)

    def _drop(self, place: int) -> None:
        """Leave out the rows of a part whose hash is too high."""
        kept = np.flatnonzero(self._hashes[place] <= self._highest)
        if len(kept) < len(self._hashes[place]):
            self.parts[place] = taken(self.parts[place], kept.astype(np.uint32))
            self._hashes[place] = self._hashes[place][kept]
            self._costs[place] = self._cost(self.parts[place])


def held_bytes(batch: Batch) -> int:
    """The bytes of a batch's arrays."""
    of_tables = (*batch.ids, *batch.offsets, *batch.weights)
    of_rows = (batch.numeric, batch.labels, batch.weight, batch.reference, batch.group)
    return sum(array.nbytes for array in (*of_tables, *of_rows) if array is not None)
