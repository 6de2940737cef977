"""The body of an exchange: the push of one step, and the keys of the next.

The fixed part, the numbers of keys pushed and pulled per table, to owner 0 what the worker did
since its exchange before (work.py), the arrays of the push, those of the pull. Whoever writes one
fills the arrays of `new_exchange` in place; whoever receives one gets views of the bytes. All sizes
follow from `Shape` and from the few lengths at the start, and must fill the body exactly.

Where `Shape.halves`, gradients are written as bfloat16 (`write_floats`); whoever receives an
exchange gets them as float32.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from struct import Struct

import numpy as np
from numpy.typing import NDArray

from tnctl.cluster.messages.arrays import (
    Floats,
    Views,
    aligned,
    check_flags,
    check_length,
    floats_of,
    pack_entries,
    unpack_entries,
    unpack_fixed,
)
from tnctl.cluster.messages.work import REPORTED, Work
from tnctl.cluster.transport.kinds import Body, MessageError
from tnctl.errors import Failure

LARGEST = 2.0**58  # of a gradient: one machine refuses more
LARGEST_FLOAT = float(np.finfo(np.float32).max)
JOINING = 0  # instead of the step: of a worker that was left out, for the step that begins next
_PAUSE, _NEXT, _DRAIN = 1, 2, 4  # flags
# step, loss, rate factor, flags, rows pushed, rows pulled, tables, dense floats, statistics
_FIXED = Struct("<Qdd6I")
_COUNTS = Struct("<II")  # keys pushed, keys pulled
_NAME = "an exchange"


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
    def reported(self) -> int:
        """The floats of a report (work.py)."""
        return REPORTED * self.figures

    @property
    def kind(self) -> str:
        """The dtype in which rows and gradients travel."""
        return "<u2" if self.halves else "<f4"

    @property
    def float_bytes(self) -> int:
        """Of a float of a row or a gradient."""
        return 2 if self.halves else 4


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
    body = bytearray(_size(shape, pushed, pulled))
    flags = _PAUSE * pause | _NEXT * has_next | _DRAIN * drain
    _FIXED.pack_into(
        body, 0, step, loss, rate_factor, flags, pushed.rows, pulled.rows, len(shape.tables),
        shape.dense, shape.statistics,
    )  # fmt: skip
    counts = list(zip(pushed.keys, pulled.keys, strict=True))
    pack_entries(body, _FIXED.size, _COUNTS, counts)
    work, push, keys = _views(shape, pushed, pulled, loss, body)
    return body, Exchange(step, rate_factor, pause, has_next, work, push, pulled.rows, keys, drain)


def parse_exchange(
    shape: Shape, pulled_before: Sizes, body: Body, *, or_nothing: bool = False
) -> Exchange:
    """The exchange in a body, whose push must be of what the worker pulled before.

    With `or_nothing` it may also push nothing. Its arrays are views of the body. What is in them is
    not checked. Raises MessageError.
    """
    step, loss, rate, flags, pushed_rows, rows, tables, dense, statistics = unpack_fixed(
        _NAME, _FIXED, body
    )
    check_flags(_NAME, flags, _PAUSE | _NEXT | _DRAIN)
    if not (math.isfinite(rate) and rate >= 0):
        raise MessageError(f"{_NAME} has the rate factor {rate}")
    if (dense, statistics) != (shape.dense, shape.statistics):
        raise MessageError(
            f"{_NAME} is of {dense:,} dense weights and {statistics:,} statistics, this owner has "
            f"{shape.dense:,} and {shape.statistics:,}"
        )
    counts = list(unpack_entries(_NAME, _COUNTS, body, _FIXED.size, tables, len(shape.tables)))
    pushed = Sizes(pushed_rows, tuple(pushed for pushed, _ in counts))
    pulled = Sizes(rows, tuple(pulled for _, pulled in counts))
    if pushed != pulled_before and not (or_nothing and pushed == no_batch(shape)):
        raise MessageError(f"{_NAME} pushes {_text(pushed)}, pulled were {_text(pulled_before)}")
    if not rows and any(pulled.keys):
        raise MessageError(f"{_NAME} pulls {_text(pulled)}")
    check_length(_NAME, body, _size(shape, pushed, pulled))
    work, push, keys = _views(shape, pushed, pulled, loss, body)
    if shape.halves:
        tables = tuple(replace(table, sums=floats_of(table.sums)) for table in push.tables)
        push = replace(push, tables=tables, dense=floats_of(push.dense))
    is_pause, has_next, drain = (bool(flags & flag) for flag in (_PAUSE, _NEXT, _DRAIN))
    return Exchange(step, rate, is_pause, has_next, work, push, rows, keys, drain)


def keys_size(counts: Iterable[int], occurrences: Iterable[bool]) -> int:
    """The bytes of keys, per table with or without occurrences."""
    return sum(
        8 * keys + aligned(2 * keys) + aligned(4 * keys) * counted
        for keys, counted in zip(counts, occurrences, strict=True)
    )


def keys_views(counts: Iterable[int], occurrences: Iterable[bool], view: Views) -> tuple[Keys, ...]:
    """The keys of all tables in a body."""
    return tuple(
        Keys(view("<u8", keys), view("<u2", keys), view("<u4", keys) if counted else None)
        for keys, counted in zip(counts, occurrences, strict=True)
    )


def _size(shape: Shape, pushed: Sizes, pulled: Sizes) -> int:
    total = aligned(_FIXED.size + len(shape.tables) * _COUNTS.size)
    total += 8 * shape.reported
    for table, keys in zip(shape.tables, pushed.keys, strict=True):
        total += aligned(shape.float_bytes * keys * table.weights) + 8 * keys * table.counts
    if pushed.rows:
        total += aligned(shape.float_bytes * shape.dense)
        total += (2 * aligned(4 * pushed.rows) + aligned(4 * shape.statistics)) * shape.figures
    return total + keys_size(pulled.keys, (table.waits for table in shape.tables))


def _views(
    shape: Shape, pushed: Sizes, pulled: Sizes, loss: float, body: Body
) -> tuple[Work, Push, tuple[Keys, ...]]:
    view = Views(body, _FIXED.size + len(shape.tables) * _COUNTS.size)
    work = view("<f8", shape.reported)
    tables = tuple(
        PushedTable(
            view(shape.kind, keys, table.weights), view("<f4", keys, 2) if table.counts else None
        )
        for table, keys in zip(shape.tables, pushed.keys, strict=True)
    )
    dense = view(shape.kind, shape.dense if pushed.rows else 0)
    figures = pushed.rows * shape.figures
    logits, labels = view("<f4", figures), view("<f4", figures)
    statistics = view("<f4", shape.statistics if figures else 0)
    push = Push(pushed.rows, loss, tables, dense, logits, labels, statistics)
    return work, push, keys_views(pulled.keys, (table.waits for table in shape.tables), view)


def _text(sizes: Sizes) -> str:
    keys = " + ".join(f"{count:,}" for count in sizes.keys) or "0"
    return f"{keys} keys of {sizes.rows:,} rows"


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
