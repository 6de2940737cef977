"""Columns of values to ids, and the order of examples."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl._tables import ffi, lib
from tnctl.tables.memory import check, pointer


def hash_bytes(data: bytes, seed: int = 0) -> int:
    """The id of one value (docs/formats/ids.md)."""
    return int(lib.tn_hash_bytes(data, len(data), seed))


def hash_strings(data: Any, offsets: NDArray[Any], seed: int = 0) -> NDArray[np.uint64]:
    """Ids of n strings; string i is data[offsets[i]:offsets[i + 1]], offsets int32 or int64 [n+1].

    `data` is any buffer of bytes, such as Arrow's own.
    """
    n = len(offsets) - 1
    ids = np.empty(n, np.uint64)
    memory = ffi.from_buffer("char[]", data)
    if n and (offsets[0] < 0 or offsets[-1] > len(memory) or (offsets[1:] < offsets[:-1]).any()):
        raise ValueError(f"offsets must ascend inside 0 to {len(memory)}, the bytes of the data")
    hash_ = lib.tn_hash_strings32 if offsets.dtype == np.int32 else lib.tn_hash_strings64
    dtype = np.int32 if offsets.dtype == np.int32 else np.int64
    hash_(memory, pointer(offsets, dtype), n, seed, pointer(ids, np.uint64, True))
    return ids


def hash_integers(values: NDArray[Any], seed: int = 0) -> NDArray[np.uint64]:
    """Ids of int64 or uint64 numbers: those of their decimal text."""
    ids = np.empty(len(values), np.uint64)
    hash_ = lib.tn_hash_uint64 if values.dtype == np.uint64 else lib.tn_hash_int64
    dtype = np.uint64 if values.dtype == np.uint64 else np.int64
    hash_(pointer(values, dtype), len(values), seed, pointer(ids, np.uint64, True))
    return ids


def mix64(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """MurmurHash3's 64-bit finalizer of each value."""
    x = values.copy()
    for shift, factor in ((33, 0xFF51AFD7ED558CCD), (33, 0xC4CEB9FE1A85EC53), (33, 1)):
        x ^= x >> np.uint64(shift)
        x *= np.uint64(factor)
    return x


def group_salt(name: str) -> int:
    """The salt of a group: the hash of a key is mix64(id ^ salt)."""
    return int(lib.tn_group_salt(name.encode()))


def interleave(
    ids: Sequence[NDArray[np.uint64]],
    offsets: Sequence[NDArray[np.int32] | None],
    rows: int,
) -> tuple[NDArray[np.uint64], NDArray[np.uint32]]:
    """Columns to cells, example after example: (ids, offsets [rows * columns + 1]).

    Column c has exactly one id per row when offsets[c] is None, else ids[c][o[r]:o[r + 1]] for
    offsets o of int32 [rows + 1].
    """
    total = 0
    for column, ends in zip(ids, offsets, strict=True):
        expected = rows if ends is None else int(ends[-1])
        if ends is not None and (len(ends) != rows + 1 or (ends[1:] < ends[:-1]).any()):
            raise ValueError(f"offsets of {rows} rows must be {rows + 1} that ascend")
        if len(column) < expected:
            raise ValueError(f"a column of {rows} rows has {len(column)} ids, not {expected}")
        total += expected - (0 if ends is None else int(ends[0]))
    if total >= 2**31:
        raise ValueError(f"{total:,} ids in one window; take a smaller data.window")
    out_ids = np.empty(total, np.uint64)
    out_offsets = np.empty(rows * len(ids) + 1, np.uint32)
    id_pointers = [pointer(column, np.uint64) for column in ids]
    end_pointers = [ffi.NULL if o is None else pointer(o, np.int32) for o in offsets]
    lib.tn_interleave(
        ffi.new("const uint64_t *[]", id_pointers),
        ffi.new("const int32_t *[]", end_pointers),
        len(ids),
        rows,
        pointer(out_ids, np.uint64, True),
        pointer(out_offsets, np.uint32, True),
    )
    return out_ids, out_offsets


def take(
    ids: NDArray[np.uint64], offsets: NDArray[np.uint32], slots: int, chosen: NDArray[np.uint32]
) -> tuple[NDArray[np.uint64], NDArray[np.uint32]]:
    """The cells of the chosen examples (uint32 [n]), in that order."""
    starts = offsets[::slots] if slots else offsets
    counts = starts[1:][chosen] - starts[:-1][chosen]
    total = int(counts.sum(dtype=np.uint64))
    out_ids = np.empty(total, np.uint64)
    out_offsets = np.empty(len(chosen) * slots + 1, np.uint32)
    check(
        lib.tn_take(
            pointer(ids, np.uint64),
            pointer(offsets, np.uint32),
            slots,
            pointer(chosen, np.uint32),
            len(chosen),
            pointer(out_ids, np.uint64, True),
            total,
            pointer(out_offsets, np.uint32, True),
        )
    )
    return out_ids, out_offsets


def permutation(seed: int, epoch: int, window: int, n: int) -> NDArray[np.uint32]:
    """The order of a window's n rows: a function of (seed, epoch, window, n) alone."""
    out = np.empty(n, np.uint32)
    lib.tn_permutation(seed, epoch, window, n, pointer(out, np.uint32, True))
    return out
