"""`tnctl export-embeddings`: the sparse dictionary of a checkpoint, streamed to any storage."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tnctl import manifest
from tnctl.checkpoint import rows
from tnctl.checkpoint.load import Checkpoint
from tnctl.checkpoint.reading import as_read, known_rows, unseen_days
from tnctl.errors import Failure
from tnctl.manifest import HashingWriter, Inventory
from tnctl.model.layout import CVM_COLUMNS, EMBEDDING, LINEAR
from tnctl.progress import Display
from tnctl.schema import Conf
from tnctl.tables import cvm_columns, decay_factors

FORMAT = "tnctl embeddings"
ROWS_PER_GROUP = 1 << 16


def export(checkpoint: Checkpoint, conf: Conf, to: str) -> dict[str, Any]:
    """Write one Parquet file per share group, and last the manifest, to the folder or URL `to`.

    A file has columns id (uint64) and, when rows have them, linear (float) and embedding (list of
    width floats, with cvm two counts more), in the order of the checkpoint: by hash. The table is
    never whole in memory.
    """
    names = [group["name"] for table in checkpoint.manifest["tables"] for group in table["groups"]]
    manifest.make_room(to, manifest.NAME, map(file_of, names))
    inventory = Inventory(to)
    groups = []
    total = sum(table["rows"] for table in checkpoint.manifest["tables"])
    with Display("export", total) as display:
        done = 0
        for table in checkpoint.manifest["tables"]:
            done = export_table(checkpoint, table, inventory, display, done)
            groups += [
                {
                    "group": group["name"],
                    "file": file_of(group["name"]),
                    "rows": group["rows"],
                    "linear": bool(rows.width_of(table, LINEAR)),
                    "width": rows.width_of(table, EMBEDDING),
                    "cvm": table["life"]["cvm"],
                }
                for group in table["groups"]
            ]
        display.update(done, f"{done:,} rows to {to}")
        display.finish()
    with_rows = [slot for table in checkpoint.manifest["tables"] for slot in table["slots"]]
    content = {
        "checkpoint": {
            "folder": checkpoint.folder,
            "sha256": manifest.identity(checkpoint.manifest),
            "step": checkpoint.step,
        },
        "encoding": "parquet",
        "groups": groups,
        "slots": [
            {"slot": slot, "group": settings.group or slot, "pooling": settings.pooling}
            for slot, settings in conf.slots.items()
            if slot in with_rows
        ],
    }
    inventory.commit(FORMAT, content)
    return content


def file_of(group: str) -> str:
    """The file of a share group, whose name is a plain name as a slot's is."""
    return f"{group}.parquet"


def export_table(
    checkpoint: Checkpoint, table: dict[str, Any], inventory: Inventory, display: Display, done: int
) -> int:
    """The files of all groups of a table, written side by side."""
    with ExitStack() as stack:
        writers = {
            group["number"]: GroupWriter(
                stack, inventory, group["name"], table, counts_of(checkpoint, table, group["name"])
            )
            for group in table["groups"]
        }
        for records in known_rows(checkpoint, table["name"]):
            for number, part in by_group(as_read(records, table, checkpoint.step)):
                writers[number].add(part)
            done += len(records)
            display.update(done, f"{done:,} rows")
        for group in table["groups"]:
            writer = writers[group["number"]]
            writer.finish()
            if writer.rows != group["rows"]:
                raise Failure(
                    f"{checkpoint.folder} has {writer.rows:,} rows of group {group['name']}, its "
                    f"manifest says {group['rows']:,}. Take another checkpoint"
                )
    return done


def by_group(records: NDArray[Any]) -> list[tuple[int, NDArray[Any]]]:
    """Records parted by group number, each part in the order it had."""
    numbers = records["group"]
    order = np.argsort(numbers, kind="stable")
    present, starts = np.unique(numbers[order], return_index=True)
    parts = np.split(records[order], starts[1:])
    return list(zip(present.tolist(), parts, strict=True))


@dataclass(frozen=True)
class Counts:
    """Show and click of a group's rows, as a model reads them on a checkpoint's last day."""

    days: Sequence[tuple[int, int]]  # (day, its first step)
    decay: float  # what a day leaves

    def columns(self, records: NDArray[Any]) -> NDArray[np.float32]:
        """[show, ln(click + 1) - ln(show + 1)] of records, float32 [n, 2]."""
        unseen = unseen_days(records["changed"], self.days).astype(np.uint32)
        factors = decay_factors(self.decay, unseen)
        return cvm_columns(records["show"][:, 0], records["click"][:, 0], factors)


def counts_of(checkpoint: Checkpoint, table: dict[str, Any], group: str) -> Counts | None:
    """The counts that stand after a group's embeddings, or None when there are none."""
    if not table["life"]["cvm"]:
        return None
    return Counts(checkpoint.clock.days, table["life"]["decay"][group])


class GroupWriter:
    """One Parquet file, filled a row group at a time; `counts` stand after the embedding."""

    def __init__(
        self,
        stack: ExitStack,
        inventory: Inventory,
        group: str,
        table: dict[str, Any],
        counts: Counts | None,
    ) -> None:
        self._counts = counts
        self._width = rows.width_of(table, EMBEDDING)
        self._linear = rows.width_of(table, LINEAR)
        columns = [("id", pa.uint64())]
        if self._linear:
            columns.append((LINEAR, pa.float32()))
        if self._width:
            self._width += 0 if counts is None else CVM_COLUMNS
            columns.append((EMBEDDING, pa.list_(pa.float32(), self._width)))
        self._schema = pa.schema(columns)
        self._waiting: list[NDArray[Any]] = []
        self._waiting_rows = 0
        self.rows = 0
        file: HashingWriter = stack.enter_context(inventory.writing(file_of(group)))
        # Ids and trained floats do not compress; dictionaries and statistics would only cost time.
        self._writer = stack.enter_context(
            pq.ParquetWriter(
                pa.PythonFile(file, mode="w"),
                self._schema,
                compression="none",
                use_dictionary=False,
                write_statistics=False,
            )
        )

    def add(self, records: NDArray[Any]) -> None:
        self._waiting.append(records)
        self._waiting_rows += len(records)
        self.rows += len(records)
        if self._waiting_rows >= ROWS_PER_GROUP:
            self._flush()

    def finish(self) -> None:
        if self._waiting_rows:
            self._flush()

    def _flush(self) -> None:
        records = np.concatenate(self._waiting)
        arrays = [pa.array(records["id"])]
        if self._linear:
            arrays.append(pa.array(records[LINEAR][:, 0]))
        if self._width:
            floats = np.ascontiguousarray(records[EMBEDDING])
            if self._counts is not None:
                floats = np.hstack([floats, self._counts.columns(records)])
            flat = pa.array(floats.reshape(-1))
            arrays.append(pa.FixedSizeListArray.from_arrays(flat, self._width))
        self._writer.write_table(pa.Table.from_arrays(arrays, schema=self._schema))
        self._waiting, self._waiting_rows = [], 0
