"""`tnctl publish`: versions of a model side by side, and which of them is in force.

A version is a graph and rows of one checkpoint, in folders that are never written again.
`current.json` names the version in force and the earlier ones that are kept. It is replaced last,
after the new version gave its golden rows. docs/formats/publication.md.
"""

import json
import re
from datetime import UTC, datetime
from typing import Annotated, Literal

from pydantic import Field

from tnctl import documents, files, limits, ownership
from tnctl.checkpoint.chain import Checkpoint
from tnctl.documents import Count, DocumentError, FolderName, Moment, Sha256
from tnctl.errors import Failure, UserError, refuse_if
from tnctl.manifest import PUBLICATION
from tnctl.ownership import EMBEDDINGS, GRAPH
from tnctl.progress import say
from tnctl.schema import Conf
from tnctl.serving.artefact_document import document
from tnctl.serving.graph.splitting import split
from tnctl.serving.rows.embeddings import chain_of
from tnctl.serving.rows.export import export
from tnctl.serving.rows.export_document import RowsManifest
from tnctl.serving.rows.precision import Precision
from tnctl.serving.verification import verify_artefacts

FORMATS = {"graph": GRAPH, "embeddings": EMBEDDINGS}
FOLDER = re.compile(r"(graph|embeddings)-([0-9]{6,})")


@document
class Version:
    """A graph and the rows of one checkpoint, by the names of their folders.

    `chain` are the folders of the rows: a full export, and its deltas up to the newest. The
    checksums are of the manifests of the graph and of the newest rows, which name their files.
    """

    number: Annotated[int, Field(ge=1, lt=2**31)]
    step: Count
    time: Moment
    checkpoint: Sha256
    graph: FolderName
    graph_sha256: Sha256
    chain: Annotated[tuple[FolderName, ...], Field(min_length=1)]
    rows_sha256: Sha256

    @property
    def embeddings(self) -> str:
        """The folder of the rows that changed last."""
        return self.chain[-1]


@document
class Publication:
    """What is published at a place: the version in force, and the earlier ones that are kept."""

    format: Literal["tnctl publication"] = "tnctl publication"
    version: Literal[1] = 1
    versions: Annotated[tuple[Version, ...], Field(min_length=1)]


def publish(
    checkpoint: Checkpoint,
    conf: Conf,
    to: str,
    *,
    keep: int,
    encoding: str | None = None,
    precision: Precision = "float32",
    full: bool = False,
) -> Version:
    """Write the version of a checkpoint to a folder or URL, and put it in force.

    Its rows are a delta of the version in force, or all rows when `full` and where there can be no
    delta: in the first version, after a rollback, and on top of the most deltas that readers take.
    `keep` versions stay, the one in force among them, and what their chains need. Unless `full`, a
    checkpoint that is in force already is not written again. Raises Failure when the golden rows
    differ; then, and whatever else fails, the version in force stays in force.
    """
    refuse_if(keep < 1, f"keep is the number of versions that stay, at least 1. Received: {keep}")
    with files.locked(to, is_written=True):
        earlier = published(to)
        if earlier and earlier[0].checkpoint == checkpoint.manifest.sha256 and not full:
            kept = earlier[:keep]
        else:
            version = written(checkpoint, conf, to, earlier, encoding, precision, full)
            kept = (version, *earlier)[:keep]
        if kept != earlier:
            text = json.dumps(documents.plain(Publication(versions=kept)), indent=2)
            files.write_bytes(files.join(to, PUBLICATION), f"{text}\n".encode())
        remove_others(to, kept)
    already = " already" if kept[0] in earlier else ""
    say(f"version {kept[0].number} of {checkpoint.step_in_words} is in force in {to}{already}")
    return kept[0]


def published(to: str) -> tuple[Version, ...]:
    """The versions at a place, the one in force first; none when nothing is published.

    Raises Failure for a `current.json` that tnctl did not write.
    """
    url = files.join(to, PUBLICATION)
    if not files.exists(url):
        return ()
    try:
        return documents.parse(
            Publication, files.read_bytes(url, most=limits.MANIFEST_BYTES)
        ).versions
    except DocumentError as error:
        raise Failure(
            f"{url} is no record of published versions: {error}. Publish to another place, or move "
            "it away"
        ) from error


def written(
    checkpoint: Checkpoint,
    conf: Conf,
    to: str,
    earlier: tuple[Version, ...],
    encoding: str | None,
    precision: Precision,
    full: bool,
) -> Version:
    """Write a version, and compare it with its golden rows. Raises Failure when it differs."""
    number = earlier[0].number + 1 if earlier else 1
    graph, rows = (f"{kind}-{number:06}" for kind in FORMATS)
    content = split(checkpoint, conf, files.join(to, graph))

    def exported(since: str | None) -> RowsManifest:
        return export(
            checkpoint, conf, files.join(to, rows),
            encoding=encoding, precision=precision, since=since,
        )  # fmt: skip

    chain: tuple[str, ...] = (rows,)
    base, reason = (None, "full=true") if full else base_of(to, earlier)
    if base is not None:
        try:
            exports = exported(base)
            chain = (*earlier[0].chain, rows)
        except UserError as error:
            if isinstance(error, Failure):
                raise
            base, reason = None, str(error)  # there can be no delta of it
    if base is None:
        if reason:
            say(f"all rows are published, not those that changed: {reason}")
        exports = exported(None)
    if content.golden is None:
        say("warning: the checkpoint has no golden rows, so what is published is not compared")
    else:
        figures = verify_artefacts(files.join(to, graph), files.join(to, rows))
        for figure in figures:
            refuse_if(
                not figure.held,
                f"{figure.what} differ from the checkpoint ({figure.figure}). What was in force in "
                f"{to} stays in force",
                Failure,
            )
    time = datetime.now(UTC).isoformat(timespec="seconds")
    return Version(
        number=number, step=checkpoint.step, time=time, checkpoint=checkpoint.manifest.sha256,
        graph=graph, graph_sha256=content.sha256, chain=chain, rows_sha256=exports.sha256,
    )  # fmt: skip


def base_of(to: str, earlier: tuple[Version, ...]) -> tuple[str | None, str]:
    """The rows in force, of which a delta may be made; if there are none that are whole, why."""
    if not earlier:
        return None, ""
    folder = files.join(to, earlier[0].embeddings)
    try:
        chain_of(folder)
    except Failure as error:
        return None, str(error)
    return folder, ""


def remove_others(to: str, kept: tuple[Version, ...]) -> None:
    """Remove the folders of earlier versions that no kept one needs, as far as tnctl wrote them."""
    needed = {name for version in kept for name in (version.graph, *version.chain)}
    for entry in files.listed(to):
        match = FOLDER.fullmatch(entry.name) if entry.kind == "folder" else None
        if match and entry.name not in needed and int(match[2]) < kept[0].number:
            content = ownership.survey(files.join(to, entry.name), FORMATS[match[1]])
            ownership.remove(content)
            if content.foreign:
                say(f"{content.folder} has files that tnctl did not write, and stays")
        part = files.PART_NAME.fullmatch(entry.name)
        # A publication that was killed leaves a part of it.
        if entry.kind == "file" and part and part[1] == PUBLICATION:
            files.remove_file(files.join(to, entry.name))
