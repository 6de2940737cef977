"""The sketch that counts ids that have no row yet. docs/formats/checkpoint.md."""

import struct

import numpy as np

from tnctl import files
from tnctl.checkpoint.chain import Checkpoint
from tnctl.checkpoint.table_document import SketchFile, Table
from tnctl.errors import Failure
from tnctl.manifest import DamagedError, Opening, read_file
from tnctl.tables import SparseTable

HEADER = struct.Struct("<8sII")  # magic, version, 0
MAGIC = b"tnctlskt"
NAME = "sketch.bin"
START = HEADER.pack(MAGIC, 1, 0)


def write(opening: Opening, folder: str, table: SparseTable) -> SketchFile | None:
    """Write the counters of a table that has any; returns what the manifest says of the file."""
    counters = table.sketch
    if not len(counters):
        return None
    name = f"{folder}/{NAME}"
    with opening(name) as stream:
        stream.write(START)
        stream.write(counters.data)
    return SketchFile(file=name, bytes=len(counters))


def read(checkpoint: Checkpoint, part: Table, table: SparseTable) -> None:
    """Fill the counters of a table. Raises Failure when it has others."""
    said = part.sketch
    size = 0 if said is None else said.bytes
    if size != len(table.sketch):
        raise Failure(
            f"{checkpoint.folder} table {part.name} has a sketch of {size:,} bytes, the conf "
            f"needs {len(table.sketch):,}. Use the conf that it was saved with"
        )
    if said is None:
        return
    data = read_file(checkpoint.folder, checkpoint.manifest, said.file)
    if data[: HEADER.size] != START or len(data) != HEADER.size + size:
        url = files.join(checkpoint.folder, said.file)
        what = f"{url} is not the sketch that the manifest describes"
        raise DamagedError(checkpoint.folder, what, "Take another checkpoint")
    table.sketch[:] = np.frombuffer(data, np.uint8, offset=HEADER.size)
