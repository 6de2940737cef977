"""Bodies of named arrays in the layout of safetensors, written and viewed in place.

A body is the length of its header (uint64, little-endian), the header, and the arrays one after the
other. The header is JSON: `__metadata__` has texts by name, and of each array there are its dtype,
shape and place. Arrays with the largest items come first, so all are aligned.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from struct import Struct
from typing import Annotated, Any, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from tnctl import documents
from tnctl.cluster.transport.kinds import Body, MessageError
from tnctl.documents import Name, Text

Kind = tuple[np.dtype[Any], tuple[int, ...]]  # dtype and shape of an array
Arrays = dict[str, NDArray[Any]]

MOST_HEADER_BYTES = 1 << 16
DTYPES = {
    name: np.dtype(code)
    for name, code in (
        ("F64", "<f8"), ("I64", "<i8"), ("U64", "<u8"), ("F32", "<f4"), ("I32", "<i4"),
        ("U32", "<u4"), ("U16", "<u2"), ("U8", "u1"), ("BOOL", "?"),
    )
}  # fmt: skip
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_METADATA = "__metadata__"
_LENGTH = Struct("<Q")


@dataclass(frozen=True)
class _Entry:
    """What is read of an array in a header: its place follows from those before it."""

    dtype: Annotated[str, Field(pattern=f"^({'|'.join(DTYPES)})$")]
    shape: Annotated[tuple[Annotated[int, Field(ge=0, lt=2**30)], ...], Field(max_length=2)]


_HEADER = cast(Any, dict[Name, _Entry | dict[Name, Text]])


def new_body(kinds: Mapping[str, Kind], metadata: Mapping[str, str]) -> tuple[bytearray, Arrays]:
    """A body with arrays of these dtypes and shapes, and these: zeros, to be written to."""
    start, places, size = _layout(kinds, metadata)
    body = bytearray(size)
    body[: len(start)] = start
    return body, _views(body, kinds, places)


def packed(arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]) -> bytearray:
    """A body with copies of arrays."""
    kinds = {name: (array.dtype, array.shape) for name, array in arrays.items()}
    body, views = new_body(kinds, metadata)
    for name, array in arrays.items():
        views[name][...] = array
    return body


def metadata_of(body: Body) -> dict[str, str]:
    """The metadata of a body, whose arrays are not looked at. Raises MessageError."""
    return _header(body)[0]


def parse(body: Body) -> Arrays:
    """The arrays of a body: views, not copies. Raises MessageError.

    A header must be, byte for byte, the one that is written for its arrays. So none of them
    overlaps another one, is missing or is there twice.
    """
    metadata, kinds = _header(body)
    start, places, size = _layout(kinds, metadata)
    if body[: len(start)] != start:
        raise MessageError("a message has another header than its arrays need")
    if len(body) != size:
        raise MessageError(f"a message has {len(body):,} bytes, its arrays make {size:,}")
    arrays = _views(body, kinds, places)
    for name, array in arrays.items():
        if array.dtype == np.bool_ and array.view(np.uint8).max(initial=0) > 1:
            raise MessageError(f"a message has other values than 0 and 1 in the array {name}")
    return arrays


def _header(body: Body) -> tuple[dict[str, str], dict[str, Kind]]:
    length = _LENGTH.unpack_from(body)[0] if len(body) > _LENGTH.size else 0
    if not 0 < length <= min(len(body) - _LENGTH.size, MOST_HEADER_BYTES):
        raise MessageError(f"a message of {len(body):,} bytes has a header of {length:,}")
    text = bytes(body[_LENGTH.size : _LENGTH.size + length])
    try:
        entries: dict[str, Any] = documents.parse(_HEADER, text)
    except documents.DocumentError as error:
        raise MessageError("a message has a header that describes no arrays") from error
    metadata = entries.pop(_METADATA, None)
    # What is dropped here is missing in the header that `parse` compares.
    arrays = {name: entry for name, entry in entries.items() if isinstance(entry, _Entry)}
    if not isinstance(metadata, dict):
        raise MessageError("a message has no metadata")
    return metadata, {name: (DTYPES[entry.dtype], entry.shape) for name, entry in arrays.items()}


def _layout(
    kinds: Mapping[str, Kind], metadata: Mapping[str, str]
) -> tuple[bytes, dict[str, int], int]:
    """What a body begins with, where each array is, and the bytes of all."""
    header: dict[str, Any] = {_METADATA: metadata}
    places, end = {}, 0
    for name, (dtype, shape) in sorted(kinds.items(), key=lambda entry: -entry[1][0].itemsize):
        places[name], end = end, end + dtype.itemsize * math.prod(shape)
        offsets = places[name], end
        header[name] = {"dtype": _NAMES[dtype], "shape": shape, "data_offsets": offsets}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    start = _LENGTH.pack(len(text)) + text
    return start, {name: len(start) + place for name, place in places.items()}, len(start) + end


def _views(body: Body, kinds: Mapping[str, Kind], places: Mapping[str, int]) -> Arrays:
    return {
        name: np.ndarray(kinds[name][1], kinds[name][0], body, place)
        for name, place in places.items()
    }
