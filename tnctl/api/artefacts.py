"""What is done with split graphs and exported embeddings alone, without a model."""

from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from tnctl import files
from tnctl.api.calls import Url, choice, in_one_line, text_of
from tnctl.errors import UserError, did_you_mean, refuse_if
from tnctl.model import quiet_tensorflow

if TYPE_CHECKING:
    from tnctl.serving.rows.export_document import ExportManifest
    from tnctl.serving.verification import CheckedFigure

PREFIX = "tnctl"
STANDARD = "-"  # standard input or output
SECTION = "data."
KEYS = tuple(
    SECTION + name
    for name in ("delimiter", "header", "columns", "check_utf8", "skip_rows", "bad_rows")
)
FORMATS = ("jsonl", "csv")
FORMAT_OF_NAME = {".jsonl": "jsonl", ".json": "jsonl", ".csv": "csv", ".tsv": "csv"}


def fold(embeddings: Url, to: Url) -> "ExportManifest":
    """Make one full export of the newest of a chain of exports: `tnctl fold`.

    Returns its manifest. Raises UserError and Failure.
    """
    from tnctl.serving.rows import folding

    with in_one_line():
        return folding.fold(text_of(embeddings, "embeddings"), text_of(to, "to"))


def verify_artefacts(
    graph: Url, embeddings: Url | None = None, *, prefix: str = PREFIX, endpoint: str | None = None
) -> "list[CheckedFigure]":
    """Compare a graph, and embeddings, with the golden rows that they contain.

    That is `tnctl verify-serving` without a model. With `endpoint`, the URL of a running service,
    golden rows are sent to it instead. Raises UserError and Failure.
    """
    graph = text_of(graph, "graph")
    embeddings = None if embeddings is None else text_of(embeddings, "embeddings")
    with in_one_line():
        require_serving(graph, embeddings)
        quiet_tensorflow()
        from tnctl.progress import waiting
        from tnctl.serving import verification

        if endpoint is not None:
            with waiting(f"asking {endpoint}"):
                return verification.verify_endpoint(endpoint, graph, embeddings, prefix)
        with waiting("comparing with the golden rows"):
            return verification.verify_artefacts(graph, embeddings, prefix)


def score(
    graph: Url,
    embeddings: Url | None,
    source: Url = STANDARD,
    to: Url = STANDARD,
    *,
    kind: str | None = None,
    prefix: str = PREFIX,
    overrides: Sequence[str] = (),
    overwrite: bool = False,
) -> int:
    """Write the scores of raw rows, in their order: `tnctl score`; returns the number of rows.

    A graph with the rows inside needs no embeddings. `source` and `to` are files or URLs, - for
    standard input and output. They are jsonl or csv: as `kind` says, else each by its name, else
    jsonl. `overrides` are keys of data that say how the rows are read, such as data.delimiter=;
    else CSV is read as training read it. With data.bad_rows=N, rows that cannot be read are left
    out, at most N of them, and each score has the line of its row. Raises UserError and Failure.
    """
    graph = text_of(graph, "graph")
    embeddings = None if embeddings is None else text_of(embeddings, "embeddings")
    source, to = text_of(source, "input"), text_of(to, "to")
    source_kind = choice("format", kind or format_of(source) or FORMATS[0], FORMATS)
    to_kind = kind or format_of(to) or source_kind
    with in_one_line():
        keys = values_of(list(overrides))
        require_serving(graph, embeddings)
        refuse_if(
            embeddings is None and not has_rows(graph),
            "score needs embeddings=URL: the graph has no rows inside",
        )
        if source != STANDARD and not files.exists(source):
            with files.open_input(source):  # raises what is wrong; a pipe can be opened only once
                pass
        quiet_tensorflow()
        from tnctl.serving import scoring

        return scoring.score(
            graph, embeddings, prefix, source, source_kind, to, to_kind, keys, overwrite
        )


def values_of(overrides: list[str]) -> dict[str, Any]:
    """The values of keys of data, by their names in it. Raises UserError for one given twice."""
    for override in overrides:
        key, equals, _ = override.partition("=")
        if not equals or key not in KEYS:
            raise UserError(f"score has no conf, and takes no {key}=. {did_you_mean(key, KEYS)}")
    if not overrides:
        return {}
    from tnctl.composing.compose import parsed_overrides

    values: dict[str, Any] = {}
    for override in parsed_overrides(Path.cwd() / "conf.yaml", overrides):
        key = override.key_or_group
        refuse_if(override.is_sweep_override(), f"{key} takes one value")
        name = key.removeprefix(SECTION)
        refuse_if(name in values, f"{key}= is given twice")
        values[name] = override.value()
    return values


def format_of(url: str) -> str:
    """The format that the name of a file has, empty for another."""
    suffixes = [suffix for suffix in PurePosixPath(url).suffixes if suffix not in (".gz", ".zst")]
    return FORMAT_OF_NAME.get(suffixes[-1], "") if suffixes else ""


def has_rows(graph: str) -> bool:
    """Whether a graph has the rows inside. Raises Failure for what is no graph."""
    from tnctl import manifest
    from tnctl.serving.graph.graph_document import NAME, GraphManifest

    return manifest.read(graph, GraphManifest, NAME).rows is not None


def require_serving(graph: str, embeddings: str | None) -> None:
    """Read what a graph and embeddings in files say of themselves. Raises Failure without it."""
    from tnctl import manifest
    from tnctl.serving.graph.graph_document import NAME, GraphManifest
    from tnctl.serving.rows import server_format
    from tnctl.serving.rows.embeddings import chain_of

    manifest.read(graph, GraphManifest, NAME)
    if embeddings is not None and server_format(embeddings) is None:
        chain_of(embeddings)
