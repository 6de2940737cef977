"""`tnctl check`."""

import dataclasses
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from tnctl.cli import arguments
from tnctl.cli.confs_and_runs import composed
from tnctl.cli.printing import print_json, say, table

if TYPE_CHECKING:
    from tnctl.data.days import Days
    from tnctl.training.check.forecast import Forecast, WorkerMemory

FORMATS = ("text", "json")


def run(given: list[str]) -> int:
    """Show what a conf and a sample of its data come to; exit code 0 when it can be trained."""
    conf, taken = composed("check", given, takes_cluster=True)
    from tnctl.api import training
    from tnctl.api.calls import choice

    encoding = choice("format", taken.get("format", "text"), FORMATS)
    findings = training.check(conf, arguments.count(taken, "rows", 100_000))
    if encoding == "json":
        print_json(described(findings))
    else:
        show(conf.recipe["name"], findings)
    return 0


def described(findings: "Forecast") -> dict[str, Any]:
    """The findings as plain values."""
    values = dataclasses.asdict(findings)
    if (each := findings.workers) is None:
        del values["workers"]
    else:
        values["workers"] |= {"tables": bounded(*each.tables), "bytes": bounded(*each.bytes)}
        if each.servers:
            values["workers"]["bytes_of_server"] = bounded(*each.bytes_of_server)
        else:
            del values["workers"]["servers"], values["workers"]["server_bytes"]
    values["rows"] = findings.rows and bounded(*findings.rows)
    values["groups"] = {
        name: {
            "distinct": ids.now,
            "exponent": ids.exponent,
            "at_end": bounded(ids.end, ids.low, ids.high),
        }
        for name, ids in findings.groups.items()
    }
    values["lives"] = {
        name: {"rules": life.rules, "ids": bounded(*life.ids), "rows": bounded(*life.rows)}
        for name, life in findings.lives.items()
    }
    values["tables"] = {
        name: {
            "row_bytes": of_table.row_bytes,
            "rows": bounded(*of_table.rows),
            "bytes": bounded(*of_table.bytes),
            "sketch_bytes": of_table.sketch_bytes,
            "overcount": of_table.overcount,
        }
        for name, of_table in findings.tables.items()
    }
    for key, first in (("x", "column"), ("sequences", "length")):
        values[key] = [
            {"input": name, first: value, "width": width} for name, value, width in values[key]
        ]
    return values


def bounded(estimate: float, low: float, high: float) -> dict[str, float]:
    return {"estimate": round(estimate), "low": round(low), "high": round(high)}


def show(recipe: str, findings: "Forecast") -> None:
    """The findings as a person reads them."""
    from tnctl.limits import size

    skipped = (
        f", and {findings.skipped_rows:,} that cannot be read" if findings.skipped_rows else ""
    )
    say(f"read {findings.sample_rows:,} rows of {rows_in_words(findings)} in data.train{skipped}")
    if findings.days is not None:
        show_days(findings.days)
    at_end = {group: span(ids.end, ids.low, ids.high) for group, ids in findings.groups.items()}
    section(
        ("slot", "coverage", "mean ids", "most", "distinct", "at the end"),
        [
            (
                name,
                f"{slot.coverage:.1%}",
                f"{slot.mean_ids:.2f}",
                slot.most_ids,
                f"{slot.distinct:,}",
                at_end[slot.group] + (f" (group {slot.group})" if slot.group != name else ""),
            )
            for name, slot in findings.slots.items()
        ],
    )
    show_numbers(findings)
    section(("label", "mean"), [(name, f"{rate:.4f}") for name, rate in findings.labels.items()])
    rows = [
        (name, span(*tables.rows), span(*tables.bytes, shown=size))
        for name, tables in findings.tables.items()
    ]
    rows.append(("dense weights", f"{findings.dense_weights:,}", size(findings.dense_bytes)))
    section(("at the end", "rows", "memory"), rows)
    if findings.workers is not None:
        show_workers(findings.workers)
    show_lives(findings)
    show_inputs(recipe, findings)
    if findings.batch is not None:
        say(findings.batch.sentence)
    if findings.precision is not None:
        say(findings.precision)
    if findings.unused is not None:
        say(f"columns that nothing reads: {', '.join(findings.unused) or 'none'}")
    for warning in findings.warnings:
        say(f"warning: {warning}")
    if not findings.warnings:
        say("no warnings: this conf can be trained")


def section(headings: Iterable[str], rows: Iterable[Iterable[Any]]) -> None:
    """A table, and a line without text."""
    table("", headings, rows)
    say("")


def show_numbers(findings: "Forecast") -> None:
    """The numeric inputs, before their transforms."""
    if not findings.numbers:
        return
    rows = [
        (
            name,
            f"{number.present:.1%}",
            *(
                "" if value is None else figure(value)
                for key, value in vars(number).items()
                if key != "present"
            ),
        )
        for name, number in findings.numbers.items()
    ]
    headings = ("number", "present", "mean", "lowest", "1 %", "median", "99 %", "highest")
    section(headings, rows)


def show_workers(each: "WorkerMemory") -> None:
    """What each worker and each server needs."""
    from tnctl.limits import size

    part = ("its part of the tables", span(*each.tables, shown=size))
    dense = ("dense weights", size(each.dense_bytes))
    rows = [
        *([] if each.servers else [part]),
        dense,
        ("TensorFlow, and batches on their way, about", size(each.process_bytes)),
        ("together", span(*each.bytes, shown=size)),
    ]
    section((f"each of {each.workers} workers", "memory"), rows)
    if each.servers:
        rows = [
            part,
            dense,
            ("Python, and messages on their way, about", size(each.server_bytes)),
            ("together", span(*each.bytes_of_server, shown=size)),
        ]
        section((f"each of {each.servers} servers", "memory"), rows)


def show_days(days: "Days") -> None:
    """The days that have files, and those that have none."""
    from tnctl.data.days import in_words

    there = days.there
    last = f" to {there[-1]}" if len(there) > 1 else ""
    say(f"days in data.train: {len(there):,}, {there[0]}{last}; the rows read are of {there[0]}")
    for names, what in ((days.absent, "between them and not there"), (days.later, "not there yet")):
        if names:
            say(f"days {what}: {in_words(names)}")


def show_lives(findings: "Forecast") -> None:
    """What becomes of ids: one line for all groups that share a set of rules."""
    from tnctl.limits import size

    alike: dict[tuple[str, ...], list[str]] = {}
    for name, life in findings.lives.items():
        alike.setdefault(tuple(life.rules), []).append(name)
    for rules, names in alike.items():
        say(f"life of {', '.join(names)}:", *(f"  {rule}" for rule in rules))
        ids = sum(findings.lives[name].ids[0] for name in names)
        rows = sum(findings.lives[name].rows[0] for name in names)
        if rows < ids:
            say(f"  -> rows for about {short(rows)} of {short(ids)} ids, before others are removed")
    for name, of_table in findings.tables.items():
        if of_table.sketch_bytes:
            say(
                f"sketch of {name}: {size(of_table.sketch_bytes)}; at the end it counts an id at "
                f"most {of_table.overcount:.2g} too high (98 % of ids)"
            )
    if findings.lives:
        say("")


def show_inputs(recipe: str, findings: "Forecast") -> None:
    """The order of the inputs of the recipe."""
    lines = []
    columns = ", ".join(
        f"{name} {column}" + (f"-{column + width - 1}" if width > 1 else "")
        for name, column, width in findings.x
    )
    if findings.x:
        lines.append(f"x [B, {sum(width for _, _, width in findings.x)}]: {columns}")
    if findings.linear:
        lines.append(f"linear [B, 1]: {', '.join(findings.linear)}")
    lines += [
        f"sequence {name} [B, {length}, {width}]" for name, length, width in findings.sequences
    ]
    lines.append(f"-> {', '.join(findings.heads)}")
    say(f"inputs of recipe {recipe}:", *(f"  {line}" for line in lines))


def rows_in_words(findings: "Forecast") -> str:
    if findings.rows is None:
        return "an unknown number"
    if findings.rows.low == findings.rows.high:
        return f"{findings.rows.estimate:,.0f}"
    days = findings.days
    by = "the sizes of the files" if days is None else f"the rows of {days.there[0]}"
    return f"about {short(findings.rows.estimate)} (by {by})"


def short(number: float) -> str:
    """A number in three digits or so: 940, 12.3 k, 1.24 M."""
    for least, unit, word in ((1e9, 1e9, " G"), (1e6, 1e6, " M"), (1e4, 1e3, " k")):
        if number >= least:
            return f"{number / unit:.3g}{word}"
    return f"{number:,.0f}"


def figure(number: float) -> str:
    """A number of the data in four digits or so: -0.25, 3.142, -12.3 k."""
    return (
        f"{number:.4g}" if abs(number) < 1e4 else f"{number:.3g}" if number < 0 else short(number)
    )


def span(estimate: float, low: float, high: float, *, shown: Callable[[float], str] = short) -> str:
    """An estimate with its bounds, such as 1.2 M (0.9 M to 1.6 M)."""
    if shown(low) == shown(high):
        return shown(estimate)
    return f"{shown(estimate)} ({shown(low)} to {shown(high)})"
