"""Rows that cannot be used: named in one line, or left out and counted (data.bad_rows)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tnctl.data.file_pieces import Place, Where, is_before, named
from tnctl.data.formats.prepared_document import SPLITS
from tnctl.errors import Failure
from tnctl.progress import say

T = TypeVar("T")


class BadRowsError(Failure):
    """Rows of a table with values that they must not have.

    The message is about the first of them. `rows` (int64, ascending) may leave out some, but not
    the first.
    """

    def __init__(self, message: str, rows: Any) -> None:
        super().__init__(message)
        self.rows: NDArray[np.int64] = np.asarray(rows, np.int64)


def refuse(
    wrong: NDArray[np.bool_], where: Where, fault: Callable[[int], str], column: str | None = None
) -> None:
    """Raise `BadRowsError` when any row is `wrong` (bool [rows]), with the fault of the first."""
    if wrong.any():
        rows = np.flatnonzero(wrong)
        first = int(rows[0])
        of_column = f", column '{column}'" if column is not None else ""
        raise BadRowsError(f"{named(where(first))}{of_column}: {fault(first)}", rows)


@contextmanager
def owned(owners: NDArray[np.int64] | None, where: Where) -> Iterator[Where]:
    """The places of the rows of values; bad values are raised as the rows that have them.

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


def chosen(where: Where, rows: NDArray[np.int64]) -> Where:
    """The places of the chosen rows of a table: row k is the row rows[k], int64 [chosen]."""
    return lambda row: where(int(rows[row]))


@dataclass
class Skipped:
    """How many rows of one pass over a split, or over the input of a command, were left out.

    `split` is one of SPLITS, or else the name of the input; `first` says why the first was, and
    `first_at` where it is, if that is known. Each process that reads a part has one, of which
    another may `add` the counts.
    """

    split: str
    limit: int
    rows: int = 0
    first: str = ""
    first_at: Place | None = None

    def add(self, rows: int, reason: str, first: Place | None = None) -> None:
        """Count rows. Raises `Failure` when there are more than data.bad_rows allows."""
        self.note(rows, reason, first)
        self.check()

    def note(self, rows: int, reason: str, first: Place | None = None) -> None:
        """Count rows of which more may be bad for other reasons, and come before these."""
        if rows and (not self.first or is_before(first, self.first_at)):
            self.first, self.first_at = reason, first
        self.rows += rows

    def check(self) -> None:
        """Raise `Failure` when there are more than data.bad_rows allows."""
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
    ) -> tuple[T, NDArray[np.int64]]:
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
