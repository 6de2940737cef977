"""Columns of values and times to ids, and the order of examples: docs/formats/ids.md."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from tnctl._tables import ffi, lib
from tnctl.tables.memory import check, output, pointer


def hash_bytes(data: bytes, seed: int = 0) -> int:
    """The id of one value (docs/formats/ids.md)."""
    return int(lib.tn_hash_bytes(data, len(data), seed))


def hash_strings(data: Any, offsets: NDArray[Any], seed: int = 0) -> NDArray[np.uint64]:
    """Ids of n strings, uint64 [n]; string i is data[offsets[i]:offsets[i + 1]].

    `offsets` are int32 or int64 [n + 1].
    `data` is any buffer of bytes, such as Arrow's own.
    """
    n = len(offsets) - 1
    ids, memory = np.empty(n, np.uint64), _texts(data, offsets)
    hash_ = lib.tn_hash_strings32 if offsets.dtype == np.int32 else lib.tn_hash_strings64
    dtype = np.int32 if offsets.dtype == np.int32 else np.int64
    hash_(memory, pointer(offsets, dtype), n, seed, output(ids))
    return ids


def _texts(data: Any, offsets: NDArray[Any]) -> Any:
    """The memory of texts for C. Raises ValueError for offsets [n + 1] that leave it."""
    memory = ffi.from_buffer("char[]", data)
    descend = (offsets[1:] < offsets[:-1]).any()
    if len(offsets) > 1 and (offsets[0] < 0 or offsets[-1] > len(memory) or descend):
        raise ValueError(f"offsets must ascend inside 0 to {len(memory)}, the bytes of the data")
    return memory


def hash_views(views: Any, buffers: Sequence[Any], seed: int = 0) -> NDArray[np.uint64]:
    """Ids of n strings, uint64 [n], given as Arrow's views of 16 bytes each.

    `buffers` hold the strings that do not fit in their views.
    `views` and `buffers` are any buffers of bytes, such as the buffers of a pyarrow string_view
    array from its second on. Every view is read, so none may be null. Raises ValueError when a view
    refers to bytes outside of its buffer.
    """
    memory = ffi.from_buffer("char[]", views)
    n, rest = divmod(len(memory), 16)
    if rest:
        raise ValueError(f"expected views of 16 bytes. Received: {len(memory)} bytes")
    ids = np.empty(n, np.uint64)
    texts = [ffi.from_buffer("char[]", buffer) for buffer in buffers]
    check(
        lib.tn_hash_views(
            memory,
            n,
            ffi.new("const void *[]", texts),
            ffi.new("uint64_t[]", [len(text) for text in texts]),
            len(texts),
            seed,
            output(ids),
        )
    )
    return ids


def hash_integers(values: NDArray[Any], seed: int = 0) -> NDArray[np.uint64]:
    """Ids of numbers, int64 or uint64 [n] -> uint64 [n]: the ids of their decimal texts."""
    ids = np.empty(len(values), np.uint64)
    hash_ = lib.tn_hash_uint64 if values.dtype == np.uint64 else lib.tn_hash_int64
    dtype = np.uint64 if values.dtype == np.uint64 else np.int64
    hash_(pointer(values, dtype), len(values), seed, output(ids))
    return ids


def mix64(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """MurmurHash3's 64-bit finalizer of each value, uint64 [n] -> uint64 [n]."""
    x = values.copy()
    for shift, factor in ((33, 0xFF51AFD7ED558CCD), (33, 0xC4CEB9FE1A85EC53), (33, 1)):
        x ^= x >> np.uint64(shift)
        x *= np.uint64(factor)
    return x


def group_salt(name: str) -> int:
    """The salt of a group: the hash of a key is mix64(id ^ salt)."""
    return int(lib.tn_group_salt(name.encode()))


def cross(
    ids: Sequence[NDArray[np.uint64]],
    offsets: Sequence[NDArray[np.int32] | None],
    rows: int,
    seed: int = 0,
) -> tuple[NDArray[np.uint64], NDArray[np.int32] | None]:
    """A column of the combinations, in each row, of one id of each of 2 or more columns.

    Columns are as in `interleave`, and so is the result: ids, uint64 [m], and offsets, int32
    [rows + 1], or None when all given offsets are None. The last column's ids change fastest;
    where a column has no id there is no combination. The id of a combination is the hash of the 8
    bytes, little-endian, of each of its ids.
    """
    if len(ids) < 2:
        raise ValueError(f"expected 2 columns or more to cross. Received: {len(ids)}")
    _check_columns(ids, offsets, rows)
    single = all(ends is None for ends in offsets)
    out_offsets = np.empty(rows + 1, np.int32)
    columns = (*_pointers(ids, offsets), len(ids), rows, seed)
    end_pointer = output(out_offsets)
    # Without a place for ids C computes the offsets alone.
    if not single and lib.tn_cross(*columns, ffi.NULL, end_pointer) != lib.TN_OK:
        raise ValueError("a cross of 2^31 ids or more in one window; take a smaller data.window")
    out_ids = np.empty(rows if single else out_offsets[-1], np.uint64)
    check(lib.tn_cross(*columns, output(out_ids), end_pointer))
    return out_ids, None if single else out_offsets


def interleave(
    ids: Sequence[NDArray[np.uint64]],
    offsets: Sequence[NDArray[np.int32] | None],
    rows: int,
    spread: Sequence[int] | None = None,
    weights: Sequence[NDArray[np.float32] | None] | None = None,
) -> tuple[NDArray[np.uint64], NDArray[np.uint32], NDArray[np.float32] | None]:
    """Columns to cells, example after example.

    Column c has exactly one id per row when offsets[c] is None, else row r has
    ids[c][o[r]:o[r + 1]] for offsets o of int32 [rows + 1]. It becomes one cell per row, or
    spread[c] cells of one id each, the last of them empty when a row has fewer ids; ids beyond
    them are left out. weights[c], float32, has one weight for each of ids[c], or is None: all 1.

    Returns ids, uint64 [m], offsets, uint32 [rows * cells + 1], and weights, float32 [m], or None
    when weights[c] is None for all columns.
    """
    _check_columns(ids, offsets, rows)
    spread = [1] * len(ids) if spread is None else list(spread)
    weights = [None] * len(ids) if weights is None else list(weights)
    total = 0
    for column, ends, cells, of_column in zip(ids, offsets, spread, weights, strict=True):
        if cells < 1:
            raise ValueError(f"expected a spread of 1 cell or more. Received: {cells}")
        if of_column is not None and len(of_column) != len(column):
            raise ValueError(f"a column of {len(column)} ids has {len(of_column)} weights")
        if ends is None:
            total += rows
        elif cells == 1:
            total += int(ends[-1]) - int(ends[0])
        else:
            total += int(np.minimum(np.diff(ends), cells).sum(dtype=np.int64))
    if total >= 2**31:
        raise ValueError(f"{total:,} ids in one window; take a smaller data.window")
    weighted = any(of_column is not None for of_column in weights)
    out_ids = np.empty(total, np.uint64)
    out_offsets = np.empty(rows * sum(spread) + 1, np.uint32)
    out_weights = np.empty(total, np.float32) if weighted else None
    check(
        lib.tn_interleave(
            *_pointers(ids, offsets),
            ffi.new("const float *[]", [_optional(array, np.float32) for array in weights]),
            ffi.new("uint32_t[]", spread) if max(spread, default=1) > 1 else ffi.NULL,
            len(ids),
            rows,
            output(out_ids),
            _optional(out_weights, np.float32, write=True),
            output(out_offsets),
        )
    )
    return out_ids, out_offsets, out_weights


def take(
    ids: NDArray[np.uint64],
    offsets: NDArray[np.uint32],
    cells: int,
    chosen: NDArray[np.uint32],
    weights: NDArray[np.float32] | None = None,
) -> tuple[NDArray[np.uint64], NDArray[np.uint32], NDArray[np.float32] | None]:
    """The `cells` of each of the chosen examples (uint32 [n]), in that order.

    ids, offsets and weights, given and returned, are as `interleave` returns them.
    """
    if weights is not None and len(weights) != len(ids):
        raise ValueError(f"expected {len(ids)} weights. Received: {len(weights)}")
    starts = offsets[::cells] if cells else offsets
    counts = starts[1:][chosen] - starts[:-1][chosen]
    total = int(counts.sum(dtype=np.uint64))
    out_ids = np.empty(total, np.uint64)
    out_offsets = np.empty(len(chosen) * cells + 1, np.uint32)
    out_weights = None if weights is None else np.empty(total, np.float32)
    check(
        lib.tn_take(
            pointer(ids, np.uint64),
            pointer(offsets, np.uint32),
            _optional(weights, np.float32),
            cells,
            pointer(chosen, np.uint32),
            len(chosen),
            output(out_ids),
            _optional(out_weights, np.float32, write=True),
            total,
            output(out_offsets),
        )
    )
    return out_ids, out_offsets, out_weights


def permutation(seed: int, epoch: int, window: int, n: int) -> NDArray[np.uint32]:
    """The order of a window's n rows, uint32 [n]: a function of (seed, epoch, window, n) alone."""
    out = np.empty(n, np.uint32)
    lib.tn_permutation(seed, epoch, window, n, output(out))
    return out


def _check_columns(
    ids: Sequence[NDArray[np.uint64]], offsets: Sequence[NDArray[np.int32] | None], rows: int
) -> None:
    for column, ends in zip(ids, offsets, strict=True):
        if ends is not None and (
            len(ends) != rows + 1 or ends[0] < 0 or (ends[1:] < ends[:-1]).any()
        ):
            raise ValueError(f"offsets of {rows} rows must be {rows + 1} that ascend")
        expected = rows if ends is None else int(ends[-1])
        if len(column) < expected:
            raise ValueError(f"a column of {rows} rows has {len(column)} ids, not {expected}")


def _optional(array: NDArray[Any] | None, dtype: DTypeLike, write: bool = False) -> Any:
    return ffi.NULL if array is None else pointer(array, dtype, write)


def _pointers(
    ids: Sequence[NDArray[np.uint64]], offsets: Sequence[NDArray[np.int32] | None]
) -> tuple[Any, Any]:
    """What C takes for columns: valid as long as the arrays live."""
    return (
        ffi.new("const uint64_t *[]", [pointer(column, np.uint64) for column in ids]),
        ffi.new("const int32_t *[]", [_optional(ends, np.int32) for ends in offsets]),
    )


TIME_PARTS = {
    "hour": lib.TN_TIME_HOUR,
    "weekday": lib.TN_TIME_WEEKDAY,
    "day_of_month": lib.TN_TIME_DAY_OF_MONTH,
    "day": lib.TN_TIME_DAY,
}


def times_of_texts(
    data: Any, offsets: NDArray[np.int64], format: str, offset: int
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The times of n texts, int64 [n] in microseconds, and which are none, bool [n].

    Text i is data[offsets[i]:offsets[i + 1]], int64 [n + 1] of any buffer of bytes. Texts without a
    zone are in the one that is `offset` seconds ahead of UTC. Raises ValueError for a format that
    is none of texts.
    """
    texts = (_texts(data, offsets), pointer(offsets, np.int64))
    return _times(lib.tn_times_of_texts, texts, len(offsets) - 1, format, "text", offset)


def times_of_numbers(
    values: NDArray[np.float64], format: str
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The times of numbers, float64 [n], as `times_of_texts` returns them.

    Raises ValueError for a format that is not of numbers.
    """
    numbers = (pointer(values, np.float64),)
    return _times(lib.tn_times_of_numbers, numbers, len(values), format, "numbers")


def _times(
    read: Any, values: tuple[Any, ...], n: int, format: str, kind: str, *zone: int
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    times, wrong = np.zeros(n, np.int64), np.zeros(n, np.uint8)
    if not read(*values, n, format.encode(), *zone, output(times), output(wrong)):
        raise ValueError(f"{format!r} is no format of times as {kind}")
    return times, wrong.astype(bool)


def time_parts(times: NDArray[np.int64], part: str, offset: int) -> NDArray[np.uint64]:
    """A part of each time, uint64 [n], in the zone that is `offset` seconds ahead of UTC.

    `part` is a key of TIME_PARTS; negative days are modulo 2^64.
    """
    ids = np.empty(len(times), np.uint64)
    lib.tn_time_parts(
        pointer(times, np.int64),
        len(times),
        TIME_PARTS[part],
        offset,
        output(ids),
    )
    return ids
