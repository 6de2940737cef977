"""Paddle's text: words of `slot:value` or `value:slot`, or lines without names (MultiSlot)."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tnctl.data import lines
from tnctl.data.lines import Words
from tnctl.data.reading import BadRows, Piece, tell_absent
from tnctl.errors import UserError, did_you_mean
from tnctl.schema import Conf


def pieces(conf: Conf, url: str, needed: list[str], skip_rows: int) -> Iterator[Piece]:
    """The rows of one file, in order; each column is a list of texts, the values of one slot.

    Raises `Failure` naming the file and the line.
    """
    names = conf.data.columns
    if names is not None and (unknown := [name for name in needed if name not in names]):
        raise UserError(f"data.columns has no '{unknown[0]}'. {did_you_mean(unknown[0], names)}")
    bad = BadRows(conf)
    for line, block in lines.blocks(url, skip_rows):
        words = Words(url, line, block, conf.data.check_utf8, bad)
        if names is not None:
            table = _counted(words, names, needed, bad)
        else:
            table = _named(words, conf.data.pairs, needed, bad)
        yield bad.piece(table, words.where())


def _named(words: Words, pairs: str, needed: list[str], bad: BadRows) -> pa.Table:
    """Rows of words that name their slot."""
    value_first = pairs == "value:slot"
    colons, first, last = words.colons()
    cut = last if value_first else first
    bare = (colons == 0) | (cut == words.starts) | (cut == words.ends - 1)
    if words.refuse(bare, f"is not {pairs}, the form that data.pairs says", bad):
        _, first, last = words.colons()
        cut = last if value_first else first
    before, after = words.texts(words.starts, cut), words.texts(cut + 1, words.ends)
    slots, values = (after, before) if value_first else (before, after)
    known = pa.array([name.encode() for name in needed], pa.binary()).cast(slots.type)
    numbers = pc.index_in(slots, value_set=known).fill_null(len(needed)).to_numpy()
    counts = np.bincount(numbers, minlength=len(needed) + 1)
    tell_absent(words.url, needed, list(counts[:-1] > 0), lambda: _texts(pc.unique(slots)))
    order = np.argsort(numbers, kind="stable")
    ends, rows = np.cumsum(counts), words.rows
    columns = []
    for number in range(len(needed)):
        mine = order[ends[number] - counts[number] : ends[number]]
        columns.append(lines.listed(values.take(pa.array(mine)), rows[mine], len(words.firsts)))
    return pa.table(columns, names=needed)


def _texts(array: pa.Array) -> list[str]:
    return [str(text, "utf-8", "replace") for text in array.cast(pa.binary()).to_pylist()]


def _counted(words: Words, names: list[str], needed: list[str], bad: BadRows) -> pa.Table:
    """Rows of `count value …` for each slot in turn."""
    while True:
        found, wrong, reason = _slices(words, names)
        if not words.refuse(wrong, reason, bad):
            break
    values = words.texts(words.starts, words.ends)
    columns = []
    for name in needed:
        starts, counts = found[name]
        rows = np.repeat(np.arange(len(counts)), counts)
        ends = np.cumsum(counts)
        inside = np.arange(len(rows)) - np.repeat(ends - counts, counts)
        taken = values.take(pa.array(starts[rows] + inside))
        columns.append(lines.listed(taken, rows, len(counts)))
    return pa.table(columns, names=needed)


Slices = dict[str, tuple[NDArray[np.int64], NDArray[np.int64]]]


def _slices(words: Words, names: list[str]) -> tuple[Slices, NDArray[np.bool_], str]:
    """Of each slot the first word and the count in every row, or the words that are wrong."""
    texts = words.texts(words.starts, words.ends)
    found: Slices = {}
    wrong = np.zeros(len(words.starts), bool)
    at, left = words.firsts.astype(np.int64), words.counts.astype(np.int64)
    for name in names:
        if (left < 1).any():
            wrong[(at - 1)[left < 1]] = True
            return found, wrong, f"is the end of the line, where the count of slot '{name}' follows"
        counts, bare = lines.numbers_of(texts.take(pa.array(at)))
        count = np.nan_to_num(counts.to_numpy(zero_copy_only=False), nan=-1.0, posinf=-1.0)
        bare |= (count < 0) | (count != np.floor(count)) | (count > left - 1)
        if bare.any():
            wrong[at[bare]] = True
            return found, wrong, f"is not the number of values of slot '{name}' that follow"
        size = count.astype(np.int64)
        found[name] = (at + 1, size)
        at, left = at + 1 + size, left - 1 - size
    wrong[at[left > 0]] = True
    return found, wrong, "stands after the last slot of data.columns"
