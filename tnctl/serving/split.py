"""`tnctl split-graph`: the dense inference graph of a checkpoint, servable without tnctl."""

import dataclasses
from typing import Any

from tnctl import manifest
from tnctl.checkpoint.load import Checkpoint
from tnctl.data.statistics import Statistics
from tnctl.manifest import Inventory
from tnctl.model.graph import BY_SLOT, PACKED, Input, packed_inputs, slot_inputs
from tnctl.model.layout import plan
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
    statistics = checkpoint.statistics
    layout = plan(conf, statistics)
    return {
        "checkpoint": {
            "folder": checkpoint.folder,
            "sha256": manifest.identity(checkpoint.manifest),
            "step": checkpoint.step,
        },
        "recipe": checkpoint.manifest["recipe"],
        "heads": checkpoint.manifest["heads"],
        "logit_correction": checkpoint.manifest["logit_correction"],
        "signatures": {
            BY_SLOT: described_inputs(slot_inputs(layout)),
            PACKED: described_inputs(packed_inputs(layout)),
        },
        "outputs": {
            "logits": "[B] float32 of the first head; with several heads also logits_HEAD",
            "predictions": "[B] float32, likewise: "
            + ("the logits" if conf.train.loss.name == "mse" else "the sigmoid of the logits"),
        },
        "slots": {name: describe_slot(conf, statistics, name) for name in conf.slots},
        "numeric": {name: describe_numeric(conf, statistics, name) for name in conf.numeric},
        "linear": {"adds": [t for one in layout.tables if one.linear for t in one.slots]},
        "missing": list(conf.data.missing),
        "strip": conf.data.strip,
    }


def described_inputs(inputs: list[Input]) -> list[dict[str, Any]]:
    """Inputs as a list, for JSON objects have no order: `at` is where each stands in its source."""
    described = []
    for one in inputs:
        entry = {"name": one.name, "shape": list(one.shape), "columns": one.columns}
        if one.name != one.source:
            entry |= {"source": one.source, "at": one.at}
        described.append(entry)
    return described


# Keys of a slot that only training needs.
NOT_SERVED = ("initial", "initial_scale", "max_norm", "frozen", "vocabulary_file", "buckets")


def describe_slot(conf: Conf, statistics: Statistics, name: str) -> dict[str, Any]:
    """How the values of a slot become ids, and their rows its input.

    The keys are those of the conf; those that are null are left out.
    """
    slot = conf.slots[name]
    described: dict[str, Any] = {
        key: value
        for key, value in dataclasses.asdict(slot).items()
        if value is not None and key not in NOT_SERVED
    }
    described |= {
        "column": slot.column or name,
        "group": slot.group or name,
        "width": conf.width_of(slot),
        "linear": conf.has_linear(slot),
    }
    if conf.cvm_of(name):
        described["cvm"] = True
    if name in statistics.boundaries:
        described["boundaries"] = statistics.boundaries[name].tolist()
    if name in statistics.vocabularies:
        described["vocabulary"] = statistics.vocabularies[name]
    return described


def describe_numeric(conf: Conf, statistics: Statistics, name: str) -> dict[str, Any]:
    """How the values of a numeric input are transformed before the graph takes them."""
    numeric = conf.numeric[name]
    described = dataclasses.asdict(numeric) | {"column": numeric.column or name}
    if name in statistics.standardize:
        mean, deviation = statistics.standardize[name]
        described |= {"mean": mean, "deviation": deviation}
    return described
