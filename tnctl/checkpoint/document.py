"""The manifest of a checkpoint: its types, and the files that they name.

docs/formats/checkpoint.md has the keys; attributes have their names, in their order.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, JsonValue, PlainValidator

from tnctl.checkpoint.table_document import Optimizer, Table
from tnctl.data.day_records import DayName, DayRecord, Fingerprint
from tnctl.data.statistics_document import Statistics
from tnctl.data.unit_records import UnitsRecord
from tnctl.documents import (
    Count,
    Figures,
    Finite,
    FolderName,
    Moment,
    Name,
    Sha256,
    Text,
    TreeByName,
    Uint32,
    check_tree,
    flat,
    omitted,
)
from tnctl.errors import quoted
from tnctl.manifest import Manifest
from tnctl.model.recalibration import Recalibration
from tnctl.ownership import CHECKPOINT

DENSE_HEADER_BYTES = 16  # of dense.bin
LONGEST_SHAPE = 32  # dimensions of a dense variable
# (day, its first step) of each day, both ascending. A day is an integer.
Days = tuple[tuple[Uint32, Uint32], ...]
SessionName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
# The processes that trained a model one after the other: (a unique name, first step).
Sessions = tuple[tuple[SessionName, Uint32], ...]


@dataclass(frozen=True)
class Clock:
    """The steps done, and each day's first step: (day, first step), ascending."""

    step: Uint32
    days: Days = ()


@dataclass(frozen=True)
class Position:
    """The position of training in the data: the next row to consume.

    `day` is the name of the day whose data it is, None without daily training. `window` and
    `offset` (rows of the window that are consumed, in their shuffled order) are within the current
    pass over the data; `passes` is how many passes began before it, and seeds its order. A pass
    that several workers share has `units`, whose windows are within each unit.
    """

    day: DayName | None = None
    epoch: Count = 0
    window: Count = 0
    offset: Count = 0
    passes: Count = 0
    units: UnitsRecord | None = omitted()


@dataclass(frozen=True, kw_only=True)
class Parent:
    """What a delta is built on: the name of a folder beside it, and its manifest's checksum."""

    folder: FolderName
    sha256: Sha256


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The recipe's name, its settings, and the checksum of its source file."""

    name: str
    settings: TreeByName = flat()
    sha256: str


def recipe_of(value: Any) -> Recipe:
    """Separate the settings of a recipe from its name and checksum."""
    if isinstance(value, Recipe):
        return value
    if not isinstance(value, dict):
        raise ValueError("should be an object")
    settings = dict(value)
    name, sha256 = settings.pop("name", None), settings.pop("sha256", None)
    if not isinstance(name, str) or not name:
        raise ValueError("name should be a text")
    if not isinstance(sha256, str) or not re.fullmatch("[0-9a-f]{64}", sha256):
        raise ValueError("sha256 should be a SHA-256 in hexadecimal digits")
    for setting in settings.values():
        check_tree(setting)
    return Recipe(name=name, settings=settings, sha256=sha256)


RecipeReference = Annotated[Recipe, PlainValidator(recipe_of)]


@dataclass(frozen=True, kw_only=True)
class Variable:
    """A dense variable: its path in the network, and its shape."""

    name: Text
    shape: tuple[Count, ...]

    def __post_init__(self) -> None:
        if len(self.shape) > LONGEST_SHAPE or self.size >= 2**40:
            raise ValueError(f"shape of {quoted(self.name)} is too large: {list(self.shape[:8])}")

    @property
    def size(self) -> int:
        """The weights of the variable."""
        return math.prod(self.shape)


@dataclass(frozen=True, kw_only=True)
class Dense:
    """The dense weights: what dense.bin has."""

    file: Literal["dense.bin"] = "dense.bin"
    optimizer: Optimizer
    step: Uint32
    states: tuple[Name, ...]
    variables: tuple[Variable, ...]
    moving: tuple[Variable, ...]

    @property
    def floats(self) -> int:
        """The floats of dense.bin: weights, each state of them, moving statistics."""
        weights = sum(variable.size for variable in self.variables)
        return (1 + len(self.states)) * weights + sum(variable.size for variable in self.moving)


@dataclass(frozen=True, kw_only=True)
class Golden:
    """The golden rows: their file, and how many there are."""

    file: Literal["golden.jsonl"] = "golden.jsonl"
    rows: Count


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """The figures of a pass over the data; `epoch` counts from 1."""

    epoch: Count
    step: Uint32
    examples: Count
    loss: Finite
    running_auc: Finite | None
    skipped_rows: Count | None = omitted()
    day: DayName | None = omitted()
    validation: Figures | None = omitted()


def number_of(figures: Mapping[str, JsonValue], name: str) -> float | None:
    """A metric that is a number; None where there is none of that name."""
    value = figures.get(name)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The metrics of data.validation after a step."""

    step: Uint32
    epoch: Count
    validation: Figures

    def figure(self, name: str) -> float | None:
        """A metric that is a number; None where there is none of that name."""
        return number_of(self.validation, name)


def evaluation_at(evaluations: Sequence[Evaluation], step: int) -> Evaluation | None:
    """The evaluation of the model of a step; None where that model was not evaluated."""
    return next((entry for entry in reversed(evaluations) if entry.step == step), None)


@dataclass(frozen=True, kw_only=True)
class WatchState:
    """The best evaluation so far, and how many were not better: tnctl.training.early_stopping."""

    best: Finite | None = None
    best_step: Uint32 = 0
    without: Count = 0
    flat: Count = 0
    plateau: Finite = 1.0


@dataclass(frozen=True, kw_only=True)
class WarmInput:
    """An input of either conf of a warm start, and what became of it."""

    input: Name | None
    outcome: Literal["matched", "new", "dropped"]
    from_: Annotated[Name | None, Field(alias="from")]
    rows: Count | None


@dataclass(frozen=True, kw_only=True)
class WarmDense:
    """What became of the dense variables in a warm start, by their names."""

    matched: list[Text]
    partly: list[Text]
    new: list[Text]
    dropped: list[Text]


@dataclass(frozen=True, kw_only=True)
class WarmReport:
    """What a warm start brought: docs/warm_start.md."""

    from_: Annotated[Text, Field(alias="from")]
    step: Uint32
    optimizer: Text
    inputs: list[WarmInput]
    dense: WarmDense
    notes: list[Text]


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """What a checkpoint keeps of the training so far; `steps` as in `steps_trained`.

    `validation` are the metrics of the checkpoint's own model; `evaluations` are all of the run,
    before recalibration, and with evaluation.keep=best the last one may be of other weights.
    """

    steps: Uint32 | None = omitted()
    epochs: tuple[Epoch, ...] = ()
    evaluations: tuple[Evaluation, ...] = ()
    validation: Figures | None = omitted()
    watch: WatchState = field(default_factory=WatchState)
    warm: WarmReport | None = omitted()
    log_lines: Count = 0


@dataclass(frozen=True, kw_only=True)
class CheckpointManifest(Manifest):
    """The manifest of a checkpoint.

    Version 1 is written by one owner; version 2, by several, has lists of tombstones and sketches.
    Version 3 is either of these with `recalibration`.
    """

    FORMAT: ClassVar[str] = "tnctl checkpoint"
    VERSION: ClassVar[int] = 3
    RECALIBRATED: ClassVar[int] = 3

    tnctl: Text
    kind: Literal["full", "delta"]
    parent: Parent | None
    saved: Moment
    clock: Clock
    position: Position
    finished: bool
    recipe: RecipeReference
    statistics: Statistics
    tables: tuple[Table, ...]
    dense: Dense
    heads: tuple[Name, ...]
    logit_correction: Finite
    recalibration: dict[Name, Recalibration] | None = omitted()
    graph: Literal["graph"] = "graph"
    conf: Literal["conf.json"] = "conf.json"
    golden: Golden
    metrics: Metrics
    data: tuple[Fingerprint, ...] = ()
    days: tuple[DayRecord, ...] = ()
    calendar: Days = ()
    sessions: Sessions = ()

    def __post_init__(self) -> None:
        if self.files or self.sha256:  # otherwise it is being written
            self._check_files()

    def _check_files(self) -> None:
        """Raise ValueError unless `files` has what the other keys name, with the right sizes."""
        named = {"dense.bin", "conf.json", "golden.jsonl", "graph/saved_model.pb"}
        for table in self.tables:
            named |= {entry.file for entry in table.entries}
            named |= {entry.file for entry in table.all_sketch_files}
        for path in self.files:
            if not CHECKPOINT.is_file(path):
                raise ValueError(f"key 'files' has {quoted(path)}, which no checkpoint has")
            if path.startswith("tables/") and path not in named:
                raise ValueError(f"key 'files' has {quoted(path)}, which no table names")
        if missing := sorted(named - self.files.keys()):
            raise ValueError(f"key 'files' has no {quoted(missing[0])}")
        stored = {path: entry.bytes for path, entry in self.files.items()}
        for table in self.tables:
            table.check_sizes(stored)
        expected = DENSE_HEADER_BYTES + 4 * self.dense.floats
        if stored["dense.bin"] != expected:
            raise ValueError(
                f"key 'files' gives dense.bin {stored['dense.bin']:,} bytes, and its variables "
                f"need {expected:,}"
            )

    @property
    def rows(self) -> int:
        """The rows of all tables in the whole chain."""
        return sum(table.rows for table in self.tables)

    @property
    def step(self) -> int:
        """The step of the model."""
        return self.clock.step

    @property
    def validation(self) -> dict[str, JsonValue] | None:
        """The metrics of this very model on data.validation; None where it was not evaluated."""
        if self.recalibration is not None:
            return self.metrics.validation
        evaluation = evaluation_at(self.metrics.evaluations, self.step)
        return None if evaluation is None else evaluation.validation

    @property
    def steps_trained(self) -> int:
        """The steps of the run: with evaluation.keep=best there may be more than the model's."""
        return self.clock.step if self.metrics.steps is None else self.metrics.steps
