"""The rows of a checkpoint, as tables are filled with them. Imports no TensorFlow."""

import math

from tnctl import memory_limits
from tnctl.checkpoint import rows, sketch_file
from tnctl.checkpoint.chain import Checkpoint, offering
from tnctl.checkpoint.table_document import Table
from tnctl.errors import Failure
from tnctl.model.parameter_tables import ParameterTables
from tnctl.tables import ALL_SHARDS, Figures, Shards, SparseTable
from tnctl.tables.shards import SHARDS

LEAST_INDEX_BYTES = 10  # of a row: 8 for each place of the index, at most 3 in 4 are occupied
COMPUTING_BYTES = 128 << 20  # the least that TensorFlow and batches take beside the rows


def fill_tables(
    checkpoint: Checkpoint, model: ParameterTables, shards: Shards = ALL_SHARDS
) -> None:
    """Fill the tables of a model that was just built with the rows of some shards.

    The model's conf must be the one that the checkpoint was saved with. Raises Failure.
    """
    parts = {table.name: table for table in checkpoint.manifest.tables}
    if sorted(parts) != sorted(layout.name for layout in model.layout.tables):
        raise Failure(f"{checkpoint.folder} has tables {sorted(parts)}, the conf needs others")
    needed = sum(
        parts[layout.name].rows * shards.count // SHARDS * (table.stride + LEAST_INDEX_BYTES)
        for layout, table in zip(model.layout.tables, model.tables, strict=True)
    )
    memory_limits.require(needed, COMPUTING_BYTES, f"the model of {checkpoint.folder}")
    with offering(checkpoint):
        for layout, table in zip(model.layout.tables, model.tables, strict=True):
            part = parts[layout.name]
            saved = {group.name: group.number for group in part.groups}
            if saved != layout.groups:
                raise Failure(f"{checkpoint.folder} has groups {saved}, the conf {layout.groups}")
            if shards.count:
                load_table(checkpoint, part, table, shards)


def load_table(
    checkpoint: Checkpoint, part: Table, table: SparseTable, shards: Shards = ALL_SHARDS
) -> None:
    """Fill an empty table with the rows of some shards; only files that have such rows are read.

    Of these files every byte is read, so that every checksum is checked. What counts the whole
    table and cannot be divided, ids that wait and rows removed, goes to the table with shard 0.
    Raises Failure when the rows are not what the manifest says.
    """
    if part.record_dtype != table.record_dtype:
        raise Failure(
            f"{checkpoint.folder} table {part.name} has records of "
            f"{part.record_dtype.names}, the conf needs {table.record_dtype.names}. "
            "Use the conf that it was saved with"
        )
    first, last = shards.hashes
    files = [entry for link in checkpoint.chain() for entry in link.table(part.name).files]
    rows_within = sum(entry.rows * shared(entry.hashes, (first, last)) for entry in files)
    table.reserve(min(part.rows, math.ceil(rows_within)))
    for records in rows.stream(checkpoint, part.name, first, last):
        try:
            table.insert_records(records.view("u1"))
        except ValueError as error:
            rows.raise_damage(checkpoint, part.name, f"is damaged ({error})")
    sketch_file.read(checkpoint, part, table, shards)
    # What reading a row gives depends on the step where weights decay, and on the day.
    table.set_step(checkpoint.step)
    table.set_days(checkpoint.clock.days)
    if shards.first == 0:
        for group in part.groups:
            figures = Figures(group.rows, group.admitted, group.waiting, group.evicted)
            table.set_figures(group.number, figures)


def shared(hashes: tuple[int, int], others: tuple[int, int]) -> float:
    """The share of a range of hashes (first, last) that another has too."""
    (first, last), (first_other, last_other) = hashes, others
    return max(0, min(last, last_other) + 1 - max(first, first_other)) / (last + 1 - first)
