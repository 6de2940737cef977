"""CSV and TSV files, block by block.

A file is cut into blocks at line ends, so a row is one line, quoted or not. Blocks are read into
columns by C, several at a time, and are returned in the order of the file.
"""

import contextlib
import csv
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tnctl import limits
from tnctl.data.file_pieces import Line, Piece, TextReader, Where, require
from tnctl.data.formats.text_lines import blocks, is_utf8, numbers_of
from tnctl.data.numbers import MEND
from tnctl.data.read_ahead import in_order
from tnctl.errors import Failure, UserError, did_you_mean, quoted, refuse_if
from tnctl.tables import text

DELIMITERS = ",;\t|"  # that a header is tried with
Blocks = Iterator[tuple[int, memoryview]]  # whole lines, with the number of the first, from 1


@dataclass(frozen=True)
class CsvReader(TextReader):
    """Reads CSV, and TSV where the delimiter is a tab.

    Columns of `of_text` become string (binary when check_utf8 is false), others float64 with
    nulls. Rows that cannot be read are left out and counted when bad_rows allows any.
    """

    delimiter: str
    names: tuple[str, ...] | None  # of the columns; None: they are in a header
    strip: bool
    missing: tuple[str, ...]
    of_text: frozenset[str]
    check_utf8: bool
    bad_rows: int
    skip_rows: int  # lines at the start of a file
    # Columns of numbers, and the way out of a text in them where it is not the usual one.
    ways: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        refuse_if(
            not self.delimiter.isascii(),
            f"data.delimiter must be an ASCII character. Received: {self.delimiter!r}",
        )

    @property
    def quote(self) -> bytes | None:
        """The quoting character; none for tabs, since logs in TSV have stray quotes."""
        return None if self.delimiter == "\t" else b'"'

    @property
    def lines_before(self) -> int:
        return self.skip_rows + (self.names is None)

    def pieces(self, url: str, needed: list[str]) -> Iterator[Piece]:
        with closing(blocks(url, self.skip_rows)) as parts:
            names, rows = self._names_and_rows(url, parts, needed)
            if not names:
                return
            layout = _FileLayout(self, url, names, needed)
            yield from in_order(_parse, (_Block(layout, line, block) for line, block in rows))

    def require(self, url: str, needed: list[str]) -> None:
        with closing(blocks(url, self.skip_rows)) as parts:
            self._names_and_rows(url, parts, needed)

    def _names_and_rows(
        self, url: str, parts: Blocks, needed: list[str]
    ) -> tuple[list[str], Blocks]:
        """The names of the columns, none of a file without a line, and the lines of the rows."""
        if self.names is None:
            header, rows = _split_header(parts)
            return self._names(url, header, needed) if header else [], rows
        for name in needed:
            if name not in self.names:
                raise UserError(f"data.columns has no '{name}'. {did_you_mean(name, self.names)}")
        return list(self.names), parts

    def columns(self, url: str) -> list[str] | None:
        if self.names is not None:
            return list(self.names)
        with closing(blocks(url, self.skip_rows)) as parts:
            return self._names(url, _split_header(parts)[0], [])

    def _names(self, url: str, header: bytes, needed: list[str]) -> list[str]:
        """The names in a header, which must have those needed."""
        if header.count(self.delimiter.encode()) >= limits.ROW_VALUES:
            raise Failure(
                f"{url}: the header has over {limits.ROW_VALUES:,} columns, the most that a file "
                "may have. Set data.delimiter and data.format to what the file is"
            )
        try:
            line = header.decode()
            names = _split(line, self.delimiter, self.quote)
        except (ValueError, csv.Error) as error:
            raise Failure(
                f"{url}: the header is not UTF-8 CSV. Write it again, or set data.header=false and "
                "data.columns"
            ) from error
        names = [name.strip() for name in names] if self.strip else names
        if header.lstrip().startswith(b"{") and not set(needed) <= set(names):
            raise Failure(
                f"{url} looks like JSON lines. Set data.format=jsonl; to score, format=jsonl"
            )
        if delimiter := _other_delimiter(line, names, needed):
            raise Failure(
                f"{url} has no column {quoted(_first_absent(needed, names))}: its header has "
                f'{quoted(delimiter)} between the names. Give "data.delimiter={quoted(delimiter)}"'
            )
        require(url, needed, names)
        return names


def _split(line: str, delimiter: str, quote: bytes | None) -> list[str]:
    """The values of a line. Raises `ValueError` or `csv.Error`."""
    if quote is None:
        return line.split(delimiter)
    csv.field_size_limit(max(csv.field_size_limit(), len(line)))
    return next(csv.reader([line], delimiter=delimiter, strict=True))


def _other_delimiter(line: str, names: Sequence[str], needed: Sequence[str]) -> str | None:
    """The delimiter that gives a header the most of the columns `needed`; None: the conf's."""
    best, most = None, len(set(needed) & set(names))
    for delimiter in DELIMITERS if most < len(set(needed)) else "":
        with contextlib.suppress(csv.Error):
            others = {name.strip() for name in _split(line, delimiter, b'"')}
            if (count := len(others & set(needed))) > most:
                best, most = delimiter, count
    return best


def _first_absent(needed: Sequence[str], names: Sequence[str]) -> str:
    return next(name for name in needed if name not in names)


def _split_header(parts: Blocks) -> tuple[bytes, Blocks]:
    """The first line that is not empty (b"": there is none), and the lines after it."""
    for line, block in parts:
        whole = bytes(block)
        if filled := whole.lstrip(b"\r\n"):
            end = whole.find(b"\n", len(whole) - len(filled)) + 1 or len(whole)
            header = whole[:end].rstrip(b"\r\n").rpartition(b"\n")[2]
            rest = [(line + text.line_ends(block[:end]), block[end:])] if end < len(block) else []
            return header, chain(rest, parts)
    return b"", iter(())


class _FileLayout:
    """How the lines of one file become columns."""

    def __init__(self, reader: CsvReader, url: str, names: list[str], needed: list[str]) -> None:
        self.reader, self.url, self.needed = reader, url, needed
        place_of = {name: at for at, name in enumerate(names)}  # needed ones are there once
        places = {name: place_of[name] for name in needed}
        self.texts = {name: at for name, at in places.items() if name in reader.of_text}
        self.numbers = {name: at for name, at in places.items() if name not in reader.of_text}
        self.kind = pa.string() if reader.check_utf8 else pa.binary()
        missing = [value.encode() for value in reader.missing]
        self.missing = [value.strip() for value in missing] if reader.strip else missing
        delimiter = reader.delimiter.encode()
        self.format = text.LineFormat(
            len(names), delimiter, reader.quote, reader.strip, self.missing
        )


class _Block(NamedTuple):
    """Whole lines of a file."""

    layout: _FileLayout
    line: int  # the number of the first line, from 1
    text: memoryview

    def place(self, start: int) -> Line:
        """The file, and the number of the line that starts at a byte of the block."""
        return Line(self.layout.url, self.line + text.line_ends(self.text[:start]))

    def places(self, starts: np.ndarray) -> Where:
        """Where the rows are that start at bytes of the block: lines are counted once asked for."""

        @cache
        def lines() -> np.ndarray:
            ends = np.flatnonzero(np.frombuffer(self.text, np.uint8) == ord("\n"))
            return self.line + np.searchsorted(ends, starts)

        return lambda row: Line(self.layout.url, int(lines()[row]))


def _parse(block: _Block) -> Piece:
    layout, reader = block.layout, block.layout.reader
    lines = text.Lines(block.text, layout.format)
    texts, numbers, not_utf8, hard = lines.read(
        list(layout.texts.values()), list(layout.numbers.values()), None, reader.check_utf8
    )
    bad = not_utf8
    if hard.any():
        bad = bad | _hard_numbers(layout, lines, numbers, hard)
    starts = lines.starts()
    skipped = lines.bad + int(bad.sum())
    reason, first = "", None
    if skipped:
        reason, first = _first_bad(block, lines, starts, bad)
        if not reader.bad_rows:
            raise Failure(reason)
    arrays = [_text_array(column, layout.kind) for column in texts]
    arrays += [_number_array(column) for column in numbers]
    columns = dict(zip([*layout.texts, *layout.numbers], arrays, strict=True))
    table = pa.table({name: columns[name] for name in layout.needed})
    if bad.any():
        table, starts = table.filter(pa.array(~bad)), starts[~bad]
    return Piece(table, block.places(starts), skipped, reason, first)


def _text_array(column: text.Texts, kind: pa.DataType) -> pa.Array:
    buffers = [None, pa.py_buffer(column.offsets), pa.py_buffer(column.data)]
    return pa.Array.from_buffers(kind, len(column.offsets) - 1, buffers, null_count=0)


def _number_array(column: text.Numbers) -> pa.Array:
    buffers = [pa.py_buffer(column.valid) if column.missing else None, pa.py_buffer(column.values)]
    return pa.Array.from_buffers(
        pa.float64(), len(column.values), buffers, null_count=column.missing
    )


def _hard_numbers(
    layout: _FileLayout, lines: text.Lines, numbers: list[text.Numbers], hard: np.ndarray
) -> np.ndarray:
    """Let Arrow read the numbers that C did not; returns which rows have a text that is none."""
    rows = np.flatnonzero(hard).astype(np.uint32)
    bad = np.zeros(len(hard), bool)
    texts, _, _, _ = lines.read(list(layout.numbers.values()), [], rows, False)
    for column, number in zip(texts, numbers, strict=True):
        array = _text_array(column, pa.binary())
        missing = pc.is_in(array, value_set=pa.array(layout.missing, pa.binary()))
        values, wrong = _numbers_of(pc.if_else(missing, None, array))
        bad[rows] |= wrong
        present = values.is_valid().to_numpy(zero_copy_only=False)
        number.values[rows[present]] = values.drop_null().to_numpy()
        valid = np.unpackbits(number.valid, count=len(hard), bitorder="little")
        valid[rows] = present
        number.valid[:] = np.packbits(valid, bitorder="little")
        number.missing = len(hard) - int(valid.sum())
    return bad


def _numbers_of(array: pa.Array) -> tuple[pa.Array, np.ndarray]:
    """Texts, which may have blanks around them, as float64, and which are no numbers."""
    return numbers_of(pc.ascii_trim(array.view(pa.string()), " \t"))


def _first_bad(
    block: _Block, lines: text.Lines, starts: np.ndarray, bad: np.ndarray
) -> tuple[str, Line]:
    """What is wrong with the first line that cannot be read, and where it is; there must be one."""
    rows = np.flatnonzero(bad)
    if len(rows) and not (lines.bad and lines.first_bad < starts[rows[0]]):
        place = block.place(int(starts[rows[0]]))
        return _bad_value(block, lines, place, int(rows[0])), place
    url, number = place = block.place(lines.first_bad)
    faults = {
        text.OPEN_QUOTE: "a quoted value does not end on its line. Double the quotes inside of "
        "values and write one line per row",
        text.INNER_RETURN: "there is a carriage return inside the line. End lines with '\\n'",
        text.OTHER_FIELDS: f"expected {lines.form.columns} columns, received {lines.first_fields}. "
        "Mend or remove the line; data.delimiter, data.header and data.skip_rows say how it is "
        "read",
    }
    return f"{url}, line {number}: {faults[lines.first_fault]}", place


def _bad_value(block: _Block, lines: text.Lines, line: Line, row: int) -> str:
    """What is wrong with the first bad value of a row; there must be one."""
    layout = block.layout
    places = [(layout.texts | layout.numbers)[name] for name in layout.needed]
    columns, _, _, _ = lines.read(places, [], np.array([row], np.uint32), False)
    values = [column.data[: column.offsets[1]].tobytes() for column in columns]
    if values == [name.encode() for name in layout.needed]:
        return f"{line.url}, line {line.number}: {_way_of_header(layout.reader)}"
    for name, value in zip(layout.needed, values, strict=True):
        place = f"{line.url}, line {line.number}, column '{name}'"
        if (layout.reader.check_utf8 or name in layout.numbers) and not is_utf8(value):
            return (
                f"{place}: {quoted(value)} is not UTF-8. Write the file as UTF-8, or set "
                "data.check_utf8=false to hash its bytes"
            )
        if name in layout.numbers and value not in layout.missing:
            _, wrong = _numbers_of(pa.array([value], pa.binary()))
            if wrong.any():
                way = layout.reader.ways.get(name, MEND)
                return f"{place}: {quoted(value.decode())} is not a number. {way}"
    raise AssertionError(f"line {line.number} of {line.url} is not bad")


def _way_of_header(reader: CsvReader) -> str:
    """What to do about a line with the names of the columns where a row should be."""
    if reader.names is None:
        return (
            "the header again, as files have it that were joined. Remove the line, or skip such "
            "lines with data.bad_rows=N"
        )
    return (
        "the names of the columns. Set data.header=true, or skip the first line of each file with "
        "data.skip_rows=1"
    )
