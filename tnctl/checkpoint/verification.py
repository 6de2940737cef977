"""Whether a checkpoint, and all that it is built on, is as it was written. Rows are streamed."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tnctl import files, manifest
from tnctl.checkpoint import dense_file, rows
from tnctl.checkpoint.chain import (
    CONF,
    GOLDEN,
    Checkpoint,
    offering,
    open_checkpoint,
)
from tnctl.checkpoint.document import RowsFile
from tnctl.checkpoint.listing import NAME
from tnctl.errors import Failure
from tnctl.manifest import DamagedError
from tnctl.progress import Display


@dataclass
class Verification:
    """What was read, and one line for everything that is wrong."""

    chain: list[str] = field(default_factory=list)
    files: int = 0
    rows: int = 0
    findings: list[str] = field(default_factory=list)

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note an error of the block, without its advice."""
        try:
            yield
        except Failure as error:
            self.findings.append(error.what if isinstance(error, DamagedError) else str(error))


def verify(folder: str) -> Verification:
    """Read every byte of a checkpoint and of its chain, and compare it with the manifests."""
    findings = Verification()
    chain: list[Checkpoint] = []
    with findings.noted():
        chain = open_checkpoint(folder).chain()
    findings.chain = [link.folder for link in chain]
    with Display("verify", sum(link.manifest.total_bytes for link in chain)) as display:
        done = 0
        for link in chain:
            verify_link(findings, link)
            done += link.manifest.total_bytes
            display.update(done, f"{findings.rows:,} rows")
    return findings


def verify_link(findings: Verification, link: Checkpoint) -> None:
    """Check the files of one checkpoint."""
    match = NAME.fullmatch(link.name)
    # With evaluation.keep=best the last one is named after the run's steps, not after its model's.
    step = link.manifest.steps_trained
    if match and int(match[1]) != step:
        findings.findings.append(f"{link.folder} is of step {step:,}")
    streamed = set()
    for table in link.manifest.tables:
        for entry in table.entries:
            streamed.add(entry.file)
            with findings.noted():
                for records in rows.verified(link, table, entry):
                    findings.rows += len(records) if isinstance(entry, RowsFile) else 0
    findings.files += len(link.manifest.files)
    for path in link.manifest.files:
        if path in streamed:
            continue
        with findings.noted(), offering(link):
            manifest.check_stored(link.folder, link.manifest, path, "Take another")
            verify_content(link, path)


def verify_content(checkpoint: Checkpoint, path: str) -> None:
    """Raise Failure when an undamaged file is not what a file of its name must be."""
    if path == dense_file.NAME:
        dense_file.floats(checkpoint.folder, checkpoint.manifest)
    if path == CONF:
        checkpoint.conf()
    if path == GOLDEN:
        url = files.join(checkpoint.folder, path)
        lines, expected = checkpoint.golden(), checkpoint.manifest.golden.rows
        if len(lines) != expected:
            raise Failure(f"{url} has {len(lines):,} rows, the manifest says {expected:,}")
        heads = set(checkpoint.manifest.heads)
        for number, line in enumerate(lines, 1):
            if heads != line.logits.keys():
                raise Failure(f"{url}, line {number} has not the outputs of the model's heads")
