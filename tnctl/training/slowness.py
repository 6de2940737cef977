"""Why the training of several workers is slow, from the shares of their time."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import median

from tnctl.training.exchange_figures import OwnerFigures, imbalance
from tnctl.training.worker_figures import WorkerFigures

# Shares of time. Below them nothing is said: other causes may weigh as much.
READS = 0.3
IDLES = 0.25
WAITS = 0.25
WAITS_TOO = 0.1  # a worker that waits longer for others is not the one that all wait for
EXCHANGES = 0.35
ON_THE_WAY = 0.5  # of what exchanging takes: from here on it is the network, below it owners
SLOWER = 2.0  # than the median of the others is the network of one worker
EXCHANGES_TOO = 0.15  # below it an owner that has more to do than others delays nobody
UNBALANCED = 1.5  # times the mean of all owners


class Cause(Enum):
    """What takes the time."""

    READING = "reading"
    NO_DATA = "no data"
    SLOWEST = "slowest"
    OWNER = "owner"
    EXCHANGING = "exchanging"
    NETWORK = "network"


@dataclass(frozen=True)
class Slowness:
    """What takes the time, the workers that are meant (empty: all), and a sentence about it.

    With Cause.OWNER it is the owner that is meant.
    """

    cause: Cause
    workers: tuple[int, ...]
    text: str


def why_slow(
    figures: Sequence[WorkerFigures], owners: Sequence[OwnerFigures] = ()
) -> Slowness | None:
    """What limits the speed of workers with these sums, by rank; None when nothing stands out.

    `owners` are the sums of the same time, by owner.

    A step takes as long as its slowest worker, so the one that waits least for others is looked at.
    Dedicated servers are not looked at.
    """
    between = "the workers"
    if any(each.role == "server" for each in figures):
        between = "workers and servers"
    figures = [worker for worker in figures if worker.role == "worker"]
    if len(figures) == 2 and between == "the workers":
        between = "worker 0 and 1"
    if len(figures) < 2 or not all(worker.seconds for worker in figures):
        return None
    idle = tuple(
        rank for rank, worker in enumerate(figures) if worker.share(worker.idle_seconds) >= IDLES
    )
    busy = [rank for rank in range(len(figures)) if rank not in idle]
    if not busy:
        return None
    slowest = min(busy, key=lambda rank: _waits(figures[rank]))
    exchanging = sum(figures[rank].share(figures[rank].exchange_seconds) for rank in busy)
    return (
        _reading(figures, slowest)
        or _no_data(figures, idle)
        or _waiting(figures, slowest)
        or _unbalanced(owners, exchanging / len(busy))
        or _exchanging(figures, busy, between)
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


def _unbalanced(owners: Sequence[OwnerFigures], exchanging: float) -> Slowness | None:
    if exchanging < EXCHANGES_TOO:
        return None
    for name, amounts in (
        ("keys", [owner.keys for owner in owners]),
        ("bytes", [owner.received_bytes + owner.sent_bytes for owner in owners]),
    ):
        if amounts and (ratio := imbalance(amounts)) >= UNBALANCED:
            busiest = amounts.index(max(amounts))
            text = (
                f"owner {busiest} has {_percent(amounts[busiest] / sum(amounts))} of the {name}, "
                f"{ratio:.1f} times its share, and exchanging takes {_percent(exchanging)} of a "
                "step: with another number of owners rows are divided in another way"
            )
            return Slowness(Cause.OWNER, (busiest,), text)
    return None


def _exchanging(
    figures: Sequence[WorkerFigures], busy: Sequence[int], between: str
) -> Slowness | None:
    shares = [figures[rank].share(figures[rank].exchange_seconds) for rank in busy]
    mean = sum(shares) / len(shares)
    if mean < EXCHANGES:
        return None
    farthest = max(busy, key=lambda rank: _on_the_way(figures[rank]))
    worker = figures[farthest]
    if worker.network_seconds >= ON_THE_WAY * worker.exchange_seconds:
        return _network(figures, farthest, mean, between)
    text = (
        f"exchanging takes {_percent(mean)} of a step: a larger train.batch_size exchanges less "
        "often, a smaller embedding.width fewer bytes"
    )
    return Slowness(Cause.EXCHANGING, (), text)


def _on_the_way(worker: WorkerFigures) -> float:
    return worker.share(worker.network_seconds)


def _network(
    figures: Sequence[WorkerFigures], farthest: int, waits: float, between: str
) -> Slowness:
    """Where exchanging takes long because of the way: to one worker, or between all."""
    others = [_on_the_way(worker) for rank, worker in enumerate(figures) if rank != farthest]
    workers: tuple[int, ...] = ()
    where = f"between {between}"
    if len(figures) > 2 and _on_the_way(figures[farthest]) >= SLOWER * median(others):
        workers, where = (farthest,), f"of worker {farthest}"
    text = (
        f"the network {where} carries {_carried(figures[farthest]) / 1e6:.1f} MB/s, and the "
        f"workers wait {_percent(waits)} of their time for it: cluster.wire=bfloat16 sends fewer "
        "bytes, cluster.mode=async sends them while workers compute, a larger train.batch_size "
        "exchanges less often"
    )
    return Slowness(Cause.NETWORK, workers, text)


def _carried(worker: WorkerFigures) -> float:
    """Bytes per second in one direction, of the time in which something was on the way.

    Those that have arrived: what was sent may still wait. There travels about as much as back.
    """
    return worker.received_bytes / min(worker.network_seconds, worker.seconds)


def _percent(share: float) -> str:
    return f"{share:.0%}"
