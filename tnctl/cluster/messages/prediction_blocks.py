"""The predictions of a worker's units, in blocks of bounded size, until rank 0 has written them."""

import tempfile
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tnctl import files
from tnctl.cluster.messages.commands import BLOCK_BYTES
from tnctl.data.bad_rows import Skipped
from tnctl.data.batches import one_table
from tnctl.data.unit_records import Unit
from tnctl.errors import Failure
from tnctl.evaluation.inference import Inference
from tnctl.evaluation.predictions import predicted_windows
from tnctl.schema import Conf


class PredictionBlocks:
    """Blocks of predictions in a file of this machine, which is removed with the object."""

    def __init__(self) -> None:
        self._path = f"a file of predictions in {tempfile.gettempdir()}"
        with files.translated(self._path, "written"):
            # Without a name, so it ends with the process, however that ends.
            self._file = tempfile.TemporaryFile()  # noqa: SIM115
        self._ends = [0]

    def predict(
        self, inference: Inference, conf: Conf, split: str, units: Sequence[Unit], skipped: Skipped
    ) -> tuple[int, ...]:
        """Predict units of a split; how many blocks each unit has."""
        counts = []
        for unit in units:
            first = len(self._ends)
            for table in predicted_windows(inference, conf, split, unit, skipped):
                rows = max(BLOCK_BYTES * table.num_rows // max(table.nbytes, 1), 1)
                for start in range(0, table.num_rows, rows):
                    self._add(table.slice(start, rows))
            counts.append(len(self._ends) - first)
        return tuple(counts)

    def read(self, number: int) -> NDArray[np.uint8]:
        """A block, by its number among all."""
        start, end = self._ends[number : number + 2]
        with files.translated(self._path):
            self._file.seek(start)
            return np.frombuffer(self._file.read(end - start), np.uint8)

    def _add(self, table: pa.Table) -> None:
        stream = pa.BufferOutputStream()
        with pa.ipc.new_stream(stream, table.schema) as writer:
            writer.write_table(table)
        with files.translated(self._path, "written"):
            self._file.seek(self._ends[-1])
            self._file.write(stream.getvalue())
        self._ends.append(self._file.tell())


def parsed(block: NDArray[np.uint8]) -> pa.Table:
    """The predictions in a block. Raises Failure."""
    try:
        with pa.ipc.open_stream(pa.py_buffer(block)) as reader:
            table = reader.read_all()
        table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise Failure(f"the predictions of another worker are wrong: {error}") from error
    return table


def in_windows(tables: Iterable[pa.Table], size: int) -> Iterator[pa.Table]:
    """The same rows in tables of `size` rows, the last one shorter."""
    parts: list[pa.Table] = []
    waiting = 0
    for table in tables:
        start = 0
        while start < table.num_rows:
            part = table.slice(start, size - waiting)
            parts.append(part)
            start, waiting = start + part.num_rows, waiting + part.num_rows
            if waiting == size:
                yield one_table(parts)
                parts, waiting = [], 0
    if parts:
        yield one_table(parts)
