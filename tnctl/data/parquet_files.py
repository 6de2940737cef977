"""Parquet files, batch by batch."""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from tnctl import files
from tnctl.data.reading import Piece, counted, require
from tnctl.errors import Failure
from tnctl.schema import Conf

BATCH_ROWS = 65_536


def pieces(conf: Conf, url: str, needed: list[str]) -> Iterator[Piece]:
    """The rows of one file, in order, with the columns `needed` in the types of the file.

    Raises `Failure`, naming the file, when it is no Parquet file, is damaged or lacks a column.
    """
    row = 0
    with files.open_input(url) as stream:
        try:
            source = pq.ParquetFile(stream)
            require(url, needed, source.schema_arrow.names)
            for batch in source.iter_batches(BATCH_ROWS, columns=needed):
                if conf.data.check_utf8:
                    _check_utf8(url, row, batch)
                table = pa.Table.from_batches([batch]).select(needed)
                yield Piece(table, counted(url, row + 1))
                row += batch.num_rows
        except (pa.ArrowException, OSError) as error:
            raise _damaged(url, error) from error


def rows(url: str) -> int:
    """The number of rows of a file, by its metadata."""
    with files.open_input(url) as stream:
        try:
            return int(pq.ParquetFile(stream).metadata.num_rows)
        except (pa.ArrowException, OSError) as error:
            raise _damaged(url, error) from error


def _damaged(url: str, error: Exception) -> Failure:
    reason = str(error).strip().split("\n")[0].rstrip(".")
    return Failure(
        f"{url} is not a whole Parquet file ({reason}). Write it again, or set "
        "data.format to what it is"
    )


def _check_utf8(url: str, row: int, batch: pa.RecordBatch) -> None:
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            raise Failure(
                f"{url}, rows {row + 1} to {row + batch.num_rows}, column '{name}': "
                f"{str(error).split(chr(10))[0]}. Write it as UTF-8 or binary, or set "
                "data.check_utf8=false to hash its bytes"
            ) from error
