"""`tnctl verify-serving`."""

import contextlib
from typing import TYPE_CHECKING

from tnctl import files
from tnctl.api.opened_run import Run
from tnctl.cli import arguments
from tnctl.cli.checkpoint_choice import chosen, output_of, perform
from tnctl.errors import UserError, refuse_if
from tnctl.model import quiet_tensorflow
from tnctl.schema import Conf

if TYPE_CHECKING:
    from tnctl.serving.verification import CheckedFigure

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
    taken, overrides = arguments.part(given, TAKES)
    if "conf" in taken or "checkpoint" in taken or output_of(overrides) is not None:
        opened, taken = chosen(given, TAKES, takes_cluster=True)
        check(opened.conf, taken)
        return perform("verify-serving", opened, taken)
    if overrides:
        raise UserError(f"'{overrides[0]}' belongs to a model. Give output=URL or checkpoint=URL")
    refuse_if(
        "graph" not in taken,
        "what is to be verified? Give output=URL, checkpoint=URL, or graph=URL",
    )
    graph, embeddings, prefix = taken["graph"], taken.get("embeddings"), taken.get("prefix", PREFIX)
    require_serving(graph, embeddings)
    quiet_tensorflow()
    from tnctl.progress import waiting
    from tnctl.serving import verification

    if "endpoint" in taken:
        with waiting(f"asking {taken['endpoint']}"):
            return exit_code(
                verification.verify_endpoint(taken["endpoint"], graph, embeddings, prefix)
            )
    with waiting("comparing with the golden rows"):
        return exit_code(verification.verify_artefacts(graph, embeddings, prefix))


def require_serving(graph: str, embeddings: str | None) -> None:
    """Read what a graph and embeddings in files say of themselves. Raises Failure without it."""
    from tnctl import manifest
    from tnctl.serving.graph.graph_document import NAME, GraphManifest
    from tnctl.serving.rows import server_format
    from tnctl.serving.rows.embeddings import chain_of

    manifest.read(graph, GraphManifest, NAME)
    if embeddings is not None and server_format(embeddings) is None:
        chain_of(embeddings)


def places_of(output: str, taken: dict[str, str]) -> tuple[str, str]:
    """The graph and the embeddings."""
    graph = taken.get("graph") or files.join(output, "graph")
    return graph, taken.get("embeddings") or files.join(output, "embeddings")


def check(conf: Conf, taken: dict[str, str]) -> None:
    """Refuse what is to be compared and is not there, or data that lacks a column."""
    from tnctl.data import column_names, sources

    require_serving(*places_of(conf.output, taken))
    with contextlib.suppress(files.AbsentError):  # for which the comparison knows a way out
        sources.require(conf, ["validation"], column_names.columns_read(conf))


def read(opened: Run, taken: dict[str, str]) -> int:
    graph, embeddings = places_of(opened.conf.output, taken)
    prefix, endpoint = taken.get("prefix", PREFIX), taken.get("endpoint")
    return exit_code(opened.verify_serving(graph, embeddings, prefix=prefix, endpoint=endpoint))


def exit_code(findings: "list[CheckedFigure]") -> int:
    """Show the findings; 0 when all are fine, else 1."""
    from tnctl.progress import say, table

    rows = [(f.what, f.figure, "ok" if f.held else "FAILED") for f in findings]
    table("", ("serving against training", "", ""), rows)
    held = all(finding.held for finding in findings)
    way = "differs from training: do not ship these files; split and export again"
    say(f"serving {'equals training' if held else way}")
    return 0 if held else 1
