"""`tnctl checkpoint list | inspect | verify | diff | compact | prune`."""

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

from tnctl.cli import arguments
from tnctl.cli.printing import print_json
from tnctl.errors import Failure, UserError, did_you_mean, quoted

if TYPE_CHECKING:
    from tnctl.checkpoint.chain import Checkpoint

TAKES = ("to", "keep", "yes")
USAGE = """list|inspect|verify|diff|compact|prune URL … [--json]

  list URL                 the checkpoints of a run
  inspect URL              what is in one: rows, norms, ages, shows, lineage
  verify URL               whether every byte is as it was written
  diff URL URL             what changed from one to another
  compact URL to=URL       one full checkpoint of a delta and those it is built on
  prune URL keep=N         remove all but the newest, the best, and what they are built on

URL is the output of a run (its newest checkpoint), or the folder of one checkpoint."""


@dataclasses.dataclass(frozen=True)
class Part:
    """One of the commands: how it is called, and what it does."""

    sentence: str
    usage: str
    urls: int
    job: Callable[["Asked"], int]
    takes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Asked:
    """What is asked of one of the commands."""

    urls: list[str]
    own: dict[str, str]
    as_json: bool


def run(given: list[str]) -> int:
    """Dispatch to one of the commands; returns the exit code."""
    if not given:
        raise UserError(f"give a command: {', '.join(PARTS)}")
    name, *rest = given
    if name not in PARTS:
        raise UserError(f"no command {quoted(name)}. {did_you_mean(name, PARTS)}")
    part = PARTS[name]
    as_json = "--json" in rest
    urls = [one for one in rest if one != "--json"]
    if option := next((one for one in urls if one.startswith("-")), None):
        raise UserError(f"no option {option}. The options are --help and --json")
    own, urls = arguments.part(urls, part.takes)
    if len(urls) != part.urls:
        raise UserError(
            f"{name} takes {part.urls} URL{'s'[: part.urls - 1]}: tnctl checkpoint {name} "
            f"{part.usage}. Received: {' '.join(urls) or 'none'}"
        )
    return part.job(Asked([plain(url) for url in urls], own, as_json))


def plain(url: str) -> str:
    """A URL as given by itself. Raises UserError for `output=URL` and the like."""
    key, equals, value = url.partition("=")
    if equals and key in ("output", "checkpoint", "conf"):
        raise UserError(f"give the URL by itself, without {key}=: {value.strip(chr(39))}")
    return url


def opened(url: str, usable: bool = True) -> "Checkpoint":
    """The checkpoint that a URL means, its chain of parents checked.

    Of a run it is the newest one that can be used, or with `usable` false the newest one.
    """
    from tnctl.checkpoint.chain import open_checkpoint
    from tnctl.checkpoint.listing import one_meant

    checkpoint = open_checkpoint(one_meant(url, usable))
    checkpoint.chain()
    return checkpoint


def list_(asked: "Asked") -> int:
    """The checkpoints of a run, the oldest first."""
    from tnctl.checkpoint import listing

    entries = listing.entries(listing.all_meant(asked.urls[0]))
    if asked.as_json:
        print_json([dataclasses.asdict(one) for one in entries])
    else:
        from tnctl.cli import checkpoint_drawing

        checkpoint_drawing.show_list(entries)
    return 0


def inspect(asked: "Asked") -> int:
    """What is in a checkpoint."""
    checkpoint = opened(asked.urls[0])
    from tnctl.checkpoint import checkpoint_inspection

    found = checkpoint_inspection.inspect(checkpoint)
    if asked.as_json:
        print_json(found.to_json())
    else:
        from tnctl.cli import checkpoint_drawing

        checkpoint_drawing.show_inspection(found)
    return 0


def verify(asked: "Asked") -> int:
    """Read all of a checkpoint, and of those it is built on; exit code 1 when anything is wrong."""
    from tnctl.checkpoint import verification
    from tnctl.checkpoint.listing import one_meant
    from tnctl.progress import say

    folder = one_meant(asked.urls[0], usable=False)
    found = verification.verify(folder)
    if asked.as_json:
        print_json({"folder": folder, **dataclasses.asdict(found)})
    else:
        for finding in found.findings:
            say(finding)
        if not found.findings:
            say(
                f"{folder} is whole: {found.files:,} files, {found.rows:,} rows, "
                f"{len(found.chain)} checkpoint{'s'[: len(found.chain) - 1]} in its chain"
            )
    return 1 if found.findings else 0


def diff(asked: "Asked") -> int:
    """What changed from one checkpoint to another."""
    one, other = opened(asked.urls[0]), opened(asked.urls[1])
    from tnctl.checkpoint import difference

    found = difference.compare(one, other)
    if asked.as_json:
        print_json(dataclasses.asdict(found))
    else:
        from tnctl.cli import checkpoint_drawing

        checkpoint_drawing.show_difference(found)
    return 0


def compact(asked: "Asked") -> int:
    """Write one full checkpoint that is what a chain of them is."""
    if "to" not in asked.own:
        raise UserError(
            "compact needs to=URL, the folder of the new checkpoint; in its own place others may "
            "be built on the delta"
        )
    # What is written should not be an older model than the one that was meant.
    checkpoint = opened(asked.urls[0], usable=False)
    from tnctl.checkpoint import compaction
    from tnctl.progress import say

    written, to = compaction.compact(checkpoint, asked.own["to"]), asked.own["to"]
    count, links = sum(table.rows for table in written.tables), len(checkpoint.chain())
    if asked.as_json:
        print_json({"folder": to, "sha256": written.sha256, "rows": count, "links": links})
    else:
        say(f"{to} is one full checkpoint, of {links} in the chain, with {count:,} rows")
    return 0


def prune(asked: "Asked") -> int:
    """Remove old checkpoints, or only say which, without yes=true."""
    if "keep" not in asked.own:
        raise UserError("prune needs keep=N, how many of the newest checkpoints stay")
    if not asked.own["keep"].isdecimal() or int(asked.own["keep"]) == 0:
        raise UserError(f"keep must be a whole number from 1 on. Received: {asked.own['keep']}")
    keep = int(asked.own["keep"])
    sure = arguments.flag(asked.own, "yes")
    from tnctl.checkpoint import listing, pruning
    from tnctl.progress import say, size

    found = listing.all_meant(asked.urls[0])
    plan = pruning.plan(found, keep, listing.best_steps(found))
    if not plan.removed and all(one.problem for one in found):
        raise Failure(f"{asked.urls[0]} has no usable checkpoint: {found[-1].problem}")
    if sure:
        pruning.remove(plan)
    if asked.as_json:
        removed = [one.folder for one in plan.removed]
        print_json({"removed": removed, "kept": plan.kept, "done": sure})
        return 0
    for one in plan.removed:
        say(f"{'removed' if sure else 'would remove'} {one.folder} ({size(one.bytes)})")
    for name, why in plan.kept.items():
        say(f"{'kept' if sure else 'would keep'} {name}: {why}")
    if plan.removed and not sure:
        say("nothing was removed: give yes=true to do it")
    return 0


PARTS = {
    "list": Part(
        "the checkpoints of a run: step, day, kind, rows, bytes, metric", "URL [--json]", 1, list_
    ),
    "inspect": Part(
        "what is in a checkpoint: rows, norms, ages, shows, lineage", "URL [--json]", 1, inspect
    ),
    "verify": Part(
        "whether every byte of a checkpoint, and of those it is built on, is as it was written",
        "URL [--json]",
        1,
        verify,
    ),
    "diff": Part("what changed from one checkpoint to another", "URL URL [--json]", 2, diff),
    "compact": Part(
        "one full checkpoint of a delta and those it is built on",
        "URL to=URL [--json]",
        1,
        compact,
        ("to",),
    ),
    "prune": Part(
        "remove all but the newest, the best, and what they are built on",
        "URL keep=N [yes=true] [--json]",
        1,
        prune,
        ("keep", "yes"),
    ),
}
