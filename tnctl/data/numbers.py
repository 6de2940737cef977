"""Arrow columns of any type: their values, one or several in a row, as texts and as numbers.

Missing and bad values are kept apart.
"""

import json
import re
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from numpy.typing import NDArray

from tnctl import limits
from tnctl.data import Bools, Float64s, Int32s, Int64s
from tnctl.data.bad_rows import refuse, refuse_many
from tnctl.data.file_pieces import Where
from tnctl.errors import Failure, quoted
from tnctl.schema import Data

INTEGER = re.compile(r"-?[0-9]+")
LISTS = (pt.is_list, pt.is_large_list, pt.is_list_view, pt.is_large_list_view)
TEXTS = (
    pt.is_string, pt.is_large_string, pt.is_binary, pt.is_large_binary, pt.is_string_view,
    pt.is_binary_view, pt.is_fixed_size_binary,
)  # fmt: skip
MEND = "Mend it, or add it to data.missing"
MOST_NAMED = 1024  # bad values that are searched for before the good ones are tried again


def flat(column: pa.ChunkedArray) -> pa.Array:
    """A column as one array [rows], copied only when it has several chunks."""
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def is_list(kind: pa.DataType) -> bool:
    """Whether a type holds lists of any length."""
    return any(is_kind(kind) for is_kind in LISTS)


def has_values(kind: pa.DataType) -> bool:
    """Whether a type holds lists, of any length or of one."""
    return is_list(kind) or bool(pt.is_fixed_size_list(kind))


def listed(array: pa.Array) -> tuple[pa.Array, Int64s]:
    """The values of lists [rows], one after the other, and how many each row has, int64 [rows]."""
    if pt.is_fixed_size_list(array.type):
        array = array.cast(pa.large_list(array.type.value_type))
    counts = as_numpy(pc.fill_null(pc.list_value_length(array), 0))
    return pc.list_flatten(array), counts.astype(np.int64)


def as_numpy(array: pa.Array) -> NDArray[Any]:
    """Arrow's values [n] as an array [n], copied where their memory differs."""
    return np.asarray(array.to_numpy(zero_copy_only=False))


def is_null(array: pa.Array) -> Bools:
    """Which values [n] are null: bool [n]."""
    return as_numpy(array.is_null()) if array.null_count else np.zeros(len(array), bool)


def offsets_of(lengths: NDArray[np.integer]) -> Int32s:
    """Where the values of each row begin, and the end of the last: int32 [rows + 1]."""
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def owners_of(lengths: NDArray[np.integer]) -> Int64s:
    """The row of each value, int64 [values], by how many values each row has."""
    return np.repeat(np.arange(len(lengths)), lengths)


def indices_within(lengths: NDArray[np.integer]) -> Int64s:
    """The index of each value among the values of its row, int64 [values]."""
    return np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)


def is_text(kind: pa.DataType) -> bool:
    """Whether a type holds text or bytes."""
    return any(is_kind(kind) for is_kind in TEXTS)


def plain(array: pa.Array) -> pa.Array:
    """An array [n], decoded if a dictionary; text as (large_)string or (large_)binary."""
    if pt.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pt.is_string_view(array.type):
        return array.cast(pa.large_string())
    if pt.is_binary_view(array.type) or pt.is_fixed_size_binary(array.type):
        return array.cast(pa.large_binary())
    return array


def texts(array: pa.Array, column: str, where: Where) -> pa.Array:
    """A column [n] of text, trusted to be UTF-8, or of integers, as (large_)string [n].

    Raises `Failure` for other types.
    """
    array = plain(array)
    kind = array.type
    if pt.is_binary(kind) or pt.is_large_binary(kind):
        return array.view(pa.string() if pt.is_binary(kind) else pa.large_string())
    if is_text(kind):
        return array
    if pt.is_null(kind) or pt.is_integer(kind) or pt.is_boolean(kind):
        return array.cast(pa.string())
    raise Failure(f"{where(0)[0]}: column '{column}' is {kind}, not text. Write it as text")


def text_buffers(array: pa.Array) -> tuple[NDArray[Any], NDArray[np.uint8]]:
    """Where texts [n] of Arrow begin and end, int32 or int64 [n + 1], and the bytes of all."""
    _, ends, data = array.buffers()
    large = pt.is_large_string(array.type) or pt.is_large_binary(array.type)
    dtype = np.dtype(np.int64 if large else np.int32)
    if not len(array) or ends is None:
        return np.zeros(1, dtype), np.empty(0, np.uint8)
    offsets = np.frombuffer(ends, dtype, len(array) + 1, array.offset * dtype.itemsize)
    return offsets, np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)


def single(array: pa.Array, column: str, where: Where) -> pa.Array:
    """A column [rows] of one value per row; lists with at most one value are unpacked.

    Raises `BadRowsError` for a longer list.
    """
    if not has_values(array.type):
        return array
    values, lengths = listed(array)
    refuse(
        lengths > 1,
        where,
        lambda row: (
            f"column '{column}' must have one value. Received: {lengths[row]} values. Mend the row"
        ),
    )
    places = np.where(lengths == 1, np.cumsum(lengths) - 1, 0)
    return values.take(pa.array(places, mask=lengths == 0))


def parsed(
    array: pa.Array, missing: list[str], column: str, where: Where, way: str = MEND
) -> Float64s:
    """A column as float64 [rows], NaN where it is missing. `way` is out of a text that is none.

    Raises `BadRowsError` for a text that is no number, `Failure` for other types.
    """
    array = plain(single(array, column, where))
    kind = array.type
    if is_text(kind):
        array = _parsed_texts(texts(array, column, where), missing, column, where, way)
    elif pt.is_integer(kind):
        # As in text: an integer is missing when its decimal text is.
        absent = [text.strip() for text in missing if INTEGER.fullmatch(text.strip())]
        if absent:  # else the integers need not become text
            gone = pc.is_in(array.cast(pa.string()), value_set=pa.array(absent, pa.string()))
            array = pc.if_else(gone, None, array)
        array = array.cast(pa.float64(), safe=False)
    elif pt.is_floating(kind) or pt.is_boolean(kind) or pt.is_decimal(kind):
        array = array.cast(pa.float64(), safe=False)
    elif not pt.is_null(kind):
        raise Failure(
            f"{where(0)[0]}: column '{column}' is {kind}, not a number. Write it as float64, or "
            "name another column"
        )
    return as_numpy(array.cast(pa.float64()))


def _parsed_texts(
    array: pa.Array, missing: list[str], column: str, where: Where, way: str
) -> pa.Array:
    absent = pa.array([text.strip() for text in missing], array.type)
    array = pc.ascii_trim_whitespace(array)
    array = pc.if_else(pc.is_in(array, value_set=absent), None, array)
    try:
        return pc.cast(array, pa.float64())
    except pa.ArrowInvalid:
        wrong = np.zeros(len(array), bool)
        wrong[bad_places(array, pa.float64())] = True
        refuse_texts(array, wrong, "a number", column, where, way)
        raise


def bytes_at(array: pa.Array, row: int) -> bytes:
    """The text in one row of a column [rows] as its bytes, UTF-8 or not."""
    return bytes(array.slice(row, 1).cast(pa.large_binary())[0].as_py())


def refuse_texts(
    array: pa.Array,
    wrong: Bools,
    kind: str,
    column: str,
    where: Where,
    way: str = MEND,
) -> None:
    """Raise `BadRowsError` for the texts [n] that are wrong (bool [n]): none of them is `kind`."""
    refuse(
        wrong,
        where,
        lambda row: f"{quoted(bytes_at(array, row))} is not {kind}. {way}",
        column,
    )


def bad_places(array: pa.Array, kind: pa.DataType, most: int = MOST_NAMED) -> list[int]:
    """The places of the first values [n], at most `most`, that do not cast to `kind`."""
    places: list[int] = []
    ranges = [(0, len(array))]
    while ranges and len(places) < most:
        low, high = ranges.pop()
        try:
            pc.cast(array.slice(low, high - low), kind)
        except pa.ArrowInvalid:
            if high - low == 1:
                places.append(low)
            else:
                middle = (low + high) // 2
                ranges += [(middle, high), (low, middle)]
    return places


def refuse_infinite(out: NDArray[Any], values: NDArray[Any], column: str, where: Where) -> None:
    """Refuse numbers (float32 `out` [rows], made from `values`) that are infinite."""

    def fault(row: int) -> str:
        if np.isfinite(values[row]):
            return f"{values[row]} is too large for float32. Mend the row, or take transform=log1p"
        return f"{values[row]} is infinite. Mend the row"

    refuse(np.isinf(out), where, fault, column)


JSON = "json"


class RowValues(NamedTuple):
    """The values of all rows, one after the other."""

    values: pa.Array  # [values]
    lengths: Int64s | None  # [rows], how many each row has; None when each has one

    @property
    def owners(self) -> Int64s | None:
        """The row of each value, int64 [values]; None when each row has one."""
        return None if self.lengths is None else owners_of(self.lengths)

    def listed(self) -> "RowValues":
        """These values with lengths: a row whose one value is null has none."""
        if self.lengths is not None:
            return self
        valid = as_numpy(self.values.is_valid())
        return RowValues(self.values.drop_null(), valid.astype(np.int64))


def row_values(
    array: pa.Array, separator: str | None, data: Data, column: str, where: Where, fractions: bool
) -> RowValues:
    """The values of a column [rows], as they are or as its text is split.

    A null list, and a text of data.missing that is split, have no value. `fractions` allows
    numbers with a point in JSON lists. Raises `BadRowsError` for a text that is no JSON list, and
    for too many values in a row.
    """
    kind = array.type.value_type if pt.is_dictionary(array.type) else array.type
    if separator is not None and is_text(kind):
        array = texts(array, column, where)
        _refuse_long_texts(array, "," if separator == JSON else separator, column, where)
        array = pc.if_else(
            pc.is_in(array, value_set=pa.array(data.missing, array.type)), None, array
        )
        if separator == JSON:
            array = _of_json(array, column, where, fractions)
        else:
            array = _split(array, separator, data.strip)
    if not has_values(array.type):
        return RowValues(array, None)
    values, lengths = listed(array)
    refuse_many(pa.array(lengths), limits.ROW_VALUES, "values", column, where)
    return RowValues(values, lengths)


def _refuse_long_texts(array: pa.Array, separator: str, column: str, where: Where) -> None:
    """Raise `BadRowsError` for texts that are too long, or have too many values, to be split."""
    sizes = refuse_many(pc.binary_length(array), limits.LINE_BYTES, "bytes", column, where)
    # A text has at least as many bytes as values.
    if sizes.max(initial=0) >= limits.ROW_VALUES:
        counts = pc.add(pc.count_substring(array, separator), 1)
        refuse_many(counts, limits.ROW_VALUES, "values", column, where)


def _split(array: pa.Array, separator: str, strip: bool) -> pa.Array:
    split = pc.split_pattern(array, separator)
    if not strip:
        return split
    trimmed = pc.ascii_trim_whitespace(split.values)
    return type(split).from_arrays(split.offsets, trimmed, mask=split.is_null())


def _of_json(array: pa.Array, column: str, where: Where, fractions: bool) -> pa.Array:
    """JSON lists of texts, numbers and nulls: large_list<large_binary>, numbers as their text."""
    lists: list[list[bytes | None] | None] = []
    wrong = np.zeros(len(array), bool)
    for row, text in enumerate(array.cast(pa.large_binary()).to_pylist()):
        try:
            lists.append(None if text is None else _json_parts(text, fractions))
        except (ValueError, RecursionError):
            lists.append(None)
            wrong[row] = True
    kinds = "texts and numbers" if fractions else "texts and integers"
    refuse(
        wrong,
        where,
        lambda row: (
            f"{quoted(bytes_at(array, row))} is not a JSON list of {kinds}. Mend it, or "
            "add it to data.missing"
        ),
        column,
    )
    return pa.array(lists, pa.large_list(pa.large_binary()))


def _json_parts(text: bytes, fractions: bool) -> list[bytes | None] | None:
    values = json.loads(text.decode("utf-8", "surrogateescape"), parse_constant=_json_constant)
    if not isinstance(values, list | None):
        raise ValueError(text)
    return None if values is None else [_json_part(value, fractions) for value in values]


def _json_part(value: Any, fractions: bool) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape")
    if isinstance(value, bool) or not isinstance(value, int | (float if fractions else int)):
        raise ValueError(value)
    return repr(value).encode()


def _json_constant(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
