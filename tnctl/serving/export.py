"""`tnctl export-embeddings`: the sparse dictionary of a checkpoint, streamed to any storage."""

import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from typing import cast

import numpy as np
from numpy.typing import NDArray

from tnctl import files, outputs
from tnctl.checkpoint.chain import Checkpoint, split
from tnctl.data.read_ahead import MOST_THREADS
from tnctl.errors import Failure, UserError
from tnctl.manifest import Inventory
from tnctl.masking import masked
from tnctl.ownership import EMBEDDINGS
from tnctl.progress import Display, say
from tnctl.schema import Conf, Slot
from tnctl.serving import embeddings
from tnctl.serving.artefact_document import CheckpointReference, RowsGolden
from tnctl.serving.export_document import (
    MOST_DELTAS,
    AnyRows,
    Base,
    Encoding,
    ExportManifest,
    FileGroup,
    Filter,
    GroupFields,
    GroupRows,
    Pooling,
    Precision,
    PrecisionError,
    RedisManifest,
    RowsManifest,
    SlotEntry,
)
from tnctl.serving.precision import RowShape, decode, encode, parted
from tnctl.serving.selection import EVERYTHING, Group, Part, Selection, select
from tnctl.serving.verify import golden_checks
from tnctl.serving.writers import open_writer

GOLDEN_ROWS = 200
PARTS_AHEAD = 32
ROUNDING = 2.0**-13  # what float32 adds to a bound on quotients up to 127


def export(
    checkpoint: Checkpoint,
    conf: Conf,
    to: str,
    *,
    encoding: Encoding = "parquet",
    precision: Precision = "float32",
    filter: Filter = EVERYTHING,
    since: str | None = None,
    golden: int = GOLDEN_ROWS,
) -> ExportManifest:
    """Write the rows of a checkpoint, or what an export `since` has not, to the folder or URL `to`.

    The files of each share group, the golden rows, and last the manifest, which is returned.
    The table is never whole in memory. Raises UserError for what does not go together, Failure
    when the rows are not the trainer's; without its manifest the folder does not count.
    """
    if encoding == "text" and precision != "float32":
        raise UserError(
            f"format=text writes floats as they are, so there is no precision={precision} of it. "
            "Take format=parquet or dictionary"
        )
    chain = [] if since is None else embeddings.chain_of(since)
    if chain:
        check_since(chain, encoding)
    reads = [link.folder for link in checkpoint.chain()] + [folder for folder, _ in chain]
    with outputs.output_folder(to, EMBEDDINGS, reads) as output:
        selection = select(checkpoint, conf, filter, precision, chain[-1][1] if chain else None)
        inventory = output.inventory()
        content = described(
            ExportManifest,
            *(checkpoint, conf, filter, precision, encoding),
            groups=write(selection, encoding, inventory),
            base=based_on(to, *chain[-1]) if chain else None,
            number=chain[-1][1].number + 1 if chain else 0,
        )
        with ExitStack() as stack:
            base = (
                stack.enter_context(closing(embeddings.open_embeddings(since))) if since else None
            )
            content = replace(content, files=inventory.files)
            opened = embeddings.of_content(output.folder, content, base)
            stack.enter_context(closing(opened))
            rows_golden = golden_checks.check_embeddings(
                checkpoint, conf, opened, inventory, golden, content.exact
            )
        content = inventory.complete(replace(content, golden=rows_golden))
    report(content)
    return content


def export_to_redis(
    checkpoint: Checkpoint,
    conf: Conf,
    url: str,
    *,
    prefix: str,
    grace: int,
    precision: Precision = "float32",
    filter: Filter = EVERYTHING,
    since: str | None = None,
    golden: int = GOLDEN_ROWS,
) -> RedisManifest:
    """The same to a Redis server. `since` is current, its URL, or the export that was written."""
    from tnctl.serving import redis_export, redis_store

    base: RowsManifest | None = None
    if since in ("current", url):
        base = redis_store.current(url, prefix)
    elif since is not None and since.startswith(embeddings.REDIS):
        raise UserError("since= names another Redis than to=. Give since=current")
    elif since is not None:
        base = embeddings.chain_of(since)[-1][1]
    selection = select(checkpoint, conf, filter, precision, base)
    errors = {group.name: Error(group.shape) for group in selection.groups}
    if precision != "float32":
        for part in selection.parts():
            errors[part.group.name].add(part, encode(part.rows, part.group.shape))
    content = described(
        RowsManifest,
        *(checkpoint, conf, filter, precision, "redis"),
        groups=tuple(
            # Keys that a delta removed are gone from the rows that are there.
            GroupRows(**group_fields(group) | {"removed": 0}, error=errors[group.name].document())
            for group in selection.groups
        ),
    )

    def check(opened: embeddings.Embeddings, kept: golden_checks.Writes) -> RowsGolden | None:
        return golden_checks.check_embeddings(checkpoint, conf, opened, kept, golden, content.exact)

    whole = redis_export.write(
        selection, content, url, prefix=prefix, grace=grace, since=base, check=check
    )
    report(whole)
    return whole


def check_since(chain: Sequence[tuple[str, ExportManifest]], encoding: str) -> None:
    """Raise UserError when no delta of the chain can be written in an encoding."""
    folder, newest = chain[-1]
    if newest.encoding != encoding:
        raise UserError(
            f"since={folder} is {newest.encoding}, not {encoding}. Give format="
            f"{newest.encoding}, or leave out since="
        )
    if len(chain) > MOST_DELTAS:
        raise UserError(
            f"since={folder} stands on {len(chain) - 1} deltas, and readers stack no more than "
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
    ours, theirs = files.local_path(to), files.local_path(folder)
    if ours is not None and theirs is not None:
        if ours.resolve().parent == theirs.resolve().parent:
            return theirs.resolve().name
        return str(theirs.resolve())
    if split(to)[0] == split(folder)[0]:
        return split(folder)[1]
    return folder if theirs is None else str(theirs.resolve())


def described(
    kind: type[AnyRows],
    checkpoint: Checkpoint,
    conf: Conf,
    filter: Filter,
    precision: Precision,
    encoding: str,
    *,
    groups: tuple[GroupRows, ...],
    base: Base | None = None,
    number: int = 0,
) -> AnyRows:
    """The manifest of an export whose rows are written, before its golden rows are."""
    names = {entry.group for entry in groups}
    with_rows = [slot for table in checkpoint.manifest.tables for slot in table.slots]
    return kind(
        format=kind.FORMAT,
        version=kind.VERSION,
        checkpoint=CheckpointReference.of(checkpoint),
        kind="full" if base is None else "delta",
        base=base,
        number=number,
        encoding=encoding,
        precision=precision,
        filter=filter,
        clock=checkpoint.clock,
        sessions=checkpoint.sessions,
        groups=groups,
        slots=tuple(
            SlotEntry(slot=slot, group=settings.group or slot, pooling=pooling_of(settings))
            for slot, settings in conf.slots.items()
            if slot in with_rows and (settings.group or slot) in names
        ),
        golden=None,
    )


def pooling_of(slot: Slot) -> Pooling:
    """The pooling of a slot, which its conf has checked."""
    return cast(Pooling, slot.pooling)


def group_fields(group: Group) -> GroupFields:
    """What the manifest of every encoding says of a share group, but for its error."""
    return {
        "group": group.name,
        "table": group.table,
        "rows": group.rows,
        "removed": group.removed,
        "linear": group.shape.linear,
        "width": group.shape.width,
        "cvm": group.shape.cvm,
        "precision": group.shape.precision,
        "salt": str(group.salt),
        "threshold": group.threshold,
    }


def write(selection: Selection, encoding: Encoding, inventory: Inventory) -> tuple[FileGroup, ...]:
    """Write the files of all groups, table by table; the groups' entries."""
    complete: list[FileGroup] = []
    done = 0
    with Display("export", selection.exported) as display:
        for table in selection.tables:
            with ExitStack() as stack:
                writers = [
                    Writing(stack, inventory, encoding, group, selection.kind == "delta")
                    for group in table.groups
                ]
                places = {group.name: place for place, group in enumerate(table.groups)}
                lanes = stack.enter_context(Lanes(len(writers)))
                for part in table.parts():
                    place = places[part.group.name]
                    lanes.submit(place, partial(writers[place].add, part))
                    done += len(part.ids)
                    display.update(done, f"{done:,} rows")
                for place, writer in enumerate(writers):
                    lanes.submit(place, writer.finish)
                lanes.wait()
                complete += [writer.entry for writer in writers]
        rows = sum(group.rows for group in selection.groups)
        gone = f" and {done - rows:,} removed keys" if selection.kind == "delta" else ""
        display.update(done, f"{rows:,} rows{gone} to {inventory.to}")
        display.finish()
    # The manifest does not tell which file was done first.
    inventory.files = dict(sorted(inventory.files.items()))
    return tuple(complete)


class Lanes:
    """Threads that write groups side by side, what is of one group in its order.

    What a task raises is raised by a later `submit`, or by `wait`.
    """

    def __init__(self, groups: int) -> None:
        count = max(1, min(len(os.sched_getaffinity(0)), MOST_THREADS, groups))
        self._pools = [ThreadPoolExecutor(1, "tnctl-export") for _ in range(count)]
        self._begun: deque[Future[None]] = deque()

    def submit(self, place: int, task: Callable[[], None]) -> None:
        """Have a task done after those of the same group; waits while too many are waiting."""
        while len(self._begun) >= PARTS_AHEAD:
            self._begun.popleft().result()
        self._begun.append(self._pools[place % len(self._pools)].submit(task))

    def wait(self) -> None:
        """Return when all is done."""
        while self._begun:
            self._begun.popleft().result()

    def __enter__(self) -> "Lanes":
        return self

    def __exit__(self, *_: object) -> None:
        for pool in self._pools:
            pool.shutdown(cancel_futures=True)


class Writing:
    """A group on its way to its files; `stack` abandons them when something fails."""

    def __init__(
        self, stack: ExitStack, inventory: Inventory, encoding: Encoding, group: Group, delta: bool
    ) -> None:
        self.group = group
        self._files = stack.enter_context(ExitStack())
        self._writer = open_writer(encoding, self._files, inventory, group, delta)
        self._error = Error(group.shape)
        self._rows = 0
        self.entry: FileGroup  # what the manifest says, at the end

    def add(self, part: Part) -> None:
        """Write rows, in the group's precision."""
        payload = encode(part.rows, part.group.shape)
        self._error.add(part, payload)
        self._writer.add(part.ids, part.hashes, payload, part.removed)
        self._rows += len(part.ids)

    def finish(self) -> None:
        """Write what is left, and bring the files to the disk.

        Raises Failure unless all that was announced came.
        """
        if self._rows != self.group.rows + self.group.removed:
            raise Failure(
                f"group {self.group.name} has {self._rows:,} rows to export, and "
                f"{self.group.rows + self.group.removed:,} were expected. Take another checkpoint"
            )
        self.entry = FileGroup(
            **group_fields(self.group), error=self._error.document(), **self._writer.finish()
        )
        self._files.close()


class Error:
    """How far the stored embeddings of a group are from the trained ones.

    `bound` is what no weight can exceed: of int8 half a step of the largest scale, of float16 half
    a unit in the last place of the largest weight.
    """

    def __init__(self, shape: RowShape) -> None:
        self._shape = shape
        self._squares, self._count, self._most, self._largest = 0.0, 0, 0.0, 0.0

    def add(self, part: Part, payload: NDArray[np.uint8]) -> None:
        """The rows of a part, and how they are stored."""
        if self._shape.precision == "float32" or not self._shape.width:
            return
        kept = slice(None) if part.removed is None else ~part.removed
        trained = parted(part.rows[kept], self._shape)[1].astype(np.float64)
        if not trained.size:
            return
        apart = np.abs(parted(decode(payload[kept], self._shape), self._shape)[1] - trained)
        self._squares += float((apart * apart).sum())
        self._count += apart.size
        self._most = max(self._most, float(apart.max()))
        self._largest = max(self._largest, float(np.abs(trained).max()))

    def document(self) -> PrecisionError | None:
        """The largest and the root mean square error; None of rows that are exact."""
        if self._shape.precision == "float32" or not self._shape.width:
            return None
        if self._shape.precision == "int8":
            bound = self._largest / 127 / 2 * (1 + ROUNDING)
        else:
            bound = max(float(np.spacing(np.float16(self._largest))) / 2, 2.0**-25)
        rms = (self._squares / self._count) ** 0.5 if self._count else 0.0
        return PrecisionError(max=self._most, rms=rms, bound=bound)


def report(content: RowsManifest) -> None:
    """Say what lower precision cost."""
    lossy = [(entry, entry.error) for entry in content.groups if entry.error is not None]
    weights = sum(entry.rows * entry.width for entry, _ in lossy)
    if weights:
        worst, error = max(lossy, key=lambda pair: pair[1].max)
        squares = sum(one.rms**2 * entry.rows * entry.width for entry, one in lossy)
        say(
            f"{content.precision}: weights of embeddings are off by at most "
            f"{error.max:.2g} (group {worst.group}), root mean square "
            f"{(squares / weights) ** 0.5:.2g}"
        )
