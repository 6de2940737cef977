"""How far embeddings that are stored in a lower precision are from the trained ones."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tnctl.progress import say
from tnctl.serving.rows.export_document import PrecisionError, RowsManifest
from tnctl.serving.rows.precision import RowShape, decode, parted
from tnctl.serving.rows.selection import Part

QUOTIENT = 1 + 2.0**-13  # what float32 adds to a bound on quotients up to 127


class RoundingError:
    """Collects the errors of the rows of a group.

    `bound` is what no weight can exceed: of int8 half a step of the largest scale, of float16 half
    a unit in the last place of the largest weight.
    """

    def __init__(self, shape: RowShape) -> None:
        self.exact = shape.precision == "float32" or not shape.width
        self._shape = shape
        self._squares, self._count, self._most, self._largest = 0.0, 0, 0.0, 0.0

    def add(self, part: Part, payload: NDArray[np.uint8]) -> None:
        """Count the errors of a part, whose n rows are stored as `payload`, uint8 [n, stride]."""
        if self.exact:
            return
        kept = slice(None) if part.removed is None else ~part.removed
        trained = parted(part.rows[kept], self._shape)[1].astype(np.float64)
        if not trained.size:
            return
        deviations = np.abs(parted(decode(payload[kept], self._shape), self._shape)[1] - trained)
        self._squares += float((deviations * deviations).sum())
        self._count += deviations.size
        self._most = max(self._most, float(deviations.max()))
        self._largest = max(self._largest, float(np.abs(trained).max()))

    def document(self) -> PrecisionError | None:
        """The largest and the root mean square error; None for rows that are exact."""
        if self.exact:
            return None
        if self._shape.precision == "int8":
            bound = self._largest / 127 / 2 * QUOTIENT
        else:
            bound = max(float(np.spacing(np.float16(self._largest))) / 2, 2.0**-25)
        rms = (self._squares / self._count) ** 0.5 if self._count else 0.0
        return PrecisionError(max=self._most, rms=rms, bound=bound)


def largest_errors(errors: Sequence[PrecisionError | None]) -> PrecisionError | None:
    """The largest figures of several errors; None when all rows are exact."""
    known = [error for error in errors if error is not None]
    if not known:
        return None
    return PrecisionError(
        max=max(error.max for error in known),
        rms=max(error.rms for error in known),
        bound=max(error.bound for error in known),
    )


def error_of_chain(
    errors: Sequence[PrecisionError | None], rows: Sequence[int]
) -> PrecisionError | None:
    """The error of all rows that a chain of exports wrote, also of those written again later."""
    known = [(error, n) for error, n in zip(errors, rows, strict=True) if error is not None]
    largest = largest_errors(errors)
    if largest is None:
        return None
    squares = sum(error.rms**2 * n for error, n in known)
    return replace(largest, rms=math.sqrt(squares / max(sum(n for _, n in known), 1)))


def report_errors(content: RowsManifest) -> None:
    """Report how much a lower precision changes the weights."""
    lossy = [(entry, entry.error) for entry in content.groups if entry.error is not None]
    weights = sum(entry.rows * entry.width for entry, _ in lossy)
    if weights:
        worst, error = max(lossy, key=lambda pair: pair[1].max)
        squares = sum(error.rms**2 * entry.rows * entry.width for entry, error in lossy)
        say(
            f"{content.precision}: weights of embeddings are off by at most "
            f"{error.max:.2g} (group {worst.group}), root mean square "
            f"{(squares / weights) ** 0.5:.2g}"
        )
