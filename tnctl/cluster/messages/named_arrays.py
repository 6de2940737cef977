"""Bodies of named arrays in the layout of safetensors, written and viewed in place.

A body is the length of its header (uint64, little-endian), the header, and the arrays one after the
other. The header is JSON: `__metadata__` has texts by name, and of each array there are its dtype,
shape and place. Arrays with the largest items come first, so all are aligned.

What travels between a worker and an owner has the same arrays at both ends: `Fields`, that follow
from the model and from what was pulled. Its numbers and flags are one JSON document in the
metadata. `Received` refuses all else.
"""

import json
import math
from collections.abc import Mapping
from struct import Struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl import documents
from tnctl.cluster.transport.kinds import Body, MessageError

DTYPES = {
    name: np.dtype(code)
    for name, code in (
        ("F64", "<f8"), ("I64", "<i8"), ("U64", "<u8"), ("F32", "<f4"), ("I32", "<i4"),
        ("U32", "<u4"), ("U16", "<u2"), ("U8", "u1"), ("BOOL", "?"),
    )
}  # fmt: skip
F64, U64, F32, U32, U16, U8 = (DTYPES[name] for name in ("F64", "U64", "F32", "U32", "U16", "U8"))
Fields = dict[str, tuple[np.dtype[Any], tuple[int, ...]]]  # dtype and shape of each array
Arrays = dict[str, NDArray[Any]]

MOST_HEADER_BYTES = 1 << 16
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_METADATA, _SCALARS = "__metadata__", "scalars"
_LENGTH = Struct("<Q")


def new_body(fields: Fields, metadata: Mapping[str, str]) -> tuple[bytearray, Arrays]:
    """A body with these arrays: zeros, to be written to."""
    start, places, size = _layout(fields, metadata)
    body = bytearray(size)
    body[: len(start)] = start
    return body, _views(body, fields, places)


def packed(arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]) -> bytearray:
    """A body with copies of arrays."""
    body, views = new_body({name: (a.dtype, a.shape) for name, a in arrays.items()}, metadata)
    for name, array in arrays.items():
        views[name][...] = array
    return body


def scalars(**values: float) -> dict[str, str]:
    """The metadata that has these numbers and flags, which `Received` gives back exactly."""
    return {_SCALARS: json.dumps(values)}


def of_table(arrays: Arrays, number: int, *names: str) -> list[Any]:
    """The arrays of a table, each None if there is none."""
    return [arrays.get(f"{number}.{name}") for name in names]


def metadata_of(body: Body) -> dict[str, str]:
    """The metadata of a body, whose arrays are not looked at. Raises MessageError."""
    return _header(body)[0]


def parse(body: Body) -> Arrays:
    """The arrays of a body, whichever these are: views, not copies. Raises MessageError."""
    metadata, entries = _header(body)
    fields = {name: _described(entry) for name, entry in entries.items()}
    if not all(map(documents.PART.fullmatch, fields)):
        raise MessageError("a message has an array with a name that none has")
    return _view(body, fields, metadata)


class Received:
    """A message of another process, whose arrays are checked once its sizes are known.

    `name` is what the errors call it, `scalars` the types of its numbers and flags.
    """

    def __init__(self, name: str, body: Body, kinds: Mapping[str, type]) -> None:
        """Raises MessageError."""
        self.name, self._body = name, body
        self._metadata, self._entries = _header(body)
        try:
            values = json.loads(self._metadata.get(_SCALARS, "{}"))
            found = {key: type(value) for key, value in values.items()}
        except (ValueError, AttributeError, RecursionError):
            found = None
        if (
            found != kinds
            or self._metadata.keys() != {_SCALARS}
            or not all(0 <= value < 2**64 for value in values.values() if type(value) is int)
        ):
            raise MessageError(f"{name} has other numbers or flags than {', '.join(kinds)}")
        self.scalars: dict[str, Any] = values

    def items(self, array: str) -> int:
        """How many items an array has by the header. Raises MessageError."""
        return math.prod(_described(self._entries.get(array))[1])

    def arrays(self, fields: Fields) -> Arrays:
        """The arrays, which must be these: views, not copies. Raises MessageError."""
        try:
            return _view(self._body, fields, self._metadata)
        except MessageError as error:
            for name, (_, shape) in fields.items():
                entry = self._entries.get(name)
                if not isinstance(entry, dict) or entry.get("shape") != list(shape):
                    text = f"{self.name} has no array {name} of the shape {list(shape)}"
                    raise MessageError(text) from error
            raise MessageError(f"{self.name} does not fit: {error}") from error


def _header(body: Body) -> tuple[dict[str, str], dict[str, Any]]:
    """The metadata, and what the header has of each array, which is not checked."""
    length = _LENGTH.unpack_from(body)[0] if len(body) > _LENGTH.size else 0
    if not 0 < length <= min(len(body) - _LENGTH.size, MOST_HEADER_BYTES):
        raise MessageError(f"a message of {len(body):,} bytes has a header of {length:,}")
    try:
        entries = json.loads(bytes(body[_LENGTH.size : _LENGTH.size + length]))
        metadata = entries.pop(_METADATA)
        if not all(type(text) is str for text in metadata.values()):
            raise TypeError
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise MessageError("a message has a header that describes no arrays") from error
    return metadata, entries


def _described(entry: Any) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """The dtype and the shape that a header has of an array. Raises MessageError."""
    try:
        dtype, shape = DTYPES[entry["dtype"]], tuple(entry["shape"])
    except (LookupError, TypeError) as error:
        raise MessageError("a message has a header that describes no arrays") from error
    if len(shape) > 2 or not all(type(n) is int and 0 <= n < 2**30 for n in shape):
        raise MessageError("a message has an array with a shape that none has")
    return dtype, shape


def _layout(fields: Fields, metadata: Mapping[str, str]) -> tuple[bytes, dict[str, int], int]:
    """What a body begins with, where each array is, and the bytes of all."""
    texts = [json.dumps({_METADATA: metadata}, separators=(",", ":"))[:-1]]
    places, end = {}, 0
    for name, (dtype, shape) in sorted(fields.items(), key=lambda field: -field[1][0].itemsize):
        places[name], end = end, end + dtype.itemsize * math.prod(shape)
        texts.append(
            f'"{name}":{{"dtype":"{_NAMES[dtype]}","shape":[{",".join(map(str, shape))}],'
            f'"data_offsets":[{places[name]},{end}]}}'
        )
    text = ",".join(texts).encode() + b"}"
    text += b" " * (-len(text) % 8)
    start = _LENGTH.pack(len(text)) + text
    return start, {name: len(start) + place for name, place in places.items()}, len(start) + end


def _view(body: Body, fields: Fields, metadata: Mapping[str, str]) -> Arrays:
    """The arrays of a body, which must be these. Raises MessageError.

    Its header must be, byte for byte, the one that is written for them. So none of them overlaps
    another one, is missing or is there twice.
    """
    start, places, size = _layout(fields, metadata)
    if body[: len(start)] != start:
        raise MessageError("a message has another header than its arrays need")
    if len(body) != size:
        raise MessageError(f"a message has {len(body):,} bytes, its arrays make {size:,}")
    arrays = _views(body, fields, places)
    for array in arrays.values():
        if array.dtype.char == "?" and array.view(np.uint8).max(initial=0) > 1:
            raise MessageError("a message has other values than 0 and 1 in an array of flags")
    return arrays


def _views(body: Body, fields: Fields, places: Mapping[str, int]) -> Arrays:
    return {
        name: np.ndarray(shape, dtype, body, places[name])
        for name, (dtype, shape) in fields.items()
    }
