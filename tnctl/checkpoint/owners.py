"""The owners of a checkpoint's rows: each writes the rows, removed keys and counters it has.

An owner has some shards of every table. `PartWriter` writes the part of one owner. `Owners` are
all of them, as the process that writes the manifest uses them; `LocalOwners` is this process alone.
What an owner is asked for and reports are documents, so that it can be another process.
"""

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

from numpy.typing import NDArray
from pydantic import Field

from tnctl import files
from tnctl.checkpoint import rows
from tnctl.checkpoint.chain import FOLDER, open_checkpoint
from tnctl.checkpoint.document import Counters, RowsFile, Tombstones
from tnctl.checkpoint.merging import KeyHashes, newest
from tnctl.checkpoint.spool import StagedFiles
from tnctl.documents import Count, FolderName, Name, RelativePath, Text, Uint32
from tnctl.errors import Failure, refuse_if
from tnctl.manifest import DamagedError, FileEntry, Opening
from tnctl.progress import say
from tnctl.schema import Conf, Save
from tnctl.tables import ALL_SHARDS, REMOVED_DTYPE, Shards, SparseTable

if TYPE_CHECKING:
    from tnctl.model.building import Model
    from tnctl.model.layout import TableLayout
    from tnctl.model.parameter_tables import ParameterTables

Rows = Annotated[int, Field(ge=0, lt=2**53)]


# ---- What owners are asked for, and report ----------------------------------


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
    """What an owner has of a table: its entries of the manifest."""

    name: Name
    groups: tuple[GroupPart, ...]
    files: tuple[RowsFile, ...]
    tombstones: Tombstones | None = None
    sketch: Counters | None = None


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
    for index, table in enumerate(tables):
        first, folder = 0, f"tables/{table}"
        for rank, size in enumerate(sizes):
            end = first + size.files[index]
            order = "" if len(sizes) == 1 else f"-{rank:05d}"
            names[rank].append(
                TableNames(
                    rows=tuple(rows.file_name(folder, n, suffix) for n in range(first, end)),
                    tombstones=f"{folder}/tombstones{order}.bin",
                    sketch=f"{folder}/sketch{order}.bin",
                )
            )
            first = end
    return [tuple(of_owner) for of_owner in names]


def merged_files(
    parts: Sequence[StagedPart], written: Sequence[WrittenPart]
) -> dict[str, FileEntry]:
    """The files of all owners, in the order in which one owner would have written them."""
    stored_files = {name: entry for part in written for name, entry in part.files.items()}
    merged: dict[str, FileEntry] = {}
    for of_table in zip(*(part.tables for part in parts), strict=True):
        entries: list[Any] = [entry for part in of_table for entry in part.files]
        entries += [part.tombstones for part in of_table] + [part.sketch for part in of_table]
        merged |= {entry.file: stored_files[entry.file] for entry in entries if entry}
    return merged


# ---- Owners -----------------------------------------------------------------


class Owners(Protocol):
    """The processes that have the rows; each call returns when all of them have done their part.

    Lists are in the order of ranks, as the shards are. `model` is the one of this
    process; the others use their own, which are at the same step.
    """

    def measure(self, model: "Model", *, is_delta: bool) -> list[PartSize]:
        """How large each part will be. Raises Failure when an owner cannot write to its spool."""

    def stage(self, model: "Model", requests: Sequence[PartRequest]) -> list[StagedPart]:
        """Write each part where training may continue. Raises Failure."""

    def finish(self) -> list[WrittenPart]:
        """Compress, sync and upload the files, while training continues. Raises Failure."""

    def committed(self) -> None:
        """The manifest is there: what the parts had is dropped."""

    def abandon(self) -> None:
        """There will be no manifest: the parts are dropped, and removed keys stay for the next."""


class PartWriter:
    """Writes the parts of one owner, which has `shards`, into the checkpoints of a run.

    Parts are written one after the other: `stage`, `finish`, `committed`, or `abandon` at any time.
    """

    def __init__(self, conf: Conf, shards: Shards = ALL_SHARDS) -> None:
        self._parent, self._shards = files.join(conf.output, FOLDER), shards
        self._is_local = files.local_path(conf.output) is not None
        self._spool = spool_of(conf.save)
        # Keys that were removed since the last checkpoint, by the tables' names, the newest first.
        self._removed: dict[str, list[NDArray[Any]]] = {}
        self._files: StagedFiles | None = None

    def measure(self, model: "ParameterTables", *, is_delta: bool) -> PartSize:
        """How large the part would be now.

        How many rows a delta has is known only when it is written. Raises Failure when no folder
        can be made in `save.spool`.
        """
        needed, counts = 0, []
        for table in model.tables:
            size = table.record_dtype.itemsize
            counts.append(rows.files_needed(table.rows, size))
            needed += len(rows.counters_of(table, self._shards))
            needed += 0 if is_delta else table.rows * size
        if self._is_local:
            return PartSize(files=tuple(counts), bytes=needed)
        try:
            files.TemporaryFolder("spool", self._spool).cleanup()
        except Failure as error:
            raise Failure(f"save.spool: {error}") from error
        free = files.free_bytes(self._spool)
        return PartSize(files=tuple(counts), bytes=needed, place=str(self._spool), free=free)

    def stage(self, model: "ParameterTables", request: PartRequest) -> StagedPart:
        """Write the files of a part. When this returns, the rows may change.

        Raises Failure when something goes wrong, and when the folder is not there: the process that
        writes the manifest has made it.
        """
        folder = files.join(self._parent, request.folder)
        refuse_if(
            self._is_local and not files.exists(folder),
            f"{folder} is not there, which worker 0 has made. All workers need the same output: "
            "give a folder that all machines share",
            Failure,
        )
        self._files = StagedFiles(folder, self._spool)
        try:
            removed = [
                self._tombstones(layout, table, request.earlier)
                for layout, table in zip(model.layout.tables, model.tables, strict=True)
            ]
            return write_part(self._files.writing, model, request, removed, self._shards)
        except BaseException:
            self.abandon()
            raise

    def finish(self) -> WrittenPart:
        """Finish the files: compressed, on the disk, or uploaded. Raises Failure."""
        assert self._files is not None
        return WrittenPart(files=self._files.finish())

    def committed(self) -> None:
        """Forget the removed keys that the part had, for the manifest is there."""
        self._removed.clear()
        self._files = None

    def abandon(self) -> None:
        """Drop the part. Its files in place are removed by the process that writes the manifest."""
        if self._files is not None:
            self._files.discard()
            self._files = None

    def _tombstones(
        self, layout: "TableLayout", table: SparseTable, earlier: EarlierTombstones | None
    ) -> Iterator[NDArray[Any]]:
        """The removed keys of a table to keep, arrays [n] of REMOVED_DTYPE.

        Those since the last checkpoint, and of the earlier one those that are not too old; without
        keys that have a row again.
        """
        # They are kept whatever their steps: a day without rows has no step of its own.
        removed = self._removed.setdefault(layout.name, [])
        removed.insert(0, table.take_removed())
        sources = [iter([keys]) for keys in removed]
        if earlier is not None:
            sources.append(self._kept_by(earlier, layout.name))
        keys = KeyHashes({number: name for name, number in layout.groups.items()})
        return (
            block[~table.contains(block["group"], block["id"])]
            for merged in newest(sources, keys)
            for block in merged.of(range(len(sources)), REMOVED_DTYPE)
        )

    def _kept_by(self, earlier: EarlierTombstones, table: str) -> Iterator[NDArray[Any]]:
        """The removed keys that a checkpoint has from a step on, as far as they can be read."""
        what = None
        try:
            checkpoint = open_checkpoint(files.join(self._parent, earlier.folder))
        except Failure as error:
            what = error.what if isinstance(error, DamagedError) else str(error)
        else:
            try:
                for removed in rows.tombstones(checkpoint, table, *self._shards.hashes):
                    yield removed[removed["step"] >= earlier.first_step]
            except DamagedError as error:
                what = error.what
        if what is not None:  # training does not depend on them
            say(f"{what}: keys that were removed from {table} before are forgotten")


class LocalOwners:
    """One owner of all rows: this process."""

    def __init__(self, conf: Conf) -> None:
        self._writer = PartWriter(conf)

    def measure(self, model: "Model", *, is_delta: bool) -> list[PartSize]:
        return [self._writer.measure(model, is_delta=is_delta)]

    def stage(self, model: "Model", requests: Sequence[PartRequest]) -> list[StagedPart]:
        [request] = requests
        return [self._writer.stage(model, request)]

    def finish(self) -> list[WrittenPart]:
        return [self._writer.finish()]

    def committed(self) -> None:
        self._writer.committed()

    def abandon(self) -> None:
        self._writer.abandon()


def spool_of(save: Save) -> Path:
    """The folder where files are staged for another storage."""
    spool = save.spool or tempfile.gettempdir()
    return files.local_path(spool) or Path(spool)


def group_parts(table: SparseTable, groups: Mapping[str, int]) -> tuple[GroupPart, ...]:
    """What a table counted of its share groups, of these names and numbers."""
    return tuple(
        GroupPart(
            name=name,
            rows=table.group_rows(number),
            evicted=table.figures(number).evicted,
            waiting=table.waiting(number),
        )
        for name, number in groups.items()
    )


def write_part(
    opening: Opening,
    model: "ParameterTables",
    request: PartRequest,
    removed: Sequence[Iterable[NDArray[Any]]],
    shards: Shards = ALL_SHARDS,
) -> StagedPart:
    """Write the rows of some shards, which are all that the tables have, and what belongs to them.

    `removed` are the removed keys of each table, arrays [n] of REMOVED_DTYPE.
    """
    tables = zip(model.layout.tables, model.tables, request.tables, removed, strict=True)
    return StagedPart(
        tables=tuple(
            _write_table(opening, layout, table, names, request.changed_from, keys, shards)
            for layout, table, names, keys in tables
        )
    )


def _write_table(
    opening: Opening,
    layout: "TableLayout",
    table: SparseTable,
    names: TableNames,
    changed_from: int,
    removed: Iterable[NDArray[Any]],
    shards: Shards,
) -> TablePart:
    """Write the files of a table."""
    size = table.record_dtype.itemsize

    def records(first: int, last: int) -> Iterator[NDArray[Any]]:
        # No more keys than there are groups share a hash, and those must fit, and one more.
        most = max(rows.BYTES_PER_READ // size, len(layout.groups) + 1)
        return table.records(first, last, most, changed_from)

    hashes = rows.ranges(len(names.rows), *shards.hashes)
    range_ = {} if shards == ALL_SHARDS else rows.bounds(*shards.hashes)
    counters = rows.counters_of(table, shards)
    return TablePart(
        name=layout.name,
        groups=group_parts(table, layout.groups),
        files=rows.write_files(opening, names.rows, hashes, size, records),
        tombstones=rows.write_tombstones(opening, names.tombstones, removed, range_),
        sketch=rows.write_sketch(opening, names.sketch, counters, range_),
    )
