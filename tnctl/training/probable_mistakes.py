"""What can be trained and is probably a mistake: warnings of `tnctl check` about data and steps."""

from collections.abc import Collection, Iterator, Mapping

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tnctl.data.batches import Batch
from tnctl.data.column_names import numeric_columns, slot_columns
from tnctl.data.sources import Source
from tnctl.errors import quoted
from tnctl.model.layout import Layout
from tnctl.schema import Conf, Data, Numeric, Train
from tnctl.starting.column_figures import figures
from tnctl.starting.column_value import (
    BUCKETS,
    GIVES_AWAY,
    best_value_auc,
    edges_of,
    held_out_auc,
    in_words,
    rows_of_one_label,
)
from tnctl.starting.multiple_values import separator_of
from tnctl.training.sample_ids import LEAST_VALUES, NumberFigures, occurrences, spread

FEWEST_STEPS = 100
STEPS = 400  # that an advised batch size gives at least
SMALLEST_BATCH = 32
LARGE = 1000.0  # a number that no layer should get unscaled


def of_labels(conf: Conf, layout: Layout, sample: list[Batch]) -> Iterator[str]:
    """The label among the inputs: by its column, or by values that nearly always go with it."""
    label_columns = {label.column for label in conf.data.all_labels.values()}
    read = {
        f"slots.{name}": slot_columns(name, slot, conf.slots) for name, slot in conf.slots.items()
    } | {f"numeric.{name}": numeric_columns(name, n) for name, n in conf.numeric.items()}
    for key, columns in read.items():
        for column in label_columns.intersection(columns):
            yield (
                f"{key} reads '{column}', the column of a label: the model is given the answer. "
                f"Leave it out: '~{key}'"
            )
    labels = np.concatenate([batch.labels for batch in sample])
    numeric = np.concatenate([batch.numeric for batch in sample])
    spreads = list(map(spread, conf.slots.values()))
    for place, name in enumerate(conf.data.all_labels):
        label = labels[:, place]
        if set(np.unique(label)) != {0.0, 1.0} or len(label) < LEAST_VALUES:
            continue
        words = label_in_words(conf.data, name)
        for number, slot_name in enumerate(conf.slots):
            if label_columns.intersection(read[f"slots.{slot_name}"]):
                continue
            ids, owners = occurrences(spreads, sample, [number])
            if reason := reason_of_ids(ids, owners, label):
                yield gives_away(f"slots.{slot_name}", words, reason)
        for number_name, (start, width) in layout.numeric_columns.items():
            key, at = f"numeric.{number_name}", start - layout.numeric_at
            if key in read and not label_columns.intersection(read[key]):
                reasons = (reason_of_numbers(numeric[:, at + n], label) for n in range(width))
                if reason := next(filter(None, reasons), ""):
                    yield gives_away(key, words, reason)


def gives_away(key: str, label: str, reason: str) -> str:
    return (
        f"{key} gives the label {label} away: {reason} in the sample. Is it known before the "
        "label is?"
    )


def reason_of_ids(
    ids: NDArray[np.uint64], owners: NDArray[np.int64], label: NDArray[np.float32]
) -> str:
    """Why the ids of a slot give the label away, as `tnctl init` measures it; empty if not.

    `ids` and `owners`, the row of each, are [n]; `label` is 0 or 1, float32 [rows].
    """
    if not len(ids):
        return ""
    labels = label.astype(np.float64)
    codes = np.unique(ids, return_inverse=True)[1].astype(np.int64)
    counts = np.bincount(owners, minlength=len(labels))
    of_rows = np.where(counts > 0, 0, -1)
    if counts.max() <= 1:
        of_rows[owners] = codes
        areas = [held_out_auc(of_rows, labels)]
    else:
        areas = [
            held_out_auc(np.minimum(counts, BUCKETS), labels),
            best_value_auc(codes, owners, labels),
        ]
    return _reason(of_rows, areas, labels, "a certain value" if counts.max() <= 1 else "values")


def reason_of_numbers(numbers: NDArray[np.float32], label: NDArray[np.float32]) -> str:
    """The same of a numeric input, float32 [rows]: of its values or buckets of them."""
    labels = label.astype(np.float64)
    values, codes = np.unique(numbers.astype(np.float64), return_inverse=True)
    buckets = np.searchsorted(edges_of(values), values, side="right")[codes]
    areas = [held_out_auc(codes, labels), held_out_auc(buckets, labels)]
    return _reason(codes, areas, labels, "a certain number")


def _reason(
    codes: NDArray[np.int64], areas: list[float], labels: NDArray[np.float64], value: str
) -> str:
    area = max(max(area, 1 - area) for area in areas)
    if area >= GIVES_AWAY:
        return f"alone it has an AUC of {area:.3f}"
    rows = rows_of_one_label(codes, labels)
    return in_words(rows, value) if rows else ""


def of_one_class(
    data: Data, labels: NDArray[np.float32], texts: Mapping[str, list[str]]
) -> Iterator[str]:
    """Labels [rows, labels] that never vary; `texts` are some of each one's texts in the data."""
    for (name, label), values in zip(data.all_labels.items(), labels.T, strict=True):
        if not (values == values[0]).all():
            continue
        words = label_in_words(data, name)
        if label.positive is not None and not values[0] and texts.get(name):
            never = " or ".join(map(quoted, label.positive))
            yield (
                f"the label {words} is never {never} in the sample, so that it is 0 in every row. "
                f"Its texts: {', '.join(map(quoted, texts[name]))}"
            )
        else:
            yield (
                f"the label {words} is {values[0]:g} in every row of the sample. Is the data "
                "sorted by it, or is it another column?"
            )


def of_numbers(
    inputs: Mapping[str, Numeric], figures: Mapping[str, NumberFigures]
) -> Iterator[str]:
    """Numeric inputs without a number, and those that reach the layers far too large."""
    for name, numeric in inputs.items():
        of_input = figures.get(name)
        if of_input is None:
            continue
        if of_input.highest is None or of_input.lowest is None:
            yield f"numeric.{name} has no number in the sample: check its column and data.missing"
        elif numeric.transform == "none":
            most = max(of_input.highest, -of_input.lowest)
            if most > LARGE:
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


def constant_numbers(inputs: Collection[str], layout: Layout, sample: list[Batch]) -> list[str]:
    """The names of `inputs`, the numeric ones, that do not vary."""
    numeric = np.concatenate([batch.numeric for batch in sample])
    equal = (numeric == numeric[0]).all(axis=0)
    return [
        name
        for name, (column, width) in layout.numeric_columns.items()
        if name in inputs and len(numeric) > 1 and equal[column - layout.numeric_at :][:width].all()
    ]


def same_files(conf: Conf) -> list[str]:
    """Splits that read a file of data.train."""
    if conf.data.is_generated or conf.data.prepared is not None:
        return []
    trained = set(Source(conf, "train").files)
    # Of a split that data.split cuts off, training reads other rows of these files.
    splits = [name for name in ("validation", "test") if getattr(conf.data, name) is not None]
    shared = {split: sorted(trained & set(Source(conf, split).files)) for split in splits}
    return [
        f"data.{split} reads {url}, which is trained on"
        for split, urls in shared.items()
        for url in urls[:1]
    ]
