"""Rows of tnctl as the columns that boosted trees split: each slot by what its ids are."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tnctl.data.batches import Batch
from tnctl.schema import Slot

CATEGORIES = 1024  # the most frequent ids of a slot that are told apart
BINS = 255  # of numbers, that a tree tells apart
VALUES = 32  # the most frequent values of a slot with several that have a column each
# For sorting ids, and LightGBM's scores, gradients and row numbers.
BYTES_BESIDE_COLUMNS = 64
# A column is float32 for us and at most as much in LightGBM's bins.
BYTES_OF_A_COLUMN = 8

Floats = NDArray[np.float32]


class SlotIds(NamedTuple):
    """The ids of a slot, all rows."""

    ids: NDArray[np.uint64]  # [ids], row after row
    offsets: NDArray[np.uint32]  # [rows + 1]
    weights: NDArray[np.float32] | None  # [ids]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """How many ids each row has, int64 [rows]."""
        return np.diff(self.offsets).astype(np.int64)


class OrderedColumn:
    """Buckets of numbers, whose ids are in the order of the numbers; -1 where there is none."""

    width = 1
    categorical = False
    """whether the first column has the numbers of categories"""

    def fill(self, cells: SlotIds, out: Floats) -> None:
        """Write the columns float32 [rows, width] of rows with these ids."""
        has, first = _first_ids(cells)
        out[:, 0] = -1
        out[has, 0] = first


class CodeColumns:
    """Ids by their frequency in the sample: 0 is the most frequent one, NaN none.

    From CATEGORIES on, ids share a number. Then a second column has how often the id is in the
    sample (-1 where there is none), so that these differ too. An unknown id is in it 0 times.
    """

    categorical = True

    def __init__(self, ids: NDArray[np.uint64]) -> None:
        """`ids` [n] are all of the sample."""
        self._distinct, counts = np.unique(ids, return_counts=True)
        self._counts = counts.astype(np.float32)
        codes = np.empty(len(counts), np.int64)
        codes[np.argsort(-counts, kind="stable")] = np.arange(len(counts))
        self._codes = np.minimum(codes, CATEGORIES).astype(np.float32)
        self._unknown = np.float32(min(len(counts), CATEGORIES))
        self.width = 1 if len(counts) <= CATEGORIES else 2

    def fill(self, cells: SlotIds, out: Floats) -> None:
        has, first = _first_ids(cells)
        out[:, 0] = np.nan
        out[has, 0] = _looked_up(self._distinct, self._codes, first, self._unknown)
        if out.shape[1] == 2:
            out[:, 1] = -1
            out[has, 1] = _looked_up(self._distinct, self._counts, first, np.float32(0))


class FineColumns(CodeColumns):
    """Buckets of numbers that are more than a tree's bins: as ids, and in their order."""

    def __init__(self, ids: NDArray[np.uint64]) -> None:
        """`ids` [n] are all of the sample."""
        super().__init__(ids)
        self.width += 1

    def fill(self, cells: SlotIds, out: Floats) -> None:
        super().fill(cells, out[:, :-1])
        OrderedColumn().fill(cells, out[:, -1:])


class ValueColumns:
    """A slot with several values in a row: how many, and how often each of the most frequent.

    With weights of values, the sum of these instead.
    """

    categorical = False

    def __init__(self, ids: NDArray[np.uint64]) -> None:
        """`ids` [n] are all of the sample."""
        distinct, counts = np.unique(ids, return_counts=True)
        self._values = np.sort(distinct[np.argsort(-counts, kind="stable")[:VALUES]])
        self.width = 1 + len(self._values)

    def fill(self, cells: SlotIds, out: Floats) -> None:
        lengths, count = cells.lengths, len(self._values)
        out[:, 0] = lengths
        known, places = _places(self._values, cells.ids)
        owners = np.repeat(np.arange(len(lengths)), lengths)
        weights = None if cells.weights is None else cells.weights[known]
        sums = np.bincount(owners[known] * count + places[known], weights, len(lengths) * count)
        out[:, 1:] = sums.reshape(len(lengths), count)


SlotColumns = OrderedColumn | CodeColumns | ValueColumns


def _first_ids(cells: SlotIds) -> tuple[NDArray[np.bool_], NDArray[np.uint64]]:
    """Which rows have an id (bool [rows]), and the first of each of them."""
    has = cells.offsets[1:] > cells.offsets[:-1]
    return has, cells.ids[cells.offsets[:-1][has]]


def _looked_up(
    ascending: NDArray[np.uint64], values: Floats, ids: NDArray[np.uint64], unknown: np.float32
) -> Floats:
    """The value of each of ids [n], by the values of ascending ids."""
    known, places = _places(ascending, ids)
    result = np.full(len(ids), unknown, np.float32)
    result[known] = values[places[known]]
    return result


def _places(
    ascending: NDArray[np.uint64], ids: NDArray[np.uint64]
) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Whether each of ids [n] is among ascending ones, and its place; any place where it is not."""
    if not len(ascending):
        return np.zeros(len(ids), bool), np.zeros(len(ids), np.int64)
    places = np.minimum(np.searchsorted(ascending, ids), len(ascending) - 1)
    return ascending[places] == ids, places


class TreeColumns:
    """The columns of all inputs: those of the slots in their order, then the numbers as they are.

    They are chosen by a sample whose batches have a table for each slot.
    """

    def __init__(self, slots: Sequence[Slot], parts: Sequence[Batch]) -> None:
        self._columns = [_columns_of(slot, number, parts) for number, slot in enumerate(slots)]
        self._numbers = parts[0].numeric.shape[1]

    @property
    def width(self) -> int:
        """The number of columns."""
        return sum(columns.width for columns in self._columns) + self._numbers

    @property
    def categorical(self) -> list[int]:
        """The places of the columns that have categories."""
        starts = np.cumsum([0, *(columns.width for columns in self._columns)])
        return [
            int(start)
            for start, columns in zip(starts, self._columns, strict=False)
            if columns.categorical
        ]

    def matrix(self, batch: Batch) -> Floats:
        """The columns of a batch, float32 [rows, width]."""
        matrix = np.empty((batch.rows, self.width), np.float32)
        at = 0
        for number, columns in enumerate(self._columns):
            columns.fill(_slot_ids(batch, number), matrix[:, at : at + columns.width])
            at += columns.width
        matrix[:, at:] = batch.numeric
        return matrix

    def whole_matrix(self, parts: list[Batch]) -> Floats:
        """The columns of batches, one after the other; their inputs are dropped from memory."""
        matrix = np.empty((sum(part.rows for part in parts), self.width), np.float32)
        at = 0
        for part in parts:
            matrix[at : at + part.rows] = self.matrix(part)
            at += part.rows
            part.ids, part.offsets, part.weights = [], [], []
            part.numeric = np.empty((part.rows, 0), np.float32)
        return matrix


def cost(batch: Batch) -> float:
    """The bytes that a batch takes, and that work on it will take, about."""
    columns = batch.numeric.shape[1]
    for number in range(len(batch.ids)):
        several = (_slot_ids(batch, number).lengths > 1).any()
        columns += 1 + VALUES if several else 3
    return held_bytes(batch) + batch.rows * (BYTES_OF_A_COLUMN * columns + BYTES_BESIDE_COLUMNS)


def held_bytes(batch: Batch) -> int:
    """The bytes of a batch's arrays."""
    of_tables = (*batch.ids, *batch.offsets, *batch.weights)
    of_rows = (batch.numeric, batch.labels, batch.weight, batch.reference, batch.group)
    return sum(array.nbytes for array in (*of_tables, *of_rows) if array is not None)


def _slot_ids(batch: Batch, number: int) -> SlotIds:
    return SlotIds(batch.ids[number], batch.offsets[number], batch.weights[number])


def _columns_of(slot: Slot, number: int, parts: Sequence[Batch]) -> SlotColumns:
    """The columns of a slot, by its ids in the sample."""
    several = any((_slot_ids(part, number).lengths > 1).any() for part in parts)
    ids = np.concatenate([part.ids[number] for part in parts])
    if slot.kind.of_numbers and not several:
        return FineColumns(ids) if len(np.unique(ids)) > BINS else OrderedColumn()
    return ValueColumns(ids) if several else CodeColumns(ids)
