"""The findings of `tnctl checkpoint` on the terminal."""

import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from tnctl.checkpoint.histogram import Histogram, drawn
from tnctl.checkpoint.listing import NAME
from tnctl.cli.printing import say, table
from tnctl.documents import plain
from tnctl.progress import size

if TYPE_CHECKING:
    from tnctl.checkpoint import checkpoint_inspection, difference
    from tnctl.checkpoint.listing import Entry
    from tnctl.checkpoint.table_document import Optimizer

BAR = 32
EIGHTHS = " ▏▎▍▌▋▊▉"


def show_list(entries: list["Entry"]) -> None:
    """One line for each checkpoint."""
    monitor = next((entry.monitor for entry in entries if entry.monitor), "metric")
    table(
        "",
        ("step", "day", "kind", "rows", "size", "age", monitor, ""),
        [
            (
                step_of(entry.name),
                entry.day or "",
                f"delta of {step_of(entry.parent)}" if entry.parent else entry.kind,
                f"{entry.rows:,}",
                size(entry.bytes),
                age(entry.saved),
                "" if entry.value is None else f"{entry.value:.5f}",
                ", ".join(name for name in ("finished", "best") if getattr(entry, name)),
            )
            for entry in entries
            if entry.problem is None
        ],
        left=(0, 7),
    )
    for entry in entries:
        if entry.problem is not None:
            say(f"not usable: {entry.problem}")


def step_of(name: str) -> str:
    match = NAME.fullmatch(name)
    return f"{int(match[1]):,}{name[match.end(1) :]}" if match else name


def age(saved: str | None) -> str:
    """How long ago a checkpoint was saved; empty when that is not known."""
    if saved is None:
        return ""
    return span((datetime.now(UTC) - datetime.fromisoformat(saved)).total_seconds())


def span(seconds: float) -> str:
    """A time that has passed, in one unit: 40 s, 12 min, 3 h, 9 days."""
    for limit, unit in ((86_400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * limit or (unit != "days" and seconds >= limit):
            return f"{seconds / limit:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def show_inspection(findings: "checkpoint_inspection.Inspection") -> None:
    """All of it, table after table."""
    show_lineage(findings)
    for of_table in findings.tables:
        say("")
        show_table(of_table)
    show_dense(findings.dense)


def show_lineage(findings: "checkpoint_inspection.Inspection") -> None:
    """Of the checkpoint as a whole: clocks, chain, place in the data, conf, metrics."""
    rows: list[tuple[str, str]] = [
        ("checkpoint", findings.folder),
        ("kind", findings.kind + (", the last of its run" if findings.finished else "")),
        ("step", f"{findings.step:,}"),
    ]
    if findings.steps_trained > findings.step:
        rows.append(("trained", f"{findings.steps_trained:,} steps, of which this was the best"))
    if findings.days:
        count, first_step = len(findings.days), findings.days[-1][1]
        rows.append(("days", f"{count:,}, the last from step {first_step:,} on"))
    position, units = plain(findings.position), findings.position.units
    if units is not None:
        done = f"{units.units_done:,} of {units.count:,} done"
        position["units"] = f"({done}, {len(units.open):,} begun)"
    words = [f"{key} {value}" for key, value in position.items() if value is not None]
    rows.append(("next", ", ".join(words)))
    if len(findings.chain) > 1:
        rows.append(("built on", ", ".join(findings.chain[:-1])))
    rows += [
        ("bytes", size(findings.bytes)),
        ("with its chain", size(findings.chain_bytes)),
        ("rows", f"{findings.rows:,}"),
        ("recipe", findings.recipe),
        ("conf", findings.conf_sha256[:16]),
        ("tnctl", findings.tnctl),
    ]
    # The metrics of an evaluation have its step too, which is the first row unless it was another.
    for name, measured in findings.metrics.items():
        if (name, measured) != ("step", findings.step):
            rows.append(("evaluated at step" if name == "step" else name, figure(measured)))
    for head, of_head in findings.recalibration.items():
        line = f"slope {of_head.slope:.5g}, intercept {of_head.intercept:.5g}"
        rows.append((f"recalibrated {head}", line))
    if not findings.metrics:
        rows.append(("validation", "this model was not evaluated"))
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        say(f"{name:{width}}  {value}")


def figure(value: Any) -> str:
    """A figure with six digits; a text as it is."""
    if isinstance(value, str):
        return value
    return f"{value:.6g}" if isinstance(value, float) else f"{value:,}"


def show_table(findings: "checkpoint_inspection.TableInspection") -> None:
    """Groups, histograms, the largest rows."""
    say(
        f"table {findings.name}: {findings.rows:,} rows of {findings.record_bytes} bytes in "
        f"{findings.files} file{'' if findings.files == 1 else 's'}"
    )
    for segment in findings.segments:
        say(f"  {segment.name} of width {segment.width}, {rule_in_words(segment.optimizer)}")
    if findings.sketch_bytes:
        # Of each of 64 ranges of the hash 4 lines of counters: csrc/tnctl.h has the bound.
        over = math.e / (findings.sketch_bytes / 256)
        say(
            f"  a sketch of {size(findings.sketch_bytes)} counts ids without a row: a count is too "
            f"high by more than {over:.2g} of what its range (1 of 64) counted for fewer than "
            "1 id in 50"
        )
    if findings.tombstones:
        say(f"  {findings.tombstones:,} keys of evicted rows are kept")
    say("")
    show_groups(findings.groups)
    show_histogram("norm", "rows", findings.norms)
    if findings.shows is not None:
        show_histogram("show", "rows", findings.shows)
    show_histogram("steps since the last update", "rows", findings.age_steps, whole=True)
    if findings.age_days is not None:
        show_histogram("days since the last update", "rows", findings.age_days, whole=True)
    if findings.largest:
        say("")
        table(
            "",
            ("largest norms: group", "id", "norm"),
            [(row.group, row.id, f"{row.norm:.4g}") for row in findings.largest],
        )
    if findings.not_finite_first is not None:
        first = findings.not_finite_first
        say(
            f"{findings.not_finite:,} rows are not finite, the first is id {first.id} of group "
            f"{first.group}"
        )
    else:
        say("every weight and state is finite")


def show_groups(groups: list["checkpoint_inspection.GroupInspection"]) -> None:
    """One line for each share group."""
    columns: dict[str, list[str]] = {
        "group": [group.name for group in groups],
        "rows": [f"{group.rows:,}" for group in groups],
        "mean norm": [f"{group.mean_norm:.4g}" for group in groups],
        "largest": [f"{group.most_norm:.4g}" for group in groups],
    }
    if any(group.waiting or group.evicted for group in groups):
        for name in ("admitted", "waiting", "evicted"):
            columns[name] = [f"{getattr(group, name):,}" for group in groups]
    if any(group.shows is not None for group in groups):
        columns["show"] = [f"{group.shows or 0:,.0f}" for group in groups]
        columns["click"] = [f"{group.clicks or 0:,.0f}" for group in groups]
    table("", [*columns], [*zip(*columns.values(), strict=True)])


def show_histogram(name: str, of: str, histogram: Histogram, whole: bool = False) -> None:
    """A bar for each power of two, with its share of all."""
    bins = drawn(histogram.bins())
    total = sum(count for _, _, count in bins)
    if not total:
        return
    most = max(count for _, _, count in bins)
    say("")
    table(
        "",
        (name, of, "", ""),
        [
            (between(low, below, whole), f"{count:,}", f"{count / total:.1%}", bar(count / most))
            for low, below, count in bins
        ],
        left=(0, 3),
    )


def between(low: float, below: float, whole: bool) -> str:
    """The range of a bin: 0, 3, 4 to 7, 0.25 to 0.5."""
    if below == 0:
        return "0"
    if whole:
        return f"{low:,.0f}" if below - low == 1 else f"{low:,.0f} to {below - 1:,.0f}"
    return f"{low:.3g} to {below:.3g}"


def bar(share: float) -> str:
    """A bar of blocks, to the eighth of a character; anything above nothing shows."""
    eighths = math.ceil(share * BAR * 8)
    return ("█" * (eighths // 8) + EIGHTHS[eighths % 8]).rstrip()


def show_dense(dense: "checkpoint_inspection.DenseInspection") -> None:
    """The dense weights, variable by variable."""
    say("")
    rule = rule_in_words(dense.optimizer)
    say(f"dense: {dense.weights:,} weights, {dense.step:,} updates, {rule}")
    table(
        "",
        ("variable", "shape", "norm"),
        [(entry.name, list(entry.shape), f"{entry.norm:.4g}") for entry in dense.variables],
    )
    if dense.not_finite:
        say(f"{dense.not_finite:,} dense floats are not finite")


def rule_in_words(optimizer: "Optimizer") -> str:
    """An update rule and its settings."""
    settings = plain(optimizer)
    name = settings.pop("name")
    return " ".join([name, *(f"{key}={value:g}" for key, value in settings.items())])


def show_difference(findings: "difference.Comparison") -> None:
    """From A to B."""
    say(f"A  step {findings.steps[0]:,}  {findings.folders[0]}")
    say(f"B  step {findings.steps[1]:,}  {findings.folders[1]}")
    say("")
    table(
        "",
        ("group", "removed", "added", "changed", "same"),
        [
            (row.group, *(f"{n:,}" for n in (row.removed, row.added, row.changed, row.same)))
            for row in findings.groups
        ],
    )
    for heading, moved in (("moved most: group", findings.largest), ("dense", findings.dense)):
        if moved:
            say("")
            table(
                "",
                (heading, "id" if heading != "dense" else "", "distance", "norm in A"),
                [
                    (
                        row.name,
                        "" if row.id is None else row.id,
                        f"{row.distance:.4g}",
                        f"{row.norm:.4g}",
                    )
                    for row in moved
                ],
            )
    for name in findings.incomparable:
        say(f"{name} is of another shape, or in one of them only")
    if findings.metrics:
        say("")
        table(
            "",
            ("metric", "A", "B"),
            [(name, figure(a), figure(b)) for name, (a, b) in findings.metrics.items()],
        )
    say("")
    for name, (in_a, in_b) in findings.conf.items():
        say(f"{name}: {in_a} -> {in_b}")
    if not findings.conf:
        say("the confs are the same")
