"""What workers exchanged with owners, for whom they waited, and how stale their pulls were."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from tnctl.documents import Count, Share, Text, Uint64Text, omitted
from tnctl.training.worker_figures import Seconds

Ratio = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@dataclass(frozen=True, kw_only=True)
class OwnerFigures:
    """What an owner was asked for: distinct keys of batches, and the bytes of the messages.

    Those of the worker in the same process are among them. `awaited_seconds` is the sum of what all
    workers waited for its answers, beyond their waits for each other.
    """

    keys: Count
    received_bytes: Count
    sent_bytes: Count
    awaited_seconds: Seconds


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
class HotRow:
    """A row that is asked for often: `id` of a share group, and its value where that is known.

    `batches` is the share of batches that have the id, `keys` its share of the keys that all
    batches asked for. Both are estimates from a sample.
    """

    group: Text
    id: Uint64Text
    value: Text | None = omitted()
    batches: Share
    keys: Share


@dataclass(frozen=True)
class ExchangeFigures:
    """Sums since the workers were started.

    `keys`, `sent_bytes` and `received_bytes` are int64 [workers, owners]: the distinct keys of
    batches that a worker asked an owner for, and the bytes to it and from it. `owner_waits` float64
    [workers, owners] and `worker_waits` float64 [workers, workers] are seconds that a worker waited
    for an owner, or for another worker (column). `stale` int64 [workers, n] counts batches by their
    staleness, `ahead` by how far the worker was ahead; the last column has all that are larger. In
    the mode `sync` n is 0.
    """

    keys: NDArray[np.int64]
    sent_bytes: NDArray[np.int64]
    received_bytes: NDArray[np.int64]
    owner_waits: NDArray[np.float64]
    worker_waits: NDArray[np.float64]
    stale: NDArray[np.int64]
    ahead: NDArray[np.int64]

    def since(self, earlier: "ExchangeFigures | None") -> "ExchangeFigures":
        """The sums since earlier ones of the same workers; None: all of them."""
        if earlier is None:
            return self
        return ExchangeFigures(
            *(getattr(self, field.name) - getattr(earlier, field.name) for field in fields(self))
        )

    def without_owner(self, owner: int) -> "ExchangeFigures":
        """The figures of the other owners."""
        names = ("keys", "sent_bytes", "received_bytes", "owner_waits")
        columns = {name: np.delete(getattr(self, name), owner, axis=1) for name in names}
        return replace(self, **columns)

    def owners(self) -> list[OwnerFigures]:
        """The sums over all workers, by owner."""
        sums = [array.sum(axis=0).tolist() for array in (self.keys, self.sent_bytes)]
        return [
            OwnerFigures(
                keys=keys,
                received_bytes=received,
                sent_bytes=sent,
                awaited_seconds=round(max(waited, 0.0), 3),
            )
            for keys, received, sent, waited in zip(
                *sums,
                self.received_bytes.sum(axis=0).tolist(),
                self.owner_waits.sum(axis=0).tolist(),
                strict=True,
            )
        ]

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

    @property
    def awaited(self) -> list[float]:
        """The seconds that the others waited for each worker."""
        return [round(seconds, 3) for seconds in self.worker_waits.sum(axis=0).tolist()]

    def in_step(self) -> dict[str, Any]:
        """What a line of log.jsonl has of it, in `timing`, beside the figures of each worker."""
        stale = self.staleness()
        return {
            "owners": [asdict(owner) for owner in self.owners()],
            "awaited": self.awaited,
            **({"staleness": [asdict(worker) for worker in stale]} if stale else {}),
        }

    def whole(self) -> "ExchangeReport":
        """What the report has of it."""
        return ExchangeReport(
            owners=tuple(self.owners()),
            staleness=tuple(self.staleness()) or None,
            waits_for_workers=_rounded(self.worker_waits),
            waits_for_owners=_rounded(self.owner_waits),
        )


Matrix = tuple[tuple[Seconds, ...], ...]


@dataclass(frozen=True, kw_only=True)
class ExchangeReport:
    """The sums of a run, or of a pass.

    `waits_for_workers` and `waits_for_owners` have a row for each worker, with the seconds that it
    waited for each worker or owner.
    """

    owners: tuple[OwnerFigures, ...]
    staleness: tuple[Staleness, ...] | None = omitted()
    waits_for_workers: Matrix = ()
    waits_for_owners: Matrix = ()


def imbalance(amounts: Sequence[float]) -> float:
    """The largest of n amounts divided by their mean: 1 when all are equal, n at most."""
    total = sum(amounts)
    return max(amounts) * len(amounts) / total if total else 1.0


def _highest(counts: NDArray[np.int64]) -> int:
    present = np.flatnonzero(counts)
    return int(present[-1]) if len(present) else 0


def _rounded(seconds: NDArray[np.float64]) -> Matrix:
    return tuple(tuple(round(max(value, 0.0), 3) for value in row) for row in seconds.tolist())
