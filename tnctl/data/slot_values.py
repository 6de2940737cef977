"""The values of a slot as its data has them, beside the ids that they become."""

from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tnctl.data import numbers
from tnctl.data.bad_rows import owned
from tnctl.data.file_pieces import Where
from tnctl.data.id_encoders import ENCODERS, Lists, hashes, prepared
from tnctl.data.row_values import row_values
from tnctl.schema import Data, Slot


class NamedIds(NamedTuple):
    """Ids and the values that they were made of, each value once."""

    ids: NDArray[np.uint64]  # [n]
    values: pa.LargeStringArray  # [n]; null is any missing value
    not_text: int = 0  # distinct values that were left out because they are not UTF-8


class SlotValues:
    """Reads the values of one slot: before padding, max_length and pooling.

    Raises `UserError` when the settings of the slot and its `lists` do not go together.
    """

    def __init__(self, name: str, slot: Slot, data: Data, lists: Lists) -> None:
        self._slot, self._data, self._lists = slot, data, lists
        self._ids = ENCODERS[slot.ids](name, slot, data, lists)
        self.column = self._ids.column

    @property
    def of_buckets(self) -> bool:
        """Whether ids are those of intervals, which no data need tell."""
        return self._lists.boundaries is not None

    def known(self) -> NamedIds:
        """What needs no data: the id of missing values, and the intervals of buckets."""
        ids: list[int] = []
        values: list[str | None] = []
        if self._lists.boundaries is not None:
            values += intervals(self._lists.boundaries)
            ids += range(len(values))
        if self._slot.missing == "value":
            ids.append(self._ids.missing_id)
            values.append(None)
        return NamedIds(np.array(ids, np.uint64), pa.array(values, pa.large_string()))

    def read(self, array: pa.Array, where: Where) -> NamedIds:
        """The values of a column [rows] that are not missing; integers are decimal texts.

        Raises `BadRowsError` for a value that cannot be an id, `UserError` for another type.
        """
        values = row_values(
            array, self._slot.separator, self._data, self.column, where, self._slot.kind.of_numbers
        )
        with owned(values.owners, where) as place:
            encoded = self._ids.encode(values.values, place, values.owners is not None)
            plain = numbers.plain(values.values)
            if pa.types.is_temporal(plain.type) or pa.types.is_floating(plain.type):
                plain = plain.cast(pa.string())
            texts = prepared(plain, self.column, place)
        if pa.types.is_null(texts.type):
            return NamedIds(np.empty(0, np.uint64), pa.array([], pa.large_string()))
        present = np.arange(len(texts))
        if encoded.missing is not None:
            present = np.flatnonzero(~encoded.missing)
        _, first = np.unique(text_hashes(texts)[present], return_index=True)
        distinct = present[np.sort(first)]
        return _as_text(encoded.ids[distinct], texts.take(pa.array(distinct)))


def _as_text(ids: NDArray[np.uint64], values: pa.Array) -> NamedIds:
    """The values [n] as text, without those that are not UTF-8."""
    if pa.types.is_integer(values.type):
        return NamedIds(ids, values.cast(pa.string()).cast(pa.large_string()))
    encoded = values.cast(pa.large_binary())
    try:
        return NamedIds(ids, encoded.cast(pa.large_string()))
    except pa.ArrowInvalid:
        bad = numbers.bad_places(encoded, pa.large_string(), most=len(encoded))
        kept = np.delete(np.arange(len(ids)), bad)
        texts = encoded.take(pa.array(kept)).cast(pa.large_string())
        return NamedIds(ids[kept], texts, len(bad))


def text_hashes(values: pa.Array) -> NDArray[np.uint64]:
    """The hash of each value [n] with seed 0, uint64 [n]; 0 where null."""
    hashed = hashes(values, 0)
    if values.null_count:
        hashed = np.where(values.is_null().to_numpy(zero_copy_only=False), np.uint64(0), hashed)
    return hashed


def intervals(boundaries: NDArray[np.float64]) -> list[str]:
    """The numbers of each bucket: `(-inf, b0)`, `[b0, b1)`, …, `[bn, inf)`."""
    ends = [repr(float(boundary)) for boundary in boundaries]
    starts = ["(-inf", *(f"[{end}" for end in ends)]
    return [f"{start}, {end})" for start, end in zip(starts, [*ends, "inf"], strict=True)]
