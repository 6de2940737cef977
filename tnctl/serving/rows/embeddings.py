"""Exported embeddings, read back: an export alone, or a chain of a full one and its deltas.

The rows of a group may be in several sets of files (parts), each of a range of hashes.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tnctl import files, manifest
from tnctl.errors import Failure
from tnctl.serving.rows.export_document import (
    MOST_DELTAS,
    ExportManifest,
    FileGroup,
    RowsManifest,
)
from tnctl.serving.rows.export_formats import format_of, server_format
from tnctl.serving.rows.file_format import FileFormat, Lookup, StoredGroup, hashes_of
from tnctl.serving.rows.precision import RowShape

HashRange = tuple[int, int]  # the first and the last, both inclusive
ALL_HASHES: HashRange = (0, 2**64 - 1)


def overlap(a: HashRange, b: HashRange) -> bool:
    """Whether two ranges have a hash in common."""
    return a[0] <= b[1] and b[0] <= a[1]


class PartedGroup:
    """The parts of a group in one export, those that can have some hashes: a `StoredGroup`.

    A group that is not in parts is one part.
    """

    def __init__(
        self,
        entry: FileGroup,
        opened: Callable[[FileGroup], StoredGroup],
        hashes: HashRange = ALL_HASHES,
    ) -> None:
        """`opened` opens the files of a part."""
        self._group = entry.group
        self.parts = [
            (of_part, opened(part))
            for part, of_part in zip(entry.stored, entry.ranges, strict=True)
            if overlap(of_part, hashes)
        ]

    def part_with(self, hash_: int) -> StoredGroup:
        """The part whose range has a hash."""
        return next(part for (first, last), part in self.parts if first <= hash_ <= last)

    def sources(self, count: int = 1) -> list[Iterator[NDArray[Any]]]:
        """As in StoredGroup, one part after the other."""
        of_parts = [(of_part, part.sources(count)) for of_part, part in self.parts]

        def joined(number: int) -> Iterator[NDArray[Any]]:
            for of_part, sources in of_parts:
                if number < len(sources):
                    yield from self._checked(of_part, sources[number])

        most = max(len(sources) for _, sources in of_parts)
        return [joined(number) for number in range(most)]

    def close(self) -> None:
        """Close the files."""
        for _, part in self.parts:
            part.close()

    def _checked(
        self, of_part: HashRange, source: Iterator[NDArray[Any]]
    ) -> Iterator[NDArray[Any]]:
        """The same records. Raises Failure for hashes that the part cannot have."""
        for records in source:
            if len(records) and of_part != ALL_HASHES:
                first, last = hashes_of(self._group, records["id"][[0, -1]]).tolist()
                if not of_part[0] <= first <= last <= of_part[1]:
                    raise Failure(
                        f"a part of group {self._group} has rows of another part. Export again"
                    )
            yield records


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

    def of_ids(ids: NDArray[np.uint64]) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        places = np.searchsorted(edges, hashes_of(entry.group, ids), side="right") - 1
        rows = np.zeros((len(ids), entry.shape.columns), np.float32)
        known = np.zeros(len(ids), bool)
        for number, lookup in enumerate(lookups):
            chosen = np.flatnonzero(places == number)
            if len(chosen):
                rows[chosen], known[chosen] = lookup(np.ascontiguousarray(ids[chosen]))
        return rows, known

    return of_ids


PREFIX = "tnctl"  # of the keys in a Redis, unless prefix= names another


class Embeddings(Protocol):
    """The rows of exported share groups, wherever they are."""

    groups: dict[str, RowShape]

    @property
    def manifest(self) -> RowsManifest:
        """Of the newest export."""

    def lookup(
        self, group: str, ids: NDArray[np.uint64]
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
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
        self.groups = self.manifest.shapes
        format = self.manifest.file_format
        self._lookups: dict[str, Lookup] = {}
        with ExitStack() as stack:
            places = [
                Path(stack.enter_context(files.TemporaryFolder("embeddings")))
                if is_fetched(folder, content)
                else Path()
                for folder, content in exports
            ]
            self._stored: dict[str, list[PartedGroup]] = {}
            for newest in self.manifest.groups:
                stored = self._stored[newest.group] = []
                for (folder, content), place in zip(exports, places, strict=True):
                    entry = next(e for e in content.groups if e.group == newest.group)

                    def opened(
                        part: FileGroup,
                        folder: str = folder,
                        content: ExportManifest = content,
                        place: Path = place,
                    ) -> StoredGroup:
                        group: StoredGroup = format.open_group(folder, content, part, place)
                        stack.callback(group.close)
                        return group

                    stored.insert(0, PartedGroup(entry, opened, hashes))
                self._lookups[newest.group] = lookup_in_parts(format, newest, stored, hashes)
            self._stack = stack.pop_all()

    def lookup(
        self, group: str, ids: NDArray[np.uint64]
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
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
        copied = content.groups if is_fetched(folder, content) else ()
        checked_later = {name for entry in copied for name in entry.names}
        for name in content.files:
            if name not in checked_later | without_hashes(content, hashes):
                with manifest.present(folder, content, name):
                    manifest.check_stored(folder, content, name, "Export again")
    return FileEmbeddings(exports, hashes)


def without_hashes(content: ExportManifest, hashes: HashRange) -> set[str]:
    """The files of parts that cannot have hashes of a range."""
    return {
        name
        for group in content.groups
        for entry, of_part in zip(group.stored, group.ranges, strict=True)
        if not overlap(of_part, hashes)
        for name in entry.names
    }


def is_fetched(folder: str, content: ExportManifest) -> bool:
    """Whether an export's files are copied to this machine first, because they are mapped."""
    return content.file_format.mapped and files.local_path(folder) is None


def chain_of(url: str) -> list[tuple[str, ExportManifest]]:
    """The folders and manifests that an export consists of, the full export's first.

    Raises Failure when one of them is missing or was replaced, or when they do not fit together.
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
        check_fit(folder, content, base_folder, base)
        folder, content = base_folder, base
        exports.insert(0, (folder, content))
    return exports


def beside(folder: str, base: str) -> str:
    """Where the base of the delta in `folder` is: a plain name names a folder beside it."""
    parent, slash, _ = folder.rstrip("/").rpartition("/")
    return files.join(parent + slash, base) if slash else base


def check_fit(folder: str, content: ExportManifest, base_folder: str, base: ExportManifest) -> None:
    """Raise Failure unless a delta has the kind of rows that its base has."""
    for key in ("encoding", "precision", "filter"):
        ours, theirs = getattr(content, key), getattr(base, key)
        if ours != theirs:
            raise Failure(
                f"{folder} has {key} {ours}, but its base {base_folder} has {theirs}. "
                "Export in full"
            )
    if content.shapes != base.shapes:
        raise Failure(
            f"{folder} has rows or groups that its base {base_folder} has not. Export in full"
        )
