"""The rows that `tnctl init` looks at: the first ones of some files of each day, or of all."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tnctl import schema
from tnctl.data import numbers, partitions, row_estimates
from tnctl.data.formats.file_reader import FileReader
from tnctl.data.formats.readers import reader_of
from tnctl.data.row_estimates import RowCount
from tnctl.errors import Failure, refuse_if
from tnctl.progress import say
from tnctl.schema import Conf
from tnctl.starting.file_form import FileForm
from tnctl.starting.named_files import NamedFiles, weekday_of

ROWS = 100_000
CELLS = 20_000_000  # of wide tables fewer rows are read
BYTES = 512 << 20  # in Arrow's buffers
FILES = 4  # of each day; of days that names have, further ones for each weekday
ENOUGH_ROWS = 10_000  # with fewer in those files, more files are read
MOST_FILES = 200  # in all; each may be far away
MANY_COLUMNS = 1000  # that take long
MOST_BAD = 0.05  # the share of rows that cannot be read, beyond which no conf is written


@dataclass
class Sample:
    """Rows of the training files, with all columns; `total` rows are in all of them.

    `days` has the number of the day that each row is of, int64 [rows], in daily training.
    """

    table: pa.Table
    total: RowCount | None
    skipped: int
    reason: str
    is_whole: bool  # all rows of all training files
    days: NDArray[np.int64] | None = None

    @property
    def rows(self) -> int:
        """How many rows were read."""
        return int(self.table.num_rows)

    @property
    def estimate(self) -> int:
        """About how many rows there are."""
        if self.is_whole or self.total is None:
            return self.rows
        return max(self.rows, round(self.total.estimate))


def reading_conf(form: FileForm, named: NamedFiles, columns: Sequence[str]) -> Conf:
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


def read_rows(
    form: FileForm, named: NamedFiles, split: str, columns: Sequence[str], rows: int
) -> Sample:
    """The first rows of some files of a split.

    Raises `Failure` when there are none, or many that cannot be read.
    """
    if len(columns) >= MANY_COLUMNS:
        say(f"{len(columns):,} columns are read and looked at: some ms for each")
    conf = reading_conf(form, named, columns)
    reader = reader_of(conf, form.keys.get("skip_rows", 0))
    rows = max(1, min(rows, CELLS // max(len(columns), 1)))
    days = _days_of(named, split)
    chosen = _chosen(named, split, days, FILES)
    read = _read(reader, named, split, columns, chosen, rows, days)
    if len(chosen) < len(days) and read.rows < min(rows, ENOUGH_ROWS):
        files = math.ceil(FILES * ENOUGH_ROWS / max(read.rows, 1))
        files = min(files, MOST_FILES // (int(days.max()) + 1))
        if files > FILES:
            chosen = _chosen(named, split, days, files)
            read = _read(reader, named, split, columns, chosen, rows, days)
    sample = _checked(read, split, conf)
    if named.day_of:
        sample.days = np.repeat(read.days, [table.num_rows for table in read.tables])
    return sample


@dataclass
class _Read:
    """The rows of some files, in tables."""

    tables: list[pa.Table]
    days: list[int]  # of each table
    skipped: int
    reason: str
    is_whole: bool

    @property
    def rows(self) -> int:
        return sum(table.num_rows for table in self.tables)


def _days_of(named: NamedFiles, split: str) -> NDArray[np.int64]:
    """The number of the day that each file of a split is of, int64 [files]."""
    names = [named.day_of.get(url, "") for url in named.urls(split)]
    return np.unique(names, return_inverse=True)[1]


def _chosen(named: NamedFiles, split: str, days: NDArray[np.int64], files: int) -> list[int]:
    """The places of the files that are read: so many of each day."""
    chosen = [
        place for day in np.unique(days) for place in _spread(np.flatnonzero(days == day), files)
    ]
    if not named.day_of:
        chosen = _with_weekdays(chosen, [weekday_of(name) for name in named.names[split]])
    return chosen


def _read(
    reader: FileReader,
    named: NamedFiles,
    split: str,
    columns: Sequence[str],
    chosen: Sequence[int],
    rows: int,
    days: NDArray[np.int64],
) -> _Read:
    """The first rows of the files at some places, of each as many of `rows`."""
    urls = named.urls(split)
    read = _Read([], [], 0, "", is_whole=len(chosen) == len(urls))
    for place in chosen:
        url = urls[place]
        room = -(-rows // len(chosen))
        pieces = partitions.pieces(reader, url, list(columns))
        for piece in pieces:
            rows_read = _without_headers(piece.table)
            repeated = piece.table.num_rows - rows_read.num_rows
            read.skipped += piece.skipped + repeated
            repeats = f"{url} repeats its header" if repeated else ""
            read.reason = read.reason or piece.reason or repeats
            read.tables.append(rows_read.slice(0, room))
            read.is_whole = read.is_whole and rows_read.num_rows <= room
            read.days.append(int(days[place]))
            room -= read.tables[-1].num_rows
            if room <= 0 or sum(table.nbytes for table in read.tables) > BYTES:
                read.is_whole = read.is_whole and room == 0 and next(pieces, None) is None
                break
    return read


def _without_headers(table: pa.Table) -> pa.Table:
    """The rows but those in which each column has its own name, as of files that were joined."""
    is_header = pa.array(np.full(table.num_rows, table.num_columns > 0))
    for name in table.column_names:
        if not numbers.is_text(table.schema.field(name).type):
            return table
        is_header = pc.and_(is_header, pc.fill_null(pc.equal(table.column(name), name), False))
    return table.filter(pc.invert(is_header)) if pc.any(is_header).as_py() else table


def _spread(places: NDArray[np.int64], most: int) -> list[int]:
    """The first and the last of some places and, of more, others between, evenly."""
    chosen = np.linspace(0, len(places) - 1, min(most, len(places)))
    return [int(place) for place in places[chosen.round().astype(int)]]


def _with_weekdays(chosen: list[int], weekdays: list[int | None]) -> list[int]:
    """The places of files that are read, and of one for each other weekday of files [files]."""
    read = set(chosen)
    seen = {weekdays[place] for place in chosen}
    for place, weekday in enumerate(weekdays):
        if weekday is not None and weekday not in seen:
            seen.add(weekday)
            read.add(place)
    return sorted(read)


def _checked(read: _Read, split: str, conf: Conf) -> Sample:
    tables = [table for table in read.tables if table.num_rows]
    skipped, reason = read.skipped, read.reason
    refuse_if(
        not tables,
        f"no row can be read. {reason}" if reason else "the files have no rows",
        Failure,
    )
    # Of JSON a column can have other types in other pieces.
    table = pa.concat_tables(_of_one_type(tables))
    refuse_if(
        skipped > MOST_BAD * (table.num_rows + skipped),
        f"{skipped:,} of the first {table.num_rows + skipped:,} rows cannot be read. The first: "
        f"{reason}",
        Failure,
    )
    total = row_estimates.count_rows(conf, "train") if split == "train" else None
    return Sample(table, total, skipped, reason, read.is_whole)


def _of_one_type(tables: list[pa.Table]) -> list[pa.Table]:
    names = tables[0].column_names
    kinds = {}
    for name in names:
        types = {table.schema.field(name).type for table in tables}
        filled = [kind for kind in types if not pa.types.is_null(kind)]
        kinds[name] = filled[0] if len(filled) == 1 else _common(filled)
    return [
        pa.table({name: _cast(table.column(name), kinds[name]) for name in names})
        for table in tables
    ]


def _common(kinds: list[pa.DataType]) -> pa.DataType:
    if not kinds:
        return pa.null()
    is_list = any(pa.types.is_list(kind) for kind in kinds)
    inner = {kind.value_type if pa.types.is_list(kind) else kind for kind in kinds}
    numeric = all(pa.types.is_integer(kind) or pa.types.is_floating(kind) for kind in inner)
    value = pa.float64() if numeric else pa.string()
    return pa.list_(value) if is_list else value


def _cast(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if column.type == kind:
        return column
    if pa.types.is_list(kind) and not pa.types.is_list(column.type):
        values = pa.array([None if v is None else [v] for v in column.to_pylist()])
        return pa.chunked_array([values.cast(kind)])
    return column.cast(kind)
