"""The bodies of an exchange's reply, of a read, and of its reply. Written as exchange.py does.

Rows in the reply to an exchange are bfloat16 where `Shape.halves`; dense weights never are, nor is
what a read receives.
"""

import math
from collections.abc import Callable, Sequence
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
from tnctl.cluster.messages.exchange import Keys, Shape, Sizes, keys_size, keys_views, no_batch
from tnctl.cluster.transport.kinds import Body, MessageError

_PAUSED, _ANY_NEXT, _LEFT_OUT = 1, 2, 4  # flags of a reply
_DENSE = 1  # flag of a read, and of its reply
_REPLY = Struct("<QQ4I3d")  # step, rows of the step, flags, tables, dense floats, 0, totals
_OWNED = Struct("<QQQ")  # keys, rows and bytes of the owner's part of a table
_READ = Struct("<II")  # flags, tables
_KEYS = Struct("<Q")


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
    body = bytearray(_reply_size(shape, sizes))
    flags = _PAUSED * paused | _ANY_NEXT * any_next | _LEFT_OUT * left_out
    dense = shape.dense if sizes.rows else 0
    _REPLY.pack_into(body, 0, step, rows, flags, len(shape.tables), dense, 0, *totals)
    entries = [(keys, part.rows, part.bytes) for keys, part in zip(sizes.keys, owned, strict=True)]
    pack_entries(body, _REPLY.size, _OWNED, entries)
    tables, floats = _reply_views(shape, sizes, body)
    return body, Reply(step, paused, any_next, left_out, rows, tables, floats, tuple(owned), totals)


def parse_reply(shape: Shape, pulled: Sizes, body: Body) -> Reply:
    """The reply in a body, to an exchange that pulled these sizes. Raises MessageError."""
    name = "the reply to an exchange"
    step, rows, flags, tables, dense, reserved, *totals = unpack_fixed(name, _REPLY, body)
    check_flags(name, flags, _PAUSED | _ANY_NEXT | _LEFT_OUT)
    check_flags(name, reserved, 0)
    if not all(math.isfinite(total) and total >= 0 for total in totals):
        raise MessageError(f"{name} has seconds or bytes that are NaN, infinite or below 0")
    paused, left_out = bool(flags & _PAUSED), bool(flags & _LEFT_OUT)
    has_nothing = paused or left_out
    sizes = no_batch(shape) if has_nothing else pulled
    entries = list(unpack_entries(name, _OWNED, body, _REPLY.size, tables, len(shape.tables)))
    keys = tuple(entry[0] for entry in entries)
    expected = shape.dense if sizes.rows else 0
    if (keys, dense) != (sizes.keys, expected):
        raise MessageError(
            f"{name} has {list(keys)} rows and {dense:,} dense weights instead of "
            f"{list(sizes.keys)} and {expected:,}"
        )
    if rows < sizes.rows or (has_nothing and rows):
        raise MessageError(f"{name} is of a step of {rows:,} rows, the worker has {sizes.rows:,}")
    check_length(name, body, _reply_size(shape, sizes))
    views, floats = _reply_views(shape, sizes, body)
    if shape.halves:
        views = tuple(replace(table, rows=floats_of(table.rows)) for table in views)
    owned = tuple(Owned(entry[1], entry[2]) for entry in entries)
    any_next = bool(flags & _ANY_NEXT)
    seconds, sent, received = totals
    return Reply(
        step, paused, any_next, left_out, rows, views, floats, owned, (seconds, sent, received)
    )


def _reply_size(shape: Shape, sizes: Sizes) -> int:
    total = aligned(_REPLY.size + len(shape.tables) * _OWNED.size)
    for table, keys in zip(shape.tables, sizes.keys, strict=True):
        total += aligned(shape.float_bytes * keys * table.floats_read)
        total += aligned(4 * keys) * table.waits
    return total + (aligned(4 * shape.dense) if sizes.rows else 0)


def _reply_views(shape: Shape, sizes: Sizes, body: Body) -> tuple[tuple[PulledTable, ...], Floats]:
    view = Views(body, _REPLY.size + len(shape.tables) * _OWNED.size)
    tables = tuple(
        PulledTable(
            view(shape.kind, keys, table.floats_read), view("<u4", keys) if table.waits else None
        )
        for table, keys in zip(shape.tables, sizes.keys, strict=True)
    )
    return tables, view("<f4", shape.dense if sizes.rows else 0)


# ---- Reads -------------------------------------------------------------------


def new_read(shape: Shape, keys: Sequence[int], *, dense: bool) -> tuple[bytearray, Read]:
    """The body of a read of so many keys per table, whose arrays are to be filled."""
    body = bytearray(_read_size(keys))
    _READ.pack_into(body, 0, _DENSE * dense, len(shape.tables))
    pack_entries(body, _READ.size, _KEYS, [(count,) for count in keys])
    return body, Read(dense, _read_views(keys, body))


def parse_read(shape: Shape, body: Body) -> Read:
    """The read in a body. Raises MessageError."""
    name = "a read"
    flags, keys = _flags_and_keys(name, shape, body)
    check_length(name, body, _read_size(keys))
    return Read(bool(flags & _DENSE), _read_views(keys, body))


def new_read_reply(
    shape: Shape, keys: Sequence[int], *, dense: bool
) -> tuple[bytearray, ReadReply]:
    """The body of a read's reply, whose arrays are to be filled."""
    body = bytearray(_read_reply_size(shape, keys, dense))
    _READ.pack_into(body, 0, _DENSE * dense, len(shape.tables))
    pack_entries(body, _READ.size, _KEYS, [(count,) for count in keys])
    return body, _read_reply_views(shape, keys, dense, body)


def parse_read_reply(shape: Shape, keys: Sequence[int], dense: bool, body: Body) -> ReadReply:
    """The reply in a body, to a read of so many keys per table. Raises MessageError."""
    name = "the reply to a read"
    flags, received = _flags_and_keys(name, shape, body)
    if (bool(flags & _DENSE), received) != (dense, list(keys)):
        raise MessageError(f"{name} has {received} rows instead of {list(keys)}")
    check_length(name, body, _read_reply_size(shape, keys, dense))
    return _read_reply_views(shape, keys, dense, body)


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


def _flags_and_keys(name: str, shape: Shape, body: Body) -> tuple[int, list[int]]:
    flags, tables = unpack_fixed(name, _READ, body)
    check_flags(name, flags, _DENSE)
    entries = unpack_entries(name, _KEYS, body, _READ.size, tables, len(shape.tables))
    return flags, [entry[0] for entry in entries]


def _read_size(keys: Sequence[int]) -> int:
    start = aligned(_READ.size + len(keys) * _KEYS.size)
    return start + keys_size(keys, [False] * len(keys))


def _read_views(keys: Sequence[int], body: Body) -> tuple[Keys, ...]:
    view = Views(body, _READ.size + len(keys) * _KEYS.size)
    return keys_views(keys, [False] * len(keys), view)


def _read_reply_size(shape: Shape, keys: Sequence[int], dense: bool) -> int:
    total = aligned(_READ.size + len(keys) * _KEYS.size)
    for table, count in zip(shape.tables, keys, strict=True):
        total += aligned(4 * count * table.floats_read)
    return total + aligned(4 * shape.dense) * dense


def _read_reply_views(shape: Shape, keys: Sequence[int], dense: bool, body: Body) -> ReadReply:
    view = Views(body, _READ.size + len(keys) * _KEYS.size)
    tables = tuple(
        view("<f4", count, table.floats_read)
        for table, count in zip(shape.tables, keys, strict=True)
    )
    return ReadReply(tables, view("<f4", shape.dense * dense))
