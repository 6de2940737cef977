"""Frames: what travels between two workers, a header of 64 bytes and a body.

Numbers are little-endian. What a body contains depends on its kind: raw arrays behind a small
struct (exchange.py), or JSON. Nothing of a frame is used before its header was checked, and no
memory is allocated by a length that was received.
"""

import struct
from dataclasses import dataclass
from enum import IntEnum

MAGIC = b"TNCF"
VERSION = 1
MOST_WORKERS = 64  # a worker owns at least one of the 64 shards of a table
MOST_MEMBERS = 2 * MOST_WORKERS  # with dedicated servers, of which there are no more
HEADER_BYTES = 64
# magic, version, kind, generation, sender, held, number, awaited, bytes of the body
_HEADER = struct.Struct("<4sHHQII5Q")
assert _HEADER.size == HEADER_BYTES

Body = bytes | bytearray | memoryview


class FrameError(Exception):
    """Bytes that this protocol does not send, or not at this time: a sentence says which."""


class Kind(IntEnum):
    """What a frame is."""

    HELLO = 1  # of a connection that begins; JSON
    WELCOME = 2  # its answer: the generation and all workers; JSON
    HEARTBEAT = 3  # no body; `number` is the highest number requested so far
    EXCHANGE = 4  # requests: `number` counts them from 1, for each pair of sender and receiver
    READ = 5
    COMMAND = 6  # JSON
    REPLY = 7  # of the request with this number
    RESEND = 8  # no body: send the requests from this number on again
    FATAL = 9  # an error that ends all workers; JSON
    GOODBYE = 10  # no body: the sender ends, and its silence is no fault
    SQUARES = 11  # a request of an owner to another one
    PARTICIPANTS = 12  # a request of owner 0 to the other owners


NOTICES = frozenset({Kind.SQUARES, Kind.PARTICIPANTS})
"""requests between owners, whose replies are empty"""
REQUESTS = frozenset({Kind.EXCHANGE, Kind.READ, Kind.COMMAND}) | NOTICES
NUMBERED = REQUESTS | {Kind.REPLY, Kind.RESEND}

MOST_HELD = 2**32 - 1  # microseconds
_SMALL = 1 << 18
_LARGE = (1 << 30) - HEADER_BYTES
BODY_LIMITS = {
    Kind.HELLO: _SMALL,
    Kind.WELCOME: _SMALL,
    Kind.HEARTBEAT: 0,
    Kind.EXCHANGE: _LARGE,
    Kind.READ: _LARGE,
    Kind.COMMAND: 1 << 26,
    Kind.REPLY: _LARGE,
    Kind.RESEND: 0,
    Kind.FATAL: _SMALL,
    Kind.GOODBYE: 0,
    Kind.SQUARES: 1 << 26,
    Kind.PARTICIPANTS: _SMALL,
}
"""bytes that the body of each kind may have"""
LARGEST_FRAME = HEADER_BYTES + max(BODY_LIMITS.values())

Awaited = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Frame:
    """A message between two workers.

    `generation` is 0 in a hello only. `awaited` are the three lowest numbers whose replies the
    sender has not received (session.py); 0 in frames that have no use for them. `held` are the
    microseconds between the arrival of a request and its reply, 0 in other frames.
    """

    kind: Kind
    generation: int
    sender: int
    number: int = 0
    awaited: Awaited = (0, 0, 0)
    body: Body = b""
    held: int = 0

    def header(self) -> bytes:
        """The 64 bytes before the body."""
        return _HEADER.pack(
            MAGIC, VERSION, self.kind, self.generation, self.sender, self.held, self.number,
            *self.awaited, len(self.body),
        )  # fmt: skip

    def to_bytes(self) -> bytes:
        """Header and body, copied once."""
        return b"".join((self.header(), self.body))


@dataclass(frozen=True, slots=True)
class Header:
    """A header that was checked: the fields of `Frame`, and the bytes of the body."""

    kind: Kind
    generation: int
    sender: int
    number: int
    awaited: Awaited
    body_bytes: int
    held: int


def unpack(header: Body) -> Header:
    """Check the first 64 bytes of a frame. Raises FrameError."""
    if len(header) != HEADER_BYTES:
        raise FrameError(f"a header has {len(header)} bytes instead of {HEADER_BYTES}")
    magic, version, kind, generation, sender, held, number, *awaited, body_bytes = _HEADER.unpack(
        header
    )
    if magic != MAGIC:
        raise FrameError("the bytes are no frame of tnctl")
    if version != VERSION:
        raise FrameError(f"a frame has version {version}, this tnctl uses {VERSION}")
    if kind not in BODY_LIMITS:
        raise FrameError(f"a frame has the unknown kind {kind}")
    kind = Kind(kind)
    name = kind.name.lower()
    if sender >= MOST_MEMBERS:
        raise FrameError(f"a frame is from worker {sender}, the highest is {MOST_MEMBERS - 1}")
    if held and kind is not Kind.REPLY:
        raise FrameError(f"a frame ({name}) was held for {held} us, and is no reply")
    if (generation == 0) != (kind is Kind.HELLO):
        raise FrameError(f"a frame ({name}) has generation {generation}")
    if kind in NUMBERED and number == 0:
        raise FrameError(f"a frame ({name}) has number 0")
    lowest, second, third = awaited
    if not lowest <= second <= third <= number + 1:
        raise FrameError(f"a frame ({name}) awaits {lowest}, {second}, {third} at {number}")
    if body_bytes > BODY_LIMITS[kind]:
        raise FrameError(
            f"a frame ({name}) has a body of {body_bytes:,} bytes, the limit is "
            f"{BODY_LIMITS[kind]:,}"
        )
    return Header(kind, generation, sender, number, (lowest, second, third), body_bytes, held)


def parse(frame: Body) -> Frame:
    """A whole frame. Its body is a view of the bytes, not a copy. Raises FrameError."""
    view = memoryview(frame)
    header = unpack(view[:HEADER_BYTES])
    body = view[HEADER_BYTES:]
    if len(body) != header.body_bytes:
        raise FrameError(
            f"a frame ({header.kind.name.lower()}) has a body of {len(body):,} bytes, its header "
            f"says {header.body_bytes:,}"
        )
    return Frame(
        header.kind, header.generation, header.sender, header.number, header.awaited, body,
        header.held,
    )  # fmt: skip
