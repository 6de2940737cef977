"""A worker process among the others: what they request of it, and what it requests of them.

One thread runs the protocol: it takes frames and requests from a queue, one at a time, and is the
only one that touches the sessions and the tables that this worker owns. The main thread trains; it
waits for replies as the results of futures, and runs the commands of rank 0.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

from tnctl.cluster.joining.members import parse_problem, problem_of, to_body
from tnctl.cluster.joining.membership import Membership
from tnctl.cluster.messages import commands
from tnctl.cluster.messages.commands import Given, Method, Respond
from tnctl.cluster.owners.async_owner import AsyncOwner
from tnctl.cluster.owners.owner import Owner
from tnctl.cluster.transport.frames import (
    BODY_LIMITS,
    HEADER_BYTES,
    MOST_HELD,
    NOTICES,
    REQUESTS,
    Body,
    Frame,
    Kind,
)
from tnctl.cluster.transport.session import Client, Request, Server
from tnctl.cluster.worker_errors import is_unexpected, of_worker, show_traceback
from tnctl.errors import Failure, UserError

# Bytes there and back, below which an exchange shows the network's delay, not its speed.
LEAST_TIMED = 1 << 16
Send = Callable[[int, Frame], None]
AnyOwner = Owner | AsyncOwner[Respond]


class Node:
    """The requests of one worker to the others and to itself, and theirs to it.

    `send` takes a frame for another worker, and may wait until there is room for it; `is_sending`
    says whether frames for a worker wait. `servers` are dedicated servers, which have the ranks
    behind the workers. `owner_seconds` (of answering exchanges), `sent_bytes`,
    `received_bytes` and `network_seconds` (in which an exchange and its reply were on the way
    between machines, the mean over the others) are sums, which other threads may read. `commands`
    receives each command of rank 0 with what takes its reply, and None when this worker has failed.
    """

    def __init__(
        self,
        rank: int,
        workers: int,
        generation: int,
        send: Send,
        is_sending: Callable[[int], bool] = lambda _: False,
        servers: int = 0,
    ) -> None:
        self.rank, self.workers, self.generation = rank, workers, generation
        self.servers, self.membership = servers, Membership(workers, servers)
        self.on_machine = workers
        """how many of the workers are on this machine"""
        self.commands: SimpleQueue[Any] = SimpleQueue()
        self._routes: dict[str, Callable[[Body, Respond], None]] = {}
        self._transmit, self._is_sending = send, is_sending
        self.owner_seconds = self.network_seconds = 0.0
        self.sent_bytes = self.received_bytes = 0
        self._owner: AnyOwner | None = None
        others = [peer for peer in range(self.membership.size) if peer != rank]
        self._clients = {peer: Client(generation, rank) for peer in others}
        self._servers = {peer: Server(generation, rank) for peer in others}
        self._heartbeats = {peer: client.heartbeat() for peer, client in self._clients.items()}
        self._futures: dict[tuple[int, int], Future[Body]] = {}
        self._local: set[Future[Body]] = set()
        self._exchanged_at: dict[tuple[int, int], tuple[float, int]] = {}  # and its bytes
        self._exchange_with: set[int] = set()
        self._exchanging: dict[int, Respond] = {}  # what takes the reply of each worker's exchange
        self._early: list[tuple[int, Request, Respond]] = []  # before the owner is there
        self._error: UserError | None = None
        self._inbox: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="tnctl-node", daemon=True)
        self._thread.start()

    # ---- Called by any thread ------------------------------------------------------

    def serve_owner(self, owner: AnyOwner | None) -> None:
        """From now on exchanges and reads are answered by `owner`; without one they wait for it."""
        self._inbox.put(lambda: self._start_owning(owner))

    def route(self, method: Method[..., Any], to: Callable[[Body, Respond], None]) -> None:
        """Give requests for a command, with what takes the replies, to `to` instead of `commands`.

        It is called in the thread of the protocol.
        """
        self._routes[method.__name__] = to

    def request(self, rank: int, kind: Kind, body: Body) -> "Future[Body]":
        """Send a request to a worker; the reply is the result of the future, or its exception.

        Raises Failure for a body that is larger than a frame may be.
        """
        if rank != self.rank:
            self._check_size(kind, body)
        future: Future[Body] = Future()
        self._inbox.put(lambda: self._request(rank, kind, body, future))
        return future

    def command(
        self, rank: int, method: Method[Given, Any], *args: Given.args, **kwargs: Given.kwargs
    ) -> "Future[Body]":
        """Send a command to another process; the reply is for `commands.result`."""
        return self.request(rank, Kind.COMMAND, commands.request(method, *args, **kwargs))

    def totals(self) -> tuple[float, float, float]:
        """Seconds of answering exchanges, and bytes sent and received, since the start."""
        return self.owner_seconds, float(self.sent_bytes), float(self.received_bytes)

    def receive(self, frame: Frame) -> None:
        """Take a frame that another worker of this generation has sent."""
        arrived = time.perf_counter()
        self._inbox.put(lambda: self._receive(frame, arrived))

    def connected(self, peer: int) -> None:
        """A connection to a worker is made, or made again."""
        self._inbox.put(lambda: self._connected(peer))

    def fail(self, error: BaseException) -> UserError:
        """Report what was raised here to the others, which it ends; what ends this worker.

        It is an error that names the worker, unless another one was reported before.
        """
        failure = self._named(error)
        self._inbox.put(lambda: self._fail(failure))
        return failure

    @contextmanager
    def named(self) -> Iterator[None]:
        """A UserError that the block raises names this worker, unless it is of another one."""
        try:
            yield
        except UserError as error:
            raise self._named(error) from error.__cause__

    def end_with_others(self) -> None:
        """Raise what has ended another worker, after which nothing that this one does counts."""
        if self.error is not None:
            raise self.error

    def close(self, seconds: float | None = None) -> None:
        """End the thread after what is in its queue; wait for that, so long at most."""
        self._inbox.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join(seconds)

    def heartbeats(self) -> dict[int, Frame]:
        """A heartbeat for each of the other workers."""
        return dict(self._heartbeats)

    # ---- In the thread of the protocol -----------------------------------------------

    def _run(self) -> None:
        while (action := self._inbox.get()) is not None:
            try:
                action()
            except UserError as error:
                self._fail(error)
            except Exception as error:
                if is_unexpected(error):
                    show_traceback(error)
                self._fail(of_worker(self.rank, error, self.membership))

    def _named(self, error: BaseException) -> UserError:
        if isinstance(error, UserError) and error is self._error:
            return error
        return of_worker(self.rank, error, self.membership)

    def _start_owning(self, owner: AnyOwner | None) -> None:
        self._owner = owner
        if self._error is not None:
            return
        early, self._early = ([], self._early) if owner is None else (self._early, [])
        for peer, request, respond in early:
            self._answer(peer, request, respond)

    def _request(self, rank: int, kind: Kind, body: Body, future: "Future[Body]") -> None:
        if self._error is not None:
            future.set_exception(self._error)
        elif rank == self.rank:
            self._local.add(future)

            def respond(reply: Body) -> None:
                self._local.discard(future)
                future.set_result(reply)

            self._answer(rank, Request(0, kind, body), respond)
        else:
            frame = self._clients[rank].request(kind, body)
            self._futures[rank, frame.number] = future
            self._heartbeats[rank] = self._clients[rank].heartbeat()
            if kind is Kind.EXCHANGE:
                self._exchanged_at[rank, frame.number] = time.perf_counter(), len(body)
            self._send(rank, frame)

    def _send(self, peer: int, frame: Frame) -> None:
        self.sent_bytes += HEADER_BYTES + len(frame.body)
        self._transmit(peer, frame)

    def _receive(self, frame: Frame, arrived: float) -> None:
        peer = frame.sender
        self.received_bytes += HEADER_BYTES + len(frame.body)
        if self._error is not None:
            return  # nobody waits for it any more
        if frame.kind in REQUESTS:
            received = self._servers[peer].receive(frame)
            if isinstance(received, Frame):
                self._send(peer, received)
            elif received is not None:
                request = received
                self._answer(
                    peer, request, lambda reply: self._reply(peer, request, reply, arrived)
                )
        elif frame.kind is Kind.REPLY:
            if self._clients[peer].receive(frame):
                self._heartbeats[peer] = self._clients[peer].heartbeat()
                self._add_network_time(frame, arrived)
                self._futures.pop((peer, frame.number)).set_result(frame.body)
        elif frame.kind is Kind.RESEND:
            # A large frame takes longer than heartbeats, by which the peer takes it for lost.
            if not self._is_sending(peer):
                for unanswered in self._clients[peer].unanswered(frame.number):
                    self._send(peer, unanswered)
        elif frame.kind is Kind.HEARTBEAT:
            is_sending = self._is_sending(peer)
            for missed in self._servers[peer].heartbeat(frame, is_sending=is_sending):
                self._send(peer, missed)
        elif frame.kind is Kind.FATAL:
            self._end(parse_problem(frame.body).error())

    def _add_network_time(self, reply: Frame, arrived: float) -> None:
        """Take in how long an exchange and its reply were on the way: not held by the owner."""
        exchange = self._exchanged_at.pop((reply.sender, reply.number), None)
        if exchange is None or self.on_machine > len(self._clients):
            return
        sent, sent_bytes = exchange
        self._exchange_with.add(reply.sender)
        if sent_bytes + len(reply.body) >= LEAST_TIMED:
            seconds = max(arrived - sent - reply.held / 1e6, 0.0)
            self.network_seconds += seconds / len(self._exchange_with)

    def _connected(self, peer: int) -> None:
        for unanswered in self._clients[peer].unanswered():
            self._send(peer, unanswered)

    def _answer(self, peer: int, request: Request, respond: Respond) -> None:
        if request.kind is Kind.COMMAND:
            take = self._routes.get(commands.name_of(request.body))
            if take is None:
                self.commands.put((request.body, respond))
            else:
                take(request.body, respond)
        elif self._owner is None:
            self._early.append((peer, request, respond))
        elif request.kind is Kind.READ:
            respond(self._owner.read(peer, request.body))
        else:
            started = time.perf_counter()
            answers = self._exchange(self._owner, peer, request, respond)
            self.owner_seconds += time.perf_counter() - started
            for respond_to, reply in answers:
                respond_to(reply)

    def _exchange(
        self, owner: AnyOwner, peer: int, request: Request, respond: Respond
    ) -> Sequence[tuple[Respond, Body]]:
        """Give an exchange to the owner; what takes each reply that can be given now, and it."""
        if isinstance(owner, AsyncOwner):
            return owner.exchange(peer, request.body, respond)
        if request.kind in NOTICES:
            replies = owner.notice(peer, request.kind, request.body)
            respond(b"")
        else:
            self._exchanging[peer] = respond
            replies = owner.exchange(peer, request.body)
        for notice in owner.take_notices():
            for other in self.membership.owners:
                if other != self.rank:
                    self._request(other, notice.kind, notice.body, Future())
        return [
            (self._exchanging.pop(rank), reply)
            for rank, reply in enumerate(replies)
            if reply is not None
        ]

    def _reply(self, peer: int, request: Request, reply: Body, arrived: float) -> None:
        # Replies of commands come from the main thread.
        if threading.current_thread() is self._thread:
            self._check_size(Kind.REPLY, reply)
            held = min(round((time.perf_counter() - arrived) * 1e6), MOST_HELD)
            self._send(peer, self._servers[peer].reply(request.number, reply, held))
        else:
            self._inbox.put(lambda: self._reply(peer, request, reply, arrived))

    def _check_size(self, kind: Kind, body: Body) -> None:
        if len(body) > BODY_LIMITS[kind]:
            raise Failure(
                f"{self.membership.name(self.rank)}: a message to another worker "
                f"({kind.name.lower()}) has {len(body):,} bytes, and the limit is "
                f"{BODY_LIMITS[kind]:,}. Use more workers (cluster.workers) or a smaller "
                "train.batch_size"
            )

    def _fail(self, error: UserError) -> None:
        if self._error is None:
            body = to_body(problem_of(error))
            for peer in self._clients:
                self._send(peer, Frame(Kind.FATAL, self.generation, self.rank, body=body))
        self._end(error)

    def _end(self, error: UserError) -> None:
        """From now on nothing is requested any more, and whoever waits gets the error."""
        if self._error is not None:
            return
        self._error = error
        for future in [*self._futures.values(), *self._local]:
            future.set_exception(error)
        self._futures.clear()
        self._local.clear()
        self.commands.put(None)

    @property
    def error(self) -> UserError | None:
        """What has ended this worker, or another one."""
        return self._error
