"""The values that the ids of exported rows were made of, a file for each slot.

docs/formats/embeddings.md#values.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tnctl import files
from tnctl.checkpoint.merging import Cursor, Keys
from tnctl.manifest import Inventory
from tnctl.serving.rows.export_document import ExportManifest, SlotEntry, ValuesEntry, values_name
from tnctl.serving.rows.file_format import reported_damage
from tnctl.serving.rows.value_runs import ROWS_PER_BATCH, keyed, merged

# The rows of a share group, records [n] in ascending order of their hashes.
RowsOf = Callable[[str], Iterator[NDArray[Any]]]

SCHEMA = pa.schema([("id", pa.uint64()), ("value", pa.large_string())])
ROWS_PER_GROUP = 1 << 16


def write(
    inventory: Inventory, slot: SlotEntry, tables: Iterator[pa.Table], rows_of: RowsOf
) -> ValuesEntry:
    """Write those values of a slot whose ids have a row.

    `tables` are ascending, as those of `ValueRuns.sorted`.
    """
    name, values, ids, last = values_name(slot.slot), 0, 0, None
    with (
        inventory.writing(name) as file,
        pq.ParquetWriter(
            pa.PythonFile(file, mode="w"), SCHEMA, compression="zstd", use_dictionary=False
        ) as writer,
    ):
        for table in _groups(with_rows(tables, slot.group, rows_of(slot.group))):
            keys = table.column("key").to_numpy()
            values += len(keys)
            ids += int((keys[1:] != keys[:-1]).sum()) + int(keys[0] != last)
            last = keys[-1]
            writer.write_table(table.select(SCHEMA.names).cast(SCHEMA))
    return ValuesEntry(slot=slot.slot, file=name, values=values, ids=ids)


def with_rows(
    tables: Iterator[pa.Table], group: str, records: Iterator[NDArray[Any]]
) -> Iterator[pa.Table]:
    """The values in ascending tables whose keys are among those of the records of a group."""
    keys = Keys({0: group})
    cursor = Cursor(records, keys)
    reached = np.empty(0, np.uint64)  # the last key of the rows: further values may be its own
    for table in tables:
        wanted = table.column("key").to_numpy()
        if not len(wanted):
            continue
        taken = cursor.take_to(wanted[-1])
        hashes = np.append(reached, keys.hashes(taken) if len(taken) else reached[:0])
        reached = hashes[-1:]
        known = np.isin(wanted, hashes, assume_unique=False)
        if known.any():
            yield table.filter(pa.array(known))


def _groups(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """The same rows in tables of ROWS_PER_GROUP: bytes do not depend on how they come."""
    held: list[pa.Table] = []
    rows = 0
    for table in tables:
        held.append(table)
        rows += table.num_rows
        while rows >= ROWS_PER_GROUP:
            whole = pa.concat_tables(held)
            yield whole.slice(0, ROWS_PER_GROUP)
            held, rows = [whole.slice(ROWS_PER_GROUP)], rows - ROWS_PER_GROUP
    if rows:
        yield pa.concat_tables(held)


def fold(
    inventory: Inventory, exports: Sequence[tuple[str, ExportManifest]], rows_of: RowsOf
) -> tuple[ValuesEntry, ...] | None:
    """Write the values that exports of a chain have of rows of the whole; None: no export has any.

    Raises Failure for a damaged file.
    """
    of_slots: dict[str, list[Iterator[pa.Table]]] = {}
    slots = {entry.slot: entry for _, content in exports for entry in content.slots}
    for folder, content in exports:
        for entry in content.values or ():
            source = stored(folder, entry, slots[entry.slot].group)
            of_slots.setdefault(entry.slot, []).append(source)
    if all(content.values is None for _, content in exports):
        return None
    return tuple(
        write(inventory, slots[name], merged(sources), rows_of)
        for name, sources in of_slots.items()
    )


def stored(folder: str, entry: ValuesEntry, group: str) -> Iterator[pa.Table]:
    """The values of a file, ascending by (key, text). Raises Failure when it is damaged."""
    url, rows, last = files.join(folder, entry.file), 0, (-1, -1)
    with reported_damage(url, OSError), files.open_input(url, decompress=False) as file:
        opened = pq.ParquetFile(file)
        if not opened.schema_arrow.equals(SCHEMA):
            raise ValueError("its columns are not those of a file of values")
        for batch in opened.iter_batches(ROWS_PER_BATCH):
            if not len(batch):
                continue
            table = keyed(group, batch.column("id").to_numpy(), batch.column("value"))
            keys, texts = (table.column(name).to_numpy() for name in ("key", "text"))
            rising = (keys[1:] > keys[:-1]) | ((keys[1:] == keys[:-1]) & (texts[1:] > texts[:-1]))
            if not rising.all() or (int(keys[0]), int(texts[0])) <= last:
                raise ValueError("its values are not in the order of their ids")
            last, rows = (int(keys[-1]), int(texts[-1])), rows + len(batch)
            yield table
        if rows != entry.values:
            raise ValueError("it has not as many values as its manifest says")
