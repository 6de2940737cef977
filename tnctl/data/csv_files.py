"""CSV and TSV files, block by block.

A file is cut into blocks at line ends, so a row is one line, quoted or not. Blocks are read into
columns by C, several at a time, and come in the order of the file.
"""

import csv
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tnctl import limits
from tnctl.data.ahead import in_order
from tnctl.data.lines import after_line, blocks
from tnctl.data.reading import Piece, Where, require, text_columns
from tnctl.errors import Failure, UserError, did_you_mean, quoted
from tnctl.schema import Conf, Data
from tnctl.tables import text


class Layout:
    """How the lines of one file become columns."""

    def __init__(self, conf: Conf, url: str, names: list[str], needed: list[str]) -> None:
        self.data = conf.data
        self.url = url
        self.needed = needed
        self.width = len(names)
        places = {name: names.index(name) for name in needed}
        of_text = text_columns(conf)
        self.texts = {name: place for name, place in places.items() if name in of_text}
        self.numbers = {name: place for name, place in places.items() if name not in of_text}
        self.kind = pa.string() if conf.data.check_utf8 else pa.binary()
        missing = [value.encode() for value in conf.data.missing]
        self.missing = [value.strip() for value in missing] if conf.data.strip else missing
        self.format = text.Format(
            len(names), _byte(conf.data.delimiter), quote(conf.data), conf.data.strip, self.missing
        )


def _byte(delimiter: str) -> bytes:
    if not delimiter.isascii():
        raise UserError(f"data.delimiter must be an ASCII character. Received: {delimiter!r}")
    return delimiter.encode()


def quote(data: Data) -> bytes | None:
    """The quoting character; none for tabs, since logs in TSV have stray quotes."""
    return None if data.delimiter == "\t" else b'"'


def pieces(conf: Conf, url: str, needed: list[str], skip_rows: int) -> Iterator[Piece]:
    """The rows of one file, in order, with the columns `needed`.

    Text columns are string (binary when data.check_utf8 is false), others float64 with nulls. Rows
    that cannot be read are left out and counted when data.bad_rows allows any; else raises
    `Failure` naming the file, and the line where it is one.
    """
    with closing(blocks(url, skip_rows)) as parts:
        yield from in_order(_parse, _with_layout(conf, url, needed, parts))


@dataclass
class Block:
    """Whole lines of a file."""

    layout: Layout
    line: int  # the number of the first line, from 1
    text: memoryview

    def line_at(self, start: int) -> int:
        """The number of the line that starts at a byte of the block."""
        return self.line + text.line_ends(self.text[:start])


def _with_layout(
    conf: Conf, url: str, needed: list[str], parts: Iterator[tuple[int, memoryview]]
) -> Iterator[Block]:
    """The blocks, without the header, and how they are read by it or by data.columns."""
    layout = None
    if not conf.data.header:
        names = list(conf.data.columns or [])
        for name in needed:
            if name not in names:
                raise UserError(f"data.columns has no '{name}'. {did_you_mean(name, names)}")
        layout = Layout(conf, url, names, needed)
    for line, block in parts:
        start = 0
        if layout is None:
            header, start = _first_filled(block)
            if not header:
                continue
            layout = Layout(conf, url, _names(conf, url, needed, header), needed)
            line += text.line_ends(block[:start])
        if start < len(block):
            yield Block(layout, line, block[start:])


def _first_filled(block: memoryview) -> tuple[bytes, int]:
    """The first line that is not empty, and where the next one starts."""
    codes = np.frombuffer(block, np.uint8)
    filled = (codes != ord("\n")) & (codes != ord("\r"))
    if not filled.any():
        return b"", len(block)
    place = int(filled.argmax())
    end = after_line(block, place, len(block))
    return bytes(block[:end]).rstrip(b"\r\n").rpartition(b"\n")[2], end


def _names(conf: Conf, url: str, needed: list[str], header: bytes) -> list[str]:
    """The names in a header."""
    if header.count(conf.data.delimiter.encode()) >= limits.ROW_VALUES:
        raise Failure(
            f"{url}: the header has over {limits.ROW_VALUES:,} columns, the most that a file may "
            "have. Set data.delimiter and data.format to what the file is"
        )
    try:
        line = header.decode()
        if quote(conf.data) is None:
            names = line.split(conf.data.delimiter)
        else:
            csv.field_size_limit(max(csv.field_size_limit(), len(line)))
            names = next(csv.reader([line], delimiter=conf.data.delimiter, strict=True))
    except (ValueError, csv.Error) as error:
        raise Failure(
            f"{url}: the header is not UTF-8 CSV. Write it again, or set data.header=false and "
            "data.columns"
        ) from error
    names = [name.strip() for name in names] if conf.data.strip else names
    if header.lstrip().startswith(b"{") and not set(needed) <= set(names):
        raise Failure(f"{url} looks like JSON lines. Set data.format=jsonl; to score, format=jsonl")
    require(url, needed, names)
    return names


def _parse(block: Block) -> Piece:
    layout = block.layout
    lines = text.Lines(block.text, layout.format)
    texts, numbers, not_utf8, hard = lines.read(
        list(layout.texts.values()), list(layout.numbers.values()), None, layout.data.check_utf8
    )
    bad = not_utf8
    if hard.any():
        bad = bad | _hard_numbers(layout, lines, numbers, hard)
    starts = lines.starts()
    skipped = lines.bad + int(bad.sum())
    reason = ""
    if skipped:
        first = _first_bad(block, lines, starts, bad)
        if not layout.data.bad_rows:
            raise first
        reason = str(first)
    columns = {
        name: _text_array(found, layout.kind)
        for name, found in zip(layout.texts, texts, strict=True)
    }
    columns |= {
        name: _number_array(found) for name, found in zip(layout.numbers, numbers, strict=True)
    }
    table = pa.table({name: columns[name] for name in layout.needed})
    if bad.any():
        table, starts = table.filter(pa.array(~bad)), starts[~bad]
    return Piece(table, _where(block, starts), skipped, reason)


def _where(block: Block, starts: np.ndarray) -> Where:
    return lambda row: (block.layout.url, block.line_at(int(starts[row])))


def _text_array(found: text.Texts, kind: pa.DataType) -> pa.Array:
    buffers = [None, pa.py_buffer(found.offsets), pa.py_buffer(found.data)]
    return pa.Array.from_buffers(kind, len(found.offsets) - 1, buffers, null_count=0)


def _number_array(found: text.Numbers) -> pa.Array:
    valid = pa.py_buffer(found.valid) if found.missing else None
    buffers = [valid, pa.py_buffer(found.values)]
    return pa.Array.from_buffers(pa.float64(), len(found.values), buffers, null_count=found.missing)


def _hard_numbers(
    layout: Layout, lines: text.Lines, numbers: list[text.Numbers], hard: np.ndarray
) -> np.ndarray:
    """Let Arrow read the numbers that C left over; returns which rows have one that is none."""
    rows = np.flatnonzero(hard).astype(np.uint32)
    bad = np.zeros(len(hard), bool)
    texts, _, _, _ = lines.read(list(layout.numbers.values()), [], rows, False)
    for found, number in zip(texts, numbers, strict=True):
        array = _text_array(found, pa.binary())
        missing = pc.is_in(array, value_set=pa.array(layout.missing, pa.binary()))
        values, wrong = _cast(pc.if_else(missing, None, array).view(pa.string()))
        bad[rows] |= wrong
        present = values.is_valid().to_numpy(zero_copy_only=False)
        number.values[rows[present]] = values.drop_null().to_numpy()
        valid = np.unpackbits(number.valid, count=len(hard), bitorder="little")
        valid[rows] = present
        number.valid[:] = np.packbits(valid, bitorder="little")
        number.missing = len(hard) - int(valid.sum())
    return bad


def _cast(array: pa.Array) -> tuple[pa.Array, np.ndarray]:
    """Texts as float64, null where they are no numbers, and where they are none."""
    array = pc.ascii_trim(array, " \t")
    wrong = np.zeros(len(array), bool)
    try:
        return pc.cast(array, pa.float64()), wrong
    except pa.ArrowInvalid:
        for row in range(len(array)):
            wrong[row] = not _is_number(array[row])
    return pc.cast(pc.if_else(pa.array(wrong), None, array), pa.float64()), wrong


def _is_number(value: pa.Scalar) -> bool:
    try:
        pc.cast(value, pa.float64())
    except pa.ArrowInvalid:
        return False
    return True


def _first_bad(block: Block, lines: text.Lines, starts: np.ndarray, bad: np.ndarray) -> Failure:
    """What is wrong with the first line that cannot be read; there must be one."""
    rows = np.flatnonzero(bad)
    if not len(rows) or (lines.bad and lines.first_bad < starts[rows[0]]):
        return _bad_line(block, lines)
    return _bad_value(block, lines, starts, int(rows[0]))


def _bad_line(block: Block, lines: text.Lines) -> Failure:
    place = f"{block.layout.url}, line {block.line_at(lines.first_bad)}"
    if lines.first_fault == text.OPEN_QUOTE:
        return Failure(
            f"{place}: a quoted value does not end on its line. Double the quotes inside of values "
            "and write one line per row"
        )
    if lines.first_fault == text.INNER_RETURN:
        return Failure(
            f"{place}: a carriage return stands inside of the line. End lines with '\\n'"
        )
    return Failure(
        f"{place}: expected {block.layout.width} columns, received {lines.first_fields}. Mend or "
        "remove the line; data.delimiter, data.header and data.skip_rows (to score, skip_rows=N) "
        "say how it is read"
    )


def _bad_value(block: Block, lines: text.Lines, starts: np.ndarray, row: int) -> Failure:
    layout = block.layout
    places = [(layout.texts | layout.numbers)[name] for name in layout.needed]
    found, _, _, _ = lines.read(places, [], np.array([row], np.uint32), False)
    for name, one in zip(layout.needed, found, strict=True):
        place = f"{layout.url}, line {block.line_at(int(starts[row]))}, column '{name}'"
        value = one.data[: one.offsets[1]].tobytes()
        if layout.data.check_utf8 or name in layout.numbers:
            try:
                value.decode()
            except UnicodeDecodeError:
                return Failure(
                    f"{place}: {quoted(value)} is not UTF-8. Write the file as UTF-8, or set "
                    "data.check_utf8=false to hash its bytes"
                )
        if name in layout.numbers and value not in layout.missing:
            shown = value.decode()
            if not _is_number(pa.scalar(shown.strip(" \t"))):
                return Failure(
                    f"{place}: {quoted(shown)} is not a number. Mend it, or add it to data.missing"
                )
    raise AssertionError(f"line {block.line_at(int(starts[row]))} of {layout.url} is not bad")
