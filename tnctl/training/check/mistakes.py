"""What can be trained and is probably a mistake: warnings of `tnctl check` about data and steps."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tnctl.data.column_names import numeric_columns, slot_columns
from tnctl.data.sources import Source
from tnctl.errors import quoted
from tnctl.model.layout import Layout
from tnctl.model.parameter_tables import ParameterTables
from tnctl.schema import Conf, Data, Numeric, Train
from tnctl.starting.column_figures import (
    GIVES_AWAY,
    ColumnFigures,
    best_auc,
    figures,
    in_words,
    rows_of_one_label,
    separator_of,
)
from tnctl.training.check.sample import EncodedSample

LEAST_VALUES = 100  # of which a rule is taken
FEWEST_STEPS = 100
STEPS = 400  # that an advised batch size gives at least
SMALLEST_BATCH = 32
FEW_VECTORS = 0.1  # the share of values
LARGE = 1000.0  # a number that no layer should get unscaled


def of_labels(conf: Conf, layout: Layout, sample: EncodedSample) -> Iterator[str]:
    """The label among the inputs: by its column, or by values that nearly always go with it."""
    label_columns = {label.column for label in conf.data.all_labels.values()}
    read = {
        f"slots.{name}": slot_columns(name, slot, conf.slots) for name, slot in conf.slots.items()
    } | {f"numeric.{name}": numeric_columns(name, n) for name, n in conf.numeric.items()}
    others = []
    for key, columns in read.items():
        shared = label_columns.intersection(columns)
        for column in shared:
            yield (
                f"{key} reads '{column}', the column of a label: the model is given the answer. "
                f"Leave it out: '~{key}'"
            )
        others += [] if shared else [key.partition(".")[::2]]
    for index, name in enumerate(conf.data.all_labels):
        label = sample.batch.labels[:, index].astype(np.float64)
        if set(np.unique(label)) != {0.0, 1.0} or len(label) < LEAST_VALUES:
            continue
        for section, input_name in others:
            if section == "slots":
                reason = reason_of_ids(*sample.occurrences([input_name]), label)
            else:
                numbers = numbers_of(input_name, layout, sample).T
                reason = next(filter(None, (reason_of_numbers(n, label) for n in numbers)), "")
            if reason:
                yield (
                    f"{section}.{input_name} gives the label {label_in_words(conf.data, name)} "
                    f"away: {reason} in the sample. Is it known before the label is?"
                )


def numbers_of(name: str, layout: Layout, sample: EncodedSample) -> NDArray[np.float32]:
    """The numbers of a numeric input, float32 [rows, width]."""
    column, width = layout.numeric_columns[name]
    return sample.batch.numeric[:, column - layout.numeric_at :][:, :width]


def reason_of_ids(
    ids: NDArray[np.uint64], owners: NDArray[np.int64], labels: NDArray[np.float64]
) -> str:
    """Why the ids of a slot give the label away, as `tnctl init` measures it; empty if not.

    `ids` and `owners`, the row of each, are [n]; `labels` are 0 or 1, float64 [rows].
    """
    if not len(ids):
        return ""
    values, codes = np.unique(ids, return_inverse=True)
    lengths = np.bincount(owners, minlength=len(labels))
    column = ColumnFigures("", len(labels), "id", pa.array(values), codes, lengths)
    if lengths.max() > 1:
        return _reason(column, labels, "values")
    of_rows = np.full(len(labels), -1)
    of_rows[owners] = codes
    return _reason(replace(column, codes=of_rows, lengths=None), labels, "a certain value")


def reason_of_numbers(numbers: NDArray[np.float32], labels: NDArray[np.float64]) -> str:
    """Why numbers, float32 [rows], or buckets of them give the label away; empty if not."""
    values, codes = np.unique(numbers.astype(np.float64), return_inverse=True)
    column = ColumnFigures("", len(labels), "number", pa.array(values), codes)
    return _reason(column, labels, "a certain number")


def _reason(column: ColumnFigures, labels: NDArray[np.float64], value: str) -> str:
    area = best_auc(column, labels)
    if area >= GIVES_AWAY:
        return f"alone it has an AUC of {area:.3f}"
    rows = rows_of_one_label(column.row_codes, labels)
    return in_words(rows, value) if rows else ""


def of_one_class(data: Data, sample: EncodedSample) -> Iterator[str]:
    """Labels that never vary."""
    for (name, label), values in zip(data.all_labels.items(), sample.batch.labels.T, strict=True):
        if not (values == values[0]).all():
            continue
        words, texts = label_in_words(data, name), sample.labels.get(name)
        if label.positive is not None and not values[0] and texts:
            never = " or ".join(map(quoted, label.positive))
            yield (
                f"the label {words} is never {never} in the sample, so that it is 0 in every row. "
                f"Its texts: {', '.join(map(quoted, texts))}"
            )
        else:
            yield (
                f"the label {words} is {values[0]:g} in every row of the sample. Is the data "
                "sorted by it, or is it another column?"
            )


def of_vectors(model: ParameterTables, sample: EncodedSample) -> Iterator[str]:
    """Slots with vectors that hardly a value of the data has."""
    for layout, table in zip(model.layout.tables, model.tables, strict=True):
        for name, group in zip(layout.slots, layout.group_of, strict=True):
            ids, _ = sample.occurrences([name])
            if not layout.kind.vectors or not len(ids):
                continue
            share = table.contains(np.full(len(ids), group, np.uint16), ids).mean()
            if share < FEW_VECTORS:
                yield (
                    f"slots.{name}: {share:.1%} of its values in the sample have a vector. Check "
                    f"that {model.conf.slots[name].vectors} has values as the data has them"
                )


def of_numbers(
    inputs: Mapping[str, Numeric], layout: Layout, sample: EncodedSample
) -> Iterator[str]:
    """Numeric inputs that do not vary, have no number, or reach the layers far too large."""
    for name in filter(inputs.__contains__, layout.numeric_columns):
        values = numbers_of(name, layout, sample)
        if len(values) > 1 and (values == values[0]).all():
            yield f"numeric.{name} is the same number in every row of the sample"
    for name, number in sample.numbers.items():
        if number.highest is None or number.lowest is None:
            yield f"numeric.{name} has no number in the sample: check its column and data.missing"
            continue
        most = max(number.highest, -number.lowest)
        if inputs[name].transform == "none" and most > LARGE:
            yield (
                f"numeric.{name} reaches {most:.6g} and is not scaled: take "
                f"numeric.{name}.transform=standardize or log1p, or clip it"
            )


def of_lists(missing: Collection[str], texts: Mapping[str, pa.ChunkedArray]) -> Iterator[str]:
    """Slots without a separator whose texts [some rows] look like lists, as `tnctl init` sees them.

    `missing` are the texts of missing values.
    """
    for name, column in texts.items():
        if sign := separator_of(figures(name, column, False).without({"", *missing})):
            yield (
                f"slots.{name}: its texts look like lists, and each text is one value: give "
                f"slots.{name}.separator={quoted(sign)} and a pooling"
            )


def of_steps(train: Train, rows: float | None) -> Iterator[str]:
    """Too few steps to learn anything, by the number of rows (None: unknown)."""
    if not rows:
        return
    steps = -(-int(rows) // train.batch_rows) * train.most_passes
    if steps < FEWEST_STEPS and train.batch_rows > SMALLEST_BATCH:
        batch = max(SMALLEST_BATCH, 1 << int(max(np.log2(rows * train.most_passes / STEPS), 0)))
        count = f"{steps:,} step{'' if steps == 1 else 's'}"
        yield (
            f"{int(rows):,} rows are only {count} of train.batch_size={train.batch_rows}: take "
            f"train.batch_size={batch}, or more train.epochs"
        )


def of_validation(data: Data) -> Iterator[str]:
    """No rows that training does not see."""
    if data.source("validation") is None:
        yield (
            "data.validation is not given: nothing measures the model on rows it was not trained "
            "on, and the best one cannot be kept. Name files, or keep a tenth of the rows for it "
            "with data.split.validation=0.1"
        )


def label_in_words(data: Data, name: str) -> str:
    """A label by its column, and by its name where the conf has several."""
    column = f"in column '{data.all_labels[name].column}'"
    return f"{name} {column}" if data.labels else column


def same_files(conf: Conf) -> Iterator[str]:
    """Splits that read a file of data.train."""
    if conf.data.is_generated or conf.data.prepared is not None:
        return
    trained = set(Source(conf, "train").files)
    for split in ("validation", "test"):
        # Of a split that data.split cuts off, training reads other rows of these files.
        if getattr(conf.data, split) is None:
            continue
        for url in sorted(trained & set(Source(conf, split).files))[:1]:
            yield f"data.{split} reads {url}, which is trained on"
