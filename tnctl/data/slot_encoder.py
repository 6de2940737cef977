"""The column of one slot to its cells: zero, one or many ids per row."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from numpy.typing import NDArray

from tnctl.data import numbers
from tnctl.data.bad_rows import owned, refuse
from tnctl.data.column_names import takes_fractions
from tnctl.data.file_pieces import Where
from tnctl.data.id_encoders import ENCODERS, Ids, Lists, hashes
from tnctl.data.row_limits import refuse_large_window, refuse_many_ids
from tnctl.data.row_values import RowValues, row_values
from tnctl.errors import UserError
from tnctl.schema import Data, Slot
from tnctl.tables import columns as c_columns


class Cells(NamedTuple):
    """One slot, all rows."""

    ids: NDArray[np.uint64]  # [ids], row after row
    offsets: NDArray[np.int32] | None  # [rows + 1]; None when every row has exactly one id
    weights: NDArray[np.float32] | None  # [ids], only for slots with weights
    empty: int = 0  # rows whose only id is that of missing values

    def lengths(self) -> NDArray[np.int64]:
        """How many ids each row has, int64 [rows]."""
        if self.offsets is None:
            return np.ones(len(self.ids), np.int64)
        return np.diff(self.offsets).astype(np.int64)


class Encoder:
    """One slot: how its values become ids, and which of them a row keeps.

    A null, an empty part or element, and a text of data.missing are missing; so is a value that
    has no id (outside the vocabulary without oov, or from `size` on). Missing values and padding
    are left out, then all but max_length. A row that is left without an id has with missing=value
    one: the id of missing values. In a sequence (pooling=none) missing=value keeps every missing
    value in its place instead, and a row without values stays empty.

    `lists` are what its kind of ids needs. Raises `UserError` when the settings do not go together.
    """

    def __init__(self, name: str, slot: Slot, data: Data, lists: Lists = Lists()) -> None:  # noqa: B008
        self.name, self.slot, self.data = name, slot, data
        self.ids = ENCODERS[slot.ids](name, slot, data, lists)
        self.column = self.ids.column
        self._fractions = takes_fractions(name, slot, data)
        self.missing_id = np.uint64(self.ids.missing_id)
        if slot.missing == "value" and slot.padding == self.missing_id:
            raise UserError(
                f"slots.{name}: padding={slot.padding} is the id of missing values. Leave out "
                "padding or missing=value"
            )

    def encode(self, array: pa.Array, where: Where, weights: pa.Array | None = None) -> Cells:
        """The cells of a column [rows], with their weights if a column of weights [rows] is given.

        Raises `BadRowsError` for a value that cannot be an id, and for weights that do not fit.
        """
        slot = self.slot
        values = row_values(array, slot.separator, self.data, self.column, where, self._fractions)
        if slot.pooling == "none" and values.lengths is None:
            values = self._listed(values.values)
        column: NDArray[np.float64] | None = None
        if weights is not None:
            values, column = self._weighted(values, weights, where)
        owners = values.owners
        with owned(owners, where) as place:
            ids = self.ids.encode(values.values, place, owners is not None)
            finite = None if column is None else self._finite(column, ids.missing, place)
        return self._cells(ids, values.lengths, owners, finite)

    def _listed(self, array: pa.Array) -> RowValues:
        """The single values of a sequence as lists: of a value that is missing, an empty list.

        So a null is the same whether others of its column are lists, values or nulls.
        """
        array = numbers.plain(array)
        missing = np.asarray(array.is_null().to_numpy(zero_copy_only=False))
        if numbers.is_text(array.type) or pt.is_integer(array.type):
            missing = missing | np.isin(hashes(array, self.slot.seed), self.ids.missing_texts)
        elif pt.is_floating(array.type):
            missing = missing | np.isnan(array.to_numpy(zero_copy_only=False))
        return RowValues(array.filter(pa.array(~missing)), (~missing).astype(np.int64))

    def crossed(self, crossed: Sequence[Cells], rows: int, where: Where) -> Cells:
        """The cells of a cross: every combination of the ids of the others.

        Raises `BadRowsError` for too many in a row, `UserError` for too many of all rows.
        """
        if any(cells.offsets is not None for cells in crossed):
            counts = np.prod([cells.lengths() for cells in crossed], axis=0, dtype=np.float64)
            refuse_many_ids(counts, f"slots.{self.name} crosses", where)
            refuse_large_window(float(counts.sum()))
        hashed, offsets = c_columns.cross(
            [cells.ids for cells in crossed],
            [cells.offsets for cells in crossed],
            rows,
            self.slot.seed,
        )
        ids = self.ids.of_hashes(Ids(hashed, None))
        if offsets is None:
            return self._cells(ids, None, None, None)
        lengths = np.diff(offsets).astype(np.int64)
        return self._cells(ids, lengths, np.repeat(np.arange(rows), lengths), None)

    def _cells(
        self,
        encoded: Ids,
        lengths: NDArray[np.int64] | None,
        owners: NDArray[np.int64] | None,
        weights: NDArray[np.float32] | None,
    ) -> Cells:
        """The ids of all rows without those that are missing or padding, or beyond max_length."""
        slot, (ids, missing) = self.slot, encoded
        keeps_place = slot.missing == "value" and slot.pooling == "none"
        fills_rows = slot.missing == "value" and slot.pooling != "none"
        if keeps_place and missing is not None:
            ids, missing = np.where(missing, self.missing_id, ids), None
        if slot.padding is not None:
            missing = Ids(ids, missing).without(ids == np.uint64(slot.padding)).missing
        if missing is not None and not missing.any():
            missing = None
        if lengths is None or owners is None:
            if missing is None:
                return Cells(ids, None, weights)
            if fills_rows:
                weights = None if weights is None else np.where(missing, np.float32(1), weights)
                filled = np.where(missing, self.missing_id, ids)
                return Cells(filled, None, weights, int(missing.sum()))
            lengths = (~missing).astype(np.int64)
            return Cells(ids[~missing], _offsets(lengths), _kept(weights, ~missing))
        if missing is not None:
            ids, weights = ids[~missing], _kept(weights, ~missing)
            lengths = np.bincount(owners[~missing], minlength=len(lengths))
        if slot.max_length is not None and (lengths > slot.max_length).any():
            kept = _within(lengths, slot.max_length, slot.keep)
            ids, weights = ids[kept], _kept(weights, kept)
            lengths = np.minimum(lengths, slot.max_length)
        empty = 0
        if fills_rows and (bare := lengths == 0).any():
            empty = int(bare.sum())
            starts = (np.cumsum(lengths) - lengths)[bare]
            ids = np.insert(ids, starts, self.missing_id)
            weights = None if weights is None else np.insert(weights, starts, np.float32(1))
            lengths = np.where(bare, 1, lengths)
        return Cells(ids, None if (lengths == 1).all() else _offsets(lengths), weights, empty)

    def _weighted(
        self, values: RowValues, weights: pa.Array, where: Where
    ) -> tuple[RowValues, NDArray[np.float64]]:
        """The values, and as many weights; NaN where missing."""
        column = self.slot.weights or ""
        given = row_values(weights, self.slot.separator, self.data, column, where, fractions=True)
        if values.lengths is not None or given.lengths is not None:
            values, given = values.listed(), given.listed()
            counts, expected = np.asarray(given.lengths), np.asarray(values.lengths)
            refuse(
                counts != expected,
                where,
                lambda row: (
                    f"column '{self.column}' has {expected[row]} values and column '{column}' "
                    f"{counts[row]} weights. Mend the row, or leave out slots.{self.name}.weights"
                ),
            )
        with owned(given.owners, where) as place:
            missing = [*self.data.missing, ""]
            return values, numbers.parsed(given.values, missing, column, place)

    def _finite(
        self, weights: NDArray[np.float64], missing: NDArray[np.bool_] | None, where: Where
    ) -> NDArray[np.float32]:
        """The weights of values, which must be finite where a value is."""
        with np.errstate(over="ignore"):
            finite = weights.astype(np.float32)
        wrong = ~np.isfinite(finite)
        refuse(
            wrong if missing is None else wrong & ~missing,
            where,
            lambda value: (
                "the weight of a value must be a finite number. Received: "
                f"{'none' if np.isnan(weights[value]) else weights[value]}. Mend the row"
            ),
            self.slot.weights,
        )
        return finite


def _offsets(lengths: NDArray[np.int64]) -> NDArray[np.int32]:
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def _kept(
    weights: NDArray[np.float32] | None, kept: NDArray[np.bool_]
) -> NDArray[np.float32] | None:
    return None if weights is None else weights[kept]


def _within(lengths: NDArray[np.int64], most: int, keep: str) -> NDArray[np.bool_]:
    """Which values max_length keeps."""
    places = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    if keep == "last":
        places = np.repeat(lengths, lengths) - 1 - places
    return places < most
