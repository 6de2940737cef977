"""Sorted arrays of keyed records merged in bounded memory; the newest of each key wins."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl.tables import key_hashes


class DisorderError(ValueError):
    """Keys that do not ascend, or are of no group: those of a damaged file."""


class Keys:
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
class Block:
    """The winners of a range of keys, in order: record `place[i]` of `parts[source[i]]`."""

    parts: list[NDArray[Any]]
    source: NDArray[np.intp]
    place: NDArray[np.intp]

    def of(self, sources: range, dtype: np.dtype[Any]) -> Iterator[NDArray[Any]]:
        """Those winners that came from these sources, as one array, unless there are none."""
        if [len(part) > 0 for part in self.parts].count(True) == 1:
            [number] = {int(self.source[0])}
            if number in sources:
                yield self.parts[number]
            return
        wanted = np.isin(self.source, sources)
        source, place = self.source[wanted], self.place[wanted]
        found = np.empty(len(source), dtype)
        for number in sources:
            if len(self.parts[number]):
                chosen = source == number
                found[chosen] = self.parts[number][place[chosen]]
        if len(found):
            yield found


class _Head:
    """What has been read of a source and is not merged yet."""

    def __init__(self, source: Iterator[NDArray[Any]], keys: Keys) -> None:
        self._source, self._keys = source, keys
        self.records: NDArray[Any] = np.empty(0, np.uint8)
        self.hashes = np.empty(0, np.uint64)
        self.ended = False
        self.more()

    def more(self) -> None:
        """Read on."""
        found = next((some for some in self._source if len(some)), None)
        if found is None:
            self.ended = True
            return
        hashes = self._keys.hashes(found)
        if len(self.hashes):
            found, hashes = np.append(self.records, found), np.append(self.hashes, hashes)
        # Else what is below a bound could not be told, and merging might never end.
        if (hashes[1:] < hashes[:-1]).any():
            raise DisorderError("has records that are not in the order of their hashes")
        self.records, self.hashes = found, hashes

    def take(self, bound: np.uint64 | None) -> tuple[NDArray[Any], NDArray[np.uint64]]:
        """The records below a hash, or all, and their hashes."""
        count = len(self.hashes) if bound is None else int(np.searchsorted(self.hashes, bound))
        taken = self.records[:count], self.hashes[:count]
        self.records, self.hashes = self.records[count:], self.hashes[count:]
        return taken


def newest(sources: Sequence[Iterator[NDArray[Any]]], keys: Keys) -> Iterator[Block]:
    """Merge sources, each in (hash, group) order without a key twice, the newest source first.

    Of a key that several have, the first one's record wins. A block is as large as what was read.
    """
    heads = [_Head(source, keys) for source in sources]
    while any(len(head.hashes) for head in heads):
        # A source that goes on may have more of its last hash: only what is below is complete.
        for head in heads:
            while not head.ended and (not len(head.hashes) or head.hashes[0] == head.hashes[-1]):
                head.more()
        bound = min((head.hashes[-1] for head in heads if not head.ended), default=None)
        taken = [head.take(bound) for head in heads]
        yield _winners([part for part, _ in taken], [hashes for _, hashes in taken])


def _winners(parts: list[NDArray[Any]], hashes: list[NDArray[np.uint64]]) -> Block:
    """The first part's record of each key, in (hash, group) order."""
    with_any = [number for number, part in enumerate(parts) if len(part)]
    if not with_any:
        return Block(parts, np.empty(0, np.intp), np.empty(0, np.intp))
    if len(with_any) == 1:
        [number] = with_any
        count = len(parts[number])
        return Block(parts, np.full(count, number, np.intp), np.arange(count))
    source = np.concatenate([np.full(len(parts[n]), n, np.intp) for n in with_any])
    place = np.concatenate([np.arange(len(parts[n])) for n in with_any])
    hash_ = np.concatenate([hashes[n] for n in with_any])
    group = np.concatenate([parts[n]["group"] for n in with_any])
    order = np.argsort(hash_, kind="stable")
    same_hash = hash_[order[1:]] == hash_[order[:-1]]
    if (same_hash & (group[order[1:]] != group[order[:-1]])).any():
        order = np.lexsort((source, group, hash_))
        same_hash = hash_[order[1:]] == hash_[order[:-1]]
    first = np.ones(len(order), bool)
    first[1:] = ~(same_hash & (group[order[1:]] == group[order[:-1]]))
    order = order[first]
    return Block(parts, source[order], place[order])
