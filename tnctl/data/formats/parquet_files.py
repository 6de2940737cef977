"""Parquet files, batch by batch."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO, ClassVar, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from tnctl import limits
from tnctl.data.file_pieces import Piece
from tnctl.data.formats.arrow_files import BATCH_BYTES, BATCH_ROWS, ArrowReader
from tnctl.data.formats.file_reader import GroupedReader
from tnctl.data.nested_columns import columns_of, require_paths, stored_columns
from tnctl.errors import Failure

# Of a batch on average; of what has longer lists a batch has fewer rows.
BATCH_VALUES = 1 << 22
CHUNK_BYTES = 64 << 20  # a column of a row group that is longer is read in parts
PART_BYTES = 1 << 20


@dataclass(frozen=True)
class ParquetReader(GroupedReader, ArrowReader):
    """Reads Parquet, with columns in the types of the file."""

    format: ClassVar[str] = "Parquet"

    def schema(self, stream: BinaryIO) -> pa.Schema:
        return pq.ParquetFile(stream).schema_arrow

    def group_rows(self, url: str) -> list[int]:
        with self.opened(url) as stream:
            return rows_of_groups(pq.ParquetFile(stream).metadata)

    def pieces_of_groups(
        self, url: str, needed: list[str], first: int, end: int | None
    ) -> Iterator[Piece]:
        with self.opened(url) as stream:
            file = ParquetFile(url, stream)
            require_paths(url, needed, file.schema)
            chosen, row = group_range(url, file.group_rows, first, end)
            batches = file.batches(stored_columns(needed, file.schema), chosen)
            yield from self.pieces_of_batches(url, needed, batches, row)


class ParquetFile:
    """An open Parquet file."""

    def __init__(self, url: str, stream: BinaryIO) -> None:
        self._url, self._stream = url, stream
        # Arrow would keep all that it reads ahead until the end of the file.
        self._file = pq.ParquetFile(stream, pre_buffer=False)

    @property
    def schema(self) -> pa.Schema:
        """Its columns."""
        return self._file.schema_arrow

    @property
    def group_rows(self) -> list[int]:
        """The rows of each row group."""
        return rows_of_groups(self._file.metadata)

    def batches(self, needed: list[str], groups: Sequence[int]) -> Iterator[pa.RecordBatch]:
        """The rows of some row groups, in batches of about as many values.

        Raises `Failure` for lists with more values than a row group may have.
        """
        described = row_groups(self._url, self._file.metadata, needed)
        if any(group.longest > CHUNK_BYTES for group in described):
            self._file = pq.ParquetFile(
                self._stream,
                metadata=self._file.metadata,
                buffer_size=PART_BYTES,
                pre_buffer=False,
            )
        batch_rows = min((group.batch_rows for group in described), default=BATCH_ROWS)
        # Arrow cannot join lists of dictionaries, of which each row group has another.
        together = (
            [[group] for group in groups] if self._has_lists_of_dictionaries(needed) else [groups]
        )
        for chosen in together:
            yield from self._file.iter_batches(batch_rows, row_groups=chosen, columns=needed)

    def _has_lists_of_dictionaries(self, needed: list[str]) -> bool:
        columns = columns_of(needed, self.schema.names)
        return any(_has_dictionary_within(self.schema.field(name).type) for name in columns)


def _has_dictionary_within(kind: pa.DataType) -> bool:
    within = [kind.field(number).type for number in range(kind.num_fields)]
    return any(pt.is_dictionary(part) or _has_dictionary_within(part) for part in within)


def rows_of_groups(metadata: pq.FileMetaData) -> list[int]:
    """The rows of each row group of a file."""
    return [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]


def group_range(
    url: str, rows: Sequence[int], first: int, end: int | None
) -> tuple[list[int], int]:
    """The numbers of row groups `first` to `end` - 1 (None: the last), and their first row, from 1.

    `rows` are those of each row group. Raises `Failure` for row groups that the file does not have.
    """
    end = len(rows) if end is None else end
    if not first <= end <= len(rows):
        raise Failure(
            f"{url} has {len(rows)} row groups, and {first + 1} to {end} are to be read: the file "
            "was changed meanwhile. Put the earlier one back"
        )
    return list(range(first, end)), sum(rows[:first]) + 1


class RowGroup(NamedTuple):
    """What a row group has in the columns that are read, by the footer."""

    batch_rows: int
    """rows of a batch, so that it has BATCH_VALUES and BATCH_BYTES at most on average"""
    longest: int
    """bytes, as stored, of the longest column"""


def row_groups(url: str, metadata: pq.FileMetaData, needed: Sequence[str]) -> list[RowGroup]:
    """The row groups of a file, of the columns `needed`.

    Raises `Failure` where lists have more values than a row group may have.
    """
    schema = metadata.schema
    # Parts of lists and structs have the column's name in front.
    prefixes = tuple(f"{name}." for name in needed)
    leaves = [
        leaf
        for leaf in range(len(schema.names))
        if f"{schema.column(leaf).path}.".startswith(prefixes)
    ]
    lists = {leaf for leaf in leaves if schema.column(leaf).max_repetition_level}
    described = []
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        if group.num_columns != len(schema.names):
            raise ValueError(f"row group {number + 1} has {group.num_columns} columns")
        columns = {leaf: group.column(leaf) for leaf in leaves}
        values = sum(columns[leaf].num_values for leaf in lists)
        if values > limits.GROUP_VALUES:
            raise Failure(
                f"{url}, row group {number + 1}: {values:,} values in lists, and a row group has "
                f"at most {limits.GROUP_VALUES:,}. Write smaller row groups"
            )
        size = sum(column.total_uncompressed_size for column in columns.values())
        share = min(BATCH_VALUES / max(values, 1), BATCH_BYTES / max(size, 1))
        batch_rows = max(1, min(BATCH_ROWS, int(group.num_rows * share)))
        longest = max((column.total_compressed_size for column in columns.values()), default=0)
        described.append(RowGroup(batch_rows if group.num_rows else BATCH_ROWS, longest))
    return described
