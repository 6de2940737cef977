"""The rows of a group with the highest show."""

import numpy as np
from numpy.typing import NDArray

from tnctl.serving.rows.export_document import Threshold

SPARE = 1 << 18  # rows beyond the top ones that are collected before the others are dropped


class TopRows:
    """The rows of a group with the highest show, found in one pass in the order of the hashes."""

    def __init__(self, top: int) -> None:
        self._top, self._rows = top, 0  # all rows, also those that were dropped
        self._parts: list[tuple[NDArray[np.float64], NDArray[np.uint64]]] = []
        self._waiting = 0

    def add(
        self, shows: NDArray[np.float64], hashes: NDArray[np.uint64], rows: int | None = None
    ) -> None:
        """Add rows: shows float64 [n], hashes uint64 [n] above all earlier hashes.

        They may be the candidates of so many `rows`.
        """
        self._parts.append((shows, hashes))
        self._rows += len(shows) if rows is None else rows
        self._waiting += len(shows)
        if self._waiting > self._top + max(SPARE, self._top // 4):
            self._drop()

    def threshold(self) -> Threshold | None:
        """The last of the top rows; None when there are no others."""
        if self._rows <= self._top:
            return None
        self._drop()
        [(shows, hashes)] = self._parts
        last = shows.min()
        return Threshold(show=float(last), hash=str(hashes[shows == last].max()))

    @property
    def rows(self) -> int:
        """How many there are, the top ones and the others."""
        return self._rows

    def candidates(self) -> tuple[NDArray[np.float64], NDArray[np.uint64]]:
        """The shows and hashes of those that can be among the top rows, in the order of hashes."""
        if not self._parts:
            return np.empty(0), np.empty(0, np.uint64)
        self._drop()
        [(shows, hashes)] = self._parts
        return shows, hashes

    def _drop(self) -> None:
        """Keep only the top rows; of equal shows those with the lowest hashes."""
        shows, hashes = (np.concatenate(arrays) for arrays in zip(*self._parts, strict=True))
        if len(shows) > self._top:
            least = np.partition(shows, len(shows) - self._top)[len(shows) - self._top]
            kept = shows > least
            kept[np.flatnonzero(shows == least)[: self._top - int(kept.sum())]] = True
            shows, hashes = shows[kept], hashes[kept]
        self._parts, self._waiting = [(shows, hashes)], len(shows)
