"""The rows of two tables side by side, both streamed in the order of their hashes."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl.checkpoint.merging import Cursor, DisorderError, Keys, ranges
from tnctl.checkpoint.rows import keys_of
from tnctl.checkpoint.table_document import Table
from tnctl.errors import Failure


@dataclass(frozen=True)
class MatchedRows:
    """All rows of both tables whose hashes are in one range."""

    first: NDArray[Any]
    second: NDArray[Any]
    first_groups: NDArray[np.int64]  # of each row: its group's place in the names given
    second_groups: NDArray[np.int64]
    first_places: NDArray[np.int64]  # of the rows that both have
    second_places: NDArray[np.int64]


def matched(
    first: Iterator[NDArray[Any]],
    first_table: Table | None,
    second: Iterator[NDArray[Any]],
    second_table: Table | None,
    groups: list[str],
) -> Iterator[MatchedRows]:
    """Rows of two tables, paired by group name and id; `groups` has the names of both.

    The tables' numbers of a group may differ. A table that is None has no rows. Raises Failure for
    rows that are not in order.
    """
    cursors, places = [], []
    for stream, table in ((first, first_table), (second, second_table)):
        keys = Keys({}) if table is None else keys_of(table)
        cursors.append(Cursor(stream, keys, None if table is None else table.record_dtype))
        places.append(np.zeros(1 << 16, np.int64))
        for group in () if table is None else table.groups:
            places[-1][group.number] = groups.index(group.name)
    try:
        for (left, left_hashes), (right, right_hashes) in ranges(cursors):
            left_groups, right_groups = (
                of_numbers[records["group"]] if len(records) else np.zeros(0, np.int64)
                for of_numbers, records in zip(places, (left, right), strict=True)
            )
            both = pairs(left_hashes, left_groups, right_hashes, right_groups)
            yield MatchedRows(left, right, left_groups, right_groups, *both)
    except DisorderError as error:
        name = (first_table or second_table).name  # type: ignore[union-attr]
        raise Failure(f"table {name} {error}") from error


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
    left, right = order[:-1], order[1:]
    same = (hashes[left] == hashes[right]) & (groups[left] == groups[right])
    # A damaged file may have a key twice; its checksum is not known yet.
    same &= (left < len(first_hashes)) & (right >= len(first_hashes))
    return left[same], right[same] - len(first_hashes)
