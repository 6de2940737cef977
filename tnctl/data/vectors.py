"""Numeric inputs: columns to the numbers of each example, and their transforms."""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from tnctl.data import numbers
from tnctl.data.bad_rows import BadRowsError, owned
from tnctl.data.parts import Parts, parts
from tnctl.data.reading import Where, named, numeric_columns
from tnctl.errors import Failure, UserError
from tnctl.schema import Data, Numeric


def vectors(
    columns: Mapping[str, pa.Array], name: str, numeric: Numeric, data: Data, where: Where
) -> NDArray[np.float64]:
    """The numbers of an input, float64 [rows, numeric.numbers], clipped, NaN where missing.

    Raises `BadRowsError` for a text that is no number, a list of another length, a number that is
    infinite, and one to standardize that float32 does not hold: its square would not fit either.
    """
    names = numeric_columns(name, numeric)
    if numeric.columns is not None:
        found = [numbers.parsed(columns[one], data.missing, one, where) for one in names]
        values = np.stack(found, axis=1)
    else:
        [column] = names
        split = parts(columns[column], numeric.separator, data, column, where, fractions=True)
        values = _of_lists(split, name, column, numeric.width, data, where)
    if numeric.clip is not None:
        low, high = numeric.clip
        values = np.clip(values, low, high)
    for number in range(values.shape[1]):
        one = names[number] if numeric.columns is not None else names[0]
        held = values[:, number]
        if numeric.transform == "standardize":
            with np.errstate(over="ignore"):
                held = held.astype(np.float32)
        numbers.refuse_infinite(held, values[:, number], one, where)
    return values


def _of_lists(
    split: Parts, name: str, column: str, width: int, data: Data, where: Where
) -> NDArray[np.float64]:
    """The numbers of lists of `width`; a row with none of them is missing as a whole."""
    nulls = split.values.null_count == len(split.values)
    if split.lengths is None and (width == 1 or nulls):
        values = numbers.parsed(split.values, data.missing, column, where)
        return np.repeat(values[:, None], width, axis=1)
    if split.lengths is None:
        raise Failure(
            f"{where(0)[0]}: column '{column}' has one value per row, and numeric.{name} takes "
            f"{width} numbers. Give numeric.{name}.separator, or numeric.{name}.columns"
        )
    wrong = np.flatnonzero((split.lengths != width) & (split.lengths != 0))
    if len(wrong):
        raise BadRowsError(
            f"{named(where(int(wrong[0])))}, column '{column}': the row must have as many numbers "
            f"as numeric.{name}.width={width}. Received: {split.lengths[wrong[0]]}. Mend one of "
            "them",
            wrong,
        )
    out = np.full((len(split.lengths), width), np.nan)
    with owned(split.owners, where) as place:
        values = numbers.parsed(split.values, [*data.missing, ""], column, place)
    out[split.lengths == width] = values.reshape(-1, width)
    return out


def transformed(
    values: NDArray[np.float64], numeric: Numeric, moments: tuple[ArrayLike, ArrayLike] | None
) -> NDArray[np.float32]:
    """Numbers (float64 [rows, n], NaN where missing) after the default and the transform.

    `moments` are the mean and deviation of standardize, of all numbers or of each.
    """
    missing = np.isnan(values)
    if numeric.default is not None:
        values = np.where(missing, numeric.default, values)
        missing = np.zeros_like(missing)
    if numeric.transform == "log1p":
        values = np.sign(values) * np.log1p(np.abs(values))
    elif numeric.transform == "standardize":
        if moments is None:
            raise UserError("standardize needs the measured statistics of data.train")
        mean, deviation = moments
        with np.errstate(over="ignore"):
            values = (values - np.asarray(mean)) / np.asarray(deviation)
    with np.errstate(over="ignore"):
        return np.where(missing, 0, values).astype(np.float32)
