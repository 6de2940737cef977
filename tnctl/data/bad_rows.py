"""Rows that cannot be used: named in one line, or left out and counted (data.bad_rows).

Rows and windows beyond the limits of tnctl/limits.py are among them.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tnctl import limits
from tnctl.data import Bools, Float64s, Int32s, Int64s
from tnctl.data.file_pieces import BadRows, Where, fault_at
from tnctl.errors import Failure, UserError
from tnctl.progress import say

T = TypeVar("T")
SplitName = Literal["train", "validation", "test"]
SPLITS: tuple[SplitName, ...] = ("train", "validation", "test")


class BadRowsError(Failure):
    """Rows of a table with values that they must not have.

    The message is about the first of them. `rows` (int64, ascending) may leave out some, but not
    the first.
    """

    def __init__(self, message: str, rows: Any) -> None:
        super().__init__(message)
        self.rows: Int64s = np.asarray(rows, np.int64)


def refuse(
    wrong: Bools, where: Where, fault: Callable[[int], str], column: str | None = None
) -> None:
    """Raise `BadRowsError` when any row is `wrong` (bool [rows]), with the fault of the first."""
    if wrong.any():
        rows = np.flatnonzero(wrong)
        first = int(rows[0])
        raise BadRowsError(fault_at(where(first), fault(first), column), rows)


@contextmanager
def as_rows(owners: Int64s | None, where: Where) -> Iterator[Where]:
    """A `Where` of values, made of the `Where` of rows.

    A `BadRowsError` in the block names values; it is raised again with the rows that have them.

    `owners` int64 [values] has the row of each value, or is None when every row has one.
    """
    if owners is None:
        yield where
        return
    try:
        # A fault of a whole column is reported with its first row, even if it has no value.
        yield lambda value: where(int(owners[value]) if len(owners) else 0)
    except BadRowsError as error:
        raise BadRowsError(str(error), np.unique(owners[error.rows])) from None


def chosen(where: Where, rows: Int64s) -> Where:
    """The places of the chosen rows of a table: row k is the row rows[k], int64 [chosen]."""
    return lambda row: where(int(rows[row]))


class Skipped(BadRows):
    """The rows that one pass over a split, or over the input of a command, left out.

    `split` is one of SPLITS, or else the name of the input. Each process that reads a part has one,
    of which another may `add` the counts.
    """

    def __init__(self, split: str, limit: int) -> None:
        """`limit` is data.bad_rows."""
        super().__init__()
        self.split, self.limit = split, limit

    def add(self, rows: int, reason: str) -> None:
        """As `note`. Raises `Failure` when there are more rows than data.bad_rows allows."""
        self.note(rows, reason)
        self.check()

    def take(self, bad: BadRows) -> None:
        """As `join`. Raises `Failure` when there are more rows than data.bad_rows allows."""
        self.join(bad)
        self.check()

    def check(self) -> None:
        """Raise `Failure` when there are more rows than data.bad_rows allows."""
        if self.rows > self.limit:
            raise Failure(
                f"{self.source} has over {self.limit:,} rows that cannot be read, the most "
                f"that data.bad_rows allows. The first: {self.first}"
            )

    @property
    def source(self) -> str:
        """What the rows are of, as messages name it."""
        return f"data.{self.split}" if self.split in SPLITS else self.split

    def report(self) -> None:
        """Say how many rows were left out, if there were any."""
        if self.rows:
            say(
                f"{self.source}: {self.rows:,} rows cannot be read and were left out. "
                f"The first: {self.first}"
            )

    def good(
        self, table: pa.Table, where: Where, read: Callable[[pa.Table, Where], T]
    ) -> tuple[T, Int64s]:
        """The result of `read` for the rows that it can read, and which these are (int64 [n]).

        Raises `BadRowsError` when no row may be bad.
        """
        rows = np.arange(table.num_rows)
        while True:
            try:
                result = read(table, chosen(where, rows))
            except BadRowsError as error:
                if self.limit == 0:
                    raise
                # One column is read after the other, and of another an earlier row may be bad.
                self.note(len(error.rows), str(error), where(int(rows[error.rows[0]])))
                kept = np.delete(np.arange(len(rows)), error.rows)
                table, rows = table.take(kept), rows[kept]
            else:
                self.check()
                return result, rows


def refuse_many(lengths: pa.Array, most: int, kind: str, column: str, where: Where) -> Int64s:
    """Lengths of the values of a column as int64 [rows], 0 where null.

    Raises `BadRowsError` where one is over `most`; `kind` names what is counted.
    """
    counts = pc.fill_null(lengths, 0).to_numpy(zero_copy_only=False).astype(np.int64)
    refuse(
        counts > most,
        where,
        lambda row: (
            f"{counts[row]:,} {kind}, and a row has at most {most:,}. Split or remove the row"
        ),
        column,
    )
    return counts


def refuse_many_ids(counts: Float64s, subject: str, where: Where) -> None:
    """Raise `BadRowsError` for rows with more ids (counts: [rows]) than a row may have."""
    refuse(
        counts > limits.ROW_VALUES,
        where,
        lambda row: (
            f"{subject} {counts[row]:,.0f} ids, and a row has at most {limits.ROW_VALUES:,}. Give "
            "slots a max_length, or remove the row"
        ),
    )


def refuse_long_rows(offsets: Sequence[Int32s | None], where: Where) -> None:
    """Raise `BadRowsError` for rows with more ids in all slots than a row may have.

    `offsets` has the offsets int32 [rows + 1] of each slot's cells; None: one id in every row.
    """
    lengths = [np.diff(ends) for ends in offsets if ends is not None]
    one_each = len(offsets) - len(lengths)
    # The sum of the longest cells is beyond the limit in hardly any data.
    if one_each + sum(int(cells.max(initial=0)) for cells in lengths) > limits.ROW_VALUES:
        counts = np.sum(lengths, axis=0, dtype=np.float64) + one_each
        refuse_many_ids(np.asarray(counts), "the slots have", where)


def refuse_large_window(ids: float) -> None:
    """Raise `UserError` for more ids than a window may have."""
    if ids > limits.WINDOW_IDS:
        raise UserError(
            f"a window has over {limits.WINDOW_IDS:,} ids. Take a smaller data.window, or give "
            "slots a max_length"
        )
