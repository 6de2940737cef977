"""What travels in a step of a cluster: the messages and bytes of each worker."""

import itertools
from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from functools import lru_cache

import numpy as np

from tnctl.cluster.messages.exchange import Shape, Sizes, TableShape, new_exchange
from tnctl.cluster.messages.replies import Owned, new_reply
from tnctl.cluster.messages.shapes import slice_starts
from tnctl.cluster.transport.frames import HEADER_BYTES
from tnctl.tables.exact_sum import NORM_CHUNK
from tnctl.tables.shards import SHARDS, shards_of


@dataclass(frozen=True)
class Job:
    """What is trained: `dense` weights with padding, `ids_per_row` ids, batches of `batch` rows."""

    tables: tuple[TableShape, ...]
    dense: int
    ids_per_row: int
    batch: int
    statistics: int = 0
    """floats of batch norms"""
    slices_begin: tuple[int, ...] = ()
    """where slices of the dense weights may begin, and their end; else every 4096 floats"""


@dataclass(frozen=True)
class Traffic:
    """What one process exchanges with the others in a step, as a worker and as an owner.

    `worker_bytes` are those of the bodies of its requests to all owners, itself included, and of
    their replies; `owner_bytes` those of all workers' requests to it and of its replies.
    `largest_bytes` is the largest body.
    """

    messages: int
    """sent, and as many are received"""
    sent_bytes: int
    received_bytes: int
    worker_bytes: int
    owner_bytes: int
    largest_bytes: int

    def __add__(self, other: "Traffic") -> "Traffic":
        """Both of them in the same step."""
        pairs = zip(astuple(self), astuple(other), strict=True)
        *sums, _ = (first + second for first, second in pairs)
        return Traffic(*sums, max(self.largest_bytes, other.largest_bytes))


def dense_slices(job: Job, owners: int) -> list[int]:
    """The floats of each owner's slice of the dense weights, also for more owners than 64."""
    places = job.slices_begin or (*range(0, job.dense, NORM_CHUNK), job.dense)
    starts = slice_starts(np.array(places, np.int64), owners)
    return [end - start for start, end in itertools.pairwise(starts)]


def key_shares(owners: int) -> list[float]:
    """The share of the keys that each owner has; beyond 64 owners as if shards were smaller."""
    if owners > SHARDS:
        return [1 / owners] * owners
    return [shards_of(rank, owners).count / SHARDS for rank in range(owners)]


def shapes_of(job: Job, owners: int) -> list[Shape]:
    """What travels to and from each owner."""
    slices = dense_slices(job, owners)
    return [
        Shape(
            job.tables,
            slice_,
            figures=rank == 0,
            statistics=0 if rank else job.statistics,
            owners=owners,
        )
        for rank, slice_ in enumerate(slices)
    ]


@lru_cache(maxsize=4096)
def body_bytes(shape: Shape, pushed: Sizes, pulled: Sizes) -> tuple[int, int]:
    """The bytes of an exchange's body, and of its reply's."""
    exchange, _ = new_exchange(shape, 1, pushed, pulled)
    reply, _ = new_reply(shape, pulled, [Owned(0, 0)] * len(shape.tables))
    return len(exchange), len(reply)


def traffic_of(rank: int, shapes: Sequence[Shape], pulls: Sequence[Sequence[Sizes]]) -> Traffic:
    """The traffic of one worker of several, which all own a part.

    pulls[w][o] are the rows and keys of worker w's batch that owner o has, in this step and in the
    one before it, whose gradients it pushes.
    """
    requested = [
        body_bytes(shape, keys, keys) for shape, keys in zip(shapes, pulls[rank], strict=True)
    ]
    served = [body_bytes(shapes[rank], keys[rank], keys[rank]) for keys in pulls]
    others = [peer for peer in range(len(shapes)) if peer != rank]
    headers = HEADER_BYTES * len(others)
    return Traffic(
        messages=2 * len(others),
        sent_bytes=sum(requested[o][0] + served[o][1] for o in others) + 2 * headers,
        received_bytes=sum(requested[o][1] + served[o][0] for o in others) + 2 * headers,
        worker_bytes=sum(map(sum, requested)),
        owner_bytes=sum(map(sum, served)),
        largest_bytes=max(map(max, (*requested, *served))),
    )


def traffic_in_two(rank: int, shapes: Sequence[Shape], pulls: Sequence[Sequence[Sizes]]) -> Traffic:
    """The same in hybrid training: dense weights and rows travel in messages of their own."""
    of_dense = [replace(shape, tables=()) for shape in shapes]
    of_rows = [replace(shape, dense=0, figures=False, statistics=0) for shape in shapes]
    without_keys = [[replace(sizes, keys=()) for sizes in of_worker] for of_worker in pulls]
    return traffic_of(rank, of_dense, without_keys) + traffic_of(rank, of_rows, pulls)


def equal_pulls(job: Job, keys: float, owners: int) -> list[list[Sizes]]:
    """What workers pull whose batches have so many distinct keys each, of the first table."""
    rest = (0,) * (len(job.tables) - 1)
    sizes = [Sizes(job.batch, (round(keys * share), *rest)) for share in key_shares(owners)]
    return [sizes] * owners
