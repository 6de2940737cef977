"""What each input is worth: the metric without it, beside what its rows cost."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl.data.batches import Batch
from tnctl.data.read_ahead import ReadAhead
from tnctl.evaluation.evaluate import READ_AHEAD, features_of, in_file_order, labelled_heads, score
from tnctl.evaluation.inference import Inference
from tnctl.evaluation.input_figures import held, kind_of
from tnctl.evaluation.metrics import of_head
from tnctl.model.layout import Layout
from tnctl.schema import Conf

# Logits that are kept at a time: of more inputs, the data is read again.
FLOATS_KEPT = 1 << 28


@dataclass(frozen=True)
class Worth:
    """What a model loses without an input, whose rows take so many bytes (none: no rows)."""

    name: str
    kind: str
    metric: float
    loss: float
    rows: int | None
    bytes: int | None


@dataclass(frozen=True)
class Ablation:
    """Every input's worth, the dearest first; `metric` is what they are worth of."""

    split: str
    examples: int
    metric: str
    whole: float
    inputs: list[Worth]


def ablated_split(conf: Conf) -> str | None:
    """The split that inputs are taken away on: validation if given, else test, else None."""
    return next(
        (split for split in ("validation", "test") if getattr(conf.data, split) is not None), None
    )


def ablate(inference: Inference, conf: Conf, split: str, limit: int | None = None) -> Ablation:
    """Score a split without each slot and numeric input in turn, all in few passes over the data.

    `limit` takes only that many rows, the first.

    Without a slot is as if no example had an id of it: its embedding, its sequence and its part of
    `linear` are zeros. A numeric input and a one-hot slot are zeros too. The metric is the main
    head's AUC; where the labels are not 0 and 1 (train.loss=mse) it is the mean squared error.
    """
    layout, model = inference.model.layout, inference.model
    names = [*layout.slots, *layout.numeric]
    whole = score(inference, conf, split, limit)
    base = of_head(
        whole.logits[:, 0], whole.labels[:, 0], weights=whole.weight, squared=whole.squared
    )
    metric, sign = ("auc", 1) if "auc" in base else ("mse", -1)
    at_a_time = max(1, FLOATS_KEPT // max(len(whole.labels), 1))
    worths = []
    costs = held(model)
    for start in range(0, len(names), at_a_time):
        chunk = names[start : start + at_a_time]
        logits_without = _logits_without(inference, conf, split, chunk, limit)
        for name, logits in zip(chunk, logits_without, strict=True):
            figures = of_head(
                logits, whole.labels[:, 0], weights=whole.weight, squared=whole.squared
            )
            loss = sign * (base[metric] - figures[metric])
            rows, size = costs.get(name, (None, None))
            worths.append(Worth(name, kind_of(layout, name), figures[metric], loss, rows, size))
    worths.sort(key=lambda worth: (-worth.loss, worth.name))
    return Ablation(split, len(whole.labels), metric, base[metric], worths)


def _logits_without(
    inference: Inference, conf: Conf, split: str, names: Sequence[str], limit: int | None
) -> list[NDArray[np.float32]]:
    """The main head's logits of a split without each of some inputs: float32 [n] each."""
    [(_, head, _), *_] = labelled_heads(inference.model)
    layout = inference.model.layout
    parts: list[list[NDArray[np.float32]]] = [[] for _ in names]
    features = features_of(conf, inference.model)
    with ReadAhead(in_file_order(conf, features, split, limit), READ_AHEAD) as ahead:
        for batch in ahead:
            for name, logits in zip(names, parts, strict=True):
                logits.append(inference(without(batch, layout, name))[:, head].copy())
    return [np.concatenate(logits) for logits in parts]


def without(batch: Batch, layout: Layout, name: str) -> Batch:
    """A batch as if no example had anything of one input."""
    if name in layout.numeric:
        column, width = layout.numeric_columns[name]
        numeric = batch.numeric.copy()
        numeric[:, column - layout.numeric_at : column - layout.numeric_at + width] = 0
        return replace(batch, numeric=numeric)
    changed: dict[str, Any] = {
        key: list(getattr(batch, key)) for key in ("ids", "offsets", "weights")
    }
    for number, table in enumerate(layout.tables):
        if name not in table.slots:
            continue
        place = table.slots.index(name)
        first = sum(table.spreads[:place])
        lengths = np.diff(batch.offsets[number]).reshape(batch.rows, table.cells)
        emptied = lengths.copy()
        emptied[:, first : first + table.spreads[place]] = 0
        kept = np.repeat((emptied == lengths).reshape(-1), lengths.reshape(-1))
        changed["ids"][number] = batch.ids[number][kept]
        weights = batch.weights[number]
        changed["weights"][number] = None if weights is None else weights[kept]
        offsets = np.zeros(emptied.size + 1, batch.offsets[number].dtype)
        np.cumsum(emptied, out=offsets[1:])
        changed["offsets"][number] = offsets
    return replace(batch, **changed)
