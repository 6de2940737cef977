"""An export that all workers write on command of rank 0: each the rows of its shards."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tnctl import files
from tnctl.cluster.messages import commands, export_commands
from tnctl.cluster.messages.shapes import first_shards
from tnctl.cluster.node import Node
from tnctl.cluster.workers.export_parts import ExportPart, base64_of
from tnctl.errors import Failure, refuse_if
from tnctl.outputs import Output
from tnctl.progress import say
from tnctl.serving.rows.embeddings import Embeddings, FileEmbeddings
from tnctl.serving.rows.export import Chain, ExportRequest, Writers, WrittenGroups
from tnctl.serving.rows.export_document import (
    ExportManifest,
    FileGroup,
    FilePart,
    RowsManifest,
    Threshold,
    stem_of,
)
from tnctl.serving.rows.precision import error_of_rows
from tnctl.serving.rows.row_formats import FileFormat, hashes_of
from tnctl.serving.rows.selection import TopRows
from tnctl.tables.plans import HASHES_PER_SHARD, shards_of

TOP_ROWS_AT_A_TIME = 1 << 20  # 16 MiB
IDS_AT_A_TIME = 1 << 12  # a message has at most 1 GiB, and a row up to 65,536 floats


class ClusterWriters(Writers):
    """All workers, each of which writes the rows with some hashes. Rank 0 has it."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._counts: list[list[tuple[int, int]]] = []  # rows and removed keys, by worker and group

    def select(self, request: ExportRequest, chain: Chain) -> None:
        node, checkpoint = self._node, request.checkpoint
        # First here: what cannot be is reported as by one process.
        self._part = part = ExportPart(node, request, chain)
        since = None
        if chain:
            folder, newest = chain[-1]
            since = export_commands.Manifested(folder=folder, sha256=newest.sha256)
        replies = node.command_others(
            export_commands.SelectRows(
                checkpoint=export_commands.Manifested(
                    folder=checkpoint.folder, sha256=checkpoint.manifest.sha256
                ),
                since=since,
                encoding=request.encoding,
                precision=request.precision,
                filter=request.filter,
            )
        )
        with node.named():
            first_top = part.top_rows(request.filter.top)
        selected = commands.replies_of(export_commands.RowsSelected, replies)
        thresholds = self._thresholds(request.filter.top, first_top, selected)
        counting = node.command_others(export_commands.CountSelected(thresholds=tuple(thresholds)))
        with node.named():
            self._counts = [part.count(thresholds)]
        counted = commands.replies_of(export_commands.SelectedCounts, counting)
        self._counts += [list(reply.groups) for reply in counted]
        if any(len(of_worker) != len(self._counts[0]) for of_worker in self._counts):
            raise Failure("a worker has selected other groups")
        if not chain and not request.filter.counts:
            self._check_counts(request)

    def write(self, format: FileFormat, output: Output) -> WrittenGroups:
        node, groups = self._node, self._part.selection.groups
        names = [
            name
            for rank, of_worker in enumerate(self._counts)
            for group, (_, removed) in zip(groups, of_worker, strict=True)
            for name in format.names(
                stem_of(group.name, rank if node.workers > 1 else None), removed
            ).values()
            if name is not None
        ]
        output.is_kept = node.workers > 1
        replies = node.command_others(export_commands.WriteSelected(folder=output.folder))
        with node.named():
            parts = [self._part.write(output.folder, output.to)]
        parts += [
            WrittenGroups(reply.groups, reply.files)
            for reply in commands.replies_of(export_commands.SelectedWritten, replies)
        ]
        output.is_kept = False
        if {name for part in parts for name in part.files} != set(names):
            raise Failure("a worker has written other files than its part has")
        check_seen(output, parts)
        if node.workers == 1:
            return parts[0]
        joined = tuple(map(self._joined, zip(*(part.groups for part in parts), strict=True)))
        rows, removed = (
            sum(getattr(entry, key) for entry in joined) for key in ("rows", "removed")
        )
        say(f"{rows:,} rows and {removed:,} removed keys to {output.to}, in {len(parts)} parts")
        return WrittenGroups(
            joined, {name: entry for part in parts for name, entry in part.files.items()}
        )

    def opened(self, folder: str, content: ExportManifest) -> Embeddings:
        if self._node.workers == 1:
            return self._part.open(folder, content)
        command = export_commands.OpenWritten(folder=folder, content=content)
        replies = self._node.command_others(command)
        with self._node.named():
            first = self._part.open(folder, content)
        commands.replies_of(commands.Done, replies)
        return ClusterEmbeddings(self._node, first)

    def _thresholds(
        self,
        top: int | None,
        first_top: list[TopRows],
        selected: list[export_commands.RowsSelected],
    ) -> list[Threshold | None]:
        """The last of the top rows of each group; none without a filter `top`."""
        if top is None:
            return []
        thresholds = []
        for number, rows_of_first in enumerate(first_top):
            merged = TopRows(top)
            merged.add(*rows_of_first.candidates(), rows_of_first.rows)
            # In the order of the ranks, which is that of the hashes.
            for rank, reply in enumerate(selected, 1):
                if len(reply.top) != len(first_top):
                    raise Failure("a worker has selected other groups")
                rows, candidates = reply.top[number]
                parts = [
                    self._top_rows(rank, number, at, min(TOP_ROWS_AT_A_TIME, candidates - at))
                    for at in range(0, candidates, TOP_ROWS_AT_A_TIME)
                ]
                if parts:
                    shows, hashes = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
                    merged.add(shows, hashes, rows)
            thresholds.append(merged.threshold())
        return thresholds

    def _top_rows(
        self, rank: int, group: int, first: int, rows: int
    ) -> tuple[NDArray[np.float64], NDArray[np.uint64]]:
        command = export_commands.SendTopRows(group=group, first=first, rows=rows)
        body = self._node.command(rank, command).result()
        if len(body) != 16 * rows:
            raise Failure(f"worker {rank} sent {len(body):,} bytes of top rows, not {16 * rows:,}")
        return np.frombuffer(body, "<f8", rows), np.frombuffer(body, "<u8", rows, 8 * rows)

    def _check_counts(self, request: ExportRequest) -> None:
        """Raise Failure unless the workers together have as many rows as the checkpoint."""
        expected = {
            group.name: group.rows
            for table in request.checkpoint.manifest.tables
            for group in table.groups
        }
        for place, group in enumerate(self._part.selection.groups):
            rows = sum(of_worker[place][0] for of_worker in self._counts)
            if rows != expected[group.name]:
                raise Failure(
                    f"group {group.name} has {rows:,} rows to export, and "
                    f"{expected[group.name]:,} were expected. Take another checkpoint"
                )

    def _joined(self, entries: tuple[FileGroup, ...]) -> FileGroup:
        """The entry of a group, from those of its parts."""
        parts = []
        for rank, entry in enumerate(entries):
            first, last = shards_of(rank, self._node.workers).hashes
            parts.append(
                FilePart(
                    first=f"{first:016x}",
                    last=f"{last:016x}",
                    rows=entry.rows,
                    removed=entry.removed,
                    file=entry.rows_file,
                    removed_file=entry.removed_file,
                    index=entry.index,
                )
            )
        return replace(
            entries[0],
            rows=sum(entry.rows for entry in entries),
            removed=sum(entry.removed for entry in entries),
            file=None,
            removed_file=None,
            index=None,
            parts=tuple(parts),
            error=error_of_rows([(entry.error, entry.rows) for entry in entries]),
        )


def check_seen(output: Output, parts: Sequence[WrittenGroups]) -> None:
    """Refuse a folder that is another one for some worker. Raises UserError."""
    for rank, part in enumerate(parts):
        for name, entry in part.files.items():
            url = files.join(output.folder, name)
            refuse_if(
                not files.exists(url) or files.size(url) != entry.bytes,
                f"to={output.to}: worker 0 does not see {name}, which worker {rank} wrote "
                "there. Name a folder of a storage that all workers share",
            )


class ClusterEmbeddings:
    """The rows that were written, as `Embeddings`: each worker looks up the ids of its part."""

    def __init__(self, node: Node, first: FileEmbeddings) -> None:
        """`first` has the rows of rank 0's part."""
        self._node, self._first = node, first
        self.groups = first.groups
        starts = np.array(first_shards(node.workers)[:-1], np.uint64)
        self._starts = starts * np.uint64(HASHES_PER_SHARD)

    @property
    def manifest(self) -> RowsManifest:
        return self._first.manifest

    def lookup(
        self, group: str, ids: NDArray[np.uint64]
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        self._first.stored(group)
        columns = self.groups[group].columns
        rows, known = np.zeros((len(ids), columns), np.float32), np.zeros(len(ids), bool)
        for at in range(0, len(ids), IDS_AT_A_TIME):
            part = np.ascontiguousarray(ids[at : at + IDS_AT_A_TIME])
            owners = np.searchsorted(self._starts, hashes_of(group, part), side="right") - 1
            of_first, *of_others = (
                np.flatnonzero(owners == rank) for rank in range(self._node.workers)
            )
            replies = [
                self._node.command(
                    rank, export_commands.LookUpRows(group=group, ids=base64_of(part[places]))
                )
                for rank, places in enumerate(of_others, 1)
            ]
            rows[at + of_first], known[at + of_first] = self._first.lookup(group, part[of_first])
            for rank, (places, reply) in enumerate(zip(of_others, replies, strict=True), 1):
                body, count = reply.result(), len(places)
                if len(body) != count * (1 + 4 * columns):
                    raise Failure(f"worker {rank} sent {len(body):,} bytes for {count:,} rows")
                known[at + places] = np.frombuffer(body, np.uint8, count) != 0
                rows[at + places] = np.frombuffer(body, "<f4", offset=count).reshape(count, columns)
        return rows, known

    def golden(self) -> bytes | None:
        return self._first.golden()

    def close(self) -> None:
        self._first.close()
