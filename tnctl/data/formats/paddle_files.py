"""Paddle's text: words of `slot:value` or `value:slot`, or lines without names (MultiSlot)."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tnctl.data.file_pieces import BadRows, Piece, TextReader, report_absent
from tnctl.data.formats import text_lines
from tnctl.data.formats.text_lines import Words
from tnctl.errors import UserError, did_you_mean


@dataclass(frozen=True)
class PaddleReader(TextReader):
    """Reads Paddle's text; each column is a list of texts, the values of one slot."""

    names: list[str] | None  # the slots of lines without names (data.columns), in their order
    pairs: str
    check_utf8: bool
    bad_rows: int
    skip_rows: int  # lines at the start of a file

    def pieces(self, url: str, needed: list[str]) -> Iterator[Piece]:
        names = self.names
        self.require(url, needed)
        bad = BadRows(self.bad_rows)
        for line, block in text_lines.blocks(url, self.skip_rows):
            words = Words(url, line, block, self.check_utf8, bad)
            if names is not None:
                table = _counted(words, names, needed, bad)
            else:
                table = _named(words, self.pairs, needed, bad)
            yield bad.piece(table, words.where())

    def require(self, url: str, needed: list[str]) -> None:
        names = self.names
        if names is not None and (absent := [name for name in needed if name not in names]):
            raise UserError(f"data.columns has no '{absent[0]}'. {did_you_mean(absent[0], names)}")
        super().require(url, needed)

    def columns(self, url: str) -> list[str] | None:
        if self.names is not None:
            return self.names
        words = b" ".join(text_lines.head_lines(url)).split()
        slots = [
            word.rpartition(b":")[2] if self.pairs == "value:slot" else word.partition(b":")[0]
            for word in words
        ]
        return [str(name, "utf-8", "replace") for name in dict.fromkeys(slots)]


def _named(words: Words, pairs: str, needed: list[str], bad: BadRows) -> pa.Table:
    """Rows of words that name their slot."""
    value_first = pairs == "value:slot"
    colons, first, last = words.colons()
    cut = last if value_first else first
    bare = (colons == 0) | (cut == words.starts) | (cut == words.ends - 1)
    if words.refuse(bare, f"is not {pairs}, the form of data.pairs", bad):
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
    for number in range(len(needed)):
        mine = order[ends[number] - counts[number] : ends[number]]
        columns.append(
            text_lines.listed(values.take(pa.array(mine)), rows[mine], len(words.firsts))
        )
    return pa.table(columns, names=needed)


def _counted(words: Words, names: list[str], needed: list[str], bad: BadRows) -> pa.Table:
    """Rows of `count value …` for each slot in turn."""
    while True:
        slices, wrong, reason = _slices(words, names)
        if not words.refuse(wrong, reason, bad):
            break
    values = words.texts(words.starts, words.ends)
    columns = []
    for name in needed:
        starts, counts = slices[name]
        rows = np.repeat(np.arange(len(counts)), counts)
        ends = np.cumsum(counts)
        inside = np.arange(len(rows)) - np.repeat(ends - counts, counts)
        taken = values.take(pa.array(starts[rows] + inside))
        columns.append(text_lines.listed(taken, rows, len(counts)))
    return pa.table(columns, names=needed)


Slices = dict[str, tuple[NDArray[np.int64], NDArray[np.int64]]]


def _slices(words: Words, names: list[str]) -> tuple[Slices, NDArray[np.bool_], str]:
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
        counts, bare = text_lines.numbers_of(texts.take(pa.array(at)))
        count = np.nan_to_num(counts.to_numpy(zero_copy_only=False), nan=-1.0, posinf=-1.0)
        bare |= (count < 0) | (count != np.floor(count)) | (count > left - 1)
        if bare.any():
            wrong[at[bare]] = True
            return slices, wrong, f"is not the number of values of slot '{name}' that follow"
        size = count.astype(np.int64)
        slices[name] = (at + 1, size)
        at, left = at + 1 + size, left - 1 - size
    wrong[at[left > 0]] = True
    return slices, wrong, "is after the last slot of data.columns"
