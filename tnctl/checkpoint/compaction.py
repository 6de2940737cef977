"""Fold a full checkpoint and its deltas into one full checkpoint. Rows are streamed."""

import shutil
from dataclasses import replace

from tnctl import files, manifest, outputs
from tnctl.checkpoint import rows
from tnctl.checkpoint.chain import Checkpoint
from tnctl.checkpoint.document import CheckpointManifest, Table
from tnctl.errors import UserError
from tnctl.manifest import Inventory
from tnctl.ownership import CHECKPOINT
from tnctl.progress import Display

COPIED_BYTES = 4 << 20


def compact(checkpoint: Checkpoint, to: str) -> CheckpointManifest:
    """Write to the folder or URL `to` one full checkpoint equal to a chain of them.

    It has the same digest. Returns its manifest. Raises UserError when `to` holds something,
    Failure where the chain is damaged; then `to` does not count.
    """
    # It may be what others are built on, or a part of this very chain by another name.
    place = str(outputs.resolved(to) or to)
    if files.exists(files.join(place, manifest.NAME)):
        raise UserError(f"{to} holds a checkpoint already. Give a new folder as to=URL")
    content = checkpoint.manifest
    reads = [link.folder for link in checkpoint.chain()]
    with outputs.output_folder(to, CHECKPOINT, reads) as output:
        inventory = output.inventory()
        with Display("compact", content.rows) as display:
            tables = tuple(
                write_table(checkpoint, table, inventory, display) for table in content.tables
            )
        rewritten = {entry.file for table in content.tables for entry in table.entries}
        for path in content.files:
            if path not in rewritten:
                copy(checkpoint, path, inventory)
        return inventory.complete(
            replace(content, kind="full", parent=None, tables=tables, files={}, sha256="")
        )


def write_table(
    checkpoint: Checkpoint, table: Table, inventory: Inventory, display: Display
) -> Table:
    """Write the merged rows and removed keys of a table; returns its part of the manifest."""
    suffix = ".zst" if table.files[0].file.endswith(".zst") else ""
    size = table.record_dtype.itemsize
    count = rows.files_needed(table.rows, size)
    written = rows.write_files(
        inventory.writing,
        [rows.file_name(table.folder, index, suffix) for index in range(count)],
        rows.ranges(count),
        size,
        lambda first, last: rows.stream(checkpoint, table.name, first, last),
    )
    count = sum(entry.rows for entry in written)
    rows.check_count(checkpoint, table.name, count)
    display.update(count, f"table {table.name}")
    removed = rows.tombstones(checkpoint, table.name)
    kept = rows.write_tombstones(
        inventory.writing, f"{table.folder}/tombstones.bin", removed, range_={}
    )
    return replace(table, files=written, tombstones=kept, tombstone_files=None)


def copy(checkpoint: Checkpoint, path: str, inventory: Inventory) -> None:
    """Copy a file as it is stored. Raises Failure when it is damaged."""
    url = files.join(checkpoint.folder, path)
    with (
        files.open_input(url, decompress=False) as reading,
        inventory.writing(path) as writing,
    ):
        shutil.copyfileobj(reading, writing, COPIED_BYTES)
    if inventory.files[path] != checkpoint.manifest.files[path]:
        manifest.check_stored(checkpoint.folder, checkpoint.manifest, path, "Take another")
