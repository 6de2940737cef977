"""Text in lines: blocks of whole lines, their words, and lists of words as Arrow columns."""

from collections.abc import Generator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tnctl import files, limits
from tnctl.data import numbers
from tnctl.data.file_pieces import HEAD_BYTES, HEAD_LINES, BadRows, EmptyFileError, Line, Where
from tnctl.errors import Failure, quoted
from tnctl.tables.text import line_ends

BLOCK_BYTES = 4 << 20
SEARCH_BYTES = 4096  # in which a line end is searched for at a time
# How files of other formats begin; each has a byte that is in no text.
SIGNATURES = {
    b"PAR1\x15": "a Parquet file. Set data.format=parquet",
    b"\x1f\x8b": "compressed with gzip. Give its name the end .gz",
    b"\x28\xb5\x2f\xfd": "compressed with zstd. Give its name the end .zst",
}
SIGNATURE_BYTES = max(map(len, SIGNATURES))
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
NEWLINE, COLON = ord("\n"), ord(":")
IS_BLANK = np.zeros(256, bool)
IS_BLANK[list(b" \t\n\v\f\r")] = True


def blocks(url: str, skip_rows: int) -> Generator[tuple[int, memoryview], None, None]:
    """Whole lines, about BLOCK_BYTES at a time, each with the number of its first line, from 1.

    Raises `Failure` when the file cannot be read, is empty, or has a line beyond the limit.
    """
    with files.open_input(url) as stream:
        line, first, rest = 1, True, memoryview(b"")
        while True:
            data = np.empty(len(rest) + BLOCK_BYTES, np.uint8).data
            data[: len(rest)] = rest
            size = len(rest) + _fill(stream, data[len(rest) :])
            if first and not size:
                raise EmptyFileError(url)
            if first:
                _refuse_binary(bytes(data[: min(size, SIGNATURE_BYTES)]), url)
            _refuse_long(data[:size], len(rest), url, line)
            end = size < len(data)
            cut = size if end else _after_last_line(data, len(rest))
            start = len(BYTE_ORDER_MARK) if first and data[:3] == BYTE_ORDER_MARK else 0
            first = False
            while line <= skip_rows and start < cut:
                start = after_line(data, start, cut)
                line += 1
            if start < cut:
                yield line, data[start:cut]
                line += line_ends(data[start:cut])
            if end:
                return
            rest = data[cut:size]


def head_lines(url: str) -> list[bytes]:
    """The first lines of a file, at most HEAD_LINES and those in HEAD_BYTES."""
    with files.open_input(url) as stream:
        text = files.read_most(stream, HEAD_BYTES).removeprefix(BYTE_ORDER_MARK)
    return text.split(b"\n")[:HEAD_LINES]


def _fill(stream: Any, buffer: memoryview) -> int:
    """Read until the buffer is full or the stream ends: blocks never depend on the storage."""
    size = 0
    while size < len(buffer) and (count := stream.readinto(buffer[size:])):
        size += count
    return size


def _refuse_long(data: memoryview, least: int, url: str, line: int) -> None:
    """Raise `Failure` when the first line, whose first `least` bytes have no end, is too long.

    Only the first line of a block can be: the others lie in what was read for the block.
    """
    if len(data) <= limits.LINE_BYTES:
        return
    end = after_line(data, least, len(data))
    if end - (data[end - 1] == NEWLINE) > limits.LINE_BYTES:
        raise Failure(
            f"{url}, line {line}: longer than {limits.mebibytes(limits.LINE_BYTES)}, the most that "
            "a line may have. Split the row, end lines with '\\n', or set data.format to what the "
            "file is"
        )


def _refuse_binary(head: bytes, url: str) -> None:
    """Raise `Failure` for a file that begins as one of another format."""
    for signature, what in SIGNATURES.items():
        if head.startswith(signature):
            raise Failure(f"{url} is {what}")


def after_line(data: memoryview, start: int, end: int) -> int:
    """Where the line ends that starts at `start`, its line feed included; at most `end`."""
    while start < end:
        part = bytes(data[start : min(start + SEARCH_BYTES, end)])
        if (at := part.find(b"\n")) >= 0:
            return start + at + 1
        start += len(part)
    return end


def _after_last_line(data: memoryview, least: int) -> int:
    """Where the last whole line ends, 0 when there is none; the first `least` bytes have none."""
    end = len(data)
    while end > least:
        part = bytes(data[max(end - SEARCH_BYTES, least) : end])
        if (at := part.rfind(b"\n")) >= 0:
            return end - len(part) + at + 1
        end -= len(part)
    return 0


class Words:
    """The words of consecutive lines, which blanks part. Lines without a word are no rows."""

    def __init__(
        self, url: str, line: int, block: memoryview, check_utf8: bool, bad: BadRows
    ) -> None:
        self.url = url
        self.check_utf8 = check_utf8
        self.bytes = np.frombuffer(block, np.uint8)
        self._buffer = pa.py_buffer(block)
        blank = np.concatenate(([True], IS_BLANK[self.bytes], [True]))
        edges = np.flatnonzero(blank[1:] != blank[:-1])
        self.starts, self.ends = edges[0::2], edges[1::2]
        # Counted byte by byte: far cheaper than a search for each word.
        lines = np.cumsum(self.bytes == NEWLINE, dtype=np.int32)[self.starts]
        self.firsts = np.flatnonzero(np.diff(lines, prepend=-1))  # the first word of each row
        self.lines = line + lines[self.firsts]  # the number of each row's line
        self.counts = np.diff(self.firsts, append=len(lines))  # words of each row
        self._refuse_many(bad)
        if check_utf8:
            self._refuse_bytes(line, block, bad)

    def _refuse_many(self, bad: BadRows) -> None:
        # Beside values a row has its label.
        many = self.counts > limits.ROW_VALUES + 1
        if many.any():
            row = int(many.argmax())
            bad.add(
                f"{self.url}, line {self.lines[row]}: {self.counts[row]:,} words, and a row has "
                f"at most {limits.ROW_VALUES:,} values. Split or remove the line",
                int(many.sum()),
            )
            self.only(~many)

    def _refuse_bytes(self, line: int, block: memoryview, bad: BadRows) -> None:
        try:
            str(block, "utf-8")
        except UnicodeDecodeError:
            wrong = [
                number
                for number, words in enumerate(bytes(block).split(b"\n"), line)
                if not is_utf8(words)
            ]
            bad.add(
                f"{self.url}, line {wrong[0]}: not UTF-8. Write the file as UTF-8, or set "
                "data.check_utf8=false to hash its bytes",
                len(wrong),
            )
            self.only(~np.isin(self.lines, wrong))

    @property
    def rows(self) -> NDArray[Any]:
        """The row of each word, int64 [words]."""
        return np.repeat(np.arange(len(self.firsts)), self.counts)

    def where(self) -> Where:
        """The file and line of each row."""
        lines = self.lines
        return lambda row: Line(self.url, int(lines[row]))

    def only(self, kept: NDArray[np.bool_]) -> None:
        """Leave out the rows that are not kept (bool [rows])."""
        words = np.repeat(kept, self.counts)
        self.starts, self.ends = self.starts[words], self.ends[words]
        self.lines, self.counts = self.lines[kept], self.counts[kept]
        self.firsts = np.cumsum(self.counts) - self.counts

    def refuse(self, wrong: NDArray[np.bool_], reason: str, bad: BadRows) -> bool:
        """Skip the rows that have a wrong word (bool [words]), for that reason; whether any has."""
        if not wrong.any():
            return False
        word = int(wrong.argmax())
        rows = self.rows
        shown = quoted(self.bytes[self.starts[word] : self.ends[word]].tobytes())
        dropped = np.zeros(len(self.firsts), bool)
        dropped[rows[wrong]] = True
        bad.add(
            f"{self.url}, line {self.lines[rows[word]]}: {shown} {reason}. Mend or remove the line",
            int(dropped.sum()),
        )
        self.only(~dropped)
        return True

    def colons(self) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """How many colons each word has, int32 [words], and the places of its first and last.

        Places are int64 [words], bytes from the start of the block; they mean nothing for a word
        without a colon.
        """
        is_colon = self.bytes == COLON
        colons = np.flatnonzero(is_colon)
        if not len(colons):
            return np.zeros(len(self.starts), np.int32), self.starts, self.starts
        counts = np.concatenate(([0], np.cumsum(is_colon, dtype=np.int32)))
        first, last = counts[self.starts], counts[self.ends]
        top = len(colons) - 1
        return last - first, colons[np.minimum(first, top)], colons[np.maximum(last - 1, 0)]

    def texts(self, starts: NDArray[Any], ends: NDArray[Any]) -> pa.Array:
        """The texts [n] between the places [n] of bytes: string, or binary if unchecked.

        Each text starts at or after the end of the one before.
        """
        kind = pa.string() if self.check_utf8 else pa.binary()
        if not len(starts):
            return pa.array([], kind)
        # Texts and the gaps between them follow each other, so Arrow's offsets are the places.
        offsets = np.empty(2 * len(starts), np.int32)
        offsets[0::2], offsets[1::2] = starts, ends
        mixed = pa.Array.from_buffers(
            kind, len(offsets) - 1, [None, pa.py_buffer(offsets), self._buffer]
        )
        return mixed.take(pa.array(np.arange(0, len(offsets), 2)))


def is_utf8(text: bytes | str) -> bool:
    """Whether bytes are UTF-8; texts are."""
    try:
        if isinstance(text, bytes):
            text.decode()
    except UnicodeDecodeError:
        return False
    return True


def listed(values: pa.Array, rows: NDArray[Any], n: int) -> pa.ListArray:
    """Values [m] that belong to ascending rows (integers [m]), as one list for each of n rows."""
    offsets = np.zeros(n + 1, np.int32)
    np.cumsum(np.bincount(rows, minlength=n), out=offsets[1:])
    return pa.ListArray.from_arrays(pa.array(offsets), values)


def equal(texts: pa.Array, text: str) -> NDArray[np.bool_]:
    """Where texts [n], string or binary, are `text`: bool [n]."""
    value = pa.scalar(text.encode(), pa.binary()).cast(texts.type)
    return np.asarray(pc.equal(texts, value).to_numpy(zero_copy_only=False))


def numbers_of(array: pa.Array) -> tuple[pa.Array, NDArray[np.bool_]]:
    """Texts [n] as float64 [n], null where one is no number, and where that is: bool [n]."""
    texts = array.view(pa.string())  # bytes that are no number are no number in UTF-8 either
    try:
        return pc.cast(texts, pa.float64()), np.zeros(len(array), bool)
    except pa.ArrowInvalid:
        wrong = np.zeros(len(array), bool)
        wrong[numbers.bad_places(texts, pa.float64(), len(texts))] = True
        return pc.cast(pc.if_else(pa.array(wrong), None, texts), pa.float64()), wrong
