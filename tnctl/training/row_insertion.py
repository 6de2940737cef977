"""Rows before the first step, for `optimizer.updates=all`: a dense variable has all of its rows."""

import numpy as np

from tnctl.data.batches import batches
from tnctl.data.features import Features, counted_ids
from tnctl.data.windows import windows
from tnctl.errors import UserError
from tnctl.model.building import Model
from tnctl.model.parameters import LocalParameters
from tnctl.tables import SlotPlan, SparseTable, Workspace
from tnctl.training.check.forecast import memory_of_machine

IDS_AT_A_TIME = 1 << 20


def insert_all_rows(model: Model, features: Features) -> None:
    """Insert every row that training on data.train will meet, with its initial weights.

    Ids that are counted (of a vocabulary, a modulo, buckets) are all inserted, met or not; for
    the others one pass over the data finds them. Raises Failure when the data cannot be read.
    """
    counts = counted_rows(model)
    check_memory(model, counts)
    for table, of_groups in zip(model.tables, counts, strict=True):
        for group, count in of_groups.items():
            insert_counted(table, group, count or 0)
    if all(count is not None for of_groups in counts for count in of_groups.values()):
        return
    size = model.conf.train.batch_rows
    parameters = LocalParameters(model)
    for window in windows(model.conf, features, "train"):
        for batch in batches(window, np.arange(window.rows, dtype=np.uint32), size):
            parameters.find(batch, insert=True)


def counted_rows(model: Model) -> list[dict[int, int | None]]:
    """For each table, how many ids each group can have; None where they cannot be counted."""
    counts_of_tables: list[dict[int, int | None]] = []
    for layout in model.layout.tables:
        counts: dict[int, int | None] = {}
        for slot, group in zip(layout.slots, layout.group_of, strict=True):
            count = counted_ids(slot, model.conf.slots[slot], model.statistics)
            # Slots of one group have ids of one kind; buckets that are measured may differ.
            counts[group] = None if count is None else max(count, counts.get(group) or 0)
        counts_of_tables.append(counts)
    return counts_of_tables


def check_memory(model: Model, counts: list[dict[int, int | None]]) -> None:
    """Raise UserError when the rows of all `counts` need more memory than the machine has.

    `counts` has for each table the rows by group; groups with None are left out of the sum.
    """
    needed = sum(
        table.stride * sum(count or 0 for count in of_groups.values())
        for table, of_groups in zip(model.tables, counts, strict=True)
    )
    memory = memory_of_machine()
    if needed > memory:
        raise UserError(
            f"optimizer.updates=all makes every row before the first step: {needed:,} bytes, and "
            f"this machine has {memory:,}. Take a smaller size, or updates=touched"
        )


def insert_counted(table: SparseTable, group: int, count: int) -> None:
    """Insert the ids 0 .. count - 1 of a group."""
    batch = Workspace(table, [SlotPlan(group, "sum", 0)])
    for start in range(0, count, IDS_AT_A_TIME):
        ids = np.arange(start, min(start + IDS_AT_A_TIME, count), dtype=np.uint64)
        offsets = np.arange(len(ids) + 1, dtype=np.uint32)
        batch.find(ids, offsets, len(ids), insert=True)
