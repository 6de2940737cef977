"""What the owners of a checkpoint's rows report to the process that writes its manifest.

An owner has some shards of every table, and writes their rows, removed keys and counters into files
whose names it is given. All of these documents are JSON, so that an owner can be another process.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
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
    check_size,
)
from tnctl.documents import Count, FolderName, Name, RelativePath, Text, Uint32
from tnctl.errors import Failure, quoted
from tnctl.manifest import FileEntry
from tnctl.tables import ALL_SHARDS, Shards, shards_of

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
    ".zst" for compressed ones. Raises Failure when an owner did not size every table.
    """
    for rank, size in enumerate(sizes):
        if len(size.files) != len(tables):
            raise wrong(rank, f"has {len(size.files)} tables, not {len(tables)}")
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


@dataclass(frozen=True)
class TableShape:
    """What all parts of a table share: the names of its groups, and the bytes of its sketch."""

    groups: list[str]
    sketch_bytes: int


def check_staged(
    requests: Sequence[PartRequest], parts: Sequence[StagedPart], shapes: Sequence[TableShape]
) -> None:
    """Raise Failure unless the owners staged what was requested.

    Each has files of the requested names, of exactly its own shards, and counts of the groups of
    each table; `shapes` are of the tables.
    """
    if len(parts) != len(requests):
        raise Failure(f"{len(parts)} of {len(requests)} owners staged a part of the checkpoint")
    for rank, (request, part) in enumerate(zip(requests, parts, strict=True)):
        shards = shards_of(rank, len(requests))
        if [table.name for table in part.tables] != [names.table for names in request.tables]:
            raise wrong(rank, f"has tables {[table.name for table in part.tables]}")
        for names, table, shape in zip(request.tables, part.tables, shapes, strict=True):
            if [group.name for group in table.groups] != shape.groups:
                raise wrong(rank, f"counts groups that {table.name} does not have")
            _check_entries(rank, names, table, shards)
            counters = 0 if table.counters is None else table.counters.bytes
            expected = shape.sketch_bytes * shards.count // ALL_SHARDS.count
            if counters != expected:
                raise wrong(
                    rank, f"has {counters:,} bytes of the sketch of {table.name}, not {expected:,}"
                )
            written = sum(entry.rows for entry in table.files)
            counted = sum(group.rows for group in table.groups)
            if written > counted or (not request.changed_from and written < counted):
                raise wrong(rank, f"has {written:,} rows of {table.name}, and counts {counted:,}")


def _check_entries(rank: int, names: TableNames, table: TablePart, shards: Shards) -> None:
    """Raise Failure unless the files of a table have the requested names and their ranges."""
    singles, ranges = (table.tombstones, table.sketch), (table.tombstone_range, table.sketch_range)
    if any(ranges if shards == ALL_SHARDS else singles):
        raise wrong(rank, f"has files of other shards of {table.name}")
    requested = [*zip(names.rows, rows.ranges(len(names.rows), *shards.hashes), strict=True)]
    received = [(entry.file, entry.hashes) for entry in table.files]
    if len(received) != len(requested):
        raise wrong(rank, f"has {len(received)} files of {table.name}, not {len(requested)}")
    removed, counters = table.removed, table.counters
    if removed is not None or shards != ALL_SHARDS:
        requested.append((names.tombstones, shards.hashes))
        received.append(("none", (0, 0)) if removed is None else (removed.file, removed.hashes))
    if counters is not None:
        requested.append((names.sketch, shards.hashes))
        received.append((counters.file, counters.hashes))
    for (file, hashes), (name, expected) in zip(received, requested, strict=True):
        if (file, hashes) != (name, expected):
            raise wrong(
                rank,
                f"has {quoted(file)} with hashes {hashes[0]:016x} to {hashes[1]:016x}, not "
                f"{name} with {expected[0]:016x} to {expected[1]:016x}",
            )


def merged_files(
    parts: Sequence[StagedPart],
    written: Sequence[WrittenPart],
    dtypes: Sequence[np.dtype[Any]],
) -> dict[str, FileEntry]:
    """The files of all owners, in the order in which one owner would have written them.

    `dtypes` are those of the tables' records. Raises Failure unless each owner has exactly the
    files that it staged, of the sizes that their rows and counters need.
    """
    if len(written) != len(parts):
        raise Failure(f"{len(written)} of {len(parts)} owners wrote their part of the checkpoint")
    for rank, (part, files) in enumerate(zip(parts, written, strict=True)):
        stored = {name: entry.bytes for name, entry in files.files.items()}
        staged = {entry.file for table in part.tables for entry in table.entries}
        if lacking := sorted(staged ^ stored.keys()):
            raise wrong(rank, f"staged or wrote {quoted(lacking[0])}, and not both")
        for table, dtype in zip(part.tables, dtypes, strict=True):
            for entry in table.entries:
                try:
                    check_size(entry, dtype, stored[entry.file])
                except ValueError as error:
                    raise wrong(rank, f"is wrong: {error}") from error
    stored_files = {name: entry for part in written for name, entry in part.files.items()}
    merged: dict[str, FileEntry] = {}
    for of_table in zip(*(part.tables for part in parts), strict=True):
        entries = [entry for table in of_table for entry in table.files]
        entries += [table.removed for table in of_table if table.removed is not None]
        entries += [table.counters for table in of_table if table.counters is not None]
        merged |= {entry.file: stored_files[entry.file] for entry in entries}
    return merged


def wrong(rank: int, what: str) -> Failure:
    """The error for a part that an owner must not have."""
    return Failure(
        f"worker {rank}: its part of the checkpoint {what}. The checkpoint is not in force; run "
        "the same command again, with the same tnctl on all machines"
    )
