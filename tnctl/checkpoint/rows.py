"""Table files: the rows of a hash range, and the keys that were removed. docs/formats."""

import hashlib
import struct
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tnctl import files
from tnctl.checkpoint import tombstones as tombstone_files
from tnctl.checkpoint.chain import Checkpoint, offering
from tnctl.checkpoint.merging import DisorderError, Keys, newest
from tnctl.checkpoint.table_document import RowsFile, Table
from tnctl.data.read_ahead import ReadAhead
from tnctl.manifest import DamagedError, Opening, check_entry, present

HEADER = struct.Struct("<8sIIQQ")  # magic, version, bytes per record, first and last hash
MAGIC = b"tnctlrow"
KEY = ("id", "group", "flags", "changed")  # one number each; all other fields are arrays
LAST_HASH = 2**64 - 1
BYTES_PER_FILE = 256 << 20
BYTES_PER_READ = 4 << 20
READS_AHEAD = 2


def ranges(rows: int, record_size: int) -> list[tuple[int, int]]:
    """Equal hash ranges, a power of two of them, of about 256 MiB each."""
    count = 1
    while rows * record_size / count > BYTES_PER_FILE:
        count *= 2
    width = 2**64 // count
    return [(i * width, (i + 1) * width - 1) for i in range(count)]


def write(
    opening: Opening,
    folder: str,
    suffix: str,
    record_size: int,
    rows: int,
    records: Callable[[int, int], Iterator[NDArray[Any]]],
) -> list[RowsFile]:
    """Write the rows files of a table; returns what the manifest says of each.

    `records(first, last)` gives those of a range of hashes, in (hash, group) order; `rows` is
    about how many there are. `suffix` is ".zst" for compressed files, or nothing.
    """
    entries = []
    for number, (first, last) in enumerate(ranges(rows, record_size)):
        name = f"{folder}/{number:05d}.rows{suffix}"
        written = 0
        with opening(name) as stream, ReadAhead(records(first, last), READS_AHEAD) as ahead:
            stream.write(HEADER.pack(MAGIC, 1, record_size, first, last))
            for some in ahead:
                stream.write(some.view("u1").data)
                written += len(some)
        entries.append(
            RowsFile(file=name, first=f"{first:016x}", last=f"{last:016x}", rows=written)
        )
    return entries


def record_dtype(table: Table) -> np.dtype[Any]:
    """The fields of a record, as the manifest describes them."""
    return table.record_dtype


def width_of(table: Table, segment: str) -> int:
    """The floats of a segment in the records that a manifest describes; 0 when there is none."""
    return table.width_of(segment)


def keys_of(table: Table) -> Keys:
    """The hashes of a table's keys, by its groups."""
    return Keys({group.number: group.name for group in table.groups})


def stream(
    checkpoint: Checkpoint, table: str, first: int = 0, last: int = LAST_HASH
) -> Iterator[NDArray[Any]]:
    """The rows of a table with first <= hash <= last, in (hash, group) order.

    They are those of the whole chain: the newest record of a key, and none that was removed since.
    Arrays of the table's record dtype, never much at a time. Raises DamagedError, for a damaged
    file after the records in it.
    """
    count = 0
    with offering(checkpoint):
        try:
            for records in _merged(checkpoint, table, first, last):
                count += len(records)
                yield records
        except DisorderError as error:
            raise_damage(checkpoint, table, str(error))
        if (first, last) == (0, LAST_HASH):
            check_count(checkpoint, table, count)


def _merged(checkpoint: Checkpoint, table: str, first: int, last: int) -> Iterator[NDArray[Any]]:
    chain = checkpoint.chain()
    if len(chain) == 1:
        for _, records in _of_one(checkpoint, table, first, last):
            yield records
        return
    sources = []
    for one in reversed(chain):
        sources.append(_rows_in(one, table, first, last, len(chain)))
        # What the first of a chain removed is not in it, and nothing is older.
        removed = one is not chain[0]
        sources.append(_removed_in(one, table, first, last) if removed else iter(()))
    part = checkpoint.table(table)
    for block in newest(sources, keys_of(part)):
        yield from block.of(range(0, len(sources), 2), record_dtype(part))


def tombstones(checkpoint: Checkpoint, table: str) -> Iterator[NDArray[Any]]:
    """The removed keys that a chain keeps: (id, group, step), in (hash, group) order.

    The newest of each key, without those that have a row again.
    """
    with offering(checkpoint):
        chain = checkpoint.chain()
        sources = []
        for one in reversed(chain):
            sources.append(_removed_in(one, table, 0, LAST_HASH))
            # The first one's rows have no tombstones of its own, and are older than all others.
            rows = one is not chain[0]
            sources.append(_rows_in(one, table, 0, LAST_HASH, len(chain)) if rows else iter(()))
        try:
            for block in newest(sources, keys_of(checkpoint.table(table))):
                yield from block.of(range(0, len(sources), 2), tombstone_files.DTYPE)
        except DisorderError as error:
            raise_damage(checkpoint, table, str(error))


def raise_damage(checkpoint: Checkpoint, table: str, what: str) -> NoReturn:
    """Raise DamagedError for the file of a table whose checksum is wrong, else for what it has.

    Records are used before the checksum of their file is known, so what is wrong with them is most
    often a damaged file.
    """
    for one in checkpoint.chain():
        for path in one.table(table).paths:
            url = files.join(one.folder, path)
            with files.open_input(url, decompress=False) as file:
                stored = _Stored(file)
                while stored.read(BYTES_PER_READ):
                    pass
            check_entry(one.folder, one.manifest, path, stored.bytes, stored.sha256)
    raise DamagedError(
        checkpoint.folder,
        f"{checkpoint.folder} table {table} {what}",
        "Take another checkpoint",
    )


def files_of(checkpoint: Checkpoint, table: str) -> Iterator[tuple[str, NDArray[Any]]]:
    """The records of one checkpoint's own files, a delta's alone: (file, records) after each other.

    Raises DamagedError, for a damaged file after the records in it.
    """
    with offering(checkpoint):
        yield from _of_one(checkpoint, table, 0, LAST_HASH)


def _rows_in(
    checkpoint: Checkpoint, table: str, first: int, last: int, sources: int
) -> Iterator[NDArray[Any]]:
    """The same without the files' names, when so many are read at once."""
    for _, records in _of_one(checkpoint, table, first, last, BYTES_PER_READ // sources):
        yield records


def _of_one(
    checkpoint: Checkpoint, table: str, first: int, last: int, at_a_time: int = BYTES_PER_READ
) -> Iterator[tuple[str, NDArray[Any]]]:
    """The records of one checkpoint's own files whose hash is in a range."""
    part = checkpoint.table(table)
    dtype, keys = record_dtype(part), keys_of(part)
    for entry in part.files:
        low, high = entry.hashes
        if high < first or low > last:
            continue
        header = HEADER.pack(MAGIC, 1, dtype.itemsize, low, high)
        rows = 0
        for records in verified(checkpoint, entry.file, header, dtype, at_a_time):
            rows += len(records)
            if rows > entry.rows:
                break
            if low < first or high > last:
                hashes = keys.hashes(records)
                records = records[(hashes >= np.uint64(first)) & (hashes <= np.uint64(last))]
            if len(records):
                yield entry.file, records
        check_rows(checkpoint, entry.file, rows, entry.rows)


def _removed_in(
    checkpoint: Checkpoint, table: str, first: int, last: int
) -> Iterator[NDArray[Any]]:
    """The keys that one checkpoint's own file says were removed."""
    part = checkpoint.table(table)
    entry = part.tombstones
    if entry is None:
        return
    rows, keys = 0, keys_of(part)
    for removed in verified(checkpoint, entry.file, tombstone_files.START, tombstone_files.DTYPE):
        rows += len(removed)
        if rows > entry.rows:
            break
        if first > 0 or last < LAST_HASH:
            hashes = keys.hashes(removed)
            removed = removed[(hashes >= np.uint64(first)) & (hashes <= np.uint64(last))]
        if len(removed):
            yield removed
    check_rows(checkpoint, entry.file, rows, entry.rows)


def check_count(checkpoint: Checkpoint, table: str, rows: int) -> None:
    """Raise DamagedError unless a table has as many rows as its manifest says."""
    said = checkpoint.table(table).rows
    if rows != said:
        raise DamagedError(
            checkpoint.folder,
            f"{checkpoint.folder} table {table} has {rows:,} rows, the manifest says {said:,}",
            "Take another checkpoint",
        )


def check_rows(checkpoint: Checkpoint, name: str, rows: int, said: int) -> None:
    """Raise DamagedError unless a file has as many records as the manifest says."""
    if rows != said:
        raise DamagedError(
            checkpoint.folder,
            f"{files.join(checkpoint.folder, name)} has {rows:,} records, the manifest says "
            f"{said:,}",
            "Take another checkpoint",
        )


def verified(
    checkpoint: Checkpoint,
    name: str,
    header: bytes,
    dtype: np.dtype[Any],
    at_a_time: int = BYTES_PER_READ,
) -> Iterator[NDArray[Any]]:
    """The records of one file, read and hashed in a thread, about so many bytes at a time.

    Its checksum is known to be right only after the last of them.
    """
    with ReadAhead(_blocks(checkpoint, name, header, dtype, at_a_time), READS_AHEAD) as ahead:
        yield from ahead


def _blocks(
    checkpoint: Checkpoint, name: str, header: bytes, dtype: np.dtype[Any], at_a_time: int
) -> Iterator[NDArray[Any]]:
    url = files.join(checkpoint.folder, name)

    def damaged(what: str) -> DamagedError:
        return DamagedError(checkpoint.folder, f"{url} {what}", "Take another checkpoint")

    whole = True
    with (
        present(checkpoint.folder, checkpoint.manifest, name),
        files.open_input(url, decompress=False) as file,
    ):
        stored = _Stored(file)
        content: Any = stored
        if name.endswith(".zst"):
            content = pa.CompressedInputStream(pa.PythonFile(stored, mode="r"), "zstd")
        try:
            if read_fully(content, len(header)) != header:
                raise damaged("is not the file that the manifest describes")
            size = max(1, at_a_time // dtype.itemsize) * dtype.itemsize
            while whole and (data := read_fully(content, size)):
                whole = len(data) % dtype.itemsize == 0
                if whole:
                    yield np.frombuffer(data, dtype)
        except (OSError, pa.ArrowException) as error:  # of the decompression
            raise damaged(f"is damaged ({error})") from error
        while stored.read(BYTES_PER_READ):
            pass
    check_entry(checkpoint.folder, checkpoint.manifest, name, stored.bytes, stored.sha256)
    if not whole:
        raise damaged("ends within a record")


class _Stored:
    """A stored file that counts and hashes what is read of it."""

    def __init__(self, file: Any) -> None:
        self._file, self._hash = file, hashlib.sha256()
        self.bytes = 0

    def read(self, size: int) -> bytes:
        data: bytes = self._file.read(size)
        self._hash.update(data)
        self.bytes += len(data)
        return data

    closed = False

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        """Whoever opened the file closes it."""

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()


def read_fully(file: Any, size: int) -> bytes:
    """`size` bytes, or fewer at the end of the file only."""
    data: bytes = file.read(size)
    if len(data) == size or not data:
        return data
    parts = [data]
    size -= len(data)
    while size and (data := file.read(size)):
        parts.append(data)
        size -= len(data)
    return b"".join(parts)
