"""What a worker did between two of its exchanges, as it reports it with the second, and the sums.

The report is float64 [7]: seconds of the main thread, seconds of the owner's thread, bytes.
"""

import time
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from tnctl.cluster.frames import FrameError
from tnctl.training.worker_figures import WorkerFigures

COMPUTING, READING, WAITING, IDLE, OWNING, SENT, RECEIVED = range(7)
REPORTED = 7
MOST = 2.0**53  # up to it a float64 has every whole number
Work = NDArray[np.float64]


def check_work(work: Work) -> None:
    """Refuse a report with a number that is NaN, below 0 or beyond 2^53. Raises FrameError."""
    # Comparisons with NaN, which min and max return if there is one, are false.
    if work.size and not (work.min() >= 0 and work.max() <= MOST):
        raise FrameError("an exchange reports seconds or bytes that are NaN, below 0 or too large")


class Laps:
    """The seconds of a main thread since its last report, by what it did."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._seconds = [0.0] * (IDLE + 1)
        self._at = clock()

    def lap(self, kind: int) -> None:
        """The time since the last lap was spent on a kind: COMPUTING, READING, WAITING or IDLE."""
        now = self._clock()
        self._seconds[kind] += now - self._at
        self._at = now

    def restart(self) -> None:
        """The time since the last lap, in which training paused, counts for nothing."""
        self._at = self._clock()

    def take(self) -> list[float]:
        """The seconds of each kind, which are 0 from now on."""
        seconds, self._seconds = self._seconds, [0.0] * (IDLE + 1)
        return seconds


class WorkSums:
    """The sums of what all workers have reported."""

    def __init__(self, workers: int) -> None:
        self._sums = np.zeros((workers, REPORTED))
        self._exchanging = np.zeros(workers)

    def add(self, reports: Sequence[Work]) -> None:
        """Take the reports of a step, by rank.

        All exchanges are answered when the last one is there. So the shortest wait is what
        answering takes, and what others waited beyond it, they waited for workers.
        """
        reported = np.stack(reports)
        self._sums += reported
        waiting = reported[:, WAITING]
        shortest = (waiting + reported[:, IDLE]).min()
        self._exchanging += np.minimum(waiting, shortest)

    def figures(self, held: Sequence[tuple[int, int]]) -> list[WorkerFigures]:
        """The sums of each worker, with the rows and bytes that it owns."""
        return [
            WorkerFigures(
                rows=rows,
                bytes=bytes_,
                sent_bytes=int(sums[SENT]),
                received_bytes=int(sums[RECEIVED]),
                compute_seconds=sums[COMPUTING],
                input_wait_seconds=sums[READING],
                worker_wait_seconds=max(sums[WAITING] - exchanging, 0.0),
                exchange_seconds=exchanging,
                idle_seconds=sums[IDLE],
                owner_seconds=sums[OWNING],
            )
            for (rows, bytes_), sums, exchanging in zip(
                held, self._sums.tolist(), self._exchanging.tolist(), strict=True
            )
        ]
