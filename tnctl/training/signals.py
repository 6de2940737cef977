"""Ctrl-C and SIGTERM while training: the first one asks, the second one leaves at once."""

import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any, TypeVar

from tnctl.data.read_ahead import ReadAhead
from tnctl.errors import Stopped

T = TypeVar("T")
SECONDS_BETWEEN_CHECKS = 0.2
ASKING = (signal.SIGINT, signal.SIGTERM)


class Signals:
    """In a with-statement, keeps the first signal until `check` is called.

    The next one raises `Stopped` wherever the program is, and so does the first after `impatient`.
    Where there are no signals to be had, in a thread that is not the main one, it does nothing.
    """

    def __init__(self) -> None:
        self._received: int | None = None
        self._patient = True
        self.again = False
        """whether there was a second one"""
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Signals":
        if threading.current_thread() is threading.main_thread():
            # What is ignored stays so, such as Ctrl-C of commands in the background.
            asking = [number for number in ASKING if signal.getsignal(number) is not signal.SIG_IGN]
            self._before = {number: signal.signal(number, self._handle) for number in asking}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def check(self) -> None:
        """Raise `Stopped` if there was a signal."""
        if self._received is not None:
            raise Stopped("stopped", 128 + self._received)

    def watching(self, ahead: ReadAhead[T]) -> Iterator[T]:
        """The items, with a `check` before each and while one is waited for."""
        while True:
            self.check()
            while not ahead.ready(SECONDS_BETWEEN_CHECKS):
                self.check()
            try:
                item = next(ahead)
            except StopIteration:
                return
            yield item

    def impatient(self) -> None:
        """From now on, and for one that is there already: nothing is left to be finished."""
        self._patient = False
        self.check()

    def _handle(self, number: int, _: FrameType | None) -> None:
        self.again = self._received is not None
        self._received = number
        if self.again or not self._patient:
            self.check()
