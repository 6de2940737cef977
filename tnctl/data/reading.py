"""Which columns a conf reads, and the pieces of a file that every format yields."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from tnctl.errors import Failure, did_you_mean
from tnctl.progress import say
from tnctl.schema import Conf, Numeric, Slot

# Maps a row of a table, from 0, to the file it came from and its line or row there, from 1.
Where = Callable[[int], tuple[str, int]]


class Line(NamedTuple):
    """Where a row is in a file of text."""

    url: str
    number: int


class Record(NamedTuple):
    """Where a row is in a file of records."""

    url: str
    number: int


def named(place: tuple[str, int]) -> str:
    """The place of a row as messages name it."""
    url, number = place
    word = "line" if isinstance(place, Line) else "record" if isinstance(place, Record) else "row"
    return f"{url}, {word} {number}"


def in_lines(where: Where) -> Where:
    """The same places, of rows that are lines."""
    return lambda row: Line(*where(row))


@dataclass
class Piece:
    """Some consecutive rows of one file: Arrow columns, and where each row came from.

    `skipped` rows before or among them could not be read; `reason` says why the first could not.
    """

    table: pa.Table
    where: Where
    skipped: int = 0
    reason: str = ""


class BadRows:
    """The bad rows of a file: the first is refused, or with data.bad_rows they are passed over."""

    def __init__(self, conf: Conf) -> None:
        self._limit = conf.data.bad_rows
        self._total = 0
        self._first = ""
        self._rows = 0
        self._reason = ""

    def add(self, reason: str, rows: int = 1) -> None:
        """Pass over rows, the first of which is bad for this reason; or raise it as `Failure`."""
        if self._limit == 0:
            raise Failure(reason)
        self._total += rows
        self._rows += rows
        self._reason = self._reason or reason
        self._first = self._first or reason
        if self._total > self._limit:
            raise Failure(
                f"over {self._limit:,} rows cannot be read, the most that data.bad_rows allows. "
                f"The first: {self._first}"
            )

    def piece(self, table: pa.Table, where: Where) -> Piece:
        """A piece that tells of the rows passed over since the piece before."""
        rows, reason = self._rows, self._reason
        self._rows, self._reason = 0, ""
        return Piece(table, where, rows, reason)


_met: set[str] = set()


def tell_absent(
    url: str, needed: Sequence[str], found: Sequence[bool], present: Callable[[], Iterable[str]]
) -> None:
    """Say of columns that have no value where a file was read first, once for each.

    For formats whose rows name their columns: a slot may be rare, or its name be wrong.
    """
    for name, has_values in zip(needed, found, strict=True):
        if name not in _met and not has_values:
            names = sorted(present())
            near = "All were null" if name in names else did_you_mean(name, names[:100])
            say(f"{url}: no value of column '{name}' yet. {near}")
        _met.add(name)


class EmptyError(Failure):
    """All files of a split are without any row."""


class EmptyFileError(Failure):
    """A file of no bytes."""


def counted(url: str, first: int) -> Where:
    """Where rows are that stand in `url` one after the other, from number `first` on."""
    return lambda row: (url, first + row)


def shifted(where: Where, rows: int) -> Where:
    """Where the rows of a slice are that starts `rows` further on."""
    return lambda row: where(row + rows)


def slot_column(name: str, slot: Slot) -> str:
    """The column that a slot is read from."""
    return slot.column or name


def slot_columns(conf: Conf, name: str, slot: Slot) -> list[str]:
    """Every column that a slot reads itself: its own and its weights', or those of a cross."""
    if slot.cross is not None:
        return [one for one in slot.cross if one not in conf.slots]
    return [slot_column(name, slot), *([slot.weights] if slot.weights else [])]


def numeric_columns(name: str, numeric: Numeric) -> list[str]:
    """The columns that a numeric input is read from, one unless it has `columns`."""
    return list(numeric.columns) if numeric.columns else [numeric.column or name]


def columns_read(conf: Conf, labelled: bool = True) -> list[str]:
    """Every column that training needs, each once; without labels: what prediction needs."""
    names = [one for name, slot in conf.slots.items() for one in slot_columns(conf, name, slot)]
    for name, numeric in conf.numeric.items():
        names += numeric_columns(name, numeric)
    if labelled:
        data = conf.data
        names += [label.column for label in data.all_labels.values()]
        names += [one for one in (data.weight, data.reference, data.group) if one]
    return list(dict.fromkeys(names))


def id_columns(conf: Conf) -> set[str]:
    """The columns whose values become ids by their text: texts and integers, never fractions."""
    names = {conf.data.group} if conf.data.group else set()
    for name, slot in conf.slots.items():
        if slot.cross is not None:
            names |= set(slot_columns(conf, name, slot))
        elif slot.ids not in ("boundaries", "quantiles"):
            names.add(slot_column(name, slot))
    return names


def text_columns(conf: Conf) -> set[str]:
    """The columns whose text matters: a file that has only text must not parse them as numbers."""
    names = {*conf.data.carry} | id_columns(conf)
    for name, slot in conf.slots.items():
        if slot.separator is not None:
            names |= set(slot_columns(conf, name, slot))
    for name, numeric in conf.numeric.items():
        if numeric.separator is not None:
            names |= set(numeric_columns(name, numeric))
    names |= {one.column for one in conf.data.all_labels.values() if one.positive is not None}
    return names


def require(url: str, needed: Iterable[str], present: Iterable[str]) -> None:
    """Refuse a file that lacks a column, naming the nearest one it has."""
    names = list(present)
    for name in needed:
        if name not in names:
            raise Failure(f"{url} has no column '{name}'. {did_you_mean(name, names)}")
        if names.count(name) > 1:
            raise Failure(f"{url} has two columns '{name}'. Rename one of them")
