"""The barrier of an owner in synchronous training: a step begins when all workers are there.

An owner holds exchange k until that of every worker is there. Then it applies the pushes of step
k-1 in rank order, at once, and pulls the keys of step k in rank order. When rank 0 pauses, it
applies and pulls nothing: from then on no rows are on their way to be changed, so it can be read,
evicted and saved. The sessions below make sure that no exchange arrives twice.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tnctl.cluster.exchange import (
    Exchange,
    Keys,
    Push,
    Shape,
    Sizes,
    check_finite,
    no_batch,
    parse_exchange,
    sizes_of,
)
from tnctl.cluster.frames import Body, FrameError
from tnctl.cluster.replies import (
    Owned,
    Read,
    ReadReply,
    Reply,
    new_read_reply,
    new_reply,
    parse_read,
)
from tnctl.cluster.work import Work, check_work
from tnctl.errors import Failure


class OwnedParameters(Protocol):
    """The parameters that an owner owns: parts of tables, and a slice of the dense weights."""

    steps: int
    """the steps applied so far"""

    def push(self, pulled: Sequence[Sequence[Keys]], pushes: Sequence[Push], rate: float) -> None:
        """Apply a step: the pushes of all workers in rank order, reduced by their rows.

        `pulled` are the keys that each push is of, in its order. Afterwards `steps` is one more,
        and rows that are due are evicted. Raises Failure before anything is changed.
        """

    def pull(self, keys: Sequence[Sequence[Keys]], replies: Sequence[Reply]) -> None:
        """Find the keys of all workers in rank order, inserting, and fill the replies of each."""

    def read(self, read: Read, reply: ReadReply) -> None:
        """Fill the reply with rows as they are; those of keys without a row are zeros."""

    def owned(self) -> Sequence[Owned]:
        """How many rows and bytes this part of each table has."""


@dataclass
class Owner:
    """The exchanges and reads of one owner, of `workers` workers.

    A request that does not fit raises FrameError, a gradient that cannot be applied Failure; both
    name the worker. Neither changes anything, and the training cannot be continued.
    """

    shape: Shape
    workers: int
    parameters: OwnedParameters
    work: list[Work] = field(default_factory=list)
    """what each worker did before the exchanges that were answered last, of owner 0"""
    _held: dict[int, Exchange] = field(default_factory=dict)
    """the exchanges of the next step, by rank"""
    _pulled: dict[int, Exchange] = field(default_factory=dict)
    """those whose keys are pulled and not pushed"""

    @property
    def is_open(self) -> bool:
        """Whether rows were pulled whose gradients have not arrived."""
        return bool(self._pulled)

    def exchange(self, rank: int, body: Body) -> list[bytearray]:
        """Take the exchange of a worker; the replies to all, in rank order, once all are there."""
        if rank in self._held:
            raise FrameError(f"worker {rank} sent two exchanges of step {self._next_step}")
        try:
            exchange = parse_exchange(self.shape, self._pulled_by(rank), body)
            self._check(rank, exchange)
            check_work(exchange.work)
            check_finite(exchange.push, self.workers)
        except FrameError as error:
            raise FrameError(f"worker {rank}: {error}") from error
        except Failure as error:
            raise Failure(f"step {self.parameters.steps + 1}: worker {rank}: {error}") from error
        self._held[rank] = exchange
        return self._meet() if len(self._held) == self.workers else []

    def read(self, rank: int, body: Body) -> bytearray:
        """Answer a read. Refused while a step is open, since the rows would be of no one step."""
        if self.is_open:
            raise FrameError(f"worker {rank} reads during step {self.parameters.steps + 1}")
        try:
            read = parse_read(self.shape, body)
        except FrameError as error:
            raise FrameError(f"worker {rank}: {error}") from error
        sizes = [len(keys.ids) for keys in read.keys]
        answer, reply = new_read_reply(self.shape, sizes, dense=read.dense)
        self.parameters.read(read, reply)
        return answer

    @property
    def _next_step(self) -> int:
        return self.parameters.steps + 1 + self.is_open

    def _pulled_by(self, rank: int) -> Sizes:
        exchange = self._pulled.get(rank)
        return no_batch(self.shape) if exchange is None else sizes_of(exchange)

    def _check(self, rank: int, exchange: Exchange) -> None:
        if exchange.step != self._next_step:
            raise FrameError(f"an exchange of step {exchange.step}, the next is {self._next_step}")
        if exchange.pause and rank != 0:
            raise FrameError("an exchange pauses the training, which rank 0 decides")
        if exchange.pause and exchange.rows:
            raise FrameError(f"an exchange pauses and pulls {exchange.rows:,} rows")

    def _meet(self) -> list[bytearray]:
        exchanges = [self._held[rank] for rank in range(self.workers)]
        self._held.clear()
        lead = exchanges[0]
        self.work = [exchange.work for exchange in exchanges]
        if self.is_open:
            pulled = [self._pulled[rank].keys for rank in range(self.workers)]
            pushes = [exchange.push for exchange in exchanges]
            self.parameters.push(pulled, pushes, lead.rate_factor)
            self._pulled.clear()
        rows = 0 if lead.pause else sum(exchange.rows for exchange in exchanges)
        any_next = not lead.pause and any(exchange.has_next for exchange in exchanges)
        answers = []
        replies = []
        owned = self.parameters.owned()
        for exchange in exchanges:
            answer, reply = new_reply(
                self.shape, sizes_of(exchange), owned, rows=rows, paused=lead.pause,
                any_next=any_next,
            )  # fmt: skip
            answers.append(answer)
            replies.append(reply)
        if rows:
            self.parameters.pull([exchange.keys for exchange in exchanges], replies)
            self._pulled = dict(enumerate(exchanges))
        return answers
