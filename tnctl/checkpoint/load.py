"""Find a checkpoint of a run, and bring it back to life."""

import json
from dataclasses import dataclass
from typing import Any

from tnctl import files, manifest
from tnctl.checkpoint import dense, rows
from tnctl.checkpoint.save import CONF, FORMAT, GOLDEN
from tnctl.data.statistics import Statistics
from tnctl.errors import Failure
from tnctl.model import building, recipes
from tnctl.model.building import Model
from tnctl.progress import say
from tnctl.schema import Conf


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint: its folder and its verified manifest."""

    folder: str
    manifest: dict[str, Any]

    @property
    def step(self) -> int:
        return int(self.manifest["clock"]["step"])

    @property
    def statistics(self) -> Statistics:
        return Statistics.from_json(self.manifest["statistics"])

    def conf(self) -> dict[str, Any]:
        """The conf it was trained with, as plain values."""
        content: dict[str, Any] = json.loads(manifest.read_file(self.folder, self.manifest, CONF))
        return content

    def golden(self) -> list[dict[str, Any]]:
        """The raw validation rows of the conformance kit."""
        text = manifest.read_file(self.folder, self.manifest, GOLDEN).decode()
        return [json.loads(line) for line in text.splitlines()]


def open_checkpoint(folder: str) -> Checkpoint:
    """The checkpoint in a folder. Raises Failure unless it is complete."""
    return Checkpoint(folder, manifest.read(folder, FORMAT))


def newest(output: str) -> Checkpoint | None:
    """The newest complete checkpoint of a run, or None.

    One whose manifest is damaged is left out, with a word. Raises its Failure when there is no
    other.
    """
    parent = files.join(output, "checkpoints")
    damage: Failure | None = None
    for name in reversed(files.list_folder(parent)):
        folder = files.join(parent, name)
        if not files.exists(files.join(folder, manifest.NAME)):
            continue
        try:
            found = open_checkpoint(folder)
        except manifest.DamagedError as error:
            damage = damage or error
            continue
        if damage is not None:
            say(f"{damage}; going on with {folder}")
        return found
    if damage is not None:
        raise damage
    return None


def newest_or_fail(output: str) -> Checkpoint:
    """The newest complete checkpoint of a run. Raises Failure when there is none."""
    checkpoint = newest(output)
    if checkpoint is None:
        raise Failure(
            f"{output} has no complete checkpoint. Train first (tnctl train … output={output}), "
            "or name one with checkpoint=URL"
        )
    return checkpoint


def load(checkpoint: Checkpoint, conf: Conf) -> Model:
    """The model of a checkpoint, all rows and weights as they were saved."""
    model = building.build(conf, checkpoint.statistics)
    name = conf.recipe["name"]
    if name.endswith(".py") and recipes.digest_of(name) != checkpoint.manifest["recipe"]["sha256"]:
        say(f"{name} has changed since {checkpoint.folder} was saved: its model may be another")
    parts = {part["name"]: part for part in checkpoint.manifest["tables"]}
    if sorted(parts) != sorted(layout.name for layout in model.layout.tables):
        raise Failure(f"{checkpoint.folder} has tables {sorted(parts)}, the conf needs others")
    for layout, table in zip(model.layout.tables, model.tables, strict=True):
        part = parts[layout.name]
        saved = {group["name"]: group["number"] for group in part["groups"]}
        if saved != layout.groups:
            raise Failure(f"{checkpoint.folder} has groups {saved}, the conf {layout.groups}")
        rows.read(checkpoint.folder, checkpoint.manifest, part, table)
        # What reading a row gives depends on the step where weights decay.
        table.set_step(checkpoint.step)
        if table.rows != part["rows"]:
            raise Failure(
                f"{checkpoint.folder} table {layout.name} has {table.rows:,} rows, the manifest "
                f"says {part['rows']:,}. Take another checkpoint"
            )
    dense.read(checkpoint.folder, checkpoint.manifest, model)
    model.check_aliases()
    return model
