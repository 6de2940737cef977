"""Connections to a Redis server, and what goes wrong with them said in one line.

The one module that imports redis, and only when it is needed.
"""

import socket
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from os import getpid
from types import TracebackType
from typing import Any

from tnctl.errors import Failure, UserError, printable
from tnctl.progress import waiting

CONNECT_SECONDS = 10
ANSWER_SECONDS = 30  # unless the URL has another socket_timeout
LOCK_SECONDS = 10.0  # a writer that was killed keeps others out for so long

Word = bytes | str | int


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
    """A redis.Redis that never tries anything twice.

    The default one connects anew in the middle of writing, to a server that has lost what it had.
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
        # Not with its reason, which may have a part of the password.
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
    except Exception as error:
        if not isinstance(error, library().RedisError):
            raise
        raise Failure(f"{shown(url)} {_said(error)}") from error


def _said(error: Exception) -> str:
    errors = library().exceptions
    reason = printable(str(error).strip().split("\n")[0].rstrip(".")) or type(error).__name__
    ways = [
        (errors.AuthenticationError, "refused the login ({}). Give the right USER and PASSWORD: "
         "redis://USER:PASSWORD@HOST"),
        (errors.AuthenticationWrongNumberOfArgsError, "refused the login ({}). Give USER and "
         "PASSWORD: redis://USER:PASSWORD@HOST"),
        (errors.NoPermissionError, "does not permit it ({}). Let this user run the commands that "
         "docs/formats/redis.md names"),
        (errors.ReadOnlyError, "is a replica, which cannot be written to. Name its primary"),
        (errors.OutOfMemoryError, "has no memory left ({}). Raise its maxmemory, for the old and "
         "the new rows together"),
        (errors.BusyLoadingError, "is still loading its data. Try again when it has"),
        ((errors.MovedError, errors.AskError, errors.ClusterError, errors.ClusterDownError),
         "is part of a cluster ({}), which tnctl does not write to. Name a server of its own"),
        (errors.TimeoutError, "did not answer in time ({}). Run the command again when it does; "
         "for more time add ?socket_timeout=SECONDS to the URL"),
        (errors.ConnectionError, "does not answer, or was lost on the way ({}). Run the "
         "command again when it does"),
    ]  # fmt: skip
    if "CERTIFICATE_VERIFY" in reason:
        return "has a certificate of an unknown authority. Name its file: ?ssl_ca_certs=FILE"
    for kind, text in ways:
        if isinstance(error, kind):
            return text.format(reason)
    if "WRONGTYPE" in reason:
        return f"has other data under these keys ({reason}). Choose another prefix="
    return f"refused a command ({reason})"


class Session:
    """One connection, which is never made anew: a server that restarts meanwhile is noticed.

    Raises what the redis package raises: use it in a `translated` block.
    """

    def __init__(self, url: str) -> None:
        self._client = client_of(url, single_connection_client=True)
        self._connection: Any = self._client.connection
        self._unanswered = 0  # commands that were streamed
        self.lost = False  # there is no server at the other end any more

    def call(self, *words: Word) -> Any:
        """One command and its reply."""
        return self.calls([words])[0]

    def calls(self, commands: Sequence[Sequence[Word]]) -> list[Any]:
        """Several commands at once, and their replies; then the first error among them, if any."""
        return self._exchange(self._connection.pack_commands(commands), len(commands))

    def packed(self, data: bytes, commands: int) -> list[Any]:
        """As `calls`, of commands that are packed already."""
        return self._exchange([data], commands)

    def stream(self, data: bytes, commands: int) -> int:
        """Send packed commands; the sum of the replies to those that were streamed before.

        So the server is never without work, and never has more than two portions.
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

    def information(self, section: str) -> dict[str, str]:
        """What the server says of itself; nothing when this user may not ask."""
        try:
            text = self.call("INFO", section).decode()
        except library().exceptions.NoPermissionError:
            return {}
        pairs = (line.partition(":") for line in text.splitlines() if ":" in line)
        return {key: value for key, _, value in pairs}

    def settings(self, pattern: str) -> dict[str, str]:
        """The server's settings; nothing when this user may not ask."""
        try:
            words = self.call("CONFIG", "GET", pattern)
        except library().ResponseError:
            # Not permitted, or hidden by renaming it, as hosted servers do.
            return {}
        return {words[i].decode(): words[i + 1].decode() for i in range(0, len(words), 2)}

    def close(self) -> None:
        with suppress(Exception):
            self._client.close()
            self._connection.disconnect()

    def _exchange(self, data: Sequence[bytes], commands: int) -> list[Any]:
        replies, wrong = [], None
        with self._watched():
            self._connection.send_packed_command(data)
            for _ in range(commands):
                try:
                    replies.append(self._connection.read_response())
                except library().ResponseError as error:
                    wrong = wrong or error
        if wrong is not None:
            raise wrong
        return replies

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Remembers that the connection was lost: whatever is sent then would connect anew."""
        errors = library().exceptions
        if self.lost:
            raise errors.ConnectionError("the connection was lost")
        try:
            yield
        except (errors.ConnectionError, errors.TimeoutError):
            self.lost = True
            raise


class Lock:
    """Keeps other writers out while the block runs, by a key that a thread refreshes.

    A writer that is there is told from one that was killed: its key's time is refreshed.
    """

    def __init__(self, url: str, key: str) -> None:
        self._url, self.key = url, key
        self.token = f"{socket.gethostname()}/{getpid()}/{uuid.uuid4().hex}".encode()
        self._milliseconds = round(LOCK_SECONDS * 1000)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._refresh, daemon=True)

    def __enter__(self) -> "Lock":
        self._session = Session(self._url)
        try:
            if not self._taken():
                with waiting(f"waiting for another writer's lock {self.key}, or for its end"):
                    self._wait()
        except BaseException:
            self._session.close()
            raise
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()
        with suppress(Exception):
            if self.held(self._session):
                self._session.transaction([("DEL", self.key)])
        self._session.close()

    def held(self, session: Session) -> bool:
        """Whether it still is this writer's. If not so later, a transaction of `session` fails."""
        return bool(session.calls([("WATCH", self.key), ("GET", self.key)])[1] == self.token)

    def lost(self) -> Failure:
        return Failure(
            f"{shown(self._url)} has given the lock {self.key} to another writer, for this one did "
            "not run for a while. Run the command again"
        )

    def _taken(self) -> bool:
        words = ("SET", self.key, self.token, "NX", "PX", self._milliseconds)
        return self._session.call(*words) is not None

    def _wait(self) -> None:
        before = None
        while not self._taken():
            left, holder = self._session.calls([("PTTL", self.key), ("GET", self.key)])
            if left == -1 or (before is not None and left > before):
                host, _, process = (holder or b"?/?").decode("utf-8", "replace").partition("/")
                raise Failure(
                    f"{shown(self._url)} is being written to by another export (host {host}, "
                    f"process {process.partition('/')[0]}). Let it finish, or choose another "
                    "prefix="
                )
            before = left
            time.sleep(min(0.1, LOCK_SECONDS / 20))

    def _refresh(self) -> None:
        # Whatever goes wrong here, the writer finds out before it switches.
        with suppress(Exception):
            while not self._ended.wait(self._milliseconds / 5000):
                if self._session.call("GET", self.key) != self.token:
                    return
                self._session.call("PEXPIRE", self.key, self._milliseconds)
