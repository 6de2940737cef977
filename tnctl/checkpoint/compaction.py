"""Fold a full checkpoint and its deltas into one full checkpoint. Rows are streamed."""

from typing import Any

from tnctl import files, manifest, outputs
from tnctl.checkpoint import rows, tombstones
from tnctl.checkpoint.chain import FORMAT, Checkpoint
from tnctl.errors import UserError
from tnctl.manifest import Inventory
from tnctl.ownership import CHECKPOINT
from tnctl.progress import Display

COPIED_BYTES = 4 << 20


def compact(checkpoint: Checkpoint, to: str) -> dict[str, Any]:
    """Write to the folder or URL `to` one full checkpoint that is what a chain of them is.

    It has the same digest. Returns its manifest. Raises UserError when `to` holds something,
    Failure where the chain is damaged; then `to` does not count.
    """
    # It may be what others are built on, or a part of this very chain by another name.
    if files.exists(files.join(to, manifest.NAME)):
        raise UserError(f"{to} holds a checkpoint already. Give a new folder as to=URL")
    content = checkpoint.manifest
    reads = [one.folder for one in checkpoint.chain()]
    with outputs.output_folder(to, CHECKPOINT, reads) as output:
        inventory = output.inventory()
        total = sum(part["rows"] for part in content["tables"])
        with Display("compact", total) as display:
            tables = [
                write_table(checkpoint, part, inventory, display) for part in content["tables"]
            ]
        rewritten = {path for part in content["tables"] for path in paths_of(part)}
        for path in content["files"]:
            if path not in rewritten:
                copy(checkpoint, path, inventory)
        body = {key: value for key, value in content.items() if key not in manifest.OWN_KEYS}
        body |= {"kind": "full", "parent": None, "tables": tables}
        return inventory.commit(FORMAT, body)


def paths_of(part: dict[str, Any]) -> list[str]:
    """The rows files of a table, and that of its removed keys."""
    removed = part.get("tombstones")
    return [*(entry["file"] for entry in part["files"]), *([removed["file"]] if removed else [])]


def write_table(
    checkpoint: Checkpoint, part: dict[str, Any], inventory: Inventory, display: Display
) -> dict[str, Any]:
    """The merged rows and removed keys of a table; returns its entry for the manifest."""
    folder, name = f"tables/{part['name']}", part["name"]
    compressed = any(path.endswith(".zst") for path in paths_of(part))
    written = rows.write(
        inventory.writing,
        folder,
        ".zst" if compressed else "",
        rows.record_dtype(part).itemsize,
        part["rows"],
        lambda first, last: rows.stream(checkpoint, name, first, last),
    )
    count = sum(entry["rows"] for entry in written)
    rows.check_count(checkpoint, name, count)
    display.update(count, f"table {name}")
    removed = rows.tombstones(checkpoint, name)
    return {
        **part,
        "files": written,
        "tombstones": tombstones.write(inventory.writing, folder, removed),
    }


def copy(checkpoint: Checkpoint, path: str, inventory: Inventory) -> None:
    """Copy a file as it is stored. Raises Failure when it is damaged."""
    url = files.join(checkpoint.folder, path)
    with (
        files.open_input(url, decompress=False) as reading,
        inventory.writing(path) as writing,
    ):
        while data := reading.read(COPIED_BYTES):
            writing.write(data)
    entry = checkpoint.manifest["files"][path]
    if inventory.files[path] != manifest.FileEntry(**entry):
        manifest.check_stored(checkpoint.folder, checkpoint.manifest, path, "Take another")
