"""The values of a column: one for each row, or lists of them, of lists or of text that is split."""

import json
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from numpy.typing import NDArray

from tnctl import limits
from tnctl.data import numbers
from tnctl.data.bad_rows import refuse
from tnctl.data.file_pieces import Where
from tnctl.data.row_limits import refuse_many
from tnctl.errors import quoted
from tnctl.schema import Data

JSON = "json"


class RowValues(NamedTuple):
    """The values of all rows, one after the other."""

    values: pa.Array  # [values]
    lengths: NDArray[np.int64] | None  # [rows], how many each row has; None when each has one

    @property
    def owners(self) -> NDArray[np.int64] | None:
        """The row of each value, int64 [values]; None when each row has one."""
        return (
            None if self.lengths is None else np.repeat(np.arange(len(self.lengths)), self.lengths)
        )

    def listed(self) -> "RowValues":
        """The same with lengths: a row whose one value is null has none."""
        if self.lengths is not None:
            return self
        valid = self.values.is_valid().to_numpy(zero_copy_only=False)
        return RowValues(self.values.drop_null(), valid.astype(np.int64))


def row_values(
    array: pa.Array, separator: str | None, data: Data, column: str, where: Where, fractions: bool
) -> RowValues:
    """The values of a column [rows], as they are or as its text is split.

    A null list, and a text of data.missing that is split, have no value. `fractions` allows
    numbers with a point in JSON lists. Raises `BadRowsError` for a text that is no JSON list, and
    for too many values in a row.
    """
    kind = array.type.value_type if pt.is_dictionary(array.type) else array.type
    if separator is not None and numbers.is_text(kind):
        array = numbers.texts(array, column, where)
        _refuse_long_texts(array, "," if separator == JSON else separator, column, where)
        array = pc.if_else(
            pc.is_in(array, value_set=pa.array(data.missing, array.type)), None, array
        )
        if separator == JSON:
            array = _of_json(array, column, where, fractions)
        else:
            array = _split(array, separator, data.strip)
    if not numbers.has_values(array.type):
        return RowValues(array, None)
    values, lengths = numbers.listed(array)
    refuse_many(pa.array(lengths), limits.ROW_VALUES, "values", column, where)
    return RowValues(values, lengths)


def _refuse_long_texts(array: pa.Array, separator: str, column: str, where: Where) -> None:
    """Raise `BadRowsError` for texts that are too long, or have too many values, to be split."""
    sizes = refuse_many(pc.binary_length(array), limits.LINE_BYTES, "bytes", column, where)
    # A text of so many values is at least as many bytes long.
    if sizes.max(initial=0) >= limits.ROW_VALUES:
        counts = pc.add(pc.count_substring(array, separator), 1)
        refuse_many(counts, limits.ROW_VALUES, "values", column, where)


def _split(array: pa.Array, separator: str, strip: bool) -> pa.Array:
    split = pc.split_pattern(array, separator)
    if not strip:
        return split
    trimmed = pc.ascii_trim_whitespace(split.values)
    return type(split).from_arrays(split.offsets, trimmed, mask=split.is_null())


def _of_json(array: pa.Array, column: str, where: Where, fractions: bool) -> pa.Array:
    """JSON lists of texts, numbers and nulls: large_list<large_binary>, numbers as their text."""
    lists: list[list[bytes | None] | None] = []
    wrong = np.zeros(len(array), bool)
    for row, text in enumerate(array.cast(pa.large_binary()).to_pylist()):
        try:
            lists.append(None if text is None else _json_parts(text, fractions))
        except (ValueError, RecursionError):
            lists.append(None)
            wrong[row] = True
    kinds = "texts and numbers" if fractions else "texts and integers"
    refuse(
        wrong,
        where,
        lambda row: (
            f"{quoted(numbers.bytes_at(array, row))} is not a JSON list of {kinds}. Mend it, or "
            "add it to data.missing"
        ),
        column,
    )
    return pa.array(lists, pa.large_list(pa.large_binary()))


def _json_parts(text: bytes, fractions: bool) -> list[bytes | None] | None:
    values = json.loads(text.decode("utf-8", "surrogateescape"), parse_constant=_json_constant)
    if not isinstance(values, list | None):
        raise ValueError(text)
    return None if values is None else [_json_part(value, fractions) for value in values]


def _json_part(value: Any, fractions: bool) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape")
    if isinstance(value, bool) or not isinstance(value, int | (float if fractions else int)):
        raise ValueError(value)
    return repr(value).encode()


def _json_constant(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
