"""Whether a checkpoint, and all that it is built on, is as it was written. Rows are streamed."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl import files, manifest
from tnctl.checkpoint import dense_file, rows
from tnctl.checkpoint.chain import (
    CONF,
    GOLDEN,
    Checkpoint,
    offering,
    open_checkpoint,
)
from tnctl.checkpoint.listing import NAME
from tnctl.checkpoint.table_document import RowsFile, Table, Tombstones
from tnctl.errors import Failure, UserError
from tnctl.manifest import DamagedError
from tnctl.progress import Display

GROUPS = 1 << 16  # numbers of groups that a record can have

Counts = NDArray[np.int64]  # the rows of each group by its number, [GROUPS]


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


class RecordChecks:
    """Checks the records of one file, block after block.

    Keys ascend, are in the file's range of hashes and of known groups; steps are after the parent's
    and not after the checkpoint's own.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        part: Table,
        entry: RowsFile | Tombstones,
        parent_step: int | None,
    ) -> None:
        self._keys = rows.keys_of(part)
        self._numbers = np.array([group.number for group in part.groups])
        self._first, self._last = map(np.uint64, entry.hashes)
        self._step_field = "changed" if isinstance(entry, RowsFile) else "step"
        self._step, self._parent_step = checkpoint.step, parent_step
        self._last_key: tuple[int, int] | None = None

    def problem(self, records: NDArray[Any]) -> str | None:
        """What is wrong with the next records [n], n at least 1, of the file's dtype; or None."""
        groups = records["group"].astype(np.int64)
        if not np.isin(groups, self._numbers).all():
            return "has a record of a group that the manifest does not have"
        hashes = self._keys.hashes(records)
        if (hashes < self._first).any() or (hashes > self._last).any():
            return "has a record whose hash is not in the file's range"
        later = hashes[1:] > hashes[:-1]
        same = (hashes[1:] == hashes[:-1]) & (groups[1:] > groups[:-1])
        first_key = int(hashes[0]), int(groups[0])
        if not (later | same).all() or (self._last_key is not None and first_key <= self._last_key):
            return "has records that are not in the order of their hashes"
        self._last_key = int(hashes[-1]), int(groups[-1])
        steps = records[self._step_field]
        if (steps > self._step).any():
            return f"has a record of a step after the checkpoint's, {self._step:,}"
        if self._parent_step is not None and (steps <= self._parent_step).any():
            return f"has a record that its parent, of step {self._parent_step:,}, must have"
        return None


def verify(folder: str) -> Verification:
    """Read every byte of a checkpoint and of its chain, and compare it with the manifests."""
    findings = Verification()
    try:
        checkpoint = open_checkpoint(folder)
        chain = checkpoint.chain()
    except Failure as error:
        findings.add(error)
        return findings
    findings.chain = [link.folder for link in chain]
    with Display("verify", sum(link.manifest.total_bytes for link in chain)) as display:
        done, parent_step = 0, None
        counts: list[Counts] = []
        for link in chain:
            counts = verify_link(findings, link, parent_step)
            parent_step = link.step
            done += link.manifest.total_bytes
            display.update(done, f"{findings.rows:,} rows")
    if len(chain) > 1 and not findings.findings:
        counts = [merged_counts(checkpoint, table.name) for table in checkpoint.manifest.tables]
    if not findings.findings:
        findings.findings += miscounted(checkpoint, counts)
    return findings


def verify_link(findings: Verification, link: Checkpoint, parent_step: int | None) -> list[Counts]:
    """Check the files of one checkpoint; returns the rows by group in them, for each table."""
    match = NAME.fullmatch(link.name)
    # With evaluation.keep=best the last one is named after the run's steps, not after its model's.
    step = link.manifest.steps_trained
    if match and int(match[1]) != step:
        findings.findings.append(f"{link.folder} is of step {step:,}")
    counts = []
    for table in link.manifest.tables:
        counts.append(np.zeros(GROUPS, np.int64))
        for entry in table.entries:
            in_file = verify_records(findings, link, table, entry, parent_step)
            if isinstance(entry, RowsFile):
                counts[-1] += in_file
                findings.rows += int(in_file.sum())
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
    return counts


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
    findings: Verification,
    checkpoint: Checkpoint,
    part: Table,
    entry: RowsFile | Tombstones,
    parent_step: int | None,
) -> Counts:
    """Check a file of rows or removed keys; returns its records by group, up to a problem."""
    counts: Counts = np.zeros(GROUPS, np.int64)
    checks = RecordChecks(checkpoint, part, entry, parent_step)
    count, problem = 0, None
    try:
        for records in rows.verified(checkpoint, part, entry):
            # A flipped byte is best explained by the checksum, which is known at the file's end.
            problem = problem or checks.problem(records)
            if problem is None:
                count += len(records)
                if count > entry.rows:
                    break
                counts += np.bincount(records["group"], minlength=GROUPS)
        if problem is None and count != entry.rows:
            problem = f"has {count:,} records, the manifest says {entry.rows:,}"
        if problem is not None:
            findings.findings.append(f"{files.join(checkpoint.folder, entry.file)} {problem}")
    except Failure as error:
        findings.add(error)
    return counts


def merged_counts(checkpoint: Checkpoint, table: str) -> Counts:
    """The rows of each group of a table in the whole chain."""
    counts: Counts = np.zeros(GROUPS, np.int64)
    for records in rows.stream(checkpoint, table):
        counts += np.bincount(records["group"], minlength=GROUPS)
    return counts


def miscounted(checkpoint: Checkpoint, counts: list[Counts]) -> Iterator[str]:
    """A line for each group that has not as many rows as the manifest says."""
    for table, by_group in zip(checkpoint.manifest.tables, counts, strict=True):
        for group in table.groups:
            count = int(by_group[group.number])
            if count != group.rows:
                yield (
                    f"{checkpoint.folder} has {count:,} rows of group {group.name}, its "
                    f"manifest says {group.rows:,}"
                )
