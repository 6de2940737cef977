"""Score a split of the data, read-only."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from tnctl.data.batches import Batch, batches
from tnctl.data.features import Features
from tnctl.data.read_ahead import ReadAhead
from tnctl.data.windows import windows
from tnctl.errors import UserError
from tnctl.evaluation.inference import Inference
from tnctl.evaluation.metrics import Scored
from tnctl.model.building import Model
from tnctl.model.layout import Layout
from tnctl.schema import Conf

READ_AHEAD = 2


def features_of(
    conf: Conf, model: Model, *, labelled: bool = True, carry: Sequence[str] = ()
) -> Features:
    """The way from the conf's columns to the model's inputs."""
    return Features(conf, model.layout.cells, model.statistics, labelled=labelled, carry=carry)


def in_file_order(
    conf: Conf, features: Features, split: str, limit: int | None = None
) -> Iterator[Batch]:
    """The batches of a split, unshuffled."""
    for window in windows(conf, features, split, limit=limit):
        order = np.arange(window.rows, dtype=np.uint32)
        yield from batches(window, order, conf.train.batch_size)


def labelled_heads(model: Model) -> list[tuple[str, int, int]]:
    """Name, place among the heads, and place among the labels of every head that has a label.

    In the order of the heads: the main one is the first.
    """
    places = enumerate(model.trained_heads)
    heads = [(head, model.heads.index(head), label) for label, head in places]
    return sorted(heads, key=lambda head: head[1])


class Counting(Protocol):
    """What is shown every batch of a pass."""

    def add(self, batch: Batch) -> None:
        """Take in one batch."""


class Counts:
    """How often each input of a model is there, over the batches that it is shown."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._slots = [
            (table.slots, np.append(0, np.cumsum(table.spreads)[:-1])) for table in layout.tables
        ]
        self.examples = 0
        self.present: dict[str, int] = {}
        """examples with an id, or with a number that is not 0"""
        self.ids: dict[str, int] = {}

    def add(self, batch: Batch) -> None:
        """Count one batch."""
        self.examples += batch.rows
        for (names, starts), offsets in zip(self._slots, batch.offsets, strict=True):
            cells = np.diff(offsets).reshape(batch.rows, -1)
            lengths = np.add.reduceat(cells, starts, axis=1)
            for name, present, ids in zip(
                names, np.count_nonzero(lengths, axis=0), lengths.sum(axis=0), strict=True
            ):
                self._count(name, int(present), int(ids))
        for name, (column, width) in self._layout.numeric_columns.items():
            first = column - self._layout.numeric_at
            numbers = batch.numeric[:, first : first + width]
            present = int(numbers.any(axis=1).sum())
            ids = int(numbers.sum()) if name in self._layout.indicators else 0
            self._count(name, present, ids)

    def _count(self, name: str, present: int, ids: int) -> None:
        self.present[name] = self.present.get(name, 0) + present
        self.ids[name] = self.ids.get(name, 0) + ids


def score(
    inference: Inference,
    conf: Conf,
    split: str,
    limit: int | None = None,
    counts: Counting | None = None,
    between: Callable[[], None] | None = None,
) -> Scored:
    """The logits of a split's labelled heads, in file order; `counts` sees every batch.

    `between` is called after every batch: what it raises ends this. Raises Failure when the split
    cannot be read.
    """
    heads = labelled_heads(inference.model)
    of_heads = [head for _, head, _ in heads]
    of_labels = [label for _, _, label in heads]
    parts: dict[str, list[Any]] = {}
    features = features_of(conf, inference.model)
    with ReadAhead(in_file_order(conf, features, split, limit), READ_AHEAD) as ahead:
        for batch in ahead:
            for name, part in (
                ("logits", inference(batch)[:, of_heads]),
                ("labels", batch.labels[:, of_labels]),
                ("weight", batch.weight),
                ("reference", batch.reference),
                ("group", batch.group),
            ):
                if part is not None:
                    parts.setdefault(name, []).append(part)
            if counts is not None:
                counts.add(batch)
            if between is not None:
                between()
    whole = {name: np.concatenate(of) for name, of in parts.items()}
    return Scored([name for name, _, _ in heads], **whole, squared=conf.train.loss.name == "mse")


def metrics_line(metrics: dict[str, Any]) -> str:
    """The metrics that a person looks at first."""
    names = ["auc", "gauc", "logloss" if "logloss" in metrics else "mse"]
    shown = [f"{name} {metrics[name]:.4f}" for name in names if name in metrics]
    if "reference_auc" in metrics:
        shown.insert(1, f"reference {metrics['reference_auc']:.4f}")
    return "  ".join(shown)


def reported_split(conf: Conf) -> str | None:
    """The split a report is about: test if given, else validation, else None."""
    if conf.data.test is not None:
        return "test"
    return "validation" if conf.data.validation is not None else None


def split_to_evaluate(conf: Conf) -> str:
    """The split that a command evaluates on. Raises UserError when the conf has none."""
    split = reported_split(conf)
    if split is None:
        raise UserError(
            "there is nothing to evaluate on. Give data.test=FILES or data.validation=FILES"
        )
    return split
