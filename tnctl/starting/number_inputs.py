"""Numbers: buckets, and the number itself."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl.starting.column import Column, Context, Input, missing_key, slot_of
from tnctl.starting.column_figures import Figures

BUCKETS, FEWEST_BUCKETS = 64, 8
MOST_BUCKETS = 1_000_000
REPEATED = 10  # how often values occur on average that have an effect of their own
ROWS_WHERE_RARE = 1000  # of a bucket of values that are rarer
SKEWED = 10.0  # the largest number in deviations


def ids_as_floats(column: Figures, context: Context) -> Column:
    """Ids that a gap made floats, as pandas does: each number is a bucket of its own."""
    expected = column.distinct if context.is_whole else _distinct_of_all(column)
    buckets = min(MOST_BUCKETS, 2 * expected + 2)
    settings = {"ids": "quantiles", "buckets": buckets}
    result = slot_of(column, settings | missing_key(column))
    shown = "ids stored as floats, a bucket each"
    if not context.is_whole:
        shown += f" if all rows have up to {buckets // 2:,}; as integers all are apart"
    result.inputs[0].evidence = f"{shown}; {result.inputs[0].evidence}"
    return result


def _distinct_of_all(column: Figures) -> int:
    """About how many different values all rows have, by those that occur once or twice (Chao)."""
    once, twice = (int((column.counts == number).sum()) for number in (1, 2))
    return column.distinct + once * (once - 1) // (2 * (twice + 1))


def number_of(column: Figures, context: Context) -> Column:
    """A number: buckets with an embedding each, and beside many even values the number itself."""
    values = column.numbers[(column.counts > 0) & np.isfinite(column.numbers)]
    if not len(values):
        return Column(column, "unsupported", remark=f"no finite number: {column.examples()}")
    infinite = bool(np.isinf(column.numbers).any())
    low, high = float(values.min()), float(values.max())
    shown = f"{column.distinct:,} numbers from {low:g} to {high:g}"
    if column.missing:
        shown += f", {column.missing / column.rows:.1%} missing"
    inputs = []
    if not infinite:
        settings: dict[str, Any] = {"ids": "row_quantiles", **missing_key(column)}
        if (buckets := _buckets(column, context)) != BUCKETS:
            settings["buckets"] = buckets
        inputs.append(Input("slots", column.name, column.name, settings, shown))
    finite = np.isfinite(column.numbers) & (column.counts > 0)
    transform = transform_of(column.numbers[finite], column.counts[finite])
    # Logarithms are not of the scale of other inputs, so beside buckets they do harm.
    if infinite or (column.distinct > context.buckets and transform == "standardize"):
        numeric: dict[str, Any] = {"transform": transform}
        if infinite:
            numeric["clip"] = [low, high]
        name = f"{column.name}_number"
        inputs.append(Input("numeric", name, column.name, numeric, shown))
    return Column(column, "number", inputs)


def _buckets(column: Figures, context: Context) -> int:
    """The number of buckets: fewer where values are too rare to have an effect of their own."""
    if column.occurring >= REPEATED * column.distinct:
        return context.buckets
    occurring = column.occurring * max(context.rows, column.rows) // column.rows  # in all rows
    return max(FEWEST_BUCKETS, min(context.buckets, occurring // ROWS_WHERE_RARE))


def transform_of(values: NDArray[np.float64], weights: NDArray[np.int64] | None = None) -> str:
    """log1p for numbers [n] with a long tail, else standardize; `weights` say how often each is."""
    mean = np.average(values, weights=weights)
    deviation = np.sqrt(np.average((values - mean) ** 2, weights=weights))
    if deviation and (values.max() - mean) / deviation > SKEWED and values.min() > -10:
        return "log1p"
    return "standardize"
