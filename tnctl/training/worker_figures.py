"""What each of several workers owns and did: of log.jsonl, report.json and the display."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Literal

from pydantic import Field

from tnctl.documents import Count

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
HELD = ("rows", "bytes", "role")  # the figures that are no sums


@dataclass(frozen=True, kw_only=True)
class WorkerFigures:
    """The rows and bytes that a worker owns, and sums over the steps that it took part in.

    `bytes` are those of rows and index in memory. `sent_bytes` and `received_bytes` travelled
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
        values = asdict(self)
        for name, value in asdict(earlier).items():
            if name not in HELD:
                values[name] -= value
        return WorkerFigures(**values)

    @property
    def seconds(self) -> float:
        """Of the main thread, altogether; of a server, of its work and between."""
        return (
            (self.owner_seconds if self.role == "server" else 0.0)
            + self.compute_seconds
            + self.input_wait_seconds
            + self.worker_wait_seconds
            + self.exchange_seconds
            + self.idle_seconds
        )

    def share(self, seconds: float) -> float:
        """A part of `seconds`, 0 before the first step."""
        return seconds / self.seconds if self.seconds else 0.0

    @property
    def bytes_per_second(self) -> float:
        """Sent and received."""
        return (self.sent_bytes + self.received_bytes) / self.seconds if self.seconds else 0.0

    def rounded(self) -> "WorkerFigures":
        """The same with whole milliseconds."""
        values = asdict(self)
        return WorkerFigures(
            **{name: value if name in HELD else round(value, 3) for name, value in values.items()}
        )


def since(
    figures: Sequence[WorkerFigures], earlier: Sequence[WorkerFigures]
) -> list[WorkerFigures]:
    """The figures of all workers since earlier ones."""
    return [later.since(first) for later, first in zip(figures, earlier, strict=True)]
