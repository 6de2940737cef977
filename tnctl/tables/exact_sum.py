"""Sums of squares of several processes, which do not depend on who has which part."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl._tables import ffi, lib
from tnctl.tables.memory import check, items

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
