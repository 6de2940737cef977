"""The rows of values of a slot, by the values themselves."""

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tnctl.data.arrow_tables import ValueIds, ids_of_values
from tnctl.errors import UserError, did_you_mean, quoted
from tnctl.evaluation.model_readers import LocalReader
from tnctl.model.layout import EMBEDDING, LINEAR, Layout


def value_rows(reader: LocalReader, slot: str, values: Any) -> pa.Table:
    """What the model has of values [n] of a slot; docs/python.md has the columns.

    Each value is one of the data's, after a separator has split them. Raises UserError for a slot
    without rows, and for values that are no column; BadRowsError for one that cannot be an id.
    """
    model = reader.model
    layout = model.layout
    if slot not in layout.slots:
        raise UserError(
            f"no slot {quoted(str(slot))} with rows. {did_you_mean(str(slot), layout.slots)}"
        )
    of_values = ids_of_values(model.conf, model.statistics, slot, values)
    floats, known = _rows(reader, layout, slot, of_values.ids[of_values.has_id])
    return _table(layout, slot, of_values, floats, known)


def _rows(
    reader: LocalReader, layout: Layout, slot: str, ids: NDArray[np.uint64]
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
    of_values: ValueIds,
    floats: NDArray[np.float32],
    known: NDArray[np.bool_],
) -> pa.Table:
    """The columns; `floats` and `known` are of the values that have an id."""
    kind = layout.tables[place_of(layout, slot)[0]].kind
    values, ids, has_id = of_values
    rows = np.zeros((len(ids), floats.shape[1]), np.float32)
    rows[has_id] = floats
    is_known = np.zeros(len(ids), bool)
    is_known[has_id] = known
    columns = {
        "value": values,
        "id": pa.array(ids, mask=~has_id),
        "known": pa.array(is_known),
    }
    if kind.linear:
        columns[LINEAR] = pa.array(rows[:, 0])
    if kind.columns:
        embedding = np.ascontiguousarray(rows[:, int(kind.linear) :])
        columns[EMBEDDING] = pa.FixedSizeListArray.from_arrays(
            pa.array(embedding.reshape(-1)), kind.columns
        )
    return pa.table(columns)
