"""Whether a checkpoint, and all that it is built on, is as it was written. Rows are streamed."""

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
from tnctl.checkpoint.document import RowsFile, Table, Tombstones
from tnctl.checkpoint.listing import NAME
from tnctl.errors import Failure, UserError
from tnctl.manifest import DamagedError
from tnctl.progress import Display


@dataclass
class Verification:
    """What was read, and one line for everything that is wrong."""

    chain: list[str] = field(default_factory=list)
    files: int = 0
    rows: int = 0
    findings: list[str] = field(default_factory=list)

    def add(self, error: UserError) -> None:
        """Note an error that reading met, without its advice."""
        self.findings.append(error.what if isinstance(error, DamagedError) else str(error))


def verify(folder: str) -> Verification:
    """Read every byte of a checkpoint and of its chain, and compare it with the manifests."""
    findings = Verification()
    try:
        chain = open_checkpoint(folder).chain()
    except Failure as error:
        findings.add(error)
        return findings
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
    for table in link.manifest.tables:
        for entry in table.entries:
            count = verify_records(findings, link, table, entry)
            if isinstance(entry, RowsFile):
                findings.rows += count
    streamed = {entry.file for table in link.manifest.tables for entry in table.entries}
    for path in link.manifest.files:
        findings.files += 1
        if path not in streamed:
            try:
                with offering(link):
                    manifest.check_stored(link.folder, link.manifest, path, "Take another")
                    verify_content(link, path)
            except Failure as error:
                findings.add(error)


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


def verify_records(
    findings: Verification, checkpoint: Checkpoint, part: Table, entry: RowsFile | Tombstones
) -> int:
    """Check a file of rows or removed keys; returns how many records it has, up to a problem."""
    count = 0
    try:
        for records in rows.verified(checkpoint, part, entry):
            count += len(records)
            if count > entry.rows:
                break
        if count != entry.rows:
            url = files.join(checkpoint.folder, entry.file)
            findings.findings.append(
                f"{url} has {count:,} records, the manifest says {entry.rows:,}"
            )
    except Failure as error:
        findings.add(error)
    return count
