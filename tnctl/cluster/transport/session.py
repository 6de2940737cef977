"""Requests that run exactly once, and their replies, over connections that break.

There is a client and a server per ordered pair of workers. The client numbers its requests and
keeps each until it is answered; the server runs them in the order of their numbers, each once, and
keeps each reply until the client has it. So a frame that is lost is sent again, and one that
arrives twice, late or in another order changes nothing. A reply may overtake older ones, since a
long request may stay open while others are answered.

The server knows from each frame of the client the three lowest numbers that the client awaits: all
others below the third are answered and forgotten. So up to two requests may stay open for any
time; behind them at most `MOST_OPEN` numbers may be in use, and memory is bounded.

No frame is lost without a break of the connection, after which the client sends all that is not
answered again. Frames lost in any other way are noticed by heartbeats: they name the highest number
of the client and what it awaits.
"""

from dataclasses import dataclass, field

from tnctl.cluster.transport.frames import REQUESTS, Awaited, Body, Frame, FrameError, Kind

MOST_OPEN = 32  # numbers of a session that are in use


@dataclass
class Client:
    """The requests of one worker to another in a generation."""

    generation: int
    rank: int
    """of the worker itself"""
    _last: int = 0
    _open: dict[int, tuple[Kind, Body]] = field(default_factory=dict)

    def request(self, kind: Kind, body: Body) -> Frame:
        """The frame of a new request; its number is in it. Raises FrameError if too many are open.

        The body must not be changed until the request is answered: it may be sent again.
        """
        assert kind in REQUESTS
        if self.is_full():
            raise FrameError(f"a worker has more than {MOST_OPEN} requests open")
        self._last += 1
        self._open[self._last] = (kind, body)
        return self._frame(self._last)

    def is_full(self) -> bool:
        """Whether `request` would be refused now."""
        return self._last + 1 - self.awaited()[2] >= MOST_OPEN

    def receive(self, reply: Frame) -> bool:
        """Take a reply; False if this request was answered before. Raises FrameError."""
        assert reply.kind is Kind.REPLY
        if reply.number > self._last:
            raise FrameError(f"worker {reply.sender} answers request {reply.number}, not sent yet")
        return self._open.pop(reply.number, None) is not None

    def unanswered(self, first: int = 0) -> list[Frame]:
        """The requests to be sent again: after a reconnection all, after `RESEND` from a number."""
        return [self._frame(number) for number in self._open if number >= first]

    def heartbeat(self) -> Frame:
        """What says that this worker lives, and what the server should have received."""
        return Frame(Kind.HEARTBEAT, self.generation, self.rank, self._last, self.awaited())

    def awaited(self) -> Awaited:
        """The three lowest numbers that are not answered, those to come among them."""
        # Numbers are added in their order, so the dict is sorted.
        lowest = [number for number, _ in zip(self._open, range(3), strict=False)]
        first, second, third = (*lowest, *[self._last + 1] * 3)[:3]
        return first, second, third

    def _frame(self, number: int) -> Frame:
        kind, body = self._open[number]
        # The numbers of a request are of the time when it is sent: none is above its own + 1.
        first, second, third = (min(entry, number + 1) for entry in self.awaited())
        return Frame(kind, self.generation, self.rank, number, (first, second, third), body)


@dataclass(frozen=True)
class Request:
    """A request that is to be run now."""

    number: int
    kind: Kind
    body: Body


@dataclass
class Server:
    """The requests that one worker receives of another in a generation."""

    generation: int
    rank: int
    """of the worker itself"""
    _last: int = 0
    """the highest number that was given out to be run"""
    _replies: dict[int, Frame | None] = field(default_factory=dict)
    """of those not known to be answered; None while one is running"""
    _asked: int = 0
    """the highest number that was asked for again"""
    _overdue: set[int] = field(default_factory=set)
    """replies that the client awaited at the heartbeat before"""

    def receive(self, request: Frame) -> Request | Frame | None:
        """Take a request: it is to be run, or a frame is to be sent, or it is to be dropped."""
        assert request.kind in REQUESTS
        if request.number > self._last + 1:
            # Once: each of the requests that follow would have all of them sent again.
            return self._resend() if self._asked <= self._last else None
        self._forget(request.awaited)
        if request.number <= self._last:
            return self._replies.get(request.number)
        if len(self._replies) >= MOST_OPEN + 2:
            raise FrameError(f"worker {request.sender} has more than {MOST_OPEN} requests open")
        self._last = request.number
        self._replies[request.number] = None
        return Request(request.number, request.kind, request.body)

    def reply(self, number: int, body: Body, held: int = 0) -> Frame:
        """The frame that answers a request which is running, and was held for microseconds."""
        assert self._replies[number] is None
        frame = Frame(Kind.REPLY, self.generation, self.rank, number, body=body, held=held)
        self._replies[number] = frame
        return frame

    def heartbeat(self, heartbeat: Frame, *, is_sending: bool = False) -> list[Frame]:
        """What the client should have received, or should send, as its heartbeat shows.

        `is_sending`: frames to the client wait to be sent, and replies may be among them.
        """
        if heartbeat.number > self._last:
            return [self._resend()]
        self._forget(heartbeat.awaited)
        awaited = {n for n in heartbeat.awaited if self._replies.get(n) is not None}
        if is_sending:
            awaited.clear()
        # A reply may be on its way when one heartbeat awaits it, not when two do.
        lost, self._overdue = awaited & self._overdue, awaited
        return [reply for number in sorted(lost) if (reply := self._replies[number]) is not None]

    def _forget(self, awaited: Awaited) -> None:
        for number in [n for n in self._replies if n < awaited[2] and n not in awaited]:
            # A frame that was sent before a request was answered may await it no more, never less.
            if self._replies[number] is not None:
                del self._replies[number]

    def _resend(self) -> Frame:
        self._asked = self._last + 1
        return Frame(Kind.RESEND, self.generation, self.rank, self._last + 1)
