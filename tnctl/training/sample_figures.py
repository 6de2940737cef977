"""What the columns of a sample have: figures of numbers, empty values.

They are gathered while the rows of the sample become ids and numbers, not in a pass of their own.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tnctl.data import numbers
from tnctl.data.features import EncodedRows, Features
from tnctl.data.file_pieces import Where
from tnctl.data.numeric_inputs import vectors

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
