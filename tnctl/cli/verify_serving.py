"""`tnctl verify-serving`."""

from typing import TYPE_CHECKING

from tnctl import files
from tnctl.cli.target import with_checkpoint
from tnctl.schema import Conf

if TYPE_CHECKING:
    from tnctl.checkpoint.load import Checkpoint

TAKES = ("conf", "checkpoint", "graph", "embeddings")
USAGE = "conf=NAME | output=URL | checkpoint=URL [graph=URL] [embeddings=URL]"


def run(given: list[str]) -> int:
    """Compare serving with training; exit code 1 when they differ."""
    return with_checkpoint(given, TAKES, verify)


def verify(checkpoint: "Checkpoint", conf: Conf, own: dict[str, str]) -> int:
    from tnctl.progress import say, table, waiting
    from tnctl.serving import parity

    graph = own.get("graph") or files.join(conf.output, "graph")
    embeddings = own.get("embeddings") or files.join(conf.output, "embeddings")
    with waiting("comparing serving with training"):
        findings = parity.verify(checkpoint, conf, graph, embeddings)
    rows = [(f.what, f.figure, "ok" if f.held else "FAILED") for f in findings]
    table("", ("serving against training", "", ""), rows)
    if all(finding.held for finding in findings):
        say("serving equals training")
        return 0
    say("serving differs from training: do not ship these files; split and export again")
    return 1
