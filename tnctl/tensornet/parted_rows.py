"""Rows in files of this machine, parted by the hashes of their keys: sorted by them part by part.

So a table is never whole in memory: only a part of it is, while it is read and sorted.
"""

from collections.abc import Generator, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl import files
from tnctl.errors import Failure
from tnctl.tables.columns import group_salt, mix64

BYTES_PER_PART = 64 << 20
MOST_PARTS = 256  # as many files are open at a time
INFLATED = 4  # bytes of rows for each stored byte, about


def parts_needed(stored_bytes: int) -> int:
    """How many parts a table is cut into whose files have so many bytes: a power of two."""
    count = 1
    while count < MOST_PARTS and INFLATED * stored_bytes / count > BYTES_PER_PART:
        count *= 2
    return count


class PartedRows:
    """The rows of a table of TensorNet in `count` parts, each of an equal range of hashes.

    `group` is the name that salts the hashes of their keys.
    """

    def __init__(self, folder: Path, name: str, group: str, dtype: np.dtype[Any], count: int):
        self.name, self.group, self._dtype, self.count = name, group, dtype, count
        self._folder = folder
        self._salt = np.uint64(group_salt(group))
        self.rows = 0

    def write(self, blocks: Iterable[NDArray[Any]]) -> Generator[NDArray[Any], None, None]:
        """Write all rows, arrays [n] of the dtype, and yield each array when it is written."""
        shift = np.uint64(64 - (self.count.bit_length() - 1))
        with ExitStack() as stack:
            streams = [
                stack.enter_context(files.open_output(str(self._path(number)), durable=False))
                for number in range(self.count)
            ]
            for rows in blocks:
                if self.count == 1:
                    streams[0].write(rows.view("u1").data)
                else:
                    numbers = (mix64(rows["id"] ^ self._salt) >> shift).astype(np.uint16)
                    order = np.argsort(numbers, kind="stable")
                    parted = rows[order]
                    ends = np.cumsum(np.bincount(numbers, minlength=self.count)).tolist()
                    for stream, start, end in zip(streams, [0, *ends], ends, strict=False):
                        if end > start:
                            stream.write(parted[start:end].view("u1").data)
                self.rows += len(rows)
                yield rows

    def read(self, number: int) -> NDArray[Any]:
        """The rows of a part in ascending order of their signs, array [n] of the dtype.

        The part is removed. Raises Failure when a sign has two rows.
        """
        path = self._path(number)
        with files.translated(str(path)):
            rows = np.fromfile(path, self._dtype)
            path.unlink()
        rows = rows[np.argsort(rows["id"], kind="stable")]
        same = rows["id"][1:] == rows["id"][:-1]
        if same.any():
            sign = int(rows["id"][np.argmax(same)])
            raise Failure(
                f"table {self.name} has two rows of sign {sign}: it has files of two checkpoints, "
                "or of another number of ranks. Copy it again into an empty folder"
            )
        return rows

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:05d}.rows"
