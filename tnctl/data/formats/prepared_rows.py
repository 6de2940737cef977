"""Prepared rows, which have ids already, to batches."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tnctl.data.batches import Batch
from tnctl.data.features import EncodedRows, Features
from tnctl.data.file_pieces import Where
from tnctl.data.formats.prepared_columns import check_width
from tnctl.data.numbers import flat, is_list
from tnctl.data.row_limits import refuse_long_rows
from tnctl.data.slot_encoder import Cells
from tnctl.errors import UserError


def encoded_rows(features: Features, table: pa.Table, where: Where) -> EncodedRows:
    """The columns of prepared rows, as `Features.read` makes them from raw ones.

    Raises `UserError` for a column to carry that was not prepared, `BadRowsError` for too many ids
    in a row.
    """
    cells = {name: cells_of(table, name) for slots, _ in features.tables for name in slots}
    refuse_long_rows([of_slot.offsets for of_slot in cells.values()], where)
    names = features.conf.data.all_labels
    labels = np.zeros((table.num_rows, len(names)), np.float32)
    batch = Batch([], [], [], _numeric(table, features.numeric_width), labels)
    if features.labelled:
        for number, name in enumerate(names):
            labels[:, number] = labels_of(table, name)
        for key in {"weight", "reference", "group"} & set(table.column_names):
            setattr(batch, key, _array(table, key))
    batch.carried = _carried(features, table)
    return EncodedRows(cells, batch)


def encoder(features: Features) -> Callable[[pa.Table, Where], Batch]:
    """Prepared rows to a batch, in the place of `Features.encode`."""
    return lambda table, where: features.batch(encoded_rows(features, table, where))


def labels_of(table: pa.Table, name: str) -> NDArray[np.float32]:
    """One label of prepared rows, float32 [rows]."""
    return _array(table, f"label_{name}")


def _array(table: pa.Table, name: str) -> NDArray[Any]:
    return np.asarray(flat(table.column(name)).to_numpy())


def cells_of(table: pa.Table, name: str) -> Cells:
    """The cells of a slot, in Arrow's own memory where every row has one id."""
    array = flat(table.column(f"ids_{name}"))
    weights = None
    if (column := f"weights_{name}") in table.column_names:
        weights = _values(flat(table.column(column)))
    if is_list(array.type):
        offsets = array.offsets.to_numpy()
        return Cells(_values(array), offsets - offsets[0], weights)
    if array.null_count:
        offsets = np.zeros(len(array) + 1, np.int32)
        np.cumsum(array.is_valid().to_numpy(zero_copy_only=False), out=offsets[1:])
        return Cells(_values(array), offsets, weights)
    return Cells(_values(array), None, weights)


def _values(array: pa.Array) -> NDArray[Any]:
    """The values of all rows, one after the other."""
    if is_list(array.type):
        array = array.flatten()
    return np.asarray((array.drop_null() if array.null_count else array).to_numpy())


def _numeric(table: pa.Table, expected: int) -> NDArray[np.float32]:
    if not expected:
        return np.empty((table.num_rows, 0), np.float32)
    array = flat(table.column("numeric"))
    check_width(array, expected)
    width = array.type.byte_width // 4
    values = np.frombuffer(array.buffers()[1], np.float32)
    return values[array.offset * width : (array.offset + len(array)) * width].reshape(-1, width)


def _carried(features: Features, table: pa.Table) -> pa.Table | None:
    for name in features.carry:
        if f"carry_{name}" not in table.column_names:
            raise UserError(
                f"{features.conf.data.prepared} was prepared without the column '{name}' to "
                "carry. Prepare it again with data.carry"
            )
    if not features.carry:
        return None
    columns = [table.column(f"carry_{name}") for name in features.carry]
    return pa.table(columns, names=list(features.carry))
