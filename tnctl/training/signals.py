"""Ctrl-C and SIGTERM: the first ends training after the step under way, the second at once."""

import signal
import threading
import time
from types import FrameType
from typing import Any, TypeVar

from tnctl.data.read_ahead import ReadAhead
from tnctl.errors import Stopped

T = TypeVar("T")
SECONDS_BETWEEN_CHECKS = 0.2
HANDLED = (signal.SIGINT, signal.SIGTERM)


class Signals:
    """In a with-statement, keeps the first signal until `check` is called.

    The next one raises `Stopped` wherever the program is, and so does the first after `impatient`.
    In a thread that is not the main one, which cannot receive signals, it does nothing.
    """

    again = False
    """whether there was a second one"""
    seconds_apart = 0.0
    """within which another signal is the same request, sent to several processes of a run"""
    _received: int | None = None
    _received_at = 0.0
    _patient = True

    def __init__(self) -> None:
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "Signals":
        if threading.current_thread() is threading.main_thread():
            # Ignored signals stay ignored, such as Ctrl-C for commands in the background.
            for signum in HANDLED:
                if signal.getsignal(signum) is not signal.SIG_IGN:
                    self._previous[signum] = signal.signal(signum, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for signum, handler in self._previous.items():
            signal.signal(signum, handler)

    @property
    def received(self) -> bool:
        """Whether there was a signal."""
        return self._received is not None

    def check(self) -> None:
        """Raise `Stopped` if there was a signal."""
        if self._received is not None:
            raise Stopped("stopped", 128 + self._received)

    def next_of(self, ahead: ReadAhead[T]) -> T | None:
        """The next item, None after the last, with a `check` before it and while waiting for it."""
        self.check()
        while not ahead.ready(SECONDS_BETWEEN_CHECKS):
            self.check()
        return next(ahead, None)

    def impatient(self) -> None:
        """A signal that has come already, or comes later, raises `Stopped` at once from now on."""
        self._patient = False
        self.check()

    def _handle(self, signum: int, _: FrameType | None) -> None:
        now = time.monotonic()
        if self.received and now - self._received_at < self.seconds_apart:
            return
        self.again = self.received
        self._received, self._received_at = signum, now
        if self.again or not self._patient:
            self.check()
