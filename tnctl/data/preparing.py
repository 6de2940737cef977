"""Write the rows of a conf as prepared data: docs/formats/prepared.md."""

import dataclasses
import json
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tnctl import __version__, outputs
from tnctl.data import Uint32s, row_split, sources, statistics
from tnctl.data.arrow_tables import raw_rows
from tnctl.data.bad_rows import SPLITS, Skipped
from tnctl.data.batches import Batch
from tnctl.data.features import Features
from tnctl.data.formats import prepared_files
from tnctl.data.formats.prepared_files import PreparedManifest, SplitEntry
from tnctl.data.read_ahead import ReadAhead
from tnctl.data.sources import Source
from tnctl.data.windows import windows
from tnctl.errors import refuse_if
from tnctl.manifest import Inventory
from tnctl.ownership import PREPARED
from tnctl.progress import Display, say, waiting
from tnctl.schema import Conf

COMPRESSION = "lz4"  # of what is read as fast as the step trains, the smallest
PAGE_BYTES = 1 << 20
GROUPS_PER_FILE = 16  # a row group is a window
ROWS_KEPT = 1000  # raw rows of each split, from which checkpoints take theirs
ONE, OPTIONAL, LIST = range(3)  # ids of a slot in each row: one; none or one; any number


def prepare(conf: Conf, folder: str) -> None:
    """Write every split of a conf into a folder, its manifest last.

    Raises `UserError` when the folder holds files of the user's, `Failure` when the data cannot be
    read or the folder not be written.
    """
    refuse_if(
        conf.data.prepared is not None,
        "data.prepared is prepared already. Leave it out to read the files again",
    )
    row_split.check(conf.data)
    splits = [split for split in SPLITS if conf.data.source(split) is not None]
    refuse_if(not splits, "there is nothing to prepare. Give data.train=FILES")
    with outputs.output_folder(folder, PREPARED, sources.files_read(conf)) as output:
        with waiting("measuring the training data"):
            measured = statistics.measure(conf)
        # Every row is kept: which negatives are trained on is for the training to say.
        whole = dataclasses.replace(conf, data=dataclasses.replace(conf.data, negatives=1.0))
        inventory = output.inventory()
        parts = {split: _split(whole, split, measured, inventory) for split in splits}
        inventory.complete(
            PreparedManifest(
                format=PreparedManifest.FORMAT,
                version=PreparedManifest.VERSION,
                tnctl=__version__,
                splits=parts,
                statistics=measured,
                conf=prepared_files.deciding(conf),
            )
        )
    size = sum(entry.bytes for entry in inventory.files.values())
    say(f"{folder} holds {size / 1e6:,.1f} MB. Train from it with data.prepared={folder}")


def _split(
    conf: Conf, split: str, measured: statistics.Statistics, inventory: Inventory
) -> SplitEntry:
    """Write one split; returns its entry in the manifest."""
    # One-hot slots are among the numbers.
    slots = [name for name, slot in conf.slots.items() if not slot.indicator]
    # Each slot is a table: a window then has its ids slot by slot.
    features = Features(conf, [([name], [1]) for name in slots], measured, carry=conf.data.carry)
    skipped = Skipped(split, conf.data.bad_rows)
    writer = _PartWriter(f"{split}/part", inventory)
    rows = 0
    source = windows(Source(conf, split), features, skipped=skipped)
    with (
        Display(f"data.{split}", Source(conf, split).known_rows()) as display,
        ReadAhead(source) as ahead,
        writer,
    ):
        for window in ahead:
            writer.write(_table(conf.data.all_labels, slots, window, writer.forms))
            rows += window.rows
            display.update(rows, f"{rows:,} rows")
        display.finish()
    first = f"{split}/first.json"
    inventory.write(first, json.dumps(raw_rows(Source(conf, split), ROWS_KEPT)).encode())
    return SplitEntry(rows=rows, skipped=skipped.rows, parts=tuple(writer.names), first=first)


class _PartWriter(ExitStack):
    """Row groups to files; a file ends when it is long, or when the columns change.

    After an exception the last file is not completed.
    """

    def __init__(self, stem: str, inventory: Inventory) -> None:
        super().__init__()
        self.forms: dict[str, int] = {}
        self.names: list[str] = []
        self._stem, self._inventory = stem, inventory
        self._groups = 0
        self._writer: pq.ParquetWriter | None = None

    def write(self, table: pa.Table) -> None:
        """Append a row group."""
        if (
            self._writer is None
            or self._writer.schema != table.schema
            or self._groups == GROUPS_PER_FILE
        ):
            self._writer, self._groups = self._next(table.schema), 0
        self._writer.write_table(table, row_group_size=max(table.num_rows, 1))
        self._groups += 1

    def _next(self, schema: pa.Schema) -> pq.ParquetWriter:
        self.close()
        name = f"{self._stem}-{len(self.names):05d}.parquet"
        stream = self.enter_context(self._inventory.writing(name))
        self.names.append(name)
        # Ids are random numbers: a dictionary of them, or their least and greatest, say nothing.
        return self.enter_context(
            pq.ParquetWriter(
                stream,
                schema,
                compression=COMPRESSION,
                use_dictionary=False,
                write_statistics=False,
                write_page_checksum=True,
                data_page_size=PAGE_BYTES,
            )
        )


def _table(
    labels: Iterable[str], slots: list[str], window: Batch, forms: dict[str, int]
) -> pa.Table:
    """A window as the columns of docs/formats/prepared.md; `forms` only grow."""
    columns: dict[str, Any] = {}
    for index, name in enumerate(slots):
        offsets, weights = window.offsets[index], window.weights[index]
        lengths = np.diff(offsets)
        form = ONE if (lengths == 1).all() else OPTIONAL if (lengths <= 1).all() else LIST
        forms[name] = form = max(forms.get(name, ONE), form)
        columns[f"ids_{name}"] = _column(window.ids[index], offsets, form)
        if weights is not None:
            columns[f"weights_{name}"] = _column(weights, offsets, form)
    width = window.numeric.shape[1]
    if width:
        columns["numeric"] = pa.Array.from_buffers(
            pa.binary(4 * width),
            window.rows,
            [None, pa.py_buffer(np.ascontiguousarray(window.numeric))],
        )
    for index, name in enumerate(labels):
        columns[f"label_{name}"] = pa.array(window.labels[:, index])
    for key in ("weight", "reference", "group"):
        if (values := getattr(window, key)) is not None:
            columns[key] = pa.array(values)
    if window.carried is not None:
        for name in window.carried.column_names:
            columns[f"carry_{name}"] = window.carried.column(name)
    fields = [
        pa.field(name, column.type, nullable=forms.get(name.removeprefix("ids_")) != ONE)
        for name, column in columns.items()
    ]
    return pa.table(list(columns.values()), schema=pa.schema(fields))


def _column(values: NDArray[Any], offsets: Uint32s, form: int) -> pa.Array:
    """The values of all rows as a column of that form."""
    if form == LIST:
        return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), pa.array(values))
    if form == ONE:
        return pa.array(values)
    bare = np.diff(offsets) == 0
    return pa.array(values).take(pa.array(offsets[:-1].astype(np.int64), mask=bare))
