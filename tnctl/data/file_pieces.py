"""Files as pieces: some rows of one file as Arrow columns, and where each row came from.

`FileReader` is what all formats have in common.
"""

import bisect
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO, ClassVar, NamedTuple
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tnctl import files
from tnctl.data import Int64s
from tnctl.errors import Failure, UserError, did_you_mean
from tnctl.progress import say
from tnctl.schema import Conf

Place = tuple[str, int]  # a file, and a line or row there, from 1
Where = Callable[[int], Place]  # maps a row of a table, from 0, to where it came from
Tables = Iterator[tuple[pa.Table, Where]]


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


def fault_at(place: Place, fault: str, column: str | None = None) -> str:
    """What is wrong with a row, or with its value of a column, as every message has it."""
    word = "line" if isinstance(place, Line) else "record" if isinstance(place, Record) else "row"
    of_column = "" if column is None else f", column '{column}'"
    return f"{place[0]}, {word} {place[1]}{of_column}: {fault}"


def counted(url: str, first: int) -> Where:
    """The places of consecutive rows of `url`, whose first has number `first`."""
    return lambda row: (url, first + row)


def at_lines(url: str, lines: Sequence[int] | NDArray[np.integer]) -> Where:
    """The places of rows that are at these lines [rows] of a file."""
    return lambda row: Line(url, int(lines[row]))


def shifted(where: Where, rows: int) -> Where:
    """The places of a slice of rows that skips the first `rows`."""
    return lambda row: where(row + rows)


def row_numbers(where: Where, rows: int) -> Int64s:
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
class BadRows:
    """Rows that cannot be read: how many, why the first of them cannot, and where it is."""

    rows: int = 0
    first: str = ""
    first_at: Place | None = None  # None: the format does not tell

    def note(self, rows: int, reason: str, at: Place | None = None) -> None:
        """Count rows, the first of which is at `at`. Rows may be counted in any order."""
        if rows and (not self.first or is_before(at, self.first_at)):
            self.first, self.first_at = reason, at
        self.rows += rows

    def join(self, other: "BadRows") -> None:
        """Count the rows that another has counted."""
        self.note(other.rows, other.first, other.first_at)


@dataclass
class Piece:
    """Some consecutive rows of one file: Arrow columns, and where each row came from.

    `bad` are the rows before or among them that could not be read.
    """

    table: pa.Table
    where: Where
    bad: BadRows = field(default_factory=BadRows)


class FileFaults:
    """The bad rows of a file: counted and skipped when `allowed` (data.bad_rows), else refused."""

    def __init__(self, allowed: int) -> None:
        self._allowed = allowed
        self._bad = BadRows()

    def add(self, at: Place, fault: str, column: str | None = None, rows: int = 1) -> None:
        """Skip rows, the first of which is at `at` and has this fault; or raise it as `Failure`."""
        reason = fault_at(at, fault, column)
        if not self._allowed:
            raise Failure(reason)
        self._bad.note(rows, reason, at)

    def piece(self, table: pa.Table, where: Where) -> Piece:
        """A piece with the rows skipped since the previous piece."""
        piece, self._bad = Piece(table, where, self._bad), BadRows()
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


def require_named(needed: Iterable[str], names: Sequence[str] | None) -> None:
    """Refuse a column that data.columns lacks, where the conf has it (`names`)."""
    for name in needed:
        if names is not None and name not in names:
            raise UserError(f"data.columns has no '{name}'. {did_you_mean(name, names)}")


MISSING = "__HIVE_DEFAULT_PARTITION__"


def partitions_of(url: str) -> dict[str, str | None]:
    """The columns that the folders of a file name, and their values; None where it is missing.

    Of two folders with one column the inner one counts. Raises `Failure` for what is not UTF-8.
    """
    scheme, separator, rest = url.rpartition("://")
    if separator:
        # What comes before is a host or bucket, with it maybe a user and a password.
        rest = rest.partition("/")[2]
    if scheme.endswith(("http", "https")):
        rest = rest.partition("?")[0]
    folders = [name.partition("=") for name in rest.split("/")[:-1]]
    texts = {_decoded(key, url): _decoded(text, url) for key, sign, text in folders if sign}
    return {key: None if text == MISSING else text for key, text in texts.items() if key}


def _decoded(text: str, url: str) -> str:
    """A name or value without Hive's escapes, such as %3A for a colon."""
    try:
        decoded = unquote(text, errors="strict")
        decoded.encode()
    except UnicodeError as error:
        raise Failure(f"{url!r}: a folder's name is not UTF-8. Rename it") from error
    return decoded


HEAD_BYTES = 4 << 20
HEAD_LINES = 1000


class FileReader(ABC):
    """Reads the files of one format, with the settings of a conf.

    A format says how a file becomes tables (`tables`), and what can be known of it without reading
    all of it (`stored_columns`, `require_stored`, `counts`). All else is the same for every format:
    bad rows are named by file, row and column, or skipped and counted (data.bad_rows), and a
    column that a file lacks and one of its folders names (dt=2026-11-20/) has the folder's value in
    each row.
    """

    lines_before = 0  # the lines of each file before its first row
    has_footer: ClassVar[bool] = False  # which tells the number of rows

    def __init__(self, conf: Conf, skip_rows: int = 0) -> None:  # noqa: ARG002
        """`skip_rows` lines are passed over at the start of each file of text."""
        self.conf, self.data = conf, conf.data

    @abstractmethod
    def tables(self, url: str, needed: list[str], faults: FileFaults) -> Tables:
        """The rows of a file, in order, with the columns `needed`, and where each is.

        Rows that cannot be read are left out and added to `faults`, before the table that they are
        in or before is returned. Raises `Failure` naming the file for all else.
        """

    def pieces(
        self, url: str, needed: list[str], first: int = 0, end: int | None = None
    ) -> Iterator[Piece]:
        """The rows of one file, in order, with the columns `needed`.

        With `end` only those of row groups `first` to `end` - 1. Raises `Failure` naming the file,
        and the row where it is one, for what cannot be read.
        """
        values, stored = partitions_of(url), self._stored(url, needed)
        faults = FileFaults(self.data.bad_rows)
        if end is None:
            tables = self.tables(url, stored, faults)
        elif isinstance(self, GroupedReader):
            tables = self.tables_of_groups(url, stored, faults, first, end)
        else:
            raise Failure(f"{url} has no row groups, and some of them are to be read")
        for table, where in tables:
            if stored != needed:
                columns = {
                    name: table.column(name)
                    if name in stored
                    else pa.repeat(pa.scalar(values[name], pa.string()), table.num_rows)
                    for name in needed
                }
                table = pa.table(columns)
            yield faults.piece(table, where)

    def _stored(self, url: str, needed: list[str]) -> list[str]:
        """The columns that are read from the file itself, at least one for the number of rows."""
        of_folders = partitions_of(url).keys() & set(needed)
        present = self.stored_columns(url) if of_folders else None
        if present is None or not (absent := of_folders - set(present)):
            return needed
        return [name for name in needed if name not in absent] or present[:1]

    def columns(self, url: str) -> list[str] | None:
        """The names of a file's columns and of its folders'; None where only rows could tell.

        Only the beginning, or the footer, of the file is read.
        """
        columns = self.stored_columns(url)
        return None if columns is None else list(dict.fromkeys([*columns, *partitions_of(url)]))

    def stored_columns(self, url: str) -> list[str] | None:  # noqa: B027
        """As `columns`, of the file alone."""

    def require(self, url: str, needed: list[str]) -> None:
        """Raise as `pieces` does for a file that is not there, is empty, or lacks a column.

        Only the beginning, or the footer, of the file is read. Where rows name their columns, no
        column is looked for.
        """
        self.require_stored(url, self._stored(url, needed))

    def require_stored(self, url: str, needed: list[str]) -> None:  # noqa: ARG002
        """As `require`, of columns of the file itself."""
        with files.open_input(url):
            pass

    @abstractmethod
    def counts(self, url: str) -> list[int]:
        """How far the rows of a file are numbered: in each row group, else in the whole file.

        Where there is no footer it reads the file, and parses no row.
        """

    def count_head(self, stream: BinaryIO) -> tuple[int, int]:
        """The whole rows in the first HEAD_BYTES of a stream, and their bytes."""
        text = files.read_most(stream, HEAD_BYTES)
        return text.count(b"\n"), text.rfind(b"\n") + 1


class TextReader(FileReader):
    """Reads files of lines, after `skip_rows` lines at the start of each."""

    def __init__(self, conf: Conf, skip_rows: int = 0) -> None:
        super().__init__(conf)
        self.skip_rows = self.lines_before = skip_rows

    def counts(self, url: str) -> list[int]:
        lines, end = 0, b"\n"
        with files.open_input(url) as stream:
            while text := files.read_most(stream, HEAD_BYTES):
                lines += text.count(b"\n")
                end = text[-1:]
        return [lines + (end != b"\n")]


class GroupedReader(FileReader):
    """Reads files of row groups, any of which can be read without the others."""

    @abstractmethod
    def tables_of_groups(
        self, url: str, needed: list[str], faults: FileFaults, first: int, end: int | None
    ) -> Tables:
        """As `tables`, of row groups `first` to `end` - 1 (None: the last), and no others."""

    def tables(self, url: str, needed: list[str], faults: FileFaults) -> Tables:
        return self.tables_of_groups(url, needed, faults, 0, None)
