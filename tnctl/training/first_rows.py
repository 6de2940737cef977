"""Rows before the first step, for `optimizer.updates=all`: a dense variable has all of its rows."""

import os

import numpy as np

from tnctl.data.features import Features, counted_ids
from tnctl.data.windows import batches, windows
from tnctl.errors import UserError
from tnctl.model.building import Model
from tnctl.tables import Batch, SlotPlan, SparseTable
from tnctl.training.buffers import Buffers

IDS_AT_A_TIME = 1 << 20


def insert_rows(model: Model, features: Features) -> None:
    """Insert every row that training on data.train will meet, with its initial weights.

    Ids that are counted (of a vocabulary, a modulo, buckets) are all inserted, met or not; for
    the others one pass over the data finds them. Raises Failure when the data cannot be read.
    """
    check_memory(model)
    uncounted = False
    for table, layout in zip(model.tables, model.layout.tables, strict=True):
        for slot, group in zip(layout.slots, layout.group_of, strict=True):
            count = counted_ids(slot, model.conf.slots[slot], model.statistics)
            uncounted |= count is None
            insert_counted(table, group, count or 0)
    if not uncounted:
        return
    size = model.conf.train.batch_size
    buffers = Buffers(model, size)
    for window in windows(model.conf, features, "train"):
        for batch in batches(window, np.arange(window.rows, dtype=np.uint32), size):
            buffers.find(batch, insert=True)


def check_memory(model: Model) -> None:
    """Refuse more counted rows than the machine's memory can hold."""
    needed = 0
    for table, layout in zip(model.tables, model.layout.tables, strict=True):
        counts = {
            group: counted_ids(slot, model.conf.slots[slot], model.statistics) or 0
            for slot, group in zip(layout.slots, layout.group_of, strict=True)
        }
        needed += sum(counts.values()) * table.record_dtype.itemsize
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > memory:
        raise UserError(
            f"optimizer.updates=all makes every row before the first step: {needed:,} bytes, and "
            f"this machine has {memory:,}. Take a smaller size, or updates=touched"
        )


def insert_counted(table: SparseTable, group: int, count: int) -> None:
    """Insert the ids 0 .. count - 1 of a group."""
    batch = Batch(table, [SlotPlan(group, "sum", 0)])
    for start in range(0, count, IDS_AT_A_TIME):
        ids = np.arange(start, min(start + IDS_AT_A_TIME, count), dtype=np.uint64)
        offsets = np.arange(len(ids) + 1, dtype=np.uint32)
        batch.find(ids, offsets, len(ids), insert=True)
