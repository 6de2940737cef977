"""Score a split of the data, read-only."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from tnctl.data.bad_rows import Skipped
from tnctl.data.batches import Batch
from tnctl.data.features import Features
from tnctl.data.read_ahead import ReadAhead
from tnctl.data.sources import Source, window_rows
from tnctl.data.unit_records import WHOLE, Remainder, Unit
from tnctl.data.windows import UnitWindow, unit_batches, unit_windows
from tnctl.evaluation.metrics import Scored, main_metrics, shown
from tnctl.model.layout import Layout
from tnctl.schema import Conf, Data, Evaluation

if TYPE_CHECKING:  # they import TensorFlow
    from tnctl.evaluation.inference import Inference
    from tnctl.model.building import Model

BATCHES_AHEAD = 2
REPORTED_SPLITS = ("test", "validation")  # the first that is given


def features_of(
    conf: Conf, model: "Model", *, labelled: bool = True, carry: Sequence[str] = ()
) -> Features:
    """The mapping from the conf's columns to the model's inputs."""
    return Features(conf, model.layout.cells, model.statistics, labelled=labelled, carry=carry)


@contextmanager
def unshuffled(
    conf: Conf, model: "Model", split: str, limit: int | None = None
) -> Iterator[Iterator[Batch]]:
    """The batches of a split, or of its first `limit` rows, in file order, read ahead."""
    skipped = Skipped(split, conf.data.bad_rows)
    with unshuffled_units(conf, model, split, [WHOLE], skipped, {}, limit) as ahead:
        yield ahead


@contextmanager
def unshuffled_units(
    conf: Conf,
    model: "Model",
    split: str,
    units: Iterable[Unit],
    skipped: Skipped,
    rows_of: dict[int, int],
    limit: int | None = None,
) -> Iterator[Iterator[Batch]]:
    """The batches of units of a split, one unit after the other, in file order, read ahead.

    `skipped` counts the rows that cannot be read. `rows_of` gets the rows of each unit that has
    any, by its index, once its batches were taken. `limit` is the most rows of a unit.
    """
    features = features_of(conf, model)
    remainders = (Remainder(unit) for unit in units)

    def counted() -> Iterator[UnitWindow]:
        for window in unit_windows(Source(conf, split), features, remainders, skipped, limit):
            if window.rows is not None:
                rows_of[window.unit] = rows_of.get(window.unit, 0) + window.rows.rows
            yield window

    def in_file_order(_: UnitWindow, rows: int) -> NDArray[np.uint32]:
        return np.arange(rows, dtype=np.uint32)

    cut = unit_batches(
        counted(),
        in_file_order,
        conf.train.batch_rows,
        window_rows(conf.data.window, conf.train.batch_rows),
    )
    with ReadAhead((batch for batch, _ in cut), BATCHES_AHEAD) as ahead:
        yield ahead


def labelled_heads(model: "Model") -> list[tuple[str, int, int]]:
    """Name, place among the heads, and place among the labels of every head that has a label.

    In the order of the heads: the main one is the first.
    """
    places = enumerate(model.trained_heads)
    heads = [(head, model.heads.index(head), label) for label, head in places]
    return sorted(heads, key=lambda head: head[1])


class BatchCounter(Protocol):
    """Counts over the batches of a pass."""

    def add(self, batch: Batch) -> None:
        """Count one batch."""


class Counts:
    """In how many examples each input of a model is present, over all batches added."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._slots = [
            (table.slots, np.append(0, np.cumsum(table.spreads)[:-1])) for table in layout.tables
        ]
        self.examples = 0
        self.present = dict.fromkeys([*layout.slots, *layout.numeric], 0)
        """examples with an id, or with a number that is not 0"""
        self.ids = self.present.copy()

    def merge(self, examples: int, present: Mapping[str, int], ids: Mapping[str, int]) -> Self:
        """Add the figures that were counted over other batches, with the inputs of this model."""
        self.examples += examples
        for name in self.present:
            self.present[name] += present[name]
            self.ids[name] += ids[name]
        return self

    def add(self, batch: Batch) -> None:
        """Count one batch."""
        self.examples += batch.rows
        for (names, starts), offsets in zip(self._slots, batch.offsets, strict=True):
            cells = np.diff(offsets).reshape(batch.rows, -1)
            lengths = np.add.reduceat(cells, starts, axis=1)
            counts = np.count_nonzero(lengths, axis=0).tolist(), lengths.sum(axis=0).tolist()
            for name, present, ids in zip(names, *counts, strict=True):
                self.present[name] += present
                self.ids[name] += ids
        for name, (column, width) in self._layout.numeric_columns.items():
            first = column - self._layout.numeric_at
            numbers = batch.numeric[:, first : first + width]
            self.present[name] += int(numbers.any(axis=1).sum())
            if name in self._layout.indicators:
                self.ids[name] += int(numbers.sum())


def score(
    inference: "Inference",
    conf: Conf,
    split: str,
    limit: int | None = None,
    counter: BatchCounter | None = None,
    between: Callable[[], None] | None = None,
) -> Scored:
    """The logits of a split's labelled heads, in file order; each batch is passed to `counter`.

    `between` is called after every batch, and may raise to end this. Raises Failure when the split
    cannot be read.
    """
    skipped = Skipped(split, conf.data.bad_rows)
    scored, _ = score_units(
        inference, conf, split, [WHOLE], skipped, limit=limit, counter=counter, between=between
    )
    return scored


def score_units(
    inference: "Inference",
    conf: Conf,
    split: str,
    units: Sequence[Unit],
    skipped: Skipped,
    *,
    limit: int | None = None,
    counter: BatchCounter | None = None,
    between: Callable[[], None] | None = None,
) -> tuple[Scored, list[int]]:
    """As `score`, of some units of a split, and how many examples each has, which may be none.

    `skipped` counts the rows that cannot be read. `limit` is the most rows of a unit.
    """
    rows_of: dict[int, int] = {}
    names, heads, labels = map(list, zip(*labelled_heads(inference.model), strict=True))
    nothing = np.empty((0, len(names)), np.float32)
    parts: dict[str, list[Any]] = {"logits": [], "labels": []}
    with unshuffled_units(conf, inference.model, split, units, skipped, rows_of, limit) as ahead:
        for batch in ahead:
            for name, part in (
                ("logits", inference(batch)[:, heads]),
                ("labels", batch.labels[:, labels]),
                ("weight", batch.weight),
                ("reference", batch.reference),
                ("group", batch.group),
            ):
                if part is not None:
                    parts.setdefault(name, []).append(part)
            if counter is not None:
                counter.add(batch)
            if between is not None:
                between()
    whole = {name: np.concatenate(arrays or [nothing]) for name, arrays in parts.items()}
    scored = Scored(names, **whole, squared=conf.train.loss.name == "mse")
    return scored, [rows_of.get(unit.index, 0) for unit in units]


def metrics_line(metrics: dict[str, Any]) -> str:
    """The main metrics on one line."""
    words = [f"{metric.name} {shown(value, 4)}" for metric, value in main_metrics(metrics)]
    if "reference_auc" in metrics:
        words.insert(1, f"reference {shown(metrics['reference_auc'], 4)}")
    return "  ".join(words)


def reported_splits(evaluation: Evaluation) -> Sequence[str]:
    """The splits whose metrics a run may end with, the preferred one first."""
    return REPORTED_SPLITS if evaluation.test else ("validation",)


def first_given(data: Data, splits: Sequence[str]) -> str | None:
    """The first of some splits that the conf has data for, None without one."""
    return next((split for split in splits if data.source(split) is not None), None)
