"""The parameters of a model where they are kept: its sparse tables and its dense table.

Imports no TensorFlow, so that a process can keep parameters and compute nothing.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from tnctl.data.statistics_document import Statistics
from tnctl.model.layout import (
    Layout,
    TableLayout,
    initials,
    segments,
    table_life,
    table_optimizer,
)
from tnctl.schema import Conf, Train
from tnctl.tables import DenseTable, Figures, Pool, SparseTable

MovingStatistics = list[tuple[NDArray[np.float32], float]]  # the memory of each, its momentum

MOST_THREADS = 8  # beyond this the tables wait for memory


@dataclass
class ParameterTables:
    """The tables of a model: `tables[i]` has the rows of `layout.tables[i]`.

    Trainable variable i of the network is `dense.weights[i]`.
    """

    conf: Conf
    layout: Layout
    statistics: Statistics
    pool: Pool
    tables: list[SparseTable]
    dense: DenseTable


class TableUpdates:
    """What a step changes in tables beside applying gradients."""

    def __init__(self, model: ParameterTables, dense: DenseTable | None = None) -> None:
        """`dense` is what is trained in the place of the model's dense weights, if it is given."""
        self._model = model
        self._dense = model.dense if dense is None else dense
        self._rate_factor = 1.0

    def set_rate_factor(self, factor: float) -> None:
        """Multiply every learning rate of the conf by a factor."""
        if factor == self._rate_factor:
            return
        self._rate_factor = factor
        for table in self._model.tables:
            for position, segment in enumerate(table.segments):
                table.set_learning_rate(position, segment.optimizer.learning_rate * factor)
        self._dense.set_learning_rate(self._dense.optimizer.learning_rate * factor)

    def remove_rows(self, steps: int) -> None:
        """Evict by the rules that hold every few steps, then down to the bounds."""
        for layout, table in zip(self._model.layout.tables, self._model.tables, strict=True):
            every = layout.kind.evict_every
            if every is not None and steps % every == 0:
                table.evict()
            if layout.bounds:
                table.bound()


def move_statistics(
    moving_statistics: MovingStatistics, measured: Sequence[NDArray[np.float32]], dense_step: int
) -> None:
    """Move each moving statistic towards the batch's, float32 [n], after a dense step."""
    for (moving, momentum), of_batch in zip(moving_statistics, measured, strict=True):
        # A plain mean of the first batches: what the statistics start with is of no batch.
        # They and the dense weights begin together, in a warm start later than the clock.
        rate = np.float32(max(1 - momentum, 1 / dense_step))
        moving += rate * (of_batch - moving)


def pool_of(train: Train) -> Pool:
    """The threads of a model's tables."""
    return Pool(train.threads or min(len(os.sched_getaffinity(0)), MOST_THREADS))


def empty_tables(conf: Conf, layout: Layout, pool: Pool) -> list[SparseTable]:
    """A table without rows for each table of the layout."""
    return [_empty_table(conf, table_layout, pool) for table_layout in layout.tables]


def dense_table(conf: Conf, sizes: Sequence[int], pool: Pool) -> DenseTable:
    """The table of the dense weights: variable i has `sizes[i]` floats, zeros."""
    return DenseTable(sizes, table_optimizer(conf.optimizer.dense, conf), pool)


def _empty_table(conf: Conf, table_layout: TableLayout, pool: Pool) -> SparseTable:
    table = SparseTable(
        segments(conf, table_layout),
        conf.seed,
        pool,
        updates=conf.optimizer.updates,
        shows=table_layout.kind.shows,
        cvm=table_layout.kind.cvm,
        sketch_bytes=conf.life.sketch if table_layout.waits else 0,
    )
    for (group, number), life in zip(table_layout.groups.items(), table_layout.lives, strict=True):
        table.add_group(number, group, initials(conf, table_layout, group))
        if life.eventful:
            table.set_life(number, table_life(life, table.stride))
    return table


@dataclass(frozen=True)
class TableFigures:
    """Rows and bytes (rows and index, as reserved) of a table, and the counts of each group."""

    rows: int
    bytes: int
    groups: dict[str, Figures]
    """by the name of the share group"""


def table_figures(model: ParameterTables) -> list[TableFigures]:
    """The figures of each table of a model, in their order."""
    return [
        TableFigures(
            table.rows,
            table.index_bytes + table.row_bytes,
            {name: table.figures(number) for name, number in layout.groups.items()},
        )
        for layout, table in zip(model.layout.tables, model.tables, strict=True)
    ]


def total_rows(tables: Sequence[TableFigures]) -> int:
    """The rows of all tables together."""
    return sum(table.rows for table in tables)


def total_bytes(tables: Sequence[TableFigures]) -> int:
    """The bytes of all tables together."""
    return sum(table.bytes for table in tables)


LARGEST = 3.4028234663852886e38  # of float32


@dataclass(frozen=True, kw_only=True)
class Recalibration:
    """slope * z + intercept takes the place of the logit z of a head; both are float32.

    As the slope is above 0, the order of the logits stays.
    """

    slope: Annotated[float, Field(gt=0, le=LARGEST)]
    intercept: Annotated[float, Field(ge=-LARGEST, le=LARGEST)]

    def after(self, first: "Recalibration", share: float = 1.0) -> "Recalibration":
        """The one that does `first`, and then a share of this one, from none of it to all."""
        slope = 1 + share * (self.slope - 1)
        return Recalibration(
            slope=float(np.float32(slope * first.slope)),
            intercept=float(np.float32(slope * first.intercept + share * self.intercept)),
        )

    def of(self, logits: Any) -> Any:
        """The recalibrated logits, computed in float32: an array or tensor of the same shape."""
        return logits * np.float32(self.slope) + np.float32(self.intercept)
