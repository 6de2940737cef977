"""The body of a notice of squares: what an owner's gradients add to the norm of all.

The step, the number of sums, how many exponents each sum has, then for each sum its exponents and
their words (tnctl/tables/exact_sum.py). Every owner adds the sums of all owners exactly, so all of
them compute the same norm, bit for bit, with which each then clips its own part.
"""

from collections.abc import Sequence
from struct import Struct

from tnctl.cluster.messages.arrays import (
    Views,
    aligned,
    check_length,
    pack_entries,
    unpack_entries,
    unpack_fixed,
)
from tnctl.cluster.transport.kinds import Body, MessageError
from tnctl.tables import ExactSum

_FIXED = Struct("<QQ")  # step, sums
_COUNT = Struct("<Q")  # exponents of a sum
# A square of a float is at least 2^-298, and below 2^116 times the floats of all gradients.
_LEAST, _MOST = 1023 - 298, 1023 + 256
_NAME = "a notice of squares"


def new_squares(step: int, sums: Sequence[ExactSum]) -> bytearray:
    """The body of a notice."""
    parts = [part.parts() for part in sums]
    body = bytearray(_size([len(exponents) for exponents, _ in parts]))
    _FIXED.pack_into(body, 0, step, len(sums))
    pack_entries(body, _FIXED.size, _COUNT, [(len(exponents),) for exponents, _ in parts])
    view = Views(body, _FIXED.size + len(sums) * _COUNT.size)
    for exponents, words in parts:
        view("<u2", len(exponents))[:] = exponents
        view("<u8", len(exponents), 2)[:] = words
    return body


def add_squares(step: int, sums: Sequence[ExactSum], body: Body) -> None:
    """Add what a body has to the sums of the same tables. Raises MessageError."""
    received, count = unpack_fixed(_NAME, _FIXED, body)
    if received != step:
        raise MessageError(f"{_NAME} is of step {received}, the next is {step}")
    entries = unpack_entries(_NAME, _COUNT, body, _FIXED.size, count, len(sums))
    counts = [entry[0] for entry in entries]
    check_length(_NAME, body, _size(counts))
    view = Views(body, _FIXED.size + len(sums) * _COUNT.size)
    for total, length in zip(sums, counts, strict=True):
        exponents, words = view("<u2", length), view("<u8", length, 2)
        # Comparisons with nothing are true of all of it.
        if not ((exponents >= _LEAST) & (exponents <= _MOST)).all():
            raise MessageError(f"{_NAME} has exponents that no square of a gradient has")
        total.add(exponents, words)


def _size(counts: Sequence[int]) -> int:
    size = aligned(_FIXED.size + len(counts) * _COUNT.size)
    return size + sum(aligned(2 * count) + 16 * count for count in counts)
