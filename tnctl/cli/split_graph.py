"""`tnctl split-graph`."""

from typing import TYPE_CHECKING

from tnctl import files
from tnctl.cli.target import with_checkpoint
from tnctl.schema import Conf

if TYPE_CHECKING:
    from tnctl.checkpoint.load import Checkpoint

TAKES = ("conf", "checkpoint", "to")
USAGE = "conf=NAME | output=URL | checkpoint=URL [to=URL]"


def run(given: list[str]) -> int:
    """Write the graph to `to`, by default output/graph."""
    return with_checkpoint(given, TAKES, split)


def split(checkpoint: "Checkpoint", conf: Conf, own: dict[str, str]) -> int:
    from tnctl.progress import say
    from tnctl.serving import split as splitting

    to = own.get("to") or files.join(conf.output, "graph")
    described = splitting.split(checkpoint, conf, to)
    for name, inputs in described["signatures"].items():
        say(f"signature {name}: {len(inputs)} inputs")
    say(f"graph of step {checkpoint.step} written to {to}")
    return 0
