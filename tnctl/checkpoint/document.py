"""The manifest of a checkpoint: its types, and the files that they name.

docs/formats/checkpoint.md has the keys; attributes have their names, in their order.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, make_dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import BeforeValidator, Field, JsonValue

from tnctl import tables
from tnctl.data.day_records import DayName, DayRecord, Fingerprint
from tnctl.data.statistics_document import Statistics
from tnctl.data.unit_records import UnitsRecord
from tnctl.documents import (
    Count,
    Figures,
    Finite,
    FolderName,
    Hash,
    Moment,
    Name,
    RelativePath,
    Sha256,
    Share,
    Text,
    TreeByName,
    Uint16,
    Uint32,
    flat,
    omitted,
    plain,
)
from tnctl.errors import quoted
from tnctl.manifest import Manifest
from tnctl.model.parameter_tables import Recalibration
from tnctl.optimizer_table import TYPES
from tnctl.ownership import CHECKPOINT
from tnctl.tables import REMOVED_DTYPE, record_dtype
from tnctl.tables.plans import NAMES

LONGEST_SEGMENT = 65_536  # floats; a conf has at most 1024
LAST_HASH = 2**64 - 1
ROWS_HEADER_BYTES, HEADER_BYTES = 32, 16  # of rows files, of all others

Setting = Annotated[float, Field(ge=0, le=1e30, allow_inf_nan=False)]
LONGEST_SHAPE = 32  # dimensions of a dense variable
# (day, its first step) of each day, both ascending. A day is an integer.
Days = tuple[tuple[Uint32, Uint32], ...]
SessionName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
# The processes that trained a model one after the other: (a unique name, first step).
Sessions = tuple[tuple[SessionName, Uint32], ...]


# ---- Tables ----

# In the order in which a manifest has them.
_Settings: Any = make_dataclass(
    "_Settings",
    [
        ("name", str),
        ("learning_rate", Setting),
        *(
            (setting, (bool if type_ is bool else Setting) | None, omitted())
            for setting, type_ in TYPES.items()
        ),
    ],
    frozen=True,
    kw_only=True,
)


@dataclass(frozen=True, kw_only=True)
class OptimizerEntry(_Settings):
    """An update rule and its settings, those that the rule has: tnctl.tables.RowOptimizer."""

    name: str
    learning_rate: Setting

    def __post_init__(self) -> None:
        if self.name not in NAMES:
            known = ", ".join(NAMES)
            raise ValueError(f"name {quoted(self.name)} is none of {known}")

    @classmethod
    def of(cls, rule: tables.RowOptimizer) -> "OptimizerEntry":
        """The document of an update rule."""
        return cls(**rule.described())

    def rule(self) -> tables.RowOptimizer:
        """The update rule that tables take."""
        return tables.RowOptimizer(**plain(self))


@dataclass(frozen=True, kw_only=True)
class SegmentEntry:
    """A part of a row with its own width, in floats, and optimizer."""

    name: Annotated[str, Field(pattern="^(linear|embedding)$")]
    width: Annotated[int, Field(ge=1, le=LONGEST_SEGMENT)]
    output: Annotated[str, Field(pattern="^(concat|sum)$")]
    optimizer: OptimizerEntry

    def plan(self) -> tables.Segment:
        """The segment that tables take."""
        return tables.Segment(self.name, self.width, self.output, self.optimizer.rule())


@dataclass(frozen=True, kw_only=True)
class Group:
    """A share group: `number` is its `group` in records; the others count rows and ids."""

    name: Name
    number: Uint16
    rows: Count
    admitted: Count
    waiting: Count
    evicted: Count


@dataclass(frozen=True, kw_only=True)
class LifeEntry:
    """Whether records have show and click, and `cvm`: whether these are read with the embedding.

    `decay` is the share of both that remains after a day, by the groups' names; None without shows.
    """

    shows: bool
    cvm: bool
    decay: dict[Name, Share] | None = omitted()


@dataclass(frozen=True, kw_only=True)
class RecordField:
    """A field of a record: its name, numpy's type of an element, and the number of elements."""

    name: str
    type: str
    count: Annotated[int, Field(ge=1, le=LONGEST_SEGMENT)]


def described_record(dtype: np.dtype[Any]) -> tuple[RecordField, ...]:
    """The fields of a record dtype, in order."""
    return tuple(
        RecordField(name=name, type=kind.base.str, count=kind.itemsize // kind.base.itemsize)
        for name, (kind, *_) in (dtype.fields or {}).items()
    )


@dataclass(frozen=True, kw_only=True)
class Ranged:
    """A file with a range of hashes, both ends inclusive; without a range, with all of them."""

    file: RelativePath
    first: Hash | None = omitted()
    last: Hash | None = omitted()

    @property
    def hashes(self) -> tuple[int, int]:
        """The first and the last hash of the range."""
        return int(self.first or "0", 16), int(self.last or "f" * 16, 16)


@dataclass(frozen=True, kw_only=True)
class RowsFile(Ranged):
    """The rows of a range of hashes."""

    rows: Count


@dataclass(frozen=True, kw_only=True)
class Tombstones(Ranged):
    """The keys of rows that were removed."""

    rows: Count


@dataclass(frozen=True, kw_only=True)
class Counters(Ranged):
    """Counters of ids that have no row yet, one byte each; a range is of whole shards."""

    bytes: Count


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table: `rows` and the groups count the rows of the whole chain, `files` have its own.

    Written by one owner it has `tombstones` and `sketch`, or None. Written by several, each with
    a range of hashes, it has `tombstone_files` and `sketch_files` instead.
    """

    name: Name
    rows: Count
    slots: tuple[Name, ...]
    segments: tuple[SegmentEntry, ...]
    groups: tuple[Group, ...]
    life: LifeEntry
    record: tuple[RecordField, ...]
    files: tuple[RowsFile, ...]
    tombstones: Tombstones | None
    sketch: Counters | None
    tombstone_files: tuple[Tombstones, ...] | None = omitted()
    sketch_files: tuple[Counters, ...] | None = omitted()

    @property
    def folder(self) -> str:
        """Where its files are, relative to the checkpoint."""
        return f"tables/{self.name}"

    @property
    def removed_files(self) -> tuple[Tombstones, ...]:
        """The files of removed keys, if there are any, in the order of their ranges."""
        return self.tombstone_files or ((self.tombstones,) if self.tombstones else ())

    @property
    def all_sketch_files(self) -> tuple[Counters, ...]:
        """The files of counters, if there are any, in the order of their ranges."""
        return self.sketch_files or ((self.sketch,) if self.sketch else ())

    @property
    def sketch_bytes(self) -> int:
        """The bytes of all counters."""
        return sum(entry.bytes for entry in self.all_sketch_files)

    @property
    def entries(self) -> tuple[RowsFile | Tombstones, ...]:
        """Its files of rows and of removed keys."""
        return (*self.files, *self.removed_files)

    @property
    def record_dtype(self) -> np.dtype[Any]:
        """The dtype of its records (tnctl.tables.record_dtype)."""
        return record_dtype([segment.plan() for segment in self.segments], self.life.shows)

    def width_of(self, segment: str) -> int:
        """The floats of a segment; 0 when there is none of that name."""
        return {part.name: part.width for part in self.segments}.get(segment, 0)

    def check_sizes(self, stored: Mapping[str, int]) -> None:
        """Raise ValueError unless the table's files can have their rows or counters.

        `stored` has the bytes of each file by its name.
        """
        for entry in (*self.entries, *self.all_sketch_files):
            size, file = stored[entry.file], f"files of {self.name}: {quoted(entry.file)}"
            match entry:
                case RowsFile(file=name, rows=rows) if name.endswith(".zst"):
                    # No two records have the same key, so each still takes at least a byte.
                    if rows > size:
                        raise ValueError(f"{file} cannot have {rows:,} rows in {size:,} bytes")
                    continue
                case RowsFile():
                    needed = ROWS_HEADER_BYTES + entry.rows * self.record_dtype.itemsize
                case Tombstones():
                    needed = HEADER_BYTES + entry.rows * REMOVED_DTYPE.itemsize
                case Counters():
                    needed = HEADER_BYTES + entry.bytes
            if size != needed:
                raise ValueError(
                    f"{file} has {size:,} bytes, and its rows or counters need {needed:,}"
                )


# ---- The model and its training ----


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

    name: Annotated[str, Field(min_length=1)]
    settings: TreeByName = flat()
    sha256: Sha256


def _with_settings(value: Any) -> Any:
    """Separate the settings of a recipe from its name and checksum."""
    if not isinstance(value, dict):
        return value
    keys = value.keys() & {"name", "sha256"}
    settings = {key: value[key] for key in value if key not in keys}
    return {**{key: value[key] for key in keys}, "settings": settings}


RecipeReference = Annotated[Recipe, BeforeValidator(_with_settings)]


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
class DenseEntry:
    """The dense weights: what dense.bin has."""

    file: Literal["dense.bin"] = "dense.bin"
    optimizer: OptimizerEntry
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
    """The figures of a pass over the data; `epoch` counts from 1.

    `labels` are the trained ones, where these are not all.
    """

    epoch: Count
    step: Uint32
    examples: Count
    loss: Finite
    running_auc: Finite | None
    skipped_rows: Count | None = omitted()
    day: DayName | None = omitted()
    labels: tuple[Name, ...] | None = omitted()
    validation: Figures | None = omitted()


def number_of(figures: Mapping[str, JsonValue], name: str) -> float | None:
    """A metric that is a number; None where there is none of that name."""
    value = figures.get(name)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


@dataclass(frozen=True, kw_only=True)
class EvaluationEntry:
    """The metrics of data.validation after a step."""

    step: Uint32
    epoch: Count
    validation: Figures

    def figure(self, name: str) -> float | None:
        """A metric that is a number; None where there is none of that name."""
        return number_of(self.validation, name)


def evaluation_at(evaluations: Sequence[EvaluationEntry], step: int) -> EvaluationEntry | None:
    """The evaluation of the model of a step; None where that model was not evaluated."""
    return next((entry for entry in reversed(evaluations) if entry.step == step), None)


@dataclass(frozen=True, kw_only=True)
class WatchState:
    """The best evaluation so far, and how many were not better: tnctl.training.schedule."""

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
    evaluations: tuple[EvaluationEntry, ...] = ()
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
    dense: DenseEntry
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
            named |= {entry.file for entry in (*table.entries, *table.all_sketch_files)}
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
        size, needed = stored["dense.bin"], HEADER_BYTES + 4 * self.dense.floats
        if size != needed:
            raise ValueError(
                f"key 'files' gives dense.bin {size:,} bytes, and its variables need {needed:,}"
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
