"""The barrier of an owner in synchronous training: a step begins when all workers are there.

An owner holds exchange k until that of every worker is there. Then it applies the pushes of step
k-1 in rank order, at once, and pulls the keys of step k in rank order. When rank 0 pauses, it
applies and pulls nothing: from then on no rows are on their way to be changed, so it can be read,
evicted and saved. The sessions below make sure that no exchange arrives twice.

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
    Shape,
    Sizes,
    check_finite,
    new_exchange,
    no_batch,
    parse_exchange,
    sizes_of,
)
from tnctl.cluster.messages.participants import new_participants, parse_participants
from tnctl.cluster.messages.replies import (
    Owned,
    Read,
    ReadReply,
    Reply,
    Totals,
    answer_read,
    new_reply,
    no_totals,
)
from tnctl.cluster.messages.squares import add_squares, new_squares
from tnctl.cluster.messages.work import Work, check_work
from tnctl.cluster.transport.frames import Body, FrameError, Kind
from tnctl.errors import Failure
from tnctl.tables import ExactSum, clipping_factor

Answers = list[bytearray | None]  # by rank


class OwnedParameters(Protocol):
    """The parameters that an owner owns: parts of tables, and a slice of the dense weights."""

    steps: int
    """the steps applied so far"""

    def push(self, pulled: Sequence[Sequence[Keys]], pushes: Sequence[Push], rate: float) -> None:
        """Apply a step: the pushes of all workers in rank order, reduced by their rows.

        `pulled` are the keys that each push is of, in its order. Afterwards `steps` is one more,
        and rows that are due are evicted. Raises Failure before anything is changed.
        """

    def reduce(self, pulled: Sequence[Sequence[Keys]], pushes: Sequence[Push], rate: float) -> None:
        """The first half of `push`: add up the gradients, and change nothing yet."""

    def squares(self) -> Sequence[ExactSum]:
        """The sums of squares of the reduced gradients: each table that is trained, then dense."""

    def apply(self, pushes: Sequence[Push], scale: float) -> None:
        """The other half of `push`: apply the reduced gradients, times `scale`."""

    def pull(self, keys: Sequence[Sequence[Keys]], replies: Sequence[Reply]) -> None:
        """Find the keys of all workers in rank order, inserting, and fill the replies of each."""

    def read(self, read: Read, reply: ReadReply) -> None:
        """Fill the reply with rows as they are; those of keys without a row are zeros."""

    def owned(self) -> Sequence[Owned]:
        """How many rows and bytes this part of each table has."""


@dataclass(frozen=True)
class Notice:
    """A request of an owner to all other owners; what answers it is empty."""

    kind: Kind
    body: Body


@dataclass
class Owner:
    """The exchanges and reads of one owner, of `workers` workers.

    A request that does not fit raises FrameError, a gradient that cannot be applied Failure; both
    name the worker. Neither changes anything, and the training cannot be continued.
    """

    shape: Shape
    workers: int
    parameters: OwnedParameters
    rank: int = 0
    """of the worker itself"""
    clip_norm: float = 0.0
    """what the norm of the reduced gradient of all owners is reduced to; 0: it is not"""
    backup: int = 0
    """how many workers a step does not wait for"""
    owners: int = 0
    """how many owners there are; 0: as many as workers"""
    totals: Totals = no_totals
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
    _pulled: dict[int, Exchange] = field(default_factory=dict)
    """those whose keys are pulled and not pushed"""
    _meeting: list[Exchange] | None = None
    """the exchanges of a step that begins, by rank, while squares of other owners are missing"""
    _squares: list[ExactSum] = field(default_factory=list)
    """of the reduced gradients of that step, of this owner"""
    _of_others: dict[int, Body] = field(default_factory=dict)
    """those of the other owners"""
    _notices: list[Notice] = field(default_factory=list)
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
        """Whether rows were pulled whose gradients have not arrived."""
        return bool(self._pulled)

    def exchange(self, rank: int, body: Body) -> Answers:
        """Take the exchange of a worker; the replies by rank when a step begins, else nothing.

        None for workers that are not answered now.
        """
        if rank in self._held:
            raise FrameError(f"worker {rank} sent two exchanges of step {self._next_step}")
        step, pushed = self._behind.get(rank, (self._next_step, self._pulled_by(rank)))
        try:
            exchange = parse_exchange(self.shape, pushed, body)
            self._check(rank, exchange, step)
            check_work(exchange.work)
            check_finite(exchange.push, self.workers)
        except FrameError as error:
            raise FrameError(f"worker {rank}: {error}") from error
        except Failure as error:
            raise Failure(f"step {self.parameters.steps + 1}: worker {rank}: {error}") from error
        if rank in self._behind and step != JOINING:
            answers: Answers = [None] * self.workers
            answers[rank] = self._leave_out(rank, exchange)
            return answers
        self._held[rank], self._last = exchange, rank
        return self._meet()

    def notice(self, rank: int, kind: Kind, body: Body) -> Answers:
        """Take a notice of another owner; the replies by rank if it was what a step waits for."""
        if kind is Kind.PARTICIPANTS:
            return self._take_participants(rank, body)
        if rank in self._of_others or not self.clip_norm:
            raise FrameError(f"owner {rank} sent squares that were not expected")
        self._of_others[rank] = body
        return self._complete()

    def take_notices(self) -> list[Notice]:
        """What is to be sent to all other owners."""
        notices, self._notices = self._notices, []
        return notices

    def read(self, rank: int, body: Body) -> bytearray:
        """Answer a read. Refused while a step is open, since the rows would be of no one step."""
        if self.is_open:
            raise FrameError(f"worker {rank} reads during step {self.parameters.steps + 1}")
        return answer_read(self.shape, rank, body, self.parameters.read)

    @property
    def _next_step(self) -> int:
        return self.parameters.steps + 1 + self.is_open

    def _pulled_by(self, rank: int) -> Sizes:
        exchange = self._pulled.get(rank)
        return no_batch(self.shape) if exchange is None else sizes_of(exchange)

    def _check(self, rank: int, exchange: Exchange, step: int) -> None:
        if exchange.step != step:
            raise FrameError(f"an exchange of step {exchange.step}, the next is {step}")
        if exchange.pause and rank != 0:
            raise FrameError("an exchange pauses the training, which rank 0 decides")
        if exchange.pause and exchange.rows:
            raise FrameError(f"an exchange pauses and pulls {exchange.rows:,} rows")
        if exchange.drain:
            raise FrameError("an exchange drains the training, which is for cluster.mode=async")

    # ---- Who takes part --------------------------------------------------------

    def _take_participants(self, rank: int, body: Body) -> Answers:
        step, ranks = parse_participants(body, self.workers, self.workers - self.backup)
        if rank != 0 or not self.backup or self._named is not None or step != self._next_step:
            raise FrameError(f"owner {rank} names workers of step {step}: not expected")
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

    def _leave_out(self, rank: int, exchange: Exchange) -> bytearray:
        """Drop the exchange of a step that began without it; its answer."""
        self._behind[rank] = JOINING, no_batch(self.shape)
        self._late_work[rank] = self._with_late_work(rank, exchange.work)
        owned = self.parameters.owned()
        return new_reply(self.shape, sizes_of(exchange), owned, left_out=True)[0]

    def _with_late_work(self, rank: int, work: Work) -> Work:
        late = self._late_work.pop(rank, None)
        return work if late is None else work + late

    def _take(self, ranks: frozenset[int]) -> tuple[list[Exchange], Answers]:
        """The exchanges of a step by rank, empty ones of workers left out, and answers to these."""
        nothing = no_batch(self.shape)
        exchanges: list[Exchange] = []
        answers: Answers = [None] * self.workers
        for rank in range(self.workers):
            if rank in ranks:
                exchanges.append(self._held.pop(rank))
                self._behind.pop(rank, None)
                continue
            exchanges.append(new_exchange(self.shape, self._next_step, nothing, nothing)[1])
            if rank not in self._behind:
                self._behind[rank] = self._next_step, self._pulled_by(rank)
                if rank in self._held:
                    answers[rank] = self._leave_out(rank, self._held.pop(rank))
        self._named = None
        self._owed = frozenset(
            rank
            for rank in ranks
            if exchanges[rank].step == JOINING and exchanges[rank].rows and not exchanges[0].pause
        )
        return exchanges, answers

    # ---- A step ----------------------------------------------------------------

    def _meet(self) -> Answers:
        """If all are there that a step waits for, begin it, now or with the squares of owners."""
        if self._meeting is not None or (ranks := self._participants()) is None:
            return []
        if self.backup and self.rank == 0:
            named = new_participants(self._next_step, ranks)
            self._notices.append(Notice(Kind.PARTICIPANTS, named))
        exchanges, left_out = self._take(ranks)
        self.work = [
            self._with_late_work(rank, exchange.work) for rank, exchange in enumerate(exchanges)
        ]
        self.waited_for, self._last_of_step = self._last_of_step, self._last
        self._meeting = exchanges
        self._absent = frozenset(range(self.workers)) - ranks
        if self.is_open:
            pulled = [self._pulled[rank].keys for rank in range(self.workers)]
            pushes = [exchange.push for exchange in exchanges]
            if not self.clip_norm:
                self.parameters.push(pulled, pushes, exchanges[0].rate_factor)
                self._pulled.clear()
            else:
                self.parameters.reduce(pulled, pushes, exchanges[0].rate_factor)
                self._squares = list(self.parameters.squares())
                body = new_squares(self.parameters.steps + 1, self._squares)
                self._notices.append(Notice(Kind.SQUARES, body))
        answers = self._complete() or [None] * self.workers
        return [answer or late for answer, late in zip(answers, left_out, strict=True)]

    def _complete(self) -> Answers:
        """Clip and apply what waits for squares, if all are there, and answer all exchanges."""
        if self._meeting is None:
            return []
        if self.is_open:
            if len(self._of_others) < (self.owners or self.workers) - 1:
                return []
            self.parameters.apply([exchange.push for exchange in self._meeting], self._scale())
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
            except FrameError as error:
                raise FrameError(f"owner {owner}: {error}") from error
        *of_tables, of_dense = [part.total() for part in squares]
        return clipping_factor(self.clip_norm, of_tables, of_dense)

    def _answers(self, exchanges: list[Exchange]) -> Answers:
        """Pull the keys of a step, and answer the exchanges."""
        lead = exchanges[0]
        rows = 0 if lead.pause else sum(exchange.rows for exchange in exchanges)
        any_next = any(exchange.has_next for exchange in exchanges) or bool(self._absent)
        any_next = any_next and not lead.pause
        answers: Answers = []
        replies = []
        owned = self.parameters.owned()
        for exchange in exchanges:
            answer, reply = new_reply(
                self.shape, sizes_of(exchange), owned, step=self.parameters.steps + 1, rows=rows,
                paused=lead.pause, any_next=any_next, totals=self.totals(),
            )  # fmt: skip
            answers.append(answer)
            replies.append(reply)
        if rows:
            self.parameters.pull([exchange.keys for exchange in exchanges], replies)
            self._pulled = dict(enumerate(exchanges))
        return [None if rank in self._absent else answer for rank, answer in enumerate(answers)]
