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
LOCK_SECONDS = 10.0  # a writer that was killed keeps others out for so long


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
    try:
        yield
    except UserError:
        raise
    except library().RedisError as error:
        raise Failure(f"{shown(url)} {_message(error)}") from error


def _message(error: Exception) -> str:
    errors = library().exceptions
    reason = printable(str(error).strip().split("\n")[0].rstrip(".")) or type(error).__name__
    if "CERTIFICATE_VERIFY" in reason:
        return "has a certificate of an unknown authority. Name its file: ?ssl_ca_certs=FILE"
    logins = errors.AuthenticationError, errors.AuthenticationWrongNumberOfArgsError
    for kinds, text in (
        (logins, "refused the login ({}). Give USER and PASSWORD: redis://USER:PASSWORD@HOST"),
        (errors.NoPermissionError, "does not permit it ({}). docs/formats/redis.md has the "
         "commands that its user needs"),
        (errors.ReadOnlyError, "is a replica, which cannot be written to. Name its primary"),
        (errors.OutOfMemoryError, "has no memory left ({}). Raise its maxmemory"),
        ((errors.MovedError, errors.AskError, errors.ClusterError, errors.ClusterDownError),
         "is part of a cluster ({}), which tnctl does not write to. Name a server of its own"),
        (errors.TimeoutError, "did not answer in time ({}). Run the command again when it does; "
         "for more time add ?socket_timeout=SECONDS to the URL"),
        (errors.ConnectionError, "does not answer, or was lost on the way ({}). Run the command "
         "again when it does"),
    ):  # fmt: skip
        if isinstance(error, kinds):
            return text.format(reason)
    if "WRONGTYPE" in reason:
        return f"has other data under these keys ({reason}). Choose another prefix="
    return f"refused a command ({reason}). docs/formats/redis.md has the servers that it works with"


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
        return sum(
            sum(self.calls([(command, f"{prefix}{bucket}", *words) for bucket in buckets]))
            for first in range(0, count, BUCKETS_AT_ONCE)
            for buckets in (range(first, min(first + BUCKETS_AT_ONCE, count)),)
        )

    def stream(self, data: bytes, commands: int) -> int:
        """Send packed commands; the sum of the replies to those that were streamed before.

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
        replies = self.calls([("MULTI",), *commands, ("EXEC",)])
        for reply in replies[-1] or ():
            if isinstance(reply, Exception):
                raise reply
        return replies[-1] is not None

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
        errors = library().exceptions
        if self.lost:
            raise errors.ConnectionError("the connection was lost")
        try:
            yield
        except (errors.ConnectionError, errors.TimeoutError):
            self.lost = True
            raise


@contextmanager
def writer_lock(url: str, key: str) -> Iterator["WriterLock"]:
    """Holds the lock of a key while the block runs. Raises Failure when another writer has it.

    Use it in a `translated` block.
    """
    with closing(Session(url)) as session:
        lock = WriterLock(url, key, session)
        lock.acquire()
        ended = threading.Event()
        thread = threading.Thread(target=lock.refresh, args=(ended,), daemon=True)
        thread.start()
        try:
            yield lock
        finally:
            ended.set()
            thread.join()
            with suppress(Exception):
                if lock.held(session):
                    session.transaction([("DEL", key)])


class WriterLock:
    """A key with this writer's token, which expires unless it is refreshed.

    Not redis-py's Lock: it runs scripts, for which a user needs permissions (`evalsha`, `script`)
    that docs/formats/redis.md does not name and that hosted servers may refuse. A transaction that
    watches the key is atomic too, with the commands that the writer needs anyway.
    """

    def __init__(self, url: str, key: str, session: Session) -> None:
        self._url, self.key, self._session = url, key, session
        self.token = f"{socket.gethostname()}/{getpid()}/{uuid.uuid4().hex}".encode()
        self._milliseconds = round(LOCK_SECONDS * 1000)

    def held(self, session: Session) -> bool:
        """Whether this writer holds it. If it loses it later, a transaction of `session` fails."""
        return bool(session.calls([("WATCH", self.key), ("GET", self.key)])[1] == self.token)

    def lost(self) -> Failure:
        """The error for a lock that another writer has taken."""
        return Failure(
            f"{shown(self._url)} has given the lock {self.key} to another writer, for this one did "
            "not run for a while. Run the command again"
        )

    def acquire(self) -> None:
        """Take the lock, or wait until a killed writer's lock has expired.

        Raises Failure when another writer refreshes it: its remaining time grows.
        """
        if self._taken():
            return
        with waiting(f"waiting for another writer's lock {self.key}, or for its end"):
            last_left = None
            while not self._taken():
                left, holder = self._session.calls([("PTTL", self.key), ("GET", self.key)])
                if left == -1 or (last_left is not None and left > last_left):
                    host, _, process = (holder or b"?/?").decode("utf-8", "replace").partition("/")
                    raise Failure(
                        f"{shown(self._url)} is being written to by another export (host {host}, "
                        f"process {process.partition('/')[0]}). Let it finish, or choose another "
                        "prefix="
                    )
                last_left = left
                time.sleep(min(0.1, LOCK_SECONDS / 20))

    def refresh(self, ended: threading.Event) -> None:
        """Extend the lock again and again, until `ended`, or until it is lost."""
        # The writer itself finds out before it switches that the lock is lost.
        with suppress(Exception):
            while not ended.wait(self._milliseconds / 5000):
                if not self.held(self._session):
                    return
                self._session.transaction([("PEXPIRE", self.key, self._milliseconds)])

    def _taken(self) -> bool:
        words = ("SET", self.key, self.token, "NX", "PX", self._milliseconds)
        return self._session.call(*words) is not None
