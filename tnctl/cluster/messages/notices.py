"""Notices between owners: the squares of their gradients, and who takes part in a step."""

from collections.abc import Iterable, Sequence

import numpy as np

from tnctl.cluster.messages.named_arrays import Arrays, Received, packed, with_scalars
from tnctl.cluster.transport.kinds import Body, MessageError
from tnctl.tables import ExactSum

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
