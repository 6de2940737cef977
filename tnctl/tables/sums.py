"""Sums over batches and processes: of squares, whoever has which part, and of clicks, for AUC.

The AUC while training is of counts per bin of the logit.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl._tables import ffi, lib
from tnctl.tables.memory import check, items, output, pointer

EXPONENTS = lib.TN_EXACT_WORDS // 2
NORM_CHUNK = lib.TN_NORM_CHUNK
"""Floats whose squares are rounded together: parts of a dense gradient start at a multiple of it.
"""


class ExactSum:
    """A sum of squares before it is rounded. Adding is exact, so its order does not matter.

    `words` are uint64 [EXPONENTS, 2]: for each exponent of a double, as it is stored, the lower and
    the upper half of the integer sum of the mantissas with that exponent.
    """

    def __init__(self) -> None:
        self.words = np.zeros((EXPONENTS, 2), np.uint64)

    def add(self, exponents: Any, words: Any) -> None:
        """Add another sum: exponents uint16 [n] and its words of these, uint64 [n, 2].

        Raises ValueError, with nothing added, for exponents that a double does not have.
        """
        count = memoryview(exponents).nbytes // 2
        check(
            lib.tn_exact_add(
                self.pointer(),
                items(exponents, np.uint16, count),
                items(words, np.uint64, 2 * count),
                count,
            )
        )

    def parts(self) -> tuple[NDArray[np.uint16], NDArray[np.uint64]]:
        """What `add` takes: exponents in ascending order, and their words."""
        exponents = np.flatnonzero(self.words.any(axis=1))
        return exponents.astype(np.uint16), self.words[exponents]

    def total(self) -> float:
        """The sum, rounded as one process rounds it."""
        return float(lib.tn_exact_total(self.pointer()))

    def pointer(self) -> Any:
        """The memory of the words, for C."""
        return ffi.from_buffer("uint64_t[]", self.words, require_writable=True)


def clipping_factor(limit: float, of_tables: Sequence[float], of_dense: float) -> float:
    """The factor that reduces a gradient to a norm of at most `limit`.

    `of_tables` and `of_dense` are the sums of squares of its parts.
    """
    norm = (sum(of_tables) + of_dense) ** 0.5
    return float(limit / norm) if norm > limit else 1.0


BINS = 1 << 16


class StreamingAuc:
    """An AUC that takes a few microseconds per batch and is exact to about 1e-4."""

    def __init__(self) -> None:
        self._clicks = np.zeros(BINS, np.uint64)
        self._others = np.zeros(BINS, np.uint64)

    def update(self, logits: NDArray[np.float32], labels: NDArray[np.float32]) -> None:
        """Count examples: float32 [n] each; a label of at least 0.5 is a click."""
        if len(logits) != len(labels):
            raise ValueError(f"{len(logits)} logits for {len(labels)} labels")
        lib.tn_auc_update(
            pointer(logits, np.float32),
            pointer(labels, np.float32),
            len(logits),
            output(self._clicks),
            output(self._others),
            BINS,
        )

    @property
    def counts(self) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """Clicks and others per bin, uint64 [65536] each: the whole state, to save or to fill."""
        return self._clicks, self._others

    def result(self) -> float | None:
        """The area; None before both classes were seen."""
        clicks, others = pointer(self._clicks, np.uint64), pointer(self._others, np.uint64)
        area = float(lib.tn_auc_result(clicks, others, BINS))
        return None if math.isnan(area) else area
