"""`tnctl split-graph`."""

from typing import TYPE_CHECKING

from tnctl import files
from tnctl.cli import arguments
from tnctl.cli.target import with_checkpoint
from tnctl.errors import UserError
from tnctl.schema import Conf

if TYPE_CHECKING:
    from tnctl.checkpoint.load import Checkpoint

TAKES = ("conf", "checkpoint", "to", "head", "frozen", "golden", "aot", "target_cpu")
USAGE = (
    "conf=NAME | output=URL | checkpoint=URL [to=URL] [head=NAME] [frozen=true] [golden=N] "
    "[aot=[1,32]] [target_cpu=NAME]"
)


def run(given: list[str]) -> int:
    """Write the graph to `to`, by default output/graph."""
    return with_checkpoint(given, TAKES, split, runs_recipe=False)


def split(checkpoint: "Checkpoint", conf: Conf, own: dict[str, str]) -> int:
    from tnctl.model.graph import BY_SLOT, PACKED
    from tnctl.progress import say, waiting
    from tnctl.serving.graph import aot, splitting

    frozen = arguments.flag(own, "frozen")
    golden = arguments.count(own, "golden", splitting.GOLDEN_ROWS)
    if "target_cpu" in own and "aot" not in own:
        raise UserError("target_cpu= says what aot= compiles for; give aot=[1,32] too")
    sizes = aot.sizes_of(own["aot"]) if "aot" in own else []
    to = own.get("to") or files.join(conf.output, "graph")
    with waiting("splitting the graph"):
        described = splitting.split(
            checkpoint,
            conf,
            to,
            head=own.get("head"),
            frozen=frozen,
            golden=golden,
            sizes=sizes,
            target_cpu=own.get("target_cpu", aot.TARGET_CPU),
        )
    for name in (BY_SLOT, PACKED):
        say(f"signature {name}: {len(described.signatures.of(name))} inputs")
    say(f"graph of step {checkpoint.step} written to {to}")
    return 0
