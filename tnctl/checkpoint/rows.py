"""The rows and the removed keys of a table: written to files, and read from a chain of them.

docs/formats/checkpoint.md has the files.
"""

import itertools
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tnctl import files
from tnctl.checkpoint import tombstones as tombstone_files
from tnctl.checkpoint.chain import Checkpoint, offering
from tnctl.checkpoint.merging import DisorderError, Keys, newest
from tnctl.checkpoint.table_document import LAST_HASH, RowsFile, Table, Tombstones
from tnctl.data.read_ahead import ReadAhead
from tnctl.manifest import HashedInput, Opening, check_entry, entry_of, present
from tnctl.tables.records import REMOVED_DTYPE

HEADER = struct.Struct("<8sIIQQ")  # magic, version, bytes per record, first and last hash
MAGIC = b"tnctlrow"
BYTES_PER_FILE = 256 << 20
BYTES_PER_READ = 4 << 20
READS_AHEAD = 2


# ---- Writing ----------------------------------------------------------------


def files_needed(rows: int, record_size: int) -> int:
    """How many files rows are written to: a power of two, each of about 256 MiB."""
    count = 1
    while rows * record_size / count > BYTES_PER_FILE:
        count *= 2
    return count


def ranges(count: int, first: int = 0, last: int = LAST_HASH) -> list[tuple[int, int]]:
    """The hashes from `first` to `last` in `count` equal ranges (first, last)."""
    edges = [first + (last + 1 - first) * number // count for number in range(count + 1)]
    return [(edge, following - 1) for edge, following in itertools.pairwise(edges)]


def file_name(folder: str, number: int, suffix: str) -> str:
    """The name of a table's rows file by its number in the order of hashes."""
    return f"{folder}/{number:05d}.rows{suffix}"


def write(
    opening: Opening,
    folder: str,
    suffix: str,
    record_size: int,
    rows: int,
    records: Callable[[int, int], Iterator[NDArray[Any]]],
) -> tuple[RowsFile, ...]:
    """Write the rows files of a table; returns their entries of the manifest.

    `records(first, last)` yields the records of a range of hashes, arrays [n] of the record dtype,
    in (hash, group) order; `rows` is about how many there are in all. `suffix` is ".zst" for
    compressed files, or empty.
    """
    count = files_needed(rows, record_size)
    names = [file_name(folder, number, suffix) for number in range(count)]
    return write_files(opening, names, ranges(count), record_size, records)


def write_files(
    opening: Opening,
    names: Sequence[str],
    hashes: Sequence[tuple[int, int]],
    record_size: int,
    records: Callable[[int, int], Iterator[NDArray[Any]]],
) -> tuple[RowsFile, ...]:
    """Write rows files of these names and ranges of hashes; `records` as in `write`."""
    entries = []
    for name, (first, last) in zip(names, hashes, strict=True):
        count = 0
        with opening(name) as stream, ReadAhead(records(first, last), READS_AHEAD) as ahead:
            stream.write(HEADER.pack(MAGIC, 1, record_size, first, last))
            for block in ahead:
                stream.write(block.view("u1").data)
                count += len(block)
        entries.append(RowsFile(file=name, first=f"{first:016x}", last=f"{last:016x}", rows=count))
    return tuple(entries)


# ---- Reading a chain --------------------------------------------------------


def keys_of(table: Table) -> Keys:
    """The hashes of a table's keys, by its groups."""
    return Keys({group.number: group.name for group in table.groups})


def stream(
    checkpoint: Checkpoint, table: str, first: int = 0, last: int = LAST_HASH
) -> Iterator[NDArray[Any]]:
    """The rows of a table with first <= hash <= last, in (hash, group) order.

    Of each key the newest record in the chain, unless it was removed since. Arrays [n] of the
    table's record dtype, of a few MiB at most. Raises DamagedError, for a damaged file only after
    the records in it.
    """
    count = 0
    with offering(checkpoint):
        for records in _newest(checkpoint, table, True, first, last):
            count += len(records)
            yield records
        if (first, last) == (0, LAST_HASH):
            check_count(checkpoint, table, count)


def tombstones(
    checkpoint: Checkpoint, table: str, first: int = 0, last: int = LAST_HASH
) -> Iterator[NDArray[Any]]:
    """The removed keys that a chain keeps, in (hash, group) order: arrays [n] of REMOVED_DTYPE.

    Those with first <= hash <= last: the newest of each key, without keys that have a row again.
    Raises as `stream` does.
    """
    with offering(checkpoint):
        yield from _newest(checkpoint, table, False, first, last)


def _newest(
    checkpoint: Checkpoint, table: str, of_rows: bool, first: int, last: int
) -> Iterator[NDArray[Any]]:
    """The rows of a chain that were not removed since, or the removed keys without a newer row."""
    chain, part = checkpoint.chain(), checkpoint.table(table)
    at_a_time = BYTES_PER_READ // len(chain)  # all files of a chain are read at the same time
    if of_rows and len(chain) == 1:
        yield from _records(checkpoint, part, part.files, first, last, at_a_time)
        return
    sources: list[Iterator[NDArray[Any]]] = []
    for link in reversed(chain):
        linked = link.table(table)
        kinds = linked.files, linked.removed_files
        wanted, concealing = kinds if of_rows else reversed(kinds)
        if link is chain[0]:
            concealing = ()  # nothing is older than the first link, so there is nothing to conceal
        sources += [
            _records(link, linked, entries, first, last, at_a_time)
            for entries in (wanted, concealing)
        ]
    dtype = part.record_dtype if of_rows else REMOVED_DTYPE
    try:
        for block in newest(sources, keys_of(part)):
            yield from block.of(range(0, len(sources), 2), dtype)
    except DisorderError as error:
        raise_damage(checkpoint, table, str(error))


def _records(
    checkpoint: Checkpoint,
    part: Table,
    entries: Sequence[RowsFile | Tombstones],
    first: int,
    last: int,
    at_a_time: int,
) -> Iterator[NDArray[Any]]:
    """The records in files of one checkpoint (of a delta without its parents') by hash range."""
    keys = keys_of(part)
    for entry in entries:
        low, high = entry.hashes
        if high < first or low > last:
            continue
        count = 0
        for records in verified(checkpoint, part, entry, at_a_time):
            count += len(records)
            if count > entry.rows:
                break
            if low < first or high > last:
                hashes = keys.hashes(records)
                records = records[(hashes >= np.uint64(first)) & (hashes <= np.uint64(last))]
            if len(records):
                yield records
        if count != entry.rows:
            url = files.join(checkpoint.folder, entry.file)
            raise checkpoint.damaged(
                f"{url} has {count:,} records, the manifest says {entry.rows:,}"
            )


def check_count(checkpoint: Checkpoint, table: str, rows: int) -> None:
    """Raise DamagedError unless a table has as many rows as its manifest says."""
    expected = checkpoint.table(table).rows
    if rows != expected:
        raise checkpoint.damaged(
            f"{checkpoint.folder} table {table} has {rows:,} rows, the manifest says {expected:,}"
        )


def raise_damage(checkpoint: Checkpoint, table: str, what: str) -> NoReturn:
    """Raise DamagedError: for a file of a table whose checksum is wrong, else for `what`.

    Records are used before the checksum of their file is known, so what is wrong with them is most
    often a damaged file.
    """
    for link in checkpoint.chain():
        for entry in link.table(table).entries:
            stored = entry_of(files.join(link.folder, entry.file))
            check_entry(link.folder, link.manifest, entry.file, stored)
    raise checkpoint.damaged(f"{checkpoint.folder} table {table} {what}")


# ---- Reading one file -------------------------------------------------------


def verified(
    checkpoint: Checkpoint,
    part: Table,
    entry: RowsFile | Tombstones,
    at_a_time: int = BYTES_PER_READ,
) -> Iterator[NDArray[Any]]:
    """The records of one file, arrays [n] of about `at_a_time` bytes, read and hashed in a thread.

    Its checksum is checked only after the last of them; then DamagedError is raised.
    """
    with ReadAhead(_blocks(checkpoint, part, entry, at_a_time), READS_AHEAD) as ahead:
        yield from ahead


def _blocks(
    checkpoint: Checkpoint, part: Table, entry: RowsFile | Tombstones, at_a_time: int
) -> Iterator[NDArray[Any]]:
    if isinstance(entry, RowsFile):
        dtype = part.record_dtype
        header = HEADER.pack(MAGIC, 1, dtype.itemsize, *entry.hashes)
    else:
        dtype, header = REMOVED_DTYPE, tombstone_files.START
    url = files.join(checkpoint.folder, entry.file)
    whole = True
    with (
        present(checkpoint.folder, checkpoint.manifest, entry.file),
        files.open_input(url, decompress=False) as file,
    ):
        stored = HashedInput(file)
        content: Any = stored
        if entry.file.endswith(".zst"):
            content = pa.CompressedInputStream(pa.PythonFile(stored, mode="r"), "zstd")
        try:
            if files.read_most(content, len(header)) != header:
                raise checkpoint.damaged(f"{url} is not the file that the manifest describes")
            size = max(1, at_a_time // dtype.itemsize) * dtype.itemsize
            while whole and (data := files.read_most(content, size)):
                whole = len(data) % dtype.itemsize == 0
                if whole:
                    yield np.frombuffer(data, dtype)
        except (OSError, pa.ArrowException) as error:  # of the decompression
            raise checkpoint.damaged(f"{url} is damaged ({error})") from error
        stored.read_rest()
    check_entry(checkpoint.folder, checkpoint.manifest, entry.file, stored.entry())
    if not whole:
        raise checkpoint.damaged(f"{url} ends within a record")
