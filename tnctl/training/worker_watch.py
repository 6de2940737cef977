"""What is shown and recorded of each worker, where several train."""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Any

from tnctl.progress import Parts, say, size
from tnctl.training.slowness import Slowness, why_slow
from tnctl.training.worker_figures import WorkerFigures, since
from tnctl.training.workers import Workers

SECONDS = 10.0  # of a window
WINDOWS = 3  # in each of which training must be slow by the same cause
MOST_ROWS = 16  # workers in the live display
MOST_LISTED = 8  # workers whose figures are listed in a plain line
HEADINGS = ("worker", "rows", "memory", "network", "for data", "for others", "exchanging")


class Windows:
    """The figures of the last windows of time, and by which cause all of them were slow."""

    def __init__(self) -> None:
        self._marks: deque[tuple[float, Sequence[WorkerFigures]]] = deque(maxlen=WINDOWS + 1)
        self.slowness: Slowness | None = None
        """the cause in all of the last windows"""

    def add(self, now: float, figures: Sequence[WorkerFigures]) -> list[WorkerFigures]:
        """Take the figures at a time (seconds of a clock); the sums of the last 10 to 20 s."""
        if not self._marks or now - self._marks[-1][0] >= SECONDS:
            self._marks.append((now, figures))
            self.slowness = self._cause_of_all()
        _, earlier = self._marks[max(len(self._marks) - 2, 0)]
        return since(figures, earlier)

    def _cause_of_all(self) -> Slowness | None:
        if len(self._marks) <= WINDOWS:
            return None
        marks = [figures for _, figures in self._marks]
        slow = why_slow(since(marks[-1], marks[0]))
        for earlier, later in pairwise(marks):
            of_window = why_slow(since(later, earlier))
            if slow is None or of_window is None:
                return None
            if (of_window.cause, of_window.workers) != (slow.cause, slow.workers):
                return None
        return slow


class WorkerWatch:
    """Follows the figures of each worker; with one worker there is nothing to show."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._windows = Windows()
        self._of_pass = self._of_line = workers.worker_figures()
        self._said: set[tuple[object, ...]] = set()

    def start_pass(self) -> None:
        """From now on `of_pass` has the sums of another pass."""
        self._of_pass = figures = self._workers.worker_figures()
        self._windows.add(time.monotonic(), figures)

    def now(self) -> Parts | None:
        """The last seconds for a display; says once why training is slow."""
        if not (figures := self._workers.worker_figures()):
            return None
        recent = self._windows.add(time.monotonic(), figures)
        slow = self._windows.slowness
        if slow is not None and (slow.cause, slow.workers) not in self._said:
            self._said.add((slow.cause, slow.workers))
            say(f"slow: {slow.text}")
        return parts(recent, "" if slow is None else slow.text)

    def of_pass(self) -> Parts | None:
        """The whole pass so far, for a display."""
        figures = self._workers.worker_figures()
        return parts(since(figures, self._of_pass), "") if figures else None

    def since_line(self) -> dict[str, Any]:
        """What a line of log.jsonl has of each worker, in `timing`, since the line before."""
        if not (figures := self._workers.worker_figures()):
            return {}
        earlier, self._of_line = self._of_line, figures
        self._windows.add(time.monotonic(), figures)
        slow = self._windows.slowness
        return {
            "workers": [asdict(worker.rounded()) for worker in since(figures, earlier)],
            **({} if slow is None else {"slow": slow.text}),
        }


def parts(figures: Sequence[WorkerFigures], remark: str) -> Parts:
    """The figures of all workers, by rank, as a display shows them."""
    rows = [
        (
            str(rank),
            f"{worker.rows:,}",
            size(worker.bytes),
            f"{worker.bytes_per_second / 1e6:.1f} MB/s",
            *(f"{worker.share(seconds):.0%}" for seconds in _waits(worker)),
        )
        for rank, worker in enumerate(figures)
    ]
    shown = rows[:MOST_ROWS]
    if len(rows) > len(shown):
        shown.append((f"and {len(rows) - len(shown)} more", *[""] * (len(HEADINGS) - 1)))
    return Parts(HEADINGS, shown, _line(figures), remark)


def _waits(worker: WorkerFigures) -> tuple[float, float, float]:
    for_others = worker.worker_wait_seconds + worker.idle_seconds
    return worker.input_wait_seconds, for_others, worker.exchange_seconds


def _line(figures: Sequence[WorkerFigures]) -> str:
    """All of it in one line: a value for each worker, or of many the least and the most."""
    shares = [[worker.share(seconds) for seconds in _waits(worker)] for worker in figures]
    for_data, for_others, exchanging = zip(*shares, strict=True)
    return "  workers: " + ", ".join(
        (
            f"rows {_listed([worker.rows for worker in figures], ',')}",
            f"network {_listed([w.bytes_per_second / 1e6 for w in figures], '.1f')} MB/s",
            f"waited for data {_listed(for_data, '.0%')}",
            f"for others {_listed(for_others, '.0%')}",
            f"exchanging {_listed(exchanging, '.0%')}",
        )
    )


def _listed(values: Sequence[float], form: str) -> str:
    if len(values) > MOST_LISTED:
        return f"{min(values):{form}} to {max(values):{form}}"
    return " | ".join(format(value, form) for value in values)
