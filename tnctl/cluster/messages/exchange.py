"""What workers and owners send each other, as named arrays.

An exchange is the push of one step, and the keys of the next. A read is of rows without a change.
Owners send each other notices: the squares of their gradients, and who takes part in a step.

Whoever writes one fills the arrays of `new_exchange` in place; whoever receives one gets views of
the bytes. Which arrays there are follows from `Shape`, from what was pulled before, and from how
many ids are pulled (`_exchange`).

Where `Shape.halves`, gradients are written as bfloat16 (`write_floats`); whoever receives an
exchange gets them as float32. So are rows in the reply to an exchange; dense weights never are,
nor is what a read receives.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl.cluster.messages.named_arrays import (
    Arrays,
    Floats,
    Received,
    Take,
    new_message,
    packed,
    with_scalars,
)
from tnctl.cluster.messages.work import REPORTED, Work
from tnctl.cluster.transport.kinds import Body, MessageError
from tnctl.errors import Failure
from tnctl.tables import ExactSum

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


# ---- Replies -----------------------------------------------------------------

_OF_REPLY = {
    "step": int, "rows": int, "paused": bool, "any_next": bool, "left_out": bool,
    "totals": (float, float, float),
}  # fmt: skip

# Of the process that answers, so far: seconds of answering exchanges, bytes sent and received.
Totals = Callable[[], tuple[float, float, float]]


def no_totals() -> tuple[float, float, float]:
    """Those of an owner that does not count."""
    return 0.0, 0.0, 0.0


@dataclass(frozen=True)
class PulledTable:
    """Rows of a table in the order of the keys, float32 [n, floats_read].

    `waits` uint32 [n] are the occurrences that wait for admission, or None.
    """

    rows: Floats
    waits: NDArray[np.uint32] | None


@dataclass(frozen=True)
class Owned:
    """How many rows an owner's part of a table has, and the bytes of memory it takes."""

    rows: int
    bytes: int


@dataclass(frozen=True)
class Reply:
    """An owner's answer to an exchange.

    `step` is the next one, of which the rows are. `paused`: no keys were looked at, so there are no
    rows. `left_out`: the step began without this exchange, whose push was dropped and whose keys
    were not looked at. `rows` are those of the batches of all workers; 0: there is no step, and
    nothing is to be pushed. `any_next`: some worker has another batch. `dense` float32 [slice] is
    empty for a worker without a batch. `totals` are the owner's (`Totals`).
    """

    step: int
    paused: bool
    any_next: bool
    left_out: bool
    rows: int
    tables: tuple[PulledTable, ...]
    dense: Floats
    owned: tuple[Owned, ...]
    totals: tuple[float, float, float] = (0.0, 0.0, 0.0)

    @property
    def steps(self) -> int:
        """The steps that the owner has applied."""
        return self.step - 1


@dataclass(frozen=True)
class Read:
    """Keys whose rows are read without a change; `dense`: the dense weights are read too."""

    dense: bool
    keys: tuple[Keys, ...]


@dataclass(frozen=True)
class ReadReply:
    """Rows float32 [n, floats_read] per table, and the owner's slice of the dense weights."""

    tables: tuple[Floats, ...]
    dense: Floats


def new_reply(
    shape: Shape,
    pulled: Sizes,
    owned: Sequence[Owned],
    *,
    step: int = 0,
    rows: int = 0,
    paused: bool = False,
    any_next: bool = False,
    left_out: bool = False,
    totals: tuple[float, float, float] = (0.0, 0.0, 0.0),
) -> tuple[bytearray, Reply]:
    """The body of a reply to a pull of these sizes, whose arrays are to be filled."""
    sizes = no_batch(shape) if paused or left_out else pulled
    return new_message(
        partial(_reply, shape, sizes), step=step, rows=rows, paused=paused, any_next=any_next,
        left_out=left_out, owned=[(part.rows, part.bytes) for part in owned],
        totals=[float(total) for total in totals],
    )  # fmt: skip


def parse_reply(shape: Shape, pulled: Sizes, body: Body) -> Reply:
    """The reply in a body, to an exchange that pulled these sizes. Raises MessageError."""
    name = "the reply to an exchange"
    received = Received(name, body, _OF_REPLY | {"owned": ((int, int),) * len(shape.tables)})
    values = received.scalars
    if not all(math.isfinite(total) and total >= 0 for total in values["totals"]):
        raise MessageError(f"{name} has seconds or bytes that are NaN, infinite or below 0")
    has_nothing, rows = values["paused"] or values["left_out"], values["rows"]
    sizes = no_batch(shape) if has_nothing else pulled
    if rows < sizes.rows or (has_nothing and rows):
        raise MessageError(f"{name} is of a step of {rows:,} rows, the worker has {sizes.rows:,}")
    return received.built(partial(_reply, shape, sizes))


def _reply(
    shape: Shape, sizes: Sizes, take: Take,
    *, owned: Iterable[Iterable[int]], totals: Iterable[float], **scalars: Any,
) -> Reply:  # fmt: skip
    tables = tuple(
        PulledTable(
            take(f"{number}.rows", shape.floats, keys, table.floats_read),
            take(f"{number}.waits", "U32", keys) if table.waits else None,
        )
        for number, (table, keys) in enumerate(zip(shape.tables, sizes.keys, strict=True))
    )
    dense = take("dense", "F32", shape.dense if sizes.rows else 0)
    parts = tuple(Owned(*part) for part in owned)
    seconds, sent, received = totals
    of_process = seconds, sent, received
    return Reply(tables=tables, dense=dense, owned=parts, totals=of_process, **scalars)


# ---- Reads -------------------------------------------------------------------


def new_read(shape: Shape, keys: Sequence[int], *, dense: bool) -> tuple[bytearray, Read]:
    """The body of a read of so many keys per table, whose arrays are to be filled."""
    return new_message(partial(_read, shape, keys), dense=dense)


def parse_read(shape: Shape, body: Body) -> Read:
    """The read in a body. Raises MessageError."""
    received = Received("a read", body, {"dense": bool})
    return received.built(partial(_read, shape, keys_in(shape, received)))


def _read(shape: Shape, keys: Sequence[int], take: Take, *, dense: bool) -> Read:
    return Read(dense, take_keys(take, shape, keys, False))


def new_read_reply(
    shape: Shape, keys: Sequence[int], *, dense: bool
) -> tuple[bytearray, ReadReply]:
    """The body of a read's reply, whose arrays are to be filled."""
    return new_message(partial(_read_reply, shape, keys, dense))


def parse_read_reply(shape: Shape, keys: Sequence[int], dense: bool, body: Body) -> ReadReply:
    """The reply in a body, to a read of so many keys per table. Raises MessageError."""
    received = Received("the reply to a read", body, {})
    return received.built(partial(_read_reply, shape, keys, dense))


def _read_reply(shape: Shape, keys: Sequence[int], dense: bool, take: Take) -> ReadReply:
    rows = (
        take(f"{number}.rows", "F32", count, table.floats_read)
        for number, (table, count) in enumerate(zip(shape.tables, keys, strict=True))
    )
    return ReadReply(tuple(rows), take("dense", "F32", shape.dense * dense))


# ---- Notices -----------------------------------------------------------------

# A square of a float is at least 2^-298, and below 2^116 times the floats of all gradients.
_LEAST, _MOST = 1023 - 298, 1023 + 256


def new_squares(step: int, sums: Sequence[ExactSum]) -> bytearray:
    """The body of a notice of squares: what an owner's gradients add to the norm of all.

    Of each sum it has the exponents and their words (tnctl/tables/exact_sum.py). Every owner adds
    the sums of all owners exactly, so all of them compute the same norm, bit for bit, with which
    each then clips its own part.
    """
    parts = [part.parts() for part in sums]
    arrays: Arrays = {f"{n}.exponents": exponents for n, (exponents, _) in enumerate(parts)}
    arrays |= {f"{n}.words": words for n, (_, words) in enumerate(parts)}
    return packed(arrays, with_scalars(step=step))


def add_squares(step: int, sums: Sequence[ExactSum], body: Body) -> None:
    """Add what a body has to the sums of the same tables. Raises MessageError."""
    received = Received("a notice of squares", body, {"step": int})
    if received.scalars["step"] != step:
        raise MessageError(
            f"{received.name} is of step {received.scalars['step']}, the next is {step}"
        )
    sizes = [received.size(f"{number}.exponents") for number in range(len(sums))]
    parts = received.built(
        lambda take, **_: [
            (take(f"{number}.exponents", "U16", size), take(f"{number}.words", "U64", size, 2))
            for number, size in enumerate(sizes)
        ]
    )
    for exponents, _ in parts:
        # Comparisons with nothing are true of all of it.
        if not ((exponents >= _LEAST) & (exponents <= _MOST)).all():
            raise MessageError(f"{received.name} has exponents that no square of a gradient has")
    for total, part in zip(sums, parts, strict=True):
        total.add(*part)


def new_participants(step: int, ranks: Iterable[int]) -> bytearray:
    """The body of a notice of participants, of `cluster.backup`."""
    return packed({"ranks": np.array(sorted(ranks), np.uint8)}, with_scalars(step=step))


def parse_participants(body: Body, workers: int, least: int) -> tuple[int, frozenset[int]]:
    """The step and the ranks, at least so many, rank 0 among them. Raises MessageError."""
    received = Received("a notice of participants", body, {"step": int})
    size = received.size("ranks")
    ranks = frozenset(received.built(lambda take, **_: take("ranks", "U8", size)).tolist())
    if 0 not in ranks or len(ranks) < least or max(ranks) >= workers:
        raise MessageError(f"{received.name} names {sorted(ranks)} of {workers} workers")
    return received.scalars["step"], ranks
