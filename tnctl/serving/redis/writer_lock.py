"""A lock in Redis that keeps other writers out. docs/formats/redis.md.

Not redis-py's Lock: it runs scripts, for which a user needs permissions (`evalsha`, `script`) that
the document does not name and that hosted servers may refuse. A transaction that watches the key is
atomic too, with the commands that the writer needs anyway.
"""

import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from os import getpid

from tnctl.errors import Failure
from tnctl.progress import waiting
from tnctl.serving.redis.redis_session import Session, shown

LOCK_SECONDS = 10.0  # a writer that was killed keeps others out for so long


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
    """A key with this writer's token, which expires unless it is refreshed."""

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
