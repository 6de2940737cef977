"""`tnctl split-graph`: the dense inference graph of a checkpoint, servable without tnctl."""

from typing import Any

from tnctl.checkpoint import manifest
from tnctl.checkpoint.load import Checkpoint
from tnctl.checkpoint.manifest import Inventory
from tnctl.model.graph import BY_SLOT, PACKED, packed_inputs, slot_inputs
from tnctl.model.layout import LINEAR, plan
from tnctl.schema import Conf

FORMAT = "tnctl graph"
NAME = "serving.json"


def split(checkpoint: Checkpoint, conf: Conf, to: str) -> dict[str, Any]:
    """Write the SavedModel of a checkpoint and, last, serving.json to the folder or URL `to`.

    Every file is verified against the checkpoint's manifest on the way.
    """
    folder = checkpoint.manifest["graph"] + "/"
    names = [name for name in checkpoint.manifest["files"] if name.startswith(folder)]
    manifest.make_room(to, NAME, (name.removeprefix(folder) for name in names))
    inventory = Inventory(to)
    for name in names:
        data = manifest.read_file(checkpoint.folder, checkpoint.manifest, name)
        inventory.write(name.removeprefix(folder), data)
    description = describe(checkpoint, conf)
    inventory.commit(FORMAT, description, NAME)
    return description


def describe(checkpoint: Checkpoint, conf: Conf) -> dict[str, Any]:
    """What a scorer needs to know: inputs in order, and how raw values become ids and numbers."""
    layout = plan(conf)
    return {
        "checkpoint": {
            "folder": checkpoint.folder,
            "sha256": manifest.identity(checkpoint.manifest),
            "step": checkpoint.step,
        },
        "recipe": checkpoint.manifest["recipe"],
        "signatures": {
            BY_SLOT: in_order(slot_inputs(layout)),
            PACKED: in_order(packed_inputs(layout)),
        },
        "outputs": {"logits": "[B] float32", "predictions": "[B] float32, sigmoid of logits"},
        "slots": {name: describe_slot(checkpoint, conf, name) for name in layout.slots},
        "numeric": {name: describe_numeric(checkpoint, conf, name) for name in layout.numeric},
        "linear": {"adds": list(layout.slots)},
        "missing": list(conf.data.missing),
        "strip": conf.data.strip,
    }


def in_order(inputs: dict[str, int]) -> list[dict[str, Any]]:
    """Inputs as a list, for JSON objects have no order: `at` is where each stands in x."""
    described, at = [], 0
    for name, columns in inputs.items():
        if name in ("x", LINEAR):
            described.append({"name": name, "columns": columns})
        else:
            described.append({"name": name, "columns": columns, "at": at})
            at += columns
    return described


def describe_slot(checkpoint: Checkpoint, conf: Conf, name: str) -> dict[str, Any]:
    """How the values of a slot become ids, and their rows its input."""
    slot = conf.slots[name]
    described: dict[str, Any] = {
        "column": slot.column or name,
        "group": slot.group or name,
        "ids": slot.ids,
        "separator": slot.separator,
        "missing": slot.missing,
        "pooling": slot.pooling,
        "width": conf.embedding.width,
    }
    if slot.ids == "hash":
        described["seed"] = slot.seed
    if slot.ids == "quantiles":
        described["boundaries"] = checkpoint.manifest["statistics"]["boundaries"][name]
    return described


def describe_numeric(checkpoint: Checkpoint, conf: Conf, name: str) -> dict[str, Any]:
    """How the value of a numeric input is transformed before the graph takes it."""
    numeric = conf.numeric[name]
    described: dict[str, Any] = {
        "column": numeric.column or name,
        "transform": numeric.transform,
        "default": numeric.default,
    }
    if numeric.transform == "standardize":
        mean, deviation = checkpoint.manifest["statistics"]["standardize"][name]
        described |= {"mean": mean, "deviation": deviation}
    return described
