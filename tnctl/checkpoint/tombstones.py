"""The keys of rows that were removed. docs/formats/checkpoint.md."""

import struct
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl.checkpoint.merging import Keys, newest
from tnctl.checkpoint.table_document import TombstonesFile
from tnctl.manifest import Opening
from tnctl.tables import SparseTable

HEADER = struct.Struct("<8sII")  # magic, version, bytes per record
MAGIC = b"tnctltmb"
DTYPE = np.dtype([("id", "<u8"), ("group", "<u2"), ("step", "<u4")])
NAME = "tombstones.bin"
START = HEADER.pack(MAGIC, 1, DTYPE.itemsize)


def write(opening: Opening, folder: str, removed: Iterable[NDArray[Any]]) -> TombstonesFile | None:
    """Write the removed keys, in (hash, group) order, unless there are none.

    Returns what the manifest says of the file.
    """
    some = (part for part in removed if len(part))
    first = next(some, None)
    if first is None:
        return None
    name, written = f"{folder}/{NAME}", 0
    with opening(name) as stream:
        stream.write(START)
        for part in _again(first, some):
            stream.write(np.ascontiguousarray(part).view("u1").data)
            written += len(part)
    return TombstonesFile(file=name, rows=written)


def _again(first: NDArray[Any], rest: Iterator[NDArray[Any]]) -> Iterator[NDArray[Any]]:
    yield first
    yield from rest


def merged(
    newer: Iterable[NDArray[Any]], older: Iterable[NDArray[Any]], keys: Keys
) -> Iterator[NDArray[Any]]:
    """Removed keys of two times, each in (hash, group) order: the newer of each key."""
    for block in newest([iter(newer), iter(older)], keys):
        yield from block.of(range(2), DTYPE)


def first_step_kept(days: Iterable[tuple[int, int]], kept: int) -> int:
    """The first step of the last `kept` days; days are (day, first step), ascending."""
    all_days = list(days)
    if not all_days:
        return 0
    return next(first for day, first in all_days if day > all_days[-1][0] - kept)


def since(removed: Iterable[NDArray[Any]], first_step: int) -> Iterator[NDArray[Any]]:
    """Removed keys, without those removed before a step."""
    for part in removed:
        yield part[part["step"] >= first_step]


def without_rows(removed: Iterable[NDArray[Any]], table: SparseTable) -> Iterator[NDArray[Any]]:
    """Removed keys, without those that have a row again."""
    for part in removed:
        groups, ids = np.ascontiguousarray(part["group"]), np.ascontiguousarray(part["id"])
        yield part[~table.contains(groups, ids)]
