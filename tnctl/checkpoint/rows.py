"""Table files: the rows of a hash range. docs/formats/checkpoint.md."""

import hashlib
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl import files
from tnctl.errors import Failure
from tnctl.manifest import Inventory
from tnctl.tables import SparseTable

HEADER = struct.Struct("<8sIIQQ")  # magic, version, bytes per record, first and last hash
MAGIC = b"tnctlrow"
KEY = ("id", "group", "flags", "changed")  # one number each; all other fields are arrays
BYTES_PER_FILE = 256 << 20
READ_RECORDS = 1 << 16


def ranges(rows: int, record_size: int) -> list[tuple[int, int]]:
    """Equal hash ranges, a power of two of them, of about 256 MiB each."""
    count = 1
    while rows * record_size / count > BYTES_PER_FILE:
        count *= 2
    width = 2**64 // count
    return [(i * width, (i + 1) * width - 1) for i in range(count)]


def write(inventory: Inventory, folder: str, table: SparseTable) -> list[dict[str, Any]]:
    """Write all rows of a table; returns what the manifest says of each file."""
    entries = []
    record_size = table.record_dtype.itemsize
    for number, (first, last) in enumerate(ranges(table.rows, record_size)):
        name = f"{folder}/{number:05d}.rows"
        rows = 0
        with inventory.writing(name) as stream:
            stream.write(HEADER.pack(MAGIC, 1, record_size, first, last))
            for records in table.records(first, last):
                stream.write(records.view("u1"))
                rows += len(records)
        entries.append(
            {"file": name, "first": f"{first:016x}", "last": f"{last:016x}", "rows": rows}
        )
    return entries


def record_dtype(table: dict[str, Any]) -> np.dtype[Any]:
    """The fields of a record, as the manifest describes them."""
    fields = [
        (field["name"], field["type"], () if field["name"] in KEY else (field["count"],))
        for field in table["record"]
    ]
    return np.dtype(fields)


def width_of(table: dict[str, Any], segment: str) -> int:
    """The floats of a segment in the records that a manifest describes; 0 when there is none."""
    return next((int(f["count"]) for f in table["record"] if f["name"] == segment), 0)


def read(folder: str, manifest: dict[str, Any], part: dict[str, Any], table: SparseTable) -> None:
    """Insert all rows of a table. Raises Failure when a file is not what the manifest says."""
    if record_dtype(part) != table.record_dtype:
        raise Failure(
            f"{folder} table {part['name']} has records of {record_dtype(part).names}, the conf "
            f"needs {table.record_dtype.names}. Use the conf that it was saved with"
        )
    for entry in part["files"]:
        for records in verified(folder, manifest, entry, table.record_dtype):
            try:
                table.insert_records(records.view("u1"))
            except ValueError as error:
                url = files.join(folder, entry["file"])
                raise Failure(f"{url} is damaged ({error}). Take another checkpoint") from error


def stream(folder: str, manifest: dict[str, Any], part: dict[str, Any]) -> Iterator[NDArray[Any]]:
    """All records of a table, file after file, never many at a time."""
    for entry in part["files"]:
        yield from verified(folder, manifest, entry, record_dtype(part))


def verified(
    folder: str, manifest: dict[str, Any], entry: dict[str, Any], dtype: np.dtype[Any]
) -> Iterator[NDArray[Any]]:
    """The records of one file; its checksum is known to be right only after the last of them."""
    url, expected = files.join(folder, entry["file"]), manifest["files"][entry["file"]]
    first, last = int(entry["first"], 16), int(entry["last"], 16)
    hashed, size, whole = hashlib.sha256(), 0, True
    with files.open_input(url, decompress=False) as file:
        header = read_fully(file, HEADER.size)
        hashed.update(header)
        size += len(header)
        if header != HEADER.pack(MAGIC, 1, dtype.itemsize, first, last):
            raise Failure(f"{url} is not the table file that the manifest describes. Take another")
        while whole and (data := read_fully(file, READ_RECORDS * dtype.itemsize)):
            hashed.update(data)
            size += len(data)
            whole = len(data) % dtype.itemsize == 0
            if whole:
                yield np.frombuffer(data, dtype)
    if size != expected["bytes"] or hashed.hexdigest() != expected["sha256"]:
        raise Failure(
            f"{url} is damaged: {size:,} bytes, or another checksum than the manifest's of "
            f"{expected['bytes']:,} bytes. Take another checkpoint"
        )


def read_fully(file: Any, size: int) -> bytes:
    """`size` bytes, or fewer at the end of the file only."""
    parts = []
    while size and (data := file.read(size)):
        parts.append(data)
        size -= len(data)
    return b"".join(parts)
