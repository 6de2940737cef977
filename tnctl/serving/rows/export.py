"""`tnctl export-embeddings`: the rows of a checkpoint, streamed in any format."""

import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from itertools import cycle
from typing import Any, cast

from tnctl import files, outputs
from tnctl.checkpoint.chain import Checkpoint, split
from tnctl.data.read_ahead import MOST_THREADS
from tnctl.errors import Failure, UserError
from tnctl.manifest import FileEntry, Inventory
from tnctl.masking import masked
from tnctl.ownership import EMBEDDINGS
from tnctl.progress import Display, say
from tnctl.schema import Conf
from tnctl.serving import golden_checks
from tnctl.serving.artefact_document import CheckpointReference, GoldenEntry
from tnctl.serving.rows import file_formats, format_of, server_format
from tnctl.serving.rows.embeddings import (
    GRACE,
    PREFIX,
    Embeddings,
    FileEmbeddings,
    chain_of,
    open_embeddings,
)
from tnctl.serving.rows.export_document import (
    ALL_HASHES,
    MOST_DELTAS,
    Base,
    ExportManifest,
    FileGroup,
    Filter,
    GroupRows,
    HashRange,
    Pooling,
    RowsManifest,
    SlotEntry,
)
from tnctl.serving.rows.precision import (
    Precision,
    RoundingError,
    encode,
    error_of_rows,
)
from tnctl.serving.rows.row_formats import FileFormat
from tnctl.serving.rows.selection import (
    EVERYTHING,
    SelectedGroup,
    SelectedRows,
    Selection,
    Wanted,
    count_of,
    select,
)

PARTS_AHEAD = 32
GOLDEN_ROWS = 200
# The folders and manifests of a full export and its deltas, in this order.
Chain = Sequence[tuple[str, ExportManifest]]


@dataclass(frozen=True)
class WrittenGroups:
    """The entries of the manifest of what was written: groups, and files by their names."""

    groups: tuple[FileGroup, ...]
    files: dict[str, FileEntry]


def write_groups(
    selection: Selection,
    format: FileFormat,
    inventory: Inventory,
    between: Callable[[], None] = lambda: None,
) -> WrittenGroups:
    """Write the files of all groups, table by table.

    Threads write groups side by side, each the parts of a group in their order. `between` is called
    after every part of a few MiB, and may raise to end this.
    """
    entries: list[FileGroup] = []
    done, delta = 0, selection.kind == "delta"
    threads = min(len(os.sched_getaffinity(0)), MOST_THREADS)
    with Display("export", count_of(selection.groups)) as display:
        for table in selection.tables:
            with ExitStack() as stack:
                writings = {
                    group.name: GroupWriting(stack, inventory, format, group, delta)
                    for group in table.groups
                }
                # Created after the files are opened: threads end before the files are abandoned.
                lanes = [
                    stack.enter_context(ThreadPoolExecutor(1, "tnctl-export"))
                    for _ in range(min(threads, len(writings)))
                ]
                lane_of = dict(zip(writings, cycle(lanes), strict=False))
                begun: deque[Future[None]] = deque()
                for part in table.parts():
                    if len(begun) >= PARTS_AHEAD:
                        begun.popleft().result()
                    name = part.group.name
                    begun.append(lane_of[name].submit(writings[name].add, part))
                    done += len(part.ids)
                    between()
                    display.update(done, f"{done:,} rows")
                finished = [lane_of[name].submit(writings[name].finish) for name in writings]
                for task in begun:
                    task.result()
                entries += [task.result() for task in finished]
        rows = sum(group.rows for group in selection.groups)
        removed = f" and {done - rows:,} removed keys" if delta else ""
        display.update(done, f"{rows:,} rows{removed} to {inventory.to}")
        display.finish()
    return WrittenGroups(tuple(entries), dict(inventory.files))


class GroupWriting:
    """A group whose files are being written; `stack` abandons them when something fails."""

    def __init__(
        self,
        stack: ExitStack,
        inventory: Inventory,
        format: FileFormat,
        group: SelectedGroup,
        delta: bool,
    ) -> None:
        self._group, self._format = group, format
        self._files = stack.enter_context(ExitStack())
        self._writer = format.open_writer(self._files, inventory, group, delta)
        self._error = RoundingError(group.shape)
        self._rows = 0

    def add(self, part: SelectedRows) -> None:
        """Write rows, in the group's precision."""
        payload = encode(part.rows, part.group.shape)
        self._error.add(part.rows, part.removed, payload)
        self._writer.add(part.ids, part.hashes, payload, part.removed)
        self._rows += len(part.ids)

    def finish(self) -> FileGroup:
        """Write what is left, and bring the files to the disk; the group's entry of the manifest.

        Raises Failure unless there were as many rows as expected.
        """
        group, expected = self._group, count_of([self._group])
        if self._rows != expected:
            raise Failure(
                f"group {group.name} has {self._rows:,} rows to export, and {expected:,} were "
                "expected. Take another checkpoint"
            )
        self._writer.finish()
        self._files.close()
        names = self._format.names(group.stem, group.removed)
        return FileGroup(**group_fields(group), error=self._error.document(), **names)


def group_fields(group: SelectedGroup) -> dict[str, Any]:
    """What the document of every format has of a share group, except its error."""
    return {
        "group": group.name,
        "table": group.table,
        "rows": group.rows,
        "removed": group.removed,
        "salt": str(group.salt),
        "threshold": group.threshold,
        **asdict(group.shape),
    }


@dataclass(frozen=True, kw_only=True)
class ExportRequest:
    """What is exported: the arguments of `export` that all formats share."""

    checkpoint: Checkpoint
    conf: Conf
    encoding: str
    precision: Precision
    filter: Filter
    golden: int

    def select(
        self,
        since: RowsManifest | None,
        part: int | None = None,
        hashes: HashRange = ALL_HASHES,
        counted: bool = True,
    ) -> Selection:
        """The rows, or those that differ from an earlier export; of one part or all."""
        wanted = Wanted(self.filter, self.precision, since, part, hashes)
        return select(self.checkpoint, self.conf.slots, wanted, counted)

    def check(self, opened: Embeddings, inventory: golden_checks.Writes) -> GoldenEntry | None:
        """Check the exported rows against the checkpoint's golden rows, and write those."""
        exact = self.precision == "float32" and not self.filter.given
        return golden_checks.check_embeddings(
            self.checkpoint, self.conf, opened, inventory, self.golden, exact
        )


class Writers:
    """The processes that write an export to files: here one, which writes all rows.

    The methods are called in this order, once.
    """

    def select(self, request: ExportRequest, chain: Chain) -> None:
        """Select and count the rows, or those that differ from the newest export of a chain.

        Raises UserError for a filter that is impossible and for a chain of another training.
        """
        self._selection = request.select(chain[-1][1] if chain else None)
        self._chain = chain

    def write(self, format: FileFormat, output: outputs.Output) -> WrittenGroups:
        """Write the files of all groups, table by table."""
        return write_groups(self._selection, format, output.inventory())

    def opened(self, folder: str, content: ExportManifest) -> Embeddings:
        """The rows that were written to a folder, over those of the chain.

        Raises Failure for a damaged file of the chain.
        """
        return opened_part(self._chain, folder, content)


def opened_part(
    chain: Chain, folder: str, content: ExportManifest, hashes: HashRange = ALL_HASHES
) -> FileEmbeddings:
    """The rows with some hashes that were written to a folder, over those of the chain.

    Raises Failure for a damaged file of the chain that can have them.
    """
    if chain:  # it is noticed before the delta counts
        open_embeddings(chain[-1][0], hashes=hashes).close()
    return FileEmbeddings([*chain, (folder, content)], hashes)


def export(
    checkpoint: Checkpoint,
    conf: Conf,
    to: str,
    *,
    encoding: str | None = None,
    precision: Precision = "float32",
    filter: Filter = EVERYTHING,
    since: str | None = None,
    golden: int = GOLDEN_ROWS,
    prefix: str = PREFIX,
    grace: int = GRACE,
    writers: Writers | None = None,
) -> RowsManifest:
    """Write the rows of a checkpoint, or what differs from an export `since`, to `to`.

    `to` is a folder or URL, and `encoding` the name of a file format, or `to` is the URL of a
    server, which alone has `prefix`, `grace` (seconds) and `since="current"`. The rows come first,
    then golden rows, and last the manifest, which is returned: without it nothing counts. The table
    is never whole in memory. `writers` are the processes that write files, by default this one
    alone. Raises UserError for arguments that do not go together, Failure when the rows are not the
    trainer's.
    """
    server = server_format(to)
    request = ExportRequest(
        checkpoint=checkpoint,
        conf=conf,
        encoding=server or encoding or file_formats()[0],
        precision=precision,
        filter=filter,
        golden=golden,
    )
    if server:
        content = to_server(request, to, since, prefix, grace)
    else:
        content = to_folder(request, to, since, writers or Writers())
    report_errors(content)
    return content


def to_folder(request: ExportRequest, to: str, since: str | None, writers: Writers) -> RowsManifest:
    """Write files, whose manifest is returned."""
    checkpoint = request.checkpoint
    format: FileFormat = format_of(request.encoding)
    if request.precision not in format.precisions:
        others = [
            name for name in file_formats() if request.precision in format_of(name).precisions
        ]
        raise UserError(
            f"format={format.name} writes floats as they are, so there is no precision="
            f"{request.precision} of it. Take format={' or '.join(others)}"
        )
    chain = [] if since is None else chain_of(since)
    if chain:
        check_chain(chain, format.name)
    reads = [link.folder for link in checkpoint.chain()] + [folder for folder, _ in chain]
    with outputs.output_folder(to, EMBEDDINGS, reads) as output:
        writers.select(request, chain)
        inventory, written = output.inventory(), writers.write(format, output)
        # The manifest does not depend on which file was finished first.
        inventory.files = dict(sorted(written.files.items()))
        fields = vars(described(request, written.groups)) | {
            "version": ExportManifest.version_of(written.groups),
            "files": inventory.files,
        }
        if chain:
            fields |= {
                "kind": "delta",
                "base": based_on(to, *chain[-1]),
                "number": chain[-1][1].number + 1,
            }
        content = ExportManifest(**fields)
        with closing(writers.opened(output.folder, content)) as opened:
            golden = request.check(opened, inventory)
        return inventory.complete(replace(content, golden=golden))


def to_server(
    request: ExportRequest, url: str, since: str | None, prefix: str, grace: int
) -> RowsManifest:
    """Write to a server, whose manifest is returned."""
    format, base = format_of(request.encoding), None
    if since in ("current", url):
        base = format.current(url, prefix)
    elif since is not None and server_format(since):
        raise UserError("since= names another Redis than to=. Give since=current")
    elif since is not None:
        base = chain_of(since)[-1][1]
    selection = request.select(base)
    # A delta is applied in place: no removed keys are in the rows then.
    groups = [GroupRows(**group_fields(group) | {"removed": 0}) for group in selection.groups]
    content = described(request, groups)
    written: RowsManifest = format.write(
        selection, content, url, prefix=prefix, grace=grace, since=base, check=request.check
    )
    return written


def check_chain(chain: Sequence[tuple[str, ExportManifest]], encoding: str) -> None:
    """Raise UserError when no delta of the chain can be written in a format."""
    folder, newest = chain[-1]
    if newest.encoding != encoding:
        raise UserError(
            f"since={folder} is {newest.encoding}, not {encoding}. Give format="
            f"{newest.encoding}, or leave out since="
        )
    if len(chain) > MOST_DELTAS:
        raise UserError(
            f"since={folder} has {len(chain) - 1} deltas, and readers take no more than "
            f"{MOST_DELTAS}. Fold them first (tnctl fold embeddings={folder} to=URL), and give the "
            "folder that this makes"
        )


def based_on(to: str, folder: str, manifest: ExportManifest) -> Base:
    """The export in a folder, as a delta in the folder `to` names its base."""
    try:
        return Base(folder=masked(named_from(to, folder)), sha256=manifest.sha256)
    except ValueError as error:
        raise UserError(f"since={folder} cannot be the base of a delta: {error}") from error


def named_from(to: str, folder: str) -> str:
    """How a delta names its base: by its name beside it, else by its whole path or URL."""
    target, base = (
        url if (path := files.local_path(url)) is None else str(path.resolve())
        for url in (to, folder)
    )
    parent, name = split(base)
    return name if split(target)[0] == parent else base


def described(request: ExportRequest, groups: Sequence[GroupRows]) -> RowsManifest:
    """The manifest of a full export whose rows are written, without its golden rows."""
    checkpoint = request.checkpoint
    names = {entry.group for entry in groups}
    with_rows = [slot for table in checkpoint.manifest.tables for slot in table.slots]
    return RowsManifest(
        format=RowsManifest.FORMAT,
        version=RowsManifest.VERSION,
        checkpoint=CheckpointReference.of(checkpoint),
        kind="full",
        base=None,
        number=0,
        encoding=request.encoding,
        precision=request.precision,
        filter=request.filter,
        clock=checkpoint.clock,
        sessions=checkpoint.sessions,
        groups=tuple(groups),
        slots=tuple(
            # The conf has checked the pooling of a slot.
            SlotEntry(slot=slot, group=group, pooling=cast(Pooling, settings.pooling))
            for slot, settings in request.conf.slots.items()
            if slot in with_rows and (group := settings.group or slot) in names
        ),
        golden=None,
    )


def report_errors(content: RowsManifest) -> None:
    """Report how much a lower precision changes the weights."""
    errors = {entry.group: entry.error for entry in content.groups if entry.error and entry.rows}
    weights = [(entry.error, entry.rows * entry.width) for entry in content.groups]
    if errors and (error := error_of_rows(weights)) is not None:
        worst = max(errors, key=lambda group: errors[group].max)
        say(
            f"{content.precision}: weights of embeddings are off by at most {error.max:.2g} "
            f"(group {worst}), root mean square {error.rms:.2g}"
        )
