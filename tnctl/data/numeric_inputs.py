"""Numeric inputs: columns to the numbers of each example, and their transforms."""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from tnctl.data import numbers
from tnctl.data.bad_rows import owned, refuse
from tnctl.data.column_names import value_columns
from tnctl.data.file_pieces import Where
from tnctl.data.numbers import RowValues, row_values
from tnctl.data.times import SECOND, since, times_of
from tnctl.errors import Failure, UserError
from tnctl.schema import UNITS, Data, Numeric

Moments = tuple[ArrayLike, ArrayLike]  # mean and deviation, of all numbers of an input or of each


def numeric_input(
    columns: Mapping[str, pa.Array],
    name: str,
    numeric: Numeric,
    moments: Moments | None,
    data: Data,
    where: Where,
    missing: float = 0.0,
) -> NDArray[np.float32]:
    """The numbers of an input, float32 [rows, numeric.numbers], transformed.

    `missing` stands for a missing number without numeric.default.

    Raises `BadRowsError` as `vectors` does, and for a number that float32 cannot represent.
    """
    values = vectors(columns, name, numeric, data, where)
    inputs = transformed(values, numeric, moments, missing)
    _refuse_infinite(inputs, values, name, numeric, where)
    return inputs


def vectors(
    columns: Mapping[str, pa.Array], name: str, numeric: Numeric, data: Data, where: Where
) -> NDArray[np.float64]:
    """The numbers of an input, float64 [rows, numeric.numbers], clipped, NaN where missing.

    Raises `BadRowsError` for a text that is no number, a list of another length, a number that is
    infinite, and one to standardize that float32 cannot represent: its square would not fit either.
    """
    names = value_columns(name, numeric)
    if numeric.is_age:
        values = _ages(columns, names, numeric, data, where)
    elif numeric.columns is not None:
        parsed = [numbers.parsed(columns[part], data.missing, part, where) for part in names]
        values = np.stack(parsed, axis=1)
    else:
        [column] = names
        lists = row_values(columns[column], numeric.separator, data, column, where, fractions=True)
        values = _of_lists(lists, name, column, numeric.width, data, where)
    if numeric.clip is not None:
        low, high = numeric.clip
        values = np.clip(values, low, high)
    with np.errstate(over="ignore"):
        stored = values.astype(np.float32) if numeric.transform == "standardize" else values
    _refuse_infinite(stored, values, name, numeric, where)
    return values


def _ages(
    columns: Mapping[str, pa.Array], names: list[str], numeric: Numeric, data: Data, where: Where
) -> NDArray[np.float64]:
    """How long the times of columns are after another, float64 [rows, len(names)] in its unit."""

    def read(column: str) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        return times_of(numbers.single(columns[column], column, where), column, data, where)

    start = None if numeric.since_column is None else read(numeric.since_column)
    ages = []
    for column in names:
        times, missing = read(column)
        if start is not None:
            first, missing = start[0], missing | start[1]
        else:
            first = np.full(len(times), since(numeric.since or "", data.time_of(column)), np.int64)
        age = (times - first) / (UNITS[numeric.unit] * SECOND)
        ages.append(np.where(missing, np.nan, age))
    return np.stack(ages, axis=1)


def _refuse_infinite(
    stored: NDArray[np.floating],
    values: NDArray[np.float64],
    name: str,
    numeric: Numeric,
    where: Where,
) -> None:
    """Refuse numbers [rows, n] that are infinite as they are stored; `values` made them."""
    names = value_columns(name, numeric)
    for number in range(values.shape[1]):
        column = names[number] if numeric.columns is not None else names[0]
        numbers.refuse_infinite(stored[:, number], values[:, number], column, where)


def _of_lists(
    lists: RowValues, name: str, column: str, width: int, data: Data, where: Where
) -> NDArray[np.float64]:
    """The numbers of lists of `width`; a row with an empty list is missing as a whole."""
    lengths = lists.lengths
    if lengths is None:
        if width > 1 and lists.values.null_count < len(lists.values):
            raise Failure(
                f"{where(0)[0]}: column '{column}' has one value per row, and numeric.{name} takes "
                f"{width} numbers. Give numeric.{name}.separator, or numeric.{name}.columns"
            )
        values = numbers.parsed(lists.values, data.missing, column, where)
        return np.repeat(values[:, None], width, axis=1)
    refuse(
        (lengths != width) & (lengths != 0),
        where,
        lambda row: (
            f"the row must have as many numbers as numeric.{name}.width={width}. Received: "
            f"{lengths[row]}. Mend one of them"
        ),
        column,
    )
    vectors = np.full((len(lengths), width), np.nan)
    with owned(lists.owners, where) as place:
        values = numbers.parsed(lists.values, [*data.missing, ""], column, place)
    vectors[lengths == width] = values.reshape(-1, width)
    return vectors


def transformed(
    values: NDArray[np.float64],
    numeric: Numeric,
    moments: Moments | None,
    missing: float = 0.0,
) -> NDArray[np.float32]:
    """Numbers (float64 [rows, n], NaN where missing) after the default and the transform.

    Without a default a missing number becomes `missing`.
    """
    absent = np.isnan(values)
    if numeric.default is not None:
        values = np.where(absent, numeric.default, values)
        absent = np.zeros_like(absent)
    if numeric.transform == "log1p":
        values = np.sign(values) * np.log1p(np.abs(values))
    elif numeric.transform == "standardize":
        if moments is None:
            raise UserError("standardize needs the measured statistics of data.train")
        mean, deviation = moments
        with np.errstate(over="ignore"):
            values = (values - np.asarray(mean)) / np.asarray(deviation)
    with np.errstate(over="ignore"):
        return np.where(absent, missing, values).astype(np.float32)
