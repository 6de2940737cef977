"""libsvm, libfm and libffm text: a label, then `feature:value` or `field:feature:value`."""

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tnctl.data import lines
from tnctl.data.lines import Words
from tnctl.data.reading import BadRows, Piece
from tnctl.errors import UserError
from tnctl.schema import Conf

LABEL, FEATURES, VALUES = "label", "features", "values"
NUMBERED = re.compile(r"([1-9][0-9]*|0)(\.values)?")  # the k-th feature, or those of field k
VALUE_OF = re.compile(r"(.+):")  # the value of one feature
PLUS = ord("+")


def pieces(conf: Conf, url: str, needed: list[str], skip_rows: int) -> Iterator[Piece]:
    """The rows of one file, in order, with the columns `needed` (docs/data.md names them all).

    Raises `Failure` naming the file and the line, `UserError` for a column that there cannot be.
    """
    for name in needed:
        if name not in (LABEL, FEATURES, VALUES) and not (
            NUMBERED.fullmatch(name) or VALUE_OF.fullmatch(name)
        ):
            raise UserError(
                f"data.format=libsvm has no column '{name}'. Its columns are {LABEL}, {FEATURES}, "
                f"{VALUES}, 1 (the first feature, or those of field 1), 1.{VALUES}, and 7: (the "
                "value of feature 7)"
            )
    bad = BadRows(conf)
    fields: bool | None = None
    for line, block in lines.blocks(url, skip_rows):
        words = Words(url, line, block, conf.data.check_utf8, bad)
        found = _Features(words)
        if fields is None and len(found.colons):
            fields = bool(found.colons[0] == 2)
        if words.refuse(*_misplaced(words, found, bool(fields)), bad):
            found = _Features(words)
        values = None
        if any(name == VALUES or name.endswith((f".{VALUES}", ":")) for name in needed):
            values, wrong = _values(words, found)
            if words.refuse(wrong, "has a value that is no number", bad):
                found = _Features(words)
                values, _ = _values(words, found)
        columns = _Columns(words, found, bool(fields), values)
        table = pa.table([columns.column(name) for name in needed], names=needed)
        yield bad.piece(table, words.where())


class _Features:
    """The words after each label, in parts."""

    def __init__(self, words: Words) -> None:
        self.word = np.delete(np.arange(len(words.starts)), words.firsts)
        self.row = words.rows[self.word]
        every, first, last = words.colons()
        self.label_colons = every[words.firsts]
        self.colons = every[self.word]
        starts, ends = words.starts[self.word], words.ends[self.word]
        first, last = first[self.word], last[self.word]
        self.field_ends = first
        self.starts = np.where(self.colons == 2, first + 1, starts)
        self.ends = np.where(self.colons == 0, ends, last)
        # Without a value the feature's is 1: there is no text of it.
        self.value_starts = np.where(self.colons == 0, ends, last + 1)
        self.value_ends = ends


def _misplaced(words: Words, found: _Features, fields: bool) -> tuple[NDArray[np.bool_], str]:
    """Which words are not what should stand there, a label or a feature, and why the first is."""
    empty = found.starts >= found.ends
    empty |= (found.colons > 0) & (found.value_starts >= found.value_ends)
    if fields:
        empty |= words.starts[found.word] >= found.field_ends
    wrong = np.zeros(len(words.starts), bool)
    wrong[words.firsts] = found.label_colons > 0
    wrong[found.word] = empty | (found.colons != 2 if fields else found.colons > 1)
    if wrong.any() and wrong.argmax() in words.firsts:
        return wrong, "stands where the label should"
    return wrong, f"is not {'field:feature:value' if fields else 'feature:value'}"


def _values(words: Words, found: _Features) -> tuple[pa.Array, NDArray[np.bool_]]:
    """The value of each feature, and the words whose value is no number."""
    starts = _without_plus(words, found.value_starts, found.value_ends)
    texts = words.texts(starts, found.value_ends)
    if not found.colons.all():
        texts = pc.if_else(pa.array(found.colons == 0), pa.scalar("1").cast(texts.type), texts)
    values, bare = lines.numbers_of(texts)
    wrong = np.zeros(len(words.starts), bool)
    wrong[found.word] = bare
    return values, wrong


def _without_plus(words: Words, starts: NDArray[Any], ends: NDArray[Any]) -> NDArray[Any]:
    """Starts after a leading plus, which Arrow's numbers do not have."""
    inside = np.minimum(starts, len(words.bytes) - 1)
    return starts + ((words.bytes[inside] == PLUS) & (ends - starts > 1))


class _Columns:
    """The columns of some checked rows."""

    def __init__(
        self, words: Words, found: _Features, fields: bool, values: pa.Array | None
    ) -> None:
        self.words = words
        self.found = found
        self.fields = fields
        self.features = words.texts(found.starts, found.ends)
        self.values = values

    def column(self, name: str) -> pa.Array:
        """The column of that name."""
        words, row = self.words, self.found.row
        n = len(words.firsts)
        if name == LABEL:
            starts, ends = words.starts[words.firsts], words.ends[words.firsts]
            return words.texts(_without_plus(words, starts, ends), ends)
        if name in (FEATURES, VALUES):
            return lines.listed(self.features if name == FEATURES else self.values, row, n)
        if one := VALUE_OF.fullmatch(name):
            same = np.flatnonzero(lines.equal(self.features, one[1]))
            # Of a feature that stands twice the first counts: it is written last.
            places = np.full(n, -1)
            places[row[same][::-1]] = same[::-1]
            return _taken(self.values, places)
        match = NUMBERED.fullmatch(name)
        assert match is not None
        source: pa.Array = self.values if match[2] else self.features
        if self.fields:
            texts = words.texts(words.starts[self.found.word], self.found.field_ends)
            same = np.flatnonzero(lines.equal(texts, match[1]))
            return lines.listed(source.take(pa.array(same)), row[same], n)
        number, features = int(match[1]), words.counts - 1
        if number == 0:
            raise UserError("column '0' is for libffm's field 0; the first feature of a line is 1")
        starts = np.cumsum(features) - features
        return _taken(source, np.where(features >= number, starts + number - 1, -1))


def _taken(source: pa.Array, places: NDArray[Any]) -> pa.Array:
    """The values at the places, null where a place is negative."""
    return source.take(pa.array(np.maximum(places, 0), mask=places < 0))
