"""Files of words: libsvm, libfm, libffm and Paddle's text, each line a row.

libsvm has a label, then `feature:value` or `field:feature:value`. Paddle has `slot:value` or
`value:slot`, or lines without names (MultiSlot).
"""

import re
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tnctl import limits
from tnctl.data import Bools, Int64s
from tnctl.data.file_pieces import (
    FileFaults,
    Line,
    Tables,
    TextReader,
    Where,
    at_lines,
    report_absent,
    require_named,
)
from tnctl.data.formats import text_lines
from tnctl.data.formats.text_lines import NEWLINE, is_utf8, numbers_of
from tnctl.data.numbers import as_numpy, indices_within, offsets_of, owners_of
from tnctl.errors import UserError, quoted, refuse_if

COLON, PLUS = ord(":"), ord("+")
IS_BLANK = np.zeros(256, bool)
IS_BLANK[list(b" \t\n\v\f\r")] = True


class Words:
    """The words of consecutive lines, which blanks part. Lines without a word are no rows."""

    def __init__(
        self, url: str, line: int, block: memoryview, check_utf8: bool, faults: FileFaults
    ) -> None:
        self.url, self.check_utf8, self.faults = url, check_utf8, faults
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
        # Beside values a row has its label.
        self._drop(
            self.counts > limits.ROW_VALUES + 1,
            lambda row: (
                f"{self.counts[row]:,} words, and a row has at most {limits.ROW_VALUES:,} values. "
                "Split or remove the line"
            ),
        )
        if check_utf8 and not is_utf8(block):
            lines_of = enumerate(bytes(block).split(b"\n"), line)
            wrong = [number for number, text in lines_of if not is_utf8(text)]
            self._drop(
                np.isin(self.lines, wrong),
                lambda _: (
                    "not UTF-8. Write the file as UTF-8, or set data.check_utf8=false to hash its "
                    "bytes"
                ),
            )

    @property
    def rows(self) -> NDArray[Any]:
        """The row of each word, int64 [words]."""
        return owners_of(self.counts)

    def where(self) -> Where:
        """The file and line of each row."""
        return at_lines(self.url, self.lines)

    def _drop(self, wrong: Bools, fault: Callable[[int], str]) -> bool:
        """Skip the rows that are wrong (bool [rows]), with the fault of the first; if any is."""
        if not wrong.any():
            return False
        row = int(wrong.argmax())
        self.faults.add(Line(self.url, int(self.lines[row])), fault(row), rows=int(wrong.sum()))
        words = np.repeat(~wrong, self.counts)
        self.starts, self.ends = self.starts[words], self.ends[words]
        self.lines, self.counts = self.lines[~wrong], self.counts[~wrong]
        self.firsts = np.cumsum(self.counts) - self.counts
        return True

    def refuse(self, wrong: Bools, reason: str) -> bool:
        """Skip the rows that have a wrong word (bool [words]), for that reason; whether any has."""
        if not wrong.any():
            return False
        word = int(wrong.argmax())
        shown = quoted(self.bytes[self.starts[word] : self.ends[word]].tobytes())
        rows = np.isin(np.arange(len(self.firsts)), self.rows[wrong])
        return self._drop(rows, lambda _: f"{shown} {reason}. Mend or remove the line")

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


def listed(values: pa.Array, rows: NDArray[Any], n: int) -> pa.ListArray:
    """Values [m] that belong to ascending rows (integers [m]), as one list for each of n rows."""
    return pa.ListArray.from_arrays(offsets_of(np.bincount(rows, minlength=n)), values)


def equal(texts: pa.Array, text: str) -> Bools:
    """Where texts [n], string or binary, are `text`: bool [n]."""
    value = pa.scalar(text.encode(), pa.binary()).cast(texts.type)
    return as_numpy(pc.equal(texts, value))


class WordReader(TextReader):
    """Reads files whose lines are words."""

    def words(self, url: str, faults: FileFaults) -> Iterator[Words]:
        """The words of a file, some lines at a time."""
        for line, block in text_lines.blocks(url, self.skip_rows):
            yield Words(url, line, block, self.data.check_utf8, faults)


LABEL, FEATURES, VALUES = "label", "features", "values"
NUMBERED = re.compile(r"([1-9][0-9]*|0)(\.values)?")  # the k-th feature, or all features of field k
VALUE_OF = re.compile(r"(.+):")  # the value of one feature
NO_WORD = np.zeros(0, bool)


class LibsvmReader(WordReader):
    """Reads libsvm, libfm and libffm; docs/data.md names the columns."""

    def tables(self, url: str, needed: list[str], faults: FileFaults) -> Tables:
        for name in needed:
            if name not in (LABEL, FEATURES, VALUES) and not (
                NUMBERED.fullmatch(name) or VALUE_OF.fullmatch(name)
            ):
                raise UserError(
                    f"data.format=libsvm has no column '{name}'. Its columns are {LABEL}, "
                    f"{FEATURES}, {VALUES}, 1 (the first feature, or those of field 1), "
                    f"1.{VALUES}, and 7: (the value of feature 7)"
                )
        with_values = any(name.endswith((VALUES, ":")) for name in needed)
        fields: bool | None = None
        for words in self.words(url, faults):
            features = _Features(words)
            if fields is None and len(features.colons):
                fields = bool(features.colons[0] == 2)
            if words.refuse(*_malformed(words, features, bool(fields))):
                features = _Features(words)
            values, wrong = _values(words, features) if with_values else (None, NO_WORD)
            if words.refuse(wrong, "has a value that is no number"):
                features = _Features(words)
                values, _ = _values(words, features)
            columns = [_column(name, words, features, bool(fields), values) for name in needed]
            yield pa.table(columns, names=needed), words.where()


class _Features:
    """The features, in parts: of all words but the labels arrays [n], starts and ends in bytes."""

    def __init__(self, words: Words) -> None:
        self._words = words
        self.word = np.delete(np.arange(len(words.starts)), words.firsts)  # place in `words`
        self.row = words.rows[self.word]
        every, first, last = words.colons()
        self.label_colons = every[words.firsts]  # how many colons each label has, by row
        self.colons = every[self.word]  # and each feature
        starts, ends = words.starts[self.word], words.ends[self.word]
        first, last = first[self.word], last[self.word]
        self.field_ends = first
        self.starts = np.where(self.colons == 2, first + 1, starts)
        self.ends = np.where(self.colons == 0, ends, last)
        # Without a value the feature's is 1: there is no text of it.
        self.value_starts = np.where(self.colons == 0, ends, last + 1)
        self.value_ends = ends

    @cached_property
    def texts(self) -> pa.Array:
        """The features themselves."""
        return self._words.texts(self.starts, self.ends)


def _malformed(words: Words, features: _Features, fields: bool) -> tuple[Bools, str]:
    """Which words are neither a label nor a feature as their place asks, and why the first is not.

    With `fields` a feature is field:feature:value, as in libffm, else feature:value or feature.
    """
    empty = features.starts >= features.ends
    empty |= (features.colons > 0) & (features.value_starts >= features.value_ends)
    if fields:
        empty |= words.starts[features.word] >= features.field_ends
    wrong = np.zeros(len(words.starts), bool)
    wrong[words.firsts] = features.label_colons > 0
    wrong[features.word] = empty | (features.colons != 2 if fields else features.colons > 1)
    if wrong.any() and wrong.argmax() in words.firsts:
        return wrong, "is in the place of the label"
    return wrong, f"is not {'field:feature:value' if fields else 'feature:value'}"


def _values(words: Words, features: _Features) -> tuple[pa.Array, Bools]:
    """The value of each feature, and the words whose value is no number."""
    starts = _without_plus(words, features.value_starts, features.value_ends)
    texts = words.texts(starts, features.value_ends)
    if not features.colons.all():
        texts = pc.if_else(pa.array(features.colons == 0), pa.scalar("1").cast(texts.type), texts)
    values, bare = numbers_of(texts)
    wrong = np.zeros(len(words.starts), bool)
    wrong[features.word] = bare
    return values, wrong


def _without_plus(words: Words, starts: NDArray[Any], ends: NDArray[Any]) -> NDArray[Any]:
    """Starts after a leading plus, which Arrow's numbers do not have."""
    inside = np.minimum(starts, len(words.bytes) - 1)
    return starts + ((words.bytes[inside] == PLUS) & (ends - starts > 1))


def _column(
    name: str, words: Words, features: _Features, fields: bool, values: pa.Array | None
) -> pa.Array:
    """A column of checked rows; `values` are the features' values."""
    n, row = len(words.firsts), features.row
    if name == LABEL:
        starts, ends = words.starts[words.firsts], words.ends[words.firsts]
        return words.texts(_without_plus(words, starts, ends), ends)
    if name in (FEATURES, VALUES):
        return listed(features.texts if name == FEATURES else values, row, n)
    if value_of := VALUE_OF.fullmatch(name):
        same = np.flatnonzero(equal(features.texts, value_of[1]))
        # Of a feature that is there twice the first counts: it is written last.
        places = np.full(n, -1)
        places[row[same][::-1]] = same[::-1]
        return _taken(values, places)
    match = NUMBERED.fullmatch(name)
    assert match is not None
    source: pa.Array = values if match[2] else features.texts
    if fields:
        texts = words.texts(words.starts[features.word], features.field_ends)
        same = np.flatnonzero(equal(texts, match[1]))
        return listed(source.take(pa.array(same)), row[same], n)
    number, counts = int(match[1]), words.counts - 1
    refuse_if(number == 0, "column '0' is for libffm's field 0; the first feature of a line is 1")
    starts = np.cumsum(counts) - counts
    return _taken(source, np.where(counts >= number, starts + number - 1, -1))


def _taken(source: pa.Array, places: NDArray[Any]) -> pa.Array:
    """The values at the places, null where a place is negative."""
    return source.take(pa.array(np.maximum(places, 0), mask=places < 0))


class PaddleReader(WordReader):
    """Reads Paddle's text; each column is a list of texts, the values of one slot.

    Its words are `slot:value` or `value:slot` (data.pairs), or counts and values of the slots of
    data.columns in turn.
    """

    def tables(self, url: str, needed: list[str], faults: FileFaults) -> Tables:
        names = self.data.columns
        require_named(needed, names)
        for words in self.words(url, faults):
            if names is not None:
                table = _counted(words, names, needed)
            else:
                table = _named(words, self.data.pairs, needed)
            yield table, words.where()

    def require_stored(self, url: str, needed: list[str]) -> None:
        require_named(needed, self.data.columns)
        super().require_stored(url, needed)

    def stored_columns(self, url: str) -> list[str] | None:
        if self.data.columns is not None:
            return self.data.columns
        words = b" ".join(text_lines.head_lines(url)).split()
        slot_last = self.data.pairs == "value:slot"
        slots = [
            word.rpartition(b":")[2] if slot_last else word.partition(b":")[0] for word in words
        ]
        return [str(name, "utf-8", "replace") for name in dict.fromkeys(slots)]


def _named(words: Words, pairs: str, needed: list[str]) -> pa.Table:
    """Rows of words that name their slot."""
    value_first = pairs == "value:slot"
    colons, first, last = words.colons()
    cut = last if value_first else first
    bare = (colons == 0) | (cut == words.starts) | (cut == words.ends - 1)
    if words.refuse(bare, f"is not {pairs}, the form of data.pairs"):
        _, first, last = words.colons()
        cut = last if value_first else first
    pair = (words.texts(words.starts, cut), words.texts(cut + 1, words.ends))
    slots, values = reversed(pair) if value_first else pair
    known = pa.array([name.encode() for name in needed], pa.binary()).cast(slots.type)
    numbers = pc.index_in(slots, value_set=known).fill_null(len(needed)).to_numpy()
    counts = np.bincount(numbers, minlength=len(needed) + 1)
    report_absent(
        words.url,
        needed,
        counts[:-1] > 0,
        lambda: [
            str(name, "utf-8", "replace") for name in pc.unique(slots).cast(pa.binary()).to_pylist()
        ],
    )
    order = np.argsort(numbers, kind="stable")
    ends, rows = np.cumsum(counts), words.rows
    columns = []
    for index in range(len(needed)):
        of_slot = order[ends[index] - counts[index] : ends[index]]
        columns.append(listed(values.take(pa.array(of_slot)), rows[of_slot], len(words.firsts)))
    return pa.table(columns, names=needed)


def _counted(words: Words, names: list[str], needed: list[str]) -> pa.Table:
    """Rows of `count value …` for each slot in turn."""
    while True:
        slices, wrong, reason = _slices(words, names)
        if not words.refuse(wrong, reason):
            break
    values = words.texts(words.starts, words.ends)
    columns = []
    for name in needed:
        starts, counts = slices[name]
        rows = owners_of(counts)
        taken = values.take(pa.array(starts[rows] + indices_within(counts)))
        columns.append(listed(taken, rows, len(counts)))
    return pa.table(columns, names=needed)


Slices = dict[str, tuple[Int64s, Int64s]]


def _slices(words: Words, names: list[str]) -> tuple[Slices, Bools, str]:
    """Of each slot the first word and the count in every row, or the words that are wrong."""
    texts = words.texts(words.starts, words.ends)
    slices: Slices = {}
    wrong = np.zeros(len(words.starts), bool)
    at, left = words.firsts.astype(np.int64), words.counts.astype(np.int64)
    for name in names:
        if (left < 1).any():
            wrong[(at - 1)[left < 1]] = True
            return (
                slices,
                wrong,
                f"is the end of the line, where the count of slot '{name}' follows",
            )
        counts, bare = numbers_of(texts.take(pa.array(at)))
        count = np.nan_to_num(as_numpy(counts), nan=-1.0, posinf=-1.0)
        bare |= (count < 0) | (count != np.floor(count)) | (count > left - 1)
        if bare.any():
            wrong[at[bare]] = True
            return slices, wrong, f"is not the number of values of slot '{name}' that follow"
        size = count.astype(np.int64)
        slices[name] = (at + 1, size)
        at, left = at + 1 + size, left - 1 - size
    wrong[at[left > 0]] = True
    return slices, wrong, "is after the last slot of data.columns"
