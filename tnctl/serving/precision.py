"""The payload of a row: its floats as dictionaries and Redis hold them, in three precisions.

docs/formats/dictionary.md describes the bytes. What is trained and served by rows, an embedding,
may be stored with fewer bits; the linear weight and the counts always are float32.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tnctl.errors import Failure
from tnctl.model.layout import CVM_COLUMNS

Precision = Literal["float32", "float16", "int8"]
PRECISIONS: tuple[Precision, ...] = ("float32", "float16", "int8")
BYTES = {"float32": 4, "float16": 2, "int8": 1}
LARGEST = {"float16": 65504.0}
STEPS = np.float32(127)  # of int8, on either side of 0


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
        return 4 * floats + (self.width * BYTES[self.precision] + 3) // 4 * 4


def encode(rows: NDArray[np.float32], shape: RowShape) -> NDArray[np.uint8]:
    """The payloads u1 [n, stride] of rows f4 [n, columns].

    Raises Failure for a weight that the precision cannot hold.
    """
    linear, embedding, counts = parted(rows, shape)
    if shape.precision == "float32":
        return np.ascontiguousarray(rows, "<f4").view("u1").reshape(len(rows), shape.stride)
    parts = [linear, counts]
    if shape.precision == "float16":
        packed: NDArray[Any] = halves(embedding)
    else:
        scales, packed = quantized(embedding)
        if shape.scaled:
            parts.append(scales[:, np.newaxis])
    out = np.zeros((len(rows), shape.stride), np.uint8)
    floats = np.ascontiguousarray(np.hstack(parts), "<f4")
    at = 4 * floats.shape[1]
    out[:, :at] = floats.view("u1").reshape(len(rows), at)
    raw = shape.width * BYTES[shape.precision]
    out[:, at : at + raw] = np.ascontiguousarray(packed).view("u1").reshape(len(rows), raw)
    return out


def decode(payload: NDArray[np.uint8], shape: RowShape) -> NDArray[np.float32]:
    """The rows f4 [n, columns] of payloads u1 [n, stride]."""
    payload = np.ascontiguousarray(payload)
    if shape.precision == "float32":
        return payload.view("<f4").reshape(len(payload), shape.columns).astype(np.float32)
    floats = int(shape.linear) + shape.counts + int(shape.scaled)
    first = np.ascontiguousarray(payload[:, : 4 * floats]).view("<f4")
    first = first.reshape(len(payload), floats)
    packed = np.ascontiguousarray(
        payload[:, 4 * floats : 4 * floats + shape.width * BYTES[shape.precision]]
    )
    rows = np.empty((len(payload), shape.columns), np.float32)
    linear, embedding, counts = parted(rows, shape)
    linear[:] = first[:, : int(shape.linear)]
    counts[:] = first[:, int(shape.linear) : int(shape.linear) + shape.counts]
    if shape.width:
        if shape.precision == "float16":
            embedding[:] = packed.view("<f2").reshape(len(payload), shape.width)
        else:
            embedding[:] = restored(first[:, -1], packed.view("i1"))
    return rows


def parted(
    rows: NDArray[np.float32], shape: RowShape
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
    """Views of rows: linear [n, 0 or 1], embedding [n, width], counts [n, 0 or 2]."""
    first, last = int(shape.linear), int(shape.linear) + shape.width
    return rows[:, :first], rows[:, first:last], rows[:, last:]


def halves(embedding: NDArray[np.float32]) -> NDArray[np.float16]:
    """Weights as IEEE half floats, rounded to the nearest, ties to even."""
    with np.errstate(over="ignore"):
        found = embedding.astype("<f2")
    if not np.isfinite(found).all():
        worst = np.abs(embedding).max()
        raise Failure(
            f"a weight of {worst:.6g} is beyond float16, whose largest is 65504. "
            "Export with precision=float32 or int8"
        )
    return found


def quantized(embedding: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.int8]]:
    """Scales f4 [n] and steps i1 [n, width]: a weight is its step times its row's scale."""
    scales = np.abs(embedding).max(axis=1, initial=0) / STEPS
    divisors = np.where(scales > 0, scales, np.float32(1))
    steps = np.rint(embedding / divisors[:, np.newaxis])
    return scales, np.clip(steps, -STEPS, STEPS).astype(np.int8)


def restored(scales: NDArray[np.float32], steps: NDArray[np.int8]) -> NDArray[np.float32]:
    """The weights f4 [n, width] of scales and steps."""
    return steps.astype(np.float32) * scales[:, np.newaxis]
