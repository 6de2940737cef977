"""The files of share groups, written side by side."""

import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import cycle
from typing import Any

from tnctl.data.read_ahead import MOST_THREADS
from tnctl.errors import Failure
from tnctl.manifest import FileEntry, Inventory
from tnctl.progress import Display
from tnctl.serving.rows.export_document import FileGroup
from tnctl.serving.rows.file_format import FileFormat
from tnctl.serving.rows.precision import encode
from tnctl.serving.rows.precision_errors import RoundingError
from tnctl.serving.rows.selection import Group, Part, Selection, count_of

PARTS_AHEAD = 32


@dataclass(frozen=True)
class Written:
    """The entries of the manifest of what was written: groups, and files by their names."""

    groups: tuple[FileGroup, ...]
    files: dict[str, FileEntry]


def write_groups(
    selection: Selection,
    format: FileFormat,
    inventory: Inventory,
    between: Callable[[], None] = lambda: None,
) -> Written:
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
    return Written(tuple(entries), dict(inventory.files))


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

    def add(self, part: Part) -> None:
        """Write rows, in the group's precision."""
        payload = encode(part.rows, part.group.shape)
        self._error.add(part, payload)
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


def group_fields(group: Group) -> dict[str, Any]:
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
