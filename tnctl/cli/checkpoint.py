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
    job: Callable[["Request"], int]
    takes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Request:
    """The arguments of one of the commands: URLs, key=value, and whether JSON is printed."""

    urls: list[str]
    values: dict[str, str]
    as_json: bool


def run(given: list[str]) -> int:
    """Dispatch to one of the commands; returns the exit code."""
    if not given:
        raise UserError(f"give a command: {', '.join(PARTS)}")
    name, *rest = given
    if name not in PARTS:
        raise UserError(f"no command {quoted(name)}. {did_you_mean(name, PARTS)}")
    part = PARTS[name]
    words = [word for word in rest if word != "--json"]
    if option := next((word for word in words if word.startswith("-")), None):
        raise UserError(f"no option {option}. The options are --help and --json")
    values, urls = arguments.part(words, part.takes)
    if len(urls) != part.urls:
        raise UserError(
            f"{name} takes {part.urls} URL{'s'[: part.urls - 1]}: tnctl checkpoint {name} "
            f"{part.usage}. Received: {' '.join(urls) or 'none'}"
        )
    return part.job(Request([plain(url) for url in urls], values, "--json" in rest))


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


def list_(request: Request) -> int:
    """The checkpoints of a run, the oldest first."""
    from tnctl.checkpoint import listing
    from tnctl.cli import checkpoint_report

    entries = listing.entries(listing.all_meant(request.urls[0]))
    if request.as_json:
        print_json([dataclasses.asdict(entry) for entry in entries])
    else:
        checkpoint_report.show_list(entries)
    return 0


def inspect(request: Request) -> int:
    """What is in a checkpoint."""
    from tnctl.checkpoint import checkpoint_inspection
    from tnctl.cli import checkpoint_report

    findings = checkpoint_inspection.inspect(opened(request.urls[0]))
    if request.as_json:
        print_json(findings)
    else:
        checkpoint_report.show_inspection(findings)
    return 0


def verify(request: Request) -> int:
    """Read all of a checkpoint, and of those it is built on; exit code 1 when anything is wrong."""
    from tnctl.checkpoint import verification
    from tnctl.checkpoint.listing import one_meant
    from tnctl.progress import say

    folder = one_meant(request.urls[0], usable=False)
    findings = verification.verify(folder)
    if request.as_json:
        print_json({"folder": folder, **dataclasses.asdict(findings)})
    else:
        for finding in findings.findings:
            say(finding)
        if not findings.findings:
            say(
                f"{folder} is whole: {findings.files:,} files, {findings.rows:,} rows, "
                f"{len(findings.chain)} checkpoint{'s'[: len(findings.chain) - 1]} in its chain"
            )
    return 1 if findings.findings else 0


def diff(request: Request) -> int:
    """What changed from one checkpoint to another."""
    from tnctl.checkpoint import difference
    from tnctl.cli import checkpoint_report

    a, b = map(opened, request.urls)
    findings = difference.compare(a, b)
    if request.as_json:
        print_json(dataclasses.asdict(findings))
    else:
        checkpoint_report.show_difference(findings)
    return 0


def compact(request: Request) -> int:
    """Fold a chain of checkpoints into one full checkpoint."""
    from tnctl.checkpoint import compaction
    from tnctl.progress import say

    if "to" not in request.values:
        raise UserError(
            "compact needs to=URL, the folder of the new checkpoint; in its own place others may "
            "be built on the delta"
        )
    to = request.values["to"]
    # What is written should not be an older model than the one that was meant.
    checkpoint = opened(request.urls[0], usable=False)
    written, links = compaction.compact(checkpoint, to), len(checkpoint.chain())
    if request.as_json:
        print_json({"folder": to, "sha256": written.sha256, "rows": written.rows, "links": links})
    else:
        say(f"{to} is one full checkpoint, of {links} in the chain, with {written.rows:,} rows")
    return 0


def prune(request: Request) -> int:
    """Remove old checkpoints, or only list them, without yes=true."""
    from tnctl.checkpoint import listing
    from tnctl.progress import say, size

    text = request.values.get("keep")
    if text is None:
        raise UserError("prune needs keep=N, how many of the newest checkpoints stay")
    if not text.isdecimal() or int(text) == 0:
        raise UserError(f"keep must be a whole number from 1 on. Received: {text}")
    sure = arguments.flag(request.values, "yes")
    checkpoints = listing.all_meant(request.urls[0])
    plan = listing.plan(checkpoints, int(text), listing.best_steps(checkpoints))
    if not plan.removed and all(entry.problem for entry in checkpoints):
        raise Failure(f"{request.urls[0]} has no usable checkpoint: {checkpoints[-1].problem}")
    if sure:
        listing.remove(plan)
    if request.as_json:
        removed = [entry.folder for entry in plan.removed]
        print_json({"removed": removed, "kept": plan.kept, "done": sure})
        return 0
    for entry in plan.removed:
        say(f"{'removed' if sure else 'would remove'} {entry.folder} ({size(entry.bytes)})")
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
