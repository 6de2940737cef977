"""CSV and TSV files, block by block.

A file is cut into blocks at line ends, so a row is one line, quoted or not. Blocks are read into
columns by C, several at a time, and are returned in the order of the file.
"""

import contextlib
import csv
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import cache
from itertools import chain
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tnctl import limits
from tnctl.data.column_names import text_columns, ways_of_labels
from tnctl.data.file_pieces import (
    FileFaults,
    Line,
    Tables,
    TextReader,
    Where,
    require,
    require_named,
)
from tnctl.data.formats.text_lines import blocks, is_utf8, numbers_of
from tnctl.data.numbers import MEND, as_numpy
from tnctl.data.read_ahead import in_order
from tnctl.errors import Failure, quoted, refuse_if
from tnctl.schema import Conf
from tnctl.tables import text

DELIMITERS = ",;\t|"  # that a header is tried with
Blocks = Iterator[tuple[int, memoryview]]  # whole lines, with the number of the first, from 1


class CsvReader(TextReader):
    """Reads CSV, and TSV where the delimiter is a tab.

    Columns whose text matters become string (binary when check_utf8 is false), others float64 with
    nulls.
    """

    def __init__(self, conf: Conf, skip_rows: int = 0) -> None:
        super().__init__(conf, skip_rows)
        data = self.data
        refuse_if(
            not data.delimiter.isascii(),
            f"data.delimiter must be an ASCII character. Received: {data.delimiter!r}",
        )
        self.names = None if data.header else data.columns or []  # None: they are in a header
        self.lines_before += data.header
        self.of_text = text_columns(conf)
        # Columns of numbers, and the way out of a text in them where it is not the usual one.
        self.ways = ways_of_labels(data)

    @property
    def quote(self) -> bytes | None:
        """The quoting character; none for tabs, since logs in TSV have stray quotes."""
        return None if self.data.delimiter == "\t" else b'"'

    def tables(self, url: str, needed: list[str], faults: FileFaults) -> Tables:
        with closing(blocks(url, self.skip_rows)) as parts:
            names, rows = self._names_and_rows(url, parts, needed)
            if not names:
                return
            layout = _FileLayout(self, url, names, needed)
            parsed = in_order(_parse, (_Block(layout, line, block) for line, block in rows))
            with closing(parsed):
                for table, where, skipped, first in parsed:
                    if first is not None:
                        faults.add(*first, skipped)
                    yield table, where

    def require_stored(self, url: str, needed: list[str]) -> None:
        with closing(blocks(url, self.skip_rows)) as parts:
            self._names_and_rows(url, parts, needed)

    def _names_and_rows(
        self, url: str, parts: Blocks, needed: list[str]
    ) -> tuple[list[str], Blocks]:
        """The names of the columns, none of a file without a line, and the lines of the rows."""
        if self.names is None:
            header, rows = _split_header(parts)
            return self._names(url, header, needed) if header else [], rows
        require_named(needed, self.names)
        return self.names, parts

    def stored_columns(self, url: str) -> list[str] | None:
        if self.names is not None:
            return self.names
        with closing(blocks(url, self.skip_rows)) as parts:
            return self._names(url, _split_header(parts)[0], [])

    def _names(self, url: str, header: bytes, needed: list[str]) -> list[str]:
        """The names in a header, which must have those needed."""
        if header.count(self.data.delimiter.encode()) >= limits.ROW_VALUES:
            raise Failure(
                f"{url}: the header has over {limits.ROW_VALUES:,} columns, the most that a file "
                "may have. Set data.delimiter and data.format to what the file is"
            )
        try:
            line = header.decode()
            names = _split(line, self.data.delimiter, self.quote)
        except (ValueError, csv.Error) as error:
            raise Failure(
                f"{url}: the header is not UTF-8 CSV. Write it again, or set data.header=false and "
                "data.columns"
            ) from error
        names = [name.strip() for name in names] if self.data.strip else names
        absent = [name for name in needed if name not in names]
        if absent and header.lstrip().startswith(b"{"):
            raise Failure(
                f"{url} looks like JSON lines. Set data.format=jsonl; to score, format=jsonl"
            )
        if delimiter := _other_delimiter(line, names, needed):
            raise Failure(
                f"{url} has no column {quoted(absent[0])}: its header has "
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
        data = reader.data
        self.kind = pa.string() if data.check_utf8 else pa.binary()
        missing = [value.encode() for value in data.missing]
        self.missing = [value.strip() for value in missing] if data.strip else missing
        delimiter = data.delimiter.encode()
        self.format = text.LineFormat(len(names), delimiter, reader.quote, data.strip, self.missing)


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


Fault = tuple[Line, str, str | None]  # where a row is, what is wrong with it, and in which column


def _parse(block: _Block) -> tuple[pa.Table, Where, int, Fault | None]:
    """The rows of a block that can be read; how many cannot, and the fault of the first."""
    layout = block.layout
    lines = text.Lines(block.text, layout.format)
    texts, numbers, not_utf8, hard = lines.read(
        list(layout.texts.values()),
        list(layout.numbers.values()),
        None,
        layout.reader.data.check_utf8,
    )
    bad = not_utf8
    if hard.any():
        bad = bad | _hard_numbers(layout, lines, numbers, hard)
    starts = lines.starts()
    skipped = lines.bad + int(bad.sum())
    first = _first_bad(block, lines, starts, bad) if skipped else None
    arrays = [_text_array(column, layout.kind) for column in texts]
    arrays += [_number_array(column) for column in numbers]
    columns = dict(zip([*layout.texts, *layout.numbers], arrays, strict=True))
    table = pa.table({name: columns[name] for name in layout.needed})
    if bad.any():
        table, starts = table.filter(pa.array(~bad)), starts[~bad]
    return table, block.places(starts), skipped, first


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
        present = as_numpy(values.is_valid())
        number.values[rows[present]] = values.drop_null().to_numpy()
        valid = np.unpackbits(number.valid, count=len(hard), bitorder="little")
        valid[rows] = present
        number.valid[:] = np.packbits(valid, bitorder="little")
        number.missing = len(hard) - int(valid.sum())
    return bad


def _numbers_of(array: pa.Array) -> tuple[pa.Array, np.ndarray]:
    """Texts, which may have blanks around them, as float64, and which are no numbers."""
    return numbers_of(pc.ascii_trim(array.view(pa.string()), " \t"))


def _first_bad(block: _Block, lines: text.Lines, starts: np.ndarray, bad: np.ndarray) -> Fault:
    """The fault of the first line that cannot be read; there must be one."""
    rows = np.flatnonzero(bad)
    if len(rows) and not (lines.bad and lines.first_bad < starts[rows[0]]):
        return (block.place(int(starts[rows[0]])), *_bad_value(block, lines, int(rows[0])))
    faults = {
        text.OPEN_QUOTE: "a quoted value does not end on its line. Double the quotes inside of "
        "values and write one line per row",
        text.INNER_RETURN: "there is a carriage return inside the line. End lines with '\\n'",
        text.OTHER_FIELDS: f"expected {lines.form.columns} columns, received {lines.first_fields}. "
        "Mend or remove the line; data.delimiter, data.header and data.skip_rows say how it is "
        "read",
    }
    return block.place(lines.first_bad), faults[lines.first_fault], None


def _bad_value(block: _Block, lines: text.Lines, row: int) -> tuple[str, str | None]:
    """What is wrong with the first bad value of a row, and its column; there must be one."""
    layout = block.layout
    places = [(layout.texts | layout.numbers)[name] for name in layout.needed]
    columns, _, _, _ = lines.read(places, [], np.array([row], np.uint32), False)
    values = [column.data[: column.offsets[1]].tobytes() for column in columns]
    if values == [name.encode() for name in layout.needed]:
        return _way_of_header(layout.reader), None
    for name, value in zip(layout.needed, values, strict=True):
        if (layout.reader.data.check_utf8 or name in layout.numbers) and not is_utf8(value):
            return (
                f"{quoted(value)} is not UTF-8. Write the file as UTF-8, or set "
                "data.check_utf8=false to hash its bytes",
                name,
            )
        if name in layout.numbers and value not in layout.missing:
            _, wrong = _numbers_of(pa.array([value], pa.binary()))
            if wrong.any():
                way = layout.reader.ways.get(name, MEND)
                return f"{quoted(value.decode())} is not a number. {way}", name
    raise AssertionError(f"row {row} is not bad")


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
