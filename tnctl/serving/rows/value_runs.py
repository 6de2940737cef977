"""Values of a slot in the order of its rows, each once, sorted in bounded memory.

What does not fit is sorted in runs, files of this machine, which are merged.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tnctl import files
from tnctl.data.slot_values import text_hashes
from tnctl.serving.rows.file_format import hashes_of

ROWS_PER_BATCH = 1 << 13
RUNS_MERGED = 16  # as many are read at a time


def keyed(group: str, ids: NDArray[np.uint64], values: pa.Array) -> pa.Table:
    """Ids uint64 [n] and their values, with what orders them: hashes of the key and the value."""
    return pa.table(
        {
            "key": hashes_of(group, ids),
            "text": text_hashes(values),
            "id": ids,
            "value": values,
        }
    )


class ValueRuns:
    """The values of a slot, of which about `most` bytes are in memory."""

    def __init__(self, folder: Path, group: str, most: int) -> None:
        self._folder, self._group, self._most = folder, group, most
        self._parts: list[pa.Table] = []
        self._bytes = self._files = 0
        self._levels: list[list[Path]] = []

    def add(self, ids: NDArray[np.uint64], values: pa.Array) -> None:
        """Further ids uint64 [n] and their values [n], in any order."""
        if not len(ids):
            return
        part = keyed(self._group, ids, values)
        self._parts.append(part)
        self._bytes += part.nbytes
        if self._bytes < self._most:
            return
        whole = distinct(self._parts)
        self._parts, self._bytes = [whole], whole.nbytes
        # Else most of it was there already, and there is room again.
        if self._bytes > self._most // 2:
            self._file(iter([whole]), 0)
            self._parts, self._bytes = [], 0

    def sorted(self) -> Iterator[pa.Table]:
        """All, ascending by (key, text), in batches."""
        paths = [path for level in self._levels for path in level]
        sources = [_stored(path) for path in paths]
        if self._parts:
            sources.append(_batches(distinct(self._parts)))
        return merged(sources)

    def _file(self, tables: Iterator[pa.Table], level: int) -> None:
        """Write a run; RUNS_MERGED of one level become one of the next."""
        path = self._folder / f"{self._files}.values"
        self._files += 1
        with files.translated(str(path), "written"), pa.OSFile(str(path), "wb") as file:
            writer: pa.RecordBatchStreamWriter | None = None
            for table in tables:
                writer = writer or pa.ipc.new_stream(file, table.schema)
                writer.write_table(table, ROWS_PER_BATCH)
            if writer is not None:
                writer.close()
        if level == len(self._levels):
            self._levels.append([])
        runs = self._levels[level]
        runs.append(path)
        if len(runs) == RUNS_MERGED:
            self._levels[level] = []
            self._file(merged([_stored(run) for run in runs]), level + 1)
            for run in runs:
                run.unlink()


def distinct(tables: Sequence[pa.Table]) -> pa.Table:
    """The rows of tables as one, ascending by (key, text), each once."""
    table = pa.concat_tables(tables)
    keys, texts = (table.column(name).to_numpy() for name in ("key", "text"))
    order = np.lexsort((texts, keys))
    keys, texts = keys[order], texts[order]
    fresh = np.ones(len(order), bool)
    fresh[1:] = (keys[1:] != keys[:-1]) | (texts[1:] != texts[:-1])
    return table.take(pa.array(order[fresh])).combine_chunks()


def merged(sources: Sequence[Iterator[pa.Table]]) -> Iterator[pa.Table]:
    """The rows of sources, each ascending by (key, text) without a repetition, merged likewise."""
    held = [(table, source) for source in sources if (table := _following(source)) is not None]
    while held:
        # Every source has been read at least this far.
        last = min(_pair(table, table.num_rows - 1) for table, _ in held)
        taken, left = [], []
        for table, source in held:
            count = _count_to(table, last)
            taken.append(table.slice(0, count))
            rest = table.slice(count) if count < table.num_rows else _following(source)
            if rest is not None:
                left.append((rest, source))
        held = left
        yield distinct(taken)


def _following(source: Iterator[pa.Table]) -> pa.Table | None:
    return next((table for table in source if table.num_rows), None)


def _pair(table: pa.Table, row: int) -> tuple[int, int]:
    return table.column("key")[row].as_py(), table.column("text")[row].as_py()


def _count_to(table: pa.Table, last: tuple[int, int]) -> int:
    """How many rows are not above a pair of key and text."""
    keys, texts = (table.column(name).to_numpy() for name in ("key", "text"))
    key, text = map(np.uint64, last)
    first = int(np.searchsorted(keys, key, "left"))
    end = int(np.searchsorted(keys, key, "right"))
    return first + int(np.searchsorted(texts[first:end], text, "right"))


def _batches(table: pa.Table) -> Iterator[pa.Table]:
    for first in range(0, table.num_rows, ROWS_PER_BATCH):
        yield table.slice(first, ROWS_PER_BATCH)


def _stored(path: Path) -> Iterator[pa.Table]:
    with files.translated(str(path)), pa.OSFile(str(path)) as file:
        for batch in pa.ipc.open_stream(file):
            yield pa.Table.from_batches([batch])
