"""Text in lines: blocks of whole lines, their words, and lists of words as Arrow columns."""

from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tnctl import files
from tnctl.data import numbers
from tnctl.data.reading import BadRows, EmptyFileError, Where
from tnctl.errors import Failure, quoted

BLOCK_BYTES = 4 << 20
LINE_LIMIT = 256 << 20  # bytes: what is longer is no text in lines
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
NEWLINE, COLON = ord("\n"), ord(":")
IS_BLANK = np.zeros(256, bool)
IS_BLANK[list(b" \t\n\v\f\r")] = True


def blocks(url: str, skip_rows: int) -> Iterator[tuple[int, bytes]]:
    """Whole lines, about BLOCK_BYTES at a time, each with the number of its first line, from 1.

    Raises `Failure` when the file cannot be read, is empty, or is not made of lines.
    """
    with files.open_input(url) as stream:
        line, rest, first = 1, b"", True
        while True:
            read = _fill(stream)
            data, end = rest + read, len(read) < BLOCK_BYTES
            if first:
                if not data:
                    raise EmptyFileError(
                        f"{url} is empty. Write the file again, or leave it out of data"
                    )
                data, first = data.removeprefix(BYTE_ORDER_MARK), False
            cut = len(data) if end else data.rfind(b"\n") + 1
            rest = data[cut:]
            if len(rest) > LINE_LIMIT:
                raise Failure(
                    f"{url}, line {line}: longer than {LINE_LIMIT >> 20} MiB. Set data.format to "
                    "what the file is"
                )
            start = 0
            while line <= skip_rows and start < cut:
                start = (data.find(b"\n", start, cut) + 1) or cut
                line += 1
            if start < cut:
                yield line, data[start:cut]
                line += data.count(b"\n", start, cut)
            if end:
                return


def _fill(stream: BinaryIO) -> bytes:
    """Up to BLOCK_BYTES; fewer only at the end, so that blocks never depend on the storage."""
    parts, missing = [], BLOCK_BYTES
    while missing > 0 and (part := stream.read(missing)):
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)


class Words:
    """The words of some lines: what stands between blanks. Lines without a word are no rows."""

    def __init__(self, url: str, line: int, block: bytes, check_utf8: bool, bad: BadRows) -> None:
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
        if check_utf8:
            self._refuse_bytes(line, block, bad)

    def _refuse_bytes(self, line: int, block: bytes, bad: BadRows) -> None:
        try:
            block.decode()
        except UnicodeDecodeError:
            wrong = [
                number for number, text in enumerate(block.split(b"\n"), line) if not _is_utf8(text)
            ]
            bad.add(
                f"{self.url}, line {wrong[0]}: not UTF-8. Write the file as UTF-8, or set "
                "data.check_utf8=false to hash its bytes",
                len(wrong),
            )
            self.only(~np.isin(self.lines, wrong))

    @property
    def rows(self) -> NDArray[Any]:
        """The row of each word."""
        return np.repeat(np.arange(len(self.firsts)), self.counts)

    def where(self) -> Where:
        """The file and line of each row."""
        lines = self.lines
        return lambda row: (self.url, int(lines[row]))

    def only(self, kept: NDArray[np.bool_]) -> None:
        """Leave out the rows that are not kept."""
        words = np.repeat(kept, self.counts)
        self.starts, self.ends = self.starts[words], self.ends[words]
        self.lines, self.counts = self.lines[kept], self.counts[kept]
        self.firsts = np.cumsum(self.counts) - self.counts

    def refuse(self, wrong: NDArray[np.bool_], reason: str, bad: BadRows) -> bool:
        """Leave out the rows of the words that are wrong, and tell; whether there was one."""
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
        """Of each word: how many colons it has, where the first stands and where the last does.

        The places mean nothing where there is no colon.
        """
        is_colon = self.bytes == COLON
        colons = np.flatnonzero(is_colon)
        if not len(colons):
            return np.zeros(len(self.starts), np.int32), self.starts, self.starts
        before = np.concatenate(([0], np.cumsum(is_colon, dtype=np.int32)))
        first, last = before[self.starts], before[self.ends]
        top = len(colons) - 1
        return last - first, colons[np.minimum(first, top)], colons[np.maximum(last - 1, 0)]

    def texts(self, starts: NDArray[Any], ends: NDArray[Any]) -> pa.Array:
        """The texts between the given places, which must ascend: string, or binary if unchecked."""
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


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def listed(values: pa.Array, rows: NDArray[Any], n: int) -> pa.ListArray:
    """Values that belong to ascending rows, as one list for each of n rows."""
    offsets = np.zeros(n + 1, np.int32)
    np.cumsum(np.bincount(rows, minlength=n), out=offsets[1:])
    return pa.ListArray.from_arrays(pa.array(offsets), values)


def equal(texts: pa.Array, text: str) -> NDArray[np.bool_]:
    """Where texts, string or binary, are `text`."""
    value = pa.scalar(text.encode(), pa.binary()).cast(texts.type)
    return np.asarray(pc.equal(texts, value).to_numpy(zero_copy_only=False))


def numbers_of(array: pa.Array) -> tuple[pa.Array, NDArray[np.bool_]]:
    """Texts as float64, null where one is no number, and where that is."""
    texts = array.view(pa.string())  # bytes that are no number are no number in UTF-8 either
    try:
        return pc.cast(texts, pa.float64()), np.zeros(len(array), bool)
    except pa.ArrowInvalid:
        wrong = np.zeros(len(array), bool)
        wrong[numbers.bad_places(texts, pa.float64(), len(texts))] = True
        return pc.cast(pc.if_else(pa.array(wrong), None, texts), pa.float64()), wrong
