"""Which worker owns what, and what travels between a worker and an owner of a model."""

import itertools

import numpy as np
from numpy.typing import NDArray

from tnctl.cluster.joining.membership import Membership
from tnctl.cluster.messages.exchange import Shape, TableShape
from tnctl.cluster.transport.kinds import BODY_LIMITS, Kind
from tnctl.errors import Failure
from tnctl.model.layout import TableLayout
from tnctl.model.parameter_tables import MovingStatistics, ParameterTables
from tnctl.tables import SparseTable
from tnctl.tables.plans import SHARDS

LEAST_SLICE = 8192  # dense floats of a server, as the default of Paddle's min_block_size
DENSE_BYTES = BODY_LIMITS[Kind.EXCHANGE] // 2  # the rest of a message is for rows


def first_floats(model: ParameterTables, workers: int, servers: int = 0) -> list[int]:
    """The first dense float of each owner (`Membership.owners`), then their number.

    Slices of about the same size that are cut where the sums of squares of a gradient's parts add
    up to those of the whole (`chunk_starts`): every 4096 floats of a variable. Workers have an
    empty slice where there are fewer such places than workers. With servers worker 0 has an empty
    slice, and so few of them have one of their own that it is of `LEAST_SLICE` floats or more.
    """
    places = model.dense.chunk_starts
    if not servers:
        return slice_starts(places, workers)
    total = int(places[-1])
    slices = min(max(total // LEAST_SLICE, 1), servers)
    return [0, *slice_starts(places, slices), *[total] * (servers - slices)]


def slice_of(model: ParameterTables, membership: Membership, rank: int) -> tuple[int, int]:
    """The first dense float of an owner, and the first one after its slice."""
    number = membership.owners.index(rank)
    first, last = first_floats(model, membership.workers, membership.servers)[number : number + 2]
    return first, last


def slice_starts(places: NDArray[np.int64], slices: int) -> list[int]:
    """Where slices of about the same size begin, and the end of the last one.

    `places` are where they may, int64 in ascending order, the end too.
    """
    total = int(places[-1])
    ideal = np.array([total * number // slices for number in range(slices)])
    after = np.searchsorted(places, ideal)  # the next place at or after the ideal one
    earlier, later = places[np.maximum(after - 1, 0)], places[after]
    nearest = np.where(later - ideal <= ideal - earlier, later, earlier)
    return [*nearest.tolist(), total]


def check_dense(model: ParameterTables, workers: int, servers: int = 0) -> None:
    """Raise Failure when a slice of the dense weights is too large for the messages of a step."""

    def largest(number: int) -> int:
        starts = first_floats(model, workers, number) if servers else first_floats(model, number)
        return 4 * max(last - first for first, last in itertools.pairwise(starts))

    owners, kind = (servers, "servers") if servers else (workers, "workers")
    if (servers or workers > 1) and largest(owners) > DENSE_BYTES:
        enough = [n for n in range(owners + 1, SHARDS + 1) if largest(n) <= DENSE_BYTES]
        more = f"Use at least {enough[0]} {kind} (cluster.{kind}), or" if enough else "Use"
        raise Failure(
            f"the dense weights have {4 * len(model.dense.flat_weights):,} bytes, of which each of "
            f"{workers} workers receives {largest(workers):,} in a message, and {DENSE_BYTES:,} is "
            f"the limit. {more} one process without cluster"
        )


def shapes(
    model: ParameterTables, workers: int, moving: MovingStatistics, servers: int = 0
) -> list[Shape]:
    """What travels to and from each owner, in the order of `Membership.owners`."""
    tables = tuple(map(_table_shape, model.layout.tables, model.tables))
    statistics = sum(len(array) for array, _ in moving)
    starts = first_floats(model, workers, servers)
    halves = model.conf.cluster.wire == "bfloat16"
    return [
        Shape(
            tables,
            last - first,
            figures=number == 0,
            statistics=statistics if number == 0 else 0,
            halves=halves,
        )
        for number, (first, last) in enumerate(itertools.pairwise(starts))
    ]


def _table_shape(layout: TableLayout, table: SparseTable) -> TableShape:
    return TableShape(
        weights=0 if layout.kind.frozen else table.weights,
        floats_read=table.read_floats,
        counts=layout.kind.shows,
        waits=layout.waits,
    )
