"""Exported embeddings, read back: an export alone, or a chain of a full one and its deltas."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tnctl import files, manifest
from tnctl.errors import Failure
from tnctl.serving.precision import RowShape
from tnctl.serving.stored import (
    DictionaryGroup,
    ParquetGroup,
    StoredGroup,
    TextGroup,
    hashes_of,
)
from tnctl.tables.dictionary import DictionaryStack

FORMAT = "tnctl embeddings"
DELTAS = 8  # that may stand on a full export
REDIS = ("redis://", "rediss://", "unix://")


class Embeddings(Protocol):
    """The rows of exported share groups, wherever they are."""

    manifest: dict[str, Any]  # of the newest export
    chain: list[dict[str, Any]]  # manifests, the full export's first
    groups: dict[str, RowShape]

    def lookup(
        self, group: str, ids: NDArray[np.uint64]
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """The decoded rows of ids, float32 [n, columns], and which are known, bool [n].

        Rows of unknown ids are zeros. An id may come several times. Raises Failure.
        """

    def golden(self) -> bytes | None:
        """The newest export's conformance kit, golden.jsonl; None when it has none."""

    def close(self) -> None:
        """Let go of files, memory and connections."""


class FileEmbeddings:
    """Embeddings of folders: `exports` are (folder, manifest), the full export's first."""

    def __init__(self, exports: Sequence[tuple[str, dict[str, Any]]]) -> None:
        self.folder, self.manifest = exports[-1]
        self.folders = [folder for folder, _ in exports]
        self.chain = [content for _, content in exports]
        self.groups = shapes(self.manifest)
        self._stored: dict[str, list[StoredGroup]] = {name: [] for name in self.groups}
        self._stacks: dict[str, DictionaryStack] = {}
        with ExitStack() as stack:
            for folder, content in exports:
                place = Path()
                if is_fetched(folder, content):
                    temporary = files.TemporaryFolder("embeddings")
                    place = Path(stack.enter_context(temporary))
                for entry in content["groups"]:
                    group = opened(folder, content, entry, place)
                    stack.callback(group.close)
                    self._stored[entry["group"]].insert(0, group)
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
        if self.manifest["golden"] is None:
            return None
        return manifest.read_file(self.folder, self.manifest, self.manifest["golden"]["file"])

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
            mapped = {name for one in content["groups"] for name in (one["file"], one["index"])}
        for name in content["files"]:
            if name in mapped:
                continue
            with manifest.present(folder, content, name):
                manifest.check_stored(folder, content, name, "Export again")
    return FileEmbeddings(exports)


def is_fetched(folder: str, content: dict[str, Any]) -> bool:
    """Whether an export's files are copied to this machine first: only those can be mapped."""
    return content["encoding"] == "dictionary" and files.local_path(folder) is None


def of_content(
    folder: str, content: dict[str, Any], since: Embeddings | None = None
) -> FileEmbeddings:
    """The embeddings of files that are there before their manifest is; `since` is the delta's base.

    It opens files of its own: closing the one leaves the other open.
    """
    exports = [(folder, {"format": FORMAT, **content})]
    if isinstance(since, FileEmbeddings):
        exports = [*zip(since.folders, since.chain, strict=True), *exports]
    return FileEmbeddings(exports)


def chain_of(url: str) -> list[tuple[str, dict[str, Any]]]:
    """The folders and manifests that an export consists of, the full export's first.

    Raises Failure when one of them is missing, another than its successor was made of, or when
    they do not fit together.
    """
    content = manifest.read(url, FORMAT)
    exports = [(url, content)]
    while content["base"] is not None:
        if len(exports) > DELTAS:
            raise Failure(f"{url} has more than {DELTAS} deltas. Export in full")
        folder = base_folder(exports[-1][0], content["base"]["folder"])
        try:
            before = manifest.read(folder, FORMAT)
        except Failure as error:
            raise Failure(f"{exports[-1][0]} is a delta of {folder}: {error}") from error
        if manifest.identity(before) != content["base"]["sha256"]:
            raise Failure(
                f"{exports[-1][0]} is a delta of what was in {folder}, which holds another export "
                "now. Export in full"
            )
        check_fit(exports[-1][0], content, folder, before)
        exports.append((folder, before))
        content = before
    if content["kind"] != "full":
        raise Failure(f"{exports[-1][0]} is a delta of nothing. Export in full")
    return exports[::-1]


def base_folder(folder: str, base: str) -> str:
    """Where the base of the delta in `folder` is: a plain name is that of a folder beside it."""
    parent, slash, _ = folder.rstrip("/").rpartition("/")
    return files.join(parent + slash, base) if slash else base


def check_fit(url: str, content: dict[str, Any], base: str, before: dict[str, Any]) -> None:
    """Raise Failure unless a delta has the kind of rows that its base has."""
    for key in ("encoding", "precision", "filter"):
        if content[key] != before[key]:
            raise Failure(
                f"{url} has {key} {content[key]}, but its base {base} has {before[key]}. "
                "Export in full"
            )
    if shapes(content) != shapes(before):
        raise Failure(f"{url} has rows or groups that its base {base} has not. Export in full")


def is_filtered(content: Mapping[str, Any]) -> bool:
    """Whether rows may have been left out of an export."""
    return any(one is not None for one in content["filter"].values())


def is_exact(content: Mapping[str, Any]) -> bool:
    """Whether an export has all rows, and all bits of them."""
    return content["precision"] == "float32" and not is_filtered(content)


def shapes(content: dict[str, Any]) -> dict[str, RowShape]:
    """The rows of every group that a manifest describes."""
    return {
        entry["group"]: RowShape(entry["linear"], entry["width"], entry["cvm"], entry["precision"])
        for entry in content["groups"]
    }


def opened(
    folder: str, content: dict[str, Any], entry: dict[str, Any], temporary: Path
) -> StoredGroup:
    """The reader of a group's files."""
    encoding = content["encoding"]
    shape = RowShape(entry["linear"], entry["width"], entry["cvm"], entry["precision"])
    if encoding == "parquet":
        return ParquetGroup(folder, entry, shape)
    if encoding == "text":
        return TextGroup(folder, entry, shape)
    if encoding == "dictionary":
        return DictionaryGroup(folder, content, entry, shape, temporary)
    raise Failure(f"{folder} has encoding {encoding}, which this tnctl does not read")
