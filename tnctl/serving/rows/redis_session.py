"""Connections to a Redis server, their errors as one line, and the lock of a writer.

The one module that imports redis, and only when it is needed.
"""

import socket
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from os import getpid
from typing import Any

from tnctl.errors import Failure, UserError, printable
from tnctl.progress import waiting

CONNECT_SECONDS = 10
BUCKETS_AT_ONCE = 1 << 12
ANSWER_SECONDS = 30  # unless the URL has another socket_timeout

Word = bytes | str | int
LOCK_SECONDS = 10.0  # after this time the lock of a killed writer expires


def library() -> Any:
    """The redis package. Raises UserError when it is not installed."""
    try:
        import redis
    except ImportError as error:
        raise UserError(
            "Redis needs a package that is not installed: pip install 'tnctl[redis]'"
        ) from error
    return redis


def shown(url: str) -> str:
    """A Redis URL as a message may show it: without user, password and options."""
    scheme, _, rest = url.partition("://")
    place, _, options = rest.partition("?")
    # A password may hold any sign, though it should not: nothing before an @ is shown.
    if "@" in options:
        place = "…"
    return f"{scheme}://{place.rpartition('@')[2]}"


def client_of(url: str, **options: Any) -> Any:
    """A redis.Redis that never retries.

    The default one reconnects in the middle of writing, to a server that may have lost its rows.
    """
    redis = library()
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    try:
        client = redis.Redis.from_url(
            url,
            retry=Retry(NoBackoff(), 0),
            socket_timeout=ANSWER_SECONDS,
            socket_connect_timeout=CONNECT_SECONDS,
            protocol=2,
            **options,
        )
    except (ValueError, TypeError):
        # Without the reason, which may contain a part of the password.
        raise UserError(
            f"{shown(url)} is no Redis URL. Write redis://USER:PASSWORD@HOST:PORT/DB, rediss://… "
            "or unix:///PATH, signs such as / and @ in a password as %2F and %40"
        ) from None
    if client.get_connection_kwargs().get("decode_responses"):
        raise UserError(f"{shown(url)} takes no decode_responses: rows are bytes. Leave it out")
    return client


@contextmanager
def translated(url: str) -> Iterator[None]:
    """Turn what Redis, or the way to it, raises inside the block into a `Failure`."""
    redis = library()
    try:
        yield
    except redis.RedisError as error:
        reason = printable(str(error).strip().split("\n")[0].rstrip(".")) or type(error).__name__
        lost = isinstance(error, redis.ConnectionError | redis.TimeoutError)
        if lost and not isinstance(error, redis.AuthenticationError):
            way = "Run the command again when it does; ?socket_timeout=SECONDS waits for longer"
            what = f"does not answer, or was lost on the way ({reason}). {way}"
        else:
            what = f"refuses a command ({reason}). docs/formats/redis.md says what it must permit"
        raise Failure(f"{shown(url)} {what}") from error


class Session:
    """One connection, which is never renewed: a server that restarts meanwhile is noticed.

    Raises what the redis package raises: use it in a `translated` block.
    """

    def __init__(self, url: str) -> None:
        self._client = client_of(url, single_connection_client=True)
        self._connection: Any = self._client.connection
        self._unanswered = 0  # commands that were streamed
        self.lost = False  # the connection was lost

    def call(self, *words: Word) -> Any:
        """One command and its reply."""
        return self.calls([words])[0]

    def calls(self, commands: Sequence[Sequence[Word]]) -> list[Any]:
        """The replies to several commands that are sent together; raises the first error."""
        replies, refused = [], None
        with self._watched():
            self._connection.send_packed_command(self._connection.pack_commands(commands))
            for _ in commands:
                try:
                    replies.append(self._connection.read_response())
                except library().ResponseError as error:
                    refused = refused or error
        if refused is not None:
            raise refused
        return replies

    def of_buckets(self, command: str, prefix: str, count: int, *words: Word) -> int:
        """The sum of the replies to one command for each of a group's buckets.

        `prefix` is what the names of their keys begin with; `words` follow the key.
        """
        total = 0
        for first in range(0, count, BUCKETS_AT_ONCE):
            buckets = range(first, min(first + BUCKETS_AT_ONCE, count))
            total += sum(self.calls([(command, f"{prefix}{bucket}", *words) for bucket in buckets]))
        return total

    def stream(self, data: bytes, commands: int) -> int:
        """Send packed commands; the sum of the replies to the commands streamed before them.

        So the server always has work, and at most two portions of it.
        """
        with self._watched():
            self._connection.send_packed_command([data])
        total, self._unanswered = self.drain(), commands
        return total

    def drain(self) -> int:
        """The sum of the replies to what was streamed last."""
        commands, self._unanswered = self._unanswered, 0
        with self._watched():
            return sum(self._connection.read_response() for _ in range(commands))

    def transaction(self, commands: Sequence[Sequence[Word]]) -> bool:
        """All commands or none; False when a key that was watched has changed."""
        replies = self.calls([("MULTI",), *commands, ("EXEC",)])[-1]
        for reply in replies or ():
            if isinstance(reply, Exception):
                raise reply
        return replies is not None

    def run_id(self) -> str | None:
        """Which process the server is; None when this user may not ask."""
        try:
            text = self.call("INFO", "server").decode()
        except library().exceptions.NoPermissionError:
            return None
        return next((line for line in text.splitlines() if line.startswith("run_id:")), None)

    def close(self) -> None:
        with suppress(Exception):
            self._client.close()
            self._connection.disconnect()

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Remembers that the connection was lost: sending more would reconnect."""
        redis = library()
        if self.lost:
            raise redis.ConnectionError("the connection was lost")
        try:
            yield
        except (redis.ConnectionError, redis.TimeoutError):
            self.lost = True
            raise


class WriterLock:
    """A key with this writer's token, which expires unless it is refreshed.

    Held while its `with` block runs, inside a `translated` block; entering it raises Failure when
    another writer has it.

    Not redis-py's Lock: it runs scripts, for which a user needs permissions (`evalsha`, `script`)
    that docs/formats/redis.md does not name and that hosted servers may refuse. A transaction that
    watches the key is atomic too, with the commands that the writer needs anyway.
    """

    def __init__(self, url: str, key: str) -> None:
        self._url, self._key, self._session = url, key, Session(url)
        self._token = f"{socket.gethostname()}, process {getpid()}/{uuid.uuid4().hex}".encode()
        self._milliseconds = round(LOCK_SECONDS * 1000)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._refresh, daemon=True)

    def __enter__(self) -> "WriterLock":
        try:
            self._acquire()
        except BaseException:
            self._session.close()
            raise
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        with closing(self._session), suppress(Exception):
            if self.held(self._session):
                self._session.transaction([("DEL", self._key)])

    def held(self, session: Session) -> bool:
        """Whether this writer holds it. If it loses it later, a transaction of `session` fails."""
        return bool(session.calls([("WATCH", self._key), ("GET", self._key)])[1] == self._token)

    def lost(self) -> Failure:
        """The error for a lock that another writer has taken."""
        return Failure(
            f"{shown(self._url)} has given the lock {self._key} to another writer, for this one "
            "did not run for a while. Run the command again"
        )

    def _acquire(self) -> None:
        """Take the lock, or wait until a killed writer's lock has expired.

        Raises Failure when another writer refreshes it: its remaining time grows.
        """
        take = ("SET", self._key, self._token, "NX", "PX", self._milliseconds)
        if self._session.call(*take):
            return
        with waiting(f"waiting for another writer's lock {self._key}, or for its end"):
            last_left = None
            while not self._session.call(*take):
                left, holder = self._session.calls([("PTTL", self._key), ("GET", self._key)])
                if left == -1 or (last_left is not None and left > last_left):
                    writer = (holder or b"?").decode("utf-8", "replace").partition("/")[0]
                    raise Failure(
                        f"{shown(self._url)} is being written to by another export (host {writer})"
                        ". Let it finish, or choose another prefix="
                    )
                last_left = left
                time.sleep(min(0.1, LOCK_SECONDS / 20))

    def _refresh(self) -> None:
        """Extend the lock again and again, until the block ends, or until it is lost."""
        # The writer itself finds out before it switches that the lock is lost.
        with suppress(Exception):
            while not self._ended.wait(self._milliseconds / 5000) and self.held(self._session):
                self._session.transaction([("PEXPIRE", self._key, self._milliseconds)])
