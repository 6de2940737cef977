"""Sorted arrays of keyed records merged in bounded memory; the newest of each key wins."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tnctl.tables import KEY_FIELDS, key_hashes

KEYS = np.dtype([*KEY_FIELDS])


class DisorderError(ValueError):
    """Keys that do not ascend, or of a group that is not declared: the file is damaged."""


class KeyHashes:
    """The hashes of keys, by the names of their groups: number -> name."""

    def __init__(self, groups: Mapping[int, str]) -> None:
        self._groups = groups

    def hashes(self, records: NDArray[Any]) -> NDArray[np.uint64]:
        """The hash of each record's key, uint64 [n]; records have fields id and group.

        Raises DisorderError for a group that is not there.
        """
        groups, ids = (np.ascontiguousarray(records[key]) for key in ("group", "id"))
        try:
            return key_hashes(self._groups, groups, ids)
        except ValueError as error:
            raise DisorderError("has a record of a group that is not there") from error


@dataclass(frozen=True)
class NewestRecords:
    """The winners of a range of keys, in order: record `position[i]` of `parts[source[i]]`."""

    parts: list[NDArray[Any]]
    source: NDArray[np.intp]
    position: NDArray[np.intp]

    def of(self, sources: range, dtype: np.dtype[Any]) -> Iterator[NDArray[Any]]:
        """Those winners that came from these sources, as one array, unless there are none."""
        wanted = np.isin(self.source, sources)
        source, position = self.source[wanted], self.position[wanted]
        winners = np.empty(len(source), dtype)
        for index in sources:
            if len(self.parts[index]):
                chosen = source == index
                winners[chosen] = self.parts[index][position[chosen]]
        if len(winners):
            yield winners


class Cursor:
    """What has been read of a stream in (hash, group) order and is not taken yet."""

    def __init__(
        self,
        stream: Iterator[NDArray[Any]],
        keys: KeyHashes,
        dtype: np.dtype[Any] = KEYS,
    ) -> None:
        """`dtype` is what `take` gives while nothing has been read."""
        self._stream, self._keys = stream, keys
        self.records: NDArray[Any] = np.empty(0, dtype)
        self.hashes = np.empty(0, np.uint64)
        self.ended = False

    def read(self) -> None:
        """Read more records. Raises DisorderError."""
        records = next((records for records in self._stream if len(records)), None)
        if records is None:
            self.ended = True
            return
        hashes = self._keys.hashes(records)
        if len(self.hashes):
            records = np.append(self.records, records)
            hashes = np.append(self.hashes, hashes)
        # Without the order, records below a bound are not known to be complete.
        if (hashes[1:] < hashes[:-1]).any():
            raise DisorderError("has records that are not in the order of their hashes")
        self.records, self.hashes = records, hashes

    def fill(self) -> None:
        """Read until there are two different hashes: only those below the last are complete."""
        while not self.ended and (not len(self.hashes) or self.hashes[0] == self.hashes[-1]):
            self.read()

    def take(
        self, limit: np.uint64 | None = None, side: Literal["left", "right"] = "left"
    ) -> tuple[NDArray[Any], NDArray[np.uint64]]:
        """The records that were read with hashes below a limit, or all, and their hashes.

        `side` is "right" for those at the limit too.
        """
        count = len(self.hashes)
        if limit is not None:
            count = int(np.searchsorted(self.hashes, limit, side))
        taken = self.records[:count], self.hashes[:count]
        self.records, self.hashes = self.records[count:], self.hashes[count:]
        return taken

    def take_to(self, last: np.uint64) -> NDArray[Any]:
        """The records whose hash is not above a limit, read as far as necessary."""
        while not self.ended and (not len(self.hashes) or self.hashes[-1] <= last):
            self.read()
        return self.take(last, "right")[0]


def ranges(
    cursors: Sequence[Cursor],
) -> Iterator[list[tuple[NDArray[Any], NDArray[np.uint64]]]]:
    """Ranges of hashes, ascending: all records that each cursor has in one, and their hashes."""
    while True:
        for cursor in cursors:
            cursor.fill()
        if not any(len(cursor.hashes) for cursor in cursors):
            return
        below = min((cursor.hashes[-1] for cursor in cursors if not cursor.ended), default=None)
        yield [cursor.take(below) for cursor in cursors]


def newest(sources: Sequence[Iterator[NDArray[Any]]], keys: KeyHashes) -> Iterator[NewestRecords]:
    """Merge sources, each in (hash, group) order without a key twice, the newest source first.

    Of a key that several have, the first one's record wins. A block is as large as what was read.
    """
    for taken in ranges([Cursor(source, keys) for source in sources]):
        parts = [records for records, _ in taken]
        lengths = [len(part) for part in parts]
        source = np.repeat(np.arange(len(parts)), lengths)
        position = np.concatenate([np.arange(length) for length in lengths])
        hash_ = np.concatenate([hashes for _, hashes in taken])
        group = np.concatenate([part["group"] for part in parts])
        order = np.argsort(hash_, kind="stable")
        same_hash = hash_[order[1:]] == hash_[order[:-1]]
        if (same_hash & (group[order[1:]] != group[order[:-1]])).any():
            order = np.lexsort((source, group, hash_))
        hash_, group = hash_[order], group[order]
        first = np.append(True, (hash_[1:] != hash_[:-1]) | (group[1:] != group[:-1]))
        order = order[first[: len(order)]]
        yield NewestRecords(parts, source[order], position[order])
