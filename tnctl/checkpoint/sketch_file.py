"""The sketch that counts ids that have no row yet. docs/formats/checkpoint.md."""

import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl import files
from tnctl.checkpoint.chain import Checkpoint
from tnctl.checkpoint.table_document import Counters, SketchFile, SketchRange, Table
from tnctl.errors import Failure
from tnctl.manifest import HashedInput, Opening, check_entry, present
from tnctl.tables import ALL_SHARDS, Shards, SparseTable
from tnctl.tables.shards import SHARDS

START = struct.pack("<8sII", b"tnctlskt", 1, 0)  # magic, version, 0
BYTES_PER_READ = 4 << 20


def write(opening: Opening, folder: str, table: SparseTable) -> SketchFile | None:
    """Write the counters of a table that has any; returns the file's entry of the manifest."""
    if not len(table.sketch):
        return None
    name = f"{folder}/sketch.bin"
    return SketchFile(file=name, bytes=_write(opening, name, table.sketch))


def write_range(
    opening: Opening, name: str, table: SparseTable, shards: Shards
) -> SketchRange | None:
    """Write the counters of some shards of a table, if it has any, to a file."""
    if not len(table.sketch):
        return None
    first, last = shards.hashes
    size = _write(opening, name, counters_of(table, shards))
    return SketchRange(file=name, first=f"{first:016x}", last=f"{last:016x}", bytes=size)


def _write(opening: Opening, name: str, counters: NDArray[np.uint8]) -> int:
    with opening(name) as stream:
        stream.write(START)
        stream.write(counters.data)
    return len(counters)


def counters_of(table: SparseTable, shards: Shards) -> NDArray[np.uint8]:
    """The counters of some shards, uint8 [n]: the table's own memory."""
    per_shard = len(table.sketch) // SHARDS
    return table.sketch[shards.first * per_shard : shards.end * per_shard]


def read(
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
    place = -shards.first * (len(table.sketch) // SHARDS)
    for entry in part.all_sketch_files:
        if entry.hashes[1] < first or entry.hashes[0] > last:
            place += entry.bytes
            continue
        for block in blocks(checkpoint, entry):
            begin, end = max(place, 0), min(place + len(block), len(counters))
            if begin < end:
                counters[begin:end] = block[begin - place : end - place]
            place += len(block)


def blocks(checkpoint: Checkpoint, entry: Counters) -> Iterator[NDArray[np.uint8]]:
    """The counters of a file, uint8 [n], of a few MiB at most.

    Its checksum is checked only after the last of them; then DamagedError is raised.
    """
    url = files.join(checkpoint.folder, entry.file)
    with (
        present(checkpoint.folder, checkpoint.manifest, entry.file),
        files.open_input(url, decompress=False) as file,
    ):
        stored: Any = HashedInput(file)
        is_sketch, remaining = files.read_most(stored, len(START)) == START, entry.bytes
        while is_sketch and (data := files.read_most(stored, min(remaining, BYTES_PER_READ))):
            yield np.frombuffer(data, np.uint8)
            remaining -= len(data)
        stored.read_rest()
    check_entry(checkpoint.folder, checkpoint.manifest, entry.file, stored.entry())
    if not is_sketch:
        raise checkpoint.damaged(f"{url} is not the sketch that the manifest describes")
