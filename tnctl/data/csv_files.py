"""CSV and TSV files, block by block, parsed by Arrow.

A file is cut into blocks at line ends, so a row is one line, quoted or not. Arrow's parser is fast
and does not tell where a row stands; when it refuses a block, or has joined lines of it by a stray
quote, halving finds the lines, and reading them one by one the row, the column and the value.
"""

import csv
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from tnctl import files
from tnctl.data.reading import Piece, Where, require, text_columns
from tnctl.errors import Failure, UserError, did_you_mean
from tnctl.schema import Conf, Data

BLOCK_BYTES = 16 << 20
SUSPECTS = 32  # lines that are read one by one to name what is wrong
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Layout:
    """How the lines of one file become columns."""

    def __init__(self, conf: Conf, url: str, names: list[str], needed: list[str]) -> None:
        self.data = conf.data
        self.url = url
        self.names = names
        self.needed = needed
        text = text_columns(conf)
        self.numbers = {name for name in needed if name not in text}
        plain = pa.string() if conf.data.check_utf8 else pa.binary()
        # A number with blanks around it parses, but a missing text with blanks would not be seen.
        number = pa.string() if conf.data.strip else pa.float64()
        types = {name: number if name in self.numbers else plain for name in needed}
        if conf.data.label.positive is not None:
            types[conf.data.label.column] = pa.string()
        self.parse = pyarrow.csv.ParseOptions(
            delimiter=conf.data.delimiter, quote_char=quote(conf.data) or False
        )
        self.convert = pyarrow.csv.ConvertOptions(
            column_types=types,
            include_columns=needed,
            null_values=conf.data.missing,
            check_utf8=conf.data.check_utf8,
        )
        self.read = pyarrow.csv.ReadOptions(column_names=names)


def quote(data: Data) -> str | None:
    """The quoting character; none for tabs, since logs in TSV have stray quotes."""
    return None if data.delimiter == "\t" else '"'


def pieces(conf: Conf, url: str, needed: list[str], skip_rows: int) -> Iterator[Piece]:
    """The rows of one file, in order, with the columns `needed`.

    Text columns are string (binary when data.check_utf8 is false), others float64 with nulls, or
    string when data.strip is set. Raises `Failure` naming the file, and the line where it is one.
    """
    with files.open_input(url) as stream:
        layout = None
        for line, block in _blocks(stream, url, skip_rows):
            if layout is None:
                layout, line, block = _layout(conf, url, needed, line, block)
            if layout is None or not block:
                continue
            table = _parse(layout, line, block)
            yield Piece(table, _where(url, line, block))


def _blocks(stream: BinaryIO, url: str, skip_rows: int) -> Iterator[tuple[int, memoryview]]:
    """Whole lines, about BLOCK_BYTES at a time, each with the number of its first line, from 1."""
    line, first, rest = 1, True, b""
    while True:
        data = rest + _fill(stream)
        if first and not data:
            raise Failure(f"{url} is empty. Write the file again, or leave it out of data")
        end = len(data) == len(rest)
        cut = len(data) if end else data.rfind(b"\n") + 1
        rest = data[cut:]
        start = len(BYTE_ORDER_MARK) if first and data.startswith(BYTE_ORDER_MARK) else 0
        first = False
        while line <= skip_rows and start < cut:
            start = (data.find(b"\n", start, cut) + 1) or cut
            line += 1
        if start < cut:
            yield line, memoryview(data)[start:cut]
            line += data.count(b"\n", start, cut)
        if end:
            return


def _fill(stream: BinaryIO) -> bytes:
    """Up to BLOCK_BYTES; fewer only at the end, so that blocks never depend on the storage."""
    parts = []
    missing = BLOCK_BYTES
    while missing > 0 and (part := stream.read(missing)):
        parts.append(part)
        missing -= len(part)
    return b"".join(parts) if len(parts) != 1 else parts[0]


def _layout(
    conf: Conf, url: str, needed: list[str], line: int, block: memoryview
) -> tuple[Layout | None, int, memoryview]:
    """The layout by the header or data.columns, and the block without the header."""
    if not conf.data.header:
        names = list(conf.data.columns or [])
        for name in needed:
            if name not in names:
                raise UserError(f"data.columns has no '{name}'. {did_you_mean(name, names)}")
        return Layout(conf, url, names, needed), line, block
    for number, text, end in _lines(line, block):
        if text:
            try:
                names = _values(conf.data, text.decode())
            except ValueError as error:
                raise Failure(f"{url}, line {number}: the header is not UTF-8 CSV") from error
            names = [name.strip() for name in names] if conf.data.strip else names
            require(url, needed, names)
            return Layout(conf, url, names, needed), number + 1, block[end:]
    return None, line, block


def _lines(line: int, block: memoryview) -> Iterator[tuple[int, bytes, int]]:
    """Each line of a block: its number, its bytes without the line end, where the next starts."""
    data = bytes(block)
    start = 0
    while start < len(data):
        end = (data.find(b"\n", start) + 1) or len(data)
        yield line, data[start:end].rstrip(b"\r\n"), end
        line, start = line + 1, end


def _values(data: Data, text: str) -> list[str]:
    """The values of one line. Raises `ValueError` when a quote is not closed."""
    if quote(data) is None:
        return text.split(data.delimiter)
    csv.field_size_limit(max(csv.field_size_limit(), len(text)))
    try:
        return next(csv.reader([text], delimiter=data.delimiter, strict=True))
    except csv.Error as error:
        raise ValueError(str(error)) from error


def _where(url: str, line: int, block: memoryview) -> Where:
    return lambda row: (url, _line(line, block, row))


def _line(line: int, block: memoryview, row: int) -> int:
    """The number of the line that row `row` of the block stands on: Arrow skips empty lines."""
    filled = (number for number, text, _ in _lines(line, block) if text)
    return next(number for index, number in enumerate(filled) if index == row)


def _parse(layout: Layout, line: int, block: memoryview) -> pa.Table:
    try:
        table = _rows(layout, block)
    except pa.ArrowInvalid as error:
        for number, text, _ in _lines(*_suspects(layout, line, block)):
            if text:
                _check(layout, number, text)
        reason = str(error).split("\n")[0]
        raise Failure(
            f"{layout.url}, lines from {line}: {reason}. Mend the file, or its data.delimiter"
        ) from error
    return _trimmed(table) if layout.data.strip else table


def _rows(layout: Layout, block: memoryview) -> pa.Table:
    """The rows of a block. Raises `ArrowInvalid` unless every line that is filled is one row."""
    table = pyarrow.csv.read_csv(
        pa.BufferReader(pa.py_buffer(block)),
        read_options=layout.read,
        parse_options=layout.parse,
        convert_options=layout.convert,
    )
    if table.num_rows != _filled_lines(block):
        # Arrow's parser goes on over line ends in quotes; a stray quote would join rows silently.
        raise pa.ArrowInvalid("a quoted value does not end on its line")
    return table


def _line_starts(block: memoryview) -> np.ndarray:
    """Where each line of a block starts, and where the last one ends."""
    ends = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n")) + 1
    starts = np.concatenate(([0], ends))
    return starts if starts[-1] == len(block) else np.append(starts, len(block))


def _filled_lines(block: memoryview) -> int:
    starts = _line_starts(block)
    sizes = np.diff(starts)
    short = np.flatnonzero(sizes <= 2)
    empty = sum(not bytes(block[starts[i] : starts[i + 1]]).strip(b"\r\n") for i in short)
    return len(sizes) - empty


def _suspects(layout: Layout, line: int, block: memoryview) -> tuple[int, memoryview]:
    """A few lines of a bad block among which the first bad one is, and the number of the first."""
    starts = _line_starts(block)
    low, high = 0, len(starts) - 1
    while high - low > SUSPECTS:
        middle = (low + high) // 2
        try:
            _rows(layout, block[starts[low] : starts[middle]])
            low = middle
        except pa.ArrowInvalid:
            high = middle
    return line + low, block[starts[low] : starts[high]]


def _check(layout: Layout, number: int, text: bytes) -> None:
    """Raise the `Failure` of a line, if it has one."""
    place = f"{layout.url}, line {number}"
    try:
        values = _values(layout.data, text.decode("utf-8", "surrogateescape"))
    except ValueError as error:
        raise Failure(
            f"{place}: a quoted value does not end on its line. Double the quotes inside of values "
            "and write one line per row"
        ) from error
    if len(values) != len(layout.names):
        raise Failure(
            f"{place}: expected {len(layout.names)} columns, received {len(values)}. Mend or "
            "remove the line; data.delimiter, data.header and data.skip_rows say how it is read"
        )
    for name in layout.needed:
        _check_value(layout, f"{place}, column '{name}'", name, values[layout.names.index(name)])


def _check_value(layout: Layout, place: str, name: str, value: str) -> None:
    if layout.data.check_utf8 or name in layout.numbers:
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise Failure(
                f"{place}: {value.encode('utf-8', 'surrogateescape')!r} is not UTF-8. Write the "
                "file as UTF-8, or set data.check_utf8=false to hash its bytes"
            ) from error
    if name in layout.numbers and value not in layout.data.missing:
        try:
            pc.cast(pa.array([value.strip(" \t")]), pa.float64())
        except pa.ArrowInvalid as error:
            raise Failure(
                f"{place}: '{value}' is not a number. Mend it, or add it to data.missing"
            ) from error


def _trimmed(table: pa.Table) -> pa.Table:
    """Every text without the blanks around it. Bytes that are not UTF-8 are trimmed as well."""
    for index, field in enumerate(table.schema):
        if field.type not in (pa.string(), pa.binary()):
            continue
        chunks = [
            pc.ascii_trim_whitespace(chunk.view(pa.string()))
            for chunk in table.column(index).chunks
        ]
        chunks = [chunk.view(field.type) for chunk in chunks]
        table = table.set_column(index, field, pa.chunked_array(chunks, field.type))
    return table
