"""The rows of values of a slot, by the values themselves."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from numpy.typing import NDArray

from tnctl.data import numbers
from tnctl.data.arrow_tables import array_of
from tnctl.data.slot_encoder import Cells, Encoder
from tnctl.data.statistics import Statistics
from tnctl.errors import UserError, did_you_mean, quoted
from tnctl.evaluation.model_readers import ModelReaders
from tnctl.model.layout import EMBEDDING, LINEAR, Layout
from tnctl.schema import Conf, Data, Slot

NAME = "values"  # in messages, where files have their URL


def value_rows(reader: ModelReaders, slot: str, values: Any) -> pa.Table:
    """What the model has of values [n] of a slot; docs/python.md has the columns.

    Each value is one of the data's, after a separator has split them. Raises UserError for a slot
    without rows, and for values that are no column; BadRowsError for one that cannot be an id.
    """
    model = reader.model
    conf, layout = model.conf, model.layout
    if slot not in layout.slots:
        raise UserError(
            f"no slot {quoted(str(slot))} with rows. {did_you_mean(str(slot), layout.slots)}"
        )
    column, cells = _encoded(conf, model.statistics, slot, values)
    has_id = cells.lengths() > 0
    ids = np.zeros(len(column), np.uint64)
    ids[has_id] = cells.ids
    floats, known = _rows(reader, layout, slot, cells.ids)
    return _table(layout, slot, column, ids, has_id, floats, known)


def _where(row: int) -> tuple[str, int]:
    return NAME, row + 1


def _encoded(conf: Conf, statistics: Statistics, name: str, values: Any) -> tuple[pa.Array, Cells]:
    """The values as one array [n], and their cells: at most one id each."""
    slot = conf.slots[name]
    if slot.cross is None:
        column = _column(values, slot, NAME)
        return column, _encoder(conf.data, statistics, name, slot).encode(column, _where)
    tuples = _tuples(values, slot.cross)
    columns, cells = [], []
    for place, part in enumerate(slot.cross):
        of_part = conf.slots.get(part, Slot())
        column = _column([value[place] for value in tuples], of_part, f"{NAME}, part {part}")
        columns.append(column)
        cells.append(_encoder(conf.data, statistics, part, of_part).encode(column, _where))
    crossing = Encoder(name, slot, conf.data, statistics.lists_of(name, slot))
    return (
        pa.StructArray.from_arrays(columns, names=list(slot.cross)),
        crossing.crossed(cells, len(tuples), _where),
    )


def _encoder(data: Data, statistics: Statistics, name: str, slot: Slot) -> Encoder:
    """The encoder of single values of a slot: what splits or cuts several of a row is left out."""
    pooling = "sum" if slot.pooling == "none" else slot.pooling
    of_values = replace(
        slot, separator=None, max_length=None, keep="first", weights=None, pooling=pooling
    )
    return Encoder(name, of_values, data, statistics.lists_of(name, slot))


def _column(values: Any, slot: Slot, name: str) -> pa.Array:
    column = array_of(values, name)
    kind = column.type
    if numbers.is_list(kind) or pt.is_fixed_size_list(kind):
        raise UserError(f"{name} has lists. Give the single values that they have")
    if pt.is_floating(kind) and not (slot.kind.of_numbers or slot.kind.of_times):
        raise UserError(f"{name} are {kind}, and ids are made of text or integers. Convert them")
    return column


def _tuples(values: Any, parts: Sequence[str]) -> list[Sequence[Any]]:
    """The values of a cross, each with a value for each part. Raises UserError."""
    shape = f"tuples ({', '.join(parts)})"
    tuples = list(values) if isinstance(values, Sequence) and not isinstance(values, str) else None
    if tuples is None:
        raise UserError(f"{NAME} of a cross is a list of {shape}")
    for row, value in enumerate(tuples):
        if not isinstance(value, tuple | list) or len(value) != len(parts):
            raise UserError(
                f"{NAME}, row {row + 1}: those of a cross are {shape}. Received: "
                f"{quoted(repr(value))}"
            )
    return tuples


def _rows(
    reader: ModelReaders, layout: Layout, slot: str, ids: NDArray[np.uint64]
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """The rows of ids [n] of a slot, float32 [n, columns], and which have one, bool [n]."""
    distinct, places = np.unique(ids, return_inverse=True)
    table, group = place_of(layout, slot)
    rows, known = reader.rows(table, np.full(len(distinct), group, np.uint16), distinct)
    return rows[places], known[places]


def place_of(layout: Layout, slot: str) -> tuple[int, int]:
    """The number of a slot's table, and of its share group in that table."""
    for number, table in enumerate(layout.tables):
        if slot in table.slots:
            return number, table.group_of[table.slots.index(slot)]
    raise UserError(f"slot {slot} has no rows")


def _table(
    layout: Layout,
    slot: str,
    column: pa.Array,
    ids: NDArray[np.uint64],
    has_id: NDArray[np.bool_],
    floats: NDArray[np.float32],
    known: NDArray[np.bool_],
) -> pa.Table:
    kind = layout.tables[place_of(layout, slot)[0]].kind
    of_values = np.zeros((len(ids), floats.shape[1]), np.float32)
    of_values[has_id] = floats
    is_known = np.zeros(len(ids), bool)
    is_known[has_id] = known
    columns = {
        "value": column,
        "id": pa.array(ids, mask=~has_id),
        "known": pa.array(is_known),
    }
    if kind.linear:
        columns[LINEAR] = pa.array(of_values[:, 0])
    if kind.columns:
        embedding = np.ascontiguousarray(of_values[:, int(kind.linear) :])
        columns[EMBEDDING] = pa.FixedSizeListArray.from_arrays(
            pa.array(embedding.reshape(-1)), kind.columns
        )
    return pa.table(columns)
