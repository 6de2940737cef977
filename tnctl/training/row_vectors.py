"""Rows that start from vectors that were trained elsewhere: `slots.NAME.vectors`."""

import numpy as np
from numpy.typing import NDArray

from tnctl.data.arrow_tables import ids_of_values
from tnctl.data.sources import files_of_slots
from tnctl.data.vectors import read_vectors
from tnctl.errors import Failure, UserError, quoted, refuse_if
from tnctl.model.layout import EMBEDDING
from tnctl.model.parameter_tables import ParameterTables
from tnctl.tables import SparseTable
from tnctl.training.warm.pairing import FTRL, ftrl_z

ROWS_AT_A_TIME = 1 << 17


def insert(model: ParameterTables) -> None:
    """Insert a row for each value that has a vector and no row yet, in shards that are owned.

    Raises UserError for vectors of another width than the slot's, Failure for files that cannot be
    read and for a value that is there twice.
    """
    urls = files_of_slots(model.conf, "vectors")
    for layout, table in zip(model.layout.tables, model.tables, strict=True):
        slots = dict(zip(reversed(layout.group_of), reversed(layout.slots), strict=True))
        for group, name in slots.items():
            if name in urls:
                insert_rows(table, group, *_ids_and_floats(model, name, urls[name]))


def _ids_and_floats(
    model: ParameterTables, name: str, url: str
) -> tuple[NDArray[np.uint64], NDArray[np.float32]]:
    """The ids [n] of a slot that have vectors, float32 [n, width], each once."""
    values, floats = read_vectors(url)
    width = model.conf.slots[name].width
    refuse_if(
        floats.shape[1] != width,
        f"slots.{name}: the vectors of {url} are {floats.shape[1]} wide. Received: width={width}",
    )
    try:
        _, ids, has_id = ids_of_values(model.conf, model.statistics, name, values)
    except UserError as error:
        raise Failure(f"slots.{name}.vectors={url}: {error}") from error
    refuse_if(not has_id.any(), f"slots.{name}: no value of {url} has an id", Failure)
    places = np.flatnonzero(has_id)
    places = places[np.argsort(ids[places], kind="stable")]
    same = np.flatnonzero(ids[places[1:]] == ids[places[:-1]])
    if len(same):
        first, second = (int(row) for row in places[same[0] : same[0] + 2])
        raise Failure(
            f"{url}, row {second + 1}: {quoted(str(values[second].as_py()))} is the value of row "
            f"{first + 1} too. Remove one of them"
        )
    return ids[places], floats[places]


def insert_rows(
    table: SparseTable, group: int, ids: NDArray[np.uint64], floats: NDArray[np.float32]
) -> None:
    """Insert rows of ids [n], each once, that start with these embeddings, float32 [n, width].

    Ids of shards of others, and ids that have a row, are passed over.
    """
    groups = np.full(len(ids), group, np.uint16)
    places = np.flatnonzero(table.owned(groups, ids))
    places = places[~table.contains(groups[places], ids[places])]
    places = places[np.argsort(table.hashes(groups[places], ids[places]))]
    table.reserve(table.rows + len(places))
    segment = next(segment for segment in table.segments if segment.name == EMBEDDING)
    for start in range(0, len(places), ROWS_AT_A_TIME):
        part = places[start : start + ROWS_AT_A_TIME]
        records = table.fresh_records(groups[part], ids[part])
        records[EMBEDDING] = floats[part]
        if segment.optimizer.name in FTRL:
            sums = records[f"{EMBEDDING}.n"]
            records[f"{EMBEDDING}.z"] = ftrl_z(segment.optimizer, records[EMBEDDING], sums)
        table.insert_records(records.view("u1"))
