"""What the manifest of a checkpoint says of its tables: docs/formats/checkpoint.md."""

from dataclasses import dataclass, make_dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import Field

from tnctl import tables
from tnctl.documents import (
    Count,
    Hash,
    Name,
    RelativePath,
    Share,
    Uint16,
    omitted,
    plain,
)
from tnctl.errors import quoted
from tnctl.optimizer_table import TYPES
from tnctl.tables import REMOVED_DTYPE, optimizer_kinds, record_dtype

LONGEST_SEGMENT = 65_536  # floats; a conf has at most 1024
LAST_HASH = 2**64 - 1
ROWS_HEADER_BYTES, TOMBSTONES_HEADER_BYTES, SKETCH_HEADER_BYTES = 32, 16, 16

Setting = Annotated[float, Field(ge=0, le=1e30, allow_inf_nan=False)]


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
class Optimizer(_Settings):
    """An update rule and its settings, those that the rule has: tnctl.tables.Optimizer."""

    name: str
    learning_rate: Setting

    def __post_init__(self) -> None:
        if self.name not in optimizer_kinds.NAMES:
            known = ", ".join(optimizer_kinds.NAMES)
            raise ValueError(f"name {quoted(self.name)} is none of {known}")

    @classmethod
    def of(cls, rule: tables.Optimizer) -> "Optimizer":
        """The document of an update rule."""
        return cls(**rule.described())

    def rule(self) -> tables.Optimizer:
        """The update rule that tables take."""
        return tables.Optimizer(**plain(self))


@dataclass(frozen=True, kw_only=True)
class Segment:
    """A part of a row with its own width, in floats, and optimizer."""

    name: Annotated[str, Field(pattern="^(linear|embedding)$")]
    width: Annotated[int, Field(ge=1, le=LONGEST_SEGMENT)]
    output: Annotated[str, Field(pattern="^(concat|sum)$")]
    optimizer: Optimizer

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
class Life:
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
class RangeFile:
    """A file of a range of hashes, both ends inclusive."""

    file: RelativePath
    first: Hash
    last: Hash

    @property
    def hashes(self) -> tuple[int, int]:
        """The first and the last hash of the range."""
        return int(self.first, 16), int(self.last, 16)


@dataclass(frozen=True, kw_only=True)
class RowsFile(RangeFile):
    """The rows of a range of hashes."""

    rows: Count


@dataclass(frozen=True, kw_only=True)
class TombstonesFile:
    """The keys of rows that were removed, of all hashes."""

    hashes: ClassVar[tuple[int, int]] = (0, LAST_HASH)

    file: RelativePath
    rows: Count


@dataclass(frozen=True, kw_only=True)
class TombstonesRange(RangeFile):
    """The keys of rows that were removed, of a range of hashes."""

    rows: Count


@dataclass(frozen=True, kw_only=True)
class SketchFile:
    """Counters of ids that have no row yet, one byte each."""

    hashes: ClassVar[tuple[int, int]] = (0, LAST_HASH)

    file: RelativePath
    bytes: Count


@dataclass(frozen=True, kw_only=True)
class SketchRange(RangeFile):
    """The counters of a range of hashes: of whole shards."""

    bytes: Count


Tombstones = TombstonesFile | TombstonesRange
Counters = SketchFile | SketchRange


def check_size(entry: RowsFile | Tombstones | Counters, dtype: np.dtype[Any], stored: int) -> None:
    """Raise ValueError unless a file of `stored` bytes can have its rows or counters.

    `dtype` is the dtype of the table's records.
    """
    if isinstance(entry, RowsFile):
        # No two records have the same key, so a compressed one still takes at least a byte.
        if entry.file.endswith(".zst"):
            if entry.rows > stored:
                raise ValueError(
                    f"{quoted(entry.file)} cannot have {entry.rows:,} rows in {stored:,} bytes"
                )
            return
        expected = ROWS_HEADER_BYTES + entry.rows * dtype.itemsize
    elif isinstance(entry, TombstonesFile | TombstonesRange):
        expected = TOMBSTONES_HEADER_BYTES + entry.rows * REMOVED_DTYPE.itemsize
    else:
        expected = SKETCH_HEADER_BYTES + entry.bytes
    if stored != expected:
        raise ValueError(
            f"{quoted(entry.file)} has {stored:,} bytes, and its rows or counters need {expected:,}"
        )


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table: `rows` and the groups count the rows of the whole chain, `files` have its own.

    Written by one owner it has `tombstones` and `sketch`, or None. Written by several, each with
    a range of hashes, it has `tombstone_files` and `sketch_files` instead.
    """

    name: Name
    rows: Count
    slots: tuple[Name, ...]
    segments: tuple[Segment, ...]
    groups: tuple[Group, ...]
    life: Life
    record: tuple[RecordField, ...]
    files: tuple[RowsFile, ...]
    tombstones: TombstonesFile | None
    sketch: SketchFile | None
    tombstone_files: tuple[TombstonesRange, ...] | None = omitted()
    sketch_files: tuple[SketchRange, ...] | None = omitted()

    @property
    def folder(self) -> str:
        """Where its files are, relative to the checkpoint."""
        return f"tables/{self.name}"

    @property
    def is_of_one_owner(self) -> bool:
        """Whether no list of files by range is there, which version 1 of the manifest lacks."""
        return self.tombstone_files is None and self.sketch_files is None

    @property
    def removed_files(self) -> tuple[Tombstones, ...]:
        """The files of removed keys, if there are any, in the order of their ranges."""
        if self.tombstone_files is not None:
            return self.tombstone_files
        return () if self.tombstones is None else (self.tombstones,)

    @property
    def all_sketch_files(self) -> tuple[Counters, ...]:
        """The files of counters, if there are any, in the order of their ranges."""
        if self.sketch_files is not None:
            return self.sketch_files
        return () if self.sketch is None else (self.sketch,)

    @property
    def sketch_bytes(self) -> int:
        """The bytes of all counters."""
        return sum(entry.bytes for entry in self.all_sketch_files)

    @property
    def entries(self) -> list[RowsFile | Tombstones]:
        """Its files of rows and of removed keys."""
        return [*self.files, *self.removed_files]

    @property
    def record_dtype(self) -> np.dtype[Any]:
        """The dtype of its records (tnctl.tables.record_dtype)."""
        return record_dtype([segment.plan() for segment in self.segments], self.life.shows)

    def width_of(self, segment: str) -> int:
        """The floats of a segment; 0 when there is none of that name."""
        return {part.name: part.width for part in self.segments}.get(segment, 0)

    def check_sizes(self, stored: dict[str, int]) -> None:
        """Raise ValueError unless the table's files have the size that their rows need.

        `stored` has the bytes of each file by its name.
        """
        for entry in (*self.entries, *self.all_sketch_files):
            try:
                check_size(entry, self.record_dtype, stored[entry.file])
            except ValueError as error:
                raise ValueError(f"files of {self.name}: {error}") from error
