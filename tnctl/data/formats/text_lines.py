"""Text in lines: blocks of whole lines."""

import re
from collections.abc import Generator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tnctl import files, limits
from tnctl.data import Bools, numbers
from tnctl.data.file_pieces import HEAD_BYTES, HEAD_LINES, EmptyFileError
from tnctl.errors import Failure, refuse_if
from tnctl.tables.text import line_ends

BLOCK_BYTES = 4 << 20
LINE_END, LINES = re.compile(rb"\n"), re.compile(rb".*\n", re.DOTALL)
# How files of other formats begin; each has a byte that is in no text.
SIGNATURES = {
    b"PAR1\x15": "a Parquet file. Set data.format=parquet",
    b"\x1f\x8b": "compressed with gzip. Give its name the end .gz",
    b"\x28\xb5\x2f\xfd": "compressed with zstd. Give its name the end .zst",
}
SIGNATURE_BYTES = max(map(len, SIGNATURES))
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
NEWLINE = ord("\n")


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
            head = bytes(data[: min(size, SIGNATURE_BYTES)]) if first else b""
            for signature, what in SIGNATURES.items():
                refuse_if(head.startswith(signature), f"{url} is {what}", Failure)
            _refuse_long(data[:size], len(rest), url, line)
            end = size < len(data)
            # Whole lines; what was left of the block before has no line end.
            whole = None if end else LINES.match(data, len(rest))
            cut = size if end else whole.end() if whole else 0
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
    refuse_if(
        end - (data[end - 1] == NEWLINE) > limits.LINE_BYTES,
        f"{url}, line {line}: longer than {limits.mebibytes(limits.LINE_BYTES)}, the most that a "
        "line may have. Split the row, end lines with '\\n', or set data.format to what the file "
        "is",
        Failure,
    )


def after_line(data: memoryview, start: int, end: int) -> int:
    """Where the line ends that starts at `start`, its line feed included; at most `end`."""
    match = LINE_END.search(data, start, end)
    return match.end() if match else end


def is_utf8(text: bytes | memoryview | str) -> bool:
    """Whether bytes are UTF-8; texts are."""
    try:
        if not isinstance(text, str):
            str(text, "utf-8")
    except UnicodeDecodeError:
        return False
    return True


def numbers_of(array: pa.Array) -> tuple[pa.Array, Bools]:
    """Texts [n] as float64 [n], null where one is no number, and where that is: bool [n]."""
    texts = array.view(pa.string())  # bytes that are no number are no number in UTF-8 either
    try:
        return pc.cast(texts, pa.float64()), np.zeros(len(array), bool)
    except pa.ArrowInvalid:
        wrong = np.zeros(len(array), bool)
        wrong[numbers.bad_places(texts, pa.float64(), len(texts))] = True
        return pc.cast(pc.if_else(pa.array(wrong), None, texts), pa.float64()), wrong
