"""For which of several workers the others waited, and how stale their pulls were."""

from dataclasses import dataclass, fields
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from tnctl.documents import Count, omitted
from tnctl.training.worker_figures import Seconds

Ratio = Annotated[float, Field(ge=0, allow_inf_nan=False)]


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


def _highest(counts: NDArray[np.int64]) -> int:
    present = np.flatnonzero(counts)
    return int(present[-1]) if len(present) else 0
