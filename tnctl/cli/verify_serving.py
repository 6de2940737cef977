"""`tnctl verify-serving`."""

from typing import TYPE_CHECKING

from tnctl import files
from tnctl.cli import arguments
from tnctl.cli.quiet import quiet_tensorflow
from tnctl.cli.target import output_of, with_checkpoint
from tnctl.errors import UserError
from tnctl.schema import Conf

if TYPE_CHECKING:
    from tnctl.checkpoint.load import Checkpoint
    from tnctl.serving.verify.parity import Finding

TAKES = ("conf", "checkpoint", "graph", "embeddings", "prefix", "endpoint")
USAGE = (
    "[conf=NAME | output=URL | checkpoint=URL] [graph=URL] [embeddings=URL|redis://…] "
    "[prefix=NAME] [endpoint=URL]"
)
PREFIX = "tnctl"


def run(given: list[str]) -> int:
    """Compare serving with training, and with golden rows; exit code 1 when they differ.

    Without a checkpoint graph and embeddings are compared with the golden rows that they contain.
    With endpoint= golden rows are sent to a running service.
    """
    own, overrides = arguments.part(given, TAKES)
    if "conf" in own or "checkpoint" in own or output_of(overrides) is not None:
        return with_checkpoint(given, TAKES, verify)
    if overrides:
        raise UserError(f"'{overrides[0]}' belongs to a model. Give output=URL or checkpoint=URL")
    if "graph" not in own:
        raise UserError("what is to be verified? Give output=URL, checkpoint=URL, or graph=URL")
    quiet_tensorflow()
    from tnctl.progress import waiting
    from tnctl.serving.verify import parity

    graph, embeddings, prefix = own["graph"], own.get("embeddings"), own.get("prefix", PREFIX)
    if "endpoint" in own:
        with waiting(f"asking {own['endpoint']}"):
            return told(parity.verify_endpoint(own["endpoint"], graph, embeddings, prefix))
    with waiting("comparing with the golden rows"):
        return told(parity.verify_artefacts(graph, embeddings, prefix))


def verify(checkpoint: "Checkpoint", conf: Conf, own: dict[str, str]) -> int:
    from tnctl.progress import waiting
    from tnctl.serving.verify import parity

    graph = own.get("graph") or files.join(conf.output, "graph")
    embeddings = own.get("embeddings") or files.join(conf.output, "embeddings")
    prefix = own.get("prefix", PREFIX)
    with waiting("comparing serving with training"):
        findings = parity.verify(checkpoint, conf, graph, embeddings, prefix)
        if "endpoint" in own:
            findings += parity.verify_endpoint(
                own["endpoint"], graph, embeddings, prefix, checkpoint
            )
    return told(findings)


def told(findings: "list[Finding]") -> int:
    """Show what was found; the exit code."""
    from tnctl.progress import say, table

    rows = [(f.what, f.figure, "ok" if f.held else "FAILED") for f in findings]
    table("", ("serving against training", "", ""), rows)
    if all(finding.held for finding in findings):
        say("serving equals training")
        return 0
    say("serving differs from training: do not ship these files; split and export again")
    return 1
