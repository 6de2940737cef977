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
    """Raise Failure for a column that is not there, or that nothing of tnctl could have written.

    Else what reads the columns would take other memory than theirs: it looks at types no more.
    """
    for name, slot in conf.slots.items():
        if not slot.indicator:
            ids = _column(table, url, f"ids_{name}")
            _check_cells(ids, pa.uint64(), url, f"ids_{name}")
            if slot.weights is not None:
                weights = _column(table, url, f"weights_{name}")
                _check_cells(weights, pa.float32(), url, f"weights_{name}")
                if not _same_places(ids, weights):
                    raise _wrong(url, f"weights_{name}", "should have a weight for each id")
    if conf.numeric or any(slot.indicator for slot in conf.slots.values()):
        numeric = _column(table, url, "numeric")
        if not pt.is_fixed_size_binary(numeric.type) or numeric.type.byte_width % 4:
            raise _wrong(url, "numeric", f"should be of 4 bytes a number. It has {numeric.type}")
        _refuse_nulls(numeric, url, "numeric")
    for name in conf.data.all_labels:
        _check_label(conf, _column(table, url, f"label_{name}"), url, f"label_{name}")
    for key, kind in (
        ("weight", pa.float32()),
        ("reference", pa.float64()),
        ("group", pa.uint64()),
    ):
        if getattr(conf.data, key) is not None:
            column = _column(table, url, key)
            _check_type(column, kind, url, key)
            if key == "weight" and not _within(column, 0, MOST):
                raise _wrong(url, key, "should have finite numbers, at least 0")


def check_width(array: pa.Array, width: int) -> None:
    """Raise Failure unless the rows of the column `numeric` have so many numbers."""
    if array.type.byte_width != 4 * width:
        raise Failure(
            f"prepared data has {array.type.byte_width // 4} numbers in each row of column "
            f"'numeric', the conf {width}. {AGAIN}"
        )


def _column(table: pa.Table, url: str, name: str) -> pa.Array:
    if table.column_names.count(name) != 1:
        raise _wrong(url, name, "should be there once")
    return flat(table.column(name))


def _check_cells(array: pa.Array, kind: pa.DataType, url: str, name: str) -> None:
    """Values of rows: one, none or one, or a list, which has no nulls."""
    if array.type == kind:
        return
    if not pt.is_list(array.type) or array.type.value_type != kind:
        raise _wrong(url, name, f"should be {kind}, or lists of it. It has {array.type}")
    _refuse_nulls(array, url, name)
    _refuse_nulls(array.flatten(), url, name)


def _same_places(ids: pa.Array, weights: pa.Array) -> bool:
    """Whether every row has as many weights as ids."""
    if pt.is_list(ids.type) != pt.is_list(weights.type):
        return False
    if pt.is_list(ids.type):
        return bool(pc.list_value_length(ids).equals(pc.list_value_length(weights)))
    return bool(ids.is_valid().equals(weights.is_valid()))


def _check_label(conf: Conf, array: pa.Array, url: str, name: str) -> None:
    _check_type(array, pa.float32(), url, name)
    least, most = (-MOST, MOST) if conf.train.loss.name == "mse" else (0.0, 1.0)
    if not _within(array, least, most):
        raise _wrong(url, name, f"should have labels from {least:g} to {most:g}")


def _check_type(array: pa.Array, kind: pa.DataType, url: str, name: str) -> None:
    if array.type != kind:
        raise _wrong(url, name, f"should be {kind}. It has {array.type}")
    _refuse_nulls(array, url, name)


def _refuse_nulls(array: pa.Array, url: str, name: str) -> None:
    if array.null_count:
        raise _wrong(url, name, "should have a value in every row")


def _within(array: pa.Array, least: float, most: float) -> bool:
    values = array.to_numpy()
    return bool(((values >= least) & (values <= most)).all())  # NaN is neither


def _wrong(url: str, name: str, what: str) -> Failure:
    return Failure(f"{url}: column {quoted(name)} {what}. {AGAIN}")
