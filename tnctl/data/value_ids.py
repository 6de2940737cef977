"""The ids of values of a slot, as rows of training have them."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from numpy.typing import NDArray

from tnctl.data import numbers
from tnctl.data.arrow_tables import array_of, stripped
from tnctl.data.slot_encoder import Cells, Encoder
from tnctl.data.statistics import Statistics
from tnctl.errors import UserError, quoted
from tnctl.schema import Conf, Slot

NAME = "values"  # in messages, where files have their URL


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
        column, cells = _encoded(conf, statistics, name, values, NAME)
    else:
        tuples, columns, crossed = _tuples(values, slot.cross), [], []
        for place, part in enumerate(slot.cross):
            of_part = [value[place] for value in tuples]
            column, cells = _encoded(conf, statistics, part, of_part, f"{NAME}, part {part}")
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
    return NAME, row + 1


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
    if numbers.has_values(kind):
        raise UserError(f"{what} has lists. Give the single values that they have")
    if pt.is_floating(kind) and not (slot.kind.of_numbers or slot.kind.of_times):
        raise UserError(f"{what} are {kind}, and ids are made of text or integers. Convert them")
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
