"""What the manifest of a checkpoint says of its tables: docs/formats/checkpoint.md."""

from collections.abc import Sequence
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
from tnctl.tables.shards import HASHES_PER_SHARD, SHARDS

LONGEST_SEGMENT = 65_536  # floats; a conf has at most 1024
LAST_HASH = 2**64 - 1
ROWS_HEADER_BYTES, TOMBSTONES_HEADER_BYTES, SKETCH_HEADER_BYTES = 32, 16, 16
SKETCH_UNIT = 256  # bytes: 64 ranges of hashes, 4 lines each

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
        needed = {"name", "learning_rate", *optimizer_kinds.settings(self.name)}
        present = plain(self).keys()
        if lacking := sorted(needed - present):
            raise ValueError(f"{self.name} lacks its setting {lacking[0]}")
        if foreign := sorted(present - needed - set(optimizer_kinds.EXTRAS)):
            raise ValueError(f"{self.name} has no setting {foreign[0]}")

    @classmethod
    def of(cls, rule: tables.Optimizer) -> "Optimizer":
        """The document of an update rule."""
        return cls(**rule.described())

    def rule(self) -> tables.Optimizer:
        """The update rule that tables take."""
        return tables.Optimizer(**plain(self))

    def dense_states(self) -> tuple[str, ...]:
        """The states of dense weights, each one float per weight, in order."""
        return tuple(self.rule().dense_state_names())


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
class RowsFile:
    """The rows of a range of hashes, both ends inclusive."""

    file: RelativePath
    first: Hash
    last: Hash
    rows: Count

    @property
    def hashes(self) -> tuple[int, int]:
        """The first and the last hash of the range."""
        return int(self.first, 16), int(self.last, 16)


@dataclass(frozen=True, kw_only=True)
class TombstonesFile:
    """The keys of rows that were removed, of all hashes."""

    hashes: ClassVar[tuple[int, int]] = (0, LAST_HASH)

    file: RelativePath
    rows: Count


@dataclass(frozen=True, kw_only=True)
class TombstonesRange:
    """The keys of rows that were removed, of a range of hashes, both ends inclusive."""

    file: RelativePath
    first: Hash
    last: Hash
    rows: Count

    @property
    def hashes(self) -> tuple[int, int]:
        """The first and the last hash of the range."""
        return int(self.first, 16), int(self.last, 16)


@dataclass(frozen=True, kw_only=True)
class SketchFile:
    """Counters of ids that have no row yet, one byte each."""

    hashes: ClassVar[tuple[int, int]] = (0, LAST_HASH)

    file: RelativePath
    bytes: Count


@dataclass(frozen=True, kw_only=True)
class SketchRange:
    """The counters of a range of hashes, both ends inclusive: of whole shards."""

    file: RelativePath
    first: Hash
    last: Hash
    bytes: Count

    @property
    def hashes(self) -> tuple[int, int]:
        """The first and the last hash of the range."""
        return int(self.first, 16), int(self.last, 16)


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


def check_ranges(
    what: str, entries: Sequence[RowsFile | TombstonesRange | SketchRange], names: str
) -> None:
    """Raise ValueError unless files are numbered and have all hashes, range after range.

    `names` is the format of their names, with `number`; `what` names them in the error.
    """
    following = 0
    for number, entry in enumerate(entries):
        if entry.file != names.format(number=number):
            raise ValueError(f"{what} have {quoted(entry.file)} at {number}")
        first, last = entry.hashes
        if first != following or last < first:
            raise ValueError(
                f"{what}: {quoted(entry.file)} has hashes {entry.first} to "
                f"{entry.last}; it should begin at {following:016x}"
            )
        following = last + 1
    if following != LAST_HASH + 1:
        raise ValueError(f"{what} do not have all hashes")


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

    def __post_init__(self) -> None:
        self._check_groups()
        self._check_record()
        self._check_files()

    def _check_groups(self) -> None:
        for key, values in (
            ("slots", self.slots),
            ("groups' names", [group.name for group in self.groups]),
            ("groups' numbers", [group.number for group in self.groups]),
            ("segments", [segment.name for segment in self.segments]),
            ("segments' outputs", [segment.output for segment in self.segments]),
        ):
            if not values or len(set(values)) != len(values):
                raise ValueError(f"{key} of {self.name} should be given, each once")
        if self.rows != (rows := sum(group.rows for group in self.groups)):
            raise ValueError(
                f"rows of {self.name} are {self.rows:,}, and those of its groups {rows:,}"
            )
        names = {group.name for group in self.groups}
        if set(self.life.decay or ()) != (names if self.life.shows else set()):
            raise ValueError(f"life.decay of {self.name} is not of its groups")

    def _check_record(self) -> None:
        expected = described_record(self.record_dtype)
        for received, field in zip(self.record, expected, strict=False):
            if received != field:
                raise ValueError(
                    f"record of {self.name} has {quoted(received.name)} of {received.count} "
                    f"{quoted(received.type)}; segments and optimizers make "
                    f"{quoted(field.name)} of {field.count} {quoted(field.type)}"
                )
        if len(self.record) != len(expected):
            raise ValueError(
                f"record of {self.name} has {len(self.record)} fields; segments and optimizers "
                f"make {len(expected)}"
            )

    def _check_files(self) -> None:
        suffix = ".zst" if self.files and self.files[0].file.endswith(".zst") else ""
        names = f"{self.folder}/{{number:05d}}.rows{suffix}"
        check_ranges(f"files of {self.name}", self.files, names)
        self._check_ranges()

    @property
    def folder(self) -> str:
        """Where its files are, relative to the checkpoint."""
        return f"tables/{self.name}"

    def _check_ranges(self) -> None:
        for key, single, ranges in (
            ("tombstone_files", self.tombstones, self.tombstone_files),
            ("sketch_files", self.sketch, self.sketch_files),
        ):
            name = key.removesuffix("_files").replace("tombstone", "tombstones")
            if single is not None and single.file != f"{self.folder}/{name}.bin":
                raise ValueError(f"{name}.bin of {self.name} cannot be {quoted(single.file)}")
            if ranges is not None:
                if single is not None:
                    raise ValueError(f"{self.name} has both {name} and {key}")
                path = f"{self.folder}/{name}-{{number:05d}}.bin"
                check_ranges(f"{key} of {self.name}", ranges, path)
        size = self.sketch_bytes
        for entry in self.all_sketch_files:
            first, end = entry.hashes[0], entry.hashes[1] + 1
            shards = (end - first) // HASHES_PER_SHARD
            if first % HASHES_PER_SHARD or end % HASHES_PER_SHARD:
                raise ValueError(f"{quoted(entry.file)} has a part of a shard")
            if size % SKETCH_UNIT or not size or entry.bytes != size * shards // SHARDS:
                raise ValueError(f"sketch of {self.name} cannot have {entry.bytes:,} bytes")

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
