"""The scores of a split, which rank 0 gathers from all workers in blocks of bounded size."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl.cluster.messages.commands import BLOCK_BYTES
from tnctl.errors import Failure
from tnctl.evaluation.metrics import Scored

TYPES = {"logits": "<f4", "labels": "<f4", "weight": "<f4", "reference": "<f8", "group": "<u8"}
"""the arrays of `Scored`"""
_OF_HEADS = ("logits", "labels")  # arrays with a column for each head

Wait = Callable[[], NDArray[Any]]


def arrays_of(scored: Scored) -> dict[str, NDArray[Any]]:
    """The arrays that examples have, by their names."""
    return {name: getattr(scored, name) for name in TYPES if getattr(scored, name) is not None}


def gathered(
    heads: int,
    rows: Sequence[Sequence[int]],
    names: Sequence[Sequence[str]],
    request: Callable[[str, Mapping[int, tuple[int, int]]], Sequence[Wait]],
    between: Callable[[], None],
) -> dict[str, NDArray[Any]]:
    """The arrays of a split in the order of its units, of which each worker has scored some.

    Unit i is of worker i modulo their number. `rows` has the examples of each unit, by worker;
    `names` the arrays that each worker has. `request(name, {rank: (first, rows)})` requests a block
    of an array of some workers, and `between` is called before it is waited for. Beside the result,
    memory is bounded by a block for each worker. Raises Failure when the workers' examples do not
    fit together.
    """
    totals = [sum(of_worker) for of_worker in rows]
    present = {frozenset(named) for named, total in zip(names, totals, strict=True) if total}
    if len(present) != 1 or not set(_OF_HEADS) <= min(present) <= set(TYPES):
        raise Failure(
            "workers have scored different columns: "
            f"{' / '.join(', '.join(sorted(named)) for named in present)}"
        )
    places = _places(rows)
    arrays = {}
    for name in (name for name in TYPES if name in min(present)):
        columns = (heads,) if name in _OF_HEADS else ()
        array = arrays[name] = np.empty((sum(totals), *columns), TYPES[name])
        most = max(BLOCK_BYTES // (array[:1].nbytes or 1), 1)
        for first in range(0, max(totals), most):
            blocks = {
                rank: (first, min(most, total - first))
                for rank, total in enumerate(totals)
                if total > first
            }
            waits = request(name, blocks)
            between()
            for (rank, (_, count)), wait in zip(blocks.items(), waits, strict=True):
                block = wait()
                if block.dtype != array.dtype or block.shape != (count, *columns):
                    raise Failure(
                        f"worker {rank} sent {name} of {block.dtype} {block.shape}, instead of "
                        f"{array.dtype} {(count, *columns)}"
                    )
                array[places[rank](np.arange(first, first + count))] = block
    return arrays


def _places(
    rows: Sequence[Sequence[int]],
) -> list[Callable[[NDArray[np.int64]], NDArray[np.int64]]]:
    """By worker, what turns the numbers of its examples into their places in the split."""
    workers = len(rows)
    counts = np.zeros(sum(map(len, rows)), np.int64)
    for rank, of_worker in enumerate(rows):
        counts[rank::workers] = of_worker
    starts = np.cumsum(counts) - counts

    def of(rank: int) -> Callable[[NDArray[np.int64]], NDArray[np.int64]]:
        ends = np.cumsum(rows[rank], dtype=np.int64)
        shifts = starts[rank::workers] - (ends - counts[rank::workers])
        return lambda numbers: numbers + shifts[np.searchsorted(ends, numbers, side="right")]

    return [of(rank) for rank in range(workers)]
