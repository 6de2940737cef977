"""Arrow columns of any type to numbers, missing values and bad ones told apart."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from tnctl.data.reading import Where
from tnctl.errors import Failure


def is_text(kind: pa.DataType) -> bool:
    """Whether a type holds text or bytes."""
    return (
        pt.is_string(kind)
        or pt.is_large_string(kind)
        or pt.is_binary(kind)
        or pt.is_large_binary(kind)
        or pt.is_string_view(kind)
        or pt.is_binary_view(kind)
        or pt.is_fixed_size_binary(kind)
    )


def plain(array: pa.Array) -> pa.Array:
    """Dictionary values in place, and text as string, large_string, binary or large_binary."""
    if pt.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pt.is_string_view(array.type):
        return array.cast(pa.large_string())
    if pt.is_binary_view(array.type) or pt.is_fixed_size_binary(array.type):
        return array.cast(pa.large_binary())
    return array


def texts(array: pa.Array, column: str, where: Where) -> pa.Array:
    """A column of text, trusted to be UTF-8, or of integers as text."""
    array = plain(array)
    kind = array.type
    if pt.is_binary(kind) or pt.is_large_binary(kind):
        return array.view(pa.string() if pt.is_binary(kind) else pa.large_string())
    if is_text(kind):
        return array
    if pt.is_null(kind) or pt.is_integer(kind) or pt.is_boolean(kind):
        return array.cast(pa.string())
    raise Failure(f"{where(0)[0]}: column '{column}' is {kind}, not text. Write it as text")


def parsed(array: pa.Array, missing: list[str], column: str, where: Where) -> np.ndarray:
    """A column as float64 [rows], NaN where it is missing.

    Raises `Failure`, naming the row, for a text that is no number.
    """
    array = plain(array)
    kind = array.type
    if is_text(kind):
        array = _parsed_texts(texts(array, column, where), missing, column, where)
    elif pt.is_integer(kind) or pt.is_floating(kind) or pt.is_boolean(kind) or pt.is_decimal(kind):
        array = array.cast(pa.float64(), safe=False)
    elif not pt.is_null(kind):
        raise Failure(
            f"{where(0)[0]}: column '{column}' is {kind}, not a number. Write it as float64, or "
            "name another column"
        )
    return np.asarray(array.cast(pa.float64()).to_numpy(zero_copy_only=False))


def _parsed_texts(array: pa.Array, missing: list[str], column: str, where: Where) -> pa.Array:
    absent = pa.array([text.strip() for text in missing], array.type)
    array = pc.ascii_trim_whitespace(array)
    array = pc.if_else(pc.is_in(array, value_set=absent), None, array)
    try:
        return pc.cast(array, pa.float64())
    except pa.ArrowInvalid:
        row = first_bad(array, pa.float64())
        raise not_a_number(shown(array, row), "a number", column, row, where) from None


def shown(array: pa.Array, row: int) -> str:
    """A text as an error shows it, whatever its bytes are."""
    return str(array.slice(row, 1).cast(pa.large_binary())[0].as_py(), "utf-8", "replace")


def not_a_number(value: str, kind: str, column: str, row: int, where: Where) -> Failure:
    """What to say of a text that does not parse."""
    url, number = where(row)
    return Failure(
        f"{url}, row {number}, column '{column}': {value!r} is not {kind}. Mend it, or add it to "
        "data.missing"
    )


def first_bad(array: pa.Array, kind: pa.DataType) -> int:
    """The first row of `array` that does not cast to `kind`, by halving; there must be one."""
    low, high = 0, len(array)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            pc.cast(array.slice(low, middle - low), kind)
            low = middle
        except pa.ArrowInvalid:
            high = middle
    return low


def refuse_infinite(out: np.ndarray, values: np.ndarray, column: str, where: Where) -> None:
    """Refuse numbers (float32 `out`, made from `values`) that are infinite."""
    wrong = np.isinf(out)
    if wrong.any():
        row = int(wrong.argmax())
        url, number = where(row)
        raise Failure(
            f"{url}, row {number}, column '{column}': {values[row]} is infinite or too large for "
            "float32. Mend the row, or take transform=log1p"
        )
