"""Exported embeddings, read back without the C tables: plain pyarrow and numpy.

This is the reader of a stranger: it knows docs/formats/embeddings.md and nothing else of tnctl.
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tnctl import files
from tnctl.checkpoint import manifest
from tnctl.errors import Failure
from tnctl.serving.export import FORMAT

READ_ROWS = 1 << 17


class Dictionary:
    """The weights of chosen ids of exported share groups."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.manifest = manifest.read(folder, FORMAT)
        for name in self.manifest["files"]:
            manifest.check_stored(folder, self.manifest, name)
        self._files = {group["group"]: group["file"] for group in self.manifest["groups"]}

    def rows(self, group: str, ids: NDArray[np.uint64]) -> dict[int, tuple[np.float32, Any]]:
        """The (linear, embedding or None) of those ids that the group has. One pass, streaming."""
        if group not in self._files:
            raise Failure(f"{self.folder} has no group {group}. Export the checkpoint again")
        name = self._files[group]
        wanted = np.unique(ids)
        found: dict[int, tuple[np.float32, Any]] = {}
        with files.open_input(files.join(self.folder, name), decompress=False) as stream:
            try:
                for part in pq.ParquetFile(stream).iter_batches(READ_ROWS):
                    found.update(chosen(part, wanted))
            except pa.ArrowException as error:
                raise Failure(f"{self.folder}/{name} is damaged ({error}). Export again") from error
        return found


def chosen(part: pa.RecordBatch, wanted: NDArray[np.uint64]) -> dict[int, tuple[np.float32, Any]]:
    """Those rows of a record batch whose id is wanted (ascending)."""
    ids = part.column("id").to_numpy()
    places = np.flatnonzero(np.isin(ids, wanted, assume_unique=True))
    linear = part.column("linear").to_numpy()
    if "embedding" not in part.schema.names:
        return {int(ids[i]): (linear[i], None) for i in places}
    lists = part.column("embedding")
    floats = lists.flatten().to_numpy().reshape(len(lists), -1)
    return {int(ids[i]): (linear[i], floats[i]) for i in places}


def pooled(rows: list[NDArray[np.float32]], width: int, pooling: str) -> NDArray[np.float32]:
    """Weights float32 [width] of one cell: summed in the order of the ids, divided once.

    mean divides by n, sqrtn by the float32 root of n; a cell without ids is zeros.
    """
    total = np.zeros(width, np.float32)
    for number, row in enumerate(rows):
        total = row.copy() if number == 0 else total + row
    if len(rows) > 1 and pooling != "sum":
        count = np.float32(len(rows))
        total /= count if pooling == "mean" else np.sqrt(count)
    return total
