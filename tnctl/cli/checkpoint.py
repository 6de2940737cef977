"""`tnctl checkpoint list | inspect | verify | diff | compact | prune`."""

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from tnctl import progress
from tnctl.checkpoint import listing
from tnctl.cli import arguments
from tnctl.cli.commands import CHECKPOINT_PARTS
from tnctl.cli.printing import print_json, say, table, urls_and_json
from tnctl.documents import plain
from tnctl.errors import Failure, UserError, did_you_mean, quoted, refuse_if
from tnctl.limits import size

if TYPE_CHECKING:
    from tnctl.checkpoint.chain import Checkpoint
    from tnctl.checkpoint.listing import Entry

HISTOGRAMS = ("norms", "shows", "age_steps", "age_days")  # only JSON has them
# What a command finds or has done: the value of --json, and what shows it on the terminal.
Findings = tuple[Any, Callable[[], None]]


def run(given: list[str]) -> int:
    """Dispatch to one of the commands; returns the exit code."""
    refuse_if(not given, f"give a command: {', '.join(FIND)}")
    name, *rest = given
    if name not in FIND:
        raise UserError(f"no command {quoted(name)}. {did_you_mean(name, FIND)}")
    values, urls, as_json = urls_and_json(f"checkpoint {name}", rest)
    usage = CHECKPOINT_PARTS[name].usage
    count = usage.split().count("URL")
    refuse_if(
        len(urls) != count,
        f"{name} takes {count} URL{'s'[: count - 1]}: tnctl checkpoint {name} {usage}. Received: "
        f"{' '.join(urls) or 'none'}",
    )
    value, show = FIND[name](*urls, **values)
    if as_json:
        print_json(value)
    else:
        show()
    return 1 if name == "verify" and value["findings"] else 0


def opened(url: str, usable: bool = True) -> "Checkpoint":
    """The checkpoint that a URL means, its chain of parents checked.

    Of a run it is the newest one that can be used, or with `usable` false the newest one.
    """
    from tnctl.checkpoint.chain import open_checkpoint

    checkpoint = open_checkpoint(listing.one_meant(url, usable))
    checkpoint.chain()
    return checkpoint


def list_(url: str) -> Findings:
    """The checkpoints of a run, the oldest first."""
    entries = listing.entries(listing.all_meant(url))
    return plain(entries), partial(show_list, entries)


def inspect(url: str) -> Findings:
    """What is in a checkpoint."""
    from tnctl.checkpoint import inspection

    values = inspection.inspect(opened(url))
    return values, partial(show_inspection, values)


def verify(url: str) -> Findings:
    """Read all of a checkpoint, and of those it is built on; exit code 1 when anything is wrong."""
    from tnctl.checkpoint import inspection

    folder = listing.one_meant(url, usable=False)
    findings = inspection.verify(folder)
    links = len(findings.chain)
    whole = (
        f"{folder} is whole: {findings.files:,} files, {findings.rows:,} rows, {links} "
        f"checkpoint{'s'[: links - 1]} in its chain"
    )
    return {"folder": folder, **plain(findings)}, partial(
        progress.say, *(findings.findings or [whole])
    )


def diff(url: str, other: str) -> Findings:
    """What changed from one checkpoint to another."""
    from tnctl.checkpoint import inspection

    values = plain(inspection.compare(opened(url), opened(other)))
    return values, partial(show_difference, values)


def compact(url: str, to: str | None = None) -> Findings:
    """Fold a chain of checkpoints into one full checkpoint."""
    from tnctl.checkpoint import compaction

    if to is None:
        raise UserError(
            "compact needs to=URL, the folder of the new checkpoint; in its own place others may "
            "be built on the delta"
        )
    # What is written should not be an older model than the one that was meant.
    checkpoint = opened(url, usable=False)
    written, links = compaction.compact(checkpoint, to), len(checkpoint.chain())
    line = f"{to} is one full checkpoint, of {links} in the chain, with {written.rows:,} rows"
    values = {"folder": to, "sha256": written.sha256, "rows": written.rows, "links": links}
    return values, partial(progress.say, line)


def prune(url: str, keep: str | None = None, yes: str = "false") -> Findings:
    """Remove old checkpoints, or only list them, without yes=true."""
    if keep is None:
        raise UserError("prune needs keep=N, how many of the newest checkpoints stay")
    refuse_if(
        not keep.isdecimal() or int(keep) == 0,
        f"keep must be a whole number from 1 on. Received: {keep}",
    )
    sure = arguments.flag({"yes": yes}, "yes")
    checkpoints = listing.all_meant(url)
    from tnctl.checkpoint import pruning

    plan = pruning.plan(checkpoints, int(keep), listing.best_steps(checkpoints))
    if not plan.removed and all(entry.problem for entry in checkpoints):
        raise Failure(f"{url} has no usable checkpoint: {checkpoints[-1].problem}")
    if sure:
        pruning.remove(plan)
    remove, stay = ("removed", "kept") if sure else ("would remove", "would keep")
    lines = [f"{remove} {entry.folder} ({size(entry.bytes)})" for entry in plan.removed]
    lines += [f"{stay} {name}: {why}" for name, why in plan.kept.items()]
    if plan.removed and not sure:
        lines.append("nothing was removed: give yes=true to do it")
    removed = [entry.folder for entry in plan.removed]
    return {"removed": removed, "kept": plan.kept, "done": sure}, partial(progress.say, *lines)


FIND: dict[str, Callable[..., Findings]] = {
    "list": list_,
    "inspect": inspect,
    "verify": verify,
    "diff": diff,
    "compact": compact,
    "prune": prune,
}


# ---- On the terminal ----


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
    match = listing.NAME.fullmatch(name)
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
