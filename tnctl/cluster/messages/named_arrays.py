"""Bodies of named arrays in the layout of safetensors, written and viewed in place.

A body is the length of its header (uint64, little-endian), the header, and the arrays one after the
other. The header is JSON: `__metadata__` has texts by name, and of each array there are its dtype,
shape and place. Arrays with the largest items come first, so all are aligned.

A message is built of arrays by one function (`Build`) in the process that writes it and in the one
that receives it; its numbers and flags are one JSON document in the metadata.
"""

import json
import math
from collections.abc import Callable, Mapping
from struct import Struct
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tnctl.cluster.transport.kinds import Body, MessageError
from tnctl.tables import from_bfloat16, to_bfloat16

DTYPES = {
    name: np.dtype(code)
    for name, code in (
        ("F64", "<f8"), ("I64", "<i8"), ("U64", "<u8"), ("F32", "<f4"), ("I32", "<i4"),
        ("U32", "<u4"), ("U16", "<u2"), ("BF16", "V2"), ("U8", "u1"), ("BOOL", "?"),
    )
}  # fmt: skip
"""of numpy, by their names in the format; numpy has no bfloat16"""
Kind = tuple[str, tuple[int, ...]]  # dtype and shape of an array
Floats = NDArray[np.float32]
Arrays = dict[str, NDArray[Any]]
Message = TypeVar("Message")
Take = Callable[..., NDArray[Any]]
"""gives the array of a name, a dtype of `DTYPES` and dimensions"""
Build = Callable[..., Message]
"""makes a message of what it takes, and of its numbers and flags"""

MOST_HEADER_BYTES = 1 << 20  # of 2,000 tables
_MOST_ITEMS = 1 << 30  # of a dimension
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_METADATA, _SCALARS = "__metadata__", "scalars"
_LENGTH = Struct("<Q")
_encoded = json.JSONEncoder(separators=(",", ":")).encode


def new_body(kinds: Mapping[str, Kind], metadata: Mapping[str, str]) -> tuple[bytearray, Arrays]:
    """A body with arrays of these dtypes and shapes, and these: zeros, to be written to."""
    texts, places, end = [_encoded({_METADATA: metadata})[:-1]], {}, 0
    for name, (dtype, shape) in sorted(
        kinds.items(), key=lambda kind: -DTYPES[kind[1][0]].itemsize
    ):
        places[name], end = end, end + DTYPES[dtype].itemsize * math.prod(shape)
        texts.append(
            f'"{name}":{{"dtype":"{dtype}","shape":[{",".join(map(str, shape))}],'
            f'"data_offsets":[{places[name]},{end}]}}'
        )
    text = ",".join(texts).encode() + b"}"
    text += b" " * (-len(text) % 8)
    start = _LENGTH.size + len(text)
    body = bytearray(start + end)
    body[:start] = _LENGTH.pack(len(text)) + text
    arrays = {
        name: np.ndarray(shape, DTYPES[dtype], body, start + places[name])
        for name, (dtype, shape) in kinds.items()
    }
    return body, arrays


def write_floats(to: NDArray[Any], values: Floats) -> None:
    """Write float32 into an array of a body, rounded to bfloat16 if that is what it has."""
    if to.dtype == DTYPES["BF16"]:
        to_bfloat16(np.ascontiguousarray(values), to.view(np.uint16))
    else:
        to[:] = values


def packed(arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]) -> bytearray:
    """A body with copies of arrays."""
    kinds = {name: (_NAMES[array.dtype], array.shape) for name, array in arrays.items()}
    body, views = new_body(kinds, metadata)
    for name, array in arrays.items():
        views[name][...] = array
    return body


def metadata_of(body: Body) -> dict[str, str]:
    """The metadata of a body, whose arrays are not looked at. Raises MessageError."""
    return _header(body)[0]


def parse(body: Body) -> tuple[dict[str, str], Arrays]:
    """The metadata of a body, and views of its arrays, which fill it. Raises MessageError."""
    metadata, entries, start = _header(body)
    arrays, end = {}, start
    try:
        for name, entry in entries.items():
            dtype, shape, place = DTYPES[entry["dtype"]], entry["shape"], end
            end += dtype.itemsize * math.prod(shape)
            if entry["data_offsets"] != [place - start, end - start] or place % dtype.itemsize:
                raise ValueError
            array: NDArray[Any] = np.ndarray(shape, dtype, body, place)
            if array.ndim > 2 or max(shape, default=0) >= _MOST_ITEMS:
                raise ValueError
            if dtype.kind == "b" and array.view(np.uint8).max(initial=0) > 1:
                raise ValueError
            arrays[name] = array
    except (ValueError, LookupError, TypeError, OverflowError) as error:
        raise MessageError("a message has other arrays than its header describes") from error
    if end != len(body):
        raise MessageError(f"a message has {len(body):,} bytes, its arrays make {end:,}")
    return metadata, arrays


def _header(body: Body) -> tuple[dict[str, str], dict[str, Any], int]:
    """The metadata, what the header has of each array, and where the arrays begin."""
    length = _LENGTH.unpack_from(body)[0] if len(body) > _LENGTH.size else 0
    if length % 8 or not 0 < length <= min(len(body) - _LENGTH.size, MOST_HEADER_BYTES):
        raise MessageError(f"a message of {len(body):,} bytes has a header of {length:,}")
    start = _LENGTH.size + length
    try:
        entries = json.loads(bytes(body[_LENGTH.size : start]))
        metadata = entries.pop(_METADATA)
        if not all(type(text) is str for text in metadata.values()):
            raise TypeError
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise MessageError("a message has a header that describes no arrays") from error
    return metadata, entries, start


# ---- Messages ------------------------------------------------------------------


def with_scalars(**values: Any) -> dict[str, str]:
    """The metadata that has numbers and flags."""
    return {_SCALARS: json.dumps(values)}


def new_message(build: Build[Message], **scalars: Any) -> tuple[bytearray, Message]:
    """A body with the arrays that a message is built of, which are to be filled, and the message.

    `build` is called twice: for the dtypes and shapes, then with the arrays.
    """
    kinds: dict[str, Kind] = {}
    nothing = np.empty(0)

    def describe(name: str, dtype: str, *shape: int) -> NDArray[Any]:
        kinds[name] = dtype, shape
        return nothing

    build(describe, **scalars)
    body, arrays = new_body(kinds, with_scalars(**scalars))
    return body, build(lambda name, *_: arrays[name], **scalars)


class Received:
    """A message of another process: its numbers and flags, and the arrays that it brings.

    `name` is what errors call it. `kinds` says what `scalars` has: bool, int (uint64), float, or a
    tuple of these for a list.
    """

    def __init__(self, name: str, body: Body, kinds: Mapping[str, Any]) -> None:
        """Raises MessageError."""
        self.name = name
        metadata, self._arrays = parse(body)
        try:
            self.scalars = json.loads(metadata.get(_SCALARS, "{}"))
            fits = self.scalars.keys() == kinds.keys() and all(
                _fits(self.scalars[key], kind) for key, kind in kinds.items()
            )
        except (ValueError, AttributeError, RecursionError):
            fits = False
        if not fits:
            raise MessageError(f"{name} has other numbers or flags than it should have")

    def size(self, array: str) -> int:
        """How many items an array has; 0 if there is none."""
        return self._arrays[array].size if array in self._arrays else 0

    def built(self, build: Build[Message]) -> Message:
        """The message, built of all its arrays. Raises MessageError.

        They are views of the body, and float32 where it has bfloat16.
        """

        def take(name: str, dtype: str, *shape: int) -> NDArray[Any]:
            array = self._arrays.pop(name, None)
            if array is None or array.shape != shape or array.dtype != DTYPES[dtype]:
                raise MessageError(f"{self.name} has no {name} of {dtype} {list(shape)}")
            return from_bfloat16(array.view(np.uint16)) if dtype == "BF16" else array

        message = build(take, **self.scalars)
        if self._arrays:
            raise MessageError(f"{self.name} has {len(self._arrays)} arrays too many")
        return message


def _fits(value: Any, kind: Any) -> bool:
    if isinstance(kind, tuple):
        return type(value) is list and len(value) == len(kind) and all(map(_fits, value, kind))
    return type(value) is kind and (kind is not int or 0 <= value < 2**64)
