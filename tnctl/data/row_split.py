"""Which rows of data.train belong to a split: data.split, for the files of any format.

A row is chosen by where it is in its file, or by the value of a column: never by what else is read
of it, nor by the rows before it. So each row is in exactly one split, and every command, worker
and pass finds it there.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from tnctl.data import Uint64s, numbers
from tnctl.data.bad_rows import Skipped, chosen
from tnctl.data.file_pieces import Piece, Where, row_numbers, rows_up_to, shifted
from tnctl.data.slot_encoder import HashIds, Lists
from tnctl.errors import UserError, refuse_if
from tnctl.schema import Data, Slot
from tnctl.tables import columns as c_columns

SPLIT = 0x73706C6974206F66  # "split of", so that no other hash is like it
COMPRESSIONS = {".gz", ".zst", ".zstd"}


class HashCut:
    """The rows whose hash is in the range of a split.

    `lines_before` are the lines before a file's first row: text with a header and Parquet count
    alike.
    """

    def __init__(self, data: Data, split: str, lines_before: int) -> None:
        self._data, self._split, self._lines_before = data, split, lines_before
        shares = data.split
        # data.test comes first: it has the same rows when those of data.validation are trained.
        ends = (0.0, shares.test, shares.test + shares.validation, 1.0)
        index = ("test", "validation", "train").index(split)
        self._first, end = (round(end * 2.0**64) for end in ends[index : index + 2])
        self._last = end - 1
        self._salt = c_columns.mix64(np.array([shares.seed ^ SPLIT], np.uint64))
        self.columns = [shares.column] if shares.column else []

    def is_after(self, piece: Piece) -> bool:  # noqa: ARG002
        """Whether neither the rows of a piece nor those after it are of the split."""
        return False

    def kept(self, piece: Piece) -> Piece:
        """The rows of a piece that are of the split, without those of a value that is no id."""
        skipped = Skipped(self._split, self._data.bad_rows)
        skipped.join(piece.bad)
        hashes, rows = skipped.good(piece.table, piece.where, self._hashes)
        rows = rows[(hashes >= np.uint64(self._first)) & (hashes <= np.uint64(self._last))]
        return Piece(piece.table.take(rows), chosen(piece.where, rows), skipped)

    def _hashes(self, table: pa.Table, where: Where) -> Uint64s:
        """What decides of each row, uint64 [rows], uniform over the rows or values."""
        if not self.columns:
            return self._of_places(where, table.num_rows)
        [column] = self.columns
        array = numbers.single(numbers.flat(table.column(column)), column, where)
        _refuse_numbers(array, column, where)
        values = HashIds(column, Slot(), self._data, Lists()).encode(array, where, several=False)
        hashes = c_columns.mix64(values.ids ^ self._salt)
        if values.missing.any():
            # Rows without a user are no rows of one user.
            hashes = np.where(values.missing, self._of_places(where, table.num_rows), hashes)
        return hashes

    def _of_places(self, where: Where, rows: int) -> Uint64s:
        if not rows:
            return np.empty(0, np.uint64)
        name = np.array([c_columns.hash_bytes(name_of_file(where(0)[0]).encode())], np.uint64)
        places = row_numbers(where, rows) - self._lines_before
        return c_columns.mix64(c_columns.mix64(name ^ self._salt) ^ places.astype(np.uint64))


class LastCut:
    """A range of all rows, by their order in the files: train, then validation, then test.

    `files` has the rows of each file, of which the first one follows on `lines_before` others.
    """

    columns: Sequence[str] = ()

    def __init__(self, data: Data, split: str, lines_before: int, files: Mapping[str, int]) -> None:
        starts = list(itertools.accumulate(files.values(), initial=0))
        total = starts[-1]
        test = round(total * data.split.test)
        validation = round(total * data.split.validation)
        trained = max(total - validation - test, 0)
        bounds = [0, trained, total - test, total]
        index = ("train", "validation", "test").index(split)
        self._first, self._end = bounds[index : index + 2]
        self._lines_before = lines_before
        self._spans = dict(zip(files, itertools.pairwise(starts), strict=True))  # of all rows

    @property
    def rows(self) -> int:
        """How many places the split has; empty lines and bad rows have places too."""
        return self._end - self._first

    def numbers(self, url: str) -> tuple[int, int]:
        """The numbers of rows in a file between which the split is: after the first one."""
        shift = self._lines_before - self._spans[url][0]
        return self._first + shift, self._end + shift

    def reads(self, url: str) -> bool:
        """Whether a file may have rows of the split."""
        start, end = self._spans[url]
        return start < self._end and end > self._first

    def groups(self, url: str, rows: Sequence[int]) -> tuple[int, int]:
        """The first row group with rows of the split and the end of them, in a file that has some.

        `rows` has the number of rows of each row group.
        """
        ends = np.cumsum(rows)
        first, last = self.numbers(url)
        end = min(int(np.searchsorted(ends, last)) + 1, len(ends))
        return min(int(np.searchsorted(ends, first, side="right")), end), end

    def is_after(self, piece: Piece) -> bool:
        """Whether neither the rows of a piece nor those after it are of the split."""
        if not piece.table.num_rows:
            return False
        url, number = piece.where(0)
        return number > self.numbers(url)[1]

    def kept(self, piece: Piece) -> Piece:
        """The rows of a piece that are of the split."""
        rows = piece.table.num_rows
        if not rows:
            return piece
        low, high = self.numbers(piece.where(0)[0])
        first = rows_up_to(piece.where, rows, low)
        end = rows_up_to(piece.where, rows, high)
        return replace(
            piece, table=piece.table.slice(first, end - first), where=shifted(piece.where, first)
        )


Cut = HashCut | LastCut


def name_of_file(url: str) -> str:
    """The name of a file, without its folder and without the endings of format and compression."""
    path = urlsplit(url).path if "://" in url else url
    name = PurePosixPath(path)
    if name.suffix in COMPRESSIONS:
        name = name.with_suffix("")
    return name.stem


def _refuse_numbers(array: pa.Array, column: str, where: Where) -> None:
    kind = array.type.value_type if pt.is_dictionary(array.type) else array.type
    if not (numbers.is_text(kind) or pt.is_integer(kind) or pt.is_null(kind)):
        raise UserError(
            f"{where(0)[0]}: data.split.by={column} is a column of {kind}, and rows are "
            "chosen by texts or integers. Name another column, or take data.split.by=rows"
        )


def check(data: Data) -> None:
    """Refuse what data.split cannot be combined with, before data is trained or prepared.

    Other commands may name further data beside it: data.test=FILES of a trained model. Raises
    `UserError`.
    """
    for split in ("validation", "test"):
        share = getattr(data.split, split)
        refuse_if(
            share and getattr(data, split) is not None,
            f"data.split.{split}={share} takes rows of data.train for data.{split}, which names "
            f"files of its own. Leave one of them out: data.{split}=null or data.split.{split}=0",
        )
    refuse_if(
        data.is_cut("train") and "{day}" in str(data.train),
        "data.split is not for daily training, where each day is evaluated before it is trained. "
        "Leave it out, or {day} out of data.train",
    )
