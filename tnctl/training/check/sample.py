"""The sample of a split: which rows have which ids, and what their columns were before encoding."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tnctl.data import numbers
from tnctl.data.bad_rows import Skipped
from tnctl.data.batches import Batch, joined
from tnctl.data.features import EncodedRows, Features, vectors
from tnctl.data.file_pieces import Where
from tnctl.data.sources import Source
from tnctl.data.statistics_document import Statistics
from tnctl.data.windows import windows
from tnctl.schema import Conf, RowLife, Slot
from tnctl.training import row_life

WINDOW_ROWS = 8192
SHOWN_TEXTS = 5
MOST_TEXTS = 2000  # of a column, in some rows of the sample
Ids = NDArray[np.uint64]
Rows = NDArray[np.int64]


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
            return cls(0.0, *[None] * 6)
        with np.errstate(over="ignore", invalid="ignore"):
            spread = np.quantile(there, (0, 0.01, 0.5, 0.99, 1)).tolist()
            return cls(len(there) / len(values), float(there.mean()), *spread)


@dataclass(frozen=True)
class EncodedSample:
    """The first rows of a split, each slot as a table; negatives are kept.

    `batch` has them; the others are figures of its columns as they are in the files, empty of
    prepared rows, which have no columns.
    """

    batch: Batch
    slots: Mapping[str, Slot]
    numbers: dict[str, NumberFigures]
    empty: dict[str, int]
    """rows of a slot whose only id is the one of missing values"""
    labels: dict[str, list[str]]
    """of each label that `positive` describes, some of its texts"""
    texts: dict[str, pa.ChunkedArray]
    """of each slot whose values are texts as they are, some of these"""

    @cached_property
    def tables(self) -> dict[str, int]:
        """The index of each slot's table in `batch`."""
        return {slot: index for index, slot in enumerate(self.slots)}

    def ids_per_row(self, slot: str) -> Rows:
        """How many ids each row has in a slot, int64 [rows]."""
        ends = self.batch.offsets[self.tables[slot]][:: spread(self.slots[slot])]
        return np.diff(ends).astype(np.int64)

    def occurrences(self, slots: Sequence[str]) -> tuple[Ids, Rows]:
        """All ids of some slots [n], and the row of each."""
        rows = np.arange(self.batch.rows)
        owners = [np.repeat(rows, self.ids_per_row(slot)) for slot in slots]
        ids = [self.batch.ids[self.tables[slot]] for slot in slots]
        return np.concatenate(ids), np.concatenate(owners)


def spread(slot: Slot) -> int:
    """The cells of a slot in an example."""
    return slot.max_length or 1 if slot.pooling == "none" else 1


def read_sample(conf: Conf, measured: Statistics, rows: int, skipped: Skipped) -> EncodedSample:
    """The sample of a split: its first `rows` rows."""
    data = replace(conf.data, negatives=1.0, window=WINDOW_ROWS)
    whole = replace(conf, data=data, train=replace(conf.train, batch_size=1))
    tables = [([name], [spread(slot)]) for name, slot in conf.slots.items()]
    features = LookingFeatures(whole, tables, measured, carry=conf.data.carry)
    batch = joined(
        list(windows(Source(whole, skipped.split), features, limit=rows, skipped=skipped))
    )
    numbers, empty, labels, texts = (
        {name: [values[name] for values in of_looks] for name in of_looks[0]}
        for of_looks in zip(*features.looks or [Look({}, {}, {}, {})], strict=True)
    )
    return EncodedSample(
        batch,
        conf.slots,
        {name: NumberFigures.of(np.concatenate(parts)) for name, parts in numbers.items()},
        {name: sum(parts) for name, parts in empty.items()},
        {name: sorted(set().union(*parts))[:SHOWN_TEXTS] for name, parts in labels.items()},
        {name: pa.chunked_array(parts, pa.large_string()) for name, parts in texts.items()},
    )


class Look(NamedTuple):
    """Some rows of the sample: what `EncodedSample` says of all."""

    numbers: dict[str, NDArray[np.float64]]
    empty: dict[str, int]
    labels: dict[str, list[str]]
    texts: dict[str, pa.Array]


class LookingFeatures(Features):
    """Features that also look at what becomes ids and numbers.

    Threads may read parts of the sample in any order.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.looks: list[Look] = []

    def read(self, table: pa.Table, where: Where) -> EncodedRows:
        encoded = super().read(table, where)  # which raises for bad rows: they are not looked at
        data = self.conf.data
        whole = {name: numbers.flat(table.column(name)) for name in self.columns}
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
            {
                name: _some_texts(whole[encoder.column])
                for name, encoder in self._encoders.items()
                if encoder.slot.cross is None
                and encoder.slot.separator is None
                and encoder.slot.ids in ("hash", "modulo")
            },
        )
        self.looks.append(look)
        return encoded


def _distinct(array: pa.Array) -> list[str]:
    """Some of the texts of a column [rows], in the order of first occurrence."""
    texts = pc.unique(numbers.plain(array).drop_null()).slice(0, SHOWN_TEXTS)
    return [str(text) for text in texts.to_pylist()]


def _some_texts(array: pa.Array) -> pa.Array:
    """Texts of rows from the first to the last; none of a column [rows] of other types."""
    array = numbers.plain(array)
    if not (pa.types.is_string(array.type) or pa.types.is_large_string(array.type)):
        return pa.array([], pa.large_string())
    rows = np.linspace(0, len(array) - 1, min(MOST_TEXTS, len(array))).astype(np.int64)
    return array.take(pa.array(rows)).cast(pa.large_string())


def by_id(ids: Ids, owners: Rows) -> tuple[Rows, Rows, Rows]:
    """The order of ids by value, then row; where each distinct id starts in it; how often it is."""
    order = np.lexsort((owners, ids))
    starts = np.flatnonzero(np.diff(ids[order], prepend=~ids[order[:1]]))
    return order, starts, np.diff(starts, append=len(ids))


def admitted(ids: Ids, owners: Rows, life: RowLife, seed: int) -> tuple[Rows, Rows, int]:
    """For every id that gets a row: in which row of the data, and how often it occurs from then on.

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


def first_rows(ids: Ids, owners: Rows) -> tuple[Rows, Rows]:
    """For every distinct id the first row that has it, and how often it occurs."""
    order, starts, times = by_id(ids, owners)
    return owners[order][starts], times
