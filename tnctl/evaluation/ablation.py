"""What each input is worth: the metric without it, beside what its rows cost."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tnctl.data.batches import Batch
from tnctl.evaluation.inference import Inference
from tnctl.evaluation.input_figures import kind_of, rows_and_bytes
from tnctl.evaluation.metrics import METRICS, HeadExamples, Metric
from tnctl.evaluation.split_scoring import (
    labelled_heads,
    score,
    unshuffled,
)
from tnctl.model.layout import Layout
from tnctl.model.table_figures import table_figures
from tnctl.schema import Conf

# Logits that are kept at a time: for more inputs, the data is read again.
FLOATS_KEPT = 1 << 28
ABLATED_SPLITS = ("validation", "test")  # the first that is given


@dataclass(frozen=True)
class Worth:
    """What a model loses without an input, and the rows and bytes that it has (None: no rows)."""

    name: str
    kind: str
    metric: float
    loss: float
    rows: int | None
    bytes: int | None


@dataclass(frozen=True)
class Ablation:
    """Every input's worth by `metric`, the most valuable first; `whole` is with all inputs."""

    split: str
    examples: int
    metric: str
    whole: float
    inputs: list[Worth]


def ablate(inference: Inference, conf: Conf, split: str, limit: int | None = None) -> Ablation:
    """Score a split without each slot and numeric input in turn, all in few passes over the data.

    `limit` takes only that many rows, the first.

    Without a slot is as if no example had an id of it: its embedding, its sequence and its part of
    `linear` are zeros. A numeric input and a one-hot slot are zeros too. The metric is the first
    of the main head's AUC, logloss and mean squared error that these examples define: of one class
    there is no AUC, and with train.loss=mse no logloss.
    """
    layout = inference.model.layout
    names = [*layout.slots, *layout.numeric]
    examples = score(inference, conf, split, limit).of_head(0)
    metric, whole = _defined(examples)
    sign = 1 if metric.greater_is_better else -1
    at_a_time = max(1, FLOATS_KEPT // max(len(examples.labels), 1))
    worths = []
    costs = rows_and_bytes(inference.model, table_figures(inference.model))
    for start in range(0, len(names), at_a_time):
        chunk = names[start : start + at_a_time]
        logits_without = _logits_without(inference, conf, split, chunk, limit)
        for name, logits in zip(chunk, logits_without, strict=True):
            value = metric.value(replace(examples, logits=logits))
            loss = sign * (whole - value)
            worths.append(
                Worth(name, kind_of(layout, name), value, loss, *costs.get(name, (None, None)))
            )
    worths.sort(key=lambda worth: (-worth.loss, worth.name))
    return Ablation(split, len(examples.labels), metric.name, whole, worths)


def _defined(examples: HeadExamples) -> tuple[Metric, float]:
    """The metric by which inputs are compared on these examples, and its value with all inputs."""
    for metric in map(METRICS.__getitem__, ("auc", "logloss", "mse")):
        if metric.exists(examples) and (value := metric.value(examples)) is not None:
            return metric, value
    raise AssertionError("there is always a mean squared error")


def _logits_without(
    inference: Inference, conf: Conf, split: str, names: Sequence[str], limit: int | None
) -> list[NDArray[np.float32]]:
    """The main head's logits of a split without each of some inputs: float32 [n] each."""
    [(_, main_head, _), *_] = labelled_heads(inference.model)
    layout = inference.model.layout
    parts: list[list[NDArray[np.float32]]] = [[] for _ in names]
    with unshuffled(conf, inference.model, split, limit) as ahead:
        for batch in ahead:
            for name, logits_of_batches in zip(names, parts, strict=True):
                logits = inference(without(batch, layout, name))[:, main_head]
                # A copy: a view would keep the logits of all heads in memory.
                logits_of_batches.append(logits.copy())
    return [np.concatenate(logits_of_batches) for logits_of_batches in parts]


def without(batch: Batch, layout: Layout, name: str) -> Batch:
    """A batch as if no example had anything of one input."""
    if name in layout.numeric:
        column, width = layout.numeric_columns[name]
        numeric = batch.numeric.copy()
        numeric[:, column - layout.numeric_at : column - layout.numeric_at + width] = 0
        return replace(batch, numeric=numeric)
    number, table = next(
        (number, table) for number, table in enumerate(layout.tables) if name in table.slots
    )
    place = table.slots.index(name)
    first = sum(table.spreads[:place])
    lengths = np.diff(batch.offsets[number]).reshape(batch.rows, table.cells)
    emptied = lengths.copy()
    emptied[:, first : first + table.spreads[place]] = 0
    kept = np.repeat((emptied == lengths).reshape(-1), lengths.reshape(-1))
    changed = replace(batch, ids=[*batch.ids], offsets=[*batch.offsets], weights=[*batch.weights])
    changed.ids[number] = batch.ids[number][kept]
    if (weights := batch.weights[number]) is not None:
        changed.weights[number] = weights[kept]
    changed.offsets[number] = np.zeros_like(batch.offsets[number])
    np.cumsum(emptied, out=changed.offsets[number][1:])
    return changed
