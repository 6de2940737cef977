"""Bodies of raw arrays: a struct, then arrays that begin at multiples of 8 bytes."""

import math
from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl.cluster.transport.kinds import Body, MessageError
from tnctl.tables import from_bfloat16, to_bfloat16

Floats = NDArray[np.float32]
WireFloats = NDArray[Any]  # of a body: float32, or uint16, the bits of bfloat16


def aligned(size: int) -> int:
    """A size rounded up to a multiple of 8 bytes."""
    return (size + 7) & ~7


class Views:
    """Cuts a body into arrays, one after the other: views, not copies.

    Those of a bytearray can be written to. The body must be as long as all arrays together.
    """

    def __init__(self, body: Body, start: int) -> None:
        self._body, self._end = body, aligned(start)

    def __call__(self, kind: str, *shape: int) -> NDArray[Any]:
        count = math.prod(shape)
        if not count:
            return np.empty(shape, kind)
        array = np.frombuffer(self._body, kind, count, self._end)
        self._end = aligned(self._end + array.nbytes)
        return array.reshape(shape)


def unpack_fixed(name: str, struct: Struct, body: Body) -> tuple[Any, ...]:
    """The fixed part at the start of a body. Raises MessageError."""
    if len(body) < struct.size:
        raise MessageError(f"{name} has {len(body):,} bytes, the least is {struct.size}")
    return struct.unpack_from(body)


def pack_entries(
    body: bytearray, start: int, struct: Struct, entries: Sequence[tuple[int, ...]]
) -> None:
    """Write the entries of all tables, one behind the other."""
    for place, entry in enumerate(entries):
        struct.pack_into(body, start + place * struct.size, *entry)


def unpack_entries(
    name: str, struct: Struct, body: Body, start: int, tables: int, expected: int
) -> Iterator[tuple[int, ...]]:
    """The entries of all tables, whose number must be as expected. Raises MessageError."""
    if tables != expected:
        raise MessageError(f"{name} has {tables:,} tables, the model has {expected:,}")
    end = start + tables * struct.size
    if len(body) < end:
        raise MessageError(f"{name} has {len(body):,} bytes, the least is {end:,}")
    return struct.iter_unpack(memoryview(body)[start:end])


def check_flags(name: str, flags: int, known: int) -> None:
    """Refuse bits that have no meaning. Raises MessageError."""
    if flags & ~known:
        raise MessageError(f"{name} has unknown flags ({flags:#x})")


def check_length(name: str, body: Body, expected: int) -> None:
    """Refuse a body that its arrays do not fill exactly. Raises MessageError."""
    if len(body) != expected:
        raise MessageError(f"{name} has {len(body):,} bytes, its lengths make {expected:,}")


def write_floats(to: WireFloats, values: Floats) -> None:
    """Write float32 into an array of a body, rounded to bfloat16 if that is what it has."""
    if to.dtype == np.uint16:
        to_bfloat16(np.ascontiguousarray(values), to)
    else:
        to[:] = values


def floats_of(array: WireFloats) -> Floats:
    """The float32 of an array of a body: a view of it, or converted."""
    return from_bfloat16(array) if array.dtype == np.uint16 else array
