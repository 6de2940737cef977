"""How many rows each stripe of an ORC file has, by the tail of the file.

pyarrow does not say it. The tail is a message of protobuf (apache/orc-format, orc_proto.proto;
protobuf.dev/programming-guides/encoding), which Arrow has decompressed already.
"""

from collections.abc import Iterator
from typing import NamedTuple

# Numbers of fields in orc_proto.proto.
FOOTER, STRIPES, ROWS = 2, 3, 6
STRIPE_PLACE, STRIPE_ROWS = (1, 2, 3, 4), 5  # the offset, and the bytes of its three parts
VARINT, EIGHT_BYTES, LENGTH, FOUR_BYTES = 0, 1, 2, 5


class Field(NamedTuple):
    """A field of a message: a number, or the bytes of a text or message."""

    number: int
    integer: int = 0
    content: bytes = b""


def stripe_rows(tail: bytes, size: int) -> list[int]:
    """The rows of each stripe of a file of `size` bytes.

    Raises ValueError for a tail that contradicts itself, and for stripes beyond the file's end.
    """
    try:
        [footer] = [field.content for field in _fields(tail) if field.number == FOOTER]
        fields = list(_fields(footer))
        stripes = [list(_fields(field.content)) for field in fields if field.number == STRIPES]
    except (IndexError, ValueError) as error:
        raise ValueError("its tail cannot be read") from error
    ends = [sum(f.integer for f in stripe if f.number in STRIPE_PLACE) for stripe in stripes]
    if max(ends, default=0) > size:
        raise ValueError(f"it has {size:,} bytes, and a stripe ends at {max(ends):,}")
    rows = [sum(f.integer for f in stripe if f.number == STRIPE_ROWS) for stripe in stripes]
    expected = sum(field.integer for field in fields if field.number == ROWS)
    if sum(rows) != expected:
        raise ValueError(f"its stripes have {sum(rows):,} rows and its footer says {expected:,}")
    return rows


def _fields(message: bytes) -> Iterator[Field]:
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        number, kind = key >> 3, key & 7
        if kind == VARINT:
            integer, at = _varint(message, at)
            yield Field(number, integer=integer)
            continue
        if kind == LENGTH:
            size, at = _varint(message, at)
        elif kind in (EIGHT_BYTES, FOUR_BYTES):
            size = 8 if kind == EIGHT_BYTES else 4
        else:
            raise ValueError(f"a field of unknown kind {kind}")
        if size > len(message) - at:
            raise ValueError("a field is cut short")
        yield Field(number, content=message[at : at + size])
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """A number of up to 64 bits, and the place behind it."""
    value = 0
    for shift in range(0, 70, 7):
        value |= (message[at] & 127) << shift
        at += 1
        if message[at - 1] < 128:
            return value, at
    raise ValueError("a number of over 64 bits")
