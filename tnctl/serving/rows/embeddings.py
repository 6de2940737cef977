"""Exported embeddings, read back: an export alone, or a chain of a full one and its deltas.

The rows of a group may be in several sets of files (parts), each of a range of hashes.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path
from typing import Protocol

import numpy as np

from tnctl import files, manifest
from tnctl.errors import Failure
from tnctl.serving.rows import format_of, server_format
from tnctl.serving.rows.export_document import (
    ALL_HASHES,
    MOST_DELTAS,
    ExportManifest,
    FileGroup,
    HashRange,
    RowsManifest,
)
from tnctl.serving.rows.precision import LookedUp, Records, RowShape, Uint64s
from tnctl.serving.rows.row_formats import FileFormat, Lookup, StoredGroup, hashes_of

PREFIX = "tnctl"  # of the keys in a Redis, unless prefix= names another
GRACE = 600  # seconds that readers of a server keep the previous version


def overlap(a: HashRange, b: HashRange) -> bool:
    """Whether two ranges have a hash in common."""
    return a[0] <= b[1] and b[0] <= a[1]


@dataclass(frozen=True)
class PartedGroup:
    """The parts of a group in one export, each with its range of hashes.

    A group that is not in parts is one part.
    """

    parts: Sequence[tuple[HashRange, StoredGroup]]

    def part_with(self, hash_: int) -> StoredGroup:
        """The part whose range has a hash."""
        return next(part for (first, last), part in self.parts if first <= hash_ <= last)

    def sources(self, count: int = 1) -> list[Iterator[Records]]:
        """As in StoredGroup, one part after the other."""
        of_parts = [part.sources(count) for _, part in self.parts]
        return [chain.from_iterable(filter(None, parts)) for parts in zip_longest(*of_parts)]


def lookup_in_parts(
    format: FileFormat, entry: FileGroup, stored: Sequence[PartedGroup], hashes: HashRange
) -> Lookup:
    """Looks ids up in a group's files of a chain of exports, the newest first.

    Exports may be cut into other parts than those before them: between two cuts of any of them each
    has one part.
    """
    starts = sorted({max(first, hashes[0]) for group in stored for (first, _), _ in group.parts})
    lookups = [
        format.lookup(entry, [group.part_with(start) for group in stored]) for start in starts
    ]
    if len(lookups) == 1:
        return lookups[0]
    edges = np.array(starts, np.uint64)

    def of_ids(ids: Uint64s) -> LookedUp:
        indices = np.searchsorted(edges, hashes_of(entry.group, ids), side="right") - 1
        rows = np.zeros((len(ids), entry.shape.columns), np.float32)
        known = np.zeros(len(ids), bool)
        for index, lookup in enumerate(lookups):
            chosen = np.flatnonzero(indices == index)
            if len(chosen):
                rows[chosen], known[chosen] = lookup(np.ascontiguousarray(ids[chosen]))
        return rows, known

    return of_ids


class Embeddings(Protocol):
    """The rows of exported share groups, wherever they are."""

    groups: dict[str, RowShape]

    @property
    def manifest(self) -> RowsManifest:
        """Of the newest export."""

    def lookup(self, group: str, ids: Uint64s) -> LookedUp:
        """The decoded rows of ids, float32 [n, columns], and which are known, bool [n].

        Rows of unknown ids are zeros. An id may come several times. Raises Failure.
        """

    def golden(self) -> bytes | None:
        """golden.jsonl, the golden rows of the newest export; None when it has none."""

    def close(self) -> None:
        """Close files and connections, and free memory."""


class FileEmbeddings:
    """Embeddings of folders: `exports` are (folder, manifest), the full export's first.

    The newest manifest need not be written yet. Of groups in parts only those are opened that can
    have `hashes` (the first and the last), and only keys with these may be looked up.
    """

    def __init__(
        self, exports: Sequence[tuple[str, ExportManifest]], hashes: HashRange = ALL_HASHES
    ) -> None:
        self.exports = list(exports)
        self.folders = [folder for folder, _ in exports]
        self.folder, self.manifest = exports[-1]
        self.groups, format = self.manifest.shapes, self.manifest.file_format
        self._stored: dict[str, list[PartedGroup]] = {}
        with ExitStack() as stack:
            for folder, content in reversed(self.exports):
                temporary = Path()
                if is_fetched(folder, content):
                    temporary = Path(stack.enter_context(files.TemporaryFolder("embeddings")))
                for entry in content.groups:
                    parts = [
                        (
                            of_part,
                            stack.enter_context(
                                closing(format.open_group(folder, content, part, temporary))
                            ),
                        )
                        for of_part, part in entry.stored
                        if overlap(of_part, hashes)
                    ]
                    stored = self._stored.setdefault(entry.group, [])
                    stored.append(PartedGroup(parts))
            self._lookups = {
                entry.group: lookup_in_parts(format, entry, self._stored[entry.group], hashes)
                for entry in self.manifest.groups
            }
            self._stack = stack.pop_all()

    def lookup(self, group: str, ids: Uint64s) -> LookedUp:
        """As in Embeddings: float32 [n, columns] and bool [n] for ids [n].

        A row is of the newest export that has its id, or a removal of it.
        """
        self.stored(group)
        return self._lookups[group](ids)

    def stored(self, group: str) -> list[PartedGroup]:
        """The files of a group in the exports, the newest first. Raises Failure for other names."""
        if group not in self._stored:
            raise Failure(f"{self.folder} has no group {group}. Export with the slots that read it")
        return self._stored[group]

    def golden(self) -> bytes | None:
        """As in Embeddings, verified."""
        if self.manifest.golden is None:
            return None
        return manifest.read_file(self.folder, self.manifest, self.manifest.golden.file)

    def close(self) -> None:
        self._lookups.clear()
        self._stack.close()


def open_embeddings(url: str, prefix: str = PREFIX, hashes: HashRange = ALL_HASHES) -> Embeddings:
    """The embeddings of an export's folder or URL, with its whole chain, or of a Redis.

    Every file that can have `hashes` is read once, for its checksum. `prefix` starts the names of
    the keys in a Redis. Raises Failure for an incomplete or damaged export, and for a broken chain.
    """
    if server := server_format(url):
        opened: Embeddings = format_of(server).open(url, prefix)
        return opened
    exports = chain_of(url)
    for folder, content in exports:
        # Files that are copied to this machine are checked on the way.
        fetched = is_fetched(folder, content)
        unchecked = {
            name
            for group in content.groups
            for of_part, part in group.stored
            if fetched or not overlap(of_part, hashes)
            for name in part.names
        }
        for name in (name for name in content.files if name not in unchecked):
            with manifest.present(folder, content, name):
                manifest.check_stored(folder, content, name, "Export again")
    return FileEmbeddings(exports, hashes)


def is_fetched(folder: str, content: ExportManifest) -> bool:
    """Whether an export's files are copied to this machine first, because they are mapped."""
    return content.file_format.mapped and files.local_path(folder) is None


def chain_of(url: str) -> list[tuple[str, ExportManifest]]:
    """The folders and manifests that an export consists of, the full export's first.

    Raises Failure when one of them is missing or was replaced.
    """
    folder, content = url, manifest.read(url, ExportManifest)
    exports = [(folder, content)]
    while content.base is not None:
        if len(exports) > MOST_DELTAS:
            raise Failure(f"{url} has more than {MOST_DELTAS} deltas. Export in full")
        base_folder = beside(folder, content.base.folder)
        try:
            base = manifest.read(base_folder, ExportManifest)
        except Failure as error:
            raise Failure(f"{folder} is a delta of {base_folder}: {error}") from error
        if base.sha256 != content.base.sha256:
            raise Failure(
                f"{folder} is a delta of what was in {base_folder}, which holds another export "
                "now. Export in full"
            )
        folder, content = base_folder, base
        exports.insert(0, (folder, content))
    return exports


def beside(folder: str, base: str) -> str:
    """Where the base of the delta in `folder` is: a plain name names a folder beside it."""
    parent, slash, _ = folder.rstrip("/").rpartition("/")
    return files.join(parent + slash, base) if slash else base
