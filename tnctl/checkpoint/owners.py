"""The owners of a checkpoint's rows: each writes the rows, removed keys and counters it has.

An owner has some shards of every table. `PartWriter` writes the part of one owner. `Owners` are
all of them, as the process that writes the manifest uses them; `LocalOwners` is this process alone.
"""

import dataclasses
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tnctl import files
from tnctl.checkpoint import rows, sketch_file, tombstones
from tnctl.checkpoint.chain import FOLDER, Checkpoint, open_checkpoint
from tnctl.checkpoint.merging import Keys
from tnctl.checkpoint.parts import (
    EarlierTombstones,
    GroupPart,
    PartRequest,
    PartSize,
    StagedPart,
    TableNames,
    TablePart,
    WrittenPart,
)
from tnctl.checkpoint.spool import StagedFiles
from tnctl.errors import Failure
from tnctl.manifest import DamagedError, Opening
from tnctl.ownership import CHECKPOINT, ListedFiles
from tnctl.progress import say
from tnctl.schema import Conf, Save
from tnctl.tables import ALL_SHARDS, Shards, SparseTable

if TYPE_CHECKING:
    from tnctl.model.building import Model
    from tnctl.model.parameter_tables import ParameterTables


@dataclass(frozen=True)
class NamedTable:
    """A table of this process: its name, its share groups' names to numbers, and its rows."""

    name: str
    groups: Mapping[str, int]
    table: SparseTable


def tables_of(model: "ParameterTables") -> list[NamedTable]:
    """The tables of a model."""
    return [
        NamedTable(layout.name, layout.groups, table)
        for layout, table in zip(model.layout.tables, model.tables, strict=True)
    ]


class Owners(Protocol):
    """The processes that have the rows; each call returns when all of them have done their part.

    Lists are in the order of ranks, which is that of the shards. `model` is the one of this
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
        # Keys that were removed since the last checkpoint, by the tables' names.
        self._removed: dict[str, NDArray[Any]] = {}
        self._files: StagedFiles | None = None

    def measure(self, tables: Sequence[NamedTable], *, is_delta: bool) -> PartSize:
        """How large the part would be now.

        How many rows a delta has is known only when it is written. Raises Failure when no folder
        can be made in `save.spool`.
        """
        needed, counts = 0, []
        for named in tables:
            table, size = named.table, named.table.record_dtype.itemsize
            counts.append(rows.files_needed(table.rows, size))
            needed += len(sketch_file.counters_of(table, self._shards))
            needed += 0 if is_delta else table.rows * size
        if self._is_local:
            return PartSize(files=tuple(counts), bytes=needed)
        try:
            files.TemporaryFolder("spool", self._spool).cleanup()
        except Failure as error:
            raise Failure(f"save.spool: {error}") from error
        free = files.free_bytes(self._spool)
        return PartSize(files=tuple(counts), bytes=needed, place=str(self._spool), free=free)

    def stage(self, tables: Sequence[NamedTable], request: PartRequest) -> StagedPart:
        """Write the files of a part. When this returns, the rows may change.

        Raises Failure when something goes wrong, and when a file is not on the folder's list.
        """
        folder = files.join(self._parent, request.folder)
        listed = ListedFiles(folder, CHECKPOINT)
        self._files = StagedFiles(folder, self._spool, listed.require)
        try:
            earlier = self._opened(request.earlier)
            removed = [self._tombstones(named, request.earlier, earlier) for named in tables]
            return write_part(self._files.writing, tables, request, removed, self._shards)
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
        """Drop the part. Its files in place are removed by the process that listed them."""
        if self._files is not None:
            self._files.discard()
            self._files = None

    def _tombstones(
        self, named: NamedTable, earlier: EarlierTombstones | None, checkpoint: Checkpoint | None
    ) -> Iterator[NDArray[Any]]:
        """The removed keys of a table to keep, arrays [n] of REMOVED_DTYPE.

        Those since the last checkpoint, and of `checkpoint` those that are not too old; without
        keys that have a row again.
        """
        keys = Keys({number: name for name, number in named.groups.items()})
        removed = named.table.take_removed()
        if (previous := self._removed.get(named.name)) is not None:
            both = tombstones.merged([removed], [previous], keys)
            removed = np.concatenate([removed[:0], *both])
        if len(removed):
            self._removed[named.name] = removed
        older: Iterable[NDArray[Any]] = ()
        if earlier is not None and checkpoint is not None:
            older = self._kept_by(checkpoint, named.name, earlier.first_step)
        # `removed` is kept whatever its steps: a day without rows has no step of its own.
        newest = tombstones.merged([removed], older, keys)
        return tombstones.without_rows(newest, named.table)

    def _opened(self, earlier: EarlierTombstones | None) -> Checkpoint | None:
        if earlier is None:
            return None
        try:
            return open_checkpoint(files.join(self._parent, earlier.folder))
        except Failure as error:
            what = error.what if isinstance(error, DamagedError) else str(error)
            say(f"{what}: keys that were removed before are forgotten")
            return None

    def _kept_by(self, checkpoint: Checkpoint, table: str, first: int) -> Iterator[NDArray[Any]]:
        """The removed keys that a checkpoint has from a step on, as far as they can be read."""
        try:
            for removed in rows.tombstones(checkpoint, table, *self._shards.hashes):
                yield removed[removed["step"] >= first]
        except DamagedError as error:
            # Training does not depend on them.
            say(f"{error.what}: keys that were removed from {table} before are forgotten")


class LocalOwners:
    """One owner of all rows: this process."""

    def __init__(self, conf: Conf) -> None:
        self._writer = PartWriter(conf)

    def measure(self, model: "Model", *, is_delta: bool) -> list[PartSize]:
        return [self._writer.measure(tables_of(model), is_delta=is_delta)]

    def stage(self, model: "Model", requests: Sequence[PartRequest]) -> list[StagedPart]:
        [request] = requests
        return [self._writer.stage(tables_of(model), request)]

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


def write_part(
    opening: Opening,
    tables: Sequence[NamedTable],
    request: PartRequest,
    removed: Sequence[Iterable[NDArray[Any]]],
    shards: Shards = ALL_SHARDS,
) -> StagedPart:
    """Write the rows of some shards, which are all that the tables have, and what belongs to them.

    `removed` are the removed keys of each table, arrays [n] of REMOVED_DTYPE.
    """
    parts = zip(tables, request.tables, removed, strict=True)
    return StagedPart(
        tables=tuple(
            _write_table(opening, named, names, request.changed_from, keys, shards)
            for named, names, keys in parts
        )
    )


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


def _write_table(
    opening: Opening,
    named: NamedTable,
    names: TableNames,
    changed_from: int,
    removed: Iterable[NDArray[Any]],
    shards: Shards,
) -> TablePart:
    """Write the files of a table."""
    table, folder = named.table, f"tables/{named.name}"
    if named.name != names.table:
        raise Failure(f"a part of table {names.table} was requested of {named.name}")

    def records(first: int, last: int) -> Iterator[NDArray[Any]]:
        # No more keys than there are groups share a hash, and those must fit, and one more.
        most = max(rows.BYTES_PER_READ // table.record_dtype.itemsize, len(named.groups) + 1)
        return table.records(first, last, most, changed_from)

    hashes = rows.ranges(len(names.rows), *shards.hashes)
    size = table.record_dtype.itemsize
    part = TablePart(
        name=named.name,
        groups=group_parts(table, named.groups),
        files=rows.write_files(opening, names.rows, hashes, size, records),
    )
    if shards == ALL_SHARDS:
        return dataclasses.replace(
            part,
            tombstones=tombstones.write(opening, folder, removed),
            sketch=sketch_file.write(opening, folder, table),
        )
    return dataclasses.replace(
        part,
        tombstone_range=tombstones.write_range(opening, names.tombstones, shards.hashes, removed),
        sketch_range=sketch_file.write_range(opening, names.sketch, table, shards),
    )
