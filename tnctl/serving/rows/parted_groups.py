"""A share group whose rows are in several sets of files, each of a range of hashes."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl.errors import Failure
from tnctl.serving.rows.export_document import FileGroup
from tnctl.serving.rows.file_format import FileFormat, Lookup, StoredGroup, hashes_of

HashRange = tuple[int, int]  # the first and the last, both inclusive
ALL_HASHES: HashRange = (0, 2**64 - 1)


def overlap(a: HashRange, b: HashRange) -> bool:
    """Whether two ranges have a hash in common."""
    return a[0] <= b[1] and b[0] <= a[1]


class PartedGroup:
    """The parts of a group in one export, those that can have some hashes: a `StoredGroup`.

    A group that is not in parts is one part.
    """

    def __init__(
        self,
        entry: FileGroup,
        opened: Callable[[FileGroup], StoredGroup],
        hashes: HashRange = ALL_HASHES,
    ) -> None:
        """`opened` opens the files of a part."""
        self._group = entry.group
        self.parts = [
            (of_part, opened(part))
            for part, of_part in zip(entry.stored, entry.ranges, strict=True)
            if overlap(of_part, hashes)
        ]

    def part_with(self, hash_: int) -> StoredGroup:
        """The part whose range has a hash."""
        return next(part for (first, last), part in self.parts if first <= hash_ <= last)

    def sources(self, count: int = 1) -> list[Iterator[NDArray[Any]]]:
        """As in StoredGroup, one part after the other."""
        of_parts = [(of_part, part.sources(count)) for of_part, part in self.parts]

        def joined(number: int) -> Iterator[NDArray[Any]]:
            for of_part, sources in of_parts:
                if number < len(sources):
                    yield from self._checked(of_part, sources[number])

        most = max(len(sources) for _, sources in of_parts)
        return [joined(number) for number in range(most)]

    def close(self) -> None:
        """Close the files."""
        for _, part in self.parts:
            part.close()

    def _checked(
        self, of_part: HashRange, source: Iterator[NDArray[Any]]
    ) -> Iterator[NDArray[Any]]:
        """The same records. Raises Failure for hashes that the part cannot have."""
        for records in source:
            if len(records) and of_part != ALL_HASHES:
                first, last = hashes_of(self._group, records["id"][[0, -1]]).tolist()
                if not of_part[0] <= first <= last <= of_part[1]:
                    raise Failure(
                        f"a part of group {self._group} has rows of another part. Export again"
                    )
            yield records


def lookup_in_parts(
    format: FileFormat, entry: FileGroup, stored: Sequence[PartedGroup], hashes: HashRange
) -> Lookup:
    """Looks ids up in a group's files of a chain of exports, the newest first.

    Exports may be cut into other parts than those before them: between two cuts of any of them each
    has one part.
    """
    starts = sorted({max(first, hashes[0]) for group in stored for (first, _), _ in group.parts})
    lookups = [
        format.lookup(entry, [group.part_with(start) for group in stored]) for start in starts
    ]
    if len(lookups) == 1:
        return lookups[0]
    edges = np.array(starts, np.uint64)

    def of_ids(ids: NDArray[np.uint64]) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        places = np.searchsorted(edges, hashes_of(entry.group, ids), side="right") - 1
        rows = np.zeros((len(ids), entry.shape.columns), np.float32)
        known = np.zeros(len(ids), bool)
        for number, lookup in enumerate(lookups):
            chosen = np.flatnonzero(places == number)
            if len(chosen):
                rows[chosen], known[chosen] = lookup(np.ascontiguousarray(ids[chosen]))
        return rows, known

    return of_ids
