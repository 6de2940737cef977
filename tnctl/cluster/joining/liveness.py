"""Which processes of a generation are alive, as one of them sees it.

A generation ends with the first process or connection that is lost, for all: each process ends
with exit code `assignment.LOST`, its supervisor starts it again, and rank 0 names another
generation. Calls of other generations are refused, so what an old process still sends changes
nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from tnctl.cluster.joining.membership import ONLY_WORKERS, Membership

# Of the timeout: a process that was stopped for so long counts as lost.
SILENCE = 0.8


class GenerationOver(Exception):
    """The generation has ended: this process must send and write nothing more, and exit."""


@dataclass
class Liveness:
    """Which processes are alive: each is connected, and this one was not stopped.

    All times are shares of `timeout`, the seconds within which a loss is noticed. gRPC ends the
    connection of a process that is stopped or cut off within 4 tenths; one that is away for 5
    tenths ends the generation. The rest is for the way and for the process to end. Whoever sends
    or writes asks `check` before.
    """

    rank: int
    timeout: float
    now: float
    """when the generation began"""
    membership: Membership = ONLY_WORKERS
    ran: Callable[[], dict[int, float]] = dict
    """seconds for which each thread of this process has run, or has waited for a CPU, so far"""
    _own: float = 0.0
    _ticked: float = 0.0
    _ran: dict[int, float] = field(default_factory=dict)
    """at the last tick"""
    _disconnected: dict[int, tuple[float, str]] = field(default_factory=dict)
    """since when, and why"""
    _left: set[int] = field(default_factory=set)
    _reason: str | None = None

    def __post_init__(self) -> None:
        self._own = self._ticked = self.now
        self._ran = self.ran()

    @property
    def interval(self) -> float:
        """Seconds between ticks."""
        return self.timeout * 0.1

    @property
    def silence(self) -> float:
        """Seconds after which a process that was stopped is lost."""
        return self.timeout * SILENCE

    @property
    def window(self) -> float:
        """Seconds within which a connection that broke must be made again."""
        return self.timeout * 0.5

    def check(self, now: float) -> None:
        """Before anything is sent or written. Raises GenerationOver."""
        stopped = now - self._own
        if stopped >= self.silence:
            # One thread may have kept the interpreter, and nothing else could ask.
            stopped = min(stopped, now - self._ticked - self._longest_run())
        if stopped >= self.silence:
            self._end(f"this process was stopped for {stopped:.1f} s")
        if self._reason is not None:
            raise GenerationOver(self._reason)
        self._own = max(self._own, now)  # whichever thread asks shows that the process runs

    def tick(self, now: float) -> None:
        """At each interval: this process lives, and so must the others. Raises GenerationOver."""
        self.check(now)
        self._ticked, self._ran = now, self.ran()
        for rank, (since, reason) in self._disconnected.items():
            if now - since >= self.window:
                name = self.membership.name(rank)
                self._end(f"{name} could not be reached for {now - since:.1f} s: {reason}")
        self.check(now)

    def disconnected(self, peer: int, now: float, reason: str) -> None:
        """The connection to a peer broke. The first time counts until it is there again."""
        if peer not in self._left:
            self._disconnected.setdefault(peer, (now, reason))

    def connected(self, peer: int) -> None:
        """The connection to a peer is there again."""
        self._disconnected.pop(peer, None)

    def left(self, peer: int) -> None:
        """A peer has finished, and its end is no loss."""
        self._left.add(peer)
        self._disconnected.pop(peer, None)

    def lost(self, peer: int) -> None:
        """A peer is known to have ended, for another process has taken its rank."""
        if peer not in self._left:
            self._end(f"{self.membership.name(peer)} has ended")

    def _longest_run(self) -> float:
        """Seconds since the last tick for which one thread ran or waited for a CPU, at most."""
        ran = self.ran().items()
        return max((now - self._ran.get(thread, now) for thread, now in ran), default=0.0)

    def _end(self, reason: str) -> None:
        self._reason = self._reason or reason
