"""`tnctl checkpoint list | inspect | verify | diff | compact | prune`."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from tnctl.cli import arguments
from tnctl.cli.printing import print_json, urls_and_json
from tnctl.errors import Failure, UserError, did_you_mean, quoted, refuse_if

if TYPE_CHECKING:
    from tnctl.checkpoint.chain import Checkpoint

# What a command finds or has done: the value of --json, and what shows it on the terminal.
Findings = tuple[Any, Callable[[], None]]


@dataclass(frozen=True)
class Part:
    """One of the commands: how it is called, and what it does."""

    sentence: str
    usage: str
    find: Callable[..., Findings]
    """Takes URLs, and arguments as keywords."""
    urls: int = 1
    takes: tuple[str, ...] = ()


def run(given: list[str]) -> int:
    """Dispatch to one of the commands; returns the exit code."""
    refuse_if(not given, f"give a command: {', '.join(PARTS)}")
    name, *rest = given
    if name not in PARTS:
        raise UserError(f"no command {quoted(name)}. {did_you_mean(name, PARTS)}")
    part = PARTS[name]
    values, urls, as_json = urls_and_json(rest, part.takes)
    refuse_if(
        len(urls) != part.urls,
        f"{name} takes {part.urls} URL{'s'[: part.urls - 1]}: tnctl checkpoint {name} "
        f"{part.usage}. Received: {' '.join(urls) or 'none'}",
    )
    value, show = part.find(*urls, **values)
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
    from tnctl.checkpoint.listing import one_meant

    checkpoint = open_checkpoint(one_meant(url, usable))
    checkpoint.chain()
    return checkpoint


def list_(url: str) -> Findings:
    """The checkpoints of a run, the oldest first."""
    from tnctl.checkpoint import listing
    from tnctl.cli.checkpoint_report import show_list
    from tnctl.documents import plain

    entries = listing.entries(listing.all_meant(url))
    return plain(entries), partial(show_list, entries)


def inspect(url: str) -> Findings:
    """What is in a checkpoint."""
    from tnctl.checkpoint import inspection
    from tnctl.cli.checkpoint_report import show_inspection

    values = inspection.inspect(opened(url))
    return values, partial(show_inspection, values)


def verify(url: str) -> Findings:
    """Read all of a checkpoint, and of those it is built on; exit code 1 when anything is wrong."""
    from tnctl.checkpoint import inspection
    from tnctl.checkpoint.listing import one_meant
    from tnctl.documents import plain
    from tnctl.progress import say

    folder = one_meant(url, usable=False)
    findings = inspection.verify(folder)
    links = len(findings.chain)
    whole = (
        f"{folder} is whole: {findings.files:,} files, {findings.rows:,} rows, {links} "
        f"checkpoint{'s'[: links - 1]} in its chain"
    )
    return {"folder": folder, **plain(findings)}, partial(say, *(findings.findings or [whole]))


def diff(url: str, other: str) -> Findings:
    """What changed from one checkpoint to another."""
    from tnctl.checkpoint import inspection
    from tnctl.cli.checkpoint_report import show_difference
    from tnctl.documents import plain

    values = plain(inspection.compare(opened(url), opened(other)))
    return values, partial(show_difference, values)


def compact(url: str, to: str | None = None) -> Findings:
    """Fold a chain of checkpoints into one full checkpoint."""
    from tnctl.checkpoint import compaction
    from tnctl.progress import say

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
    return values, partial(say, line)


def prune(url: str, keep: str | None = None, yes: str = "false") -> Findings:
    """Remove old checkpoints, or only list them, without yes=true."""
    from tnctl.checkpoint import listing
    from tnctl.progress import say, size

    if keep is None:
        raise UserError("prune needs keep=N, how many of the newest checkpoints stay")
    refuse_if(
        not keep.isdecimal() or int(keep) == 0,
        f"keep must be a whole number from 1 on. Received: {keep}",
    )
    sure = arguments.flag({"yes": yes}, "yes")
    checkpoints = listing.all_meant(url)
    plan = listing.plan(checkpoints, int(keep), listing.best_steps(checkpoints))
    if not plan.removed and all(entry.problem for entry in checkpoints):
        raise Failure(f"{url} has no usable checkpoint: {checkpoints[-1].problem}")
    if sure:
        listing.remove(plan)
    remove, stay = ("removed", "kept") if sure else ("would remove", "would keep")
    lines = [f"{remove} {entry.folder} ({size(entry.bytes)})" for entry in plan.removed]
    lines += [f"{stay} {name}: {why}" for name, why in plan.kept.items()]
    if plan.removed and not sure:
        lines.append("nothing was removed: give yes=true to do it")
    removed = [entry.folder for entry in plan.removed]
    return {"removed": removed, "kept": plan.kept, "done": sure}, partial(say, *lines)


PARTS = {
    "list": Part(
        "the checkpoints of a run: step, day, kind, rows, bytes, metric", "URL [--json]", list_
    ),
    "inspect": Part(
        "what is in a checkpoint: rows, norms, ages, shows, lineage", "URL [--json]", inspect
    ),
    "verify": Part(
        "whether every byte of a checkpoint and of its chain is as it was written",
        "URL [--json]",
        verify,
    ),
    "diff": Part("what changed from one checkpoint to another", "URL URL [--json]", diff, urls=2),
    "compact": Part(
        "one full checkpoint of a delta and those it is built on",
        "URL to=URL [--json]",
        compact,
        takes=("to",),
    ),
    "prune": Part(
        "remove all but the newest, the best, and what they are built on",
        "URL keep=N [yes=true] [--json]",
        prune,
        takes=("keep", "yes"),
    ),
}
TAKES = ("to", "keep", "yes")
USAGE = "\n".join(
    [
        f"{'|'.join(PARTS)} URL … [--json]",
        "",
        *(
            f"  {name} {part.usage.removesuffix(' [--json]'):{26 - len(name)}}  {part.sentence}"
            for name, part in PARTS.items()
        ),
        "",
        "URL is the output of a run (its newest checkpoint), or the folder of one checkpoint.",
    ]
)
