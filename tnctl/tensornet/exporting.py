"""`tnctl export-embeddings format=tensornet`: rows as the text of TensorNet's sparse tables.

A row has its optimizer's state, show, and days without a show, so that TensorNet can go on.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tnctl import outputs
from tnctl.checkpoint.chain import Checkpoint
from tnctl.checkpoint.decayed_rows import as_read, known_rows, shows_as_read, unseen_days
from tnctl.checkpoint.table_document import Table
from tnctl.errors import Failure, refuse_if
from tnctl.manifest import FileEntry, Inventory
from tnctl.model.layout import plan
from tnctl.outputs import Output
from tnctl.ownership import TENSORNET
from tnctl.progress import Display
from tnctl.schema import Conf
from tnctl.serving.artefact_document import CheckpointReference
from tnctl.tensornet.conf_tables import Weights, named_weights, weights_of
from tnctl.tensornet.number_texts import float_texts, rounded
from tnctl.tensornet.row_forms import ADAGRAD
from tnctl.tensornet.table_folders import BLOCKS
from tnctl.tensornet.tables_document import (
    MOST_RANKS,
    TablesManifest,
    WrittenTable,
    block_name,
)


@dataclass(frozen=True)
class Share:
    """The files of every table that one of several workers writes.

    Files are dealt block by block, and those of a block rank by rank: ids below 2^32 are all in
    block 0.
    """

    ranks: int
    worker: int = 0
    workers: int = 1

    @property
    def numbers(self) -> NDArray[np.int64]:
        """The numbers of the files, ascending: block * ranks + rank."""
        return np.arange(self.worker, self.ranks * BLOCKS, self.workers)

    def numbers_of(self, ids: NDArray[np.uint64]) -> NDArray[np.int64]:
        """The number of the file that each id belongs to, [n]."""
        ranks = np.uint64(self.ranks)
        blocks = (ids >> np.uint64(32)) % np.uint64(BLOCKS)
        return (blocks * ranks + ids % ranks).astype(np.int64)

    def names(self, table: str) -> list[str]:
        """The names of the files of a table, in the order of their numbers."""
        places = (divmod(number, self.ranks) for number in self.numbers.tolist())
        return [block_name(table, rank, block) for block, rank in places]

    def of(self, records: NDArray[Any]) -> NDArray[Any]:
        """Those of some records [n] that belong to the files."""
        if self.workers == 1:
            return records
        return records[self.numbers_of(records["id"]) % self.workers == self.worker]


@dataclass(frozen=True)
class WrittenPart:
    """The files that were written, and the rows in them of each table."""

    files: dict[str, FileEntry]
    rows: tuple[int, ...]


class TablesRequest:
    """What is exported: the arguments of `export`. Raises UserError as it does."""

    def __init__(self, checkpoint: Checkpoint, conf: Conf, tables: str | None, ranks: int) -> None:
        refuse_if(
            not 1 <= ranks <= MOST_RANKS, f"ranks is from 1 to {MOST_RANKS}. Received: {ranks}"
        )
        self.checkpoint, self.given, self.ranks = checkpoint, tables, ranks
        known = weights_of(conf.compat, plan(conf, checkpoint.statistics))
        if tables is None:
            chosen = {f"{entry.group}_{entry.segment.name}": entry for entry in known}
        else:
            chosen = named_weights(tables, known)
        for name, weights in chosen.items():
            _ = weights.form  # refuses an optimizer that TensorNet does not have
            refuse_if(
                not name.replace("_", "").isalnum() or not name.isascii(),
                f"tables=: a table is called by letters, digits and _. Received: {name}",
            )
        self._weights: dict[str, dict[str, Weights]] = {}
        """by name, for each table of the checkpoint that has any"""
        for table in checkpoint.manifest.tables:
            groups = {group.name for group in table.groups}
            of_table = {name: w for name, w in chosen.items() if w.group in groups}
            if of_table:
                self._weights[table.name] = of_table

    @property
    def tables(self) -> list[WrittenTable]:
        """The tables as the manifest has them, in the order in which they are written."""
        return [
            WrittenTable(
                name=name,
                group=weights.group,
                segment=weights.segment.name,
                optimizer=weights.form.rule.name,
                dim=weights.form.dim,
                rows=group.rows,
            )
            for table, of_table in self._weights.items()
            for name, weights in of_table.items()
            for group in self.checkpoint.table(table).groups
            if group.name == weights.group
        ]

    def write(
        self, share: Share, inventory: Inventory, between: Callable[[], None] = lambda: None
    ) -> WrittenPart:
        """Write the files of a share, in one pass over each table of the checkpoint.

        `between` is called before every few MiB, and may raise to end this.
        """
        if not share.numbers.size:
            return WrittenPart({}, (0,) * len(self.tables))
        written: list[int] = []
        done = 0
        with Display("export", self.checkpoint.manifest.rows) as display:
            for table_name, of_table in self._weights.items():
                table = self.checkpoint.table(table_name)
                numbers = {group.name: group.number for group in table.groups}
                with ExitStack() as stack:
                    writers = [
                        TableWriter(stack, inventory, name, weights, share, cvm=table.life.cvm)
                        for name, weights in of_table.items()
                    ]
                    for records in known_rows(self.checkpoint, table_name):
                        between()
                        done += len(records)
                        records = share.of(records)
                        counts = counts_of(records, table, self.checkpoint)
                        records = as_read(records, table, self.checkpoint.step)
                        for writer, weights in zip(writers, of_table.values(), strict=True):
                            mask = records["group"] == numbers[weights.group]
                            writer.write(records[mask], [column[mask] for column in counts])
                        display.update(done, f"{done:,} rows to {inventory.to}")
                written += [writer.rows for writer in writers]
            display.finish()
        return WrittenPart(dict(inventory.files), tuple(written))


# Writes the files of all tables into a folder: one process, or several.
WriteTables = Callable[[TablesRequest, Output], Sequence[WrittenPart]]


def write_alone(request: TablesRequest, output: Output) -> Sequence[WrittenPart]:
    """Write all files in this process."""
    return [request.write(Share(request.ranks), output.inventory())]


def export(
    checkpoint: Checkpoint,
    conf: Conf,
    to: str,
    tables: str | None,
    ranks: int,
    write: WriteTables = write_alone,
) -> None:
    """Write the rows of a checkpoint as tables for so many ranks of TensorNet.

    `tables` names them, as of `tnctl import`; by default they are called GROUP_SEGMENT. Rows are
    streamed, by the processes of `write`. Raises UserError for weights whose optimizer TensorNet
    does not have, Failure when rows are missing.
    """
    request = TablesRequest(checkpoint, conf, tables, ranks)
    reads = [link.folder for link in checkpoint.chain()]
    with outputs.output_folder(to, TENSORNET, reads) as output:
        parts = write(request, output)
        entries = request.tables
        for entry, rows in zip(
            entries, zip(*(part.rows for part in parts), strict=True), strict=True
        ):
            refuse_if(
                sum(rows) != entry.rows,
                f"table {entry.name} has {sum(rows):,} rows to export, and {entry.rows:,} were "
                "expected. Take another checkpoint",
                Failure,
            )
        inventory = output.inventory()
        inventory.files = dict(sorted(entry for part in parts for entry in part.files.items()))
        inventory.complete(
            TablesManifest(
                format=TablesManifest.FORMAT,
                version=1,
                checkpoint=CheckpointReference.of(checkpoint),
                ranks=ranks,
                tables=tuple(entries),
            )
        )


def counts_of(records: NDArray[Any], table: Table, checkpoint: Checkpoint) -> list[NDArray[Any]]:
    """Show and click of records [n] as they read, float32 [n]; days since their last change."""
    days = checkpoint.clock.days
    ages = unseen_days(records["changed"], days).astype(np.int32)
    if not table.life.shows:
        nothing = np.zeros(len(records), np.float32)
        return [nothing, nothing, ages]
    return [*map(rounded, shows_as_read(records, table, days)), ages]


class TableWriter:
    """Writes the files of a share of a table, which `stack` closes."""

    def __init__(
        self,
        stack: ExitStack,
        inventory: Inventory,
        name: str,
        weights: Weights,
        share: Share,
        *,
        cvm: bool,
    ) -> None:
        """With `cvm` lines have clicks, as TensorNet's have with use_cvm."""
        self._form, self._segment, self._cvm = weights.form, weights.segment.name, cvm
        self._share, self.rows = share, 0
        head = f"opt_name:{self._form.rule.name}\ndim:{self._form.dim}\n".encode()
        self._files = [
            stack.enter_context(inventory.writing(file_name)) for file_name in share.names(name)
        ]
        stack.callback(self._end)
        for file in self._files:
            file.write(head)

    def _end(self) -> None:
        for file in self._files:
            file.write(b"\n")

    def write(self, records: NDArray[Any], counts: Sequence[NDArray[Any]]) -> None:
        """Write rows of the group: records [n], and their show, click and age, [n] each.

        All of them belong to files of the share.
        """
        if not len(records):
            return
        self.rows += len(records)
        numbers = self._share.numbers_of(records["id"])
        order = np.argsort(numbers, kind="stable")
        lines = self._lines(records[order], [column[order] for column in counts])
        data, offsets = text_bytes(lines)
        ends = np.searchsorted(numbers[order], self._share.numbers, side="right").tolist()
        for file, start, end in zip(self._files, [0, *ends], ends, strict=False):
            if end > start:
                file.write(data[offsets[start] : offsets[end]])

    def _lines(self, records: NDArray[Any], counts: Sequence[NDArray[Any]]) -> Any:
        """The lines of rows: an Arrow array of texts."""
        show, click, age = counts
        form, rule = self._form, self._form.rule
        weights = records[self._segment]
        states = [records[f"{self._segment}.{name}"] for name in rule.states]
        columns = [pc.cast(pa.array(np.ascontiguousarray(records["id"])), pa.string())]
        if rule is ADAGRAD:
            columns.append(pa.scalar(str(form.dim)))
            columns += [float_texts(weights[:, at]) for at in range(form.dim)]
            columns += [float_texts(states[0][:, 0]), float_texts(show)]
            columns.append(pc.cast(pa.array(age), pa.string()))
            # A tab follows the days even where no click does.
            columns.append(float_texts(click) if self._cvm else pa.scalar(""))
        else:
            for at in range(form.dim):
                columns += [float_texts(part[:, at]) for part in (weights, *states)]
            columns.append(float_texts(show))
        texts = pc.binary_join_element_wise(*columns, "\t")
        return pc.binary_join_element_wise(texts, "\n", "")


def text_bytes(texts: Any) -> tuple[memoryview, NDArray[np.int32]]:
    """The bytes of Arrow's texts one after the other, and where each begins: int32 [n + 1]."""
    _, offsets, data = texts.buffers()
    start, count = texts.offset, len(texts)
    return memoryview(data), np.frombuffer(offsets, np.int32)[start : start + count + 1]
