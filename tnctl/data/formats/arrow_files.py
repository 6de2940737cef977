"""Parquet and ORC: files of Arrow record batches, with columns in the types of the file."""

import os
import shutil
import tempfile
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import BinaryIO, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.orc
import pyarrow.parquet as pq
import pyarrow.types as pt

from tnctl import files, limits
from tnctl.data.column_names import columns_of, require_paths, selected, stored_columns
from tnctl.data.file_pieces import (
    EmptyFileError,
    FileFaults,
    FileReader,
    GroupedReader,
    Tables,
    Where,
)
from tnctl.errors import Failure, refuse_if

BATCH_ROWS = 65_536
BATCH_BYTES = 64 << 20  # of a batch on average; of longer rows a batch has fewer
REWRITE = "Write it again, or set data.format to what it is"


class ArrowReader(FileReader):
    """Reads files of Arrow record batches, with columns in the types of the file."""

    has_footer = True
    format: ClassVar[str]

    @staticmethod
    @abstractmethod
    def schema(stream: BinaryIO) -> pa.Schema:
        """The columns of a file, by a seekable stream that is not empty."""

    def tables_of_batches(
        self,
        url: str,
        needed: list[str],
        faults: FileFaults,
        batches: Iterable[pa.RecordBatch],
        row: int = 1,
    ) -> Tables:
        """The rows of batches that follow each other in a file, the first with the number `row`."""
        for batch in batches:
            table = selected(batch, needed)
            numbers = np.arange(row, row + batch.num_rows)
            row += batch.num_rows
            if self.data.check_utf8:
                good = _utf8_rows(url, numbers, batch, faults)
                if not good.all():
                    table, numbers = table.filter(pa.array(good)), numbers[good]
            for part in _parts(table):
                yield table[part], _where(url, numbers[part])

    def stored_columns(self, url: str) -> list[str]:
        return list(self.schema_of(url).names)

    def require_stored(self, url: str, needed: list[str]) -> None:
        require_paths(url, needed, self.schema_of(url))

    @classmethod
    def schema_of(cls, url: str) -> pa.Schema:
        """The columns of a file."""
        with cls.opened(url) as stream:
            return cls.schema(stream)

    @classmethod
    @contextmanager
    def opened(cls, url: str) -> Iterator[BinaryIO]:
        """A file as `seekable` opens it, Arrow's errors `translated`."""
        with seekable(url) as stream, translated(url, cls.format):
            yield stream


def _parts(table: pa.Table) -> Iterator[slice]:
    """Consecutive rows, as many as a batch has; of a batch of Parquet all."""
    longest = max(1, int(BATCH_BYTES * table.num_rows / max(table.nbytes, 1)))
    rows = min(BATCH_ROWS, longest)
    for start in range(0, max(table.num_rows, 1), rows):
        yield slice(start, start + rows)


@contextmanager
def seekable(url: str) -> Iterator[BinaryIO]:
    """A file that can be read from its end; copied where its storage cannot. Not an empty one."""
    with files.open_input(url) as stream:
        if stream.seekable():
            yield _not_empty(url, stream)
            return
        with tempfile.TemporaryFile(prefix="tnctl-") as copy:
            shutil.copyfileobj(stream, copy, 4 << 20)
            yield _not_empty(url, copy)


def _not_empty(url: str, stream: BinaryIO) -> BinaryIO:
    if not stream.seek(0, os.SEEK_END):
        raise EmptyFileError(url)
    stream.seek(0)
    return stream


@contextmanager
def translated(url: str, format: str, way: str = REWRITE) -> Iterator[None]:
    """Arrow's errors about a damaged file as a `Failure` that names it, and the way out."""
    try:
        yield
    except pa.ArrowNotImplementedError as error:
        reason = str(error).strip().split("\n")[0].rstrip(".")
        raise Failure(
            f"{url} has columns that cannot be read ({reason}). Write them as text, numbers, or "
            "lists of them"
        ) from error
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        # Damaged names of columns are not UTF-8 and end as Python's own errors.
        reason = str(error).strip().split("\n")[0].rstrip(".")
        raise Failure(f"{url} is not a whole {format} file ({reason}). {way}") from error


def _where(url: str, numbers: np.ndarray) -> Where:
    return lambda row: (url, int(numbers[row]))


def _utf8_rows(
    url: str, numbers: np.ndarray, batch: pa.RecordBatch, faults: FileFaults
) -> np.ndarray:
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
            faults.add(
                (url, int(numbers[wrong[0]])),
                "not UTF-8. Write it as UTF-8 or binary, or set data.check_utf8=false to hash its "
                "bytes",
                name,
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


# Of a batch on average; of what has longer lists a batch has fewer rows.
BATCH_VALUES = 1 << 22
CHUNK_BYTES = 64 << 20  # a column of a row group that is longer is read in parts
PART_BYTES = 1 << 20


class ParquetReader(GroupedReader, ArrowReader):
    """Reads Parquet, with columns in the types of the file."""

    format: ClassVar[str] = "Parquet"

    @staticmethod
    def schema(stream: BinaryIO) -> pa.Schema:
        return pq.ParquetFile(stream).schema_arrow

    def counts(self, url: str) -> list[int]:
        with self.opened(url) as stream:
            return rows_of_groups(pq.ParquetFile(stream).metadata)

    def tables_of_groups(
        self, url: str, needed: list[str], faults: FileFaults, first: int, end: int | None
    ) -> Tables:
        with self.opened(url) as stream:
            # Arrow would keep all that it reads ahead until the end of the file.
            file = pq.ParquetFile(stream, pre_buffer=False)
            schema, metadata = file.schema_arrow, file.metadata
            require_paths(url, needed, schema)
            groups, row = group_range(url, rows_of_groups(metadata), first, end)
            columns = stored_columns(needed, schema)
            batch_rows, longest = largest_batch(url, metadata, columns)
            if longest > CHUNK_BYTES:
                file = pq.ParquetFile(
                    stream, metadata=metadata, buffer_size=PART_BYTES, pre_buffer=False
                )
            # Arrow cannot join lists of dictionaries, of which each row group has another.
            kinds = [schema.field(name).type for name in columns_of(columns, schema.names)]
            apart = any(map(_has_dictionary_within, kinds))
            batches = chain.from_iterable(
                file.iter_batches(batch_rows, row_groups=together, columns=columns)
                for together in ([[group] for group in groups] if apart else [groups])
            )
            yield from self.tables_of_batches(url, needed, faults, batches, row)


def _has_dictionary_within(kind: pa.DataType) -> bool:
    within = [kind.field(index).type for index in range(kind.num_fields)]
    return any(pt.is_dictionary(part) or _has_dictionary_within(part) for part in within)


def rows_of_groups(metadata: pq.FileMetaData) -> list[int]:
    """The rows of each row group of a file."""
    return [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]


def group_range(
    url: str, rows: Sequence[int], first: int, end: int | None
) -> tuple[list[int], int]:
    """The numbers of row groups `first` to `end` - 1 (None: the last), and their first row, from 1.

    `rows` has the number of rows of each row group. Raises `Failure` for row groups that the file
    does not have.
    """
    end = len(rows) if end is None else end
    if not first <= end <= len(rows):
        raise Failure(
            f"{url} has {len(rows)} row groups, and {first + 1} to {end} are to be read: the file "
            "was changed meanwhile. Put the earlier one back"
        )
    return list(range(first, end)), sum(rows[:first]) + 1


def largest_batch(url: str, metadata: pq.FileMetaData, needed: Sequence[str]) -> tuple[int, int]:
    """The rows of a batch of the columns `needed`, and the bytes of the longest stored one.

    A batch has BATCH_VALUES and BATCH_BYTES at most, on average of each row group. Raises `Failure`
    where lists have more values than a row group may have.
    """
    schema = metadata.schema
    # Parts of lists and structs have the column's name in front.
    prefixes = tuple(f"{name}." for name in needed)
    leaves = [
        leaf
        for leaf in range(len(schema.names))
        if f"{schema.column(leaf).path}.".startswith(prefixes)
    ]
    batch_rows, longest = BATCH_ROWS, 0
    for index in range(metadata.num_row_groups):
        group = metadata.row_group(index)
        if group.num_columns != len(schema.names):
            raise ValueError(f"row group {index + 1} has {group.num_columns} columns")
        columns = [group.column(leaf) for leaf in leaves]
        values = sum(
            column.num_values
            for leaf, column in zip(leaves, columns, strict=True)
            if schema.column(leaf).max_repetition_level
        )
        if values > limits.GROUP_VALUES:
            raise Failure(
                f"{url}, row group {index + 1}: {values:,} values in lists, and a row group has "
                f"at most {limits.GROUP_VALUES:,}. Write smaller row groups"
            )
        size = sum(column.total_uncompressed_size for column in columns)
        share = min(BATCH_VALUES / max(values, 1), BATCH_BYTES / max(size, 1))
        if group.num_rows:
            batch_rows = min(batch_rows, max(1, int(group.num_rows * share)))
        longest = max([longest, *(column.total_compressed_size for column in columns)])
    return batch_rows, longest


class OrcReader(ArrowReader):
    """Reads ORC, with columns in the types of the file.

    A file is read as a whole, since pyarrow does not say the rows of a stripe before it is decoded.
    Stripes are decoded one at a time, which a writer keeps them small for.
    """

    format: ClassVar[str] = "ORC"

    @staticmethod
    def schema(stream: BinaryIO) -> pa.Schema:
        return pa.orc.ORCFile(stream).schema

    def counts(self, url: str) -> list[int]:
        with self.opened(url) as stream:
            return [pa.orc.ORCFile(stream).nrows]

    def tables(self, url: str, needed: list[str], faults: FileFaults) -> Tables:
        """As in FileReader. Raises `Failure` too where stripes have too many values on average."""
        with self.opened(url) as stream:
            file = pa.orc.ORCFile(stream)
            require_paths(url, needed, file.schema)
            columns = stored_columns(needed, file.schema)
            values = file.nrows * len(columns) // max(file.nstripes, 1)
            refuse_if(
                values > limits.GROUP_VALUES,
                f"{url}: {values:,} values in a stripe ({len(columns)} columns), and a stripe has "
                f"at most {limits.GROUP_VALUES:,}. Write smaller stripes",
                Failure,
            )
            batches = (file.read_stripe(at, columns=columns) for at in range(file.nstripes))
            yield from self.tables_of_batches(url, needed, faults, batches)
