"""The files of one share group of an export, read in ascending order of their keys' hashes.

All encodings give the same records: of each key its id, whether it was removed, and its payload.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tnctl import files, manifest
from tnctl.errors import Failure
from tnctl.manifest import Manifest
from tnctl.serving.export_document import ExportManifest, FileGroup, files_of
from tnctl.serving.precision import Precision, RowShape, decode, encode
from tnctl.serving.writers import REMOVED_SCHEMA, parquet_schema
from tnctl.tables import key_hashes
from tnctl.tables.dictionary import Dictionary

BYTES_PER_READ = 4 << 20


@dataclass(frozen=True)
class Found:
    """What an export has of keys that were looked up."""

    rows: NDArray[np.float32]  # [n, columns]; zeros where it has none
    known: NDArray[np.bool_]  # [n]
    removed: NDArray[np.bool_]  # [n]: it says that the key is no more


class StoredGroup(Protocol):
    """A share group of one export."""

    shape: RowShape

    def find(self, hashes: NDArray[np.uint64]) -> Found:
        """The rows of keys by their hashes, ascending and each once. Raises Failure."""

    def sources(self, of: int = 1) -> list[Iterator[NDArray[Any]]]:
        """All that is stored, in sources without a key in common, each ascending by hash.

        Arrays of record_dtype, never much at a time: less when so many are read at once. Raises
        Failure.
        """

    def close(self) -> None:
        """Let go of what is open."""


def record_dtype(shape: RowShape) -> np.dtype[Any]:
    """What is stored of a key; `group` is 0, `payload` zeros where it was removed."""
    return np.dtype(
        [("id", "<u8"), ("group", "<u2"), ("removed", "?"), ("payload", "u1", (shape.stride,))]
    )


def records_of(
    ids: NDArray[np.uint64], removed: Any, payload: NDArray[np.uint8] | None, shape: RowShape
) -> NDArray[Any]:
    """Records of those ids; `payload` is None when they have none."""
    records = np.zeros(len(ids), record_dtype(shape))
    records["id"], records["removed"] = ids, removed
    if payload is not None:
        records["payload"] = payload
    return records


def hashes_of(group: str, ids: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The hash of each id's key in a group, uint64 [n]. docs/formats/ids.md."""
    return key_hashes({0: group}, np.zeros(len(ids), np.uint16), np.ascontiguousarray(ids))


class Scanned:
    """A group whose files are read from end to end, however few keys are asked for."""

    def __init__(self, folder: str, entry: FileGroup) -> None:
        self._folder, self._entry, self.shape = folder, entry, entry.shape

    def find(self, hashes: NDArray[np.uint64]) -> Found:
        found = Found(
            np.zeros((len(hashes), self.shape.columns), np.float32),
            np.zeros(len(hashes), bool),
            np.zeros(len(hashes), bool),
        )
        for source in self.sources():
            for records in source:
                stored = hashes_of(self._entry.group, records["id"])
                first, end = np.searchsorted(hashes, stored[[0, -1]])
                wanted = hashes[first : end + 1]
                at = np.minimum(np.searchsorted(stored, wanted), len(stored) - 1)
                hit = stored[at] == wanted
                places, some = first + np.flatnonzero(hit), records[at[hit]]
                found.rows[places] = decode(np.ascontiguousarray(some["payload"]), self.shape)
                found.removed[places] = some["removed"]
                found.known[places] = ~some["removed"]
        return found

    def sources(self, of: int = 1) -> list[Iterator[NDArray[Any]]]:
        size = BYTES_PER_READ // of
        sources = [self._ordered(self._entry.file, False, size)]
        if self._entry.removed_file is not None:
            sources.append(self._ordered(self._entry.removed_file, True, size))
        return sources

    def close(self) -> None:
        """Nothing stays open between two calls."""

    def _ordered(self, name: str, removed: bool, size: int) -> Iterator[NDArray[Any]]:
        """The records of a file, in the order that the format promises."""
        last, url = -1, files.join(self._folder, name)
        left = self._entry.removed if removed else self._entry.rows
        with damage(url, OSError):  # which Arrow raises too
            for ids, payload in self._read(url, removed, size):
                if not len(ids):
                    continue
                hashes = hashes_of(self._entry.group, ids)
                last = last_of_ascending(last, hashes)
                left -= len(ids)
                yield records_of(ids, removed, payload, self.shape)
            if left:
                raise ValueError("it has not as many rows as its manifest says")

    def _read(
        self, url: str, removed: bool, size: int
    ) -> Iterator[tuple[NDArray[np.uint64], NDArray[np.uint8] | None]]:
        """Parts of a file, of about `size` bytes: ids, and payloads unless they were removed."""
        raise NotImplementedError


class ParquetGroup(Scanned):
    """Parquet files. docs/formats/embeddings.md."""

    def _read(
        self, url: str, removed: bool, size: int
    ) -> Iterator[tuple[NDArray[np.uint64], NDArray[np.uint8] | None]]:
        rows = max(1, size // (self.shape.stride + 8))
        with files.open_input(url, decompress=False) as stream:
            opened = pq.ParquetFile(stream)
            schema = REMOVED_SCHEMA if removed else parquet_schema(self.shape)
            if not opened.schema_arrow.equals(schema):
                raise ValueError("its columns are not those that its manifest says")
            for part in opened.iter_batches(rows):
                ids = part.column("id").to_numpy()
                yield ids, None if removed else payload_of(part, self.shape)


def payload_of(part: pa.RecordBatch, shape: RowShape) -> NDArray[np.uint8]:
    """The columns of a record batch, one behind the other as in a payload: uint8 [n, stride]."""
    payload = np.zeros((len(part), shape.stride), np.uint8)
    at = 0
    for name in ("linear", "counts", "scale", "embedding"):
        if name not in part.schema.names:
            continue
        column = part.column(name)
        lists = pa.types.is_fixed_size_list(column.type)
        values = (column.flatten() if lists else column).to_numpy()
        data = np.ascontiguousarray(values).view(np.uint8).reshape(len(part), -1)
        payload[:, at : at + data.shape[1]] = data
        at += data.shape[1]
    return payload


class TextGroup(Scanned):
    """Text files, a line a key. docs/formats/embeddings.md."""

    def _read(
        self, url: str, removed: bool, size: int
    ) -> Iterator[tuple[NDArray[np.uint64], NDArray[np.uint8] | None]]:
        names = ["id"] if removed else ["id", "dim", *map(str, range(self.shape.columns))]
        types = {name: pa.float32() for name in names} | {"id": pa.uint64(), "dim": pa.int64()}
        with files.open_input(url, decompress=False) as stream:
            if not stream.read(1):
                return
            stream.seek(0)
            for part in pc.open_csv(
                stream,
                pc.ReadOptions(column_names=names, block_size=max(size, 1 << 16)),
                pc.ParseOptions(delimiter="\t", quote_char=False),
                pc.ConvertOptions(column_types=types, null_values=[]),
            ):
                ids = part.column("id").to_numpy()
                if removed:
                    yield ids, None
                    continue
                columns = [part.column(name).to_numpy() for name in names[2:]]
                rows = np.stack(columns, axis=1) if columns else np.zeros((len(ids), 0), "<f4")
                yield ids, encode(rows, self.shape)


class DictionaryGroup:
    """A dictionary file, mapped into memory; one that is elsewhere is fetched to `temporary`."""

    def __init__(
        self,
        folder: str,
        content: ExportManifest,
        entry: FileGroup,
        temporary: Path,
    ) -> None:
        self._url = files.join(folder, entry.file)
        self.shape = entry.shape
        path, index = (local_copy(folder, content, name, temporary) for name in files_of(entry))
        with files.translated(self._url), damage(self._url):
            self.dictionary = Dictionary(str(path), str(index))
            about = (self.dictionary.linear, self.dictionary.width, self.dictionary.cvm)
            if RowShape(*about, cast(Precision, self.dictionary.precision)) != entry.shape:
                raise ValueError("its rows are not those that the manifest says")
            counts = self.dictionary.rows - self.dictionary.removed, self.dictionary.removed
            if (*counts, str(self.dictionary.salt)) != (entry.rows, entry.removed, entry.salt):
                raise ValueError("its keys are not those that the manifest says")

    def find(self, hashes: NDArray[np.uint64]) -> Found:
        with damage(self._url):
            return Found(*self.dictionary.lookup(ids_of(hashes, self.dictionary.salt)))

    def sources(self, of: int = 1) -> list[Iterator[NDArray[Any]]]:
        return [self._records(max(1, BYTES_PER_READ // of // (self.shape.stride + 8)))]

    def close(self) -> None:
        self.dictionary.close()

    def _records(self, at_a_time: int) -> Iterator[NDArray[Any]]:
        last = -1
        with damage(self._url):
            for first in range(0, self.dictionary.rows, at_a_time):
                count = min(at_a_time, self.dictionary.rows - first)
                hashes, removed, payload = self.dictionary.records(first, count)
                last = last_of_ascending(last, hashes)
                ids = ids_of(hashes, self.dictionary.salt)
                yield records_of(ids, removed, payload, self.shape)


def last_of_ascending(last: int, hashes: NDArray[np.uint64]) -> int:
    """The last of some hashes. Raises ValueError unless they ascend, all of them above `last`."""
    if int(hashes[0]) <= last or (hashes[1:] <= hashes[:-1]).any():
        raise ValueError("its rows are not in the order of their hashes")
    return int(hashes[-1])


def ids_of(hashes: NDArray[np.uint64], salt: int) -> NDArray[np.uint64]:
    """The ids whose keys hash so in the group of a salt, uint64 [n]. docs/formats/ids.md."""
    shift = np.uint64(33)
    x = hashes ^ hashes >> shift
    x = x * np.uint64(0x9CB4B2F8129337DB)
    x = (x ^ x >> shift) * np.uint64(0x4F74430C22A54005)
    return (x ^ x >> shift) ^ np.uint64(salt)


def local_copy(folder: str, content: Manifest, name: str, temporary: Path) -> Path:
    """The file of a folder, or a copy of it when the folder is not of this machine.

    Raises DamagedError when what was copied is not what the manifest says.
    """
    url = files.join(folder, name)
    local = files.local_path(url)
    if local is not None:
        return local
    copy = temporary / name  # a relative path inside of it: the manifest was parsed
    copy.parent.mkdir(parents=True, exist_ok=True)
    with manifest.present(folder, content, name), copy.open("wb") as writing:
        hashing = manifest.HashingWriter(writing)
        with files.open_input(url, decompress=False) as reading:
            while some := reading.read(BYTES_PER_READ):
                hashing.write(some)
    manifest.check_entry(folder, content, name, hashing.entry())
    return copy


@contextmanager
def damage(url: str, *kinds: type[Exception]) -> Iterator[None]:
    """Says in one line that a file is damaged when what reads it says so, or errors of `kinds`."""
    try:
        yield
    except (pa.ArrowException, ValueError, *kinds) as error:
        reason = str(error).strip().split("\n")[0]
        raise Failure(f"{url} is damaged ({reason}). Export again") from error
