"""Whether the columns of prepared rows are as docs/formats/prepared.md says."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from tnctl.data.numbers import flat
from tnctl.errors import Failure, quoted
from tnctl.schema import Conf

AGAIN = "Prepare the data again"
MOST = float(np.finfo(np.float32).max)
KINDS = {"weight": pa.float32(), "reference": pa.float64(), "group": pa.uint64()}


def check(conf: Conf, table: pa.Table, url: str) -> None:
    """Raise Failure for a column that is absent, or that tnctl cannot have written.

    What reads the columns does not look at types again: it would read memory beyond them.
    """
    for name, slot in conf.slots.items():
        if not slot.indicator:
            ids = _cells(table, url, f"ids_{name}", pa.uint64())
            if slot.weights is not None:
                weights = _cells(table, url, f"weights_{name}", pa.float32())
                if not _same_places(ids, weights):
                    raise _wrong(url, f"weights_{name}", "should have a weight for each id")
    if conf.numeric or any(slot.indicator for slot in conf.slots.values()):
        numeric = _column(table, url, "numeric")
        if not pt.is_fixed_size_binary(numeric.type) or numeric.type.byte_width % 4:
            raise _wrong(url, "numeric", f"should be of 4 bytes a number. It has {numeric.type}")
        _refuse_nulls(numeric, url, "numeric")
    least, most = (-MOST, MOST) if conf.train.loss.name == "mse" else (0.0, 1.0)
    for name in conf.data.all_labels:
        label = _values(table, url, f"label_{name}", pa.float32())
        if not _within(label, least, most):
            raise _wrong(url, f"label_{name}", f"should have labels from {least:g} to {most:g}")
    for key, kind in KINDS.items():
        if getattr(conf.data, key) is not None:
            column = _values(table, url, key, kind)
            if key == "weight" and not _within(column, 0, MOST):
                raise _wrong(url, key, "should have finite numbers, at least 0")


def check_width(array: pa.Array, width: int) -> None:
    """Raise Failure unless the column `numeric`, binary [rows], has `width` float32 in each row."""
    if array.type.byte_width != 4 * width:
        raise Failure(
            f"prepared data has {array.type.byte_width // 4} numbers in each row of column "
            f"'numeric', the conf {width}. {AGAIN}"
        )


def _column(table: pa.Table, url: str, name: str) -> pa.Array:
    if table.column_names.count(name) != 1:
        raise _wrong(url, name, "should be there once")
    return flat(table.column(name))


def _cells(table: pa.Table, url: str, name: str, kind: pa.DataType) -> pa.Array:
    """A column of rows with one value, none or one, or a list of values, which has no nulls."""
    array = _column(table, url, name)
    if array.type == kind:
        return array
    if not pt.is_list(array.type) or array.type.value_type != kind:
        raise _wrong(url, name, f"should be {kind}, or lists of it. It has {array.type}")
    _refuse_nulls(array, url, name)
    _refuse_nulls(array.flatten(), url, name)
    return array


def _same_places(ids: pa.Array, weights: pa.Array) -> bool:
    """Whether every row has as many weights as ids."""
    if pt.is_list(ids.type) != pt.is_list(weights.type):
        return False
    if pt.is_list(ids.type):
        return bool(pc.list_value_length(ids).equals(pc.list_value_length(weights)))
    return bool(ids.is_valid().equals(weights.is_valid()))


def _values(table: pa.Table, url: str, name: str, kind: pa.DataType) -> pa.Array:
    """A column of one value in every row."""
    array = _column(table, url, name)
    if array.type != kind:
        raise _wrong(url, name, f"should be {kind}. It has {array.type}")
    _refuse_nulls(array, url, name)
    return array


def _refuse_nulls(array: pa.Array, url: str, name: str) -> None:
    if array.null_count:
        raise _wrong(url, name, "should have a value in every row")


def _within(array: pa.Array, least: float, most: float) -> bool:
    values = array.to_numpy()
    return bool(((values >= least) & (values <= most)).all())  # NaN is neither


def _wrong(url: str, name: str, what: str) -> Failure:
    return Failure(f"{url}: column {quoted(name)} {what}. {AGAIN}")
