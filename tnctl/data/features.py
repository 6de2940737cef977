"""Arrow columns to ids, numbers and labels.

Strings are hashed where they lie in Arrow's buffers. Whether a value is missing is asked of its
id: two texts with one id are one feature to everything that follows, so nothing else is compared.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tnctl.data import numbers
from tnctl.data.cells import Cells, Encoder
from tnctl.data.reading import Where, columns_read, numeric_column, slot_column
from tnctl.errors import Failure, UserError
from tnctl.schema import Conf, Numeric
from tnctl.tables import columns as c_columns

if TYPE_CHECKING:
    from tnctl.data.statistics import Statistics


@dataclass
class Window:
    """Consecutive rows of the data, or a batch of them, ready for the tables."""

    ids: list[np.ndarray]  # per table: uint64 [n_ids], example after example, slot after slot
    offsets: list[np.ndarray]  # per table: uint32 [rows * n_slots_of_table + 1]
    numeric: np.ndarray  # float32 [rows, len(conf.numeric)], transformed
    labels: np.ndarray  # float32 [rows]
    reference: np.ndarray | None  # float64 [rows], NaN where missing

    @property
    def rows(self) -> int:
        """The number of examples."""
        return len(self.labels)


class Features:
    """The way from Arrow columns to a `Window`, as the conf has it.

    `tables` names the slots of each table, in order. Raises `UserError` for settings of a slot
    that do not go together.
    """

    def __init__(
        self, conf: Conf, tables: Sequence[Sequence[str]], statistics: "Statistics"
    ) -> None:
        self.conf = conf
        self.tables = tables
        self.statistics = statistics
        self.columns = columns_read(conf)
        self._encoders = {
            name: Encoder(name, slot, conf.data, statistics.boundaries.get(name))
            for name, slot in conf.slots.items()
        }

    def encode(self, table: pa.Table, where: Where) -> Window:
        """All rows of `table`, which has at least `self.columns`.

        `where` maps a row of the table to the file and the row there, for errors. Raises
        `Failure` for a value that is not what its column must hold.
        """
        whole = {name: flat(table.column(name)) for name in self.columns}
        rows = table.num_rows
        data = self.conf.data
        cells = [self._table(slots, whole, rows, where) for slots in self.tables]
        reference = None
        if data.reference:
            reference = numbers.parsed(whole[data.reference], data.missing, data.reference, where)
        return Window(
            [ids for ids, _ in cells],
            [offsets for _, offsets in cells],
            self._numeric(whole, rows, where),
            labels(whole[data.label.column], self.conf, where),
            reference,
        )

    def _table(
        self, slots: Sequence[str], whole: dict[str, pa.Array], rows: int, where: Where
    ) -> tuple[np.ndarray, np.ndarray]:
        cells: list[Cells] = []
        for name in slots:
            column = slot_column(name, self.conf.slots[name])
            cells.append(self._encoders[name].encode(whole[column], where))
        if max(rows * len(slots), sum(len(ids) for ids, _ in cells)) >= 2**31:
            raise UserError("a window holds over 2^31 ids. Take a smaller data.window")
        return c_columns.interleave([ids for ids, _ in cells], [offs for _, offs in cells], rows)

    def _numeric(self, whole: dict[str, pa.Array], rows: int, where: Where) -> np.ndarray:
        out = np.empty((rows, len(self.conf.numeric)), np.float32)
        for index, (name, numeric) in enumerate(self.conf.numeric.items()):
            column = numeric_column(name, numeric)
            values = numbers.parsed(whole[column], self.conf.data.missing, column, where)
            out[:, index] = transformed(values, numeric, self.statistics.standardize.get(name))
            numbers.refuse_infinite(out[:, index], values, column, where)
        return out


def flat(column: pa.ChunkedArray) -> pa.Array:
    """A column as one array, copied only when it has several chunks."""
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def transformed(
    values: np.ndarray, numeric: Numeric, moments: tuple[float, float] | None
) -> np.ndarray:
    """Numbers (float64 [n], NaN where missing) after the default and the transform."""
    missing = np.isnan(values)
    after = 0.0
    if numeric.default is not None:
        values = np.where(missing, numeric.default, values)
        missing = np.zeros_like(missing)
    if numeric.transform == "log1p":
        values = np.sign(values) * np.log1p(np.abs(values))
    elif numeric.transform == "standardize":
        if moments is None:
            raise UserError("standardize needs the measured statistics of data.train")
        values = (values - moments[0]) / moments[1]
    with np.errstate(over="ignore"):
        return np.where(missing, after, values).astype(np.float32)


def labels(column: pa.Array, conf: Conf, where: Where) -> np.ndarray:
    """Labels, float32 [rows] in [0, 1]. Raises `Failure` for a missing or another one."""
    label = conf.data.label
    if label.positive is not None:
        return _labels_of_texts(column, label.positive, conf.data.missing, label.column, where)
    values = numbers.parsed(column, conf.data.missing, label.column, where)
    wrong = ~((values >= 0) & (values <= 1))
    if wrong.any():
        row = int(wrong.argmax())
        url, number = where(row)
        raise Failure(
            f"{url}, row {number}: the label in column '{label.column}' must be a number from 0 "
            f"to 1. Received: {column[row].as_py()}. Mend or remove the row, or name the texts "
            "that count as 1 in data.label.positive"
        )
    return values.astype(np.float32)


def _labels_of_texts(
    column: pa.Array, positive: list[str], missing: list[str], name: str, where: Where
) -> np.ndarray:
    texts = pc.utf8_trim_whitespace(numbers.texts(column, name, where))
    absent = pc.is_in(texts, value_set=pa.array([*(text.strip() for text in missing), None]))
    if pc.any(absent).as_py():
        row = absent.index(True).as_py()
        url, number = where(row)
        raise Failure(
            f"{url}, row {number}: the label in column '{name}' is missing. Mend or remove the row"
        )
    found = pc.is_in(texts, value_set=pa.array([text.strip() for text in positive], pa.string()))
    return np.asarray(found.to_numpy(zero_copy_only=False), dtype=np.float32)
