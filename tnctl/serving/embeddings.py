"""Exported embeddings, read back: an export alone, or a chain of a full one and its deltas."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tnctl import files, manifest
from tnctl.errors import Failure
from tnctl.serving.export_document import (
    MOST_DELTAS,
    ExportManifest,
    FileGroup,
    RowsManifest,
    files_of,
)
from tnctl.serving.precision import RowShape
from tnctl.serving.stored import (
    DictionaryGroup,
    ParquetGroup,
    StoredGroup,
    TextGroup,
    hashes_of,
)
from tnctl.tables.dictionary import DictionaryStack

REDIS = ("redis://", "rediss://", "unix://")


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
        """Let go of files, memory and connections."""


class FileEmbeddings:
    """Embeddings of folders: `exports` are (folder, manifest), the full export's first."""

    def __init__(self, exports: Sequence[tuple[str, ExportManifest]]) -> None:
        self.folder, self.manifest = exports[-1]
        self.folders = [folder for folder, _ in exports]
        self.chain = [content for _, content in exports]
        self.groups = self.manifest.shapes
        self._stored: dict[str, list[StoredGroup]] = {name: [] for name in self.groups}
        self._stacks: dict[str, DictionaryStack] = {}
        with ExitStack() as stack:
            for folder, content in exports:
                place = Path()
                if is_fetched(folder, content):
                    temporary = files.TemporaryFolder("embeddings")
                    place = Path(stack.enter_context(temporary))
                for entry in content.groups:
                    group = opened(folder, content, entry, place)
                    stack.callback(group.close)
                    self._stored[entry.group].insert(0, group)
            for name, stored in self._stored.items():
                maps = [one.dictionary for one in stored if isinstance(one, DictionaryGroup)]
                if maps:
                    self._stacks[name] = DictionaryStack(maps)
            self._stack = stack.pop_all()

    def lookup(
        self, group: str, ids: NDArray[np.uint64]
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """As in Embeddings: of the newest export that has an id, or says that it was removed."""
        stored = self.stored(group)
        if group in self._stacks:
            return self._stacks[group].lookup(np.ascontiguousarray(ids, np.uint64))
        wanted, inverse = np.unique(hashes_of(group, ids), return_inverse=True)
        rows = np.zeros((len(wanted), self.groups[group].columns), np.float32)
        known = np.zeros(len(wanted), bool)
        asked = np.arange(len(wanted))
        for one in stored:
            found = one.find(wanted[asked])
            rows[asked], known[asked] = found.rows, found.known
            asked = asked[~(found.known | found.removed)]
            if not len(asked):
                break
        return rows[inverse], known[inverse]

    def stored(self, group: str) -> list[StoredGroup]:
        """What the exports have of a group, the newest first. Raises Failure for another group."""
        if group not in self._stored:
            raise Failure(f"{self.folder} has no group {group}. Export with the slots that read it")
        return self._stored[group]

    def golden(self) -> bytes | None:
        """As in Embeddings, verified."""
        if self.manifest.golden is None:
            return None
        return manifest.read_file(self.folder, self.manifest, self.manifest.golden.file)

    def close(self) -> None:
        self._stacks.clear()
        self._stack.close()


def open_embeddings(url: str, prefix: str = "tnctl") -> Embeddings:
    """The embeddings of an export's folder or URL, with all that it is a delta of, or of a Redis.

    Every file is read once, for its checksum. `prefix` is that of the keys in a Redis. Raises
    Failure for what is not complete, not what its manifests say, or a broken chain.
    """
    if url.startswith(REDIS):
        from tnctl.serving.redis_store import RedisEmbeddings

        return RedisEmbeddings(url, prefix)
    exports = chain_of(url)
    for folder, content in exports:
        mapped: set[str] = set()
        if is_fetched(folder, content):  # and checked on the way
            mapped = {name for entry in content.groups for name in files_of(entry)}
        for name in content.files:
            if name in mapped:
                continue
            with manifest.present(folder, content, name):
                manifest.check_stored(folder, content, name, "Export again")
    return FileEmbeddings(exports)


def is_fetched(folder: str, content: ExportManifest) -> bool:
    """Whether an export's files are copied to this machine first: only those can be mapped."""
    return content.encoding == "dictionary" and files.local_path(folder) is None


def of_content(
    folder: str, content: ExportManifest, since: Embeddings | None = None
) -> FileEmbeddings:
    """The embeddings of files that are there before their manifest is; `since` is the delta's base.

    It opens files of its own: closing the one leaves the other open.
    """
    exports = [(folder, content)]
    if isinstance(since, FileEmbeddings):
        exports = [*zip(since.folders, since.chain, strict=True), *exports]
    return FileEmbeddings(exports)


def chain_of(url: str) -> list[tuple[str, ExportManifest]]:
    """The folders and manifests that an export consists of, the full export's first.

    Raises Failure when one of them is missing, another than its successor was made of, or when
    they do not fit together.
    """
    content = manifest.read(url, ExportManifest)
    exports = [(url, content)]
    while content.base is not None:
        if len(exports) > MOST_DELTAS:
            raise Failure(f"{url} has more than {MOST_DELTAS} deltas. Export in full")
        folder = base_folder(exports[-1][0], content.base.folder)
        try:
            before = manifest.read(folder, ExportManifest)
        except Failure as error:
            raise Failure(f"{exports[-1][0]} is a delta of {folder}: {error}") from error
        if before.sha256 != content.base.sha256:
            raise Failure(
                f"{exports[-1][0]} is a delta of what was in {folder}, which holds another export "
                "now. Export in full"
            )
        check_fit(exports[-1][0], content, folder, before)
        exports.append((folder, before))
        content = before
    return exports[::-1]


def base_folder(folder: str, base: str) -> str:
    """Where the base of the delta in `folder` is: a plain name is that of a folder beside it."""
    parent, slash, _ = folder.rstrip("/").rpartition("/")
    return files.join(parent + slash, base) if slash else base


def check_fit(url: str, content: ExportManifest, base: str, before: ExportManifest) -> None:
    """Raise Failure unless a delta has the kind of rows that its base has."""
    for key in ("encoding", "precision", "filter"):
        if getattr(content, key) != getattr(before, key):
            raise Failure(
                f"{url} has {key} {getattr(content, key)}, but its base {base} has "
                f"{getattr(before, key)}. "
                "Export in full"
            )
    if content.shapes != before.shapes:
        raise Failure(f"{url} has rows or groups that its base {base} has not. Export in full")


def opened(folder: str, content: ExportManifest, entry: FileGroup, temporary: Path) -> StoredGroup:
    """The reader of a group's files."""
    if content.encoding == "dictionary":
        return DictionaryGroup(folder, content, entry, temporary)
    return (ParquetGroup if content.encoding == "parquet" else TextGroup)(folder, entry)
