"""What the owners of a checkpoint's rows report to the process that writes its manifest.

An owner has some shards of every table, and writes their rows, removed keys and counters into files
whose names it is given. All of these documents are JSON, so that an owner can be another process.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from tnctl.checkpoint import rows
from tnctl.checkpoint.table_document import (
    Counters,
    RowsFile,
    SketchFile,
    SketchRange,
    Tombstones,
    TombstonesFile,
    TombstonesRange,
)
from tnctl.documents import Count, FolderName, Name, RelativePath, Text, Uint32
from tnctl.manifest import FileEntry

Rows = Annotated[int, Field(ge=0, lt=2**53)]


@dataclass(frozen=True, kw_only=True)
class PartSize:
    """How large the part of an owner is, before it is written.

    `files` has the number of rows files of each table. `free` is the space that is left in
    `save.spool`, the folder `place`; both are None when files are written in place. `owner` is what
    lines call the owner, where they name it.
    """

    files: tuple[Annotated[int, Field(ge=1, lt=2**20)], ...]
    bytes: Count
    place: Text | None = None
    free: Count | None = None
    owner: Text = ""


@dataclass(frozen=True, kw_only=True)
class TableNames:
    """The files that an owner writes of a table; `sketch` and `tombstones` if it has any."""

    table: Name
    rows: tuple[RelativePath, ...]
    tombstones: RelativePath
    sketch: RelativePath


@dataclass(frozen=True, kw_only=True)
class EarlierTombstones:
    """A checkpoint whose removed keys are kept, from a step on: the name of its folder."""

    folder: FolderName
    first_step: Uint32


@dataclass(frozen=True, kw_only=True)
class PartRequest:
    """What an owner is to write into the checkpoint `folder`, a name in the run's checkpoints.

    Rows that changed at the step `changed_from` or later, and counters; keys removed since the last
    checkpoint, and those of `earlier`. `step` is the model's: an owner that is at another one must
    not write.
    """

    folder: FolderName
    step: Uint32
    changed_from: Uint32
    tables: tuple[TableNames, ...]
    earlier: EarlierTombstones | None = None


@dataclass(frozen=True, kw_only=True)
class GroupPart:
    """The rows of a share group that an owner has, and what it counted.

    `waiting` may be below 0: the counts of all owners are added before the sum is raised to 0.
    """

    name: Name
    rows: Rows
    evicted: Rows
    waiting: Annotated[int, Field(gt=-(2**53), lt=2**53)]


@dataclass(frozen=True, kw_only=True)
class TablePart:
    """What an owner has of a table: its entries of the manifest.

    An owner of all shards has `tombstones` and `sketch`, one of some shards `tombstone_range` and
    `sketch_range`.
    """

    name: Name
    groups: tuple[GroupPart, ...]
    files: tuple[RowsFile, ...]
    tombstones: TombstonesFile | None = None
    sketch: SketchFile | None = None
    tombstone_range: TombstonesRange | None = None
    sketch_range: SketchRange | None = None

    @property
    def removed(self) -> Tombstones | None:
        """The file of removed keys, if there is one."""
        return self.tombstone_range or self.tombstones

    @property
    def counters(self) -> Counters | None:
        """The file of counters, if there is one."""
        return self.sketch_range or self.sketch

    @property
    def entries(self) -> list[RowsFile | Tombstones | Counters]:
        """All its files, in the order of the manifest."""
        others = (self.removed, self.counters)
        return [*self.files, *(entry for entry in others if entry is not None)]


@dataclass(frozen=True, kw_only=True)
class StagedPart:
    """What an owner staged: each table's part, in the order of the request."""

    tables: tuple[TablePart, ...]


@dataclass(frozen=True, kw_only=True)
class WrittenPart:
    """The files of an owner, now that they are where the checkpoint is."""

    files: dict[RelativePath, FileEntry]


def named(
    tables: Sequence[str], sizes: Sequence[PartSize], suffix: str
) -> list[tuple[TableNames, ...]]:
    """The names of each owner's files, of the tables of these names.

    Rows files are numbered over all owners, so that they are in the order of hashes; `suffix` is
    ".zst" for compressed ones.
    """
    names: list[list[TableNames]] = [[] for _ in sizes]
    for place, table in enumerate(tables):
        number, folder = 0, f"tables/{table}"
        for rank, size in enumerate(sizes):
            end = number + size.files[place]
            order = "" if len(sizes) == 1 else f"-{rank:05d}"
            names[rank].append(
                TableNames(
                    table=table,
                    rows=tuple(rows.file_name(folder, n, suffix) for n in range(number, end)),
                    tombstones=f"{folder}/tombstones{order}.bin",
                    sketch=f"{folder}/sketch{order}.bin",
                )
            )
            number = end
    return [tuple(of_owner) for of_owner in names]


def all_names(request: PartRequest) -> Iterator[str]:
    """Every name that an owner may write."""
    for names in request.tables:
        yield from [*names.rows, names.tombstones, names.sketch]


def merged_files(
    parts: Sequence[StagedPart], written: Sequence[WrittenPart]
) -> dict[str, FileEntry]:
    """The files of all owners, in the order in which one owner would have written them."""
    stored_files = {name: entry for part in written for name, entry in part.files.items()}
    merged: dict[str, FileEntry] = {}
    for of_table in zip(*(part.tables for part in parts), strict=True):
        entries = [entry for table in of_table for entry in table.files]
        entries += [table.removed for table in of_table if table.removed is not None]
        entries += [table.counters for table in of_table if table.counters is not None]
        merged |= {entry.file: stored_files[entry.file] for entry in entries}
    return merged
