"""Whether a checkpoint, and all that it is built on, is as it was written. Rows are streamed."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl import files, manifest
from tnctl.checkpoint import dense_file, rows, tombstones
from tnctl.checkpoint.chain import (
    CONF,
    GOLDEN,
    Checkpoint,
    offering,
    open_checkpoint,
    split,
)
from tnctl.checkpoint.listing import NAME
from tnctl.checkpoint.table_document import RowsFile, Table, TombstonesFile
from tnctl.errors import Failure, UserError
from tnctl.manifest import DamagedError
from tnctl.progress import Display

Counts = dict[int, int]  # group's number -> rows


@dataclass
class Findings:
    """What was read, and one line for everything that is wrong."""

    chain: list[str] = field(default_factory=list)
    files: int = 0
    rows: int = 0
    findings: list[str] = field(default_factory=list)

    def add(self, error: UserError) -> None:
        """Note an error that reading met, without its advice."""
        self.findings.append(error.what if isinstance(error, DamagedError) else str(error))


class Order:
    """Checks that keys ascend, are in a range of hashes, and of known groups, block after block."""

    def __init__(self, url: str, part: Table, first: int, last: int) -> None:
        self._url, self._keys = url, rows.keys_of(part)
        self._numbers = np.array([group.number for group in part.groups])
        self._first, self._last = np.uint64(first), np.uint64(last)
        self._before: tuple[int, int] | None = None

    def take(self, records: NDArray[Any]) -> None:
        """Raise Failure unless records go on where the last ones ended."""
        groups = records["group"].astype(np.int64)
        if not np.isin(groups, self._numbers).all():
            raise Failure(f"{self._url} has a record of a group that the manifest does not have")
        hashes = self._keys.hashes(records)
        if (hashes < self._first).any() or (hashes > self._last).any():
            raise Failure(f"{self._url} has a record whose hash is not in the file's range")
        later = hashes[1:] > hashes[:-1]
        same = (hashes[1:] == hashes[:-1]) & (groups[1:] > groups[:-1])
        begins = (int(hashes[0]), int(groups[0]))
        if not (later | same).all() or (self._before is not None and begins <= self._before):
            raise Failure(f"{self._url} has records that are not in the order of their hashes")
        self._before = int(hashes[-1]), int(groups[-1])


def verify(folder: str) -> Findings:
    """Read every byte of a checkpoint and of its chain, and compare it with the manifests."""
    found = Findings()
    try:
        checkpoint = open_checkpoint(folder)
        chain = checkpoint.chain()
    except Failure as error:
        found.add(error)
        return found
    found.chain = [one.folder for one in chain]
    with Display("verify", sum(bytes_of(one) for one in chain)) as display:
        done = 0
        counts: list[Counts] = []
        for number, one in enumerate(chain):
            counts = verify_one(found, one, chain[number - 1].step if number else None)
            done += bytes_of(one)
            display.update(done, f"{found.rows:,} rows")
    if len(chain) > 1 and not found.findings:
        counts = [merged_counts(checkpoint, table.name) for table in checkpoint.manifest.tables]
    if not found.findings:
        found.findings += miscounted(checkpoint, counts)
    return found


def bytes_of(checkpoint: Checkpoint) -> int:
    return sum(entry.bytes for entry in checkpoint.manifest.files.values())


def verify_one(found: Findings, checkpoint: Checkpoint, parent_step: int | None) -> list[Counts]:
    """The files of one checkpoint; returns the rows of each group of each table in them."""
    name = split(checkpoint.folder)[1]
    match = NAME.fullmatch(name)
    # With evaluation.keep=best the last one is named after the run's steps, not after its model's.
    step = checkpoint.manifest.steps_trained
    if match and int(match[1]) != step:
        found.findings.append(f"{checkpoint.folder} is of step {step:,}")
    counts = []
    streamed: set[str] = set()
    for table in checkpoint.manifest.tables:
        counts.append(verify_table(found, checkpoint, table, parent_step))
        streamed |= set(table.paths)
    for path in checkpoint.manifest.files:
        found.files += 1
        if path not in streamed:
            try:
                with offering(checkpoint):
                    manifest.check_stored(
                        checkpoint.folder, checkpoint.manifest, path, "Take another"
                    )
                    verify_content(checkpoint, path)
            except Failure as error:
                found.add(error)
    return counts


def verify_content(checkpoint: Checkpoint, path: str) -> None:
    """Raise Failure when an undamaged file is not what a file of its name must be."""
    url = files.join(checkpoint.folder, path)
    if path == dense_file.NAME:
        dense_file.floats(checkpoint.folder, checkpoint.manifest)
    if path == CONF:
        checkpoint.conf()
    if path == GOLDEN:
        lines, said = checkpoint.golden(), checkpoint.manifest.golden.rows
        if len(lines) != said:
            raise Failure(f"{url} has {len(lines):,} rows, the manifest says {said:,}")
        heads = set(checkpoint.manifest.heads)
        for number, line in enumerate(lines, 1):
            if heads != line.logits.keys():
                raise Failure(f"{url}, line {number} has not the outputs of the model's heads")


def verify_table(
    found: Findings, checkpoint: Checkpoint, part: Table, parent_step: int | None
) -> Counts:
    """The rows and the removed keys of a table in one checkpoint; returns the rows by group."""
    counts: Counts = {}
    dtype = part.record_dtype
    for entry in part.files:
        first, last = entry.hashes
        header = rows.HEADER.pack(rows.MAGIC, 1, dtype.itemsize, first, last)
        blocks = rows.verified(checkpoint, entry.file, header, dtype)
        steps = ("changed", parent_step, checkpoint.step)
        for records in verified(found, checkpoint, part, entry, blocks, first, last, steps):
            for number, many in zip(*np.unique(records["group"], return_counts=True), strict=True):
                counts[int(number)] = counts.get(int(number), 0) + int(many)
            found.rows += len(records)
    if (removed := part.tombstones) is not None:
        blocks = rows.verified(checkpoint, removed.file, tombstones.START, tombstones.DTYPE)
        # A full checkpoint keeps those of the days before it.
        steps = ("step", parent_step, checkpoint.step)
        for _ in verified(found, checkpoint, part, removed, blocks, 0, rows.LAST_HASH, steps):
            pass
    return counts


def verified(
    found: Findings,
    checkpoint: Checkpoint,
    part: Table,
    entry: RowsFile | TombstonesFile,
    blocks: Iterator[NDArray[Any]],
    first: int,
    last: int,
    steps: tuple[str, int | None, int],
) -> Iterator[NDArray[Any]]:
    """The blocks of a file that are in order; at the first finding it ends."""
    url = files.join(checkpoint.folder, entry.file)
    order = Order(url, part, first, last)
    clock, above, until = steps
    many = 0
    try:
        wrong: Failure | None = None
        for records in blocks:
            # What comes of a flipped byte is said by the checksum, at the file's end.
            if wrong is None:
                try:
                    order.take(records)
                    check_steps(url, records[clock], above, until)
                except Failure as error:
                    wrong = error
                else:
                    many += len(records)
                    if many > entry.rows:
                        break
                    yield records
        if wrong is not None:
            raise wrong
        if many != entry.rows:
            raise Failure(f"{url} has {many:,} records, the manifest says {entry.rows:,}")
    except Failure as error:
        found.add(error)


def check_steps(url: str, steps: NDArray[np.uint32], above: int | None, until: int) -> None:
    """Raise Failure unless rows are of steps that the checkpoint is of."""
    if (steps > until).any():
        raise Failure(f"{url} has a record of a step after the checkpoint's, {until:,}")
    if above is not None and (steps <= above).any():
        raise Failure(f"{url} has a record that its parent, of step {above:,}, must have")


def merged_counts(checkpoint: Checkpoint, table: str) -> Counts:
    """The rows of each group of a table, of the whole chain."""
    counts = np.zeros(1 << 16, np.int64)
    for records in rows.stream(checkpoint, table):
        counts += np.bincount(records["group"], minlength=1 << 16)
    return {int(number): int(counts[number]) for number in np.flatnonzero(counts)}


def miscounted(checkpoint: Checkpoint, counts: list[Counts]) -> Iterator[str]:
    """A line for each group that has not as many rows as the manifest says."""
    for table, found in zip(checkpoint.manifest.tables, counts, strict=True):
        for group in table.groups:
            there = found.get(group.number, 0)
            if there != group.rows:
                yield (
                    f"{checkpoint.folder} has {there:,} rows of group {group.name}, its "
                    f"manifest says {group.rows:,}"
                )
