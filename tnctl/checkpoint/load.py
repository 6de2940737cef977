"""The model of a checkpoint, and its digest."""

import hashlib
import json

from tnctl import documents, memory_limits
from tnctl.checkpoint import dense_file, rows, sketch_file
from tnctl.checkpoint.chain import (
    Checkpoint,
    newest,
    newest_or_fail,
    offering,
    open_checkpoint,
)
from tnctl.checkpoint.table_document import Table
from tnctl.errors import Failure
from tnctl.manifest import read_file
from tnctl.model import building, recipes
from tnctl.model.building import Model
from tnctl.progress import say
from tnctl.schema import Conf
from tnctl.tables import Figures, SparseTable

__all__ = ["Checkpoint", "digest", "load", "newest", "newest_or_fail", "open_checkpoint"]

LEAST_INDEX_BYTES = 10  # of a row: 8 for each place of the index, at most 3 in 4 are occupied
COMPUTING_BYTES = 128 << 20  # the least that TensorFlow and batches take beside the rows


def load(checkpoint: Checkpoint, conf: Conf) -> Model:
    """The model of a checkpoint, all rows and weights as they were saved."""
    model = building.build(conf, checkpoint.statistics)
    name = conf.recipe["name"]
    if name.endswith(".py") and recipes.digest_of(name) != checkpoint.manifest.recipe.sha256:
        say(f"{name} has changed since {checkpoint.folder} was saved: its model may be another")
    parts = {table.name: table for table in checkpoint.manifest.tables}
    if sorted(parts) != sorted(layout.name for layout in model.layout.tables):
        raise Failure(f"{checkpoint.folder} has tables {sorted(parts)}, the conf needs others")
    needed = sum(
        parts[layout.name].rows * (table.stride + LEAST_INDEX_BYTES)
        for layout, table in zip(model.layout.tables, model.tables, strict=True)
    )
    memory_limits.require(needed, COMPUTING_BYTES, f"the model of {checkpoint.folder}")
    with offering(checkpoint):
        for layout, table in zip(model.layout.tables, model.tables, strict=True):
            part = parts[layout.name]
            saved = {group.name: group.number for group in part.groups}
            if saved != layout.groups:
                raise Failure(f"{checkpoint.folder} has groups {saved}, the conf {layout.groups}")
            load_table(checkpoint, part, table)
        dense_file.read(checkpoint.folder, checkpoint.manifest, model)
    model.check_aliases()
    return model


def load_table(checkpoint: Checkpoint, part: Table, table: SparseTable) -> None:
    """Fill an empty table. Raises Failure when the rows are not what the manifest says."""
    if part.record_dtype != table.record_dtype:
        raise Failure(
            f"{checkpoint.folder} table {part.name} has records of "
            f"{part.record_dtype.names}, the conf needs {table.record_dtype.names}. "
            "Use the conf that it was saved with"
        )
    files = [entry for link in checkpoint.chain() for entry in link.table(part.name).files]
    table.reserve(min(part.rows, sum(entry.rows for entry in files)))
    for records in rows.stream(checkpoint, part.name):
        try:
            table.insert_records(records.view("u1"))
        except ValueError as error:
            rows.raise_damage(checkpoint, part.name, f"is damaged ({error})")
    sketch_file.read(checkpoint, part, table)
    # What reading a row gives depends on the step where weights decay, and on the day.
    table.set_step(checkpoint.step)
    table.set_days(checkpoint.clock.days)
    for group in part.groups:
        figures = Figures(group.rows, group.admitted, group.waiting, group.evicted)
        table.set_figures(group.number, figures)


def digest(checkpoint: Checkpoint) -> str:
    """The SHA-256, hexadecimal, of all that training is resumed from.

    Of each table in the manifest's order its name, all rows of the chain and the sketch; then the
    dense file and the clock. A chain and the full checkpoint it is folded into have the same.
    """
    hashed = hashlib.sha256()
    for table in checkpoint.manifest.tables:
        hashed.update(table.name.encode() + b"\0")
        for records in rows.stream(checkpoint, table.name):
            hashed.update(records.view("u1").data)
        if table.sketch is not None:
            hashed.update(read_file(checkpoint.folder, checkpoint.manifest, table.sketch.file))
    hashed.update(read_file(checkpoint.folder, checkpoint.manifest, dense_file.NAME))
    hashed.update(json.dumps(documents.plain(checkpoint.clock), sort_keys=True).encode())
    return hashed.hexdigest()
