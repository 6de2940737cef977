"""The findings of `tnctl checkpoint` on the terminal: tables, and trees of keys and values."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from tnctl.checkpoint.listing import NAME
from tnctl.cli.printing import say, table
from tnctl.progress import size

if TYPE_CHECKING:
    from tnctl.checkpoint.listing import Entry

HISTOGRAMS = ("norms", "shows", "age_steps", "age_days")  # only JSON has them


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


def show_inspection(values: dict[str, Any]) -> None:
    """All of an inspection but the histograms."""
    for of_table in values["tables"]:
        for name in HISTOGRAMS:
            del of_table[name]
    show_tree(values)


def show_difference(values: dict[str, Any]) -> None:
    """A comparison, from A to B."""
    for pairs in (values["conf"], values["metrics"]):
        for name, (in_a, in_b) in pairs.items():
            pairs[name] = f"{text_of(in_a)} -> {text_of(in_b)}"
    show_tree(values)
    if not values["conf"]:
        say("the confs are the same")


def show_tree(values: dict[str, Any], indent: str = "") -> None:
    """A line for each value, and a table for mappings that are alike. What is empty is left out."""
    for key, value in values.items():
        if not is_tree(value):
            if value not in (None, [], {}):
                say(f"{indent}{key}: {text_of(value, key)}")
        elif isinstance(value, list) and not any(map(is_tree, value[0].values())):
            heads = [head for head in value[0] if any(entry[head] is not None for entry in value)]
            lines = [[text_of(entry[head], head) for head in heads] for entry in value]
            left = [at for at, head in enumerate(heads) if isinstance(value[0][head], str)]
            table(f"{indent}{key}:", heads, lines, left)
        else:
            for entry in value if isinstance(value, list) else [value]:
                say(f"{indent}{key}:")
                show_tree(entry, f"{indent}  ")


def is_tree(value: Any) -> bool:
    """Whether a value is a mapping, or a list of mappings, with something in it."""
    first = value[0] if isinstance(value, list) and value else value
    return isinstance(first, dict) and len(first) > 0


def text_of(value: Any, key: str = "") -> str:
    """A value of a line or a cell: numbers with six digits, of a list of lists its length."""
    if isinstance(value, list):
        is_nested = any(isinstance(entry, list) for entry in value)
        return f"{len(value):,} entries" if is_nested else ", ".join(map(text_of, value))
    if value is None or isinstance(value, bool):
        return "" if value is None else str(value).lower()
    if isinstance(value, int) and key != "id":
        return f"{value:,}"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
