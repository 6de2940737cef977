"""libsvm, libfm and libffm text: a label, then `feature:value` or `field:feature:value`."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tnctl.data.file_pieces import BadRows, Piece, TextReader
from tnctl.data.formats import text_lines
from tnctl.data.formats.text_lines import Words
from tnctl.errors import UserError, refuse_if

LABEL, FEATURES, VALUES = "label", "features", "values"
NUMBERED = re.compile(r"([1-9][0-9]*|0)(\.values)?")  # the k-th feature, or all features of field k
VALUE_OF = re.compile(r"(.+):")  # the value of one feature
PLUS = ord("+")
NO_WORD = np.zeros(0, bool)


@dataclass(frozen=True)
class LibsvmReader(TextReader):
    """Reads libsvm, libfm and libffm; docs/data.md names the columns."""

    check_utf8: bool
    bad_rows: int
    skip_rows: int  # lines at the start of a file

    def pieces(self, url: str, needed: list[str]) -> Iterator[Piece]:
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
        bad = BadRows(self.bad_rows)
        fields: bool | None = None
        for line, block in text_lines.blocks(url, self.skip_rows):
            words = Words(url, line, block, self.check_utf8, bad)
            features = _Features(words)
            if fields is None and len(features.colons):
                fields = bool(features.colons[0] == 2)
            if words.refuse(*_malformed(words, features, bool(fields)), bad):
                features = _Features(words)
            values, wrong = _values(words, features) if with_values else (None, NO_WORD)
            if words.refuse(wrong, "has a value that is no number", bad):
                features = _Features(words)
                values, _ = _values(words, features)
            columns = [_column(name, words, features, bool(fields), values) for name in needed]
            table = pa.table(columns, names=needed)
            yield bad.piece(table, words.where())


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


def _malformed(words: Words, features: _Features, fields: bool) -> tuple[NDArray[np.bool_], str]:
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


def _values(words: Words, features: _Features) -> tuple[pa.Array, NDArray[np.bool_]]:
    """The value of each feature, and the words whose value is no number."""
    starts = _without_plus(words, features.value_starts, features.value_ends)
    texts = words.texts(starts, features.value_ends)
    if not features.colons.all():
        texts = pc.if_else(pa.array(features.colons == 0), pa.scalar("1").cast(texts.type), texts)
    values, bare = text_lines.numbers_of(texts)
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
    """A column of checked rows; `values` are those of the features."""
    n, row = len(words.firsts), features.row
    if name == LABEL:
        starts, ends = words.starts[words.firsts], words.ends[words.firsts]
        return words.texts(_without_plus(words, starts, ends), ends)
    if name in (FEATURES, VALUES):
        return text_lines.listed(features.texts if name == FEATURES else values, row, n)
    if value_of := VALUE_OF.fullmatch(name):
        same = np.flatnonzero(text_lines.equal(features.texts, value_of[1]))
        # Of a feature that is there twice the first counts: it is written last.
        places = np.full(n, -1)
        places[row[same][::-1]] = same[::-1]
        return _taken(values, places)
    match = NUMBERED.fullmatch(name)
    assert match is not None
    source: pa.Array = values if match[2] else features.texts
    if fields:
        texts = words.texts(words.starts[features.word], features.field_ends)
        same = np.flatnonzero(text_lines.equal(texts, match[1]))
        return text_lines.listed(source.take(pa.array(same)), row[same], n)
    number, counts = int(match[1]), words.counts - 1
    refuse_if(number == 0, "column '0' is for libffm's field 0; the first feature of a line is 1")
    starts = np.cumsum(counts) - counts
    return _taken(source, np.where(counts >= number, starts + number - 1, -1))


def _taken(source: pa.Array, places: NDArray[Any]) -> pa.Array:
    """The values at the places, null where a place is negative."""
    return source.take(pa.array(np.maximum(places, 0), mask=places < 0))
