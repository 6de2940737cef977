"""Which worker owns what, and what travels between a worker and an owner of a model."""

import itertools

from tnctl.cluster.exchange import Shape, TableShape
from tnctl.cluster.frames import BODY_LIMITS, Kind
from tnctl.errors import Failure
from tnctl.model.building import Model
from tnctl.model.layout import TableLayout
from tnctl.model.parameters import moving_statistics
from tnctl.tables import SparseTable
from tnctl.tables.dense_table import FLOATS_PER_LINE
from tnctl.tables.shards import SHARDS, shards_of

DENSE_BYTES = BODY_LIMITS[Kind.EXCHANGE] // 2  # the rest of a message is for rows


def first_shards(workers: int) -> list[int]:
    """The first shard of each worker, then 64."""
    return [*(shards_of(rank, workers).first for rank in range(workers)), SHARDS]


def first_floats(model: Model, workers: int) -> list[int]:
    """The first dense float of each worker, then their number: slices of whole cache lines."""
    total = len(model.dense.flat_weights)
    lines = total // FLOATS_PER_LINE
    ends = [lines * rank // workers * FLOATS_PER_LINE for rank in range(workers)]
    return [*ends, total]


def check_dense(model: Model, workers: int) -> None:
    """Raise Failure when a slice of the dense weights is too large for the messages of a step."""

    def largest(number: int) -> int:
        slices = itertools.pairwise(first_floats(model, number))
        return 4 * max(last - first for first, last in slices)

    if workers > 1 and largest(workers) > DENSE_BYTES:
        enough = [n for n in range(workers + 1, SHARDS + 1) if largest(n) <= DENSE_BYTES]
        more = f"Use at least {enough[0]} workers (cluster.workers), or" if enough else "Use"
        raise Failure(
            f"the dense weights have {4 * len(model.dense.flat_weights):,} bytes, of which each of "
            f"{workers} workers receives {largest(workers):,} in a message, and {DENSE_BYTES:,} is "
            f"the limit. {more} one process without cluster"
        )


def shapes(model: Model, workers: int) -> list[Shape]:
    """What travels to and from each owner, by rank."""
    tables = tuple(map(_table_shape, model.layout.tables, model.tables))
    statistics = sum(len(moving) for moving, _ in moving_statistics(model))
    slices = itertools.pairwise(first_floats(model, workers))
    return [
        Shape(tables, last - first, figures=rank == 0, statistics=statistics if rank == 0 else 0)
        for rank, (first, last) in enumerate(slices)
    ]


def _table_shape(layout: TableLayout, table: SparseTable) -> TableShape:
    return TableShape(
        weights=0 if layout.kind.frozen else table.weights,
        floats_read=table.read_floats,
        counts=layout.kind.shows,
        waits=layout.waits,
    )
