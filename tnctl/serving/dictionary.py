"""Exported embeddings, read back without the C tables: plain pyarrow and numpy.

This is the reader of a stranger: it knows docs/formats/embeddings.md and nothing else of tnctl.
"""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tnctl import files, manifest
from tnctl.errors import Failure
from tnctl.serving.export import FORMAT

READ_ROWS = 1 << 17

# The linear weight [1 or 0] and the embedding [width or 0], with cvm its counts too, of an id.
Row = tuple[NDArray[np.float32], NDArray[np.float32]]


class Dictionary:
    """The weights of chosen ids of exported share groups."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.manifest = manifest.read(folder, FORMAT)
        for name in self.manifest["files"]:
            manifest.check_stored(folder, self.manifest, name)
        self._files = {group["group"]: group["file"] for group in self.manifest["groups"]}

    def rows(self, group: str, ids: NDArray[np.uint64]) -> dict[int, Row]:
        """The (linear, embedding) of those ids that the group has. One pass, streaming."""
        if group not in self._files:
            raise Failure(f"{self.folder} has no group {group}. Export the checkpoint again")
        name = self._files[group]
        wanted = np.unique(ids)
        found: dict[int, Row] = {}
        with files.open_input(files.join(self.folder, name), decompress=False) as stream:
            try:
                for part in pq.ParquetFile(stream).iter_batches(READ_ROWS):
                    found.update(chosen(part, wanted))
            except pa.ArrowException as error:
                raise Failure(f"{self.folder}/{name} is damaged ({error}). Export again") from error
        return found


def chosen(part: pa.RecordBatch, wanted: NDArray[np.uint64]) -> dict[int, Row]:
    """Those rows of a record batch whose id is wanted (ascending)."""
    ids = part.column("id").to_numpy()
    places = np.flatnonzero(np.isin(ids, wanted, assume_unique=True))
    linear = np.zeros((len(ids), 0), np.float32)
    embedding = linear
    if "linear" in part.schema.names:
        linear = part.column("linear").to_numpy()[:, np.newaxis]
    if "embedding" in part.schema.names:
        lists = part.column("embedding")
        embedding = lists.flatten().to_numpy().reshape(len(lists), -1)
    return {int(ids[i]): (linear[i], embedding[i]) for i in places}


def pooled(
    rows: list[NDArray[np.float32]],
    width: int,
    pooling: str,
    weights: NDArray[np.float32] | None = None,
) -> NDArray[np.float32]:
    """Weights float32 [width] of one cell: summed in the order of the ids, divided once.

    mean divides by n, sqrtn by the float32 root of n; a cell without ids is zeros. With a weight
    per id, rows are multiplied first, mean divides by the sum of the weights and sqrtn by the root
    of the sum of their squares; a divisor that is not above 0 gives zeros.
    """
    total = np.zeros(width, np.float32)
    for number, row in enumerate(rows):
        if weights is not None:
            row = row * weights[number]
        total = row.copy() if number == 0 and weights is None else total + row
    if pooling == "sum" or not rows:
        return total
    if weights is None:
        count = np.float32(len(rows))
        return total / (count if pooling == "mean" else np.sqrt(count)) if len(rows) > 1 else total
    divisor = np.float32(0)
    for weight in weights:
        divisor += weight if pooling == "mean" else weight * weight
    if pooling == "sqrtn":
        divisor = np.sqrt(divisor)
    return total / divisor if divisor > 0 else np.zeros(width, np.float32)
