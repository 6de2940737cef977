"""A worker process among the others: what they request of it, and what it requests of them.

Each request is a call that runs once (transport/once.py). Exchanges, reads and notices are run by
the thread that brings them, one at a time, since only one may touch the tables that this process
owns; whoever waits for a reply waits for a future. The main thread trains, and runs the commands of
rank 0. It also runs its own exchanges, unless rows are read ahead: then a thread does beside it.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

from tnctl.cluster.joining.members import Problem, problem_of
from tnctl.cluster.joining.membership import Membership
from tnctl.cluster.messages import commands
from tnctl.cluster.messages.commands import Given, Method, Respond
from tnctl.cluster.owners.owner import Owner
from tnctl.cluster.transport.kinds import BODY_LIMITS, NOTICES, Body, Kind
from tnctl.cluster.transport.once import Answers, Calls, Envelope, Reply
from tnctl.cluster.worker_errors import is_unexpected, of_worker, show_traceback
from tnctl.errors import Failure, UserError

# Bytes there and back, below which an exchange shows the network's delay, not its speed.
LEAST_TIMED = 1 << 16
SECONDS_BETWEEN_LOOKS = 0.5  # whether this process has failed, while an earlier call is missing
Call = Callable[[int, Envelope, Body], "Future[Reply]"]
Caller = tuple[int, "Future[Body]"]  # who waits for a reply, and the reply to come


class Node:
    """The requests of one worker to the others and to itself, and theirs to it.

    `call` makes a numbered call to another process, and `fail_others` ends all of them. `servers`
    are dedicated servers, which have the ranks behind the workers. `owner_seconds` (of answering
    exchanges), `sent_bytes`, `received_bytes` and `network_seconds` (in which an exchange and its
    reply were on the way between machines, the mean over the others) are sums, which other threads
    may read. `commands` receives each command of rank 0 with what takes its reply, and None when
    this worker has failed.
    """

    def __init__(
        self,
        rank: int,
        workers: int,
        generation: int,
        call: Call,
        fail_others: Callable[[Problem], None],
        servers: int = 0,
    ) -> None:
        self.rank, self.workers, self.generation = rank, workers, generation
        self.servers, self.membership = servers, Membership(workers, servers)
        self.on_machine = workers
        """how many of the workers are on this machine"""
        self.commands: SimpleQueue[Any] = SimpleQueue()
        self._routes: dict[str, Callable[[Body, Respond], None]] = {}
        self._call, self._fail_others = call, fail_others
        self.owner_seconds = self.network_seconds = 0.0
        self.sent_bytes = self.received_bytes = 0
        others = [peer for peer in range(self.membership.size) if peer != rank]
        self._lock = threading.Lock()  # of what follows
        self._calls = {peer: Calls(generation, rank) for peer in others}
        self._unanswered: set[Future[Body]] = set()
        self._exchange_with: set[int] = set()
        self._error: UserError | None = None
        # By peer: the calls that it made, which are run in their order.
        self._answers = {peer: Answers() for peer in others}
        self._turns = {peer: threading.Condition() for peer in others}
        self._owning = threading.RLock()  # of what follows
        self._owner: Owner[Caller] | None = None
        self._early: list[tuple[int, Kind, Body, Future[Body]]] = []  # before the owner is there
        self._beside: ThreadPoolExecutor | None = None  # runs this worker's own exchanges

    # ---- Requests of this process --------------------------------------------------

    def request(self, rank: int, kind: Kind, body: Body) -> "Future[Body]":
        """Send a request to a worker; the reply is the result of the future, or its exception.

        The body must not be changed until then. Raises Failure for one that is too large.
        """
        if rank != self.rank:
            self._check_size(kind, body)
        future: Future[Body] = Future()
        with self._lock:
            if self._error is not None:
                future.set_exception(self._error)
                return future
            if rank != self.rank:
                envelope = self._calls[rank].envelope(kind)
                self.sent_bytes += len(body)
            self._unanswered.add(future)
        if rank != self.rank:
            sent = time.perf_counter()
            self._call(rank, envelope, body).add_done_callback(
                lambda reply: self._take(rank, envelope, len(body), sent, reply, future)
            )
        elif self._beside is None:
            self._start(rank, kind, body, future)
        else:
            self._beside.submit(self._start, rank, kind, body, future)
        return future

    def _take(
        self, rank: int, envelope: Envelope, sent_bytes: int, sent: float,
        reply: "Future[Reply]", future: "Future[Body]",
    ) -> None:  # fmt: skip
        """Take the reply to a request."""
        seconds = time.perf_counter() - sent
        if (error := reply.exception()) is not None:
            self._fail(Failure(f"{self.membership.name(rank)} refuses a message: {error}"))
            return
        received = reply.result()
        with self._lock:
            self._calls[rank].answered(envelope.number)
            self.received_bytes += len(received.body)
            if envelope.kind is Kind.EXCHANGE and self.on_machine <= len(self._calls):
                self._exchange_with.add(rank)
                if sent_bytes + len(received.body) >= LEAST_TIMED:
                    on_the_way = max(seconds - received.held, 0.0)
                    self.network_seconds += on_the_way / len(self._exchange_with)
        self._settle(future, received.body)

    def _settle(self, future: "Future[Body]", reply: Body) -> None:
        with self._lock:
            self._unanswered.discard(future)
        with contextlib.suppress(InvalidStateError):  # this worker has failed meanwhile
            future.set_result(reply)

    def command(
        self, rank: int, method: Method[Given, Any], *args: Given.args, **kwargs: Given.kwargs
    ) -> "Future[Body]":
        """Send a command to another process; the reply is for `commands.result`."""
        return self.request(rank, Kind.COMMAND, commands.request(method, *args, **kwargs))

    # ---- Requests of others --------------------------------------------------------

    def serve_owner(self, owner: Owner[Any] | None, *, beside: bool = False) -> None:
        """From now on exchanges and reads are answered by `owner`; without one they wait for it.

        With `beside` a thread runs those of this worker itself while its main thread computes.
        """
        if beside and self._beside is None:
            self._beside = ThreadPoolExecutor(1, "tnctl-owner")
        with self._owning:
            self._owner = owner
            early, self._early = (self._early, []) if owner is not None else ([], self._early)
            for request in early:  # before later ones of the same worker
                self._start(*request)

    def route(self, method: Method[..., Any], to: Callable[[Body, Respond], None]) -> None:
        """Give requests for a command, with what takes the replies, to `to` instead of `commands`.

        It is called by the thread that brings the request.
        """
        self._routes[method.__name__] = to

    def answer(self, peer: int, envelope: Envelope, body: Body) -> "Future[Body]":
        """Run a call of another process, unless it is a call that was run before; its reply.

        Waits for the calls that the process has made before.
        """
        answers, turn = self._answers[peer], self._turns[peer]
        with turn:
            while self._error is None and answers.is_early(envelope):
                turn.wait(SECONDS_BETWEEN_LOOKS)
            if self._error is not None:
                return Future()  # nobody waits for it any more
            reply, is_new = answers.admit(envelope)
            if is_new:
                with self._lock:
                    self.received_bytes += len(body)
                self._start(peer, envelope.kind, body, reply)
                turn.notify_all()
        return reply

    def _start(self, peer: int, kind: Kind, body: Body, reply: "Future[Body]") -> None:
        """Run a request, which may be answered later."""
        try:
            if kind is Kind.COMMAND:
                take = self._routes.get(commands.name_of(body), self._queue)
                take(body, lambda answer: self._reply(peer, reply, answer))
            else:
                self._own(peer, kind, body, reply)
        except UserError as error:
            self._fail(error)  # it names the worker whose request it was
        except Exception as error:
            if is_unexpected(error):
                show_traceback(error)
            self.fail(error)

    def _queue(self, body: Body, respond: Respond) -> None:
        self.commands.put((body, respond))

    def _own(self, peer: int, kind: Kind, body: Body, reply: "Future[Body]") -> None:
        """Let the owner take an exchange, a notice or a read, and answer what can be answered."""
        with self._owning:
            if self._owner is None:
                self._early.append((peer, kind, body, reply))
                return
            if kind is Kind.READ:
                answers: Sequence[tuple[Caller, Body]] = [
                    ((peer, reply), self._owner.read(peer, body))
                ]
            else:
                started = time.perf_counter()
                answers = self._exchange(self._owner, kind, body, (peer, reply))
                self.owner_seconds += time.perf_counter() - started
        for caller, content in answers:
            self._reply(*caller, content)

    def _exchange(
        self, owner: Owner[Caller], kind: Kind, body: Body, caller: Caller
    ) -> Sequence[tuple[Caller, Body]]:
        """Give an exchange or a notice to the owner; the replies that can be given now."""
        peer, _ = caller
        if kind in NOTICES:
            answers: list[tuple[Caller, Body]] = [*owner.notice(peer, kind, body), (caller, b"")]
        else:
            answers = [*owner.exchange(peer, body, caller)]
        # Before another thread may have notices of a later step.
        for notice, content in owner.take_notices():
            for other in self.membership.owners:
                if other != self.rank:
                    self.request(other, notice, content)
        return answers

    def _reply(self, peer: int, reply: "Future[Body]", content: Body) -> None:
        if peer != self.rank:
            self._check_size(Kind.REPLY, content)
            with self._lock:
                self.sent_bytes += len(content)
        self._settle(reply, content)

    def _check_size(self, kind: Kind, body: Body) -> None:
        if len(body) > BODY_LIMITS[kind]:
            raise Failure(
                f"{self.membership.name(self.rank)}: a message to another worker "
                f"({kind.name.lower()}) has {len(body):,} bytes, and the limit is "
                f"{BODY_LIMITS[kind]:,}. Use more workers (cluster.workers) or a smaller "
                "train.batch_size"
            )

    def totals(self) -> tuple[float, float, float]:
        """Seconds of answering exchanges, and bytes sent and received, since the start."""
        return self.owner_seconds, float(self.sent_bytes), float(self.received_bytes)

    # ---- Errors --------------------------------------------------------------------

    @property
    def error(self) -> UserError | None:
        """What has ended this worker, or another one."""
        return self._error

    def fail(self, error: BaseException) -> UserError:
        """Report what was raised here to the others, which it ends; what ends this worker.

        It is an error that names the worker, unless another one was reported before.
        """
        failure = self._named(error)
        self._fail(failure)
        return failure

    def _fail(self, error: UserError) -> None:
        if self._error is None:
            self._fail_others(problem_of(error))
        self.end(error)

    def end(self, error: UserError) -> None:
        """From now on nothing is requested any more, and whoever waits gets the error."""
        with self._lock:
            if self._error is not None:
                return
            self._error = error
            waiting, self._unanswered = self._unanswered, set()
        for future in waiting:
            with contextlib.suppress(InvalidStateError):
                future.set_exception(error)
        self.commands.put(None)

    @contextmanager
    def named(self) -> Iterator[None]:
        """A UserError that the block raises names this worker, unless it is of another one."""
        try:
            yield
        except UserError as error:
            raise self._named(error) from error.__cause__

    def _named(self, error: BaseException) -> UserError:
        if isinstance(error, UserError) and error is self._error:
            return error
        return of_worker(self.rank, error, self.membership)

    def end_with_others(self) -> None:
        """Raise what has ended another worker, after which nothing that this one does counts."""
        if self._error is not None:
            raise self._error
