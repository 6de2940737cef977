"""`evaluation.by`: metrics for each value of a column, such as a placement."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tnctl.data import numbers
from tnctl.data.batches import batches
from tnctl.data.read_ahead import ReadAhead
from tnctl.data.sources import Source
from tnctl.data.windows import windows
from tnctl.documents import Count, Finite
from tnctl.errors import Failure, printable
from tnctl.evaluation.metrics import METRICS, HeadExamples
from tnctl.evaluation.split_scoring import features_of, labelled_heads
from tnctl.schema import Conf

if TYPE_CHECKING:  # it imports TensorFlow
    from tnctl.evaluation.inference import Inference

MOST_VALUES = 50  # of a column; the others are taken together
LONGEST = 100  # characters of a value
FIGURES = ("auc", "ne", "ctr", "pctr", "copc")


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
    features = features_of(conf, inference.model, carry=list(dict.fromkeys(columns.values())))
    _, head, label = labelled_heads(inference.model)[0]
    logits, labels, weights, carried = [], [], [], []
    with ReadAhead(windows(Source(conf, split), features), 1) as ahead:
        for window in ahead:
            order = np.arange(window.rows, dtype=np.uint32)
            parts = [inference(batch) for batch in batches(window, order, conf.train.batch_rows)]
            logits.append(np.concatenate(parts)[:, head])
            labels.append(window.labels[:, label])
            if window.weight is not None:
                weights.append(window.weight)
            assert window.carried is not None
            carried.append({name: texts_of(window.carried, name) for name in columns.values()})
    examples = HeadExamples(
        np.concatenate(logits),
        np.concatenate(labels),
        np.concatenate(weights) if weights else None,
        squared=conf.train.loss.name == "mse",
    )
    return {
        name: by_value(examples, pa.chunked_array([part[column] for part in carried], pa.string()))
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


def by_value(examples: HeadExamples, values: pa.ChunkedArray) -> tuple[ValueFigures, ...]:
    """The metrics on the rows of each value, text or null [n]; a null counts as the empty text."""
    encoded = pc.fill_null(values, "").combine_chunks().dictionary_encode()
    codes = encoded.indices.to_numpy(zero_copy_only=False)
    counts = np.bincount(codes, minlength=len(encoded.dictionary))
    order = np.argsort(-counts, kind="stable")
    place = np.empty(len(order), np.int64)
    place[order] = np.minimum(np.arange(len(order)), MOST_VALUES)
    texts = encoded.dictionary.take(pa.array(order[:MOST_VALUES])).to_pylist()
    figures = []
    for number, text in enumerate([*texts, None] if len(order) > MOST_VALUES else texts):
        rows = place[codes] == number
        weights = None if examples.weights is None else examples.weights[rows]
        of_value = HeadExamples(
            examples.logits[rows], examples.labels[rows], weights, squared=examples.squared
        )
        metrics = {
            name: METRICS[name].value(of_value)
            for name in FIGURES
            if METRICS[name].exists(of_value)
        }
        shown = None if text is None else printable(text)[:LONGEST]
        figures.append(ValueFigures(value=shown, examples=int(rows.sum()), **metrics))
    return tuple(figures)
