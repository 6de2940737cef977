"""What answers the exchanges of workers for the rows and dense weights of one owner.

An exchange brings the gradients of a batch that was pulled before (its push), and the keys of the
next batch (its pull). A policy says when it is answered, and with what: `Barrier` in synchronous
training, `Arrivals` in asynchronous. Neither has a thread, a socket or a clock.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from tnctl.cluster.messages.exchange import (
    Exchange,
    Keys,
    Owned,
    Read,
    ReadReply,
    Reply,
    Shape,
    Totals,
    check_finite,
    new_read_reply,
    new_reply,
    no_totals,
    parse_read,
    sizes_of,
)
from tnctl.cluster.messages.work import check_work
from tnctl.cluster.transport.kinds import Body, Kind, MessageError
from tnctl.errors import Failure

Handle = TypeVar("Handle")
Answers = list[tuple[Handle, bytearray]]
"""replies that can be given now, each with the handle of its request"""


class Parameters(Protocol):
    """The parameters that an owner owns: parts of tables, and a slice of the dense weights."""

    steps: int
    """the steps that are complete"""

    def pull(self, keys: Sequence[Sequence[Keys]], replies: Sequence[Reply]) -> None:
        """Find the keys of some workers in rank order, inserting, and fill the replies of each."""

    def read(self, read: Read, reply: ReadReply) -> None:
        """Fill the reply with rows as they are; those of keys without a row are zeros."""

    def owned(self) -> Sequence[Owned]:
        """How many rows and bytes this part of each table has."""


@dataclass
class Owner(ABC, Generic[Handle]):
    """The exchanges and reads of one owner, of `workers` workers.

    A request that does not fit raises MessageError, a gradient that cannot be applied Failure; both
    name the worker. Neither changes anything, and the training cannot be continued.
    """

    shape: Shape
    workers: int
    totals: Totals = field(default=no_totals, kw_only=True)
    _notices: list[tuple[Kind, Body]] = field(default_factory=list, init=False)

    parameters: Parameters

    def exchange(self, rank: int, body: Body, handle: Handle) -> Answers[Handle]:
        """Take the exchange of a worker: the replies that can be given now."""
        try:
            exchange = self._parsed(rank, body)
            if (exchange.pause or exchange.drain) and rank != 0:
                raise MessageError("an exchange pauses the training, which rank 0 decides")
            if exchange.pause and exchange.rows:
                raise MessageError(f"an exchange pauses and pulls {exchange.rows:,} rows")
            self._check(rank, exchange)
            check_work(exchange.work)
            check_finite(exchange.push, self.workers)
        except MessageError as error:
            raise MessageError(f"worker {rank}: {error}") from error
        except Failure as error:
            raise Failure(f"step {self.parameters.steps + 1}: worker {rank}: {error}") from error
        return self._take(rank, exchange, handle)

    def notice(self, rank: int, kind: Kind, body: Body) -> Answers[Handle]:  # noqa: ARG002
        """Take a notice of another owner: the replies that can be given now."""
        raise MessageError(f"owner {rank} sent a notice that was not expected")

    def take_notices(self) -> list[tuple[Kind, Body]]:
        """Requests to all other owners; what answers them is empty."""
        notices, self._notices = self._notices, []
        return notices

    def read(self, rank: int, body: Body) -> bytearray:
        """Answer a read. Refused while workers train, since the rows would be of no one step."""
        if self.is_open:
            raise MessageError(f"worker {rank} reads during step {self.parameters.steps + 1}")
        try:
            read = parse_read(self.shape, body)
        except MessageError as error:
            raise MessageError(f"worker {rank}: {error}") from error
        keys = [len(of_table.ids) for of_table in read.keys]
        answer, reply = new_read_reply(self.shape, keys, dense=read.dense)
        self.parameters.read(read, reply)
        return answer

    @property
    @abstractmethod
    def is_open(self) -> bool:
        """Whether rows were pulled whose gradients may still arrive."""

    @abstractmethod
    def _parsed(self, rank: int, body: Body) -> Exchange:
        """The exchange in a body; it pushes what the worker has pulled. Raises MessageError."""

    @abstractmethod
    def _check(self, rank: int, exchange: Exchange) -> None:
        """Raise MessageError for an exchange that a worker may not send now."""

    @abstractmethod
    def _take(self, rank: int, exchange: Exchange, handle: Handle) -> Answers[Handle]:
        """Take an exchange that was checked."""

    def _reply(
        self, exchange: Exchange, rows: int = 0, *,
        paused: bool = False, any_next: bool = False, left_out: bool = False,
    ) -> tuple[bytearray, Reply]:  # fmt: skip
        """The reply to an exchange in a step of so many rows; what it pulls is yet to be filled."""
        return new_reply(
            self.shape,
            sizes_of(exchange),
            self.parameters.owned(),
            rows=rows,
            step=0 if left_out else self.parameters.steps + 1,
            paused=paused,
            any_next=any_next,
            left_out=left_out,
            totals=no_totals() if left_out else self.totals(),
        )
