"""The rows of a group with the highest show, found in one pass in the order of their hashes."""

import numpy as np
from numpy.typing import NDArray

from tnctl.serving.rows.export_document import Threshold

SPARE = 1 << 18  # rows beyond the top ones that are collected before the others are dropped


class TopRows:
    """Collects the shows and hashes of a group's rows, and keeps the top ones."""

    def __init__(self, top: int) -> None:
        self._top, self._rows = top, 0
        self._parts: list[tuple[NDArray[np.float64], NDArray[np.uint64]]] = []
        self._waiting = 0

    def add(self, shows: NDArray[np.float64], hashes: NDArray[np.uint64]) -> None:
        """Add rows [n], whose hashes are above those of all earlier ones."""
        self._parts.append((shows, hashes))
        self._rows += len(shows)
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

    def _drop(self) -> None:
        """Keep only the top rows; of equal shows those with the lowest hashes."""
        shows, hashes = (np.concatenate(arrays) for arrays in zip(*self._parts, strict=True))
        if len(shows) > self._top:
            least = np.partition(shows, len(shows) - self._top)[len(shows) - self._top]
            kept = shows > least
            kept[np.flatnonzero(shows == least)[: self._top - int(kept.sum())]] = True
            shows, hashes = shows[kept], hashes[kept]
        self._parts, self._waiting = [(shows, hashes)], len(shows)
