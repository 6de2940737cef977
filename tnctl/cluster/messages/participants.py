"""The body of a notice of participants: which workers take part in a step, of `cluster.backup`."""

from collections.abc import Iterable
from struct import Struct

from tnctl.cluster.messages.arrays import check_length, unpack_fixed
from tnctl.cluster.transport.kinds import Body, MessageError

_FIXED = Struct("<QQ")  # step, a bit for each rank
_NAME = "a notice of participants"


def new_participants(step: int, ranks: Iterable[int]) -> bytes:
    """The body of a notice."""
    return _FIXED.pack(step, sum(1 << rank for rank in ranks))


def parse_participants(body: Body, workers: int, least: int) -> tuple[int, frozenset[int]]:
    """The step and the ranks, at least so many, rank 0 among them. Raises MessageError."""
    step, bits = unpack_fixed(_NAME, _FIXED, body)
    check_length(_NAME, body, _FIXED.size)
    ranks = frozenset(rank for rank in range(64) if bits >> rank & 1)
    if 0 not in ranks or len(ranks) < least or max(ranks) >= workers:
        raise MessageError(f"{_NAME} names {sorted(ranks)} of {workers} workers")
    return step, ranks
