"""Score a split of the data, read-only: in whole, and by the values of a column."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tnctl.data import numbers
from tnctl.data.bad_rows import Skipped
from tnctl.data.batches import Batch
from tnctl.data.features import Features
from tnctl.data.read_ahead import ReadAhead
from tnctl.data.sources import Source, window_rows
from tnctl.data.unit_records import WHOLE, Remainder, Unit
from tnctl.data.windows import UnitWindow, unit_batches, unit_windows
from tnctl.documents import Count, Finite
from tnctl.errors import Failure, printable
from tnctl.evaluation.metrics import Scored, main_metrics, of_head, shown
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
def unshuffled(conf: Conf, model: "Model", split: str) -> Iterator[Iterator[Batch]]:
    """The batches of a split in file order, read ahead."""
    skipped = Skipped(split, conf.data.bad_rows)
    with unshuffled_units(conf, model, split, [WHOLE], skipped, {}) as ahead:
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
    carry: Sequence[str] = (),
) -> Iterator[Iterator[Batch]]:
    """The batches of units of a split, one unit after the other, in file order, read ahead.

    `skipped` counts the rows that cannot be read. `rows_of` gets the rows of each unit that has
    any, by its index, once its batches were taken. `limit` is the most rows of a unit, and `carry`
    the columns that batches carry.
    """
    features = features_of(conf, model, carry=carry)
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


def labelled_heads(
    model: "Model", labels: Collection[str] | None = None
) -> list[tuple[str, int, int]]:
    """Name, index among the heads, and index among the labels of every head that has a label.

    In the order of the heads: the main one is the first. With `labels` only heads of these.
    """
    trained = enumerate(zip(model.conf.data.all_labels, model.trained_heads, strict=True))
    heads = [
        (head, model.heads.index(head), number)
        for number, (label, head) in trained
        if labels is None or label in labels
    ]
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


def score(inference: "Inference", conf: Conf, split: str, **options: Any) -> Scored:
    """The logits of a split's labelled heads, in file order; `options` are those of `score_units`.

    Raises Failure when the split cannot be read.
    """
    skipped = Skipped(split, conf.data.bad_rows)
    return score_units(inference, conf, split, [WHOLE], skipped, **options)[0]


def score_units(
    inference: "Inference",
    conf: Conf,
    split: str,
    units: Sequence[Unit],
    skipped: Skipped,
    *,
    limit: int | None = None,
    carry: Sequence[str] = (),
    counter: BatchCounter | None = None,
    between: Callable[[], None] | None = None,
) -> tuple[Scored, list[int]]:
    """As `score`, of some units of a split, and how many examples each has, which may be none.

    `skipped` counts the rows that cannot be read. `limit` is the most rows of a unit. Each batch,
    with the columns of `carry`, is passed to `counter`; then `between` is called, which may raise.
    """
    rows_of: dict[int, int] = {}
    names, heads, labels = map(list, zip(*labelled_heads(inference.model), strict=True))
    nothing = np.empty((0, len(names)), np.float32)
    parts: dict[str, list[Any]] = {"logits": [], "labels": []}
    model = inference.model
    with unshuffled_units(conf, model, split, units, skipped, rows_of, limit, carry) as ahead:
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
    squared, ndcg_at = conf.train.loss.name == "mse", conf.evaluation.ndcg_at
    scored = Scored(names, **whole, squared=squared, ndcg_at=ndcg_at)
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


# ---- Metrics by value --------------------------------------------------------------------

MOST_VALUES = 50  # of a column; the others are taken together
LONGEST = 100  # characters of a value
FIGURES_BY_VALUE = ("auc", "ne", "ctr", "pctr", "copc")


@dataclass(frozen=True, kw_only=True)
class ValueFigures:
    """The main head's metrics on the rows with one value; None where they do not define one.

    `value` is its text, None of the rest: all values but the 50 with the most rows.
    """

    value: str | None
    examples: Count
    auc: Finite | None = None
    ne: Finite | None = None
    ctr: Finite | None = None
    pctr: Finite | None = None
    copc: Finite | None = None


def columns_of(conf: Conf) -> dict[str, str]:
    """The columns of `evaluation.by`, by the names that it has: of columns or of slots."""
    return {
        name: (conf.slots[name].column or name) if name in conf.slots else name
        for name in conf.evaluation.by
    }


def figures_by_value(
    inference: "Inference", conf: Conf, split: str
) -> dict[str, tuple[ValueFigures, ...]]:
    """The metrics of a split by each of `evaluation.by`, the value with the most rows first.

    One pass over the data. Raises Failure for a column with several values in a row.
    """
    columns = columns_of(conf)
    carried: list[dict[str, pa.Array]] = []

    class Carried:
        def add(self, batch: Batch) -> None:
            assert batch.carried is not None
            carried.append({name: texts_of(batch.carried, name) for name in columns.values()})

    carry = list(dict.fromkeys(columns.values()))
    scored = score(inference, conf, split, counter=Carried(), carry=carry)
    return {
        name: by_value(scored, pa.chunked_array([part[column] for part in carried], pa.string()))
        for name, column in columns.items()
    }


def texts_of(table: pa.Table, name: str) -> pa.Array:
    """A column as texts, nulls as they are."""
    column = numbers.flat(table.column(name))
    try:
        return pc.cast(column, pa.string())
    except pa.ArrowException as error:
        raise Failure(
            f"evaluation.by has {name}, whose rows do not each have a single text or number. Take "
            "another column"
        ) from error


def by_value(scored: Scored, values: pa.ChunkedArray) -> tuple[ValueFigures, ...]:
    """The metrics on the rows of each value, text or null [n]; a null counts as the empty text."""
    encoded = pc.fill_null(values, "").combine_chunks().dictionary_encode()
    codes = encoded.indices.to_numpy(zero_copy_only=False)
    counts = np.bincount(codes, minlength=len(encoded.dictionary))
    order = np.argsort(-counts, kind="stable")
    rank = np.empty(len(order), np.int64)
    rank[order] = np.minimum(np.arange(len(order)), MOST_VALUES)
    texts = encoded.dictionary.take(pa.array(order[:MOST_VALUES])).to_pylist()
    figures = []
    for index, text in enumerate([*texts, None] if len(order) > MOST_VALUES else texts):
        of_value = scored.part(rank[codes] == index).of_head(0)
        metrics = of_head(of_value, FIGURES_BY_VALUE)
        shown = None if text is None else printable(text)[:LONGEST]
        figures.append(ValueFigures(value=shown, examples=len(of_value.labels), **metrics))
    return tuple(figures)
