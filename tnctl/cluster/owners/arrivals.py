"""In asynchronous training an owner applies pushes, and answers pulls, as they arrive.

A worker pulls the rows of its next batch while it computes one, so up to two of its pulls are open:
pulled, and not pushed. Its pushes are in the order of its pulls.

    worker 0   keys 1 | keys 2 | push 1, keys 3 | push 2, keys 4 | ...
    worker 1   keys 1 | keys 2 |                | push 1, keys 3 | ...

Owners do not wait for each other either: each applies pushes in the order in which they reach it.
N pushes are a step, so schedules, decay, days and evictions count what they count in synchronous
training. `staleness` bounds how many batches a worker is ahead of the slowest one that has data:
the pull of batch n is held until every such worker has pushed n - 1 - staleness batches since
training was resumed. Every owner holds by this rule; with 0 a worker reads what all have written.

In the first `warmup_steps` steps workers take turns: the pull of batch n of worker r is held until
the workers below r have pushed n batches, and the others n - 1. So each batch reads what all
batches before it have written. Late gradients do most harm at the beginning (Dean et al., "Large
Scale Distributed Deep Networks", 2012, section 4.1, begin with one replica): several large first
steps into the same direction overshoot, and the accumulators of AdaGrad keep these gradients for
ever.

Rank 0 pauses in two messages. After `drain` nobody pulls any more (workers look at `is_draining`),
and what is held is answered. When all workers have pushed what they pulled, `pause` ends the step
that was begun: it counts as a whole one, so that no row is newer than the clock of a checkpoint.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Generic, Protocol

from tnctl.cluster.messages.exchange import (
    Exchange,
    Keys,
    Push,
    no_batch,
    parse_exchange,
    sizes_of,
)
from tnctl.cluster.messages.work import Work
from tnctl.cluster.owners.owner import Answers, Handle, Owner, Parameters
from tnctl.cluster.transport.kinds import Body, MessageError

MOST_OPEN = 2  # pulls of a worker whose gradients have not arrived


class ArrivingParameters(Parameters, Protocol):
    """Parameters to which the gradients of one worker are applied at a time."""

    def push_one(self, keys: Sequence[Keys], push: Push, rate: float) -> None:
        """Apply the push of a worker, which is of these keys.

        A gradient of a row that was evicted since its pull is dropped. After every N-th push
        `steps` is one more, and rows that are due are evicted. Raises Failure before anything is
        changed.
        """

    def pause(self) -> None:
        """Count a step that was begun as a whole one; the parameters are read from now on."""


@dataclass
class Pull(Generic[Handle]):
    """A pull of a worker until its gradients arrive."""

    rank: int
    number: int
    """of the worker's pulls, from 1 on"""
    exchange: Exchange
    handle: Handle
    is_held: bool = True
    applied: int = 0
    """the pushes of all workers that were applied when it was answered"""
    ahead: int = 0
    """the batches that its worker was ahead of the slowest one then"""


@dataclass
class WorkerPulls(Generic[Handle]):
    """How far a worker is since training was resumed."""

    pulled: int = 0
    pushed: int = 0
    has_next: bool = True
    waited_for: int | None = None
    """the worker for which it was held last since its last exchange"""
    open: deque[Pull[Handle]] = field(default_factory=deque)


@dataclass
class Arrivals(Owner[Handle]):
    """Answers each pull as soon as `staleness` allows it; None holds nobody."""

    parameters: ArrivingParameters
    staleness: int | None = None
    warmup_steps: int = 0
    """the steps at the beginning of the training in which workers take turns"""
    work: "SimpleQueue[tuple[int, Work, int | None]]" = field(default_factory=SimpleQueue)
    """owner 0: of each exchange what `WorkSums.add_one` takes; another thread takes them"""
    batches: "SimpleQueue[tuple[int, int, int]]" = field(default_factory=SimpleQueue)
    """owner 0: of each push what `WorkSums.add_batch` takes; another thread takes them"""
    is_paused: bool = True
    is_draining: bool = False
    """whether workers pull no more; another thread may read it"""
    _rate: float = 1.0
    _applied: int = 0
    """pushes"""
    _workers: list[WorkerPulls[Handle]] = field(default_factory=list)
    _held: list[Pull[Handle]] = field(default_factory=list)
    """in the order of their arrival"""

    @property
    def is_open(self) -> bool:
        return not self.is_paused

    @property
    def slowest(self) -> float:
        """The batches pushed by the slowest worker that has data; infinity without any."""
        pushed = [worker.pushed for worker in self._workers if worker.has_next or worker.open]
        return min(pushed, default=math.inf)

    def _may_read(self, pull: Pull[Handle]) -> bool:
        """Whether the warm-up and the bound on staleness let a worker read the rows of a batch."""
        if self.is_draining:
            return True
        if self.parameters.steps < self.warmup_steps:
            return all(
                worker.pushed >= pull.number - (rank >= pull.rank)
                for rank, worker in enumerate(self._workers)
                if worker.has_next or worker.open
            )
        return self.staleness is None or pull.number <= self.slowest + 1 + self.staleness

    def _resume(self, rank: int) -> None:
        if rank != 0:
            raise MessageError("it sent an exchange while training pauses")
        self.is_paused = self.is_draining = False
        self._workers = [WorkerPulls() for _ in range(self.workers)]

    def _parsed(self, rank: int, body: Body) -> Exchange:
        if self.is_paused:
            self._resume(rank)
        worker = self._workers[rank]
        oldest = worker.open[0] if worker.open else None
        if oldest is None or oldest.is_held:
            return parse_exchange(self.shape, no_batch(self.shape), body)
        return parse_exchange(self.shape, sizes_of(oldest.exchange), body, or_nothing=True)

    def _check(self, rank: int, exchange: Exchange) -> None:
        worker = self._workers[rank]
        number = worker.pulled + (exchange.rows > 0)
        if exchange.step != number:
            raise MessageError(f"an exchange of batch {exchange.step}, the next is {number}")
        left = len(worker.open) - (exchange.push.rows > 0)
        if exchange.rows and left >= MOST_OPEN:
            raise MessageError(f"an exchange pulls a batch while {left} are open")
        if exchange.pause and any(each.open for each in self._workers):
            raise MessageError("an exchange pauses the training while batches are open")

    def _take(self, rank: int, exchange: Exchange, handle: Handle) -> Answers[Handle]:
        """Apply the push; a message without keys is answered at once."""
        worker = self._workers[rank]
        if rank == 0:
            self._rate = exchange.rate_factor
        if len(exchange.work):
            self.work.put((rank, exchange.work.copy(), worker.waited_for))
            worker.waited_for = None
        self._take_push(worker, exchange)
        worker.has_next = exchange.has_next
        self.is_draining = self.is_draining or exchange.drain
        if exchange.rows:
            worker.pulled += 1
            pull = Pull(rank, worker.pulled, exchange, handle)
            worker.open.append(pull)
            self._held.append(pull)
            return self._released(rank)
        if exchange.pause:
            self.parameters.pause()
            self.is_paused = True
        return [(handle, self._reply(exchange, 0)[0]), *self._released(rank)]

    def _take_push(self, worker: WorkerPulls[Handle], exchange: Exchange) -> None:
        if exchange.push.rows:
            pull = worker.open[0]
            self.parameters.push_one(pull.exchange.keys, exchange.push, self._rate)
            worker.open.popleft()
            if self.shape.figures:
                self.batches.put((pull.rank, self._applied - pull.applied, pull.ahead))
            worker.pushed += 1
            self._applied += 1

    def _answered(self, pull: Pull[Handle]) -> tuple[Handle, bytearray]:
        answer, reply = self._reply(pull.exchange, pull.exchange.rows)
        self.parameters.pull([pull.exchange.keys], [reply])
        return pull.handle, answer

    def _released(self, rank: int) -> Answers[Handle]:
        """Answer the pulls that need not be held any more, in the order of their arrival.

        `rank` is the worker whose exchange has arrived.
        """
        released: list[Pull[Handle]] = []
        held: list[Pull[Handle]] = []
        for pull in self._held:
            (released if self._may_read(pull) else held).append(pull)
        self._held = held
        for pull in released:
            pull.is_held, pull.applied = False, self._applied
            if self.shape.figures and (slowest := self.slowest) < pull.number:
                pull.ahead = pull.number - 1 - int(slowest)
            if pull.rank != rank:
                self._workers[pull.rank].waited_for = rank
        return [self._answered(pull) for pull in released]
