"""A column of the data, and the inputs that it becomes."""

import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl.starting.column_figures import Figures
from tnctl.starting.time_forms import TimeForm


@dataclass
class Input:
    """An entry of `slots` or `numeric`: its settings, and what shows them."""

    section: str
    name: str
    column: str
    settings: dict[str, Any]
    evidence: str


@dataclass
class Column:
    """A column of the data: its kind in words, and the inputs that it becomes, if any."""

    figures: Figures
    kind: str
    inputs: list[Input] = field(default_factory=list)
    remark: str = ""  # why it is no input
    warning: str = ""
    separator: str | None = None  # of several values in a text
    times: TimeForm | None = None


@dataclass(frozen=True)
class Context:
    """What the kind of a column depends on beside it."""

    format: str
    delimiter: str | None
    labels: NDArray[np.float64]  # [rows]
    buckets: int  # that the number of rows allows
    numbers_only: frozenset[str] = frozenset()  # columns that are numbers for certain
    ids_only: frozenset[str] = frozenset()
    days: NDArray[np.int64] | None = None  # the number of the day that each row is of
    is_whole: bool = False  # whether the rows that were read are all
    rows: int = 0  # about how many there are in all


def tokens_of(name: str) -> list[str]:
    """The words of a column's name, in lower case."""
    cut = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    return [token for token in re.split(r"[^a-z]+", cut.lower()) if token]


def coverage(column: Figures) -> str:
    share = column.missing / max(column.rows, 1)
    gaps = "none missing" if not column.missing else f"{share:.1%} missing"
    if column.missing and share < 0.001:
        gaps = f"{column.missing:,} missing"
    return f"{column.distinct:,} values, {gaps}; {column.examples()}"


def missing_key(column: Figures) -> dict[str, Any]:
    return {"missing": "value"} if column.missing else {}


def slot_of(column: Figures, settings: dict[str, Any]) -> Column:
    return Column(
        column, "id", [Input("slots", column.name, column.name, settings, coverage(column))]
    )
