"""The payload of a row: its floats as dictionaries and Redis hold them, in three precisions.

docs/formats/dictionary.md describes the bytes. Embeddings may be stored with fewer bits; the linear
weight and the counts always are float32.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from tnctl.documents import Finite
from tnctl.errors import Failure
from tnctl.model.layout import EMBEDDING, LINEAR
from tnctl.serving.artefact_document import document
from tnctl.tables.records import CVM_COLUMNS

# Arrays: of floats float32, of ids or hashes uint64, of stored rows uint8 [n, stride].
Records = NDArray[Any]  # of record_dtype, or of the record dtype of a table
Arrays = dict[str, NDArray[Any]]
Floats = NDArray[np.float32]
Bools = NDArray[np.bool_]
Uint64s = NDArray[np.uint64]
Payloads = NDArray[np.uint8]
LookedUp = tuple[Floats, Bools]  # rows [n, columns], zeros where unknown, and which are known

Precision = Literal["float32", "float16", "int8"]
PRECISIONS: tuple[Precision, ...] = ("float32", "float16", "int8")
COUNTS, SCALE = "counts", "scale"
WEIGHT = {name: np.dtype(kind) for name, kind in zip(PRECISIONS, ("<f4", "<f2", "i1"), strict=True)}
STEPS = np.float32(127)  # of int8, on either side of 0


NotNegative = Annotated[Finite, Field(ge=0)]
QUOTIENT = 1 + 2.0**-13  # what float32 adds to a bound on quotients up to 127


@dataclass(frozen=True)
class RowShape:
    """What the rows of a group are: `columns` floats, stored as `stride` bytes."""

    linear: bool
    width: int
    cvm: bool
    precision: Precision = "float32"

    @property
    def counts(self) -> int:
        """Floats after the embedding that are not trained: show and click."""
        return CVM_COLUMNS if self.cvm else 0

    @property
    def columns(self) -> int:
        """The floats of a row: linear, embedding, counts."""
        return int(self.linear) + self.width + self.counts

    @property
    def scaled(self) -> bool:
        """Whether a row has a scale."""
        return self.precision == "int8" and self.width > 0

    @property
    def stride(self) -> int:
        """The bytes of a payload, a multiple of 4."""
        floats = int(self.linear) + self.counts + int(self.scaled)
        return 4 * floats + (self.width * WEIGHT[self.precision].itemsize + 3) // 4 * 4

    @cached_property
    def payload(self) -> np.dtype[Any]:
        """The fields of a payload in their order, `stride` bytes in all.

        In float32 the counts are the last floats of the embedding: a row is stored as it is.
        """
        exact = self.precision == "float32"
        fields: list[Any] = [(LINEAR, "<f4")] * self.linear
        fields += [(COUNTS, "<f4", (self.counts,))] * (self.cvm and not exact)
        fields += [(SCALE, "<f4")] * self.scaled
        if self.width:
            floats = self.width + (self.counts if exact else 0)
            fields.append((EMBEDDING, WEIGHT[self.precision], (floats,)))
        padding = ("padding", f"V{self.stride - np.dtype(fields).itemsize}")
        return np.dtype([*fields, padding])[[name for name, *_ in fields]]


def encode(rows: Floats, shape: RowShape) -> Payloads:
    """The payloads u1 [n, stride] of rows f4 [n, columns].

    Raises Failure for a weight that the precision cannot hold.
    """
    if shape.precision == "float32":
        return np.ascontiguousarray(rows, "<f4").view("u1").reshape(len(rows), shape.stride)
    linear, embedding, counts = parted(rows, shape)
    stored = np.zeros(len(rows), shape.payload)
    if shape.linear:
        stored[LINEAR] = linear[:, 0]
    if shape.cvm:
        stored[COUNTS] = counts
    if shape.scaled:
        stored[SCALE], stored[EMBEDDING] = quantized(embedding)
    elif shape.width:
        stored[EMBEDDING] = halves(embedding)
    return stored.view("u1").reshape(len(rows), shape.stride)


def decode(payload: Payloads, shape: RowShape) -> Floats:
    """The rows f4 [n, columns] of payloads u1 [n, stride]."""
    payload = np.ascontiguousarray(payload)
    if shape.precision == "float32" or not shape.columns:
        return payload.view("<f4").reshape(len(payload), shape.columns).astype(np.float32)
    stored = payload.view(shape.payload)[:, 0]
    rows = np.empty((len(payload), shape.columns), np.float32)
    linear, embedding, counts = parted(rows, shape)
    if shape.linear:
        linear[:, 0] = stored[LINEAR]
    if shape.cvm:
        counts[:] = stored[COUNTS]
    if shape.width:
        embedding[:] = stored[EMBEDDING]
    if shape.scaled:
        embedding *= stored[SCALE][:, np.newaxis]
    return rows


def parted(rows: Floats, shape: RowShape) -> tuple[Floats, Floats, Floats]:
    """Views of rows: linear [n, 0 or 1], embedding [n, width], counts [n, 0 or 2]."""
    first, last = int(shape.linear), int(shape.linear) + shape.width
    return rows[:, :first], rows[:, first:last], rows[:, last:]


def halves(embedding: Floats) -> NDArray[np.float16]:
    """Weights float32 [n, width] as float16 [n, width], rounded to the nearest, ties to even.

    Raises Failure for a weight beyond float16.
    """
    with np.errstate(over="ignore"):
        rounded = embedding.astype("<f2")
    if not np.isfinite(rounded).all():
        raise Failure(
            f"a weight of {np.abs(embedding).max():.6g} is beyond float16, whose largest is 65504. "
            "Export with precision=float32 or int8"
        )
    return rounded


def quantized(embedding: Floats) -> tuple[Floats, NDArray[np.int8]]:
    """Scales f4 [n] and steps i1 [n, width]: a weight is its step times its row's scale."""
    scales = np.abs(embedding).max(axis=1, initial=0) / STEPS
    divisors = np.where(scales > 0, scales, np.float32(1))
    steps = np.rint(embedding / divisors[:, np.newaxis])
    return scales, np.clip(steps, -STEPS, STEPS).astype(np.int8)


@document
class PrecisionError:
    """How far the stored embeddings of a group are from the trained ones.

    The largest deviation, the root of the mean square, and what no deviation can exceed.
    """

    max: NotNegative
    rms: NotNegative
    bound: NotNegative


class RoundingError:
    """Collects the errors of the rows of a group.

    `bound` is what no weight can exceed: of int8 half a step of the largest scale, of float16 half
    a unit in the last place of the largest weight.
    """

    def __init__(self, shape: RowShape) -> None:
        self.exact = shape.precision == "float32" or not shape.width
        self._shape = shape
        self._squares, self._count, self._most, self._largest = 0.0, 0, 0.0, 0.0

    def add(
        self,
        rows: Floats,
        removed: Bools | None,
        payload: Payloads,
    ) -> None:
        """Count the errors of rows [n, columns] that are stored as `payload`, uint8 [n, stride].

        `removed` bool [n] says which are none; None: all are rows.
        """
        if self.exact:
            return
        kept = slice(None) if removed is None else ~removed
        trained = parted(rows[kept], self._shape)[1].astype(np.float64)
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


def error_bound_of(errors: Sequence[PrecisionError | None]) -> PrecisionError | None:
    """An upper bound on the error of rows that are mixed in unknown numbers: each largest figure.

    As of a delta over rows in Redis. None when all rows are exact. With known numbers of rows:
    `error_of_rows`.
    """
    known = [error for error in errors if error is not None]
    if not known:
        return None
    return PrecisionError(
        **{key: max(getattr(error, key) for error in known) for key in ("max", "rms", "bound")}
    )


def error_of_rows(stored: Sequence[tuple[PrecisionError | None, int]]) -> PrecisionError | None:
    """The error of all rows of several files: the error of each, and how many rows it has."""
    largest = error_bound_of([error for error, _ in stored])
    if largest is None:
        return None
    known = [(error, rows) for error, rows in stored if error is not None]
    squares = sum(error.rms**2 * rows for error, rows in known)
    return replace(largest, rms=math.sqrt(squares / max(sum(rows for _, rows in known), 1)))
