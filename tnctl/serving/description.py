"""serving.json: all that a scorer needs to make the inputs of a split graph from raw values.

docs/formats/graph.md has every key. Numbers that may pass 2^53 are decimal texts, for readers of
JSON that count in doubles.
"""

from typing import Any

from tnctl import documents, manifest
from tnctl.checkpoint.load import Checkpoint
from tnctl.data.cells import BUCKETS, Encoder
from tnctl.data.reading import numeric_columns, slot_columns
from tnctl.data.statistics import Statistics
from tnctl.masking import masked
from tnctl.model.graph import BY_SLOT, LENGTHS, PACKED, Input, Output
from tnctl.model.layout import CVM_COLUMNS, LINEAR, Layout, plan
from tnctl.schema import Conf, Label
from tnctl.serving.cutting import Part, whole

FORMAT = "tnctl graph"
NAME = "serving.json"


def describe(
    checkpoint: Checkpoint, conf: Conf, part: Part | None = None, head: str | None = None
) -> dict[str, Any]:
    """The content of serving.json, but for what is written beside the graph.

    `part` is what a graph of one `head`, or tower, takes and returns; None: all.
    """
    statistics = checkpoint.statistics
    layout = plan(conf, statistics)
    part = part or whole(layout, tuple(checkpoint.manifest["heads"]))
    taken = {
        one.name.removesuffix("_length") if one.source == LENGTHS else one.name
        for one in part.by_slot
    }
    adds = [name for table in layout.tables if table.linear for name in table.slots]
    slots = slots_for(conf, taken | set(adds if LINEAR in taken else ()))
    numeric = [name for name in conf.numeric if name in taken]
    heads = list(dict.fromkeys(one.of for one in part.outputs if one.kind == "logits"))
    return {
        "checkpoint": {
            "folder": masked(checkpoint.folder),
            "sha256": manifest.identity(checkpoint.manifest),
            "step": checkpoint.step,
        },
        "recipe": masked(documents.plain(checkpoint.manifest.recipe)),
        "head": head,
        "heads": heads,
        "frozen": False,
        "predictions": "logit" if conf.train.loss.name == "mse" else "sigmoid",
        "logit_correction": checkpoint.manifest["logit_correction"],
        "labels": described_labels(conf, checkpoint.manifest["heads"], heads),
        "signatures": {
            BY_SLOT: described_inputs(part.by_slot),
            PACKED: described_inputs(part.packed),
        },
        "outputs": described_outputs(part.outputs),
        "data": described_data(conf),
        "columns": columns_of(conf, slots, numeric),
        "slots": {name: described_slot(conf, layout, statistics, name) for name in slots},
        "numeric": {name: described_numeric(conf, statistics, name) for name in numeric},
        "linear": {"adds": adds if LINEAR in taken else []},
    }


def slots_for(conf: Conf, taken: set[str]) -> list[str]:
    """The slots of some inputs, and those that crosses among them are of, as in the conf."""
    crossed = {one for name in taken & conf.slots.keys() for one in conf.slots[name].cross or ()}
    return [name for name in conf.slots if name in taken | crossed]


def columns_of(conf: Conf, slots: list[str], numeric: list[str]) -> list[str]:
    """The columns that raw rows must have, each once."""
    found = [column for name in slots for column in slot_columns(conf, name, conf.slots[name])]
    found += [column for name in numeric for column in numeric_columns(name, conf.numeric[name])]
    return list(dict.fromkeys(found))


def described_inputs(inputs: list[Input]) -> list[dict[str, Any]]:
    """Inputs as a list, for JSON objects have no order: `at` is where each stands in its source."""
    return [
        {
            "name": one.name,
            "dtype": one.dtype,
            "shape": list(one.shape),
            "columns": one.columns,
            "source": one.source,
            "at": one.at,
        }
        for one in inputs
    ]


def described_outputs(outputs: list[Output]) -> list[dict[str, Any]]:
    """The outputs of the signatures, each float32 [B, *shape]."""
    return [
        {"name": one.name, "kind": one.kind, "head": one.of, "shape": list(one.shape)}
        for one in outputs
    ]


def described_labels(conf: Conf, of_recipe: list[str], heads: list[str]) -> dict[str, Any]:
    """What each of `heads` was trained on. A recipe's only head takes the only label."""
    labels: dict[str, Label] = conf.data.all_labels
    if len(of_recipe) == 1:
        labels = dict(zip(of_recipe, labels.values(), strict=True))
    keys = ("column", "positive", "above")
    return {
        head: {key: getattr(labels[head], key) for key in keys} for head in heads if head in labels
    }


def described_data(conf: Conf) -> dict[str, Any]:
    """How raw rows were read."""
    data = conf.data
    keys = ("format", "delimiter", "header", "columns", "pairs", "skip_rows", "strip", "missing",
            "check_utf8")  # fmt: skip
    return {key: getattr(data, key) for key in keys}


def described_slot(conf: Conf, layout: Layout, statistics: Statistics, name: str) -> dict[str, Any]:
    """How the values of a slot become ids, and their rows its input.

    Every slot has every key; a key that means nothing to it is null.
    """
    slot = conf.slots[name]
    boundaries = statistics.boundaries_of(name, slot) if slot.ids in BUCKETS else None
    vocabulary = statistics.vocabulary_of(name, slot)
    has_rows = name in layout.slots
    width = conf.width_of(slot)
    cvm = name in layout.with_cvm
    encoder = Encoder(name, slot, conf.data, boundaries, vocabulary)
    of_rows = width + (CVM_COLUMNS if cvm else 0)
    return {
        "column": None if slot.cross else slot.column or name,
        "cross": slot.cross,
        "separator": slot.separator,
        "weights": slot.weights,
        "ids": slot.ids,
        "seed": slot.seed,
        "size": as_text(slot.size),
        "vocabulary": vocabulary,
        "oov": slot.oov,
        "boundaries": None if boundaries is None else boundaries.tolist(),
        "missing": slot.missing,
        "missing_id": as_text(int(encoder.missing_id)) if slot.missing == "value" else None,
        "padding": as_text(slot.padding),
        "max_length": slot.max_length,
        "keep": slot.keep,
        "pooling": slot.pooling,
        "indicator": slot.indicator,
        "group": slot.group or name if has_rows else None,
        "linear": conf.has_linear(slot),
        "width": width,
        "cvm": cvm,
        "columns": layout.numeric[name] if slot.indicator else of_rows,
        "default": 0.0 if has_rows else None,
    }


def as_text(number: int | None) -> str | None:
    """A whole number as decimal text."""
    return None if number is None else str(number)


def described_numeric(conf: Conf, statistics: Statistics, name: str) -> dict[str, Any]:
    """How the values of a numeric input are transformed before the graph takes them."""
    numeric = conf.numeric[name]
    mean, deviation = statistics.standardize.get(name, (None, None))
    return {
        "column": None if numeric.columns else numeric.column or name,
        "columns": numeric.columns,
        "separator": numeric.separator,
        "width": numeric.numbers,
        "default": numeric.default,
        "clip": numeric.clip,
        "transform": numeric.transform,
        "mean": mean,
        "deviation": deviation,
    }
