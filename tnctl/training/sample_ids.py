"""The ids in a sample of the data: which rows have them, and when each gets a row of a table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tnctl.data import numbers
from tnctl.data.bad_rows import Skipped
from tnctl.data.batches import Batch
from tnctl.data.features import EncodedRows, Features
from tnctl.data.file_pieces import Where
from tnctl.data.numeric_inputs import vectors
from tnctl.data.sources import Source
from tnctl.data.statistics import Statistics
from tnctl.data.windows import windows
from tnctl.schema import Conf, RowLife, Slot
from tnctl.training import row_life

WINDOW_ROWS = 8192
LEAST_VALUES = 100  # of which a rule is taken
SHOWN_TEXTS = 5
MOST_TEXTS = 2000  # of a column, in some rows of the sample


@dataclass(frozen=True)
class NumberFigures:
    """One numeric input in the sample, before its transform; None where it has no number."""

    present: float
    """the share of numbers that are not missing"""
    mean: float | None
    lowest: float | None
    low: float | None
    """a hundredth of the numbers is below"""
    median: float | None
    high: float | None
    """a hundredth of the numbers is above"""
    highest: float | None

    @classmethod
    def of(cls, values: NDArray[np.float64]) -> "NumberFigures":
        """The figures of float64 [n], NaN where missing."""
        there = values[~np.isnan(values)]
        if not len(there):
            return cls(0.0, None, None, None, None, None, None)
        with np.errstate(over="ignore", invalid="ignore"):
            spread = np.quantile(there, (0, 0.01, 0.5, 0.99, 1)).tolist()
            return cls(len(there) / len(values), float(there.mean()), *spread)


@dataclass(frozen=True)
class Look:
    """Some rows of the sample."""

    numbers: dict[str, NDArray[np.float64]]
    empty: dict[str, int]
    """rows of a slot whose only id is that of missing values"""
    labels: dict[str, list[str]]
    """of each label that `positive` describes, some of its texts"""
    texts: dict[str, pa.Array]
    """of each slot whose values are texts as they are, some of these"""


class LookingFeatures(Features):
    """Features that also look at what becomes ids and numbers, for `SampleFigures`.

    Threads may read parts of the sample in any order.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.looks: list[Look] = []

    def read(self, table: pa.Table, where: Where) -> EncodedRows:
        encoded = super().read(table, where)  # which raises for bad rows: they are not looked at
        data = self.conf.data
        whole = {name: numbers.flat(table.column(name)) for name in self.columns}
        plain = {
            name: whole[encoder.column]
            for name, encoder in self._encoders.items()
            if encoder.slot.cross is None
            and encoder.slot.separator is None
            and encoder.slot.ids in ("hash", "modulo")
        }
        look = Look(
            {
                name: vectors(whole, name, numeric, data, where).ravel()
                for name, numeric in self.conf.numeric.items()
            },
            {name: cells.empty for name, cells in encoded.cells.items()},
            {
                name: _distinct(whole[label.column])
                for name, label in data.all_labels.items()
                if label.positive is not None
            },
            {name: _some_texts(array) for name, array in plain.items()},
        )
        self.looks.append(look)
        return encoded


@dataclass(frozen=True)
class SampleFigures:
    """The figures of all rows of the sample; empty of prepared rows, which have no columns."""

    numbers: dict[str, NumberFigures]
    empty: dict[str, int]
    labels: dict[str, list[str]]
    texts: dict[str, pa.ChunkedArray]

    @classmethod
    def of(cls, looks: list[Look]) -> "SampleFigures":
        """Taken together."""
        names = looks[0] if looks else Look({}, {}, {}, {})
        return cls(
            {
                name: NumberFigures.of(np.concatenate([look.numbers[name] for look in looks]))
                for name in names.numbers
            },
            {name: sum(look.empty[name] for look in looks) for name in names.empty},
            {
                name: sorted({text for look in looks for text in look.labels[name]})[:SHOWN_TEXTS]
                for name in names.labels
            },
            {
                name: pa.chunked_array([look.texts[name] for look in looks], pa.large_string())
                for name in names.texts
            },
        )


def _distinct(array: pa.Array) -> list[str]:
    """Some of the texts of a column [rows], in the order of first occurrence."""
    texts = pc.unique(numbers.plain(array).drop_null()).slice(0, SHOWN_TEXTS)
    return [str(text) for text in texts.to_pylist()]


def _some_texts(array: pa.Array) -> pa.Array:
    """Texts of rows from the first to the last; none of a column [rows] of other types."""
    array = numbers.plain(array)
    if not (pa.types.is_string(array.type) or pa.types.is_large_string(array.type)):
        return pa.array([], pa.large_string())
    places = np.linspace(0, len(array) - 1, min(MOST_TEXTS, len(array))).astype(np.int64)
    return array.take(pa.array(places)).cast(pa.large_string())


def read_sample(
    conf: Conf, measured: Statistics, rows: int, skipped: Skipped
) -> tuple[list[Batch], SampleFigures]:
    """The first rows of a split, each slot as a table, and their figures; negatives are kept."""
    data = replace(conf.data, negatives=1.0, window=WINDOW_ROWS)
    whole = replace(conf, data=data, train=replace(conf.train, batch_size=1))
    tables = [([name], [spread(slot)]) for name, slot in conf.slots.items()]
    features = LookingFeatures(whole, tables, measured, carry=conf.data.carry)
    sample = list(windows(Source(whole, skipped.split), features, limit=rows, skipped=skipped))
    return sample, SampleFigures.of(features.looks)


def spread(slot: Slot) -> int:
    """The cells of a slot in an example."""
    return slot.max_length or 1 if slot.pooling == "none" else 1


def ids_per_row(window: Batch, number: int, cells: int) -> NDArray[np.int64]:
    """How many ids each row of a window has in slot `number`."""
    ends = window.offsets[number][::cells].astype(np.int64)
    return ends[1:] - ends[:-1]


def members(slots: Mapping[str, Slot]) -> dict[str, list[int]]:
    """For every share group the numbers of its slots."""
    numbers: dict[str, list[int]] = {}
    for number, (name, slot) in enumerate(slots.items()):
        numbers.setdefault(slot.group or name, []).append(number)
    return numbers


def occurrences(
    spreads: Sequence[int], sample: list[Batch], numbers: list[int]
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """All ids of the slots with these numbers, and the row of each.

    `spreads` has the cells of every slot in an example.
    """
    ids, owners = [], []
    for number in numbers:
        first = 0
        for window in sample:
            counts = ids_per_row(window, number, spreads[number])
            ids.append(window.ids[number])
            owners.append(np.repeat(np.arange(first, first + window.rows), counts))
            first += window.rows
    return np.concatenate(ids), np.concatenate(owners)


def by_id(
    ids: NDArray[np.uint64], owners: NDArray[np.int64]
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """The order of ids by value, then row; where each distinct id starts in it; how often it is."""
    order = np.lexsort((owners, ids))
    starts = np.flatnonzero(np.diff(ids[order], prepend=~ids[order[:1]]))
    return order, starts, np.diff(starts, append=len(ids))


def admitted(
    ids: NDArray[np.uint64], owners: NDArray[np.int64], life: RowLife, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """For every id that gets a row: in which row of the data, and how often it is met from it on.

    The third is a sum over all ids: the occurrences up to the one that makes the row, or all where
    none does. Chances are drawn independently of the training: an expectation.
    """
    order, starts, counts = by_id(ids, owners)
    occurrence = np.arange(len(ids)) - np.repeat(starts, counts)  # from 0, of each id
    makes_row = occurrence == life.admission.after - 1
    if life.admission.probability < 1:  # the schema allows only one of both rules
        makes_row = np.random.default_rng(seed).random(len(ids)) < life.admission.probability
        makes_row |= occurrence >= row_life.MOST_COUNTED  # more the table's counters cannot hold
    candidates = np.where(makes_row, occurrence, len(ids))
    first = np.minimum.reduceat(candidates, starts) if len(ids) else candidates
    admits = first < len(ids)
    waited = int(np.where(admits, first + 1, counts).sum())
    return owners[order][starts[admits] + first[admits]], counts[admits] - first[admits], waited


def first_met(
    ids: NDArray[np.uint64], owners: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For every distinct id the first row that has it, and how often it is met."""
    order, starts, times = by_id(ids, owners)
    return owners[order][starts], times
