"""Arrow columns to ids, numbers and labels; prepared rows, which have ids already, to the same."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import ArrayLike, NDArray

from tnctl.data import Bools, Float32s, Float64s, Int64s, Uint64s, numbers
from tnctl.data.bad_rows import as_rows, refuse, refuse_large_window, refuse_long_rows
from tnctl.data.batches import Batch
from tnctl.data.column_names import columns_read, label_keys, value_columns, way_of_label
from tnctl.data.file_pieces import Where
from tnctl.data.formats.prepared_files import check_width
from tnctl.data.numbers import RowValues, flat, is_list, row_values
from tnctl.data.slot_encoder import ENCODERS, Cells, Encoder
from tnctl.data.statistics_document import Statistics
from tnctl.data.times import SECOND, since, times_of
from tnctl.errors import Failure, UserError, refuse_if
from tnctl.schema import UNITS, Conf, Data, Label, Numeric, Slot
from tnctl.tables import columns as c_columns

INDICATOR_MOST = 4096  # ids of a one-hot slot: as many numbers in x
Moments = tuple[ArrayLike, ArrayLike]  # mean and deviation, of all numbers of an input or of each


@dataclass
class EncodedRows:
    """Rows slot by slot."""

    cells: dict[str, Cells]  # of every slot that has rows or is one-hot
    batch: Batch  # all the rest; its tables are empty


class Features:
    """The way from Arrow columns to a `Batch`, as the conf has it.

    `tables` has for each table its slots and of how many cells each is: one, or max_length for a
    sequence. `columns` are those to read. With `labelled` false there are no labels, weights,
    groups or references. `missing_number` stands for a missing number without numeric.default.
    Raises `UserError` for settings of a slot that do not go together.
    """

    def __init__(
        self,
        conf: Conf,
        tables: Sequence[tuple[Sequence[str], Sequence[int]]],
        statistics: Statistics,
        *,
        labelled: bool = True,
        carry: Sequence[str] = (),
        missing_number: float = 0.0,
    ) -> None:
        self.conf = conf
        self.tables = tables
        self.statistics = statistics
        self.labelled = labelled
        self.carry = tuple(carry)
        self.missing_number = missing_number
        self.columns = list(dict.fromkeys([*columns_read(conf, labelled), *carry]))
        self._encoders = {
            name: Encoder(name, slot, conf.data, statistics.lists_of(name, slot))
            for name, slot in conf.slots.items()
        }
        self._of_columns = {
            column: Encoder(column, Slot(), conf.data)
            for slot in conf.slots.values()
            for column in slot.cross or ()
            if column not in conf.slots
        }
        self._indicators = {
            name: indicator_width(name, slot, statistics)
            for name, slot in conf.slots.items()
            if slot.indicator
        }

    @property
    def numeric_width(self) -> int:
        """The numbers of a row: of numeric inputs, then of one-hot slots."""
        inputs = [numeric.numbers for numeric in self.conf.numeric.values()]
        return sum(inputs) + sum(self._indicators.values())

    @property
    def missing_ids(self) -> dict[str, np.uint64]:
        """The id of missing values, of each slot that has one."""
        return {
            name: encoder.missing_id
            for name, encoder in self._encoders.items()
            if encoder.slot.missing == "value"
        }

    def encode(self, table: pa.Table, where: Where) -> Batch:
        """All rows of `table`, which has at least `self.columns`.

        `where` maps a row of the table to the file and the row there, for errors. Raises
        `BadRowsError` for a value that its column must not have.
        """
        return self.batch(self.read(table, where))

    def read(self, table: pa.Table, where: Where) -> EncodedRows:
        """All rows of `table`, as `encode` takes them, slot by slot."""
        data, rows = self.conf.data, table.num_rows
        whole = {name: numbers.flat(table.column(name)) for name in self.columns}
        cells: dict[str, Cells] = {}
        for name in [*(name for names, _ in self.tables for name in names), *self._indicators]:
            self._encode(name, whole, cells, rows, where)
        refuse_long_rows([of_slot.offsets for of_slot in cells.values()], where)
        labels = np.zeros((rows, len(data.all_labels)), np.float32)
        batch = Batch([], [], [], self._numeric(whole, cells, rows, where), labels)
        if self.labelled:
            squared = self.conf.train.loss.name == "mse"
            for index, (key, label) in enumerate(label_keys(data).items()):
                column = whole[label.column]
                labels[:, index] = labels_of(column, key, label, data.missing, squared, where)
            if data.weight:
                batch.weight = weights_of(whole[data.weight], data.weight, data.missing, where)
            if data.reference:
                column = whole[data.reference]
                batch.reference = numbers.parsed(column, data.missing, data.reference, where)
            if data.group:
                batch.group = groups_of(whole[data.group], data.group, data, where)
        batch.carried = table.select(list(self.carry)) if self.carry else None
        return EncodedRows(cells, batch)

    def batch(self, rows: EncodedRows) -> Batch:
        """The cells of all slots, table by table and example by example."""
        batch = replace(rows.batch, ids=[], offsets=[], weights=[])
        refuse_large_window(sum(len(cells.ids) for cells in rows.cells.values()))
        for names, spreads in self.tables:
            if batch.rows * sum(spreads) >= 2**31:
                raise UserError("a window has over 2^31 cells. Take a smaller data.window")
            slots = [rows.cells[name] for name in names]
            ids, offsets, weights = c_columns.interleave(
                [cells.ids for cells in slots],
                [cells.offsets for cells in slots],
                batch.rows,
                spreads,
                [cells.weights for cells in slots],
            )
            batch.ids.append(ids)
            batch.offsets.append(offsets)
            batch.weights.append(weights)
        return batch

    def _encode(
        self,
        name: str,
        whole: Mapping[str, pa.Array],
        cells: dict[str, Cells],
        rows: int,
        where: Where,
    ) -> Cells:
        """The cells of a slot, or of a plain column of a cross; kept in `cells`."""
        if name in cells:
            return cells[name]
        if name not in self.conf.slots:
            return self._of_columns[name].encode(whole[name], where)
        slot, encoder = self.conf.slots[name], self._encoders[name]
        if slot.cross is not None:
            crossed = [self._encode(part, whole, cells, rows, where) for part in slot.cross]
            cells[name] = encoder.crossed(crossed, rows, where)
        else:
            weights = None if slot.weights is None else whole[slot.weights]
            cells[name] = encoder.encode(whole[encoder.column], where, weights)
        return cells[name]

    def _numeric(
        self, whole: Mapping[str, pa.Array], cells: dict[str, Cells], rows: int, where: Where
    ) -> Float32s:
        columns = [counts(cells[name], rows, width) for name, width in self._indicators.items()]
        inputs = []
        for name, numeric in self.conf.numeric.items():
            values = vectors(whole, name, numeric, self.conf.data, where)
            moments = self.statistics.standardize.get(name)
            inputs.append(transformed(values, numeric, moments, self.missing_number))
            _refuse_infinite(inputs[-1], values, name, numeric, where)
        return np.concatenate([*inputs, *columns, np.empty((rows, 0), np.float32)], axis=1)


def indicator_width(name: str, slot: Slot, statistics: Statistics) -> int:
    """How many numbers a one-hot slot is: one for each id that it can have.

    Raises `UserError` when there are over INDICATOR_MOST.
    """
    width = counted_ids(name, slot, statistics) or 0
    refuse_if(
        width > INDICATOR_MOST,
        f"slots.{name}.indicator would be {width:,} numbers of every example. Take at most "
        f"{INDICATOR_MOST:,} ids, or rows (indicator=false)",
    )
    return width


def counted_ids(name: str, slot: Slot, statistics: Statistics) -> int | None:
    """How many ids a slot can have, when they are 0 .. n - 1; None for other ids."""
    return ENCODERS[slot.ids].count(slot, statistics.lists_of(name, slot))


def counts(cells: Cells, rows: int, width: int) -> Float32s:
    """How often each id is in each row, or the sums of their weights: float32 [rows, width]."""
    places = np.repeat(np.arange(rows) * width, cells.lengths()) + cells.ids.astype(np.int64)
    sums = np.bincount(places, cells.weights, rows * width)
    return sums.reshape(rows, width).astype(np.float32)


def labels_of(
    column: pa.Array, key: str, label: Label, missing: list[str], squared: bool, where: Where
) -> Float32s:
    """One label, float32 [rows]: in [0, 1], with `squared` (train.loss=mse) any finite number.

    `key` of the conf describes it. Raises `BadRowsError` for a label that is missing or out of
    range.
    """
    if label.positive is not None:
        return _labels_of_texts(column, label.positive, missing, label.column, where)
    values = numbers.parsed(column, missing, label.column, where, way_of_label(key))
    way = "Mend or remove the row"
    if label.above is not None:
        wrong, allowed = np.isnan(values), "a number"
    elif squared:
        with np.errstate(over="ignore"):
            wrong, allowed = ~np.isfinite(values.astype(np.float32)), "a finite number"
    else:
        wrong, allowed = ~((values >= 0) & (values <= 1)), "a number from 0 to 1"
        way += (
            f", or name the texts that count as 1 in {key}.positive, or the number above which "
            f"they do in {key}.above"
        )
    refuse(
        wrong,
        where,
        lambda row: (
            f"the label in column '{label.column}' must be {allowed}. Received: "
            f"{column[row].as_py()}. {way}"
        ),
    )
    return (values if label.above is None else values > label.above).astype(np.float32)


def _labels_of_texts(
    column: pa.Array, positive: list[str], missing: list[str], name: str, where: Where
) -> Float32s:
    texts = numbers.texts(numbers.single(column, name, where), name, where)
    texts = pc.utf8_trim_whitespace(texts)
    absent = pc.is_in(texts, value_set=pa.array([*(text.strip() for text in missing), None]))
    refuse(
        numbers.as_numpy(absent),
        where,
        lambda _: f"the label in column '{name}' is missing. Mend or remove the row",
    )
    ones = pc.is_in(texts, value_set=pa.array([text.strip() for text in positive], pa.string()))
    return np.asarray(numbers.as_numpy(ones), dtype=np.float32)


def weights_of(column: pa.Array, name: str, missing: list[str], where: Where) -> Float32s:
    """The weight of each example, float32 [rows]. Raises `BadRowsError` unless finite and >= 0."""
    with np.errstate(over="ignore"):
        weights = numbers.parsed(column, missing, name, where).astype(np.float32)
    refuse(
        ~(np.isfinite(weights) & (weights >= 0)),
        where,
        lambda row: (
            f"the weight in column '{name}' must be a finite number, at least 0. Received: "
            f"{column[row].as_py()}. Mend or remove the row"
        ),
    )
    return weights


def groups_of(column: pa.Array, name: str, data: Data, where: Where) -> Uint64s:
    """The hash of each value of data.group, uint64 [rows]; missing ones are one group."""
    encoder = Encoder(name, Slot(missing="value"), data)
    return encoder.encode(numbers.single(column, name, where), where).ids


def encoded_rows(features: Features, table: pa.Table, where: Where) -> EncodedRows:
    """The columns of prepared rows, as `Features.read` makes them from raw ones.

    Raises `UserError` for a column to carry that was not prepared, `BadRowsError` for too many ids
    in a row.
    """
    cells = {name: cells_of(table, name) for slots, _ in features.tables for name in slots}
    refuse_long_rows([of_slot.offsets for of_slot in cells.values()], where)
    names = features.conf.data.all_labels
    labels = np.zeros((table.num_rows, len(names)), np.float32)
    batch = Batch([], [], [], _stored_numbers(table, features.numeric_width), labels)
    if features.labelled:
        for index, name in enumerate(names):
            labels[:, index] = prepared_labels(table, name)
        for key in {"weight", "reference", "group"} & set(table.column_names):
            setattr(batch, key, _stored(table, key))
    batch.carried = _carried(features, table)
    return EncodedRows(cells, batch)


def prepared_encoder(features: Features) -> Callable[[pa.Table, Where], Batch]:
    """Prepared rows to a batch, in the place of `Features.encode`."""
    return lambda table, where: features.batch(encoded_rows(features, table, where))


def prepared_labels(table: pa.Table, name: str) -> Float32s:
    """One label of prepared rows, float32 [rows]."""
    return _stored(table, f"label_{name}")


def _stored(table: pa.Table, name: str) -> NDArray[Any]:
    return np.asarray(flat(table.column(name)).to_numpy())


def cells_of(table: pa.Table, name: str) -> Cells:
    """The cells of a slot, in Arrow's own memory where every row has one id."""
    array = flat(table.column(f"ids_{name}"))
    weights = None
    if (column := f"weights_{name}") in table.column_names:
        weights = _values(flat(table.column(column)))
    if is_list(array.type):
        offsets = array.offsets.to_numpy()
        return Cells(_values(array), offsets - offsets[0], weights)
    if array.null_count:
        offsets = numbers.offsets_of(numbers.as_numpy(array.is_valid()))
        return Cells(_values(array), offsets, weights)
    return Cells(_values(array), None, weights)


def _values(array: pa.Array) -> NDArray[Any]:
    """The values of all rows, one after the other."""
    if is_list(array.type):
        array = array.flatten()
    return np.asarray((array.drop_null() if array.null_count else array).to_numpy())


def _stored_numbers(table: pa.Table, expected: int) -> Float32s:
    if not expected:
        return np.empty((table.num_rows, 0), np.float32)
    array = flat(table.column("numeric"))
    check_width(array, expected)
    width = array.type.byte_width // 4
    values = np.frombuffer(array.buffers()[1], np.float32)
    return values[array.offset * width : (array.offset + len(array)) * width].reshape(-1, width)


def _carried(features: Features, table: pa.Table) -> pa.Table | None:
    for name in features.carry:
        refuse_if(
            f"carry_{name}" not in table.column_names,
            f"{features.conf.data.prepared} was prepared without the column '{name}' to "
            "carry. Prepare it again with data.carry",
        )
    if not features.carry:
        return None
    columns = [table.column(f"carry_{name}") for name in features.carry]
    return pa.table(columns, names=list(features.carry))


def vectors(
    columns: Mapping[str, pa.Array], name: str, numeric: Numeric, data: Data, where: Where
) -> Float64s:
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
) -> Float64s:
    """How long the times of columns are after another, float64 [rows, len(names)] in its unit."""

    def read(column: str) -> tuple[Int64s, Bools]:
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
    originals: Float64s,
    name: str,
    numeric: Numeric,
    where: Where,
) -> None:
    """Refuse numbers `stored` [rows, n] that are infinite as float32.

    `originals` are the numbers before that, for the message: infinite themselves, or too large.
    """
    names = value_columns(name, numeric)
    for index in range(originals.shape[1]):
        column = names[index] if numeric.columns is not None else names[0]
        numbers.refuse_infinite(stored[:, index], originals[:, index], column, where)


def _of_lists(
    lists: RowValues, name: str, column: str, width: int, data: Data, where: Where
) -> Float64s:
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
    with as_rows(lists.owners, where) as place:
        values = numbers.parsed(lists.values, [*data.missing, ""], column, place)
    vectors[lengths == width] = values.reshape(-1, width)
    return vectors


def transformed(
    values: Float64s,
    numeric: Numeric,
    moments: Moments | None,
    missing: float = 0.0,
) -> Float32s:
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
