"""What is shown and recorded of each worker, where several train."""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tnctl import documents
from tnctl.training.worker_figures import ExchangeFigures, WorkerFigures, since
from tnctl.training.workers import Workers

SECONDS = 10.0  # to twice of which the line about now is of
MOST_LISTED = 8  # workers whose shares are listed in a line
LEAST_WAIT = 0.01  # share of the workers' time; below it nobody is waited for


@dataclass(frozen=True)
class Sums:
    """What all processes did since they were started, or since earlier sums."""

    processes: Sequence[WorkerFigures]
    exchanged: ExchangeFigures

    def since(self, earlier: "Sums") -> "Sums":
        """What was done since earlier sums of the same processes."""
        processes = since(self.processes, earlier.processes)
        return Sums(processes, self.exchanged.since(earlier.exchanged))

    @property
    def workers(self) -> list[WorkerFigures]:
        """Those of the workers, by rank."""
        return [process for process in self.processes if process.role == "worker"]


class WorkerWatch:
    """Follows the figures of each worker; with one process there is nothing to show."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._of_pass = self._of_line = self._sums()
        self._marks: deque[tuple[float, Sums]] = deque(maxlen=2)
        self.scalars: dict[str, float] = {}
        """of the last line of log.jsonl, for TensorBoard"""
        self.pass_record: dict[str, Any] = {}
        """what the line of a pass in log.jsonl has, in `timing`"""

    def _sums(self) -> Sums | None:
        exchanged = self._workers.exchanged()
        return None if exchanged is None else Sums(self._workers.worker_figures(), exchanged)

    def start_pass(self) -> None:
        """From now on `of_pass` has the sums of another pass."""
        self._of_pass = self._sums()

    def now(self) -> str:
        """A line about the last 10 to 20 s; empty with one process."""
        if (sums := self._sums()) is None:
            return ""
        now = time.monotonic()
        if not self._marks or now - self._marks[-1][0] >= SECONDS:
            self._marks.append((now, sums))
        return line_of(sums.since(self._marks[0][1]))

    def of_pass(self) -> str:
        """A line about the whole pass, when its last step is done; sets `pass_record`."""
        sums = self._sums()
        if sums is None or self._of_pass is None:
            return ""
        of_pass = sums.since(self._of_pass)
        self.pass_record = {"exchange": documents.plain(of_pass.exchanged.report())}
        return line_of(of_pass)

    def since_line(self) -> dict[str, Any]:
        """What a line of log.jsonl has of each worker, in `timing`, since the line before."""
        sums = self._sums()
        if sums is None or self._of_line is None:
            return {}
        since_line, self._of_line = sums.since(self._of_line), sums
        self.scalars = scalars_of(since_line)
        return {
            "workers": [asdict(process.rounded()) for process in since_line.processes],
            "exchange": documents.plain(since_line.exchanged.report()),
        }


def line_of(sums: Sums) -> str:
    """The shares of each worker's time, and which of them the others waited for most."""
    workers = sums.workers
    shares = {
        "data": [worker.input_wait_seconds for worker in workers],
        "compute": [worker.compute_seconds for worker in workers],
        "peers": [worker.worker_wait_seconds + worker.idle_seconds for worker in workers],
        "network": [worker.exchange_seconds for worker in workers],
    }
    parts = [
        f"{name} {_listed([w.share(s) for w, s in zip(workers, seconds, strict=True)])}"
        for name, seconds in shares.items()
    ]
    awaited, seconds = sums.exchanged.awaited, sum(worker.seconds for worker in workers)
    if seconds and awaited.max() >= LEAST_WAIT * seconds:
        parts.append(f"waited for worker {awaited.argmax()}")
    return f"workers: {', '.join(parts)}"


def _listed(shares: Sequence[float]) -> str:
    """A share for each, or of many the least and the most."""
    if len(shares) > MOST_LISTED:
        return f"{min(shares):.0%} to {max(shares):.0%}"
    return " | ".join(f"{share:.0%}" for share in shares)


def scalars_of(sums: Sums) -> dict[str, float]:
    """Numbers of each worker and server by tags such as `cluster_exchange_share/worker_0`."""
    of_workers = {**_by_process(sums.workers), "awaited_seconds": sums.exchanged.awaited.tolist()}
    if stale := sums.exchanged.staleness():
        of_workers |= {
            "staleness_mean": [worker.mean for worker in stale],
            "staleness_max": [worker.max for worker in stale],
            "ahead": [worker.ahead for worker in stale],
        }
    servers = [process for process in sums.processes if process.role == "server"]
    return {**_tagged(of_workers, "worker"), **_tagged(_by_process(servers), "server")}


def _by_process(figures: Sequence[WorkerFigures]) -> dict[str, Sequence[float]]:
    return {
        "compute_share": [process.share(process.compute_seconds) for process in figures],
        "input_wait_share": [process.share(process.input_wait_seconds) for process in figures],
        "worker_wait_share": [process.share(process.worker_wait_seconds) for process in figures],
        "exchange_share": [process.share(process.exchange_seconds) for process in figures],
        "idle_share": [process.share(process.idle_seconds) for process in figures],
        "bytes_per_second": [process.bytes_per_second for process in figures],
    }


def _tagged(figures: dict[str, Sequence[float]], kind: str) -> dict[str, float]:
    return {
        f"cluster_{name}/{kind}_{number}": value
        for name, values in figures.items()
        for number, value in enumerate(values)
    }
