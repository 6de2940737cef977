"""What a column alone tells of the label: the AUC of its values' means, on rows held out."""

import numpy as np
from numpy.typing import NDArray

from tnctl.evaluation.metrics import auc
from tnctl.starting.column_figures import Figures

BUCKETS = 64
FEW_VALUES = 10
PRIOR_ROWS = 10.0  # of the mean of all rows, added to those of a value
FEWEST_ROWS, FEWEST_OF_A_CLASS = 200, 20  # below, nothing is said
CHANCE = 1e-6  # of rows that have one label alone: above, nothing is said
TIMES_ODDS = 5  # how much higher the odds of a label may be among rows that chance decides
GIVES_AWAY, SUSPICIOUS = 0.99, 0.95  # AUC of one column alone


def held_out_auc(codes: NDArray[np.int64], labels: NDArray[np.float64]) -> float:
    """The AUC of the label's mean of each value, measured on the other half of the rows.

    `codes` int [rows], from -1; `labels` [rows], NaN where missing. 0.5 where there is too little.
    """
    present = ~np.isnan(labels)
    codes, labels = codes[present] + 1, labels[present]
    positive = int(labels.sum())
    if len(labels) < FEWEST_ROWS or min(positive, len(labels) - positive) < FEWEST_OF_A_CLASS:
        return 0.5
    half = np.arange(len(labels)) % 2 == 0
    areas = []
    for fitted in (half, ~half):
        size = int(codes.max()) + 1
        counts = np.bincount(codes[fitted], minlength=size)
        sums = np.bincount(codes[fitted], labels[fitted], size)
        prior = labels[fitted].mean()
        means = (sums + PRIOR_ROWS * prior) / (counts + PRIOR_ROWS)
        area = auc(means[codes[~fitted]], labels[~fitted])
        areas.append(0.5 if area is None else area)  # a half may have one class alone
    return float(np.mean(areas))


def best_value_auc(
    codes: NDArray[np.int64], owners: NDArray[np.int64], labels: NDArray[np.float64]
) -> float:
    """The AUC of whether a row's list has a value, for the value that tells the most.

    `codes` int [values], -1 where missing, and `owners`, the row of each; `labels` [rows], NaN
    where missing. 0.5 where there is too little.
    """
    present = ~np.isnan(labels)
    positive = int(labels[present].sum())
    negative = int(present.sum()) - positive
    if len(labels) < FEWEST_ROWS or min(positive, negative) < FEWEST_OF_A_CLASS:
        return 0.5
    used = (codes >= 0) & present[owners]
    owners, codes = np.unique(np.stack([owners[used], codes[used]]), axis=1)
    rows = np.bincount(codes, minlength=1)
    clicks = np.bincount(codes, labels[owners], minlength=1)
    return float(0.5 + np.abs(clicks / positive - (rows - clicks) / negative).max() / 2)


def alike_rows(column: Figures, labels: NDArray[np.float64]) -> tuple[int, bool, int, int] | None:
    """As `rows_of_one_label`, of the values of a column; of lists by whether a row has any."""
    codes = column.codes if column.lengths is None else np.where(column.has_value, 0, -1)
    return rows_of_one_label(codes, labels)


def rows_of_one_label(
    codes: NDArray[np.int64], labels: NDArray[np.float64]
) -> tuple[int, bool, int, int] | None:
    """The most rows with a value, or without it, that have one label alone, too many for chance.

    `codes` int [rows], -1 where missing, which is a value too; `labels` [rows], NaN where missing.
    Returns the code, whether the rows have it, the label (0 or 1), and how many rows there are.

    Values differ in their odds, and of many values some differ much. So the odds that chance has
    are those of all rows, times the number of values. The two splits that each column has, by the
    missing value and by the most frequent one, are not chosen among many: times `TIMES_ODDS`.
    """
    present = ~np.isnan(labels)
    codes, labels = codes[present] + 1, labels[present]
    total, positive = len(labels), labels.sum()
    if not 0 < positive < total:
        return None
    rows = np.bincount(codes, minlength=2)
    ones = np.bincount(codes, labels, len(rows))
    times = np.full(len(rows), max(TIMES_ODDS, np.count_nonzero(rows[1:])))
    times[0] = times[1 + int(rows[1:].argmax())] = TIMES_ODDS
    best: tuple[int, bool, int, int] | None = None
    for label, of_label in ((1, ones), (0, rows - ones)):
        odds = times * of_label.sum() / (total - of_label.sum())
        for has_it, n, agreeing in (
            (True, rows, of_label),
            (False, total - rows, of_label.sum() - of_label),
        ):
            is_sure = (agreeing == n) & (n * np.log1p(1 / odds) > -np.log(CHANCE))
            at = int(np.where(is_sure, n, 0).argmax())
            if is_sure[at] and (best is None or n[at] > best[3]):
                best = at - 1, has_it, label, int(n[at])
    return best


def in_words(rows: tuple[int, bool, int, int], value: str) -> str:
    """Rows of one label, as messages say them; `value` is the words for the value."""
    code, has_it, label, number = rows
    if code < 0:
        value, has_it = "a value", not has_it
    return f"all {number:,} rows {'with' if has_it else 'without'} {value} have label {label}"


def noise(labels: NDArray[np.float64]) -> float:
    """Two standard deviations of the AUC of a score without any effect, for such labels [rows]."""
    positive = np.nansum(labels)
    negative = np.count_nonzero(~np.isnan(labels)) - positive
    if not positive or not negative:
        return 1.0
    return float(2 * np.sqrt((1 / positive + 1 / negative) / 12))


def best_auc(column: Figures, labels: NDArray[np.float64]) -> float:
    """The AUC by a column alone: by its values, buckets of numbers, or how many values it has."""
    if column.lengths is None:
        areas = [held_out_auc(column.codes, labels)]
        if column.number_share == 1 and column.distinct > FEW_VALUES:
            areas.append(held_out_auc(bucket_codes(column), labels))
    else:
        owners = np.repeat(np.arange(column.rows), column.lengths)
        areas = [
            held_out_auc(np.minimum(column.lengths, BUCKETS), labels),
            best_value_auc(column.codes, owners, labels),
        ]
    return max(max(area, 1 - area) for area in areas)


def bucket_codes(column: Figures, buckets: int = BUCKETS) -> NDArray[np.int64]:
    """The bucket of each row's number, int64 [rows], -1 where missing: equal numbers of values."""
    edges = edges_of(column.numbers[column.counts > 0], buckets)
    of_values = np.searchsorted(edges, column.numbers, side="right")
    of_values[np.isnan(column.numbers)] = -1
    return np.append(of_values, -1)[column.codes]


def edges_of(numbers: NDArray[np.float64], buckets: int = BUCKETS) -> NDArray[np.float64]:
    """The edges between buckets of equally many of the numbers, each of which is there once."""
    filled = np.sort(numbers[np.isfinite(numbers)])
    places = np.linspace(0, len(filled) - 1, buckets + 1)[1:-1].astype(np.int64)
    return np.unique(filled[places]) if len(filled) else filled
