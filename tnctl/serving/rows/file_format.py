"""What a format of files implements.

Writers take stored payloads, so that folding a chain of exports writes the bytes of a full export.
Readers give records in ascending order of the hashes of their keys.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tnctl.errors import Failure
from tnctl.manifest import Inventory, Manifest
from tnctl.serving.rows.export_document import FileGroup
from tnctl.serving.rows.precision import PRECISIONS, Precision, RowShape
from tnctl.serving.rows.selection import Group
from tnctl.tables import key_hashes

BYTES_PER_READ = 4 << 20

# Ids uint64 [n] -> their decoded rows float32 [n, columns], zeros where unknown; which are known.
Lookup = Callable[[NDArray[np.uint64]], tuple[NDArray[np.float32], NDArray[np.bool_]]]


class GroupWriter(Protocol):
    """Writes the files of one group."""

    def add(
        self,
        ids: NDArray[np.uint64],
        hashes: NDArray[np.uint64],
        payload: NDArray[np.uint8],
        removed: NDArray[np.bool_] | None,
    ) -> None:
        """The next keys: ids and hashes uint64 [n], payloads uint8 [n, stride].

        `removed` bool [n] says which keys are removed; None: no key is.
        """

    def finish(self) -> None:
        """Write what is left."""


class StoredGroup(Protocol):
    """The files of one group in one export, open for reading."""

    def sources(self, count: int = 1) -> list[Iterator[NDArray[Any]]]:
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
        return {
            "file": group + self.suffix,
            "removed_file": group + self.removed_suffix
            if self.removed_suffix and removed
            else None,
            "index": group + self.index_suffix if self.index_suffix else None,
        }

    def can_have_size(self, entry: FileGroup, name: str, size: int, delta: bool) -> bool:  # noqa: ARG002
        """Whether the file `name` of a group can have so many bytes."""
        return True

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


def records_of(
    ids: NDArray[np.uint64], removed: Any, payload: NDArray[np.uint8] | None, shape: RowShape
) -> NDArray[Any]:
    """Records, record_dtype [n], of ids uint64 [n] with payloads uint8 [n, stride].

    `removed` is bool [n] or one bool for all; `payload` is None when all are removed.
    """
    records = np.zeros(len(ids), record_dtype(shape))
    records["id"], records["removed"] = ids, removed
    if payload is not None:
        records["payload"] = payload
    return records


def hashes_of(group: str, ids: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The hash of each id's key in a group, uint64 [n]. docs/formats/ids.md."""
    return key_hashes({0: group}, np.zeros(len(ids), np.uint16), np.ascontiguousarray(ids))


def last_of_ascending(last: int, hashes: NDArray[np.uint64]) -> int:
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
