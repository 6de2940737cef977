"""`tnctl export-embeddings format=tensornet`: rows as the text of TensorNet's sparse tables.

A row has its optimizer's state, show, and days without a show, so that TensorNet can go on.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tnctl import outputs
from tnctl.checkpoint.chain import Checkpoint
from tnctl.checkpoint.decayed_rows import as_read, known_rows, shows_as_read, unseen_days
from tnctl.checkpoint.table_document import Table
from tnctl.errors import refuse_if
from tnctl.manifest import Inventory
from tnctl.model.layout import plan
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


def export(checkpoint: Checkpoint, conf: Conf, to: str, tables: str | None, ranks: int) -> None:
    """Write the rows of a checkpoint as tables for so many ranks of TensorNet.

    `tables` names them, as of `tnctl import`; by default they are called GROUP_SEGMENT. Rows are
    streamed. Raises UserError for weights whose optimizer TensorNet does not have.
    """
    refuse_if(not 1 <= ranks <= MOST_RANKS, f"ranks is from 1 to {MOST_RANKS}. Received: {ranks}")
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
    reads = [link.folder for link in checkpoint.chain()]
    with outputs.output_folder(to, TENSORNET, reads) as output:
        inventory = output.inventory()
        with Display("export", checkpoint.manifest.rows) as display:
            written = write_tables(checkpoint, chosen, ranks, inventory, display)
            display.finish()
        inventory.files = dict(sorted(inventory.files.items()))
        inventory.complete(
            TablesManifest(
                format=TablesManifest.FORMAT,
                version=1,
                checkpoint=CheckpointReference.of(checkpoint),
                ranks=ranks,
                tables=tuple(written),
            )
        )


def write_tables(
    checkpoint: Checkpoint,
    chosen: Mapping[str, Weights],
    ranks: int,
    inventory: Inventory,
    display: Display,
) -> list[WrittenTable]:
    """Write the files of all tables, in one pass over each table of the checkpoint."""
    written: list[WrittenTable] = []
    done = 0
    for table in checkpoint.manifest.tables:
        groups = {group.name: group for group in table.groups}
        of_table = {name: w for name, w in chosen.items() if w.group in groups}
        if not of_table:
            continue
        with ExitStack() as stack:
            writers = [
                TableWriter(stack, inventory, name, weights, ranks, cvm=table.life.cvm)
                for name, weights in of_table.items()
            ]
            for records in known_rows(checkpoint, table.name):
                counts = counts_of(records, table, checkpoint)
                records = as_read(records, table, checkpoint.step)
                for writer, weights in zip(writers, of_table.values(), strict=True):
                    mask = records["group"] == groups[weights.group].number
                    writer.write(records[mask], [column[mask] for column in counts])
                done += len(records)
                display.update(done, f"{done:,} rows to {inventory.to}")
        written += [
            WrittenTable(
                name=name,
                group=weights.group,
                segment=weights.segment.name,
                optimizer=weights.form.rule.name,
                dim=weights.form.dim,
                rows=groups[weights.group].rows,
            )
            for name, weights in of_table.items()
        ]
    return written


def counts_of(records: NDArray[Any], table: Table, checkpoint: Checkpoint) -> list[NDArray[Any]]:
    """Show and click of records [n] as they read, float32 [n]; days since their last change."""
    days = checkpoint.clock.days
    ages = unseen_days(records["changed"], days).astype(np.int32)
    if not table.life.shows:
        nothing = np.zeros(len(records), np.float32)
        return [nothing, nothing, ages]
    return [*map(rounded, shows_as_read(records, table, days)), ages]


class TableWriter:
    """Writes a table: a file for each rank and block, which `stack` closes."""

    def __init__(
        self,
        stack: ExitStack,
        inventory: Inventory,
        name: str,
        weights: Weights,
        ranks: int,
        *,
        cvm: bool,
    ) -> None:
        """With `cvm` lines have clicks, as TensorNet's have with use_cvm."""
        self._form, self._segment, self._cvm = weights.form, weights.segment.name, cvm
        self._ranks = ranks
        head = f"opt_name:{self._form.rule.name}\ndim:{self._form.dim}\n".encode()
        self._files = [
            stack.enter_context(inventory.writing(block_name(name, rank, block)))
            for rank in range(ranks)
            for block in range(BLOCKS)
        ]
        stack.callback(self._end)
        for file in self._files:
            file.write(head)

    def _end(self) -> None:
        for file in self._files:
            file.write(b"\n")

    def write(self, records: NDArray[Any], counts: Sequence[NDArray[Any]]) -> None:
        """Write rows of the group: records [n], and their show, click and age, [n] each."""
        if not len(records):
            return
        signs = np.ascontiguousarray(records["id"])
        blocks = (signs >> np.uint64(32)) % np.uint64(BLOCKS)
        numbers = (signs % np.uint64(self._ranks) * np.uint64(BLOCKS) + blocks).astype(np.int64)
        order = np.argsort(numbers, kind="stable")
        lines = self._lines(records[order], [column[order] for column in counts])
        data, offsets = text_bytes(lines)
        ends = np.searchsorted(numbers[order], np.arange(len(self._files)), side="right").tolist()
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
