"""The files of all groups of an export, written side by side by threads."""

import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial

from tnctl.data.ahead import MOST_THREADS
from tnctl.errors import Failure
from tnctl.manifest import Inventory
from tnctl.progress import Display
from tnctl.serving.rows.export_document import GroupFields
from tnctl.serving.rows.file_format import FileFormat, FileGroup
from tnctl.serving.rows.precision import encode
from tnctl.serving.rows.rounding import RoundingError
from tnctl.serving.rows.selection import Group, Part, Selection, count_of

PARTS_AHEAD = 32


def write_groups(
    selection: Selection, format: FileFormat, inventory: Inventory
) -> tuple[FileGroup, ...]:
    """Write the files of all groups, table by table; returns their entries of the manifest."""
    entries: list[FileGroup] = []
    done, delta = 0, selection.kind == "delta"
    with Display("export", count_of(selection.groups)) as display:
        for table in selection.tables:
            with ExitStack() as stack:
                writings = {
                    group.name: GroupWriting(stack, inventory, format, group, delta)
                    for group in table.groups
                }
                lanes = stack.enter_context(Lanes(list(writings)))
                for part in table.parts():
                    name = part.group.name
                    lanes.submit(name, partial(writings[name].add, part))
                    done += len(part.ids)
                    display.update(done, f"{done:,} rows")
                for name, writing in writings.items():
                    lanes.submit(name, writing.finish)
                lanes.wait()
                entries += [writing.entry for writing in writings.values()]
        rows = sum(group.rows for group in selection.groups)
        removed = f" and {done - rows:,} removed keys" if delta else ""
        display.update(done, f"{rows:,} rows{removed} to {inventory.to}")
        display.finish()
    # The manifest does not depend on which file was finished first.
    inventory.files = dict(sorted(inventory.files.items()))
    return tuple(entries)


class Lanes:
    """Threads that write groups side by side, and the parts of one group in their order.

    What a task raises is raised by a later `submit`, or by `wait`.
    """

    def __init__(self, groups: list[str]) -> None:
        count = max(1, min(len(os.sched_getaffinity(0)), MOST_THREADS, len(groups)))
        self._pools = [ThreadPoolExecutor(1, "tnctl-export") for _ in range(count)]
        self._pool_of = {name: self._pools[at % count] for at, name in enumerate(groups)}
        self._begun: deque[Future[None]] = deque()

    def submit(self, group: str, task: Callable[[], None]) -> None:
        """Run a task after those of the same group; blocks while too many are waiting."""
        while len(self._begun) >= PARTS_AHEAD:
            self._begun.popleft().result()
        self._begun.append(self._pool_of[group].submit(task))

    def wait(self) -> None:
        """Return when all tasks are done."""
        while self._begun:
            self._begun.popleft().result()

    def __enter__(self) -> "Lanes":
        return self

    def __exit__(self, *_: object) -> None:
        for pool in self._pools:
            pool.shutdown(cancel_futures=True)


class GroupWriting:
    """A group whose files are being written; `stack` abandons them when something fails."""

    def __init__(
        self, stack: ExitStack, inventory: Inventory, format: FileFormat, group: Group, delta: bool
    ) -> None:
        self._group, self._format = group, format
        self._files = stack.enter_context(ExitStack())
        self._writer = format.open_writer(self._files, inventory, group, delta)
        self._error = RoundingError(group.shape)
        self._rows = 0
        self.entry: FileGroup  # of the manifest, set by `finish`

    def add(self, part: Part) -> None:
        """Write rows, in the group's precision."""
        payload = encode(part.rows, part.group.shape)
        self._error.add(part, payload)
        self._writer.add(part.ids, part.hashes, payload, part.removed)
        self._rows += len(part.ids)

    def finish(self) -> None:
        """Write what is left, and bring the files to the disk.

        Raises Failure unless there were as many rows as expected.
        """
        group, expected = self._group, count_of([self._group])
        if self._rows != expected:
            raise Failure(
                f"group {group.name} has {self._rows:,} rows to export, and {expected:,} were "
                "expected. Take another checkpoint"
            )
        self._writer.finish()
        names = self._format.names(group.name, group.removed)
        self.entry = FileGroup(**group_fields(group), error=self._error.document(), **names)
        self._files.close()


def group_fields(group: Group) -> GroupFields:
    """What the document of every format has of a share group, except its error."""
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
