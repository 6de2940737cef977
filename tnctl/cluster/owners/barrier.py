"""The barrier of an owner in synchronous training: a step begins when all workers are there.

An owner holds exchange k until that of every worker is there. Then it applies the pushes of step
k-1 in rank order, at once, and pulls the keys of step k in rank order. When rank 0 pauses, it
applies and pulls nothing: from then on no rows are on their way to be changed, so it can be read,
evicted and saved. No exchange arrives twice (transport/once.py).

With `cluster.backup` a step begins when all but so many workers are there. Owner 0 decides which
take part, and sends it to the other owners, which wait for the exchanges of exactly these. A worker
that was left out is answered so when its exchange is there: its push is dropped, nothing is pulled,
and it sends another exchange (JOINING), with which it is part of the next step that begins.

With `optimizer.clip_norm` there is one more message between owners in a step: each sends the exact
sums of squares of its reduced gradients to all others, and applies and pulls when those of all are
there. No owner can be a step further than another one: a worker sends the next exchange when it has
the answers of all.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tnctl.cluster.messages.exchange import (
    JOINING,
    Exchange,
    Keys,
    Push,
    Sizes,
    add_squares,
    new_exchange,
    new_participants,
    new_squares,
    no_batch,
    parse_exchange,
    parse_participants,
    sizes_of,
)
from tnctl.cluster.messages.work import Work
from tnctl.cluster.owners.owner import Answers, Handle, Owner, Parameters
from tnctl.cluster.transport.kinds import Body, Kind, MessageError
from tnctl.tables import ExactSum, clipping_factor


class StepParameters(Parameters, Protocol):
    """Parameters to which the gradients of all workers are applied together."""

    def reduce(self, pulled: Sequence[Sequence[Keys]], pushes: Sequence[Push], rate: float) -> None:
        """Add up the gradients of a step, of all workers in rank order, and change nothing yet.

        `pulled` are the keys that each push is of, in its order. Raises Failure.
        """

    def squares(self) -> Sequence[ExactSum]:
        """The sums of squares of the reduced gradients: each table that is trained, then dense."""

    def apply(self, pushes: Sequence[Push], scale: float) -> None:
        """Apply the reduced gradients, times `scale`.

        Afterwards `steps` is one more, and rows that are due are evicted.
        """


@dataclass
class Barrier(Owner[Handle]):
    """Begins a step when all workers are there, or all but `backup`."""

    parameters: StepParameters
    rank: int = 0
    """of the worker itself"""
    clip_norm: float = 0.0
    """what the norm of the reduced gradient of all owners is reduced to; 0: it is not"""
    backup: int = 0
    """how many workers a step does not wait for"""
    owners: int = 0
    """how many owners there are; 0: as many as workers"""
    work: list[Work] = field(default_factory=list)
    """what each worker did before the exchanges that were answered last, of owner 0"""
    waited_for: int | None = None
    """the worker that the step before these exchanges waited for last"""
    _last: int | None = None
    """the worker whose exchange has arrived last"""
    _last_of_step: int | None = None
    """the same of the step that began last"""
    _held: dict[int, Exchange] = field(default_factory=dict)
    """the exchanges of the next step, by rank"""
    _handles: dict[int, Handle] = field(default_factory=dict)
    """of the exchanges that are not answered, by rank"""
    _pulled: dict[int, Exchange] = field(default_factory=dict)
    """those whose keys are pulled and not pushed"""
    _meeting: list[Exchange] | None = None
    """the exchanges of a step that begins, by rank, while squares of other owners are missing"""
    _squares: list[ExactSum] = field(default_factory=list)
    """of the reduced gradients of that step, of this owner"""
    _of_others: dict[int, Body] = field(default_factory=dict)
    """those of the other owners"""
    _behind: dict[int, tuple[int, Sizes]] = field(default_factory=dict)
    """of workers that were left out: the step and the push of their next exchange"""
    _named: frozenset[int] | None = None
    """the workers that take part in the next step, as owner 0 has decided"""
    _owed: frozenset[int] = frozenset()
    """those that were left out and have pulled since: the next step waits for them"""
    _absent: frozenset[int] = frozenset()
    """the workers that do not take part in the step that began last"""
    _late_work: dict[int, Work] = field(default_factory=dict)

    @property
    def is_open(self) -> bool:
        return bool(self._pulled)

    def notice(self, rank: int, kind: Kind, body: Body) -> Answers[Handle]:
        if kind is Kind.PARTICIPANTS:
            return self._take_participants(rank, body)
        if rank in self._of_others or not self.clip_norm:
            raise MessageError(f"owner {rank} sent squares that were not expected")
        self._of_others[rank] = body
        return self._complete()

    def _parsed(self, rank: int, body: Body) -> Exchange:
        return parse_exchange(self.shape, self._expected(rank)[1], body)

    def _check(self, rank: int, exchange: Exchange) -> None:
        step, _ = self._expected(rank)
        if rank in self._held:
            raise MessageError(f"it sent two exchanges of step {step}")
        if exchange.step != step:
            raise MessageError(f"an exchange of step {exchange.step}, the next is {step}")
        if exchange.drain:
            raise MessageError("an exchange drains the training, which is for cluster.mode=async")

    def _expected(self, rank: int) -> tuple[int, Sizes]:
        """The step and the push of the next exchange of a worker."""
        pulled = self._pulled.get(rank)
        pushed = no_batch(self.shape) if pulled is None else sizes_of(pulled)
        return self._behind.get(rank, (self._next_step, pushed))

    def _take(self, rank: int, exchange: Exchange, handle: Handle) -> Answers[Handle]:
        self._handles[rank] = handle
        if rank in self._behind and exchange.step != JOINING:
            return [self._leave_out(rank, exchange)]
        self._held[rank], self._last = exchange, rank
        return self._meet()

    @property
    def _next_step(self) -> int:
        return self.parameters.steps + 1 + self.is_open

    # ---- Who takes part --------------------------------------------------------

    def _take_participants(self, rank: int, body: Body) -> Answers[Handle]:
        step, ranks = parse_participants(body, self.workers, self.workers - self.backup)
        if rank != 0 or not self.backup or self._named is not None or step != self._next_step:
            raise MessageError(f"owner {rank} names workers of step {step}: not expected")
        self._named = ranks
        return self._meet()

    def _participants(self) -> frozenset[int] | None:
        """The workers with which the next step begins; None: it does not begin yet."""
        there = frozenset(self._held)
        if not self.backup:
            return there if len(there) == self.workers else None
        if self.rank != 0:
            return self._named if self._named is not None and self._named <= there else None
        if len(there) == self.workers:
            return there
        held = self._held.values()
        if len(there) < self.workers - self.backup or 0 not in there or not self._owed <= there:
            return None
        # A pause waits for all. So does a step of no rows, or one in which nobody pushes any: else
        # steps would follow each other without an end while the last batches are computed.
        if self._held[0].pause or not any(exchange.rows for exchange in held):
            return None
        if self.is_open and not any(exchange.push.rows for exchange in held):
            return None
        return there

    def _leave_out(self, rank: int, exchange: Exchange) -> tuple[Handle, bytearray]:
        """Drop the exchange of a step that began without it; its answer."""
        self._behind[rank] = JOINING, no_batch(self.shape)
        self._late_work[rank] = self._with_late_work(rank, exchange.work)
        return self._handles.pop(rank), self._reply(exchange, left_out=True)[0]

    def _with_late_work(self, rank: int, work: Work) -> Work:
        late = self._late_work.pop(rank, None)
        return work if late is None else work + late

    def _gathered(self, ranks: frozenset[int]) -> tuple[list[Exchange], Answers[Handle]]:
        """The exchanges of a step by rank, empty ones of workers left out, and answers to these."""
        nothing = no_batch(self.shape)
        exchanges: list[Exchange] = []
        answers: Answers[Handle] = []
        for rank in range(self.workers):
            if rank in ranks:
                exchanges.append(self._held.pop(rank))
                self._behind.pop(rank, None)
                continue
            exchanges.append(new_exchange(self.shape, self._next_step, nothing, nothing)[1])
            if rank not in self._behind:
                self._behind[rank] = self._expected(rank)
                if rank in self._held:
                    answers.append(self._leave_out(rank, self._held.pop(rank)))
        self._named = None
        self._owed = frozenset(
            rank
            for rank in ranks
            if exchanges[rank].step == JOINING and exchanges[rank].rows and not exchanges[0].pause
        )
        return exchanges, answers

    # ---- A step ----------------------------------------------------------------

    def _meet(self) -> Answers[Handle]:
        """If all are there that a step waits for, begin it, now or with the squares of owners."""
        if self._meeting is not None or (ranks := self._participants()) is None:
            return []
        if self.backup and self.rank == 0:
            named = new_participants(self._next_step, ranks)
            self._notices.append((Kind.PARTICIPANTS, named))
        exchanges, left_out = self._gathered(ranks)
        self.work = [
            self._with_late_work(rank, exchange.work) for rank, exchange in enumerate(exchanges)
        ]
        self.waited_for, self._last_of_step = self._last_of_step, self._last
        self._meeting = exchanges
        self._absent = frozenset(range(self.workers)) - ranks
        if self.is_open:
            pulled = [self._pulled[rank].keys for rank in range(self.workers)]
            pushes = [exchange.push for exchange in exchanges]
            self.parameters.reduce(pulled, pushes, exchanges[0].rate_factor)
            if self.clip_norm:
                self._squares = list(self.parameters.squares())
                body = new_squares(self.parameters.steps + 1, self._squares)
                self._notices.append((Kind.SQUARES, body))
        return left_out + self._complete()

    def _complete(self) -> Answers[Handle]:
        """Apply what is reduced, if the squares that it waits for are there, and answer all."""
        if self._meeting is None:
            return []
        if self.is_open:
            scale = 1.0
            if self.clip_norm:
                if len(self._of_others) < (self.owners or self.workers) - 1:
                    return []
                scale = self._scale()
            self.parameters.apply([exchange.push for exchange in self._meeting], scale)
            self._pulled.clear()
        exchanges, self._meeting = self._meeting, None
        return self._answers(exchanges)

    def _scale(self) -> float:
        """The factor that reduces the gradient of all owners to the norm. Forgets the squares."""
        squares, of_others = self._squares, self._of_others
        self._squares, self._of_others = [], {}
        for owner, body in of_others.items():
            try:
                add_squares(self.parameters.steps + 1, squares, body)
            except MessageError as error:
                raise MessageError(f"owner {owner}: {error}") from error
        *of_tables, of_dense = [part.total() for part in squares]
        return clipping_factor(self.clip_norm, of_tables, of_dense)

    def _answers(self, exchanges: list[Exchange]) -> Answers[Handle]:
        """Pull the keys of a step, and answer the exchanges."""
        paused = exchanges[0].pause
        rows = 0 if paused else sum(exchange.rows for exchange in exchanges)
        any_next = any(exchange.has_next for exchange in exchanges) or bool(self._absent)
        answers, replies = zip(
            *(
                self._reply(exchange, rows, paused=paused, any_next=any_next and not paused)
                for exchange in exchanges
            ),
            strict=True,
        )
        if rows:
            self.parameters.pull([exchange.keys for exchange in exchanges], replies)
            self._pulled = dict(enumerate(exchanges))
        return [
            (self._handles.pop(rank), answer)
            for rank, answer in enumerate(answers)
            if rank not in self._absent
        ]
