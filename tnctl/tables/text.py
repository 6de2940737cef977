"""Blocks of files: delimited text (CSV, TSV) to columns, and the framing of TFRecord.

Without a Python object per value. CRC-32C guards the frames.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tnctl._tables import ffi, lib
from tnctl.tables.memory import check, output, pointer

OTHER_FIELDS = int(lib.TN_OTHER_FIELDS)
OPEN_QUOTE = int(lib.TN_OPEN_QUOTE)
INNER_RETURN = int(lib.TN_INNER_RETURN)
ALIGNMENT = 64
SLACK = 16  # bytes that C may write beyond the last text


def line_ends(block: memoryview) -> int:
    """How many line feeds a block has."""
    return int(lib.tn_text_line_ends(ffi.from_buffer(block), len(block)))


class LineFormat:
    """How lines are read: `columns` fields each, between delimiters (bytes of one ASCII character).

    A field may be in quotes when there is a quoting character. With `strip`, values lose the
    ASCII blanks around them. `missing` are the texts that mean no number.
    """

    def __init__(
        self,
        columns: int,
        delimiter: bytes,
        quote: bytes | None = None,
        strip: bool = False,
        missing: Sequence[bytes] = (),
    ) -> None:
        self.columns = columns
        texts = [ffi.new("char[]", text or b"\0") for text in missing]
        self._kept = [
            texts,
            ffi.new("const char *[]", texts),
            ffi.new("uint32_t[]", [len(text) for text in missing]),
        ]
        self.handle = ffi.new(
            "tn_text_format *",
            {
                "columns": columns,
                "delimiter": delimiter,
                "quote": quote or b"\0",
                "strip": strip,
                "n_missing": len(missing),
                "missing": self._kept[1],
                "missing_sizes": self._kept[2],
            },
        )


@dataclass
class Texts:
    """A column of n texts: text i is data[offsets[i]:offsets[i + 1]], as in Arrow's buffers."""

    offsets: NDArray[np.int32]  # [n + 1]
    data: NDArray[np.uint8]


@dataclass
class Numbers:
    """A column of n numbers: bit i of `valid` (lowest first, as Arrow's) is 1 if i is a number."""

    values: NDArray[np.float64]  # [n], 0 where there is none
    valid: NDArray[np.uint8]  # [(n + 7) / 8]
    missing: int  # how many are missing texts


class Lines:
    """A block of whole lines, cut into fields. It keeps the block.

    `rows` lines have as many fields as the format says; `bad` have not, or end inside of quotes;
    empty ones are skipped. `first_bad` is where the first bad one starts, `first_fault` what is
    wrong with it (OTHER_FIELDS, OPEN_QUOTE, INNER_RETURN), `first_fields` how many fields it has.
    Raises ValueError for a block of 2 GiB or more.
    """

    def __init__(self, block: memoryview, form: LineFormat) -> None:
        self.block = block
        self.form = form
        self._bounds = np.empty(lib.tn_text_capacity(len(block), form.columns), np.uint32)
        self._sizes = np.empty(form.columns, np.uint32)
        summary = ffi.new("tn_text_rows *")
        check(
            lib.tn_text_index(
                ffi.from_buffer(block),
                len(block),
                form.handle,
                output(self._bounds),
                len(self._bounds),
                output(self._sizes),
                summary,
            )
        )
        self.rows = int(summary.rows)
        self.bad = int(summary.bad)
        self.first_bad = int(summary.first_bad)
        self.first_fault = int(summary.first_fault)
        self.first_fields = int(summary.first_fields)
        self.ascii = bool(summary.ascii)

    def starts(self) -> NDArray[np.uint32]:
        """Where each row starts in the block: uint32 [rows]."""
        width = self.form.columns + 1
        return np.ascontiguousarray(self._bounds[: self.rows * width : width])

    def read(
        self,
        texts: Sequence[int],
        numbers: Sequence[int],
        chosen: NDArray[np.uint32] | None = None,
        check_utf8: bool = True,
    ) -> tuple[list[Texts], list[Numbers], NDArray[np.bool_], NDArray[np.bool_]]:
        """Columns, by their places in the line, of all rows or of those chosen (uint32 [n]).

        Returns texts, numbers, and two marks of each row, bool [n] each: that a text of it is not
        UTF-8 (never without `check_utf8`), and that a number of it is neither in `valid` nor
        missing. Such a field is no number, or one that is not parsed here: infinite, NaN, of
        over 19 digits, beyond 10^27 or 10^-27, quoted in part, or next to the middle of two
        doubles.
        """
        if chosen is not None and (chosen >= self.rows).any():
            raise ValueError(f"the block has {self.rows} rows")
        rows = self.rows if chosen is None else len(chosen)
        memory = _Memory(
            [rows]
            + [size for c in texts for size in (4 * (rows + 1), int(self._sizes[c]) + SLACK)]
            + [size for _ in numbers for size in (8 * rows, (rows + 7) // 8)]
        )
        marks = memory.take()
        text_columns = [Texts(memory.take().view(np.int32), memory.take()) for _ in texts]
        number_columns = [
            Numbers(memory.take().view(np.float64), memory.take(), 0) for _ in numbers
        ]
        columns = ffi.new("tn_text_column[]", len(texts) + len(numbers))
        for column, index, text in zip(columns, texts, text_columns, strict=False):
            column.column = index
            column.offsets = output(text.offsets)
            column.text = ffi.cast("char *", output(text.data))
        of_numbers = list(columns)[len(texts) :]
        for column, index, number in zip(of_numbers, numbers, number_columns, strict=True):
            column.column = index
            column.numbers = ffi.from_buffer("double[]", number.values, require_writable=True)
            column.valid = output(number.valid)
        check(
            lib.tn_text_columns(
                ffi.from_buffer(self.block),
                len(self.block),
                self.form.handle,
                pointer(self._bounds, np.uint32),
                ffi.NULL if chosen is None else pointer(chosen, np.uint32),
                rows,
                check_utf8 and not self.ascii,
                columns,
                len(columns),
                output(marks),
            )
        )
        for column, number in zip(of_numbers, number_columns, strict=True):
            number.missing = int(column.nulls)
        return (
            text_columns,
            number_columns,
            (marks & lib.TN_BAD_TEXT) != 0,
            (marks & lib.TN_HARD_NUMBER) != 0,
        )


class _Memory:
    """One allocation for arrays of the given sizes in bytes, taken in that order.

    A large one is on huge pages: many small pages would cost as much as the reading.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self._sizes = iter(sizes)
        total = sum(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes)
        self._left = np.empty(total, np.uint8)

    def take(self) -> NDArray[Any]:
        size = next(self._sizes)
        taken = self._left[:size]
        self._left = self._left[-(-size // ALIGNMENT) * ALIGNMENT :]
        return taken


RECORD_BYTES = int(lib.TN_TFRECORD_LIMIT)  # of the longest payload that is read


class TfRecords(NamedTuple):
    """The n records that a buffer holds."""

    starts: NDArray[np.uint64]  # [n], where each payload starts in the buffer
    lengths: NDArray[np.uint64]  # [n], in bytes
    whole: NDArray[np.uint8]  # [n], 1 where the payload agrees with its checksum
    consumed: int  # the bytes of these records; after them comes no whole record yet
    lost: bool  # the length that follows is damaged, so nothing after it can be read
    too_long: bool  # the record that follows is longer than RECORD_BYTES


def crc32c(data: Any, crc: int = 0) -> int:
    """CRC-32C of a buffer; with `crc`, the checksum of earlier bytes, of these and the buffer."""
    memory = ffi.from_buffer("char[]", data)
    return int(lib.tn_crc32c(memory, len(memory), crc))


def tfrecords(data: Any, capacity: int) -> TfRecords:
    """Up to `capacity` records of a TFRecord file from the start of a buffer of bytes."""
    memory = ffi.from_buffer("char[]", data)
    starts, lengths = np.empty(capacity, np.uint64), np.empty(capacity, np.uint64)
    whole = np.empty(capacity, np.uint8)
    count, consumed = ffi.new("uint64_t *"), ffi.new("uint64_t *")
    code = lib.tn_tfrecord_walk(
        memory,
        len(memory),
        capacity,
        output(starts),
        output(lengths),
        output(whole),
        count,
        consumed,
    )
    n = int(count[0])
    return TfRecords(
        starts[:n],
        lengths[:n],
        whole[:n],
        int(consumed[0]),
        code == lib.TN_BAD_VALUE,
        code == lib.TN_TOO_LONG,
    )
