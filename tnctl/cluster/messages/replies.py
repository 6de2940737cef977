"""The reply to an exchange, a read, and its reply, as named arrays. Written as exchange.py does.

Rows in the reply to an exchange are bfloat16 where `Shape.halves`; dense weights never are, nor is
what a read receives.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl.cluster.messages.arrays import Floats, WireFloats, floats_of
from tnctl.cluster.messages.exchange import Keys, Shape, Sizes, fields_of_keys, keys_of, no_batch
from tnctl.cluster.messages.named_arrays import (
    F32, F64, U32, U64, Arrays, Fields, Received, new_body, of_table, scalars,
)  # fmt: skip
from tnctl.cluster.transport.kinds import Body, MessageError

_SCALARS = {"step": int, "rows": int, "paused": bool, "any_next": bool, "left_out": bool}

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
    values = {
        "step": step, "rows": rows, "paused": paused, "any_next": any_next, "left_out": left_out,
    }  # fmt: skip
    body, arrays = new_body(_fields(shape, sizes), scalars(**values))
    arrays["totals"][:] = totals
    for counts, part in zip(arrays["owned"], owned, strict=True):
        counts[:] = part.rows, part.bytes
    return body, _reply(shape, arrays, lambda floats: floats, **values)


def parse_reply(shape: Shape, pulled: Sizes, body: Body) -> Reply:
    """The reply in a body, to an exchange that pulled these sizes. Raises MessageError."""
    received = Received("the reply to an exchange", body, _SCALARS)
    rows = received.scalars["rows"]
    has_nothing = received.scalars["paused"] or received.scalars["left_out"]
    sizes = no_batch(shape) if has_nothing else pulled
    if rows < sizes.rows or (has_nothing and rows):
        raise MessageError(
            f"{received.name} is of a step of {rows:,} rows, the worker has {sizes.rows:,}"
        )
    arrays = received.arrays(_fields(shape, sizes))
    if not all(math.isfinite(total) and total >= 0 for total in arrays["totals"].tolist()):
        raise MessageError(
            f"{received.name} has seconds or bytes that are NaN, infinite or below 0"
        )
    return _reply(shape, arrays, floats_of, **received.scalars)


def _fields(shape: Shape, sizes: Sizes) -> Fields:
    fields: Fields = {
        "owned": (U64, (len(shape.tables), 2)),
        "totals": (F64, (3,)),
        "dense": (F32, (shape.dense if sizes.rows else 0,)),
    }
    for number, (table, keys) in enumerate(zip(shape.tables, sizes.keys, strict=True)):
        fields[f"{number}.rows"] = shape.floats, (keys, table.floats_read)
        if table.waits:
            fields[f"{number}.waits"] = U32, (keys,)
    return fields


def _reply(
    shape: Shape, arrays: Arrays, floats: Callable[[WireFloats], Floats], **others: Any
) -> Reply:
    tables = (of_table(arrays, number, "rows", "waits") for number in range(len(shape.tables)))
    seconds, sent, received = arrays["totals"].tolist()
    return Reply(
        tables=tuple(PulledTable(floats(rows), waits) for rows, waits in tables),
        dense=arrays["dense"],
        owned=tuple(Owned(rows, bytes_) for rows, bytes_ in arrays["owned"].tolist()),
        totals=(seconds, sent, received),
        **others,
    )


# ---- Reads -------------------------------------------------------------------


def new_read(shape: Shape, keys: Sequence[int], *, dense: bool) -> tuple[bytearray, Read]:
    """The body of a read of so many keys per table, whose arrays are to be filled."""
    body, arrays = new_body(_fields_of_read(keys), scalars(dense=dense))
    return body, Read(dense, keys_of(shape, arrays))


def parse_read(shape: Shape, body: Body) -> Read:
    """The read in a body. Raises MessageError."""
    received = Received("a read", body, {"dense": bool})
    keys = [received.items(f"{number}.ids") for number in range(len(shape.tables))]
    arrays = received.arrays(_fields_of_read(keys))
    return Read(received.scalars["dense"], keys_of(shape, arrays))


def _fields_of_read(keys: Sequence[int]) -> Fields:
    return fields_of_keys(keys, [False] * len(keys))


def new_read_reply(
    shape: Shape, keys: Sequence[int], *, dense: bool
) -> tuple[bytearray, ReadReply]:
    """The body of a read's reply, whose arrays are to be filled."""
    body, arrays = new_body(_fields_of_rows(shape, keys, dense), scalars())
    return body, _read_reply(arrays)


def parse_read_reply(shape: Shape, keys: Sequence[int], dense: bool, body: Body) -> ReadReply:
    """The reply in a body, to a read of so many keys per table. Raises MessageError."""
    received = Received("the reply to a read", body, {})
    return _read_reply(received.arrays(_fields_of_rows(shape, keys, dense)))


def _fields_of_rows(shape: Shape, keys: Sequence[int], dense: bool) -> Fields:
    fields: Fields = {
        f"{number}.rows": (F32, (count, table.floats_read))
        for number, (table, count) in enumerate(zip(shape.tables, keys, strict=True))
    }
    return fields | {"dense": (F32, (shape.dense * dense,))}


def _read_reply(arrays: Arrays) -> ReadReply:
    *rows, dense = arrays.values()
    return ReadReply(tuple(rows), dense)


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
