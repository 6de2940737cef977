"""Who belongs to a cluster: joining, the generation, and which workers are alive.

A generation is N processes that trust each other, from the moment when rank 0 has welcomed all of
them. It ends with the first process or connection that is lost, for all of them: each ends
(LEFT_EXIT_CODE), its supervisor starts it again, and rank 0 names another generation. Frames of
other generations are refused, so what an old process still sends changes nothing.
"""

import hmac
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

from tnctl import documents
from tnctl.cluster.frames import MOST_WORKERS, Body, Frame, FrameError, Kind
from tnctl.documents import Hash, Sha256, Text
from tnctl.errors import quoted

LEFT_EXIT_CODE = 75  # a process ends since another one or a connection was lost: start it again
_MOST_WARNINGS = 20  # lines about refused connections

Rank = Annotated[int, Field(ge=0, lt=MOST_WORKERS)]
Address = Annotated[str, Field(min_length=1, max_length=255)]


class GenerationOver(Exception):
    """The generation has ended: this process must send and write nothing more, and exit."""


class NotWelcome(Exception):
    """A connection that is refused, and why."""


@dataclass(frozen=True)
class Digests:
    """SHA-256 of what must be the same on all workers."""

    conf: Sha256
    recipe: Sha256
    statistics: Sha256


@dataclass(frozen=True)
class Hello:
    """The first frame of a connection.

    `generation` is that of a connection between welcomed workers, None of one that joins.
    `version` is tnctl's, `address` the one under which this worker is reached.
    """

    token: Text
    version: Text
    rank: Rank
    workers: Annotated[int, Field(ge=1, le=MOST_WORKERS)]
    address: Address
    digests: Digests
    generation: Hash | None = None


@dataclass(frozen=True)
class Welcome:
    """Rank 0's answer once all are there: the generation, and the address of each rank."""

    generation: Hash
    addresses: Annotated[tuple[Address, ...], Field(max_length=MOST_WORKERS)]


@dataclass(frozen=True)
class Problem:
    """Why a connection is refused, a request failed or the training ends, in one line.

    `exit_code` is that of the command: 1 of a failure, 2 of a mistake of the user's.
    """

    message: Text
    exit_code: Annotated[int, Field(ge=1, le=2)] = 1


def generation_text(generation: int) -> str:
    """A generation as documents have it."""
    return f"{generation:016x}"


# ---- Joining -----------------------------------------------------------------


@dataclass
class Roster:
    """The workers that rank 0 knows, from the first to join until all are welcomed.

    `hello` is rank 0's own, which the others must agree with. `generation` is a number that no
    generation had before, such as a random one of 64 bits.
    """

    hello: Hello
    generation: int
    _addresses: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._addresses[0] = self.hello.address

    @property
    def missing(self) -> list[int]:
        """The ranks that have not joined."""
        return [rank for rank in range(self.hello.workers) if rank not in self._addresses]

    def join(self, body: Body) -> int:
        """Take the hello of a worker: its rank. Raises NotWelcome.

        A worker that lost its connection before it was welcomed joins again with its address.
        """
        hello = _agreeing(self.hello, body)
        if hello.generation is not None:
            raise NotWelcome(f"worker {hello.rank} is of another generation")
        known = self._addresses.setdefault(hello.rank, hello.address)
        if known != hello.address:
            raise NotWelcome(
                f"two workers have rank {hello.rank}: at {quoted(known)} and "
                f"{quoted(hello.address)}"
            )
        return hello.rank

    def leave(self, rank: int) -> None:
        """The connection of a worker ended before the welcome: its rank is free again."""
        self._addresses.pop(rank, None)

    def welcome(self) -> Welcome | None:
        """What all are to be answered, once all are there."""
        if self.missing:
            return None
        addresses = tuple(self._addresses[rank] for rank in range(self.hello.workers))
        return Welcome(generation_text(self.generation), addresses)


def parse_welcome(body: Body, hello: Hello) -> Welcome:
    """The welcome in a body, for the worker that sent a hello. Raises FrameError."""
    welcome = _parsed(Welcome, body)
    if len(welcome.addresses) != hello.workers or int(welcome.generation, 16) == 0:
        raise FrameError(
            f"rank 0 welcomes {len(welcome.addresses)} workers to generation "
            f"{welcome.generation}, this one is of {hello.workers}"
        )
    return welcome


def check_hello(body: Body, own: Hello, generation: int) -> int:
    """The rank of the worker of this generation that connects. Raises NotWelcome."""
    hello = _agreeing(own, body)
    if hello.generation != generation_text(generation):
        raise NotWelcome(f"worker {hello.rank} is of another generation")
    return hello.rank


def _agreeing(own: Hello, body: Body) -> Hello:
    try:
        hello = _parsed(Hello, body)
    except FrameError as error:
        raise NotWelcome(f"no hello of a worker ({error})") from error
    # Before anything else of it is used, and in a time that does not depend on the token.
    if not hmac.compare_digest(hello.token.encode(errors="replace"), own.token.encode()):
        raise NotWelcome("a wrong token")
    name = f"worker {hello.rank}"
    if hello.version != own.version:
        raise NotWelcome(f"{name} has tnctl {quoted(hello.version)}, this one {own.version}")
    if hello.workers != own.workers or hello.rank >= own.workers:
        raise NotWelcome(
            f"{name} of {hello.workers} joins a cluster of {own.workers} workers (cluster.workers)"
        )
    if hello.rank == own.rank:
        raise NotWelcome(f"another process has rank {own.rank} too")
    for part in ("conf", "recipe", "statistics"):
        if getattr(hello.digests, part) != getattr(own.digests, part):
            raise NotWelcome(f"{name} has another {part}: all workers need the same")
    return hello


def _parsed(kind: type, body: Body) -> "Hello | Welcome | Problem":
    try:
        return documents.parse(kind, bytes(body))
    except documents.DocumentError as error:
        raise FrameError(str(error)) from error


@dataclass
class Refusals:
    """Counts connections that are refused, and says which of them are to be logged."""

    count: int = 0

    def line(self, peer: str, reason: Exception) -> str | None:
        """The line of a refused connection; None after many, which would fill the log."""
        self.count += 1
        if self.count > _MOST_WARNINGS:
            return None
        last = " (further ones are counted only)" if self.count == _MOST_WARNINGS else ""
        return f"refused a connection from {quoted(peer)}: {reason}{last}"


# ---- Living ------------------------------------------------------------------


@dataclass
class Liveness:
    """Which workers are alive, as one of them sees it: heard, connected, and itself not asleep.

    All times are shares of `timeout`, the seconds within which a loss is noticed: heartbeats every
    tenth, silence of 8 tenths or a connection that is away for 6 tenths end the generation. The
    rest is for the way and for the process to end. Whoever sends or writes asks `check` before.
    """

    rank: int
    peers: frozenset[int]
    timeout: float
    now: float
    """when the generation began"""
    _own: float = 0.0
    _heard: dict[int, float] = field(default_factory=dict)
    _disconnected: dict[int, float] = field(default_factory=dict)
    _left: set[int] = field(default_factory=set)
    _reason: str | None = None

    def __post_init__(self) -> None:
        self._own = self.now
        self._heard = dict.fromkeys(self.peers, self.now)

    @property
    def interval(self) -> float:
        """Seconds between heartbeats."""
        return self.timeout * 0.1

    @property
    def silence(self) -> float:
        """Seconds after which a process that is not heard is lost."""
        return self.timeout * 0.8

    @property
    def window(self) -> float:
        """Seconds within which a connection that broke must be made again."""
        return self.timeout * 0.6

    def check(self, now: float) -> None:
        """Before anything is sent or written. Raises GenerationOver."""
        if self._reason is None and now - self._own >= self.silence:
            self._end(f"this process was stopped for {now - self._own:.1f} s")
        if self._reason is not None:
            raise GenerationOver(self._reason)

    def tick(self, now: float) -> None:
        """At each interval: this process lives, and so must the others. Raises GenerationOver."""
        self.check(now)
        self._own = now
        for rank, heard in self._heard.items():
            if rank in self._left:
                continue
            if now - heard >= self.silence:
                self._end(f"worker {rank} has been silent for {now - heard:.1f} s")
            lost = self._disconnected.get(rank)
            if lost is not None and now - lost >= self.window:
                self._end(f"worker {rank} could not be reached for {now - lost:.1f} s")
        self.check(now)

    def accept(self, frame: Frame, peer: int, generation: int, now: float) -> None:
        """Check whether a frame on the connection of a peer is of it and of this generation.

        Raises FrameError for another, which changes nothing, and GenerationOver.
        """
        self.check(now)
        if frame.generation != generation:
            raise FrameError(f"worker {peer} sends a frame of another generation")
        if frame.sender != peer or peer not in self.peers:
            raise FrameError(f"worker {peer} sends a frame as worker {frame.sender}")
        self._heard[peer] = max(self._heard[peer], now)
        if frame.kind is Kind.GOODBYE:
            self._left.add(peer)

    def disconnected(self, peer: int, now: float) -> None:
        """The connection to a peer broke. The first time counts until it is there again."""
        self._disconnected.setdefault(peer, now)

    def connected(self, peer: int) -> None:
        """The connection to a peer is there again."""
        self._disconnected.pop(peer, None)

    def lost(self, peer: int) -> None:
        """A peer is known to have ended, for instance since its supervisor says so."""
        if peer not in self._left:
            self._end(f"worker {peer} has ended")

    def _end(self, reason: str) -> None:
        self._reason = self._reason or reason


def others(rank: int, workers: int) -> frozenset[int]:
    """The ranks of all workers but one."""
    return frozenset(range(workers)) - {rank}


def names_of(ranks: Iterable[int]) -> str:
    """Ranks as messages name them."""
    numbers = sorted(ranks)
    text = ", ".join(str(rank) for rank in numbers[:8])
    more = f" and {len(numbers) - 8} more" if len(numbers) > 8 else ""
    return f"worker{'s' if len(numbers) != 1 else ''} {text}{more}"
