"""Unary calls between the processes of a cluster, over one gRPC channel for each ordered pair.

The only file that knows gRPC, which connects, controls the flow, encrypts and pings. A call whose
connection breaks is sent again when there is another one, so it may arrive twice (once.py).

    Here   answered at once with the process that listens: a connection is there
    Join   from another rank to rank 0, held until all have joined: the welcome (members.py)
    Stay   held until the process ends or fails, so that others notice a break within 10 ms
    Call   an exchange, a read, a notice or a command, with its envelope
"""

import contextlib
import hmac
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

from tnctl.cluster import NEEDS_GRPC
from tnctl.cluster.transport.attempts import (
    CLOSED,
    OTHER_RANK,
    OTHER_TOKEN,
    USES_TLS,
    Attempts,
    reason_of,
    speaks_tls,
)
from tnctl.cluster.transport.certificates import Certificates
from tnctl.cluster.transport.kinds import BODY_LIMITS, Body, MessageError
from tnctl.cluster.transport.once import MOST_OPEN, Envelope, Reply
from tnctl.errors import Failure, UserError

# Before gRPC is imported. Its handlers of fork take locks that TensorFlow's threads may need.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
# Names of hosts are resolved as by all other programs of the machine.
os.environ.setdefault("GRPC_DNS_RESOLVER", "native")
try:
    import grpc
except ImportError:
    raise UserError(NEEDS_GRPC) from None

SERVICE = "tnctl.Member"
METHODS = ("Here", "Join", "Stay", "Call")
# In the metadata of a call: what `refusal` checks, the envelope, and of its reply the microseconds
# for which the request was held.
TOKEN, PEER, ENVELOPE, HELD = "tnctl-token", "tnctl-peer", "tnctl-bin", "tnctl-held"
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 0.5  # seconds between attempts to connect
# By these codes a call is refused.
OTHER_TOKEN_CODE, OTHER_RANK_CODE = grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.NOT_FOUND
REFUSED = grpc.StatusCode.FAILED_PRECONDITION
REFUSALS = {OTHER_TOKEN_CODE: OTHER_TOKEN, OTHER_RANK_CODE: OTHER_RANK}
# A connection broke, or strangers call more often than can be refused: a call is made again.
PASSES = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED)
CALLS_PER_PEER = MOST_OPEN + 2  # numbered ones, and those that show whether it lives
STRANGERS = 8  # calls beyond those that may be open at a time
OPTIONS = [
    ("grpc.max_receive_message_length", max(BODY_LIMITS.values())),
    ("grpc.max_send_message_length", max(BODY_LIMITS.values())),
    # Neither pings of PINGS nor those by which gRPC estimates the bandwidth count as an attack.
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1000),  # for which an attempt lasts at least
    ("grpc.max_reconnect_backoff_ms", 200),
]
# Each side pings the other, and ends a connection without an answer: shares of cluster.timeout.
# keepalive_timeout_ms would not do it (grpc/grpc#39239).
PINGS = (("grpc.keepalive_time_ms", 0.1), ("grpc.http2.ping_timeout_ms", 0.3))


class CallRefused(Exception):
    """A process refuses a call; the text says why."""


class Process(Protocol):
    """What answers the calls of other processes. The results of futures are replies.

    All are called by threads of gRPC, and may raise CallRefused and MessageError.
    """

    process: str
    """the number that no other process has"""

    def joined(self, peer: int, body: bytes) -> "Future[Body]":
        """A process joins at rank 0."""

    def stayed(self, process: bytes) -> "Future[Body]":
        """A process wants to know when the one with this number ends, which may be another one."""

    def called(self, peer: int, envelope: Envelope, body: bytes) -> "Future[Body]":
        """A process makes a numbered call, perhaps once more."""

    def on_stranger(self, address: str, reason: str) -> None:
        """A call without the token, or of no peer, was refused."""

    def on_refused(self, peer: int, reason: str) -> None:
        """A call of a peer was refused since it is wrong."""


class Endpoint:
    """The server of one process, and its channels to the others, which are known by their ranks."""

    def __init__(
        self,
        address: str,
        token: str,
        rank: int,
        ranks: int,
        process: Process,
        certificates: Certificates | None = None,
        timeout: float = 5.0,
        *,
        is_reserved: bool = False,
    ) -> None:
        """Listen on `address` (HOST:PORT, of port 0 the system chooses one) and no other.

        With `certificates` connections are encrypted, and both sides show theirs. `timeout` is
        cluster.timeout, in seconds, by which connections are ended whose pings have no answer.
        With `is_reserved` another process of this user has bound it, else none may. Raises Failure
        when the address cannot be listened on.
        """
        self.rank, self._ranks, self._token, self._process = rank, ranks, token, process
        self.attempts = Attempts()
        self._channels: dict[int, Any] = {}
        self._methods: dict[int, dict[str, Any]] = {}
        self._closed = threading.Event()
        self._certificates = certificates
        self.strangers = 0
        """how many calls were refused"""
        pings = [(name, round(share * timeout * 1000)) for name, share in PINGS]
        self._options = [*OPTIONS, *pings, ("grpc.so_reuseport", int(is_reserved))]
        most = CALLS_PER_PEER * ranks + STRANGERS
        # A call that is held keeps a thread, which waits; beyond `most` gRPC itself refuses.
        self._threads = ThreadPoolExecutor(most, "tnctl-calls")
        self._server = grpc.server(
            self._threads,
            options=self._options,
            maximum_concurrent_rpcs=most,
            handlers=(),
            interceptors=(_Door(self),),
        )
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(getattr(self, f"_{name.lower()}"))
            for name in METHODS
        }
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, handlers),)
        )
        try:
            self.port = self._add_port(address)
        except RuntimeError:
            raise Failure(f"cannot listen on {address}: another process may do so") from None
        self._server.start()

    def _add_port(self, address: str) -> int:
        if (shown := self._certificates) is None:
            return int(self._server.add_insecure_port(address))
        credentials = grpc.ssl_server_credentials(
            [(shown.key, shown.certificate)], shown.authority, require_client_auth=True
        )
        return int(self._server.add_secure_port(address, credentials))

    def _channel(self, address: str) -> Any:
        if (shown := self._certificates) is None:
            return grpc.insecure_channel(address, self._options)
        credentials = grpc.ssl_channel_credentials(shown.authority, shown.key, shown.certificate)
        name = [] if shown.name is None else [("grpc.ssl_target_name_override", shown.name)]
        return grpc.secure_channel(address, credentials, self._options + name)

    # ---- Calls to others -------------------------------------------------------

    def connect(self, peer: int, address: str, then: Callable[[str], None]) -> None:
        """Connect to a peer, in as many attempts as it takes; then call `then` with its process."""
        threading.Thread(
            target=self._dial, args=(peer, address, then), name=f"tnctl-peer-{peer}", daemon=True
        ).start()

    def _dial(self, peer: int, address: str, then: Callable[[str], None]) -> None:
        pause = FIRST_PAUSE
        while True:
            # A channel of its own for each attempt, since only its first failure says why.
            channel = self._channels[peer] = self._channel(address)
            if self._closed.is_set():  # `close` may have missed this channel
                channel.close()
                return
            methods = {name: channel.unary_unary(f"/{SERVICE}/{name}") for name in METHODS}
            try:
                reply, call = methods["Here"].with_call(b"", metadata=self._metadata())
                self._check_rank(peer, address, call)
                break
            except (grpc.RpcError, CallRefused, ValueError) as error:  # the last: it is closed
                channel.close()
                self.attempts.failed(peer, self._reason(address, error))
                self._closed.wait(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
        self.attempts.succeeded(peer)
        self._methods[peer] = methods
        then(reply.decode("ascii", "replace"))

    def _check_rank(self, peer: int, address: str, call: Any) -> None:
        metadata = {key: str(value) for key, value in call.initial_metadata() or ()}
        if self._rank_of(metadata) != peer:
            raise CallRefused(f"{address} is not worker {peer}")

    def _reason(self, address: str, error: Exception) -> str:
        """Why a peer did not answer, in words."""
        if not isinstance(error, grpc.RpcError):
            return str(error)
        code, details = error.code(), error.details() or ""
        if code in REFUSALS:
            return REFUSALS[code]
        reason = reason_of(details) or f"it cannot be reached ({code.name})"
        if reason in CLOSED.values() and self._certificates is None and speaks_tls(address):
            return USES_TLS
        return reason

    def call(
        self, peer: int, method: str, body: Body = b"", envelope: bytes = b""
    ) -> "Future[Reply]":
        """Call a method of a peer to which there was a connection; again until it is answered.

        The result is the reply, or the exception CallRefused. The body must not be changed.
        """
        reply: Future[Reply] = Future()
        make = self._methods[peer][method]
        content, metadata = bytes(body), self._metadata(envelope)

        def take(call: Any) -> None:
            code = call.code()
            if code is grpc.StatusCode.OK:
                held = dict(call.trailing_metadata() or ()).get(HELD, "0")
                reply.set_result(Reply(call.result(), int(held) / 1e6))
            elif code in PASSES:
                self._make_later(make, content, metadata, take)
            elif not self._closed.is_set():
                reply.set_exception(CallRefused(call.details() or code.name))

        self._make(make, content, metadata, take)
        return reply

    def _make(self, make: Any, content: bytes, metadata: Any, take: Callable[[Any], None]) -> None:
        """Make a call once, when its channel is connected; `take` gets how it ended."""
        # A closed channel raises: nobody waits for this reply any more.
        with contextlib.suppress(ValueError):
            make.future(content, metadata=metadata, wait_for_ready=True).add_done_callback(take)

    def _make_later(self, *call: Any) -> None:
        """Make a call after a pause, for one that fails at once would fail all the time."""
        if not self._closed.is_set():
            timer = threading.Timer(FIRST_PAUSE, self._make, call)
            timer.daemon = True
            timer.start()

    def watch(
        self,
        peer: int,
        process: str,
        on_lost: Callable[[str], None],
        on_connected: Callable[[str], None],
        on_end: Callable[[bytes], None],
    ) -> None:
        """Notice when the connection to a process breaks, is there again, and when it ends.

        `on_connected` gets the process that answers, `on_end` what the process says at its end.
        """
        look, stay = self._methods[peer]["Here"], self._methods[peer]["Stay"]
        given = process.encode(), self._metadata()

        def ended(call: Any) -> None:
            if self._closed.is_set():
                return
            if call.code() is grpc.StatusCode.OK:
                on_end(call.result())
                return
            on_lost(reason_of(call.details() or "") or f"its call ended ({call.code().name})")
            self._make_later(look, *given, answered)

        def answered(call: Any) -> None:
            if self._closed.is_set():
                return
            if call.code() is grpc.StatusCode.OK:
                on_connected(call.result().decode("ascii", "replace"))
                self._make(stay, *given, ended)
            else:
                self._make_later(look, *given, answered)

        self._make(stay, *given, ended)

    def close(self) -> None:
        """End all calls; the replies of this process's own are dropped."""
        self._closed.set()
        for channel in list(self._channels.values()):
            channel.close()
        self._server.stop(grace=None).wait()
        self._threads.shutdown(wait=False)

    def _metadata(self, envelope: bytes = b"") -> list[tuple[str, Any]]:
        return [(TOKEN, self._token), (PEER, str(self.rank)), (ENVELOPE, envelope)]

    # ---- Calls of others -------------------------------------------------------

    def refusal(self, metadata: dict[str, str]) -> tuple[str, Any] | None:
        """Why a call is refused before anything of its body is received; None if it is not."""
        if not hmac.compare_digest(metadata.get(TOKEN, "").encode(), self._token.encode()):
            return "they do not have the token of this run", OTHER_TOKEN_CODE
        if self._rank_of(metadata) is None:
            return "they are of no worker of this run", OTHER_RANK_CODE
        return None

    def refuse(self, address: str, reason: str) -> None:
        """Count a refused call, and report it."""
        self.strangers += 1
        self._process.on_stranger(address, reason)

    def _rank_of(self, metadata: dict[str, str]) -> int | None:
        """The rank that a peer says it has; None for no rank of this run, and for this process."""
        text = metadata.get(PEER, "")
        rank = int(text) if text.isascii() and text.isdigit() and len(text) < 5 else -1
        return rank if 0 <= rank < self._ranks and rank != self.rank else None

    def _here(self, _: bytes, context: Any) -> bytes:
        context.send_initial_metadata(((PEER, str(self.rank)),))
        return self._process.process.encode()

    def _join(self, body: bytes, context: Any) -> bytes:
        return self._reply(context, lambda peer, _: self._process.joined(peer, body))

    def _stay(self, body: bytes, context: Any) -> bytes:
        return self._reply(context, lambda *_: self._process.stayed(body))

    def _call(self, body: bytes, context: Any) -> bytes:
        return self._reply(
            context, lambda peer, content: self._process.called(peer, Envelope.parse(content), body)
        )

    def _reply(self, context: Any, answer: "Callable[[int, bytes], Future[Body]]") -> bytes:
        """Wait for the reply to a call, or for the end of the call."""
        arrived = time.perf_counter()
        metadata = dict(context.invocation_metadata())
        peer = self._rank_of(metadata)
        assert peer is not None  # `refusal` has looked
        try:
            reply = answer(peer, metadata.get(ENVELOPE, b""))
        except CallRefused as error:
            context.abort(REFUSED, str(error))
        except MessageError as error:
            self._process.on_refused(peer, str(error))
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        over = threading.Event()
        reply.add_done_callback(lambda _: over.set())
        if context.add_callback(over.set):
            over.wait()
        held = round((time.perf_counter() - arrived) * 1e6)
        context.set_trailing_metadata(((HELD, str(held)),))
        return bytes(reply.result()) if reply.done() else b""


class _Door(grpc.ServerInterceptor):
    """Refuses calls without the token before anything of their bodies is received."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    def intercept_service(self, continuation: Any, details: Any) -> Any:
        metadata = {k: v for k, v in details.invocation_metadata if isinstance(v, str)}
        refusal = self._endpoint.refusal(metadata)
        if refusal is None:
            return continuation(details)
        reason, code = refusal

        def refuse(_: Any, context: Any) -> bytes:
            self._endpoint.refuse(context.peer(), reason)
            context.abort(code, "")
            return b""

        # A handler of a stream begins before the first message is there.
        return grpc.stream_unary_rpc_method_handler(refuse)
