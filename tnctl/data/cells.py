"""The column of one slot to its cells: zero, one or many ids per row."""

import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from tnctl.data import numbers
from tnctl.data.reading import Where
from tnctl.errors import UserError
from tnctl.schema import Data, Slot
from tnctl.tables import columns as c_columns

# Ids (uint64), and offsets (int32 [rows + 1]), or None when every row has exactly one id.
Cells = tuple[np.ndarray, np.ndarray | None]
DECIMAL = re.compile(r"-?[0-9]+")


class Encoder:
    """One slot: how its values become ids.

    A null, an empty part or element, and a text of data.missing are missing. A row without any
    value has no id, or with missing=value one: that of the empty text, or the bucket after the
    last. Raises `UserError` when the settings do not go together.
    """

    def __init__(self, name: str, slot: Slot, data: Data, boundaries: np.ndarray | None) -> None:
        if slot.ids == "quantiles" and boundaries is None:
            raise UserError(f"slots.{name}: ids=quantiles needs the boundaries of data.train")
        self.name = name
        self.slot = slot
        self.data = data
        self.boundaries = boundaries
        self.missing_id = np.uint64(c_columns.hash_bytes(b"", slot.seed))
        texts = [text.encode() for text in data.missing]
        hashed = [c_columns.hash_bytes(text, slot.seed) for text in texts]
        self.missing_ids = np.unique(np.array(hashed, np.uint64))
        self.missing_parts = np.union1d(self.missing_ids, self.missing_id)

    def encode(self, array: pa.Array, where: Where) -> Cells:
        """The cells of all rows of a column. Raises `Failure` for a value that cannot be an id."""
        if self.slot.ids == "quantiles":
            return self._quantiles(array, where)
        if self.slot.separator is not None and numbers.is_text(numbers.plain(array).type):
            array = self._split(numbers.texts(array, self.slot.column or self.name, where))
        if pt.is_list(array.type) or pt.is_large_list(array.type):
            return self._lists(array, where)
        if pt.is_fixed_size_list(array.type):
            return self._lists(array.cast(pa.large_list(array.type.value_type)), where)
        ids, missing = self._ids(array, self.missing_ids, where)
        return self._without_missing(ids, missing)

    def _without_missing(self, ids: np.ndarray, missing: np.ndarray | None) -> Cells:
        if missing is None or not missing.any():
            return ids, None
        if self.slot.missing == "value":
            return np.where(missing, self.missing_id, ids), None
        offsets = np.zeros(len(ids) + 1, np.int32)
        np.cumsum(~missing, out=offsets[1:])
        return ids[~missing], offsets

    def _split(self, array: pa.Array) -> pa.Array:
        """Text to a list of its parts."""
        parts = pc.split_pattern(array, self.slot.separator)
        if not self.data.strip:
            return parts
        trimmed = pc.ascii_trim_whitespace(parts.values)
        return type(parts).from_arrays(parts.offsets, trimmed, mask=parts.is_null())

    def _lists(self, array: pa.Array, where: Where) -> Cells:
        lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy()
        owners = np.repeat(np.arange(len(array)), lengths)
        parts = pc.list_flatten(array)
        place = lambda part: where(int(owners[part]))  # noqa: E731
        ids, missing = self._ids(parts, self.missing_parts, place)
        if missing is not None and missing.any():
            ids, owners = ids[~missing], owners[~missing]
            lengths = np.bincount(owners, minlength=len(array))
        if self.slot.missing == "value" and (bare := lengths == 0).any():
            starts = np.cumsum(lengths) - lengths
            ids = np.insert(ids, starts[bare], self.missing_id)
            lengths = np.where(bare, 1, lengths)
        offsets = np.zeros(len(array) + 1, np.int32)
        np.cumsum(lengths, out=offsets[1:])
        return ids, offsets

    def _ids(
        self, array: pa.Array, missing_ids: np.ndarray, where: Where
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """One id per value (any, where missing), and where values are missing."""
        if pt.is_dictionary(array.type):
            return self._ids_of_dictionary(array, missing_ids, where)
        array = numbers.plain(array)
        kind = array.type
        if pt.is_null(kind):
            return np.zeros(len(array), np.uint64), np.ones(len(array), bool)
        if not (numbers.is_text(kind) or pt.is_integer(kind)):
            raise self._refused(kind, where)
        hashed = hashes(array, self.slot.seed)
        missing = _missing(array, hashed, missing_ids)
        if self.slot.ids == "hash":
            return hashed, missing
        return self._integers(array, missing, where), missing

    def _ids_of_dictionary(
        self, array: pa.DictionaryArray, missing_ids: np.ndarray, where: Where
    ) -> tuple[np.ndarray, np.ndarray | None]:
        indices = array.indices.fill_null(0).to_numpy(zero_copy_only=False)
        missing = _nulls(array.indices)
        if not len(array.dictionary):
            return np.zeros(len(array), np.uint64), missing
        # A bad entry is told with the first row that has it.
        place = lambda entry: where(int((indices == entry).argmax()))  # noqa: E731
        ids, absent = self._ids(array.dictionary, missing_ids, place)
        if absent is not None:
            absent = absent[indices]
            missing = absent if missing is None else missing | absent
        return ids[indices], missing

    def _refused(self, kind: pa.DataType, where: Where) -> UserError:
        column = self.slot.column or self.name
        way = f"read it with numeric.{self.name}, or slots.{self.name}.ids=quantiles"
        if not pt.is_floating(kind):
            way = "write it as text or integers"
        return UserError(
            f"{where(0)[0]}: column '{column}' is {kind}, and ids are made of text or integers; "
            f"{way}"
        )

    def _integers(self, array: pa.Array, missing: np.ndarray | None, where: Where) -> np.ndarray:
        """Integers as they are, modulo 2^64; text as its decimal number."""
        if pt.is_integer(array.type):
            return _words(array)
        array = numbers.texts(array, self.slot.column or self.name, where)
        if missing is not None:
            array = pc.if_else(pa.array(missing), None, array)
        for kind in (pa.int64(), pa.uint64()):
            try:
                # Arrow takes hexadecimal too, which the other formats and the C part do not.
                if not pc.any(pc.match_substring(array, "x", ignore_case=True)).as_py():
                    return _words(pc.cast(array, kind))
            except pa.ArrowInvalid:
                continue
        return self._integers_one_by_one(array, where)

    def _integers_one_by_one(self, array: pa.Array, where: Where) -> np.ndarray:
        out = np.zeros(len(array), np.uint64)
        for row in range(len(array)):
            if not array[row].is_valid:
                continue
            text = numbers.shown(array, row)
            if not DECIMAL.fullmatch(text) or not -(2**63) <= int(text) < 2**64:
                column = self.slot.column or self.name
                raise numbers.not_a_number(text, "an integer of 64 bits", column, row, where)
            out[row] = int(text) % 2**64
        return out

    def _quantiles(self, array: pa.Array, where: Where) -> Cells:
        column = self.slot.column or self.name
        values = numbers.parsed(array, self.data.missing, column, where)
        numbers.refuse_infinite(values, values, column, where)
        assert self.boundaries is not None
        buckets = np.searchsorted(self.boundaries, values, side="right").astype(np.uint64)
        missing = np.isnan(values)
        if self.slot.missing == "value":
            return np.where(missing, np.uint64(len(self.boundaries) + 1), buckets), None
        return self._without_missing(buckets, missing)


def _nulls(array: pa.Array) -> np.ndarray | None:
    """Where values are null, or None when none is."""
    if not array.null_count:
        return None
    return np.asarray(array.is_null().to_numpy(zero_copy_only=False))


def _missing(array: pa.Array, hashed: np.ndarray, missing_ids: np.ndarray) -> np.ndarray | None:
    """Where values are null or have the id of a missing text; None when there is no need to ask."""
    missing = _nulls(array)
    for value in missing_ids:
        same = hashed == value
        missing = same if missing is None else missing | same
    return missing


def hashes(array: pa.Array, seed: int) -> np.ndarray:
    """The hash of each text, or of each integer's decimal text: uint64 [n]; any where null."""
    kind = array.type
    if pt.is_unsigned_integer(kind):
        return c_columns.hash_integers(_words(array), seed)
    if pt.is_integer(kind):
        return c_columns.hash_integers(_words(array).view(np.int64), seed)
    large = pt.is_large_string(kind) or pt.is_large_binary(kind)
    _, where, texts = array.buffers()
    item = np.dtype(np.int64 if large else np.int32)
    if where is None or len(array) == 0:
        return np.empty(0, np.uint64)
    offsets = np.frombuffer(where, item, len(array) + 1, array.offset * item.itemsize)
    data = np.frombuffer(texts, np.uint8) if texts is not None else np.empty(0, np.uint8)
    return c_columns.hash_strings(data, offsets, seed)


def _words(array: pa.Array) -> np.ndarray:
    """Integers as uint64 [n], negative ones modulo 2^64; 0 where null."""
    if not pt.is_unsigned_integer(array.type):
        signed = array.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
        return np.ascontiguousarray(signed).view(np.uint64)
    words = array.cast(pa.uint64()).fill_null(0).to_numpy(zero_copy_only=False)
    return np.ascontiguousarray(words)
