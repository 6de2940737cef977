"""Parquet files, batch by batch."""

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tnctl import files, limits
from tnctl.data.file_pieces import BadRows, EmptyFileError, Piece, Where, require
from tnctl.data.formats import parquet_footer
from tnctl.data.formats.file_reader import GroupedReader
from tnctl.errors import Failure

BATCH_ROWS = 65_536
# Of a batch on average; of what has longer rows a batch has fewer.
BATCH_VALUES = 1 << 22
BATCH_BYTES = 64 << 20
CHUNK_BYTES = 64 << 20  # a column of a row group that is longer is read in parts
PART_BYTES = 1 << 20
REWRITE = "Write it again, or set data.format to what it is"


@dataclass(frozen=True)
class ParquetReader(GroupedReader):
    """Reads Parquet, with columns in the types of the file."""

    check_utf8: bool
    bad_rows: int

    def pieces_of_groups(
        self, url: str, needed: list[str], first: int, end: int | None
    ) -> Iterator[Piece]:
        bad = BadRows(self.bad_rows)
        with seekable(url) as stream, translated(url):
            _refuse_empty(url, stream)
            # Arrow would keep all that it reads ahead until the end of the file.
            source = pq.ParquetFile(stream, pre_buffer=False)
            require(url, needed, source.schema_arrow.names)
            groups = row_groups(url, source.schema, stream, needed)
            if any(group.longest > CHUNK_BYTES for group in groups):
                source = pq.ParquetFile(
                    stream, metadata=source.metadata, buffer_size=PART_BYTES, pre_buffer=False
                )
            batch_rows = min((group.batch_rows for group in groups), default=BATCH_ROWS)
            chosen, row = group_range(url, source.metadata, first, end)
            for batch in source.iter_batches(batch_rows, row_groups=chosen, columns=needed):
                table = pa.Table.from_batches([batch]).select(needed)
                numbers = np.arange(row, row + batch.num_rows)
                row += batch.num_rows
                if self.check_utf8:
                    good = _utf8_rows(url, numbers, batch, bad)
                    if not good.all():
                        table, numbers = table.filter(pa.array(good)), numbers[good]
                yield bad.piece(table, _where(url, numbers))

    def group_rows(self, url: str) -> list[int]:
        return group_rows(url)

    def columns(self, url: str) -> list[str] | None:
        with seekable(url) as stream, files.translated(url):
            _refuse_empty(url, stream)
            return list(pq.read_schema(stream).names)


class RowGroup(NamedTuple):
    """What a row group has in the columns that are read, by the footer."""

    batch_rows: int
    """rows of a batch, so that it has BATCH_VALUES and BATCH_BYTES at most on average"""
    longest: int
    """bytes, as stored, of the longest column"""


def row_groups(
    url: str, schema: pq.ParquetSchema, stream: BinaryIO, needed: Sequence[str] | None = None
) -> list[RowGroup]:
    """The row groups of a file, of the columns `needed` (default: of all).

    Raises `Failure` where lists have more values than a row group may have.
    """
    paths = {leaf: schema.column(leaf).path for leaf in range(len(schema.names))}
    # Parts of lists and structs have the column's name in front.
    prefixes = None if needed is None else tuple(f"{name}." for name in needed)
    leaves = [
        leaf for leaf, path in paths.items() if prefixes is None or f"{path}.".startswith(prefixes)
    ]
    lists = {leaf for leaf in leaves if schema.column(leaf).max_repetition_level}
    described = []
    for number, group in enumerate(parquet_footer.groups(stream)):
        if len(group.columns) != len(paths):
            raise ValueError(f"row group {number + 1} has {len(group.columns)} columns")
        columns = {leaf: group.columns[leaf] for leaf in leaves}
        values = sum(columns[leaf].values for leaf in lists)
        if values > limits.GROUP_VALUES:
            raise Failure(
                f"{url}, row group {number + 1}: {values:,} values in lists, and a row group has "
                f"at most {limits.GROUP_VALUES:,}. Write smaller row groups"
            )
        size = sum(column.uncompressed_bytes for column in columns.values())
        share = min(BATCH_VALUES / max(values, 1), BATCH_BYTES / max(size, 1))
        batch_rows = max(1, min(BATCH_ROWS, int(group.rows * share)))
        longest = max((column.compressed_bytes for column in columns.values()), default=0)
        described.append(RowGroup(batch_rows if group.rows else BATCH_ROWS, longest))
    return described


def row_count(url: str) -> int:
    """The number of rows of a file, by its metadata."""
    with seekable(url) as stream, translated(url):
        _refuse_empty(url, stream)
        return int(pq.ParquetFile(stream).metadata.num_rows)


def group_rows(url: str, way: str = REWRITE) -> list[int]:
    """The number of rows of each row group of a file, by its metadata."""
    with seekable(url) as stream, translated(url, way):
        _refuse_empty(url, stream)
        metadata = pq.ParquetFile(stream).metadata
        return [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]


def group_range(
    url: str, metadata: pq.FileMetaData, first: int, end: int | None
) -> tuple[list[int], int]:
    """The numbers of row groups `first` to `end` - 1 (None: the last), and their first row, from 1.

    Raises `Failure` for row groups that the file does not have.
    """
    end = metadata.num_row_groups if end is None else end
    if not first <= end <= metadata.num_row_groups:
        raise Failure(
            f"{url} has {metadata.num_row_groups} row groups, and {first + 1} to {end} are to be "
            "read: the file was changed meanwhile. Put the earlier one back"
        )
    rows = sum(metadata.row_group(group).num_rows for group in range(first))
    return list(range(first, end)), rows + 1


@contextmanager
def seekable(url: str) -> Iterator[BinaryIO]:
    """A file that can be read from its end, as Parquet is; copied where its storage cannot."""
    with files.open_input(url) as stream:
        if stream.seekable():
            yield stream
            return
        with tempfile.TemporaryFile(prefix="tnctl-") as copy:
            shutil.copyfileobj(stream, copy, 4 << 20)
            copy.seek(0)
            yield copy


@contextmanager
def translated(url: str, way: str = REWRITE) -> Iterator[None]:
    """Arrow's errors about a damaged file as a `Failure` that names it, and the way out."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        # Damaged names of columns are not UTF-8 and end as Python's own errors.
        reason = str(error).strip().split("\n")[0].rstrip(".")
        raise Failure(f"{url} is not a whole Parquet file ({reason}). {way}") from error


def _refuse_empty(url: str, stream: BinaryIO) -> None:
    if not stream.seek(0, os.SEEK_END):
        raise EmptyFileError(url)
    stream.seek(0)


def _where(url: str, numbers: np.ndarray) -> Where:
    return lambda row: (url, int(numbers[row]))


def _utf8_rows(url: str, numbers: np.ndarray, batch: pa.RecordBatch, bad: BadRows) -> np.ndarray:
    """Which rows are UTF-8 in the columns that the file declares as text."""
    good = np.ones(batch.num_rows, bool)
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            column.validate(full=True)
        except pa.ArrowInvalid:
            wrong = [row for row in np.flatnonzero(good) if not _is_whole(column, int(row))]
            good[wrong] = False
            if not wrong:
                raise
            bad.add(
                f"{url}, row {numbers[wrong[0]]}, column '{name}': not UTF-8. Write it as UTF-8 or "
                "binary, or set data.check_utf8=false to hash its bytes",
                len(wrong),
            )
    return good


def _is_whole(column: pa.Array, row: int) -> bool:
    try:
        # A copy of the row alone: of lists validation reads whole buffers.
        pc.take(column, pa.array([row])).validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True
