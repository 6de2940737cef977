"""What each of several workers owns, did and was waited for: log.jsonl, report.json, display."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from tnctl.documents import Count, omitted

Ratio = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
# What the main thread of a worker spends its seconds on.
KINDS = ("compute", "input_wait", "worker_wait", "exchange", "idle")
HELD = ("rows", "bytes", "role")  # the figures that are no sums


@dataclass(frozen=True, kw_only=True)
class WorkerFigures:
    """The rows and bytes that a worker owns, and sums over the steps that it took part in.

    `bytes` are of rows and index in memory. `sent_bytes` and `received_bytes` travelled
    between this worker and the others. The seconds of its main thread are `compute_seconds`,
    `input_wait_seconds` (for data), `worker_wait_seconds` (until the exchanges of all other workers
    were there), `exchange_seconds` (for the answers after that: the owners' work, and the way) and
    `idle_seconds` (in steps for which it has no data). `owner_seconds` is the work on the rows that
    it owns, which another thread does beside these. `left_out` are the steps that began without the
    worker (cluster.backup), whose batch it then trained again. `network_seconds` is the time that
    exchanges of 64 KiB or more and their replies were on the way between machines, also while it
    computes: the mean over the other workers.

    A dedicated server (`role`) has no main thread that trains: of it there are the rows and bytes,
    the bytes that travelled, `owner_seconds`, and `idle_seconds` in which it answered nobody.
    """

    rows: Count
    bytes: Count
    sent_bytes: Count = 0
    received_bytes: Count = 0
    compute_seconds: Seconds = 0.0
    input_wait_seconds: Seconds = 0.0
    worker_wait_seconds: Seconds = 0.0
    exchange_seconds: Seconds = 0.0
    idle_seconds: Seconds = 0.0
    owner_seconds: Seconds = 0.0
    left_out: Count = 0
    network_seconds: Seconds = 0.0
    role: Literal["worker", "server"] = "worker"

    def since(self, earlier: "WorkerFigures") -> "WorkerFigures":
        """What the worker has now, and the sums since earlier figures of it."""
        return self._with_sums(lambda name: getattr(self, name) - getattr(earlier, name))

    def rounded(self) -> "WorkerFigures":
        """These figures with whole milliseconds."""
        return self._with_sums(lambda name: round(getattr(self, name), 3))

    def _with_sums(self, value_of: Callable[[str], Any]) -> "WorkerFigures":
        names = [field.name for field in fields(self) if field.name not in HELD]
        return replace(self, **{name: value_of(name) for name in names})

    @property
    def seconds(self) -> float:
        """Of the main thread, altogether; of a server, of its work and between."""
        of_server = self.owner_seconds if self.role == "server" else 0.0
        return sum((getattr(self, f"{kind}_seconds") for kind in KINDS), of_server)

    def share(self, seconds: float) -> float:
        """A part of `seconds`, 0 before the first step."""
        return seconds / self.seconds if self.seconds else 0.0

    @property
    def bytes_per_second(self) -> float:
        """Sent and received."""
        return (self.sent_bytes + self.received_bytes) / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, kw_only=True)
class Staleness:
    """Of the batches of a worker that owner 0 applied: how stale the rows were that they read.

    `mean` and `max` count the batches, of any worker, that were applied between the answer to a
    pull and its push. `ahead` is the most batches that the worker was ahead of the slowest one.
    """

    batches: Count
    mean: Ratio
    max: Count
    ahead: Count


@dataclass(frozen=True, kw_only=True)
class ExchangeReport:
    """The sums of a run, of a pass, or since the line before: seconds, and staleness, by worker.

    `awaited` are the seconds that all others waited for a worker. A report of an earlier version
    has none.
    """

    awaited: tuple[Seconds, ...] = ()
    staleness: tuple[Staleness, ...] | None = omitted()


@dataclass(frozen=True)
class ExchangeFigures:
    """Sums since the workers were started.

    `awaited` float64 [workers] are the seconds that all others waited for a worker. `stale` int64
    [workers, n] counts batches by their staleness, `ahead` by how far the worker was ahead; the
    last column has all that are larger. In the mode `sync` n is 0.
    """

    awaited: NDArray[np.float64]
    stale: NDArray[np.int64]
    ahead: NDArray[np.int64]

    def since(self, earlier: "ExchangeFigures") -> "ExchangeFigures":
        """The sums since earlier ones of the same workers."""
        return ExchangeFigures(
            *(getattr(self, field.name) - getattr(earlier, field.name) for field in fields(self))
        )

    def staleness(self) -> list[Staleness]:
        """By worker; empty in the mode `sync`."""
        if not self.stale.shape[1]:
            return []
        numbers = np.arange(self.stale.shape[1])
        return [
            Staleness(
                batches=int(stale.sum()),
                mean=round(float(stale @ numbers) / max(int(stale.sum()), 1), 3),
                max=_highest(stale),
                ahead=_highest(ahead),
            )
            for stale, ahead in zip(self.stale, self.ahead, strict=True)
        ]

    def report(self) -> ExchangeReport:
        """What the report and log.jsonl have of it."""
        return ExchangeReport(
            awaited=tuple(round(max(seconds, 0.0), 3) for seconds in self.awaited.tolist()),
            staleness=tuple(self.staleness()) or None,
        )


@dataclass(frozen=True)
class WorkerSums:
    """What all processes did since they were started, or since earlier sums."""

    processes: Sequence[WorkerFigures]
    exchanged: ExchangeFigures

    def since(self, earlier: "WorkerSums") -> "WorkerSums":
        """What was done since earlier sums of the same processes."""
        pairs = zip(self.processes, earlier.processes, strict=True)
        return WorkerSums(
            [process.since(past) for process, past in pairs],
            self.exchanged.since(earlier.exchanged),
        )

    @property
    def workers(self) -> list[WorkerFigures]:
        """The figures of the workers, by rank."""
        return [process for process in self.processes if process.role == "worker"]


def _highest(counts: NDArray[np.int64]) -> int:
    present = np.flatnonzero(counts)
    return int(present[-1]) if len(present) else 0
