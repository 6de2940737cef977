"""The part of an export that a worker writes: the rows of its shards, in files of its own."""

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl.checkpoint.chain import Checkpoint, open_checkpoint
from tnctl.cluster.messages import commands, export_commands
from tnctl.cluster.node import Node
from tnctl.errors import Failure
from tnctl.manifest import Inventory
from tnctl.schema import Conf
from tnctl.serving.rows import format_of
from tnctl.serving.rows.embeddings import FileEmbeddings, chain_of
from tnctl.serving.rows.export import Chain, ExportRequest, WrittenGroups, opened_part, write_groups
from tnctl.serving.rows.export_document import ExportManifest, Threshold
from tnctl.serving.rows.selection import TopRows
from tnctl.tables.plans import shards_of


class ExportPart:
    """What one worker selects, writes and looks up. The methods are called in their order."""

    def __init__(self, node: Node, request: ExportRequest, chain: Chain) -> None:
        """Of the rows of a checkpoint, or with a chain of those that differ from its newest."""
        self._node, self._chain, self._format = node, chain, format_of(request.encoding)
        self._hashes = shards_of(node.rank, node.workers).hashes
        since = chain[-1][1] if chain else None
        number = node.rank if node.workers > 1 else None
        self.selection = request.select(since, number, self._hashes, counted=False)
        self._top: list[TopRows] = []
        self._opened: FileEmbeddings | None = None

    def top_rows(self, top: int | None) -> list[TopRows]:
        """The candidates for the top rows of each group; none without a filter `top`."""
        if top is not None:
            for table in self.selection.tables:
                rows_of_groups = table.top_rows(top)
                self._top += [rows_of_groups[group.number] for group in table.groups]
        return self._top

    def candidates(self, group: int, first: int, rows: int) -> bytes:
        """Some candidates of a group as they are sent. Raises Failure when they are not there."""
        if group >= len(self._top):
            raise Failure("top rows were requested of a group that is not there")
        shows, hashes = (array[first : first + rows] for array in self._top[group].candidates())
        return shows.astype("<f8").tobytes() + hashes.astype("<u8").tobytes()

    def count(self, thresholds: Sequence[Threshold | None]) -> list[tuple[int, int]]:
        """The rows and removed keys of each group, whose thresholds are given with `top`."""
        self._top = []
        following = iter(thresholds)
        for table in self.selection.tables:
            if thresholds:
                table.limit({group.number: next(following) for group in table.groups})
            table.count_rows()
        return [(group.rows, group.removed) for group in self.selection.groups]

    def write(self, folder: str, to: str) -> WrittenGroups:
        """Write the files into a folder that becomes `to`."""
        name = to if self._node.workers == 1 else f"{to} (part {self._node.rank})"
        return write_groups(
            self.selection, self._format, Inventory(folder, to=name), self._node.end_with_others
        )

    def open(self, folder: str, content: ExportManifest) -> FileEmbeddings:
        """The rows with the hashes of this part, as they were written over the chain."""
        self._opened = opened_part(self._chain, folder, content, self._hashes)
        return self._opened

    def look_up(self, group: str, ids: NDArray[np.uint64]) -> bytes:
        """Whether ids of this part are known, and their rows, as they are sent."""
        if self._opened is None:
            raise Failure("rows were looked up before they were opened")
        rows, known = self._opened.lookup(group, ids)
        return known.astype(np.uint8).tobytes() + rows.astype("<f4").tobytes()

    def close(self) -> None:
        """Close what was opened."""
        if self._opened is not None:
            self._opened.close()


class ExportFollower:
    """A worker of another rank than 0, while an export is written."""

    def __init__(self, conf: Conf, node: Node) -> None:
        self._conf, self._node = conf, node
        self._part: ExportPart | None = None

    def do(self, command: Any) -> Any:
        """Run a command; the document or bytes of its reply."""
        match command:
            case export_commands.SelectRows():
                return self._select(command)
            case export_commands.SendTopRows(group=group, first=first, rows=rows):
                return self._selected.candidates(group, first, rows)
            case export_commands.CountSelected(thresholds=thresholds):
                counts = self._selected.count(thresholds)
                return export_commands.SelectedCounts(groups=tuple(counts))
            case export_commands.WriteSelected(folder=folder):
                written = self._selected.write(folder, folder)
                return export_commands.SelectedWritten(groups=written.groups, files=written.files)
            case export_commands.OpenWritten(folder=folder, content=content):
                self._selected.open(folder, content)
            case export_commands.LookUpRows(group=group, ids=ids):
                return self._selected.look_up(group, parsed_ids(ids))
        return commands.Done()

    @property
    def _selected(self) -> ExportPart:
        if self._part is None:
            raise Failure("a command of an export came before the rows were selected")
        return self._part

    def _select(self, command: export_commands.SelectRows) -> export_commands.RowsSelected:
        checkpoint = _opened(command.checkpoint)
        chain: Chain = []
        if command.since is not None:
            chain = chain_of(command.since.folder)
            _check_same(command.since, chain[-1][1].sha256)
        request = ExportRequest(
            checkpoint=checkpoint,
            conf=self._conf,
            encoding=command.encoding,
            precision=command.precision,
            filter=command.filter,
            golden=0,
        )
        self._part = ExportPart(self._node, request, chain)
        top = self._part.top_rows(command.filter.top)
        counts = tuple((rows.rows, len(rows.candidates()[0])) for rows in top)
        return export_commands.RowsSelected(top=counts)


def _opened(manifested: export_commands.Manifested) -> Checkpoint:
    """The checkpoint that rank 0 has read. Raises Failure when it is another one."""
    checkpoint = open_checkpoint(manifested.folder)
    _check_same(manifested, checkpoint.manifest.sha256)
    return checkpoint


def _check_same(manifested: export_commands.Manifested, sha256: str) -> None:
    if sha256 != manifested.sha256:
        raise Failure(
            f"{manifested.folder} is not what worker 0 has read there. Name a folder of a storage "
            "that all workers share, or run the command again"
        )


def base64_of(ids: NDArray[np.uint64]) -> str:
    """Ids as a command has them."""
    return base64.b64encode(ids.astype("<u8").tobytes()).decode()


def parsed_ids(text: str) -> NDArray[np.uint64]:
    """The inverse. Raises Failure."""
    try:
        return np.frombuffer(base64.b64decode(text, validate=True), "<u8")
    except ValueError as error:
        raise Failure(f"a message of another worker is wrong: {error}") from error
