"""The rows of two tables side by side, both streamed in the order of their hashes."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl.checkpoint.merging import Keys
from tnctl.checkpoint.rows import keys_of
from tnctl.checkpoint.table_document import Table
from tnctl.errors import Failure


@dataclass(frozen=True)
class Block:
    """All rows of both tables whose hashes are in one range."""

    one: NDArray[Any]
    other: NDArray[Any]
    one_groups: NDArray[np.int64]  # of each row: its group's place in the names given
    other_groups: NDArray[np.int64]
    one_places: NDArray[np.int64]  # of the rows that both have
    other_places: NDArray[np.int64]


class Cursor:
    """The rows of a table that are not taken yet, a few blocks of them in memory."""

    def __init__(
        self, stream: Iterator[NDArray[Any]], table: Table | None, groups: list[str]
    ) -> None:
        self._places = np.zeros(1 << 16, np.int64)
        self._name, self._keys = "no table", Keys({})
        if table is not None:
            self._name, self._keys = f"table {table.name}", keys_of(table)
            for group in table.groups:
                self._places[group.number] = groups.index(group.name)
        self._stream = stream
        self._waiting: list[NDArray[Any]] = []
        self._hashes = np.zeros(0, np.uint64)
        self.ended = False

    def fill(self) -> None:
        """Have rows of two different hashes, or all that are left."""
        while not self.ended and (
            not len(self._hashes) or bool(self._hashes[0] == self._hashes[-1])
        ):
            records = next(self._stream, None)
            if records is None:
                self.ended = True
            elif len(records):
                self._hashes = np.concatenate([self._hashes, self._keys.hashes(records)])
                if (self._hashes[1:] < self._hashes[:-1]).any():
                    raise Failure(f"{self._name} has rows that are not in the order of hashes")
                self._waiting.append(records)

    @property
    def empty(self) -> bool:
        return self.ended and not len(self._hashes)

    @property
    def last(self) -> np.uint64:
        """The hash below which all rows are here."""
        found: np.uint64 = self._hashes[-1]
        return found

    def take(
        self, below: np.uint64 | None
    ) -> tuple[list[NDArray[Any]], NDArray[np.uint64], NDArray[np.int64]]:
        """The rows with hashes below a limit (None: all), their hashes, their groups' places."""
        count = len(self._hashes) if below is None else int(np.searchsorted(self._hashes, below))
        hashes, self._hashes = self._hashes[:count], self._hashes[count:]
        taken, left = [], []
        for records in self._waiting:
            taken.append(records[:count])
            left.append(records[count:])
            count -= len(taken[-1])
        self._waiting = [some for some in left if len(some)]
        groups = [self._places[some["group"]] for some in taken]
        return taken, hashes, np.concatenate([np.zeros(0, np.int64), *groups])


def matched(
    one: Iterator[NDArray[Any]],
    one_table: Table | None,
    other: Iterator[NDArray[Any]],
    other_table: Table | None,
    groups: list[str],
) -> Iterator[Block]:
    """Rows of two tables, paired by group name and id; `groups` has the names of both.

    The tables' numbers of a group may differ. A table that is None has no rows.
    """
    cursors = Cursor(one, one_table, groups), Cursor(other, other_table, groups)
    empties = [
        np.zeros(0, np.uint8 if table is None else table.record_dtype)
        for table in (one_table, other_table)
    ]
    while True:
        for cursor in cursors:
            cursor.fill()
        if all(cursor.empty for cursor in cursors):
            return
        below = min((cursor.last for cursor in cursors if not cursor.ended), default=None)
        (first, first_hashes, first_groups), (second, second_hashes, second_groups) = (
            cursor.take(below) for cursor in cursors
        )
        yield Block(
            np.concatenate([empties[0], *first]),
            np.concatenate([empties[1], *second]),
            first_groups,
            second_groups,
            *pairs(first_hashes, first_groups, second_hashes, second_groups),
        )


def pairs(
    first_hashes: NDArray[np.uint64],
    first_groups: NDArray[np.int64],
    second_hashes: NDArray[np.uint64],
    second_groups: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Places of the keys that both have; a key is there once in each."""
    hashes = np.concatenate([first_hashes, second_hashes])
    groups = np.concatenate([first_groups, second_groups])
    order = np.lexsort((groups, hashes))
    here, there = order[:-1], order[1:]
    same = (hashes[here] == hashes[there]) & (groups[here] == groups[there])
    # A damaged file may have a key twice; its checksum is not known yet.
    same &= (here < len(first_hashes)) & (there >= len(first_hashes))
    return here[same], there[same] - len(first_hashes)
