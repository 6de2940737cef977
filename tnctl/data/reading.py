"""Which columns a conf reads, and the pieces of a file that every format yields."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pyarrow as pa

from tnctl.errors import Failure, did_you_mean
from tnctl.schema import Conf, Numeric, Slot

# Maps a row of a table, from 0, to the file it came from and its line or row there, from 1.
Where = Callable[[int], tuple[str, int]]


@dataclass
class Piece:
    """Some consecutive rows of one file: Arrow columns, and where each row came from."""

    table: pa.Table
    where: Where


def counted(url: str, first: int) -> Where:
    """Where rows are that stand in `url` one after the other, from number `first` on."""
    return lambda row: (url, first + row)


def shifted(where: Where, rows: int) -> Where:
    """Where the rows of a slice are that starts `rows` further on."""
    return lambda row: where(row + rows)


def slot_column(name: str, slot: Slot) -> str:
    """The column that a slot is read from."""
    return slot.column or name


def numeric_column(name: str, numeric: Numeric) -> str:
    """The column that a numeric input is read from."""
    return numeric.column or name


def columns_read(conf: Conf) -> list[str]:
    """Every column that training needs, each once: slots, numeric, label, reference."""
    names = [slot_column(name, slot) for name, slot in conf.slots.items()]
    names += [numeric_column(name, numeric) for name, numeric in conf.numeric.items()]
    names.append(conf.data.label.column)
    if conf.data.reference:
        names.append(conf.data.reference)
    return list(dict.fromkeys(names))


def text_columns(conf: Conf) -> set[str]:
    """The columns whose text matters: a file that has only text must not parse them as numbers."""
    names = {
        slot_column(name, slot) for name, slot in conf.slots.items() if slot.ids != "quantiles"
    }
    if conf.data.label.positive is not None:
        names.add(conf.data.label.column)
    return names


def require(url: str, needed: Iterable[str], present: Iterable[str]) -> None:
    """Refuse a file that lacks a column, naming the nearest one it has."""
    names = list(present)
    for name in needed:
        if name not in names:
            raise Failure(f"{url} has no column '{name}'. {did_you_mean(name, names)}")
        if names.count(name) > 1:
            raise Failure(f"{url} has two columns '{name}'. Rename one of them")
