"""Pieces of files: some rows of one file as Arrow columns, and where each row came from.

`FileReader` is what the reader of each format offers.
"""

import bisect
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tnctl import files
from tnctl.errors import Failure, did_you_mean
from tnctl.progress import say

Place = tuple[str, int]  # a file, and a line or row there, from 1
Where = Callable[[int], Place]  # maps a row of a table, from 0, to where it came from


class Line(NamedTuple):
    """Where a row is in a file of text."""

    url: str
    number: int


class Record(NamedTuple):
    """Where a row is in a file of records."""

    url: str
    number: int


def is_before(place: Place | None, other: Place | None) -> bool:
    """Whether a place is in the same file as another, and before it; not where one is not known."""
    if place is None or other is None:
        return False
    return place[0] == other[0] and place[1] < other[1]


def named(place: Place) -> str:
    """The place of a row as messages name it."""
    word = "line" if isinstance(place, Line) else "record" if isinstance(place, Record) else "row"
    return f"{place[0]}, {word} {place[1]}"


def counted(url: str, first: int) -> Where:
    """The places of consecutive rows of `url`, whose first has number `first`."""
    return lambda row: (url, first + row)


def shifted(where: Where, rows: int) -> Where:
    """The places of a slice of rows that skips the first `rows`."""
    return lambda row: where(row + rows)


def row_numbers(where: Where, rows: int) -> NDArray[np.int64]:
    """The number of each row of a table in its file: int64 [rows], ascending.

    `where` is asked a few times only where numbers follow each other.
    """
    numbers = np.empty(rows, np.int64)
    spans = [(0, rows - 1, where(0)[1], where(rows - 1)[1])] if rows else []
    while spans:
        first, last, low, high = spans.pop()
        if high - low == last - first:
            numbers[first : last + 1] = np.arange(low, high + 1)
            continue
        middle = (first + last) // 2
        spans.append((first, middle, low, where(middle)[1]))
        spans.append((middle + 1, last, where(middle + 1)[1], high))
    return numbers


def rows_up_to(where: Where, rows: int, number: int) -> int:
    """How many of the first `rows` rows have a number in their file that is at most `number`."""
    return bisect.bisect_right(range(rows), number, key=lambda row: where(row)[1])


@dataclass
class Piece:
    """Some consecutive rows of one file: Arrow columns, and where each row came from.

    `skipped` rows before or among them could not be read; `reason` says why the first could not,
    and `first` where it is, in formats that know.
    """

    table: pa.Table
    where: Where
    skipped: int = 0
    reason: str = ""
    first: Place | None = None


class BadRows:
    """The bad rows of a file: counted and skipped when `allowed` (data.bad_rows), else refused."""

    def __init__(self, allowed: int) -> None:
        self._allowed = allowed
        self._rows = 0
        self._reason = ""
        self._first: Place | None = None

    def add(self, reason: str, rows: int = 1, first: Place | None = None) -> None:
        """Skip rows, the first of which is bad for this reason; or raise it as `Failure`.

        `first` is where that one is; rows may be added in any order.
        """
        if not self._allowed:
            raise Failure(reason)
        self._rows += rows
        if not self._reason or is_before(first, self._first):
            self._reason, self._first = reason, first

    def piece(self, table: pa.Table, where: Where) -> Piece:
        """A piece with the number of rows skipped since the previous piece."""
        piece = Piece(table, where, self._rows, self._reason, self._first)
        self._rows, self._reason, self._first = 0, "", None
        return piece


_met: set[str] = set()


def report_absent(
    url: str, needed: Sequence[str], filled: Iterable[bool], present: Callable[[], Iterable[str]]
) -> None:
    """Report columns without any value (`filled`: which have one) where a file was read first.

    For formats whose rows name their columns: a slot may be rare, or its name be wrong. Each
    column is reported once; `present` has the names of the columns that the rows do have.
    """
    for name, has_values in zip(needed, filled, strict=True):
        if name not in _met and not has_values:
            names = sorted(present())
            near = "All were null" if name in names else did_you_mean(name, names[:100])
            say(f"{url}: no value of column '{name}' yet. {near}")
        _met.add(name)


class EmptyError(Failure):
    """All files of a split are without any row."""


class EmptyFileError(Failure):
    """A file of no bytes, at `url`."""

    def __init__(self, url: str) -> None:
        self.url = url
        super().__init__(
            f"{url} is empty. Write the file again, leave it out of data, or have files without "
            "any byte passed over with data.skip_empty=true"
        )


def require(url: str, needed: Iterable[str], present: Iterable[str]) -> None:
    """Refuse a file that lacks a column, naming the nearest one it has."""
    times = Counter(present)
    for name in needed:
        if name not in times:
            raise Failure(f"{url} has no column '{name}'. {did_you_mean(name, list(times))}")
        if times[name] > 1:
            raise Failure(f"{url} has two columns '{name}'. Rename one of them")


HEAD_BYTES = 4 << 20
HEAD_LINES = 1000


class FileReader(ABC):
    """Reads the files of one format, with the settings that it was made with."""

    @abstractmethod
    def pieces(self, url: str, needed: list[str]) -> Iterator[Piece]:
        """The rows of one file, in order, with the columns `needed`.

        Raises `Failure` naming the file, and the line or row where it is one, for what cannot be
        read.
        """

    def pieces_of_groups(
        self,
        url: str,
        needed: list[str],  # noqa: ARG002
        first: int,  # noqa: ARG002
        end: int | None,  # noqa: ARG002
    ) -> Iterator[Piece]:
        """As `pieces`, of row groups `first` to `end` - 1 (None: the last), and no others."""
        raise Failure(f"{url} has no row groups, and some of them are to be read")

    def columns(self, url: str) -> list[str] | None:  # noqa: B027
        """The names of a file's columns, by its beginning; None where only all rows could tell."""

    def require(self, url: str, needed: list[str]) -> None:  # noqa: ARG002
        """Raise as `pieces` does for a file that is not there, is empty, or lacks a column.

        Only the beginning, or the footer, of the file is read. Where rows name their columns, no
        column is looked for.
        """
        with files.open_input(url):
            pass

    @property
    def lines_before(self) -> int:
        """The lines of each file before its first row; none in files of records."""
        return 0

    def counts(self, url: str) -> list[int]:
        """How far the rows of a file are numbered: in each row group, else in the whole file.

        For text the number of its lines. It reads the file, and parses no row.
        """
        lines, end = 0, b"\n"
        with files.open_input(url) as stream:
            while text := files.read_most(stream, HEAD_BYTES):
                lines += text.count(b"\n")
                end = text[-1:]
        return [lines + (end != b"\n")]

    def count_head(self, stream: BinaryIO) -> tuple[int, int]:
        """The whole rows in the first HEAD_BYTES of a stream, and their bytes."""
        text = files.read_most(stream, HEAD_BYTES)
        return text.count(b"\n"), text.rfind(b"\n") + 1


class TextReader(FileReader):
    """Reads files of lines, after `skip_rows` lines at the start of each."""

    skip_rows: int

    @property
    def lines_before(self) -> int:
        return self.skip_rows


class GroupedReader(FileReader):
    """Reads files of row groups, any of which can be read without the others."""

    @abstractmethod
    def group_rows(self, url: str) -> list[int]:
        """The rows of each row group of a file."""

    def counts(self, url: str) -> list[int]:
        return self.group_rows(url)

    def pieces(self, url: str, needed: list[str]) -> Iterator[Piece]:
        return self.pieces_of_groups(url, needed, 0, None)
