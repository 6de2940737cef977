"""The files of a table, rows, removed keys and counters: written, and read from a chain of them.

docs/formats/checkpoint.md has the files.
"""

import itertools
import math
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tnctl import files, system
from tnctl.checkpoint.chain import Checkpoint, offering
from tnctl.checkpoint.document import LAST_HASH, Counters, RowsFile, Table, Tombstones
from tnctl.checkpoint.merging import DisorderError, KeyHashes, newest
from tnctl.data.read_ahead import ReadAhead
from tnctl.errors import Failure
from tnctl.manifest import HashedInput, Opening, check_entry, entry_of, present
from tnctl.model.parameter_tables import ParameterTables
from tnctl.tables import (
    ALL_SHARDS,
    REMOVED_DTYPE,
    Figures,
    Shards,
    SparseTable,
    days_of_steps,
    weight_factors,
)
from tnctl.tables.plans import SHARDS

# Magic, version, bytes per record, first and last hash.
HEADER = struct.Struct("<8sIIQQ")
MAGIC = b"tnctlrow"
# Magic, version, bytes per record or 0.
TOMBSTONES_START = struct.pack("<8sII", b"tnctltmb", 1, REMOVED_DTYPE.itemsize)
SKETCH_START = struct.pack("<8sII", b"tnctlskt", 1, 0)
BYTES_PER_FILE = 256 << 20
BYTES_PER_READ = 4 << 20
READS_AHEAD = 2
LEAST_INDEX_BYTES = 10  # of a row: 8 for each place of the index, at most 3 in 4 are occupied
COMPUTING_BYTES = 128 << 20  # the least that TensorFlow and batches take beside the rows


# ---- Writing ----------------------------------------------------------------


def files_needed(rows: int, record_size: int) -> int:
    """How many files rows are written to: a power of two, each of about 256 MiB."""
    count = 1
    while rows * record_size / count > BYTES_PER_FILE:
        count *= 2
    return count


def ranges(count: int, first: int = 0, last: int = LAST_HASH) -> list[tuple[int, int]]:
    """The hashes from `first` to `last` in `count` equal ranges (first, last)."""
    edges = [first + (last + 1 - first) * index // count for index in range(count + 1)]
    return [(edge, following - 1) for edge, following in itertools.pairwise(edges)]


def bounds(first: int, last: int) -> dict[str, str]:
    """The range of hashes of a file, as its entry of the manifest has it."""
    return {"first": f"{first:016x}", "last": f"{last:016x}"}


def file_name(folder: str, index: int, suffix: str) -> str:
    """The name of a table's rows file by its index in the order of hashes.

    `suffix` is ".zst" for compressed files, or empty.
    """
    return f"{folder}/{index:05d}.rows{suffix}"


def write_files(
    opening: Opening,
    names: Sequence[str],
    hashes: Sequence[tuple[int, int]],
    record_size: int,
    records: Callable[[int, int], Iterator[NDArray[Any]]],
) -> tuple[RowsFile, ...]:
    """Write rows files of these names and ranges of hashes; returns their entries.

    `records(first, last)` yields the records of a range of hashes, arrays [n] of the record dtype,
    in (hash, group) order.
    """
    entries = []
    for name, (first, last) in zip(names, hashes, strict=True):
        with ReadAhead(records(first, last), READS_AHEAD) as ahead:
            header = HEADER.pack(MAGIC, 1, record_size, first, last)
            count = _write(opening, name, header, ahead)
        entries.append(RowsFile(file=name, rows=count, **bounds(first, last)))
    return tuple(entries)


def write_tombstones(
    opening: Opening, name: str, removed: Iterable[NDArray[Any]], range_: Mapping[str, str]
) -> Tombstones | None:
    """Write removed keys, arrays [n] of REMOVED_DTYPE in (hash, group) order; returns the entry.

    `range_` are the `bounds` of an owner of some hashes. An owner of all writes no file when there
    are no keys.
    """
    blocks = (block for block in removed if len(block))
    first = next(blocks, None)
    if first is None and not range_:
        return None
    written = itertools.chain([] if first is None else [first], blocks)
    count = _write(opening, name, TOMBSTONES_START, written)
    return Tombstones(file=name, rows=count, **range_)


def write_sketch(
    opening: Opening, name: str, counters: NDArray[np.uint8], range_: Mapping[str, str]
) -> Counters | None:
    """Write counters, uint8 [n], if there are any; `range_` as for removed keys."""
    if not len(counters):
        return None
    return Counters(
        file=name, bytes=_write(opening, name, SKETCH_START, iter([counters])), **range_
    )


def _write(opening: Opening, name: str, header: bytes, blocks: Iterable[NDArray[Any]]) -> int:
    """Write a file; returns the number of its records."""
    count = 0
    with opening(name) as stream:
        stream.write(header)
        for block in blocks:
            stream.write(np.ascontiguousarray(block).view("u1").data)
            count += len(block)
    return count


def counters_of(table: SparseTable, shards: Shards) -> NDArray[np.uint8]:
    """The counters of some shards, uint8 [n]: the table's own memory."""
    per_shard = len(table.sketch) // SHARDS
    return table.sketch[shards.first * per_shard : shards.end * per_shard]


# ---- Reading a chain --------------------------------------------------------


def keys_of(table: Table) -> KeyHashes:
    """The hashes of a table's keys, by its groups."""
    return KeyHashes({group.number: group.name for group in table.groups})


def stream(
    checkpoint: Checkpoint, table: str, first: int = 0, last: int = LAST_HASH
) -> Iterator[NDArray[Any]]:
    """The rows of a table with first <= hash <= last, in (hash, group) order.

    Of each key the newest record in the chain, unless it was removed since. Arrays [n] of the
    table's record dtype, of a few MiB at most. Raises DamagedError, for a damaged file only after
    the records in it.
    """
    count, known = 0, np.zeros(1 << 16, bool)
    known[[group.number for group in checkpoint.table(table).groups]] = True
    with offering(checkpoint):
        for records in _newest(checkpoint, table, True, first, last):
            if not known[records["group"]].all():
                raise_damage(checkpoint, table, "has a row of a group that is not there")
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
        for records in verified(checkpoint, part, entry, at_a_time):
            if low < first or high > last:
                hashes = keys.hashes(records)
                records = records[(hashes >= np.uint64(first)) & (hashes <= np.uint64(last))]
            if len(records):
                yield records


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
        dtype, header = REMOVED_DTYPE, TOMBSTONES_START
    url, count, rest = files.join(checkpoint.folder, entry.file), 0, 0
    size = max(1, at_a_time // dtype.itemsize) * dtype.itemsize
    for data in _content(checkpoint, entry.file, header, size):
        records, rest = divmod(len(data), dtype.itemsize)
        count += records
        if count > entry.rows:
            break
        yield np.frombuffer(data, dtype, records)
    if rest:
        raise checkpoint.damaged(f"{url} ends within a record")
    if count != entry.rows:
        raise checkpoint.damaged(f"{url} has {count:,} records, the manifest says {entry.rows:,}")


def sketch_blocks(checkpoint: Checkpoint, entry: Counters) -> Iterator[NDArray[np.uint8]]:
    """The counters of a file, uint8 [n], of a few MiB at most. Raises as `verified` does."""
    for data in _content(checkpoint, entry.file, SKETCH_START, BYTES_PER_READ):
        yield np.frombuffer(data, np.uint8)


def _content(checkpoint: Checkpoint, name: str, header: bytes, size: int) -> Iterator[bytes]:
    """What a file has after its header, in blocks of `size` bytes; the last one may be shorter."""
    url = files.join(checkpoint.folder, name)
    with (
        present(checkpoint.folder, checkpoint.manifest, name),
        files.open_input(url, decompress=False) as file,
    ):
        stored = HashedInput(file)
        content: Any = stored
        try:
            if name.endswith(".zst"):
                content = pa.CompressedInputStream(pa.PythonFile(stored, mode="r"), "zstd")
            has_header = files.read_most(content, len(header)) == header
            while has_header and (data := files.read_most(content, size)):
                yield data
        except (OSError, pa.ArrowException) as error:  # of the decompression
            raise checkpoint.damaged(f"{url} is damaged ({error})") from error
        stored.read_rest()
    check_entry(checkpoint.folder, checkpoint.manifest, name, stored.entry())
    if not has_header:
        raise checkpoint.damaged(f"{url} is not the file that the manifest describes")


# ---- Filling tables ---------------------------------------------------------


def fill_tables(
    checkpoint: Checkpoint, model: ParameterTables, shards: Shards = ALL_SHARDS
) -> None:
    """Fill the tables of a model that was just built with the rows of some shards.

    The model's conf must be the one that the checkpoint was saved with. Raises Failure.
    """
    parts = {table.name: table for table in checkpoint.manifest.tables}
    if sorted(parts) != sorted(layout.name for layout in model.layout.tables):
        raise Failure(f"{checkpoint.folder} has tables {sorted(parts)}, the conf needs others")
    needed = sum(
        parts[layout.name].rows * shards.count // SHARDS * (table.stride + LEAST_INDEX_BYTES)
        for layout, table in zip(model.layout.tables, model.tables, strict=True)
    )
    system.require(needed, COMPUTING_BYTES, f"the model of {checkpoint.folder}")
    with offering(checkpoint):
        for layout, table in zip(model.layout.tables, model.tables, strict=True):
            part = parts[layout.name]
            saved = {group.name: group.number for group in part.groups}
            if saved != layout.groups:
                raise Failure(f"{checkpoint.folder} has groups {saved}, the conf {layout.groups}")
            if shards.count:
                load_table(checkpoint, part, table, shards)


def load_table(
    checkpoint: Checkpoint, part: Table, table: SparseTable, shards: Shards = ALL_SHARDS
) -> None:
    """Fill an empty table with the rows of some shards; only files that have such rows are read.

    Of these files every byte is read, so that every checksum is checked. What counts the whole
    table and cannot be divided, ids that wait and rows removed, goes to the table with shard 0.
    Raises Failure when the rows are not what the manifest says.
    """
    if part.record_dtype != table.record_dtype:
        raise Failure(
            f"{checkpoint.folder} table {part.name} has records of "
            f"{part.record_dtype.names}, the conf needs {table.record_dtype.names}. "
            "Use the conf that it was saved with"
        )
    first, last = shards.hashes
    entries = [entry for link in checkpoint.chain() for entry in link.table(part.name).files]
    rows_within = sum(entry.rows * shared(entry.hashes, (first, last)) for entry in entries)
    table.reserve(min(part.rows, math.ceil(rows_within)))
    for records in stream(checkpoint, part.name, first, last):
        try:
            table.insert_records(records.view("u1"))
        except ValueError as error:
            raise_damage(checkpoint, part.name, f"is damaged ({error})")
    read_sketch(checkpoint, part, table, shards)
    # What reading a row gives depends on the step where weights decay, and on the day.
    table.set_step(checkpoint.step)
    table.set_days(checkpoint.clock.days)
    if shards.first == 0:
        for group in part.groups:
            figures = Figures(group.rows, group.admitted, group.waiting, group.evicted)
            table.set_figures(group.number, figures)


def shared(hashes: tuple[int, int], others: tuple[int, int]) -> float:
    """The share of a range of hashes (first, last) that another has too."""
    (first, last), (first_other, last_other) = hashes, others
    return max(0, min(last, last_other) + 1 - max(first, first_other)) / (last + 1 - first)


def read_sketch(
    checkpoint: Checkpoint, part: Table, table: SparseTable, shards: Shards = ALL_SHARDS
) -> None:
    """Fill the counters of some shards of a table. Raises Failure when it has others.

    Files are read whole, for their checksums, and the memory of a block is all that this takes.
    """
    if part.sketch_bytes != len(table.sketch):
        raise Failure(
            f"{checkpoint.folder} table {part.name} has a sketch of {part.sketch_bytes:,} bytes, "
            f"the conf needs {len(table.sketch):,}. Use the conf that it was saved with"
        )
    first, last = shards.hashes
    counters = counters_of(table, shards)
    # Where the next byte of a file goes in the counters, if it is of these shards.
    to = -shards.first * (len(table.sketch) // SHARDS)
    for entry in part.all_sketch_files:
        if entry.hashes[1] < first or entry.hashes[0] > last:
            to += entry.bytes
            continue
        for block in sketch_blocks(checkpoint, entry):
            begin, end = max(to, 0), min(to + len(block), len(counters))
            if begin < end:
                counters[begin:end] = block[begin - to : end - to]
            to += len(block)


# ---- Rows as they are read at the step and day of a checkpoint --------------


def as_read(records: NDArray[Any], table: Table, step: int) -> NDArray[Any]:
    """Records [n] of the table's record dtype with the weights that are read at a step."""
    for segment in table.segments:
        optimizer = segment.optimizer.rule()
        if optimizer.decays:
            records = records.copy()
            unread = (step - records["changed"]).astype(np.uint32)
            factors = weight_factors(optimizer, segment.name, records, unread)
            records[segment.name] *= factors[:, np.newaxis]
    return records


def shows_as_read(
    records: NDArray[Any], table: Table, days: Sequence[tuple[int, int]]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Show and click of records [n], float64 [n] each, as they are read on the last of the days.

    `days` are (day, first step), ascending.
    """
    decays = np.ones(1 << 16)
    for group in table.groups:
        decays[group.number] = (table.life.decay or {})[group.name]
    left = decays[records["group"]] ** unseen_days(records["changed"], days)
    return records["show"][:, 0] * left, records["click"][:, 0] * left


def unseen_days(changed: NDArray[np.uint32], days: Sequence[tuple[int, int]]) -> NDArray[np.int64]:
    """The days between the steps of last updates [n] and the last of the days, int64 [n].

    `days_of_steps` gives the day of a step.
    """
    last_day = days[-1][0] if days else 0
    return last_day - days_of_steps(days, changed).astype(np.int64)


def first_step_kept(days: Sequence[tuple[int, int]], kept: int) -> int:
    """The first step of the last `kept` days; days are (day, first step), ascending."""
    return next((first for day, first in days if day > days[-1][0] - kept), 0)
