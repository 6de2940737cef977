"""Tables in memory as Arrow: of other libraries (pandas, polars, pyarrow, …), and raw rows.

None of these libraries is imported: they export their data by the Arrow PyCapsule interface
(https://arrow.apache.org/docs/format/CDataInterface/PyCapsuleInterface.html), or it is of pandas,
which pyarrow knows. Values of a slot get the ids that rows of training have.
"""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from tnctl import limits
from tnctl.data import Bools, Uint64s, numbers
from tnctl.data.column_names import columns_of, columns_read, id_columns, require_paths, selected
from tnctl.data.file_pieces import require
from tnctl.data.formats import jsonl_files
from tnctl.data.formats.jsonl_files import Cutter
from tnctl.data.formats.prepared_files import PreparedReader
from tnctl.data.slot_encoder import Cells, Encoder
from tnctl.data.sources import Source
from tnctl.data.statistics_document import Statistics
from tnctl.data.times import as_texts, is_temporal
from tnctl.errors import Failure, UserError, quoted, refuse_if, shortened
from tnctl.schema import Conf, Data, Slot

NAME = "the table"  # in messages, where files have their URL
BLANKS = " \t\n\v\f\r"  # what data.strip removes from CSV
LONGEST_REASON = 200  # characters of what a library says


def where(row: int) -> tuple[str, int]:
    """The place of a row of a table."""
    return NAME, row + 1


def windows_of(table: Any, conf: Conf, needed: Sequence[str], rows: int) -> Iterator[pa.Table]:
    """The columns `needed` of a table in consecutive parts of `rows` rows, the last one shorter.

    Values are those that tnctl reads from a file: of CSV with data.strip, texts lose their blanks.
    Raises UserError for what is no table, or has ids that are fractions, Failure for a column that
    is missing or damaged.
    """
    held: list[pa.Table] = []
    room = rows
    for given in _batches(table, needed):
        batch = _checked(given, conf)
        while batch.num_rows:
            held.append(batch.slice(0, room))
            batch, room = batch.slice(room), room - held[-1].num_rows
            if room == 0:
                yield pa.concat_tables(held)
                held, room = [], rows
    if held:
        yield pa.concat_tables(held)


def _batches(table: Any, needed: Sequence[str]) -> Iterator[pa.Table]:
    refuse_if(
        isinstance(table, type) or not (_is_frame(table) or hasattr(table, "__arrow_c_stream__")),
        "predict takes a DataFrame of pandas or polars, a Table of pyarrow, or anything else with "
        f"__arrow_c_stream__. Received: {quoted(repr(type(table)))}. pyarrow.Table.from_pylist "
        "makes a table of dicts",
    )
    if _is_frame(table):
        names = [name for name in table.columns if isinstance(name, str)]
        columns = columns_of(needed, names)
        require(NAME, columns, names)
        with _translated("the index", " (reset_index(drop=True) removes it)"):
            pa.Table.from_pandas(table[[]])  # the scores get it
        with _translated():
            table = pa.Table.from_pandas(table, columns=columns, preserve_index=False)
    with _translated():
        reader = pa.RecordBatchReader.from_stream(table)
    require_paths(NAME, needed, reader.schema)
    while True:
        with _translated():
            try:
                batch = reader.read_next_batch()
            except StopIteration:
                return
        yield selected(batch, needed)


def with_index(scores: pa.Table, table: Any) -> pa.Table:
    """Columns of float with the index of the DataFrame of pandas that they are of, if they are.

    `to_pandas` gives it back; it is further columns unless it is a range.
    """
    if not _is_frame(table):
        return scores
    of_index = pa.Table.from_pandas(scores.to_pandas().set_index(table.index))
    columns = [*scores.columns, *of_index.columns[scores.num_columns :]]
    return pa.table(columns, schema=of_index.schema)


def _is_frame(table: Any) -> bool:
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(table, pandas.DataFrame)


@contextmanager
def _translated(what: str = NAME, advice: str = "") -> Iterator[None]:
    """Errors of a library that exports a table or its index, in one line."""
    try:
        yield
    except (pa.ArrowException, TypeError, ValueError, OverflowError, OSError) as error:
        raise UserError(f"{what} cannot be read: {_reason(error)}{advice}") from error


def _reason(error: Exception) -> str:
    return shortened(str(error), LONGEST_REASON).rstrip(".")


def _checked(table: pa.Table, conf: Conf) -> pa.Table:
    """A table with the values that a file would have. Raises Failure and UserError."""
    of_ids = id_columns(conf, hashed=False)
    columns = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        try:
            column.validate(full=conf.data.check_utf8)
        except pa.ArrowInvalid as error:
            raise Failure(
                f"{NAME}, column '{name}': {_reason(error)}. Write it as UTF-8"
            ) from error
        if name in of_ids:
            column = _of_ids(column, name)
        columns[name] = stripped(column, conf.data)
    return pa.table(columns)


def _of_ids(column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    """A column that becomes ids. Raises UserError for fractions."""
    if pt.is_floating(column.type) and column.null_count == len(column):
        return pa.chunked_array([pa.nulls(len(column))])  # pandas has no other type for nothing
    kind = column.type
    while pt.is_dictionary(kind) or numbers.is_list(kind) or pt.is_fixed_size_list(kind):
        kind = kind.value_type
    refuse_if(
        pt.is_floating(kind),
        f"{NAME}: column '{name}' is {column.type}, and ids are made of text or integers. "
        "Convert it to what the data of training has (pandas makes fractions of integers among "
        "which some are missing: astype('Int64'))",
    )
    return column


def stripped(column: pa.ChunkedArray, data: Data) -> pa.ChunkedArray:
    """A column as CSV with data.strip has it; the same for other data.

    Texts lose the ASCII blanks around them, and those of data.missing are null.
    """
    kind = column.type.value_type if pt.is_dictionary(column.type) else column.type
    if not (data.format == "csv" and data.strip):
        return column
    if not numbers.is_text(kind) or pt.is_fixed_size_binary(kind):
        return column
    texts = numbers.plain(numbers.flat(column))
    trimmed = pc.ascii_trim(texts.view(_as_text(texts.type)), BLANKS)
    missing = pa.array([text.strip(BLANKS) for text in data.missing], trimmed.type)
    return pa.chunked_array([pc.if_else(pc.is_in(trimmed, value_set=missing), None, trimmed)])


def _as_text(kind: pa.DataType) -> pa.DataType:
    large = pt.is_large_string(kind) or pt.is_large_binary(kind)
    return pa.large_string() if large else pa.string()


def array_of(values: Any, name: str) -> pa.Array:
    """Values in a list or an array of any library, as an Arrow array [n]. Raises UserError."""
    if isinstance(values, str | bytes) or not (
        isinstance(values, Iterable) or hasattr(values, "__arrow_c_stream__")
    ):
        raise UserError(f"{name} is a list, such as ['a', 'b']. Received: {quoted(repr(values))}")
    try:
        if hasattr(values, "__arrow_c_stream__") and not isinstance(values, pa.ChunkedArray):
            values = pa.chunked_array(values)
        if isinstance(values, pa.ChunkedArray):
            values = numbers.flat(values)
        array = values if isinstance(values, pa.Array) else _of_python(values)
        array.validate(full=True)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise UserError(f"{name} cannot be one column: {_reason(error)}") from error
    return array


def _of_python(values: Any) -> pa.Array:
    if not hasattr(values, "__array__") and not hasattr(values, "__arrow_array__"):
        values = list(values)
        if any(isinstance(value, int) and value >= 2**63 for value in values):
            return pa.array(values, pa.uint64())
    return pa.array(values, from_pandas=True)


VALUES = "values"  # in messages


class ValueIds(NamedTuple):
    """Values with their ids."""

    values: pa.Array  # [n], as they were given; of a cross structs
    ids: Uint64s  # [n], 0 where a value has none
    has_id: Bools  # [n]


def ids_of_values(conf: Conf, statistics: Statistics, name: str, values: Any) -> ValueIds:
    """The ids of values [n] of a slot that the conf has.

    Each value is one of the data's, after a separator has split them. Raises UserError for values
    that are no column; BadRowsError for one that cannot be an id.
    """
    slot = conf.slots[name]
    if slot.cross is None:
        column, cells = _encoded(conf, statistics, name, values, VALUES)
    else:
        tuples, columns, crossed = _tuples(values, slot.cross), [], []
        for index, part in enumerate(slot.cross):
            of_part = [value[index] for value in tuples]
            column, cells = _encoded(conf, statistics, part, of_part, f"{VALUES}, part {part}")
            columns.append(column)
            crossed.append(cells)
        column = pa.StructArray.from_arrays(columns, names=list(slot.cross))
        encoder = Encoder(name, slot, conf.data, statistics.lists_of(name, slot))
        cells = encoder.crossed(crossed, len(tuples), _where)
    has_id = cells.lengths() > 0
    ids = np.zeros(len(column), np.uint64)
    ids[has_id] = cells.ids
    return ValueIds(column, ids, has_id)


def _where(row: int) -> tuple[str, int]:
    return VALUES, row + 1


def _encoded(
    conf: Conf, statistics: Statistics, name: str, values: Any, what: str
) -> tuple[pa.Array, Cells]:
    """The values as an array [n], and their cells: at most one id each.

    `name` is a slot, or of a cross also a column without one.
    """
    slot = conf.slots.get(name, Slot())
    column = _column(values, slot, what)
    texts = numbers.flat(stripped(pa.chunked_array([column]), conf.data))
    if slot.separator is not None or slot.pooling == "none":
        # Parts of a text, or elements of a list: each alone in its row.
        texts = pa.LargeListArray.from_arrays(np.arange(len(texts) + 1), texts)
    encoder = Encoder(name, slot, conf.data, statistics.lists_of(name, slot))
    return column, encoder.encode(texts, _where)


def _column(values: Any, slot: Slot, what: str) -> pa.Array:
    column = array_of(values, what)
    kind = column.type
    refuse_if(numbers.has_values(kind), f"{what} has lists. Give the single values that they have")
    refuse_if(
        pt.is_floating(kind) and not (slot.kind.of_numbers or slot.kind.of_times),
        f"{what} are {kind}, and ids are made of text or integers. Convert them",
    )
    return column


def _tuples(values: Any, parts: Sequence[str]) -> list[Sequence[Any]]:
    """The values of a cross, each with a value for each part. Raises UserError."""
    shape = f"tuples ({', '.join(parts)})"
    tuples = list(values) if isinstance(values, Sequence) and not isinstance(values, str) else None
    if tuples is None:
        raise UserError(f"{VALUES} of a cross is a list of {shape}")
    for row, value in enumerate(tuples):
        if not isinstance(value, tuple | list) or len(value) != len(parts):
            raise UserError(
                f"{VALUES}, row {row + 1}: those of a cross are {shape}. Received: "
                f"{quoted(repr(value))}"
            )
    return tuples


# ---- Raw rows: the first rows of a split as JSON has them, and as an Arrow table again


def raw_rows(source: Source, limit: int) -> list[dict[str, Any]]:
    """The first rows of a split as JSON has them, by column: texts, numbers, lists and None.

    Bytes that are not UTF-8 become Python's surrogate escapes. Of long rows there are fewer, but
    one at least: together they have no more bytes in Arrow's buffers than a line may have.
    """
    if source.data.prepared is not None:
        return PreparedReader(source.conf).first_rows(source.split, limit)
    first: list[dict[str, Any]] = []
    room = limits.LINE_BYTES
    for piece in source.pieces(columns_read(source.conf)):
        rows = piece.table.slice(0, limit - len(first))
        whole = rows.num_rows
        while rows.num_rows > (0 if first else 1) and rows.nbytes > room:
            rows = rows.slice(0, rows.num_rows // 2)
        room -= rows.nbytes
        first += [
            {name: _json(value) for name, value in row.items()}
            for row in _without_temporal(rows).to_pylist()
        ]
        if len(first) >= limit or rows.num_rows < whole:
            break
    return first


def _without_temporal(rows: pa.Table) -> pa.Table:
    """Rows with timestamps and dates as text, which JSON has in their place."""
    for index, (name, column) in enumerate(zip(rows.column_names, rows.columns, strict=True)):
        if is_temporal(column.type):
            rows = rows.set_column(index, name, as_texts(numbers.flat(column)))
    return rows


def _json(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    if isinstance(value, list):
        return [_json(part) for part in value]
    if isinstance(value, float) and not np.isfinite(value):
        return None
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, date):
        return value.isoformat()
    return value


def as_table(
    rows: list[dict[str, Any]],
    cutters: Mapping[str, Cutter],
    columns: Iterable[str] | None = None,
) -> pa.Table:
    """Raw rows as an Arrow table again, for `Features.encode`; a missing key is null.

    Names of columns may be paths into objects.

    `cutters` cut the texts of columns, as `jsonl_files.cutters` makes them. `columns` are the
    columns of the table, by default all that a row has.
    """
    if columns is None:
        columns = dict.fromkeys(name for row in rows for name in row)
    return pa.table(
        {
            name: _as_array(list(map(jsonl_files.lookup(name), rows)), cutters.get(name))
            for name in columns
        }
    )


def _as_array(values: list[Any], cut: Cutter | None) -> pa.Array:
    try:
        column = jsonl_files.array(values, cut)
    except UnicodeEncodeError:
        # Text with surrogate escapes: bytes that are not UTF-8.
        column = jsonl_files.array([_as_bytes(value) for value in values], cut)
    return column.cast(jsonl_files.or_text(column.type))


def _as_bytes(value: Any) -> Any:
    if isinstance(value, list):
        return [_as_bytes(part) for part in value]
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape")
    return None if value is None else json.dumps(value).encode()
