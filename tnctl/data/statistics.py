"""What is measured on the training data before the first step: moments and quantiles.

One pass, in file order, so the figures are the same on every machine.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tnctl.data import numbers, sources
from tnctl.data.features import flat
from tnctl.data.reading import Where, numeric_column, slot_column
from tnctl.errors import Failure
from tnctl.schema import Conf
from tnctl.tables.columns import mix64

# So many distinct values are kept exactly; of more, a uniform sample of this size.
DISTINCT_KEPT = 65_536


@dataclass
class Statistics:
    """Moments of standardized inputs and boundaries of quantile slots."""

    standardize: dict[str, tuple[float, float]] = field(default_factory=dict)
    """numeric name -> (mean, standard deviation)"""
    boundaries: dict[str, np.ndarray] = field(default_factory=dict)
    """slot name -> ascending boundaries, float64"""

    def to_json(self) -> dict[str, Any]:
        """As values that JSON holds; Python's JSON writes every float so that it reads back."""
        return {
            "standardize": {name: list(pair) for name, pair in self.standardize.items()},
            "boundaries": {name: values.tolist() for name, values in self.boundaries.items()},
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "Statistics":
        """The inverse of `to_json`, exactly."""
        return cls(
            {name: (float(a), float(b)) for name, (a, b) in values["standardize"].items()},
            {name: np.array(v, np.float64) for name, v in values["boundaries"].items()},
        )


class Moments:
    """Mean and deviation of numbers that come in parts (Chan, Golub and LeVeque 1979)."""

    def __init__(self) -> None:
        self.count = 0
        self.mean = 0.0
        self.squares = 0.0

    def add(self, values: np.ndarray) -> None:
        """Take in float64 [n]."""
        if not len(values):
            return
        n = len(values)
        mean = float(values.mean())
        apart = mean - self.mean
        total = self.count + n
        self.squares += float(((values - mean) ** 2).sum()) + apart**2 * self.count * n / total
        self.mean += apart * n / total
        self.count = total

    def result(self) -> tuple[float, float]:
        """The mean and the population's deviation, 1 where all numbers are equal."""
        deviation = float(np.sqrt(self.squares / self.count)) if self.count else 0.0
        return self.mean, deviation or 1.0


class Distinct:
    """The distinct values seen, or those with the smallest hashes when there are too many."""

    def __init__(self) -> None:
        self.values = np.empty(0, np.float64)
        self.limit = np.uint64(2**64 - 1)

    def add(self, values: np.ndarray) -> None:
        """Take in float64 [n]."""
        # Adding 0 makes one value of 0 and -0.
        values = values + 0.0
        values = values[_hash(values) <= self.limit]
        values = np.union1d(self.values, values)
        if len(values) > DISTINCT_KEPT:
            hashed = _hash(values)
            self.limit = np.partition(hashed, DISTINCT_KEPT - 1)[DISTINCT_KEPT - 1]
            values = values[hashed <= self.limit]
        self.values = values

    def boundaries(self, buckets: int) -> np.ndarray:
        """Up to `buckets` - 1 ascending boundaries, float64."""
        places = np.arange(1, buckets) / buckets
        return np.unique(np.quantile(self.values, places))


def _hash(values: np.ndarray) -> np.ndarray:
    return mix64(values.view(np.uint64))


def needed(conf: Conf) -> bool:
    """Whether the conf has anything to measure."""
    return any(numeric.transform == "standardize" for numeric in conf.numeric.values()) or any(
        slot.ids == "quantiles" for slot in conf.slots.values()
    )


def measure(conf: Conf) -> Statistics:
    """One pass over data.train; reads nothing when nothing is needed.

    Raises `Failure` for a value that is no finite number, and for a slot without any number.
    """
    if not needed(conf):
        return Statistics()
    moments = {n: Moments() for n, c in conf.numeric.items() if c.transform == "standardize"}
    distinct = {n: Distinct() for n, slot in conf.slots.items() if slot.ids == "quantiles"}
    columns = {name: numeric_column(name, conf.numeric[name]) for name in moments}
    columns |= {name: slot_column(name, conf.slots[name]) for name in distinct}
    takers: dict[str, Moments | Distinct] = {**moments, **distinct}
    for piece in sources.pieces(conf, "train", list(dict.fromkeys(columns.values()))):
        for name, taker in takers.items():
            array = flat(piece.table.column(columns[name]))
            taker.add(_finite(array, conf.data.missing, columns[name], piece.where))
    for name, taken in distinct.items():
        if not len(taken.values):
            raise Failure(f"slots.{name}: column '{columns[name]}' has no number in data.train")
    return Statistics(
        {name: taken.result() for name, taken in moments.items()},
        {name: taken.boundaries(conf.slots[name].buckets) for name, taken in distinct.items()},
    )


def _finite(array: Any, missing: list[str], column: str, where: Where) -> np.ndarray:
    values = numbers.parsed(array, missing, column, where)
    numbers.refuse_infinite(values, values, column, where)
    return values[~np.isnan(values)]
