"""What workers exchanged, in lines of a display, and in scalars and a table of TensorBoard."""

import re
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from tnctl.training.exchange_figures import ExchangeFigures, HotRow, OwnerFigures, imbalance
from tnctl.training.worker_figures import WorkerFigures

MOST_LISTED = 8  # workers or owners whose figures are listed in a plain line
HOTTEST_SHOWN = 5
LONGEST_VALUE = 40  # characters
MOST_PAIRED = 16  # workers, or owners, of which TensorBoard has each pair
LEAST_WAIT = 0.01  # share of time; below it nobody is waited for


def listed(values: Sequence[float], form: str) -> str:
    """A value for each, or of many the least and the most."""
    if len(values) > MOST_LISTED:
        return f"{min(values):{form}} to {max(values):{form}}"
    return " | ".join(format(value, form) for value in values)


def notes(figures: Sequence[WorkerFigures], exchanged: ExchangeFigures) -> tuple[str, ...]:
    """Lines below the figures of workers: the load of owners, who is waited for, staleness."""
    owners = exchanged.owners()
    lines = [f"owners: keys {_shares(_keys(owners))}, bytes {_shares(_bytes(owners))}"]
    seconds = sum(worker.seconds for worker in figures)
    longest = [
        f"{name} {awaited.index(max(awaited))} ({max(awaited) / seconds:.0%} of the workers' time)"
        for name, awaited in (
            ("worker", exchanged.awaited),
            ("owner", [owner.awaited_seconds for owner in owners]),
        )
        if seconds and max(awaited) >= LEAST_WAIT * seconds
    ]
    if longest:
        lines.append(f"waited for most: {', '.join(longest)}")
    if stale := exchanged.staleness():
        lines.append(
            f"staleness: mean {listed([worker.mean for worker in stale], '.1f')}, "
            f"most {listed([worker.max for worker in stale], ',')}, "
            f"batches ahead {listed([worker.ahead for worker in stale], ',')}"
        )
    return tuple(lines)


def hottest(rows: Sequence[HotRow]) -> Iterator[str]:
    """A line about the first rows, if there are any."""
    if rows:
        texts = (f"{row.group} {_value(row)} {row.batches:.0%}" for row in rows[:HOTTEST_SHOWN])
        yield f"hottest rows, by their share of batches: {', '.join(texts)}"


def hottest_cells(rows: Sequence[HotRow]) -> list[list[str]]:
    """The rows as a table of Markdown texts, its heads first."""
    heads = [f"**{head}**" for head in ("share group", "id", "batches", "keys")]
    return [
        heads,
        *(
            [_code(row.group), _code(_value(row)), f"{row.batches:.1%}", f"{row.keys:.3%}"]
            for row in rows
        ),
    ]


def _value(row: HotRow) -> str:
    return (row.value or row.id)[:LONGEST_VALUE]


def _code(text: str) -> str:
    """A text that Markdown shows as it is."""
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * (longest + 1)
    return f"{fence} {' '.join(text.split())} {fence}"


def scalars(figures: Sequence[WorkerFigures], exchanged: ExchangeFigures) -> dict[str, float]:
    """Numbers of each worker and owner by their tags, such as `cluster_exchange_share/worker_0`.

    Of up to 16 workers and 16 owners also the share of its time that each waited for each.
    """
    owners = exchanged.owners()
    workers, servers = (
        [process for process in figures if process.role == role] for role in ("worker", "server")
    )
    by_worker = {**_by_process(workers), "awaited_seconds": exchanged.awaited}
    if stale := exchanged.staleness():
        by_worker |= {
            "staleness_mean": [worker.mean for worker in stale],
            "staleness_max": [worker.max for worker in stale],
            "ahead": [worker.ahead for worker in stale],
        }
    by_owner: dict[str, Sequence[float]] = {
        "keys": _keys(owners),
        "bytes": _bytes(owners),
        "awaited_seconds": [owner.awaited_seconds for owner in owners],
    }
    return {
        **_tagged(by_worker, "worker"),
        **_tagged(_by_process(servers), "server"),
        **_tagged(by_owner, "owner"),
        **_pairs(workers, "worker", exchanged.worker_waits),
        **_pairs(workers, "owner", exchanged.owner_waits),
        "cluster/keys_imbalance": imbalance(_keys(owners)),
        "cluster/bytes_imbalance": imbalance(_bytes(owners)),
    }


def _by_process(figures: Sequence[WorkerFigures]) -> dict[str, Sequence[float]]:
    return {
        "compute_share": [process.share(process.compute_seconds) for process in figures],
        "input_wait_share": [process.share(process.input_wait_seconds) for process in figures],
        "worker_wait_share": [process.share(process.worker_wait_seconds) for process in figures],
        "exchange_share": [process.share(process.exchange_seconds) for process in figures],
        "idle_share": [process.share(process.idle_seconds) for process in figures],
        "bytes_per_second": [process.bytes_per_second for process in figures],
    }


def _pairs(
    workers: Sequence[WorkerFigures], kind: str, seconds: NDArray[np.float64]
) -> dict[str, float]:
    """For whom each worker waited: float64 [workers, n], of n workers or owners."""
    if max(seconds.shape) > MOST_PAIRED:
        return {}
    return {
        f"cluster_wait_share/worker_{rank}_for_{kind}_{number}": worker.share(max(waited, 0.0))
        for rank, (worker, waits) in enumerate(zip(workers, seconds.tolist(), strict=True))
        for number, waited in enumerate(waits)
        if (kind, number) != ("worker", rank)
    }


def _tagged(figures: dict[str, Sequence[float]], kind: str) -> dict[str, float]:
    return {
        f"cluster_{name}/{kind}_{number}": value
        for name, values in figures.items()
        for number, value in enumerate(values)
    }


def _keys(owners: Sequence[OwnerFigures]) -> list[int]:
    return [owner.keys for owner in owners]


def _bytes(owners: Sequence[OwnerFigures]) -> list[int]:
    return [owner.received_bytes + owner.sent_bytes for owner in owners]


def _shares(amounts: Sequence[int]) -> str:
    total = sum(amounts)
    return listed([amount / total if total else 0.0 for amount in amounts], ".0%")
