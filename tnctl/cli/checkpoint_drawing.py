"""What `tnctl checkpoint` found, as a person reads it."""

import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from tnctl.checkpoint.histogram import Histogram, drawn
from tnctl.checkpoint.listing import NAME
from tnctl.documents import plain
from tnctl.progress import say, size, table

if TYPE_CHECKING:
    from tnctl.checkpoint import checkpoint_inspection, difference
    from tnctl.checkpoint.listing import Entry
    from tnctl.checkpoint.table_document import Optimizer

BAR = 32
EIGHTHS = " ▏▎▍▌▋▊▉"


def show_list(entries: list["Entry"]) -> None:
    """One line for each checkpoint."""
    monitor = next((one.monitor for one in entries if one.monitor), "metric")
    table(
        "",
        ("step", "day", "kind", "rows", "size", "age", monitor, ""),
        [
            (
                step_of(one.name),
                one.day or "",
                f"delta of {step_of(one.parent)}" if one.parent else one.kind,
                f"{one.rows:,}",
                size(one.bytes),
                age(one.saved),
                "" if one.value is None else f"{one.value:.5f}",
                ", ".join(marks(one)),
            )
            for one in entries
            if one.problem is None
        ],
        left=(0, 7),
    )
    for one in entries:
        if one.problem is not None:
            say(f"not usable: {one.problem}")


def marks(one: "Entry") -> list[str]:
    return [name for name in ("finished", "best") if getattr(one, name)]


def step_of(name: str) -> str:
    match = NAME.fullmatch(name)
    return f"{int(match[1]):,}{name[match.end(1) :]}" if match else name


def age(saved: str | None) -> str:
    """How long ago that was; empty when nobody knows."""
    if saved is None:
        return ""
    return span((datetime.now(UTC) - datetime.fromisoformat(saved)).total_seconds())


def span(seconds: float) -> str:
    """A time that has passed, in one unit: 40 s, 12 min, 3 h, 9 days."""
    for limit, unit in ((86_400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * limit or (unit != "days" and seconds >= limit):
            return f"{seconds / limit:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def show_inspection(found: "checkpoint_inspection.Findings") -> None:
    """All of it, table after table."""
    show_lineage(found)
    for one in found.tables:
        say("")
        show_table(one)
    show_dense(found)


def show_lineage(found: "checkpoint_inspection.Findings") -> None:
    """Where the checkpoint stands: clocks, chain, place in the data, conf, metrics."""
    rows: list[tuple[str, str]] = [
        ("checkpoint", found.folder),
        ("kind", found.kind + (", the last of its run" if found.finished else "")),
        ("step", f"{found.step:,}"),
    ]
    if found.days:
        rows.append(("days", f"{len(found.days):,}, the last from step {found.days[-1][1]:,} on"))
    position = plain(found.position).items()
    words = [f"{key} {value}" for key, value in position if value is not None]
    rows.append(("next", ", ".join(words)))
    if len(found.chain) > 1:
        rows.append(("built on", ", ".join(found.chain[:-1])))
    rows += [
        ("bytes", size(found.bytes)),
        ("with its chain", size(found.chain_bytes)),
        ("rows", f"{found.rows:,}"),
        ("recipe", found.recipe),
        ("conf", found.conf_sha256[:16]),
        ("tnctl", found.tnctl),
    ]
    rows += [(name, figure(value)) for name, value in found.metrics.items()]
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        say(f"{name:{width}}  {value}")


def figure(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else f"{value:,}"


def show_table(found: "checkpoint_inspection.TableFindings") -> None:
    """Groups, histograms, the largest rows."""
    say(
        f"table {found.name}: {found.rows:,} rows of {found.record_bytes} bytes in "
        f"{found.files} files"
    )
    for segment in found.segments:
        say(f"  {segment.name} of width {segment.width}, {rule_in_words(segment.optimizer)}")
    if found.sketch_bytes:
        # Of each of 64 ranges of the hash 4 lines of counters: csrc/tnctl.h has the bound.
        over = math.e / (found.sketch_bytes / 256)
        say(
            f"  a sketch of {size(found.sketch_bytes)} counts ids without a row: a count is too "
            f"high by more than {over:.2g} of what its range (1 of 64) counted for fewer than "
            "1 id in 50"
        )
    if found.tombstones:
        say(f"  {found.tombstones:,} keys of evicted rows are kept")
    say("")
    show_groups(found)
    show_histogram("norm", "rows", found.norms)
    if found.shows is not None:
        show_histogram("show", "rows", found.shows)
    show_histogram("steps since the last update", "rows", found.age_steps, whole=True)
    if found.age_days is not None:
        show_histogram("days since the last update", "rows", found.age_days, whole=True)
    if found.largest:
        say("")
        table(
            "",
            ("largest norms: group", "id", "norm"),
            [(one.group, one.id, f"{one.norm:.4g}") for one in found.largest],
        )
    if found.not_finite_first is not None:
        one = found.not_finite_first
        say(
            f"{found.not_finite:,} rows are not finite, the first is id {one.id} of group "
            f"{one.group}"
        )
    else:
        say("every weight and state is finite")


def show_groups(found: "checkpoint_inspection.TableFindings") -> None:
    """One line for each share group."""
    lives = any(one.waiting or one.evicted for one in found.groups)
    shows = any(one.shows is not None for one in found.groups)
    headings = ["group", "rows", "mean norm", "largest"]
    headings += ["admitted", "waiting", "evicted"] if lives else []
    headings += ["show", "click"] if shows else []
    lines = []
    for one in found.groups:
        line = [one.name, f"{one.rows:,}", f"{one.mean_norm:.4g}", f"{one.most_norm:.4g}"]
        if lives:
            line += [f"{count:,}" for count in (one.admitted, one.waiting, one.evicted)]
        if shows:
            line += [f"{one.shows or 0:,.0f}", f"{one.clicks or 0:,.0f}"]
        lines.append(line)
    table("", headings, lines)


def show_histogram(name: str, of: str, histogram: Histogram, whole: bool = False) -> None:
    """A bar for each power of two, with what share of all it is."""
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


def show_dense(found: "checkpoint_inspection.Findings") -> None:
    """The dense weights, variable by variable."""
    dense = found.dense
    say("")
    rule = rule_in_words(dense.optimizer)
    say(f"dense: {dense.weights:,} weights, {dense.step:,} updates, {rule}")
    table(
        "",
        ("variable", "shape", "norm"),
        [(one.name, list(one.shape), f"{one.norm:.4g}") for one in dense.variables],
    )
    if dense.not_finite:
        say(f"{dense.not_finite:,} dense floats are not finite")


def rule_in_words(optimizer: "Optimizer") -> str:
    """An update rule and its settings."""
    settings = plain(optimizer)
    name = settings.pop("name")
    return " ".join([name, *(f"{key}={value:g}" for key, value in settings.items())])


def show_difference(found: "difference.Findings") -> None:
    """From A to B."""
    say(f"A  step {found.steps[0]:,}  {found.folders[0]}")
    say(f"B  step {found.steps[1]:,}  {found.folders[1]}")
    say("")
    table(
        "",
        ("group", "removed", "added", "changed", "same"),
        [
            (
                one.group,
                *(f"{many:,}" for many in (one.removed, one.added, one.changed, one.same)),
            )
            for one in found.groups
        ],
    )
    for heading, moved in (("moved most: group", found.largest), ("dense", found.dense)):
        if moved:
            say("")
            table(
                "",
                (heading, "id" if heading != "dense" else "", "distance", "norm in A"),
                [
                    (
                        one.name,
                        "" if one.id is None else one.id,
                        f"{one.distance:.4g}",
                        f"{one.norm:.4g}",
                    )
                    for one in moved
                ],
            )
    for name in found.incomparable:
        say(f"{name} is of another shape, or in one of them only")
    if found.metrics:
        say("")
        table(
            "",
            ("metric", "A", "B"),
            [(name, figure_or(a), figure_or(b)) for name, (a, b) in found.metrics.items()],
        )
    say("")
    for name, (before, after) in found.conf.items():
        say(f"{name}: {before} -> {after}")
    if not found.conf:
        say("the confs are the same")


def figure_or(value: Any) -> str:
    return value if isinstance(value, str) else figure(value)
