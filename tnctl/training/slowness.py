"""Why the training of several workers is slow, from the shares of their time."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from tnctl.training.worker_figures import WorkerFigures

# Shares of time. Below them nothing is said: other causes may weigh as much.
READS = 0.3
IDLES = 0.25
WAITS = 0.25
WAITS_TOO = 0.1  # a worker that waits longer for others is not the one that all wait for
EXCHANGES = 0.35


class Cause(Enum):
    """What takes the time."""

    READING = "reading"
    NO_DATA = "no data"
    SLOWEST = "slowest"
    EXCHANGING = "exchanging"


@dataclass(frozen=True)
class Slowness:
    """What takes the time, the workers that are meant (empty: all), and a sentence about it."""

    cause: Cause
    workers: tuple[int, ...]
    text: str


def why_slow(figures: Sequence[WorkerFigures]) -> Slowness | None:
    """What limits the speed of workers with these sums, by rank; None when nothing stands out.

    A step takes as long as its slowest worker, so the one that waits least for others is looked at.
    """
    if len(figures) < 2 or not all(worker.seconds for worker in figures):
        return None
    idle = tuple(
        rank for rank, worker in enumerate(figures) if worker.share(worker.idle_seconds) >= IDLES
    )
    busy = [rank for rank in range(len(figures)) if rank not in idle]
    if not busy:
        return None
    slowest = min(busy, key=lambda rank: _waits(figures[rank]))
    return (
        _reading(figures, slowest)
        or _no_data(figures, idle)
        or _waiting(figures, slowest)
        or _exchanging([figures[rank] for rank in busy])
    )


def _waits(worker: WorkerFigures) -> float:
    return worker.share(worker.worker_wait_seconds)


def _reading(figures: Sequence[WorkerFigures], slowest: int) -> Slowness | None:
    shares = [worker.share(worker.input_wait_seconds) for worker in figures]
    if shares[slowest] < READS:
        return None
    way_out = "`tnctl prepare` makes it faster to read, and so do more CPUs"
    if min(shares) >= READS:
        mean = sum(shares) / len(shares)
        text = f"the workers wait {_percent(mean)} of their time for data: {way_out}"
        return Slowness(Cause.READING, (), text)
    text = f"worker {slowest} waits {_percent(shares[slowest])} of its time for data: {way_out}"
    return Slowness(Cause.READING, (slowest,), text)


def _no_data(figures: Sequence[WorkerFigures], idle: tuple[int, ...]) -> Slowness | None:
    if not idle:
        return None
    share = max(figures[rank].share(figures[rank].idle_seconds) for rank in idle)
    ranks = ", ".join(map(str, idle))
    who, whose = (f"worker {ranks} has", "its") if len(idle) == 1 else (f"workers {ranks} have", "")
    of_time = f"{_percent(share)} of {whose} time" if whose else f"up to {_percent(share)} of it"
    text = (
        f"{who} no data left and waited {of_time} for the others: write files of about the same "
        "size, several for each worker"
    )
    return Slowness(Cause.NO_DATA, idle, text)


def _waiting(figures: Sequence[WorkerFigures], slowest: int) -> Slowness | None:
    others = [_waits(worker) for rank, worker in enumerate(figures) if rank != slowest]
    mean = sum(others) / len(others)
    if mean < WAITS or _waits(figures[slowest]) > WAITS_TOO:
        return None
    who = "the others wait" if len(others) > 1 else "the other waits"
    whose = "their" if len(others) > 1 else "its"
    text = (
        f"worker {slowest} is the slowest, {who} {_percent(mean)} of {whose} time for it: does it "
        "have fewer CPUs, or do other programs use them?"
    )
    return Slowness(Cause.SLOWEST, (slowest,), text)


def _exchanging(figures: Sequence[WorkerFigures]) -> Slowness | None:
    mean = sum(worker.share(worker.exchange_seconds) for worker in figures) / len(figures)
    if mean < EXCHANGES:
        return None
    text = (
        f"exchanging takes {_percent(mean)} of a step: a larger train.batch_size exchanges less "
        "often, a smaller embedding.width fewer bytes"
    )
    return Slowness(Cause.EXCHANGING, (), text)


def _percent(share: float) -> str:
    return f"{share:.0%}"
