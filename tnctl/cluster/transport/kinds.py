"""What the processes of a cluster send each other: kinds of messages, and their limits.

Which arrays a body has depends on its kind (messages/named_arrays.py).
"""

from enum import IntEnum

MOST_WORKERS = 64  # a worker owns at least one of the 64 shards of a table
MOST_MEMBERS = 2 * MOST_WORKERS  # with dedicated servers, of which there are no more

Body = bytes | bytearray | memoryview


class MessageError(Exception):
    """Bytes that this protocol does not send, or not at this time: a sentence says which."""


class Kind(IntEnum):
    """What the body of a message is."""

    EXCHANGE = 1
    READ = 2
    COMMAND = 3
    SQUARES = 4  # of an owner to another one
    PARTICIPANTS = 5  # of owner 0 to the other owners
    REPLY = 6  # to any of these


NOTICES = frozenset({Kind.SQUARES, Kind.PARTICIPANTS})
"""requests between owners, whose replies are empty"""
REQUESTS = frozenset(Kind) - {Kind.REPLY}

_LARGE = (1 << 30) - 64
BODY_LIMITS = {
    Kind.EXCHANGE: _LARGE,
    Kind.READ: _LARGE,
    Kind.COMMAND: 1 << 26,
    Kind.SQUARES: 1 << 26,
    Kind.PARTICIPANTS: 1 << 18,
    Kind.REPLY: _LARGE,
}
"""bytes that the body of each kind may have"""
