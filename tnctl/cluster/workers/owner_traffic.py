"""What a worker exchanged with each owner since its last report, and how long it waited for it."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from tnctl.cluster.messages.exchange import Shape, Sizes
from tnctl.cluster.messages.replies import Reply, parse_reply
from tnctl.cluster.messages.work import BY_OWNER, FOR_OWNER, FROM_OWNER, KEYS, TO_OWNER
from tnctl.cluster.transport.frames import Body

Clock = Callable[[], float]


class Arrivals:
    """When the answers of all owners to an exchange arrived, in seconds of a clock."""

    def __init__(self, futures: "Sequence[Future[Body]]", clock: Clock = time.perf_counter) -> None:
        self._clock = clock
        self._times: list[float | None] = [None] * len(futures)
        for owner, future in enumerate(futures):
            future.add_done_callback(partial(self._arrived, owner))

    def _arrived(self, owner: int, _: "Future[Body]") -> None:
        self._times[owner] = self._clock()

    def waits(self, started: float) -> NDArray[np.float64]:
        """The seconds waited for each owner since `started`, when all have answered.

        At any moment they are divided by the number of owners that have not answered.
        """
        now = self._clock()
        # A future wakes its waiter before it calls back.
        times = np.array([now if at is None else at for at in self._times])
        return divided_waits(times - started)


def divided_waits(arrivals: NDArray[np.float64]) -> NDArray[np.float64]:
    """What is waited for each of n arrivals, float64 [n], since time 0, when the waiting begins.

    The sum is the time of the last one, or 0.
    """
    arrivals = np.maximum(arrivals, 0.0)
    order = np.argsort(arrivals, kind="stable")
    missing = np.arange(len(arrivals), 0, -1)
    waits = np.empty(len(arrivals))
    waits[order] = np.cumsum(np.diff(arrivals[order], prepend=0.0) / missing)
    return waits


@dataclass(frozen=True)
class SentExchange:
    """An exchange that was sent to every owner: what it pulls of each, and the replies to come."""

    shapes: list[Shape]
    sizes: list[Sizes]
    futures: "list[Future[Body]]"
    arrivals: Arrivals

    @property
    def is_answered(self) -> bool:
        """Whether `replies` would not wait."""
        return all(future.done() for future in self.futures)

    def replies(self) -> list[Reply]:
        """Wait for the replies of all owners."""
        return [
            parse_reply(shape, pulled, future.result())
            for shape, pulled, future in zip(self.shapes, self.sizes, self.futures, strict=True)
        ]

    @property
    def reply_sizes(self) -> list[int]:
        """The bytes of the replies, when all are there."""
        return [len(future.result()) for future in self.futures]


class OwnerTraffic:
    """The sums by owner since the last report: a part of it (work.py)."""

    def __init__(self, owners: int) -> None:
        self._sums = np.zeros((BY_OWNER, owners))

    def sent(self, owner: int, keys: int, size: int) -> None:
        """A message of so many bytes, which asks for so many keys, was sent to an owner."""
        self._sums[KEYS, owner] += keys
        self._sums[TO_OWNER, owner] += size

    def answered(self, sizes: Sequence[int], waits: NDArray[np.float64] | None) -> None:
        """All owners have answered, with so many bytes; `waits` if they were waited for."""
        self._sums[FROM_OWNER] += sizes
        if waits is not None:
            self._sums[FOR_OWNER] += waits

    def take(self) -> NDArray[np.float64]:
        """The sums float64 [4 owners], which are 0 from now on."""
        taken = self._sums.reshape(-1).copy()
        self._sums[:] = 0.0
        return taken
