"""Frames between processes, over one bidirectional gRPC stream for each pair of them.

The only file that knows gRPC. What a frame means is not known here. A frame may be lost when a
stream ends: whoever needs an answer asks again (tnctl/cluster/transport/session.py).
"""

import contextlib
import hmac
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

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
from tnctl.cluster.transport.frame_parts import (
    BULK,
    HEADER,
    PART_BYTES,
    URGENT,
    Joiner,
    Outgoing,
    PartError,
    cut,
)
from tnctl.cluster.transport.frames import LARGEST_FRAME
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

SERVICE, METHOD = "tnctl.Frames", "Exchange"
# Names in the metadata of a call.
TOKEN, PEER = "tnctl-token", "tnctl-peer"
WAITING_BYTES = 64 << 20  # that may wait for one peer, before a sender has to wait
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 0.5  # seconds between attempts to connect
# By these codes a call is refused.
OTHER_TOKEN_CODE, OTHER_RANK_CODE = grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.NOT_FOUND
REFUSALS = {OTHER_TOKEN_CODE: OTHER_TOKEN, OTHER_RANK_CODE: OTHER_RANK}
STRANGERS = 8  # calls beyond those of peers that may be open at a time
OPTIONS = [
    ("grpc.max_receive_message_length", HEADER.size + PART_BYTES),
    ("grpc.max_send_message_length", HEADER.size + PART_BYTES),
    # Neither pings of PINGS nor those by which gRPC estimates the bandwidth count as an attack.
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
    ("grpc.so_reuseport", 0),  # no other process may listen on the port
    # Each attempt to connect is a new one, which waits for no pause of an earlier one.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.min_reconnect_backoff_ms", 1000),
]


# Each side pings the other, and ends a connection without an answer: shares of cluster.timeout,
# together below liveness.SILENCE. keepalive_timeout_ms would not do it (grpc/grpc#39239).
PINGS = (("grpc.keepalive_time_ms", 0.1), ("grpc.http2.ping_timeout_ms", 0.5))


@dataclass(eq=False)
class _Stream:
    """One stream of a peer."""

    outgoing: Outgoing
    cancel: Callable[[], Any]


class Endpoint:
    """The streams of one process to its peers, which are known by their ranks.

    Of each pair of processes one calls `connect`, and the other accepts. Callbacks come from the
    thread that reads a peer's stream, and hold up what follows on it: `on_connected(peer)` and
    `on_lost(peer, reason)` in turns, `on_frame(peer, frame)` between them. Then
    `on_stranger(address, reason)`, for each call without the token, or of no peer.
    """

    def __init__(
        self,
        address: str,
        token: str,
        rank: int,
        ranks: int,
        *,
        on_frame: Callable[[int, memoryview], None],
        on_connected: Callable[[int], None],
        on_lost: Callable[[int, str], None],
        on_stranger: Callable[[str, str], None],
        certificates: Certificates | None = None,
        limit: int = LARGEST_FRAME,
        timeout: float = 5.0,
    ) -> None:
        """Listen on `address` (HOST:PORT, of port 0 the system chooses one) and no other.

        With `certificates` connections are encrypted, and both sides show theirs. `limit` is the
        largest frame that is received, in bytes. `timeout` is cluster.timeout, in seconds, by which
        connections are ended whose pings have no answer. Raises Failure when the address cannot be
        listened on.
        """
        self.rank, self._ranks, self._token, self._limit = rank, ranks, token, limit
        self._on_frame, self._on_connected = on_frame, on_connected
        self._on_lost, self._on_stranger = on_lost, on_stranger
        self._lock = threading.Lock()
        self._streams: dict[int, _Stream] = {}
        self._attempts = Attempts()
        self._dialers: list[threading.Thread] = []
        self._calls: set[Any] = set()
        self._closed = threading.Event()
        self.strangers = 0
        """how many calls were refused"""
        pings = [(name, round(share * timeout * 1000)) for name, share in PINGS]
        self._options = OPTIONS + pings
        most = ranks + STRANGERS
        # An open stream keeps a thread, which sends; beyond `most` calls gRPC itself refuses.
        self._threads = ThreadPoolExecutor(most, "tnctl-streams")
        self._server = grpc.server(
            self._threads, options=self._options, maximum_concurrent_rpcs=most, handlers=()
        )
        handler = grpc.stream_stream_rpc_method_handler(self._accept)
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),)
        )
        self._certificates = certificates
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

    def connect(self, peer: int, address: str) -> None:
        """Open a stream to a peer, and again whenever it is lost, until `close`."""
        thread = threading.Thread(
            target=self._dial, args=(peer, address), name=f"tnctl-peer-{peer}", daemon=True
        )
        self._dialers.append(thread)
        thread.start()

    def send(
        self, peer: int, buffers: Sequence[bytes | memoryview], *, urgent: bool = False
    ) -> bool:
        """Send the frame that contiguous buffers hold one after the other.

        The buffers are copied before it returns. It waits while too much waits to be sent, but
        for `urgent` frames, which overtake others. False when the frame is dropped, since there is
        no stream or it has ended.
        """
        with self._lock:
            stream = self._streams.get(peer)
        lane = URGENT if urgent else BULK
        return stream is not None and stream.outgoing.put(cut(buffers, lane), lane)

    def is_sending(self, peer: int) -> bool:
        """Whether frames to a peer, other than urgent ones, wait to be sent."""
        with self._lock:
            stream = self._streams.get(peer)
        return stream is not None and stream.outgoing.is_sending

    def failure(self, peer: int) -> str | None:
        """Why the last attempt to connect to a peer failed; None if it did not."""
        return self._attempts.reason(peer)

    def mistakes(self, seconds: float) -> dict[int, str]:
        """The peers to which a wrong setting allows no connection, and which it is.

        A token that is refused counts when it was refused for `seconds`.
        """
        return self._attempts.mistakes(seconds)

    def close(self) -> None:
        """End all streams, without callbacks; frames that wait are dropped.

        Until then the threads of streams keep the interpreter from ending (os._exit does end it).
        """
        self._closed.set()
        with self._lock:
            streams, self._streams = list(self._streams.values()), {}
            calls = list(self._calls)
        for stream in streams:
            stream.outgoing.end()
        for call in calls:
            call.cancel()
        self._server.stop(grace=None).wait()
        self._threads.shutdown()
        for thread in self._dialers:
            if thread is not threading.current_thread():
                thread.join()

    def _accept(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        """Serve one call: gRPC runs it in a thread of the pool, and sends what it returns."""
        metadata = {key: str(value) for key, value in context.invocation_metadata()}
        # First, before anything else of the caller is looked at.
        if not hmac.compare_digest(metadata.get(TOKEN, "").encode(), self._token.encode()):
            self._refuse(context, "it has not the token of this run", OTHER_TOKEN_CODE)
        peer = self._rank_of(metadata)
        if peer is None:
            self._refuse(context, "it is no worker of this run", OTHER_RANK_CODE)
        outgoing = Outgoing(WAITING_BYTES)
        if self._closed.is_set() or not context.add_callback(outgoing.end):
            return iter(())
        context.send_initial_metadata(((PEER, str(self.rank)),))
        stream = _Stream(outgoing, context.cancel)
        threading.Thread(
            target=self._read, args=(peer, stream, requests), name=f"tnctl-peer-{peer}", daemon=True
        ).start()
        return outgoing

    def _refuse(self, context: Any, reason: str, code: Any) -> None:
        with self._lock:
            self.strangers += 1
        self._on_stranger(context.peer(), reason)
        context.abort(code, "")

    def _rank_of(self, metadata: dict[str, str]) -> int | None:
        """The rank that a peer says it has; None for no rank of this run, and for this process."""
        text = metadata.get(PEER, "")
        rank = int(text) if text.isascii() and text.isdigit() and len(text) < 5 else -1
        return rank if 0 <= rank < self._ranks and rank != self.rank else None

    def _dial(self, peer: int, address: str) -> None:
        pause = FIRST_PAUSE
        while not self._closed.is_set():
            if self._try(peer, address):
                pause = FIRST_PAUSE
            self._closed.wait(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _try(self, peer: int, address: str) -> bool:
        """Connect to a peer once, and read until the stream ends; whether there was one."""
        metadata = ((TOKEN, self._token), (PEER, str(self.rank)))
        outgoing = Outgoing(WAITING_BYTES)
        with self._channel(address) as channel:
            # A call without serializers sends and receives bytes as they are.
            call = channel.stream_stream(f"/{SERVICE}/{METHOD}")(outgoing, metadata=metadata)
            with self._lock:
                self._calls.add(call)
            try:
                if self._closed.is_set():
                    return False
                # Comes when the peer has accepted, or the call has failed.
                answer = {key: str(value) for key, value in call.initial_metadata()}
                if self._rank_of(answer) != peer:
                    reason = _refusal(call, f"{address} is not worker {peer}")
                    if reason in CLOSED.values() and self._certificates is None:
                        reason = USES_TLS if speaks_tls(address) else reason
                    self._attempts.failed(peer, reason)
                    return False
                self._attempts.succeeded(peer)
                self._read(peer, _Stream(outgoing, call.cancel), call)
            finally:
                outgoing.end()
                call.cancel()
                with self._lock:
                    self._calls.discard(call)
        return True

    def _read(self, peer: int, stream: _Stream, parts: Iterator[bytes]) -> None:
        """Receive frames until the stream ends."""
        if not self._open(peer, stream):
            return
        joiner, reason = Joiner(self._limit), "its stream ended"
        try:
            while not stream.outgoing.ended:
                part = _next(parts)
                if part is None:
                    reason = _reason(parts)
                    break
                frame = joiner.add(part)
                if frame is not None:
                    self._on_frame(peer, frame)
        except PartError as error:
            reason = f"it sent {error}"
        finally:
            stream.outgoing.end()
            stream.cancel()
            with self._lock:
                is_current = self._streams.get(peer) is stream
                if is_current:
                    del self._streams[peer]
            if is_current:
                self._on_lost(peer, reason)

    def _open(self, peer: int, stream: _Stream) -> bool:
        """Make a stream the one of its peer, in the place of an earlier one."""
        with self._lock:
            if self._closed.is_set():
                stream.outgoing.end()
                return False
            earlier = self._streams.get(peer)
            self._streams[peer] = stream
        if earlier is not None:
            earlier.outgoing.end()
            earlier.cancel()
            self._on_lost(peer, "it has opened another stream")
        self._on_connected(peer)
        return True


def _next(parts: Iterator[bytes]) -> bytes | None:
    """The next message of a call; None when the call has ended, in whatever way."""
    # On the side of the server gRPC raises a bare Exception.
    with contextlib.suppress(Exception):
        return next(parts, None)
    return None


def _refusal(call: Any, otherwise: str) -> str:
    """Why a peer did not accept a call, or `otherwise` if the call has not failed."""
    try:
        call.exception(timeout=1)
    except grpc.FutureTimeoutError:
        return otherwise
    except grpc.FutureCancelledError:
        pass
    return _reason(call)


def _reason(call: Any) -> str:
    """Why a call has ended, in words; that of a server, an iterator, knows nothing of it."""
    code = call.code() if isinstance(call, grpc.Call) else None
    if code is None or code in (grpc.StatusCode.OK, grpc.StatusCode.CANCELLED):
        return "its stream ended"
    if code in REFUSALS:
        return REFUSALS[code]
    return reason_of(call.details() or "") or f"its connection is lost ({code.name})"
