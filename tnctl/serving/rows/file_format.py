"""What a format of files implements, and what formats that are written block by block share.

Writers take stored payloads, so that folding a chain of exports writes the bytes of a full export.
Readers give records in ascending order of the hashes of their keys.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import pyarrow as pa

from tnctl import files
from tnctl.errors import Failure
from tnctl.manifest import Inventory, Manifest
from tnctl.serving.rows.export_document import FileGroup
from tnctl.serving.rows.precision import (
    PRECISIONS,
    Bools,
    LookedUp,
    Payloads,
    Precision,
    Records,
    RowShape,
    Uint64s,
    decode,
)
from tnctl.serving.rows.selection import Group
from tnctl.tables import key_hashes

BYTES_PER_READ = 4 << 20

# Ids uint64 [n] -> their decoded rows float32 [n, columns], zeros where unknown; which are known.
Lookup = Callable[[Uint64s], LookedUp]
# Takes ids uint64 [n] and payloads uint8 [n, stride].
WriteBlock = Callable[[Uint64s, Payloads], Any]
Block = tuple[Uint64s, Payloads | None]


class GroupWriter(Protocol):
    """Writes the files of one group."""

    def add(self, ids: Uint64s, hashes: Uint64s, payload: Payloads, removed: Bools | None) -> None:
        """The next keys: ids and hashes uint64 [n], payloads uint8 [n, stride].

        `removed` bool [n] says which keys are removed; None: no key is.
        """

    def finish(self) -> None:
        """Write what is left."""


class StoredGroup(Protocol):
    """The files of one group in one export, open for reading."""

    def sources(self, count: int = 1) -> list[Iterator[Records]]:
        """All records, in sources without a key in common, each ascending by hash.

        Arrays [n] of record_dtype, each with a `count`-th of the memory. Raises Failure.
        """

    def close(self) -> None:
        """Close the files."""


class FileFormat(ABC):
    """A format whose rows are files of a folder, a set of files for each share group."""

    name: ClassVar[str]  # as `format=` and the manifest's `encoding` have it
    # How the names of a group's files end: rows, removed ids of a delta, an index.
    suffix: ClassVar[str]
    removed_suffix: ClassVar[str | None] = None
    index_suffix: ClassVar[str | None] = None
    precisions: ClassVar[tuple[Precision, ...]] = PRECISIONS
    mapped: ClassVar[bool] = False  # files are mapped into memory: remote ones are copied first
    counts_first: ClassVar[bool] = False  # a writer needs the exact number of rows

    def names(self, group: str, removed: int) -> dict[str, Any]:
        """The files of a group that has so many removed keys, by the fields of FileGroup."""
        removed_suffix = self.removed_suffix if removed else None
        suffixes = {"file": self.suffix, "removed_file": removed_suffix, "index": self.index_suffix}
        return {key: suffix and group + suffix for key, suffix in suffixes.items()}

    @abstractmethod
    def open_writer(
        self, stack: ExitStack, inventory: Inventory, group: Group, delta: bool
    ) -> GroupWriter:
        """The writer of a group's files, whose counts must be right; `stack` closes them.

        Call `finish` before the stack is closed.
        """

    @abstractmethod
    def open_group(
        self, folder: str, content: Manifest, entry: FileGroup, temporary: Path
    ) -> StoredGroup:
        """The reader of a group's files; copies go to the folder `temporary`. Raises Failure."""

    @abstractmethod
    def lookup(self, entry: FileGroup, stored: Sequence[Any]) -> Lookup:
        """Looks ids up in a group's files of a chain of exports, the newest first."""


def record_dtype(shape: RowShape) -> np.dtype[Any]:
    """What is stored of a key; `group` is 0, `payload` zeros where it was removed."""
    return np.dtype(
        [("id", "<u8"), ("group", "<u2"), ("removed", "?"), ("payload", "u1", (shape.stride,))]
    )


def records_of(ids: Uint64s, removed: Any, payload: Payloads | None, shape: RowShape) -> Records:
    """Records, record_dtype [n], of ids uint64 [n] with payloads uint8 [n, stride].

    `removed` is bool [n] or one bool for all; `payload` is None when all are removed.
    """
    records = np.zeros(len(ids), record_dtype(shape))
    records["id"], records["removed"] = ids, removed
    if payload is not None:
        records["payload"] = payload
    return records


def hashes_of(group: str, ids: Uint64s) -> Uint64s:
    """The hash of each id's key in a group, uint64 [n]. docs/formats/ids.md."""
    return key_hashes({0: group}, np.zeros(len(ids), np.uint16), np.ascontiguousarray(ids))


def last_of_ascending(last: int, hashes: Uint64s) -> int:
    """The last of hashes uint64 [n], n > 0.

    Raises ValueError unless they ascend, all of them above `last`.
    """
    if int(hashes[0]) <= last or (hashes[1:] <= hashes[:-1]).any():
        raise ValueError("its rows are not in the order of their hashes")
    return int(hashes[-1])


@contextmanager
def reported_damage(url: str, *kinds: type[Exception]) -> Iterator[None]:
    """Turns what a reader raises for a damaged file, or errors of `kinds`, into a Failure."""
    try:
        yield
    except (pa.ArrowException, ValueError, *kinds) as error:
        reason = str(error).strip().split("\n")[0]
        raise Failure(f"{url} is damaged ({reason}). Export again") from error


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
        def of_ids(ids: Uint64s) -> LookedUp:
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

    def add(self, ids: Uint64s, payload: Payloads) -> None:
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
        ids: Uint64s,
        hashes: Uint64s,  # noqa: ARG002 (of dictionaries)
        payload: Payloads,
        removed: Bools | None,
    ) -> None:
        if self._removed and removed is not None:
            self._removed.add(ids[removed], payload[removed, :0])
            ids, payload = ids[~removed], payload[~removed]
        self._rows.add(ids, payload)

    def finish(self) -> None:
        for buffer in filter(None, (self._rows, self._removed)):
            buffer.flush()


@dataclass(frozen=True)
class BlockGroup:
    """A group whose files are read from end to end, however few keys are looked up."""

    format: BlockFormat
    folder: str
    entry: FileGroup

    def sources(self, count: int = 1) -> list[Iterator[Records]]:
        size, entry = BYTES_PER_READ // count, self.entry
        rows = self._records(entry.rows_file, entry.shape, entry.rows, size)
        if entry.removed_file is None:
            return [rows]
        return [rows, self._records(entry.removed_file, None, entry.removed, size)]

    def close(self) -> None:
        """Nothing stays open between two calls."""

    def _records(
        self, name: str, shape: RowShape | None, rows: int, size: int
    ) -> Iterator[Records]:
        """The records of a file. Raises Failure unless they are as many, in order of hashes."""
        last, url = -1, files.join(self.folder, name)
        with (
            reported_damage(url, OSError),  # which Arrow raises too
            files.open_input(url, decompress=False) as file,
        ):
            for ids, payload in self.format.read_blocks(file, shape, size):
                if len(ids):
                    last = last_of_ascending(last, hashes_of(self.entry.group, ids))
                    rows -= len(ids)
                    yield records_of(ids, shape is None, payload, self.entry.shape)
            if rows:
                raise ValueError("it has not as many rows as its manifest says")
