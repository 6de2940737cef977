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
class SketchFile:
    """Counters of ids that have no row yet, one byte each."""

    file: RelativePath
    bytes: Count


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table: `rows` and the groups count the rows of the whole chain, `files` have its own."""

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
        following = 0
        for number, entry in enumerate(self.files):
            suffix = ".zst" if self.files[0].file.endswith(".zst") else ""
            if entry.file != f"{self.folder}/{number:05d}.rows{suffix}":
                raise ValueError(f"files of {self.name} have {quoted(entry.file)} at {number}")
            first, last = entry.hashes
            if first != following or last < first:
                raise ValueError(
                    f"files of {self.name}: {quoted(entry.file)} has hashes {entry.first} to "
                    f"{entry.last}; it should begin at {following:016x}"
                )
            following = last + 1
        if following != LAST_HASH + 1:
            raise ValueError(f"files of {self.name} do not have all hashes")
        for single, name in ((self.tombstones, "tombstones.bin"), (self.sketch, "sketch.bin")):
            if single is not None and single.file != f"{self.folder}/{name}":
                raise ValueError(f"{name} of {self.name} cannot be {quoted(single.file)}")
        if self.sketch is not None and (self.sketch.bytes % SKETCH_UNIT or not self.sketch.bytes):
            raise ValueError(f"sketch of {self.name} cannot have {self.sketch.bytes:,} bytes")

    @property
    def folder(self) -> str:
        """Where its files are, relative to the checkpoint."""
        return f"tables/{self.name}"

    @property
    def removed_files(self) -> tuple[TombstonesFile, ...]:
        """The file of removed keys, if there is one."""
        return () if self.tombstones is None else (self.tombstones,)

    @property
    def entries(self) -> list[RowsFile | TombstonesFile]:
        """Its files of rows, and of removed keys if there is one."""
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
        expected = {}
        record_bytes = self.record_dtype.itemsize
        for entry in self.files:
            # No two records have the same key, so a compressed one still takes at least a byte.
            if entry.file.endswith(".zst"):
                if entry.rows > stored[entry.file]:
                    raise ValueError(
                        f"files of {self.name}: {quoted(entry.file)} cannot have {entry.rows:,} "
                        f"rows in {stored[entry.file]:,} bytes"
                    )
            else:
                expected[entry.file] = ROWS_HEADER_BYTES + entry.rows * record_bytes
        if self.tombstones is not None:
            expected[self.tombstones.file] = (
                TOMBSTONES_HEADER_BYTES + self.tombstones.rows * REMOVED_DTYPE.itemsize
            )
        if self.sketch is not None:
            expected[self.sketch.file] = SKETCH_HEADER_BYTES + self.sketch.bytes
        for path, size in expected.items():
            if stored[path] != size:
                raise ValueError(
                    f"files of {self.name}: {quoted(path)} has {stored[path]:,} bytes, and its "
                    f"rows or counters need {size:,}"
                )
