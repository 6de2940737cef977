"""Formats whose files are written block by block and read from end to end.

A group has a file of its rows, and in a delta one of removed ids.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tnctl import files
from tnctl.manifest import Inventory, Manifest
from tnctl.serving.rows import file_format
from tnctl.serving.rows.export_document import FileGroup
from tnctl.serving.rows.file_format import (
    FileFormat,
    Lookup,
    hashes_of,
    last_of_ascending,
    records_of,
    reported_damage,
)
from tnctl.serving.rows.precision import RowShape, decode
from tnctl.serving.rows.selection import Group

# Takes ids uint64 [n] and payloads uint8 [n, stride].
WriteBlock = Callable[[NDArray[np.uint64], NDArray[np.uint8]], Any]
Block = tuple[NDArray[np.uint64], NDArray[np.uint8] | None]


class BlockFormat(FileFormat):
    """A format that says how a block of rows is written, and how blocks are read."""

    # As many of each share group are in memory while it is written.
    rows_per_block: ClassVar[int] = 1 << 14

    @abstractmethod
    def open_blocks(self, stack: ExitStack, file: Any, shape: RowShape | None) -> WriteBlock:
        """What writes blocks of rows to an open file, or of ids alone when `shape` is None."""

    @abstractmethod
    def read_blocks(self, file: Any, shape: RowShape | None, size: int) -> Iterator[Block]:
        """The blocks of an open file, of about `size` bytes; None for payloads without `shape`.

        Raises ValueError, OSError or an Arrow error for a damaged file.
        """

    def open_writer(
        self,
        stack: ExitStack,
        inventory: Inventory,
        group: Group,
        delta: bool,  # noqa: ARG002
    ) -> "BlockWriter":
        return BlockWriter(self, stack, inventory, group)

    def open_group(
        self,
        folder: str,
        content: Manifest,  # noqa: ARG002
        entry: FileGroup,
        temporary: Path,  # noqa: ARG002
    ) -> "BlockGroup":
        return BlockGroup(self, folder, entry)

    def lookup(self, entry: FileGroup, stored: Sequence["BlockGroup"]) -> Lookup:
        def of_ids(ids: NDArray[np.uint64]) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
            hashes, inverse = np.unique(hashes_of(entry.group, ids), return_inverse=True)
            rows = np.zeros((len(hashes), entry.shape.columns), np.float32)
            known = np.zeros(len(hashes), bool)
            # What a newer export has of a key takes the place of what older ones have.
            for source in (source for group in reversed(stored) for source in group.sources()):
                for records in source:
                    stored_hashes = hashes_of(entry.group, records["id"])
                    first, last = np.searchsorted(hashes, stored_hashes[[0, -1]])
                    wanted = hashes[first : last + 1]
                    at = np.minimum(np.searchsorted(stored_hashes, wanted), len(records) - 1)
                    hit = stored_hashes[at] == wanted
                    places, matching = first + np.flatnonzero(hit), records[at[hit]]
                    rows[places] = decode(matching["payload"], entry.shape)
                    known[places] = ~matching["removed"]
            return rows[inverse], known[inverse]

        return of_ids


class Buffer:
    """Collects rows, and hands them to `write` in blocks of one size.

    So the same rows are the same bytes wherever the parts of an export end. Rows are copied: a view
    would keep the whole part in memory.
    """

    def __init__(self, rows: int, stride: int, write: WriteBlock) -> None:
        self._ids = np.empty(rows, np.uint64)
        self._payload = np.empty((rows, stride), np.uint8)
        self._count, self._write = 0, write

    def add(self, ids: NDArray[np.uint64], payload: NDArray[np.uint8]) -> None:
        at, size = 0, len(self._ids)
        while at < len(ids):
            count = min(len(ids) - at, size - self._count)
            free = slice(self._count, self._count + count)
            self._ids[free], self._payload[free] = ids[at : at + count], payload[at : at + count]
            self._count, at = self._count + count, at + count
            if self._count == size:
                self.flush()

    def flush(self) -> None:
        """Write the rows that are left, if any."""
        if self._count:
            self._write(self._ids[: self._count], self._payload[: self._count])
        self._count = 0


class BlockWriter:
    """Writes the rows and the removed ids of a group into two files."""

    def __init__(
        self, format: BlockFormat, stack: ExitStack, inventory: Inventory, group: Group
    ) -> None:
        def buffer(name: str, shape: RowShape | None, rows: int) -> Buffer:
            file = stack.enter_context(inventory.writing(name))
            write = format.open_blocks(stack, file, shape)
            return Buffer(rows, shape.stride if shape else 0, write)

        names, size = format.names(group.stem, group.removed), format.rows_per_block
        self._rows = buffer(names["file"], group.shape, min(size, max(group.rows, 1)))
        removed_file = names["removed_file"]
        self._removed = buffer(removed_file, None, size) if removed_file else None

    def add(
        self,
        ids: NDArray[np.uint64],
        hashes: NDArray[np.uint64],  # noqa: ARG002 (of dictionaries)
        payload: NDArray[np.uint8],
        removed: NDArray[np.bool_] | None,
    ) -> None:
        if self._removed and removed is not None:
            self._removed.add(ids[removed], payload[removed, :0])
            ids, payload = ids[~removed], payload[~removed]
        self._rows.add(ids, payload)

    def finish(self) -> None:
        for buffer in filter(None, (self._rows, self._removed)):
            buffer.flush()


class BlockGroup:
    """A group whose files are read from end to end, however few keys are looked up."""

    def __init__(self, format: BlockFormat, folder: str, entry: FileGroup) -> None:
        self._format, self._folder, self._entry = format, folder, entry

    def sources(self, count: int = 1) -> list[Iterator[NDArray[Any]]]:
        size, entry = file_format.BYTES_PER_READ // count, self._entry
        rows = self._records(entry.rows_file, entry.shape, entry.rows, size)
        if entry.removed_file is None:
            return [rows]
        return [rows, self._records(entry.removed_file, None, entry.removed, size)]

    def close(self) -> None:
        """Nothing stays open between two calls."""

    def _records(
        self, name: str, shape: RowShape | None, rows: int, size: int
    ) -> Iterator[NDArray[Any]]:
        """The records of a file. Raises Failure unless they are as many, in order of hashes."""
        last, url = -1, files.join(self._folder, name)
        with (
            reported_damage(url, OSError),  # which Arrow raises too
            files.open_input(url, decompress=False) as file,
        ):
            for ids, payload in self._format.read_blocks(file, shape, size):
                if len(ids):
                    last = last_of_ascending(last, hashes_of(self._entry.group, ids))
                    rows -= len(ids)
                    yield records_of(ids, shape is None, payload, self._entry.shape)
            if rows:
                raise ValueError("it has not as many rows as its manifest says")
