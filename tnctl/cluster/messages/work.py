"""What a worker did between two of its exchanges, as it reports it with the second, and the sums.

The report is float64 [9]: seconds of the main thread, seconds of the owner's thread, bytes, how
often the worker was left out of a step, and seconds in which exchanges were on the way.
"""

import time
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from tnctl.cluster.transport.kinds import MessageError
from tnctl.training.report.worker_figures import ExchangeFigures, WorkerFigures

COMPUTING, READING, WAITING, IDLE, OWNING, SENT, RECEIVED, LEFT_OUT, NETWORK = range(9)
REPORTED = 9
BINS = 1024  # of staleness; the last one has all that is larger
MOST = 2.0**53  # up to it a float64 has every whole number
Work = NDArray[np.float64]


def check_work(work: Work) -> None:
    """Refuse a report with a number that is NaN, below 0 or beyond 2^53. Raises MessageError."""
    # Comparisons with NaN, which min and max return if there is one, are false.
    if work.size and not (work.min() >= 0 and work.max() <= MOST):
        raise MessageError(
            "an exchange reports seconds or bytes that are NaN, below 0 or too large"
        )


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
    """The sums of what all workers have reported, and of what owner 0 knows beside that."""

    def __init__(self, workers: int, *, reads_ahead: bool = False) -> None:
        self._sums = np.zeros((workers, REPORTED))
        self._exchanging = np.zeros(workers)
        self._awaited = np.zeros(workers)
        self._stale = np.zeros((workers, BINS * reads_ahead), np.int64)
        self._ahead = np.zeros_like(self._stale)

    def add(self, reports: Sequence[Work], waited_for: int | None = None) -> None:
        """Take the reports of a step, by rank; `waited_for` was last in the step before.

        All exchanges are answered when the last one is there. So the shortest wait is what
        answering takes, and what others waited beyond it, they waited for workers.
        """
        reported = np.stack(reports)
        self._sums += reported
        waiting = reported[:, WAITING]
        # A worker that was left out of the step has reported nothing.
        shortest = (waiting + reported[:, IDLE])[reported.any(axis=1)].min(initial=np.inf)
        exchanging = np.minimum(waiting, shortest)
        self._exchanging += exchanging
        if waited_for is not None:
            for_workers = waiting - exchanging
            self._awaited[waited_for] += for_workers.sum() - for_workers[waited_for]

    def add_one(self, rank: int, report: Work, waited_for: int | None) -> None:
        """Take the report of a worker in asynchronous training.

        It waits for answers, unless an owner has held it until `waited_for` came nearer.
        """
        self._sums[rank] += report
        if waited_for is None:
            self._exchanging[rank] += report[WAITING]
        else:
            self._awaited[waited_for] += report[WAITING]

    def add_batch(self, rank: int, stale: int, ahead: int) -> None:
        """Count a batch by how stale its rows were, and by how far its worker was ahead.

        `stale` batches were applied since its rows were read. `ahead` is of the slowest one then.
        """
        self._stale[rank, min(stale, BINS - 1)] += 1
        self._ahead[rank, min(ahead, BINS - 1)] += 1

    def exchanged(self) -> ExchangeFigures:
        """A copy of what was waited for each worker, and of how stale pulls were."""
        return ExchangeFigures(self._awaited.copy(), self._stale.copy(), self._ahead.copy())

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
                left_out=int(sums[LEFT_OUT]),
                network_seconds=sums[NETWORK],
            )
            for (rows, bytes_), sums, exchanging in zip(
                held, self._sums.tolist(), self._exchanging.tolist(), strict=True
            )
        ]


def figures_of_servers(
    held: Sequence[tuple[int, int]], totals: Sequence[tuple[float, float, float]], seconds: float
) -> list[WorkerFigures]:
    """Those of each dedicated server: the rows and bytes that it owns, and its totals.

    `seconds` is how long training took so far.
    """
    return [
        WorkerFigures(
            role="server",
            rows=rows,
            bytes=bytes_,
            sent_bytes=int(sent),
            received_bytes=int(received),
            owner_seconds=owning,
            idle_seconds=max(seconds - owning, 0.0),
        )
        for (rows, bytes_), (owning, sent, received) in zip(held, totals, strict=True)
    ]
