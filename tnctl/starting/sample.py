"""The rows that `tnctl init` looks at: the first ones of some files."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tnctl import schema
from tnctl.data.file_pieces import FileReader
from tnctl.data.formats import reader_of
from tnctl.data.sources import Source
from tnctl.errors import Failure, refuse_if
from tnctl.progress import say
from tnctl.schema import Conf
from tnctl.starting.file_form import FileForm
from tnctl.starting.named_files import NamedFiles

ROWS = 100_000
CELLS = 20_000_000  # of wide tables fewer rows are read
BYTES = 512 << 20  # in Arrow's buffers
FILES = 4
ENOUGH_ROWS = 10_000  # with fewer in those files, more files are read
MOST_FILES = 200  # each may be far away
MANY_COLUMNS = 1000  # that take long
MOST_BAD = 0.05  # the share of rows that cannot be read, beyond which no conf is written


@dataclass
class Sample:
    """Rows of the files of a split, with all columns."""

    table: pa.Table
    estimate: int  # about how many rows there are in all training files
    skipped: int  # rows that cannot be read, and why the first cannot
    reason: str
    is_whole: bool  # all rows of all files

    @property
    def rows(self) -> int:
        """How many rows were read."""
        return int(self.table.num_rows)


def read_rows(
    form: FileForm, named: NamedFiles, split: str, columns: Sequence[str], rows: int
) -> Sample:
    """The first rows of some files of a split: of the first, the last and others between.

    Raises `Failure` when there are none, or many that cannot be read.
    """
    if len(columns) >= MANY_COLUMNS:
        say(f"{len(columns):,} columns are read and looked at: some ms for each")
    conf = _reading_conf(form, named, columns)
    reader = reader_of(conf, form.keys.get("skip_rows", 0))
    urls = named.urls(split)
    rows = max(1, min(rows, CELLS // max(len(columns), 1)))
    of_file = -(-rows // min(len(urls), FILES))
    read: dict[int, _FileRows] = {}
    for index in dict.fromkeys(_spread(len(urls), FILES) + _spread(len(urls), MOST_FILES)):
        count = sum(of.rows for of in read.values())
        if len(read) >= FILES and count >= min(rows, ENOUGH_ROWS):
            break
        read[index] = _rows_of(reader, urls[index], columns, of_file)
    in_order = [read[index] for index in sorted(read)]
    is_whole = len(read) == len(urls) and all(of.is_whole for of in in_order)
    sample = _checked(in_order, is_whole)
    if split == "train" and not is_whole and (total := Source(conf, "train").count()):
        sample.estimate = max(sample.rows, round(total.estimate))
    return sample


def _reading_conf(form: FileForm, named: NamedFiles, columns: Sequence[str]) -> Conf:
    """A conf that reads the columns as they are: text as text, and JSON in its own types."""
    inputs: dict[str, Any] = {f"input_{k}": {"column": name} for k, name in enumerate(columns)}
    section = "numeric" if form.format == "jsonl" else "slots"
    data = {"root": named.root, "train": named.names["train"], "format": form.format, **form.keys}
    if form.format in ("tfrecord", "parquet", "orc"):  # where a column of other bytes is left out
        data["check_utf8"] = False
    label = {"column": columns[0] if columns else "label"}
    return schema.from_values(
        {
            "recipe": {"name": "lr"},
            "output": "none",
            section: inputs,
            "data": {**data, "bad_rows": 2**53, "label": label},
        }
    )


def _spread(count: int, most: int) -> list[int]:
    """The first and the last of some indices and, of more, others between, evenly."""
    return [int(index) for index in np.linspace(0, count - 1, min(most, count)).round()]


@dataclass
class _FileRows:
    """The first rows of a file, in tables; `skipped` of them cannot be read."""

    tables: list[pa.Table]
    skipped: int
    reason: str
    is_whole: bool

    @property
    def rows(self) -> int:
        return sum(table.num_rows for table in self.tables)


def _rows_of(reader: FileReader, url: str, columns: Sequence[str], rows: int) -> _FileRows:
    read = _FileRows([], 0, "", True)
    pieces = reader.pieces(url, list(columns))
    for piece in pieces:
        room = rows - read.rows
        read.skipped += piece.bad.rows
        read.reason = read.reason or piece.bad.first
        if piece.table.num_rows:
            read.tables.append(piece.table.slice(0, room))
        if room <= piece.table.num_rows or sum(table.nbytes for table in read.tables) > BYTES:
            is_last = room >= piece.table.num_rows and next(pieces, None) is None
            read.is_whole = is_last
            break
    return read


def _checked(read: Sequence[_FileRows], is_whole: bool) -> Sample:
    tables = [table for of in read for table in of.tables]
    skipped = sum(of.skipped for of in read)
    reason = next((of.reason for of in read if of.reason), "")
    refuse_if(
        not tables,
        f"no row can be read. {reason}" if reason else "the files have no rows",
        Failure,
    )
    try:
        table = pa.concat_tables(tables, promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:  # of JSON
        raise Failure(f"a column has values of several types: {error}. Write one type") from error
    refuse_if(
        skipped > MOST_BAD * (table.num_rows + skipped),
        f"{skipped:,} of the first {table.num_rows + skipped:,} rows cannot be read. The first: "
        f"{reason}",
        Failure,
    )
    return Sample(table, table.num_rows, skipped, reason, is_whole)
