"""Calls that run exactly once, in the order of their numbers, over connections that break.

gRPC reconnects, but a call whose connection broke may have been run or not. So the caller numbers
its calls and sends the same call again until it has the reply; the process that answers runs each
number once and keeps its reply as long as the caller may ask for it again. No socket, no thread.
"""

from concurrent.futures import Future
from dataclasses import dataclass, field
from struct import Struct

from tnctl.cluster.transport.kinds import Body, Kind, MessageError

MOST_OPEN = 32  # calls from one process to another without a reply
_FIXED = Struct("<QQHH")  # generation, number, caller, kind
_NUMBER = Struct("<Q")


@dataclass(frozen=True, slots=True)
class Envelope:
    """What goes with the body of a call.

    `number` counts the calls from `caller` to one process from 1. `unanswered` are the numbers
    whose replies the caller had not received when it made this call, ascending, this one included.
    """

    generation: int
    caller: int
    kind: Kind
    number: int
    unanswered: tuple[int, ...]

    def to_bytes(self) -> bytes:
        """The envelope as it is sent."""
        fixed = _FIXED.pack(self.generation, self.number, self.caller, self.kind)
        return fixed + b"".join(map(_NUMBER.pack, self.unanswered))

    @classmethod
    def parse(cls, content: bytes) -> "Envelope":
        """The envelope in some bytes. Raises MessageError."""
        numbers, rest = divmod(len(content) - _FIXED.size, _NUMBER.size)
        if not 0 < numbers <= MOST_OPEN or rest:
            raise MessageError(f"an envelope has {len(content)} bytes")
        generation, number, caller, kind = _FIXED.unpack_from(content)
        unanswered = tuple(n for (n,) in _NUMBER.iter_unpack(content[_FIXED.size :]))
        if kind not in set(Kind):
            raise MessageError(f"a call has the unknown kind {kind}")
        if sorted(set(unanswered)) != list(unanswered) or unanswered[-1] != number:
            raise MessageError(f"call {number} awaits the replies {unanswered}")
        return cls(generation, caller, Kind(kind), number, unanswered)


@dataclass
class Calls:
    """The calls from this process to another one in a generation."""

    generation: int
    caller: int
    """the rank of this process"""
    _last: int = 0
    _unanswered: set[int] = field(default_factory=set)

    @property
    def is_full(self) -> bool:
        """Whether `envelope` would be refused now."""
        return len(self._unanswered) >= MOST_OPEN

    def envelope(self, kind: Kind) -> Envelope:
        """The envelope of the next call. Raises MessageError when too many are unanswered."""
        if self.is_full:
            raise MessageError(f"a process has {MOST_OPEN} unanswered calls to another one")
        self._last += 1
        self._unanswered.add(self._last)
        numbers = tuple(sorted(self._unanswered))
        return Envelope(self.generation, self.caller, kind, self._last, numbers)

    def answered(self, number: int) -> bool:
        """Take note of a reply; False when the call was answered before."""
        is_first = number in self._unanswered
        self._unanswered.discard(number)
        return is_first


@dataclass
class Answers:
    """The calls from another process to this one in a generation."""

    _last: int = 0
    """the highest number that was run"""
    _replies: dict[int, "Future[Body]"] = field(default_factory=dict)
    """of those that the caller may send again, at most MOST_OPEN by its envelopes"""

    def is_early(self, envelope: Envelope) -> bool:
        """Whether a call before this one has not arrived yet: calls are run in their order."""
        return envelope.number > self._last + 1

    def admit(self, envelope: Envelope) -> "tuple[Future[Body], bool]":
        """What gets the reply of a call, and whether the call is to be run now.

        A call that was admitted before gets the same future, unless its reply was forgotten since
        the caller has received it: then nobody waits for it, and it gets one without an end.
        """
        assert not self.is_early(envelope)
        # A call that was delayed knows of no number above its own.
        for number in [n for n in self._replies if n < envelope.number]:
            if number not in envelope.unanswered:
                del self._replies[number]
        if envelope.number <= self._last:
            return self._replies.get(envelope.number) or Future(), False
        self._last = envelope.number
        reply: Future[Body] = Future()
        self._replies[envelope.number] = reply
        return reply, True


@dataclass(frozen=True)
class Reply:
    """The body of a reply, and for how many seconds the other process had the request."""

    body: Body
    held: float = 0.0
