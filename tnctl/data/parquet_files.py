"""Parquet files, batch by batch."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tnctl import files
from tnctl.data.reading import BadRows, Piece, Where, require
from tnctl.errors import Failure
from tnctl.schema import Conf

BATCH_ROWS = 65_536


def pieces(conf: Conf, url: str, needed: list[str]) -> Iterator[Piece]:
    """The rows of one file, in order, with the columns `needed` in the types of the file.

    Raises `Failure`, naming the file, when it is no Parquet file, is damaged or lacks a column.
    """
    bad = BadRows(conf)
    row = 1
    with seekable(url) as stream, translated(url):
        source = pq.ParquetFile(stream)
        require(url, needed, source.schema_arrow.names)
        for batch in source.iter_batches(BATCH_ROWS, columns=needed):
            table = pa.Table.from_batches([batch]).select(needed)
            numbers = np.arange(row, row + batch.num_rows)
            row += batch.num_rows
            if conf.data.check_utf8:
                good = _utf8_rows(url, numbers, batch, bad)
                if not good.all():
                    table, numbers = table.filter(pa.array(good)), numbers[good]
            yield bad.piece(table, _where(url, numbers))


def rows(url: str) -> int:
    """The number of rows of a file, by its metadata."""
    with seekable(url) as stream, translated(url):
        return int(pq.ParquetFile(stream).metadata.num_rows)


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
def translated(
    url: str, way: str = "Write it again, or set data.format to what it is"
) -> Iterator[None]:
    """What Arrow says of a file that is not whole, as a `Failure` that names it, and the way."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        # Damaged names of columns are not UTF-8 and end as Python's own errors.
        reason = str(error).strip().split("\n")[0].rstrip(".")
        raise Failure(f"{url} is not a whole Parquet file ({reason}). {way}") from error


def _where(url: str, numbers: np.ndarray) -> Where:
    return lambda row: (url, int(numbers[row]))


def _utf8_rows(url: str, numbers: np.ndarray, batch: pa.RecordBatch, bad: BadRows) -> np.ndarray:
    """Which rows hold UTF-8 where the file says that it is text."""
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
        # A copy of the row alone: validation looks at the whole buffers of lists.
        pc.take(column, pa.array([row])).validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True
