"""The sketch that counts ids that have no row yet. docs/formats/checkpoint.md."""

import struct

import numpy as np

from tnctl import files
from tnctl.checkpoint.chain import Checkpoint
from tnctl.checkpoint.table_document import SketchFile, Table
from tnctl.errors import Failure
from tnctl.manifest import Opening, read_file
from tnctl.tables import SparseTable

START = struct.pack("<8sII", b"tnctlskt", 1, 0)  # magic, version, 0


def write(opening: Opening, folder: str, table: SparseTable) -> SketchFile | None:
    """Write the counters of a table that has any; returns the file's entry of the manifest."""
    counters = table.sketch
    if not len(counters):
        return None
    name = f"{folder}/sketch.bin"
    with opening(name) as stream:
        stream.write(START)
        stream.write(counters.data)
    return SketchFile(file=name, bytes=len(counters))


def read(checkpoint: Checkpoint, part: Table, table: SparseTable) -> None:
    """Fill the counters of a table. Raises Failure when it has others."""
    size = 0 if part.sketch is None else part.sketch.bytes
    if size != len(table.sketch):
        raise Failure(
            f"{checkpoint.folder} table {part.name} has a sketch of {size:,} bytes, the conf "
            f"needs {len(table.sketch):,}. Use the conf that it was saved with"
        )
    if part.sketch is None:
        return
    data = read_file(checkpoint.folder, checkpoint.manifest, part.sketch.file)
    # Its size is checked with the manifest: Table.check_sizes.
    if not data.startswith(START):
        url = files.join(checkpoint.folder, part.sketch.file)
        raise checkpoint.damaged(f"{url} is not the sketch that the manifest describes")
    table.sketch[:] = np.frombuffer(data, np.uint8, offset=len(START))
