"""The part of an export that a worker writes: the rows of its shards, in files of its own."""

import numpy as np
from numpy.typing import NDArray

from tnctl.checkpoint.chain import open_checkpoint
from tnctl.cluster.messages.commands import command
from tnctl.cluster.workers.row_service import RowService
from tnctl.documents import Count, Name, Sha256, Text
from tnctl.errors import Failure, refuse_if
from tnctl.manifest import Inventory
from tnctl.serving.rows import format_of
from tnctl.serving.rows.embeddings import FileEmbeddings, chain_of
from tnctl.serving.rows.export import Chain, ExportRequest, WrittenGroups, opened_part, write_groups
from tnctl.serving.rows.export_document import ExportManifest, Filter, Threshold
from tnctl.serving.rows.precision import Precision
from tnctl.serving.rows.selection import Selection
from tnctl.tables.plans import shards_of

Manifest = tuple[Text, Sha256]  # a folder, and the SHA-256 of its manifest


class ExportWorker(RowService):
    """A worker while an export is written. The methods are called in their order."""

    selection: Selection
    """the rows that were selected last"""
    opened: FileEmbeddings
    """what `open_written` has opened"""

    def select(self, request: ExportRequest, chain: Chain) -> None:
        """Select the rows of a checkpoint, or with a chain those that differ from its newest."""
        node = self.node
        self._chain, self._format = chain, format_of(request.encoding)
        self._hashes = shards_of(node.rank, node.workers).hashes
        self._number = node.rank if node.workers > 1 else None
        since = chain[-1][1] if chain else None
        self.selection = request.select(since, self._number, self._hashes, counted=False)

    @command
    def select_rows(
        self,
        checkpoint: Manifest,
        since: Manifest | None,
        encoding: Text,
        precision: Precision,
        filter: Filter,
    ) -> None:
        """Do what `select` of rank 0 did."""
        opened = open_checkpoint(checkpoint[0])
        _check_same(checkpoint, opened.manifest.sha256)
        chain = [] if since is None else chain_of(since[0])
        if since is not None:
            _check_same(since, chain[-1][1].sha256)
        request = ExportRequest(
            checkpoint=opened,
            conf=self.conf,
            encoding=encoding,
            precision=precision,
            filter=filter,
            golden=0,
        )
        self.select(request, chain)

    @command
    def find_top_rows(self, top: Count) -> tuple[tuple[Count, Count], ...]:
        """Of each group its rows, and how many of them may be the `top` ones of all workers."""
        self._top = []
        for table in self.selection.tables:
            rows_of_groups = table.top_rows(top)
            self._top += [rows_of_groups[group.number] for group in table.groups]
        return tuple((rows.rows, len(rows.candidates()[0])) for rows in self._top)

    @command
    def read_top_rows(
        self, group: Count, first: Count, rows: Count
    ) -> tuple[NDArray[np.float64], NDArray[np.uint64]]:
        """Some of these candidates of a group, by its number: their shows, and their hashes."""
        shows, hashes = self._top[group].candidates()
        return shows[first : first + rows], hashes[first : first + rows]

    @command
    def count_selected(
        self, thresholds: tuple[Threshold | None, ...]
    ) -> tuple[tuple[Count, Count], ...]:
        """The rows and removed keys of each group.

        With a filter `top`, `thresholds` has the last of the top rows of each group.
        """
        self._top = []
        following = iter(thresholds)
        for table in self.selection.tables:
            if thresholds:
                table.limit({group.number: next(following) for group in table.groups})
            table.count_rows()
        return tuple((group.rows, group.removed) for group in self.selection.groups)

    @command
    def write_selected(self, folder: Text, to: Text) -> WrittenGroups:
        """Write the files into a folder that becomes `to`."""
        name = to if self._number is None else f"{to} (part {self._number})"
        inventory = Inventory(folder, to=name)
        return write_groups(self.selection, self._format, inventory, self.node.end_with_others)

    @command
    def open_written(self, folder: Text, content: ExportManifest) -> None:
        """Open the rows with the hashes of this part, as they were written over the chain."""
        self.opened = opened_part(self._chain, folder, content, self._hashes)

    @command
    def look_up_rows(
        self, group: Name, ids: NDArray[np.uint64]
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """The rows of ids of this part, [n, columns], and whether they are known, [n]."""
        return self.opened.lookup(group, ids)


def _check_same(manifest: Manifest, sha256: str) -> None:
    refuse_if(
        sha256 != manifest[1],
        f"{manifest[0]} is not what worker 0 has read there. Name a folder of a storage that all "
        "workers share, or run the command again",
        Failure,
    )
