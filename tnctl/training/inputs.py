"""What a model holds for each of its inputs."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl.model.building import Model
from tnctl.model.layout import EMBEDDING, Layout
from tnctl.tables import SparseTable
from tnctl.training.evaluation import Counts
from tnctl.training.inspection import INDEX_BYTES
from tnctl.training.report.page import InputRow

ROWS_SAMPLED = 1 << 20


def kind_of(layout: Layout, name: str) -> str:
    """What an input is: slot, sequence, one-hot or number."""
    if name in layout.sequences:
        return "sequence"
    if name in layout.indicators:
        return "one-hot"
    return "slot" if name in layout.slots else "number"


def row_bytes(table: SparseTable) -> float:
    """The bytes of a row with its part of the index, by expectation.

    What a table holds at a moment depends on all that it went through, rows removed and loaded: a
    run that was stopped on its way would tell other figures than one that was not.
    """
    return table.stride + INDEX_BYTES


def held(model: Model) -> dict[str, tuple[int, int]]:
    """Rows and bytes of every slot that has rows: those of its share group.

    Bytes are the group's part of its table, index and all, by its part of the rows.
    """
    found = {}
    for layout, table in zip(model.layout.tables, model.tables, strict=True):
        each = row_bytes(table)
        for slot, number in zip(layout.slots, layout.group_of, strict=True):
            rows = table.group_rows(number)
            found[slot] = (rows, round(rows * each))
    return found


def sampled_norms(
    table: SparseTable, rows: int = ROWS_SAMPLED
) -> tuple[NDArray[np.uint16], NDArray[np.float64]]:
    """The groups' numbers and the norms of at most so many embeddings, a uniform sample."""
    # In the order of the hash the first rows are one.
    records: NDArray[Any] | None = next(table.records(at_a_time=rows), None)
    if records is None:
        return np.empty(0, np.uint16), np.empty(0)
    return records["group"], np.linalg.norm(records[EMBEDDING].astype(np.float64), axis=1)


def mean_norms(model: Model) -> dict[str, float]:
    """The mean norm of the embeddings of every slot's group that has rows in the sample."""
    found = {}
    for layout, table in zip(model.layout.tables, model.tables, strict=True):
        if not layout.width:
            continue
        groups, norms = sampled_norms(table)
        counts, sums = np.bincount(groups), np.bincount(groups, norms)
        for slot, number in zip(layout.slots, layout.group_of, strict=True):
            if number < len(counts) and counts[number]:
                found[slot] = float(sums[number] / counts[number])
    return found


def input_rows(
    model: Model, counts: Counts | None, importance: Mapping[str, float]
) -> list[InputRow]:
    """Every input of a model as the report page shows it; `counts` of the reported split."""
    rows, norms = held(model), mean_norms(model)
    found = []
    for name in [*model.layout.slots, *model.layout.numeric]:
        kind = kind_of(model.layout, name)
        count, size = rows.get(name, (None, None))
        slot = model.conf.slots.get(name)
        found.append(
            InputRow(
                name,
                kind,
                coverage=None if counts is None else counts.present[name] / counts.examples,
                ids=None if counts is None or slot is None else counts.ids[name] / counts.examples,
                group=None if count is None or slot is None else slot.group or name,
                rows=count,
                bytes=size,
                norm=norms.get(name),
                importance=importance.get(name),
            )
        )
    return found
