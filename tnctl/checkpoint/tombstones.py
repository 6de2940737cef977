"""The keys of rows that were removed. docs/formats/checkpoint.md."""

import itertools
import struct
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl.checkpoint.merging import Keys, newest
from tnctl.checkpoint.table_document import TombstonesFile, TombstonesRange
from tnctl.manifest import Opening
from tnctl.tables import REMOVED_DTYPE, SparseTable

# Magic, version, bytes per record.
START = struct.pack("<8sII", b"tnctltmb", 1, REMOVED_DTYPE.itemsize)


def write(opening: Opening, folder: str, removed: Iterable[NDArray[Any]]) -> TombstonesFile | None:
    """Write the removed keys, arrays [n] of REMOVED_DTYPE in (hash, group) order.

    Returns the file's entry of the manifest; None, without a file, when there are no keys.
    """
    blocks = (block for block in removed if len(block))
    first = next(blocks, None)
    if first is None:
        return None
    name = f"{folder}/tombstones.bin"
    return TombstonesFile(file=name, rows=_write(opening, name, itertools.chain([first], blocks)))


def write_range(
    opening: Opening, name: str, hashes: tuple[int, int], removed: Iterable[NDArray[Any]]
) -> TombstonesRange:
    """Write the removed keys of a range of hashes (first, last), if there are any, to a file."""
    first, last = hashes
    count = _write(opening, name, removed)
    return TombstonesRange(file=name, first=f"{first:016x}", last=f"{last:016x}", rows=count)


def _write(opening: Opening, name: str, removed: Iterable[NDArray[Any]]) -> int:
    """Write a file of removed keys; returns how many there are."""
    count = 0
    with opening(name) as stream:
        stream.write(START)
        for block in removed:
            stream.write(np.ascontiguousarray(block).view("u1").data)
            count += len(block)
    return count


def merged(
    newer: Iterable[NDArray[Any]], older: Iterable[NDArray[Any]], keys: Keys
) -> Iterator[NDArray[Any]]:
    """Removed keys of two times, arrays [n] in (hash, group) order each: the newer of each key."""
    for block in newest([iter(newer), iter(older)], keys):
        yield from block.of(range(2), REMOVED_DTYPE)


def first_step_kept(days: Iterable[tuple[int, int]], kept: int) -> int:
    """The first step of the last `kept` days; days are (day, first step), ascending."""
    all_days = list(days)
    return next((first for day, first in all_days if day > all_days[-1][0] - kept), 0)


def without_rows(removed: Iterable[NDArray[Any]], table: SparseTable) -> Iterator[NDArray[Any]]:
    """Removed keys, arrays [n] of REMOVED_DTYPE, without those that have a row again."""
    for block in removed:
        yield block[~table.contains(block["group"], block["id"])]
