"""An exchange: the push of one step, and the keys of the next, as named arrays.

Whoever writes one fills the arrays of `new_exchange` in place; whoever receives one gets views of
the bytes. Which arrays there are follows from `Shape`, from what was pulled before, and from how
many ids are pulled (`_exchange`).

Where `Shape.halves`, gradients are written as bfloat16 (`write_floats`); whoever receives an
exchange gets them as float32.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl.cluster.messages.named_arrays import Floats, Received, Take, new_message
from tnctl.cluster.messages.work import REPORTED, Work
from tnctl.cluster.transport.kinds import Body, MessageError
from tnctl.errors import Failure

LARGEST = 2.0**58  # of a gradient: one machine refuses more
LARGEST_FLOAT = float(np.finfo(np.float32).max)
JOINING = 0  # instead of the step: of a worker that was left out, for the step that begins next
_SCALARS = {
    "step": int, "rate_factor": float, "loss": float, "rows_pushed": int, "rows": int,
    "pause": bool, "has_next": bool, "drain": bool,
}  # fmt: skip


@dataclass(frozen=True)
class TableShape:
    """What travels per key of a table.

    `weights` are the floats of a gradient, 0 for a table that is not trained; `floats_read` those
    of a row as it is read; `counts`: a push has its shows and clicks; `waits`: a pull has the
    occurrences of each key, and its reply how many of them wait for admission.
    """

    weights: int
    floats_read: int
    counts: bool = False
    waits: bool = False


@dataclass(frozen=True)
class Shape:
    """What travels between a worker and an owner.

    `dense` is the number of floats in the owner's slice of the dense weights. `figures`: the owner
    receives loss, logits, labels, `statistics` floats of batch norms, and reports of what workers
    did (owner 0 does). `halves`: rows that are pulled and gradients travel as bfloat16.
    """

    tables: tuple[TableShape, ...]
    dense: int
    figures: bool = False
    statistics: int = 0
    halves: bool = False

    @property
    def floats(self) -> str:
        """The dtype in which rows and gradients travel."""
        return "BF16" if self.halves else "F32"


@dataclass(frozen=True)
class Sizes:
    """The rows of a batch, and how many distinct keys of it one owner owns, per table."""

    rows: int
    keys: tuple[int, ...]


@dataclass(frozen=True)
class PushedTable:
    """A push to a table: per key of the pull before it the sum of its gradients, float32 [n, w].

    `counts` are float32 [n, 2], shows and clicks, or None.
    """

    sums: Floats
    counts: Floats | None


@dataclass(frozen=True)
class Push:
    """What a worker computed on a batch of `rows` rows, as one owner receives it.

    `loss` is its mean. `dense` float32 [slice], `logits` and `labels` float32 [rows] of the main
    head, `statistics` float32 [m]; the last three are empty but for owner 0. Without rows all of
    them are empty.
    """

    rows: int
    loss: float
    tables: tuple[PushedTable, ...]
    dense: Floats
    logits: Floats
    labels: Floats
    statistics: Floats


@dataclass(frozen=True)
class Keys:
    """Distinct keys of a table that one owner owns: ids uint64 [n], groups uint16 [n].

    `occurrences` uint32 [n] in the batch, or None.
    """

    ids: NDArray[np.uint64]
    groups: NDArray[np.uint16]
    occurrences: NDArray[np.uint32] | None


@dataclass(frozen=True)
class Exchange:
    """The push of a step and the keys of the next one, which is `step`, or JOINING.

    `rate_factor` multiplies the learning rates with which the push is applied; `pause`: no keys
    are looked at for now. Rank 0 decides both, for all. `rows` of the batch of `step` are 0 where
    a worker has no batch; `has_next`: it has another batch after it. `work` float64 (work.py) is
    empty but for owner 0. `drain` (owners/arrivals.py): no more batches are to be
    pulled before the pause that follows.
    """

    step: int
    rate_factor: float
    pause: bool
    has_next: bool
    work: Work
    push: Push
    rows: int
    keys: tuple[Keys, ...]
    drain: bool = False


def no_batch(shape: Shape) -> Sizes:
    """The sizes of a push or a pull of nothing."""
    return Sizes(0, (0,) * len(shape.tables))


def sizes_of(exchange: Exchange) -> Sizes:
    """What an exchange pulls, which the next push of the worker must be of."""
    return Sizes(exchange.rows, tuple(len(keys.ids) for keys in exchange.keys))


def new_exchange(
    shape: Shape,
    step: int,
    pushed: Sizes,
    pulled: Sizes,
    *,
    rate_factor: float = 1.0,
    loss: float = 0.0,
    pause: bool = False,
    has_next: bool = False,
    drain: bool = False,
) -> tuple[bytearray, Exchange]:
    """The body of an exchange, and the exchange, whose arrays (all zero) are to be filled."""
    return new_message(
        partial(_exchange, shape, pushed, pulled.keys), step=step, rate_factor=float(rate_factor),
        loss=float(loss), rows_pushed=pushed.rows, rows=pulled.rows, pause=pause, has_next=has_next,
        drain=drain,
    )  # fmt: skip


def parse_exchange(
    shape: Shape, pulled_before: Sizes, body: Body, *, or_nothing: bool = False
) -> Exchange:
    """The exchange in a body, whose push must be of what the worker pulled before.

    With `or_nothing` it may also push nothing. Its arrays are views of the body. What is in them is
    not checked. Raises MessageError.
    """
    received = Received("an exchange", body, _SCALARS)
    rate, rows, rows_pushed = map(received.scalars.get, ("rate_factor", "rows", "rows_pushed"))
    if not (math.isfinite(rate) and rate >= 0):
        raise MessageError(f"an exchange has the rate factor {rate}")
    pushed = no_batch(shape) if or_nothing and not rows_pushed else pulled_before
    if rows_pushed != pushed.rows:
        raise MessageError(f"an exchange pushes {rows_pushed:,} rows, pulled were {pushed.rows:,}")
    pulled = keys_in(shape, received)
    if not rows and any(pulled):
        raise MessageError(f"an exchange pulls {sum(pulled):,} keys of 0 rows")
    return received.built(partial(_exchange, shape, pushed, pulled))


def _exchange(
    shape: Shape, pushed: Sizes, pulled: Sequence[int], take: Take,
    *, rows_pushed: int, loss: float, **scalars: Any,
) -> Exchange:  # fmt: skip
    tables = tuple(
        PushedTable(
            take(f"{number}.sums", shape.floats, keys, table.weights),
            take(f"{number}.counts", "F32", keys, 2) if table.counts else None,
        )
        for number, (table, keys) in enumerate(zip(shape.tables, pushed.keys, strict=True))
    )
    figures = rows_pushed if shape.figures else 0
    push = Push(
        rows_pushed,
        loss,
        tables,
        dense=take("dense", shape.floats, shape.dense if rows_pushed else 0),
        logits=take("logits", "F32", figures),
        labels=take("labels", "F32", figures),
        statistics=take("statistics", "F32", shape.statistics if figures else 0),
    )
    work = take("work", "F64", REPORTED * shape.figures)
    return Exchange(work=work, push=push, keys=take_keys(take, shape, pulled, True), **scalars)


def take_keys(
    take: Take, shape: Shape, counts: Sequence[int], occurrences: bool
) -> tuple[Keys, ...]:
    """So many keys per table, with or without occurrences."""
    return tuple(
        Keys(
            take(f"{number}.ids", "U64", keys),
            take(f"{number}.groups", "U16", keys),
            take(f"{number}.occurrences", "U32", keys) if occurrences and table.waits else None,
        )
        for number, (table, keys) in enumerate(zip(shape.tables, counts, strict=True))
    )


def keys_in(shape: Shape, received: Received) -> list[int]:
    """How many keys a message has per table."""
    return [received.size(f"{number}.ids") for number in range(len(shape.tables))]


def check_finite(push: Push, workers: int) -> None:
    """Refuse a push that is not finite, or with a gradient beyond 2^58 / workers. Raises Failure.

    Within it the sum over all workers is in the limits of one machine, whatever the order.
    """
    limit = LARGEST / workers
    for number, table in enumerate(push.tables):
        _check_within(f"a gradient of table {number}", table.sums, -limit, limit)
        if table.counts is not None:
            _check_within(f"a show or click of table {number}", table.counts, 0, limit)
    _check_within("a gradient of a dense weight", push.dense, -limit, limit)
    _check_within("a mean or variance of batch norm", push.statistics, -LARGEST, LARGEST)
    for name, array in (("a logit", push.logits), ("a label", push.labels)):
        _check_within(name, array, -LARGEST_FLOAT, LARGEST_FLOAT)
    if math.isnan(push.loss):
        raise Failure("a loss is NaN; no weight was changed")


def _check_within(name: str, array: Floats, low: float, high: float) -> None:
    # Comparisons with NaN, which min and max return if there is one, are false.
    if array.size and not (low <= array.min() and array.max() <= high):
        raise Failure(f"{name} is NaN, infinite or beyond {high:.3g}; no weight was changed")
