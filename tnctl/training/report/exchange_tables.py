"""The tables of report.html about what workers exchanged, and for whom they waited."""

from collections.abc import Sequence

from tnctl.progress import size
from tnctl.training.exchange_figures import ExchangeReport, HotRow, imbalance
from tnctl.training.report.fragments import NONE, Markup, fill, joined, table_of, table_row

MOST_SHOWN = 16  # workers or owners


def exchange_tables(exchange: ExchangeReport | None) -> Markup:
    """The load of owners, who waited for whom, and staleness; empty with one process."""
    if exchange is None:
        return Markup()
    return joined(
        [
            _owners(exchange),
            _waits("worker", "worker", exchange.waits_for_workers),
            _waits("worker", "owner", exchange.waits_for_owners),
            _staleness(exchange),
        ]
    )


def hottest_table(hottest: Sequence[HotRow]) -> Markup:
    """The rows that most batches of the last pass asked for."""
    rows = [
        table_row(
            row.group, (row.id if row.value is None else row.value, f"{row.batches:.1%}",
                        f"{row.keys:.3%}")
        )
        for row in hottest
    ]  # fmt: skip
    note = (
        "The rows that most batches of the last pass asked for, estimated from a sample: an id or "
        "its value, the share of batches that have it, and its share of the keys asked for."
    )
    table = table_of(("share group", "id", "batches", "keys"), rows)
    return joined([table, fill("note", text=note)]) if rows else Markup()


def _owners(exchange: ExchangeReport) -> Markup:
    owners = exchange.owners
    keys = [owner.keys for owner in owners]
    amounts = [owner.received_bytes + owner.sent_bytes for owner in owners]
    rows = [
        table_row(
            number,
            (
                f"{owner.keys:,}",
                _share(owner.keys, keys),
                size(owner.received_bytes),
                size(owner.sent_bytes),
                _share(amount, amounts),
                f"{owner.awaited_seconds:,.1f} s",
            ),
        )
        for number, (owner, amount) in enumerate(zip(owners, amounts, strict=True))
    ]
    heads = ("keys", "share", "received", "sent", "share of bytes", "waited for it")
    note = (
        "Distinct keys of batches that an owner was asked for, its messages, and how long all "
        f"workers waited for its answers. The busiest owner has {imbalance(keys):.2f} times the "
        f"mean of the keys, and {imbalance(amounts):.2f} times that of the bytes."
    )
    return joined([table_of(("owner", *heads), rows), fill("note", text=note)])


def _waits(waiting: str, awaited: str, seconds: Sequence[Sequence[float]]) -> Markup:
    """How long each waited for each, or, of many, how long all waited for those in the columns."""
    sums = [sum(column) for column in zip(*seconds, strict=True)]
    if not any(sums):
        return Markup()
    longest = sorted(range(len(sums)), key=lambda number: -sums[number])[:MOST_SHOWN]
    columns = sorted(longest)
    shown = list(enumerate(seconds)) if len(seconds) <= MOST_SHOWN else []
    rows = [
        table_row(
            f"{waiting} {number}",
            [
                NONE if (waiting, number) == (awaited, column) else f"{row[column]:,.1f}"
                for column in columns
            ],
        )
        for number, row in shown
    ]
    rows.append(table_row(f"all {waiting}s", [f"{sums[column]:,.1f}" for column in columns]))
    note = f"Seconds that each {waiting} waited for each {awaited}."
    if len(columns) < len(sums):
        note += f" These are the {len(columns)} of {len(sums)} that were waited for longest."
    heads = [f"for {awaited} {column}" for column in columns]
    return joined([table_of(("", *heads), rows), fill("note", text=note)])


def _staleness(exchange: ExchangeReport) -> Markup:
    rows = [
        table_row(number, (f"{worker.batches:,}", f"{worker.mean:.2f}", worker.max, worker.ahead))
        for number, worker in enumerate(exchange.staleness or ())
    ]
    note = (
        "How many batches, of any worker, were applied after the rows of a batch were read and "
        "before its gradients were, and by how many batches a worker was ahead of the slowest one."
    )
    table = table_of(("worker", "batches", "mean staleness", "most", "most ahead"), rows)
    return joined([table, fill("note", text=note)]) if rows else Markup()


def _share(amount: int, amounts: Sequence[int]) -> str:
    total = sum(amounts)
    return f"{amount / total if total else 0.0:.1%}"
