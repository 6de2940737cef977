"""The days that a model was trained on, as its checkpoints record them: docs/daily.md."""

import re
from dataclasses import dataclass, field, replace
from typing import Annotated

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

from tnctl.documents import (
    LONGEST_NAME,
    Count,
    Figures,
    Finite,
    Name,
    Share,
    Text,
    Uint32,
    omitted,
)

# What a day's name cannot have: it takes the place of {day} in names of files, which are globs.
NO_DAY = re.compile(r"[*?\[\]{}\\\0]|://|::|(^|/)\.|^/|//|/$")


def is_day(text: str) -> bool:
    """Whether a text can be the name of a day: it leads nowhere but to the files of a day.

    It is printable, and has no wildcard, no `..`, no hidden part and no URL.
    """
    return 0 < len(text) <= LONGEST_NAME and text.isprintable() and NO_DAY.search(text) is None


def _day(text: str) -> str:
    if not is_day(text):
        raise PydanticCustomError("day", "should be the name of a day")
    return text


DayName = Annotated[str, AfterValidator(_day)]
# The sizes of changes of an input, by the thresholds of `gate` that they are measured by.
Changes = dict[Name, Finite]


@dataclass(frozen=True, kw_only=True)
class Fingerprint:
    """By what a change of a file is noticed: its `bytes`, and its `etag` or when it was `modified`.

    `modified` is in nanoseconds on the machine that trained, a time as text elsewhere.
    """

    file: Text
    bytes: Count | None
    modified: int | Text | None = omitted()
    etag: Text | None = omitted()


@dataclass(frozen=True)
class OfInput:
    """One slot or numeric input over a day."""

    coverage: Finite
    """the share of examples with an id, or with a number that is not 0"""
    occurrences: Count
    """ids, or numbers"""
    length: Finite
    """ids of an example that has any; 0 where all are the id of missing values"""
    distinct: Finite | None
    """distinct ids, within 1.6 %; None of numbers"""
    known: Finite | None
    """the share of occurrences of ids with a row; None where it is unknown"""
    histogram: list[Count]
    """occurrences by the first 6 bits of the id's hash, or by the first day's deciles"""
    edges: list[Finite] | None = None
    """of numbers: the upper edges of all deciles but the last"""
    coverage_effect: Finite = 1.0
    """how many times more the coverage varies than with as many independent examples"""
    length_effect: Finite = 1.0
    """as `coverage_effect`, of the length"""
    design_effect: Finite = 1.0
    """as `coverage_effect`, of the shares of the histogram"""


@dataclass(frozen=True)
class OfDay:
    """All inputs and labels over a day."""

    examples: Count
    labels: dict[str, Finite]
    """means"""
    inputs: dict[str, OfInput]
    label_effects: dict[str, Finite] = field(default_factory=dict)
    """the design effects of the means"""

    def edges(self) -> dict[str, list[float]]:
        """The deciles of numeric inputs, which all days share."""
        return {
            n: of_input.edges for n, of_input in self.inputs.items() if of_input.edges is not None
        }

    def same_rows(self, other: "OfDay") -> bool:
        """Whether the other day seems to have the very same rows."""
        return (self.examples, self.labels) == (other.examples, other.labels) and all(
            name in other.inputs and of_input.histogram == other.inputs[name].histogram
            for name, of_input in self.inputs.items()
        )


@dataclass(frozen=True)
class LateLabel:
    """The training of a day on a label that came late, while the day `during` was under way.

    `before` has the metrics of the label's head before that, None where the day had no row any
    more; `last_step` is None while it is trained.
    """

    during: DayName
    first_step: Uint32
    last_step: Uint32 | None
    before: Figures | None


@dataclass(frozen=True, kw_only=True)
class DayRecord:
    """A day whose training was begun: an entry of the record in checkpoints and reports.

    `number` is the day's on the clock of the tables; `last_step` is None while it is trained.
    `before` has the metrics of the model on the day before it is trained on it, `new_ids` the
    share of occurrences of ids without a row by slot, `accepted` the findings of the gate that the
    user accepted, and `changes` their sizes by input. `evicted` has the rows that were removed at
    the day's end by group. `files` and `statistics` are kept of the last days with rows, to which
    the gate compares the next one.
    """

    day: DayName
    number: Uint32
    first_step: Uint32
    last_step: Uint32 | None
    rows: Count
    before: Figures | None
    new_ids: dict[Name, Share] = field(default_factory=dict)
    accepted: list[Text] = field(default_factory=list)
    files: list[Fingerprint] | None = omitted()
    statistics: OfDay | None = omitted()
    evicted: dict[Name, Count] | None = omitted()
    changes: dict[Name, Changes] | None = omitted()
    late: dict[Name, LateLabel | None] | None = omitted()
    """the labels that were not known yet, None of those that still are not trained"""

    def summary(self) -> "DayRecord":
        """The record without what only the gate needs, as reports and logs have it."""
        return replace(self, files=None, statistics=None)
