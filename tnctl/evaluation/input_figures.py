"""The kind, rows, bytes and norms of each input of a model."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl.model.layout import EMBEDDING, Layout
from tnctl.model.parameter_tables import ParameterTables, TableFigures
from tnctl.tables import SparseTable

ROWS_SAMPLED = 1 << 20
# An entry of the index is 8 bytes, and an index that grows by half when it is three quarters full
# has between 4/3 and 2 entries for a row.
INDEX_BYTES = 8 * (2 - 4 / 3) / math.log(1.5)


@dataclass(frozen=True)
class NormSum:
    """How many embeddings were looked at, and the sum of their norms."""

    embeddings: int = 0
    total: float = 0.0

    def __add__(self, other: "NormSum") -> "NormSum":
        return NormSum(self.embeddings + other.embeddings, self.total + other.total)

    @property
    def mean(self) -> float:
        return self.total / self.embeddings


def kind_of(layout: Layout, name: str) -> str:
    """What an input is: slot, sequence, one-hot or number."""
    if name in layout.sequences:
        return "sequence"
    if name in layout.indicators:
        return "one-hot"
    return "slot" if name in layout.slots else "number"


def row_bytes(table: SparseTable) -> float:
    """The expected bytes of a row with its part of the index.

    The bytes that a table really holds depend on its history (rows removed, rows loaded), so they
    would differ between a run that was resumed and one that was not.
    """
    return table.stride + INDEX_BYTES


def rows_and_bytes(
    model: ParameterTables, tables: Sequence[TableFigures]
) -> dict[str, tuple[int, int]]:
    """Rows and bytes, with the index, of the share group of every slot that has rows."""
    sizes = {}
    for layout, table, figures in zip(model.layout.tables, model.tables, tables, strict=True):
        names = list(layout.groups)
        for slot, number in zip(layout.slots, layout.group_of, strict=True):
            rows = figures.groups[names[number]].rows
            sizes[slot] = rows, round(rows * row_bytes(table))
    return sizes


def sampled_norms(
    table: SparseTable, rows: int = ROWS_SAMPLED
) -> tuple[NDArray[np.uint16], NDArray[np.float64]]:
    """The groups' numbers and the norms of at most so many embeddings, a uniform sample."""
    # Records come in the order of the key's hash, so the first ones are a uniform sample.
    records: NDArray[Any] | None = next(table.records(at_a_time=rows), None)
    if records is None:
        return np.empty(0, np.uint16), np.empty(0)
    return records["group"], np.linalg.norm(records[EMBEDDING].astype(np.float64), axis=1)


def norm_sums(model: ParameterTables) -> dict[str, NormSum]:
    """The norms of the embeddings of every slot's group that has rows in the sample."""
    norms_of_slots = {}
    for layout, table in zip(model.layout.tables, model.tables, strict=True):
        if not layout.width:
            continue
        groups, norms = sampled_norms(table)
        counts, sums = np.bincount(groups), np.bincount(groups, norms)
        for slot, number in zip(layout.slots, layout.group_of, strict=True):
            if number < len(counts) and counts[number]:
                norms_of_slots[slot] = NormSum(int(counts[number]), float(sums[number]))
    return norms_of_slots
