"""What readers of files of Arrow record batches share: Parquet's and ORC's."""

import os
import shutil
import tempfile
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tnctl import files
from tnctl.data.file_pieces import BadRows, EmptyFileError, Piece, Where
from tnctl.data.formats.file_reader import FileReader
from tnctl.data.nested_columns import paths_of, require_paths, selected
from tnctl.errors import Failure

BATCH_ROWS = 65_536
BATCH_BYTES = 64 << 20  # of a batch on average; of longer rows a batch has fewer
REWRITE = "Write it again, or set data.format to what it is"


@dataclass(frozen=True)
class ArrowReader(FileReader):
    """Reads files of Arrow record batches, with columns in the types of the file."""

    check_utf8: bool
    bad_rows: int
    format: ClassVar[str]

    @abstractmethod
    def schema(self, stream: BinaryIO) -> pa.Schema:
        """The columns of a file, by a seekable stream that is not empty."""

    def pieces_of_batches(
        self, url: str, needed: list[str], batches: Iterable[pa.RecordBatch], row: int = 1
    ) -> Iterator[Piece]:
        """The rows of batches that follow each other in a file, the first with the number `row`."""
        bad = BadRows(self.bad_rows)
        for batch in batches:
            table = selected(batch, needed)
            numbers = np.arange(row, row + batch.num_rows)
            row += batch.num_rows
            if self.check_utf8:
                good = _utf8_rows(url, numbers, batch, bad)
                if not good.all():
                    table, numbers = table.filter(pa.array(good)), numbers[good]
            for part in _parts(table):
                yield bad.piece(table[part], _where(url, numbers[part]))

    def columns(self, url: str) -> list[str]:
        with self.opened(url) as stream:
            return list(self.schema(stream).names)

    def require(self, url: str, needed: list[str]) -> None:
        with self.opened(url) as stream:
            require_paths(url, needed, self.schema(stream))

    def paths(self, url: str) -> list[str]:
        """The names of a file's columns, and instead of structs the paths of what is in them."""
        with self.opened(url) as stream:
            return paths_of(self.schema(stream))

    @contextmanager
    def opened(self, url: str) -> Iterator[BinaryIO]:
        """A file as `seekable` opens it, Arrow's errors `translated`."""
        with seekable(url) as stream, translated(url, self.format):
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
