"""Tables and columns of other libraries in memory (pandas, polars, pyarrow, …) as Arrow.

None of these libraries is imported: they export their data by the Arrow PyCapsule interface
(https://arrow.apache.org/docs/format/CDataInterface/PyCapsuleInterface.html), or it is of pandas,
which pyarrow knows. Values of a slot get the ids that rows of training have.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from numpy.typing import NDArray

from tnctl.data import numbers
from tnctl.data.column_names import id_columns
from tnctl.data.file_pieces import require
from tnctl.data.nested_columns import columns_of, require_paths, selected
from tnctl.data.slot_encoder import Cells, Encoder
from tnctl.data.statistics_document import Statistics
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
    if isinstance(table, type):
        raise _no_table(table)
    if _is_frame(table):
        names = list(table.columns)
        columns = columns_of(needed, [name for name in names if isinstance(name, str)])
        require(NAME, columns, [name for name in names if isinstance(name, str)])
        with _translated("the index", " (reset_index(drop=True) removes it)"):
            pa.Table.from_pandas(table[[]])  # the scores get it
        with _translated():
            whole = pa.Table.from_pandas(table, columns=columns, preserve_index=False)
        require_paths(NAME, needed, whole.schema)
        for batch in whole.to_batches():
            yield selected(batch, needed)
        return
    if not hasattr(table, "__arrow_c_stream__"):
        raise _no_table(table)
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


def _no_table(table: Any) -> UserError:
    return UserError(
        "predict takes a DataFrame of pandas or polars, a Table of pyarrow, or anything else with "
        f"__arrow_c_stream__. Received: {quoted(repr(type(table)))}. pyarrow.Table.from_pylist "
        "makes a table of dicts"
    )


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
    ids: NDArray[np.uint64]  # [n], 0 where a value has none
    has_id: NDArray[np.bool_]  # [n]


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
        for place, part in enumerate(slot.cross):
            of_part = [value[place] for value in tuples]
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
