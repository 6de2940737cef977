"""An export that all workers write on command of rank 0: each the rows of its shards."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tnctl import files
from tnctl.cluster.joining.membership import Membership
from tnctl.cluster.rank_0.cluster import Cluster
from tnctl.cluster.workers.worker import Worker
from tnctl.errors import Failure, refuse_if
from tnctl.outputs import Output
from tnctl.progress import say
from tnctl.schema import Conf
from tnctl.serving.rows.embeddings import Embeddings
from tnctl.serving.rows.export import Chain, ExportRequest, Writers, WrittenGroups
from tnctl.serving.rows.export_document import (
    ExportManifest,
    FileGroup,
    FilePart,
    RowsManifest,
    Threshold,
)
from tnctl.serving.rows.precision import error_of_rows
from tnctl.serving.rows.row_formats import FileFormat, hashes_of
from tnctl.serving.rows.selection import TopRows
from tnctl.tables.plans import HASHES_PER_SHARD, shards_of

TOP_ROWS_AT_A_TIME = 1 << 20  # 16 MiB
IDS_AT_A_TIME = 1 << 12  # a message has at most 1 GiB, and a row up to 65,536 floats


class ClusterWriters(Writers):
    """All workers, each of which writes the rows with some hashes. Rank 0 has it."""

    def __init__(self, cluster_of: Callable[[Conf], Cluster]) -> None:
        """`cluster_of` makes the cluster of a conf."""
        self._cluster_of = cluster_of

    def select(self, request: ExportRequest, chain: Chain) -> None:
        self._cluster = cluster = self._cluster_of(request.conf)
        # First here: what cannot be is reported as by one process.
        cluster.worker.select(request, chain)
        checkpoint, top = request.checkpoint, request.filter.top
        cluster.each(
            cluster.others,
            Worker.select_rows,
            (checkpoint.folder, checkpoint.manifest.sha256),
            (chain[-1][0], chain[-1][1].sha256) if chain else None,
            request.encoding,
            request.precision,
            request.filter,
        )
        with cluster.node.named():
            thresholds = () if top is None else self._thresholds(top)
            counts = cluster.each(cluster.workers, Worker.count_selected, thresholds)
        if not chain and not request.filter.counts:
            self._check_counts(request, counts)

    def write(self, _: FileFormat, output: Output) -> WrittenGroups:
        cluster = self._cluster
        are_several = len(cluster.workers) > 1
        output.is_kept = are_several
        with cluster.node.named():
            parts = cluster.each(cluster.workers, Worker.write_selected, output.folder, output.to)
        output.is_kept = False
        check_seen(output, parts)
        if not are_several:
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
        with self._cluster.node.named():
            self._cluster.each(self._cluster.workers, Worker.open_written, folder, content)
        return ClusterEmbeddings(self._cluster)

    def _thresholds(self, top: int) -> tuple[Threshold | None, ...]:
        """The last of the top rows of each group."""
        cluster = self._cluster
        by_worker = cluster.each(cluster.workers, Worker.find_top_rows, top)
        thresholds = []
        for number, of_group in enumerate(zip(*by_worker, strict=True)):
            merged = TopRows(top)
            # In the order of the ranks, which is that of the hashes.
            for rank, (rows, candidates) in enumerate(of_group):
                parts = [
                    cluster.call(rank, Worker.read_top_rows, number, at, TOP_ROWS_AT_A_TIME)
                    for at in range(0, candidates, TOP_ROWS_AT_A_TIME)
                ]
                if parts:
                    shows, hashes = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
                    merged.add(shows, hashes, rows)
            thresholds.append(merged.threshold())
        return tuple(thresholds)

    def _check_counts(
        self, request: ExportRequest, counts: Sequence[Sequence[tuple[int, int]]]
    ) -> None:
        """Raise Failure unless the workers together have as many rows as the checkpoint.

        `counts` are rows and removed keys, by worker and group.
        """
        expected = {
            group.name: group.rows
            for table in request.checkpoint.manifest.tables
            for group in table.groups
        }
        for place, group in enumerate(self._cluster.worker.selection.groups):
            rows = sum(of_worker[place][0] for of_worker in counts)
            if rows != expected[group.name]:
                raise Failure(
                    f"group {group.name} has {rows:,} rows to export, and "
                    f"{expected[group.name]:,} were expected. Take another checkpoint"
                )

    def _joined(self, entries: tuple[FileGroup, ...]) -> FileGroup:
        """The entry of a group, from those of its parts."""
        parts = []
        for rank, entry in enumerate(entries):
            first, last = shards_of(rank, len(entries)).hashes
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

    def __init__(self, cluster: Cluster) -> None:
        self._cluster, self._first = cluster, cluster.worker.opened
        self.groups = self._first.groups
        starts = np.array(Membership(len(cluster.workers)).first_shards[:-1], np.uint64)
        self._starts = starts * np.uint64(HASHES_PER_SHARD)

    @property
    def manifest(self) -> RowsManifest:
        return self._first.manifest

    def lookup(
        self, group: str, ids: NDArray[np.uint64]
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        self._first.stored(group)
        ids = np.ascontiguousarray(ids)
        owners = np.searchsorted(self._starts, hashes_of(group, ids), side="right") - 1
        return self._cluster.rows(
            Worker.look_up_rows, owners, IDS_AT_A_TIME, self.groups[group].columns, group, ids
        )

    def golden(self) -> bytes | None:
        return self._first.golden()

    def close(self) -> None:
        self._first.close()
