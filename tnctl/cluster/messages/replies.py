"""The reply to an exchange, a read, and its reply, as named arrays. Written as exchange.py does.

Rows in the reply to an exchange are bfloat16 where `Shape.halves`; dense weights never are, nor is
what a read receives.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl.cluster.messages.exchange import Keys, Shape, Sizes, keys_in, no_batch, take_keys
from tnctl.cluster.messages.named_arrays import Floats, Received, Take, new_message
from tnctl.cluster.transport.kinds import Body, MessageError

_SCALARS = {
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
    received = Received(name, body, _SCALARS | {"owned": ((int, int),) * len(shape.tables)})
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


def answer_read(
    shape: Shape, rank: int, body: Body, fill: Callable[[Read, ReadReply], None]
) -> bytearray:
    """The body that answers the read of a worker. Raises MessageError, which names it."""
    try:
        read = parse_read(shape, body)
    except MessageError as error:
        raise MessageError(f"worker {rank}: {error}") from error
    answer, reply = new_read_reply(shape, [len(keys.ids) for keys in read.keys], dense=read.dense)
    fill(read, reply)
    return answer
