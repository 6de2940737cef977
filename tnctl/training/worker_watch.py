"""What is shown and recorded of each worker, where several train."""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from typing import Any

from tnctl import documents
from tnctl.progress import Parts, say, size
from tnctl.training import exchange_lines
from tnctl.training.exchange_figures import ExchangeFigures, HotRow
from tnctl.training.exchange_lines import listed
from tnctl.training.slowness import Slowness, why_slow
from tnctl.training.worker_figures import WorkerFigures, since
from tnctl.training.workers import Workers

SECONDS = 10.0  # of a window
WINDOWS = 3  # in each of which training must be slow by the same cause
MOST_ROWS = 16  # workers in the live display
HEADINGS = ("worker", "rows", "memory", "network", "for data", "for others", "exchanging")


Mark = tuple[float, Sequence[WorkerFigures], ExchangeFigures | None]


class Windows:
    """The figures of the last windows of time, and by which cause all of them were slow."""

    def __init__(self) -> None:
        self._marks: deque[Mark] = deque(maxlen=WINDOWS + 1)
        self.slowness: Slowness | None = None
        """the cause in all of the last windows"""
        self.exchanged: ExchangeFigures | None = None
        """the sums of the last 10 to 20 s"""

    def add(
        self,
        now: float,
        figures: Sequence[WorkerFigures],
        exchanged: ExchangeFigures | None = None,
    ) -> list[WorkerFigures]:
        """Take the figures at a time (seconds of a clock); the sums of the last 10 to 20 s."""
        if not self._marks or now - self._marks[-1][0] >= SECONDS:
            self._marks.append((now, figures, exchanged))
            self.slowness = self._cause_of_all()
        _, earlier, exchanged_earlier = self._marks[max(len(self._marks) - 2, 0)]
        self.exchanged = None if exchanged is None else exchanged.since(exchanged_earlier)
        return since(figures, earlier)

    def _cause_of_all(self) -> Slowness | None:
        if len(self._marks) <= WINDOWS:
            return None
        slow = _why_slow(self._marks[0], self._marks[-1])
        for earlier, later in pairwise(self._marks):
            of_window = _why_slow(earlier, later)
            if slow is None or of_window is None:
                return None
            if (of_window.cause, of_window.workers) != (slow.cause, slow.workers):
                return None
        return slow


def _why_slow(earlier: Mark, later: Mark) -> Slowness | None:
    _, figures, exchanged = later
    owners = [] if exchanged is None else exchanged.since(earlier[2]).owners()
    return why_slow(since(figures, earlier[1]), owners)


class WorkerWatch:
    """Follows the figures of each worker; with one worker there is nothing to show."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._windows = Windows()
        self._of_pass = self._of_line = workers.worker_figures()
        self._exchanged_of_pass = self._exchanged_of_line = workers.exchanged()
        self.scalars: dict[str, float] = {}
        """of the last line of log.jsonl, for TensorBoard"""
        self.pass_record: dict[str, Any] = {}
        """what the line of a pass in log.jsonl has, in `timing`"""
        self.hottest: list[HotRow] = []
        """of the pass whose record that is"""
        self._said: set[tuple[object, ...]] = set()

    def start_pass(self) -> None:
        """From now on `of_pass` has the sums of another pass."""
        self._of_pass = figures = self._workers.worker_figures()
        self._exchanged_of_pass = exchanged = self._workers.exchanged()
        self._windows.add(time.monotonic(), figures, exchanged)

    def now(self) -> Parts | None:
        """The last seconds for a display; says once why training is slow."""
        if not (figures := self._workers.worker_figures()):
            return None
        recent = self._windows.add(time.monotonic(), figures, self._workers.exchanged())
        slow = self._windows.slowness
        if slow is not None and (slow.cause, slow.workers) not in self._said:
            self._said.add((slow.cause, slow.workers))
            say(f"slow: {slow.text}")
        return parts(recent, "" if slow is None else slow.text, self._windows.exchanged)

    def of_pass(self) -> Parts | None:
        """The whole pass, when its last step is done, for a display; sets `pass_record`."""
        self.hottest = hottest = self._workers.hottest_rows()
        figures, exchanged = self._workers.worker_figures(), self._workers.exchanged()
        if exchanged is None:
            return None
        exchanged = exchanged.since(self._exchanged_of_pass)
        self.pass_record = {
            "exchange": documents.plain(exchanged.whole()),
            "hottest": documents.plain(hottest),
        }
        shown = parts(since(figures, self._of_pass), "", exchanged)
        return replace(shown, notes=(*shown.notes, *exchange_lines.hottest(hottest)))

    def since_line(self) -> dict[str, Any]:
        """What a line of log.jsonl has of each worker, in `timing`, since the line before."""
        figures, exchanged = self._workers.worker_figures(), self._workers.exchanged()
        if exchanged is None:
            return {}
        self._windows.add(time.monotonic(), figures, exchanged)
        since_line = since(figures, self._of_line)
        exchanged_since = exchanged.since(self._exchanged_of_line)
        self._of_line, self._exchanged_of_line = figures, exchanged
        self.scalars = exchange_lines.scalars(since_line, exchanged_since)
        slow = self._windows.slowness
        return {
            "workers": [asdict(worker.rounded()) for worker in since_line],
            "exchange": exchanged_since.in_step(),
            **({} if slow is None else {"slow": slow.text}),
        }


def parts(
    figures: Sequence[WorkerFigures], remark: str, exchanged: ExchangeFigures | None = None
) -> Parts:
    """The figures of all workers, by rank, as a display shows them."""
    workers = [worker for worker in figures if worker.role == "worker"]
    rows = [
        (
            str(rank) if rank < len(workers) else f"server {rank - len(workers)}",
            f"{worker.rows:,}",
            size(worker.bytes),
            f"{worker.bytes_per_second / 1e6:.1f} MB/s",
            *(_share(worker, seconds) for seconds in _waits(worker)),
        )
        for rank, worker in enumerate(figures)
    ]
    shown = rows[:MOST_ROWS]
    if len(rows) > len(shown):
        shown.append((f"and {len(rows) - len(shown)} more", *[""] * (len(HEADINGS) - 1)))
    notes = () if exchanged is None else exchange_lines.notes(workers, exchanged)
    line = _line(workers, figures[len(workers) :])
    return Parts(HEADINGS, shown, line, remark, notes)


def _share(worker: WorkerFigures, seconds: float) -> str:
    return f"{worker.share(seconds):.0%}" if worker.role == "worker" else ""


def _waits(worker: WorkerFigures) -> tuple[float, float, float]:
    for_others = worker.worker_wait_seconds + worker.idle_seconds
    return worker.input_wait_seconds, for_others, worker.exchange_seconds


def _line(figures: Sequence[WorkerFigures], servers: Sequence[WorkerFigures]) -> str:
    """All of it in one line: a value for each worker, or of many the least and the most."""
    shares = [[worker.share(seconds) for seconds in _waits(worker)] for worker in figures]
    for_data, for_others, exchanging = zip(*shares, strict=True)
    of_servers = [] if not servers else [
        f"servers: rows {listed([server.rows for server in servers], ',')}",
        f"network {listed([s.bytes_per_second / 1e6 for s in servers], '.1f')} MB/s",
    ]  # fmt: skip
    of_workers = [] if servers else [f"rows {listed([worker.rows for worker in figures], ',')}"]
    return "  workers: " + ", ".join(
        (
            *of_workers,
            f"network {listed([w.bytes_per_second / 1e6 for w in figures], '.1f')} MB/s",
            f"waited for data {listed(for_data, '.0%')}",
            f"for others {listed(for_others, '.0%')}",
            f"exchanging {listed(exchanging, '.0%')}",
            *of_servers,
        )
    )
