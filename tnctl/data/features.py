"""Arrow columns to ids, numbers and labels.

Strings are hashed where they lie in Arrow's buffers. Whether a value is missing is asked of its
id: two texts with one id are one feature to everything that follows, so nothing else is compared.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tnctl.data import numbers
from tnctl.data.bad_rows import BadRowsError
from tnctl.data.cells import BUCKETS, Cells, Encoder
from tnctl.data.reading import Where, columns_read, named, numeric_columns
from tnctl.data.statistics import Statistics
from tnctl.data.vectors import transformed, vectors
from tnctl.errors import UserError
from tnctl.schema import Conf, Label, Slot
from tnctl.tables import columns as c_columns

INDICATOR_MOST = 4096  # ids of a one-hot slot: as many numbers in x


@dataclass
class Window:
    """Consecutive rows of the data, or a batch of them, ready for the tables."""

    ids: list[NDArray[np.uint64]]  # per table: [n_ids], example after example, cell after cell
    offsets: list[NDArray[np.uint32]]  # per table: [rows * cells_of_an_example + 1]
    weights: list[NDArray[np.float32] | None]  # per table: one per id; None without weights
    numeric: NDArray[np.float32]  # [rows, N]: numeric inputs, transformed, then one-hot counts
    labels: NDArray[np.float32]  # [rows, number of labels]; zeros when read without
    weight: NDArray[np.float32] | None = None  # [rows], of each example
    reference: NDArray[np.float64] | None = None  # [rows], NaN where missing
    group: NDArray[np.uint64] | None = None  # [rows], the hash of data.group's value
    carried: pa.Table | None = None  # the columns asked for, as they are in the files

    @property
    def rows(self) -> int:
        """The number of examples."""
        return len(self.labels)


@dataclass
class Columns:
    """What a `Window` is made of, slot by slot; its other fields are the window's."""

    cells: dict[str, Cells]  # of every slot that has rows or is one-hot
    numeric: NDArray[np.float32]
    labels: NDArray[np.float32]
    weight: NDArray[np.float32] | None
    reference: NDArray[np.float64] | None
    group: NDArray[np.uint64] | None
    carried: pa.Table | None


class Features:
    """The way from Arrow columns to a `Window`, as the conf has it.

    `tables` has for each table its slots and of how many cells each is: one, or max_length for a
    sequence. `columns` are those to read. With `labelled` false there are no labels, weights,
    groups or references. Raises `UserError` for settings of a slot that do not go together.
    """

    def __init__(
        self,
        conf: Conf,
        tables: Sequence[tuple[Sequence[str], Sequence[int]]],
        statistics: Statistics,
        *,
        labelled: bool = True,
        carry: Sequence[str] = (),
    ) -> None:
        self.conf = conf
        self.tables = tables
        self.statistics = statistics
        self.labelled = labelled
        self.carry = tuple(carry)
        self.columns = list(dict.fromkeys([*columns_read(conf, labelled), *carry]))
        self._encoders = {
            name: Encoder(
                name,
                slot,
                conf.data,
                statistics.boundaries_of(name, slot) if slot.ids in BUCKETS else None,
                statistics.vocabulary_of(name, slot),
            )
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
        """The numbers of a row: those of numeric inputs, then of one-hot slots."""
        inputs = self.conf.numeric.values()
        return sum(one.numbers for one in inputs) + sum(self._indicators.values())

    def encode(self, table: pa.Table, where: Where) -> Window:
        """All rows of `table`, which has at least `self.columns`.

        `where` maps a row of the table to the file and the row there, for errors. Raises
        `BadRowsError` for a value that is not what its column must hold.
        """
        return self.window(self.read(table, where))

    def read(self, table: pa.Table, where: Where) -> Columns:
        """The same, slot by slot."""
        conf, data = self.conf, self.conf.data
        whole = {name: numbers.flat(table.column(name)) for name in self.columns}
        cells: dict[str, Cells] = {}
        for names, _ in self.tables:
            for name in names:
                self._encode(name, whole, cells, table.num_rows, where)
        for name in self._indicators:
            self._encode(name, whole, cells, table.num_rows, where)
        numeric = self._numeric(whole, cells, table.num_rows, where)
        known = data.all_labels.values()
        labels = np.zeros((table.num_rows, len(known)), np.float32)
        weight = reference = group = None
        if self.labelled:
            for number, label in enumerate(known):
                labels[:, number] = labels_of(whole[label.column], label, conf, where)
            if data.weight:
                weight = weights_of(whole[data.weight], conf, where)
            if data.reference:
                column = whole[data.reference]
                reference = numbers.parsed(column, data.missing, data.reference, where)
            if data.group:
                group = groups_of(whole[data.group], conf, where)
        carried = table.select(list(self.carry)) if self.carry else None
        return Columns(cells, numeric, labels, weight, reference, group, carried)

    def window(self, columns: Columns) -> Window:
        """The columns of all slots, table by table and example by example."""
        ids, offsets, weights = [], [], []
        for names, spreads in self.tables:
            cells = [columns.cells[name] for name in names]
            total = max(len(columns.labels) * sum(spreads), sum(len(one.ids) for one in cells))
            if total >= 2**31:
                raise UserError("a window holds over 2^31 ids. Take a smaller data.window")
            of_table = c_columns.interleave(
                [one.ids for one in cells],
                [one.offsets for one in cells],
                len(columns.labels),
                spreads,
                [one.weights for one in cells],
            )
            ids.append(of_table[0])
            offsets.append(of_table[1])
            weights.append(of_table[2])
        return Window(
            ids,
            offsets,
            weights,
            columns.numeric,
            columns.labels,
            columns.weight,
            columns.reference,
            columns.group,
            columns.carried,
        )

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
            crossed = [self._encode(one, whole, cells, rows, where) for one in slot.cross]
            cells[name] = encoder.crossed(crossed, rows)
        else:
            weights = None if slot.weights is None else whole[slot.weights]
            cells[name] = encoder.encode(whole[encoder.column], where, weights)
        return cells[name]

    def _numeric(
        self, whole: Mapping[str, pa.Array], cells: dict[str, Cells], rows: int, where: Where
    ) -> NDArray[np.float32]:
        inputs = self.conf.numeric
        out = np.empty((rows, self.numeric_width), np.float32)
        at = 0
        for name, numeric in inputs.items():
            values = vectors(whole, name, numeric, self.conf.data, where)
            moments = self.statistics.standardize.get(name)
            out[:, at : at + numeric.numbers] = transformed(values, numeric, moments)
            names = numeric_columns(name, numeric)
            for number in range(numeric.numbers):
                column = names[number] if numeric.columns is not None else names[0]
                numbers.refuse_infinite(out[:, at + number], values[:, number], column, where)
            at += numeric.numbers
        for name, width in self._indicators.items():
            out[:, at : at + width] = counts(cells[name], rows, width)
            at += width
        return out


def indicator_width(name: str, slot: Slot, statistics: Statistics) -> int:
    """How many numbers a one-hot slot is: one for each id that it can have.

    Raises `UserError` when there are over INDICATOR_MOST.
    """
    width = counted_ids(name, slot, statistics) or 0
    if width > INDICATOR_MOST:
        raise UserError(
            f"slots.{name}.indicator would be {width:,} numbers of every example. Take at most "
            f"{INDICATOR_MOST:,} ids, or rows (indicator=false)"
        )
    return width


def counted_ids(name: str, slot: Slot, statistics: Statistics) -> int | None:
    """How many ids a slot can have, when they are 0 .. n - 1; None for other ids."""
    own = 1 if slot.missing == "value" else 0
    if slot.ids in BUCKETS:
        boundaries = statistics.boundaries_of(name, slot)
        return (0 if boundaries is None else len(boundaries)) + 1 + own
    if slot.ids == "vocabulary":
        return len(statistics.vocabulary_of(name, slot) or ()) + slot.oov + own
    return slot.size


def counts(cells: Cells, rows: int, width: int) -> NDArray[np.float32]:
    """How often each id is in each row, or the sums of their weights: float32 [rows, width]."""
    places = np.repeat(np.arange(rows) * width, cells.lengths()) + cells.ids.astype(np.int64)
    found = np.bincount(places, cells.weights, rows * width)
    return found.reshape(rows, width).astype(np.float32)


def labels_of(column: pa.Array, label: Label, conf: Conf, where: Where) -> NDArray[np.float32]:
    """One label, float32 [rows]: in [0, 1], with train.loss=mse any finite number.

    Raises `BadRowsError` for a missing or another one.
    """
    missing = conf.data.missing
    if label.positive is not None:
        return _labels_of_texts(column, label.positive, missing, label.column, where)
    values = numbers.parsed(column, missing, label.column, where)
    if label.above is not None:
        wrong, allowed = np.isnan(values), "a number"
        way = "Mend or remove the row"
    elif conf.train.loss.name == "mse":
        with np.errstate(over="ignore"):
            wrong, allowed = ~np.isfinite(values.astype(np.float32)), "a finite number"
        way = "Mend or remove the row"
    else:
        wrong, allowed = ~((values >= 0) & (values <= 1)), "a number from 0 to 1"
        way = (
            "Mend or remove the row, or name the texts that count as 1 in data.label.positive, or "
            "the number above which they do in data.label.above"
        )
    if wrong.any():
        rows = np.flatnonzero(wrong)
        raise BadRowsError(
            f"{named(where(int(rows[0])))}: the label in column '{label.column}' must be "
            f"{allowed}. Received: {column[int(rows[0])].as_py()}. {way}",
            rows,
        )
    return (values if label.above is None else values > label.above).astype(np.float32)


def _labels_of_texts(
    column: pa.Array, positive: list[str], missing: list[str], name: str, where: Where
) -> NDArray[np.float32]:
    column = numbers.single(column, name, where)
    texts = pc.utf8_trim_whitespace(numbers.texts(column, name, where))
    absent = pc.is_in(texts, value_set=pa.array([*(text.strip() for text in missing), None]))
    if pc.any(absent).as_py():
        rows = np.flatnonzero(absent.to_numpy(zero_copy_only=False))
        raise BadRowsError(
            f"{named(where(int(rows[0])))}: the label in column '{name}' is missing. Mend or "
            "remove the row",
            rows,
        )
    found = pc.is_in(texts, value_set=pa.array([text.strip() for text in positive], pa.string()))
    return np.asarray(found.to_numpy(zero_copy_only=False), dtype=np.float32)


def weights_of(column: pa.Array, conf: Conf, where: Where) -> NDArray[np.float32]:
    """The weight of each example, float32 [rows]. Raises `BadRowsError` unless finite and >= 0."""
    name = conf.data.weight or ""
    values = numbers.parsed(column, conf.data.missing, name, where)
    with np.errstate(over="ignore"):
        found = values.astype(np.float32)
    wrong = ~(np.isfinite(found) & (found >= 0))
    if wrong.any():
        rows = np.flatnonzero(wrong)
        raise BadRowsError(
            f"{named(where(int(rows[0])))}: the weight in column '{name}' must be a finite "
            f"number, at least 0. Received: {column[int(rows[0])].as_py()}. Mend or remove the row",
            rows,
        )
    return found


def groups_of(column: pa.Array, conf: Conf, where: Where) -> NDArray[np.uint64]:
    """The hash of each value of data.group, uint64 [rows]; missing ones are one group."""
    name = conf.data.group or ""
    encoder = Encoder(name, Slot(missing="value"), conf.data)
    return encoder.encode(numbers.single(column, name, where), where).ids
