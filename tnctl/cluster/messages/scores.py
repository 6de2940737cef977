"""The scores of a split, which rank 0 gathers from the other workers in blocks of bounded size."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import numpy as np

from tnctl.cluster.transport.frames import Body
from tnctl.errors import Failure
from tnctl.evaluation.metrics import Scored

BLOCK_BYTES = 16 << 20
# The arrays of `Scored`, in the order in which a block has them.
TYPES = {"logits": "<f4", "labels": "<f4", "weight": "<f4", "reference": "<f8", "group": "<u8"}
_OF_HEADS = ("logits", "labels")  # arrays with a column for each head

Request = Callable[[int, int, int], "Future[Body]"]


def arrays_of(scored: Scored) -> tuple[str, ...]:
    """The names of the arrays that examples have."""
    return tuple(name for name in TYPES if getattr(scored, name) is not None)


def block_of(scored: Scored, first: int, rows: int) -> bytes:
    """The examples `first` to `first + rows` - 1: one array after the other.

    Raises Failure when there are fewer.
    """
    if first + rows > len(scored.labels):
        raise Failure(
            f"{rows:,} scores from {first:,} on were requested, there are {len(scored.labels):,}"
        )
    return b"".join(
        np.ascontiguousarray(getattr(scored, name)[first : first + rows], TYPES[name]).data
        for name in arrays_of(scored)
    )


def gathered(
    first_part: Scored,
    rows: Sequence[Sequence[int]],
    arrays: Sequence[Sequence[str]],
    request: Request,
    between: Callable[[], None],
) -> Scored:
    """The examples of a split in the order of its units, of which each worker has scored some.

    Unit i is of worker i modulo their number. `first_part` are the examples of worker 0; `rows` has
    the examples of each unit, by worker; `arrays` the names of the arrays that each worker has.
    `request(rank, first, rows)` requests a block of another worker, one at a time of each, and
    `between` is called while they are sent. Beside the result, memory is bounded by a block for
    each worker. Raises Failure when the workers' examples do not fit together.
    """
    totals = [sum(of_worker) for of_worker in rows]
    present = {frozenset(names) for names, total in zip(arrays, totals, strict=True) if total}
    if not present:
        return first_part
    if len(present) > 1 or not set(_OF_HEADS) <= min(present) <= set(TYPES):
        raise Failure(
            "workers have scored different columns: "
            f"{' / '.join(', '.join(sorted(names)) for names in present)}"
        )
    whole = _Whole(len(first_part.heads), rows, [name for name in TYPES if name in min(present)])
    most = max(BLOCK_BYTES // whole.bytes_per_row, 1)
    for first in range(0, totals[0], most):
        count = min(most, totals[0] - first)
        whole.put(0, first, count, block_of(first_part, first, count))
    for first in range(0, max(totals[1:], default=0), most):
        counts = [min(most, total - first) for total in totals]
        replies = {
            rank: request(rank, first, counts[rank])
            for rank in range(1, len(rows))
            if counts[rank] > 0
        }
        between()
        for rank, reply in replies.items():
            whole.put(rank, first, counts[rank], reply.result())
    return replace(first_part, **whole.arrays)


class _Whole:
    """The arrays of a split, into which the examples of each worker are put at their places."""

    def __init__(self, heads: int, rows: Sequence[Sequence[int]], names: Sequence[str]) -> None:
        workers, total = len(rows), sum(map(sum, rows))
        counts = np.zeros(sum(map(len, rows)), np.int64)
        for rank, of_worker in enumerate(rows):
            counts[rank::workers] = of_worker
        starts = np.cumsum(counts) - counts
        # Of each worker: where its units end among its examples, and how far they are moved.
        self._ends = [np.cumsum(of_worker, dtype=np.int64) for of_worker in rows]
        self._shifts = [
            starts[rank::workers] - (ends - counts[rank::workers])
            for rank, ends in enumerate(self._ends)
        ]
        self._columns = {name: (heads,) if name in _OF_HEADS else () for name in names}
        self.arrays: dict[str, Any] = {
            name: np.empty((total, *columns), TYPES[name])
            for name, columns in self._columns.items()
        }
        self.bytes_per_row = sum(
            array.itemsize * (heads if name in _OF_HEADS else 1)
            for name, array in self.arrays.items()
        )

    def put(self, rank: int, first: int, rows: int, block: Body) -> None:
        """Put so many examples of a worker, from `first` on, to their places. Raises Failure."""
        if len(block) != rows * self.bytes_per_row:
            raise Failure(
                f"worker {rank} sent {len(block):,} bytes of scores, instead of "
                f"{rows * self.bytes_per_row:,}"
            )
        numbers = np.arange(first, first + rows)
        places = (
            numbers + self._shifts[rank][np.searchsorted(self._ends[rank], numbers, side="right")]
        )
        offset = 0
        for name, array in self.arrays.items():
            values = np.frombuffer(block, TYPES[name], array[:1].size * rows, offset)
            array[places] = values.reshape(rows, *self._columns[name])
            offset += values.nbytes
