"""`tnctl check`."""

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tnctl.cli import arguments, compose
from tnctl.cli.printing import print_json
from tnctl.cli.quiet import quiet_tensorflow
from tnctl.errors import UserError, did_you_mean
from tnctl.schema import Conf

if TYPE_CHECKING:
    from tnctl.data.days import Days
    from tnctl.training.forecast import Findings

TAKES = ("conf", "rows", "format")
USAGE = "conf=NAME [rows=N] [format=text|json] [key=value …]"
FORMATS = ("text", "json")


def run(given: list[str]) -> int:
    """Tell what a conf and a sample of its data come to; exit code 0 when it can be trained."""
    own, overrides = arguments.part(given, TAKES)
    if "conf" not in own:
        raise UserError(f"give conf=NAME. {compose.choose_conf('')}")
    kind = own.get("format", "text")
    if kind not in FORMATS:
        raise UserError(f"no format '{kind}'. {did_you_mean(kind, FORMATS)}")
    rows = arguments.count(own, "rows", 100_000)
    if rows == 0:
        raise UserError("rows must be at least 1. Received: rows=0")
    path = compose.conf_file(own["conf"])
    return compose.with_conf(path, overrides, lambda conf: check(conf, rows, kind))


def check(conf: Conf, rows: int, kind: str) -> int:
    quiet_tensorflow()
    from tnctl.progress import waiting
    from tnctl.training import forecast

    with waiting(f"looking at {rows:,} rows of data.train"):
        found = forecast.inspect(conf, rows)
    if kind == "json":
        print_json(described(found))
    else:
        show(conf, found)
    return 0


def described(found: "Findings") -> dict[str, Any]:
    """The findings as plain values."""
    described = dataclasses.asdict(found)
    for name, table in found.tables.items():
        described["tables"][name] = {
            "row_bytes": table.row_bytes,
            "rows": bounded(*table.rows),
            "bytes": bounded(*table.bytes),
            "sketch_bytes": table.sketch_bytes,
            "overcount": table.overcount,
        }
    for name, life in found.lives.items():
        described["lives"][name] = {
            "rules": life.rules,
            "ids": bounded(life.ids.end, life.ids.low, life.ids.high),
            "rows": bounded(life.rows.end, life.rows.low, life.rows.high),
        }
    for name, one in found.groups.items():
        described["groups"][name] = {
            "distinct": one.now,
            "exponent": one.exponent,
            "at_end": bounded(one.end, one.low, one.high),
        }
    described["rows"] = found.rows and bounded(found.rows.estimate, found.rows.low, found.rows.high)
    described["x"] = [
        {"input": name, "column": column, "width": width} for name, column, width in found.x
    ]
    described["sequences"] = [
        {"input": name, "length": length, "width": width} for name, length, width in found.sequences
    ]
    return described


def bounded(estimate: float, low: float, high: float) -> dict[str, float]:
    return {"estimate": round(estimate), "low": round(low), "high": round(high)}


def show(conf: Conf, found: "Findings") -> None:
    """The findings as a person reads them."""
    from tnctl.progress import say, table

    say(
        f"read {found.sample_rows:,} rows of {rows_in_words(found)} in data.train"
        + (f", and {found.skipped_rows:,} that cannot be read" if found.skipped_rows else "")
    )
    if found.days is not None:
        show_days(found.days)
    table(
        "",
        ("slot", "coverage", "mean ids", "most", "distinct", "at the end"),
        [
            (
                name,
                f"{slot.coverage:.1%}",
                f"{slot.mean_ids:.2f}",
                slot.most_ids,
                f"{slot.distinct:,}",
                at_end(found, slot.group, name),
            )
            for name, slot in found.slots.items()
        ],
    )
    say("")
    table("", ("label", "mean"), [(name, f"{rate:.4f}") for name, rate in found.labels.items()])
    say("")
    rows: list[tuple[str, str, str]] = [
        (name, span(*one.rows), size_span(*one.bytes)) for name, one in found.tables.items()
    ]
    rows.append(("dense weights", f"{found.dense_weights:,}", size(found.dense_bytes)))
    table("", ("at the end", "rows", "memory"), rows)
    say("")
    show_lives(found)
    show_inputs(conf, found)
    if found.unused is not None:
        say(f"columns that nothing reads: {', '.join(found.unused) or 'none'}")
    for warning in found.warnings:
        say(f"warning: {warning}")
    if not found.warnings:
        say("no warnings: this conf can be trained")


def show_days(days: "Days") -> None:
    """The days that there are, and those that there are not."""
    from tnctl.data.days import in_words
    from tnctl.progress import say

    there = days.there
    say(
        f"days in data.train: {len(there):,}"
        + (f", {there[0]} to {there[-1]}" if len(there) > 1 else f", {there[0]}")
        + f"; the rows read are of {there[0]}"
    )
    for names, what in ((days.absent, "between them and not there"), (days.later, "not there yet")):
        if names:
            say(f"days {what}: {in_words(names)}")


def show_lives(found: "Findings") -> None:
    """What becomes of ids: those of all groups with one set of rules together."""
    from tnctl.progress import say

    alike: dict[tuple[str, ...], list[str]] = {}
    for name, one in found.lives.items():
        alike.setdefault(tuple(one.rules), []).append(name)
    for rules, names in alike.items():
        say(f"life of {', '.join(names)}:")
        for rule in rules:
            say(f"  {rule}")
        ids, rows = (
            sum(getattr(found.lives[name], part).end for name in names) for part in ("ids", "rows")
        )
        if rows < ids:
            say(f"  -> rows for about {short(rows)} of {short(ids)} ids, before others are removed")
    for name, table in found.tables.items():
        if table.sketch_bytes:
            say(
                f"sketch of {name}: {size(table.sketch_bytes)}; at the end it counts an id at most "
                f"{table.overcount:.2g} too high (98 % of ids)"
            )
    if found.lives:
        say("")


def show_inputs(conf: Conf, found: "Findings") -> None:
    """The order of the inputs of the recipe."""
    from tnctl.progress import say

    width = sum(columns for _, _, columns in found.x)
    say(f"inputs of recipe {conf.recipe['name']}:")
    if found.x:
        say(f"  x [B, {width}]: {spans(found.x)}")
    if found.linear:
        say(f"  linear [B, 1]: {', '.join(found.linear)}")
    for name, length, columns in found.sequences:
        say(f"  sequence {name} [B, {length}, {columns}]")
    say(f"  -> {', '.join(found.heads)}")


def spans(inputs: Iterable[tuple[str, int, int]]) -> str:
    return ", ".join(
        f"{name} {column}" + (f"-{column + width - 1}" if width > 1 else "")
        for name, column, width in inputs
    )


def rows_in_words(found: "Findings") -> str:
    if found.rows is None:
        return "an unknown number"
    if found.rows.low == found.rows.high:
        return f"{found.rows.estimate:,.0f}"
    by = "the sizes of the files" if found.days is None else f"those of {found.days.there[0]}"
    return f"about {short(found.rows.estimate)} (by {by})"


def at_end(found: "Findings", group: str, slot: str) -> str:
    grown = found.groups[group]
    shared = f" (group {group})" if group != slot else ""
    return span(grown.end, grown.low, grown.high) + shared


def span(estimate: float, low: float, high: float) -> str:
    """An estimate with its bounds, such as 1.2 M (0.9 M to 1.6 M)."""
    if short(low) == short(high):
        return short(estimate)
    return f"{short(estimate)} ({short(low)} to {short(high)})"


def size_span(estimate: float, low: float, high: float) -> str:
    if size(low) == size(high):
        return size(estimate)
    return f"{size(estimate)} ({size(low)} to {size(high)})"


def short(number: float) -> str:
    """A number in three digits or so: 940, 12.3 k, 1.24 M."""
    for limit, unit in ((1e9, " G"), (1e6, " M"), (1e4, " k")):
        if number >= limit:
            return f"{number / (1e3 if unit == ' k' else limit):.3g}{unit}"
    return f"{number:,.0f}"


def size(number: float) -> str:
    for limit, unit in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if number >= limit:
            return f"{number / limit:,.1f} {unit}"
    return f"{number:,.0f} B"
