"""The column of one slot to its cells: zero, one or many ids per row."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from numpy.typing import NDArray

from tnctl.data import numbers
from tnctl.data.bad_rows import BadRowsError, owned
from tnctl.data.parts import Parts, parts
from tnctl.data.reading import Where, named
from tnctl.data.row_limits import refuse_large_window, refuse_many_ids
from tnctl.data.vocabulary import Vocabulary
from tnctl.errors import UserError
from tnctl.schema import Data, Slot
from tnctl.tables import columns as c_columns

VIEW_BYTES = 16
BUCKETS = ("boundaries", "quantiles")  # the kinds whose values are numbers


class Cells(NamedTuple):
    """One slot, all rows."""

    ids: NDArray[np.uint64]
    offsets: NDArray[np.int32] | None  # [rows + 1]; None when every row has exactly one id
    weights: NDArray[np.float32] | None  # one per id, only for slots with weights

    def lengths(self) -> NDArray[np.int64]:
        """How many ids each row has."""
        if self.offsets is None:
            return np.ones(len(self.ids), np.int64)
        return np.diff(self.offsets).astype(np.int64)


class Encoder:
    """One slot: how its values become ids.

    A null, an empty part or element, and a text of data.missing are missing; so is a value that
    has no id (outside the vocabulary without oov, or from `size` on). Missing values and padding
    are left out, then all but max_length. A row that is left without an id has with missing=value
    one: the id of missing values. In a sequence (pooling=none) missing=value keeps every missing
    value in its place instead, and a row without values stays empty.

    `boundaries` are those of buckets, `vocabulary` the values of ids=vocabulary. Raises `UserError`
    when the settings do not go together.
    """

    def __init__(
        self,
        name: str,
        slot: Slot,
        data: Data,
        boundaries: NDArray[np.float64] | None = None,
        vocabulary: list[str] | None = None,
    ) -> None:
        self.name = name
        self.column = slot.column or name
        self.slot = slot
        self.data = data
        self.boundaries = np.empty(0)
        if slot.ids in BUCKETS:
            if boundaries is None:
                raise UserError(f"slots.{name}: ids={slot.ids} needs the boundaries of data.train")
            self.boundaries = boundaries
        self.vocabulary: Vocabulary | None = None
        if slot.ids == "vocabulary":
            if vocabulary is None:
                raise UserError(f"slots.{name}: ids=vocabulary needs its vocabulary_file read")
            self.vocabulary = Vocabulary(f"slots.{name}", vocabulary, slot.seed, data.missing)
        empty = c_columns.hash_bytes(b"", slot.seed)
        texts = [text.encode() for text in data.missing]
        hashed = [c_columns.hash_bytes(text, slot.seed) for text in texts]
        self.missing_texts = np.unique(np.array(hashed, np.uint64))
        self.missing_parts = np.union1d(self.missing_texts, np.uint64(empty))
        self.missing_id = np.uint64(self._missing_id(empty))
        if slot.missing == "value" and slot.padding == self.missing_id:
            raise UserError(
                f"slots.{name}: padding={slot.padding} is the id of missing values. Leave out "
                "padding or missing=value"
            )

    def _missing_id(self, empty: int) -> int:
        if self.vocabulary is not None:
            return len(self.vocabulary) + self.slot.oov
        if self.slot.ids in BUCKETS:
            return len(self.boundaries) + 1
        if self.slot.ids == "modulo" and self.slot.size:
            return empty % self.slot.size
        return empty

    def encode(self, array: pa.Array, where: Where, weights: pa.Array | None = None) -> Cells:
        """The cells of all rows of a column, and with a column of weights theirs.

        Raises `BadRowsError` for a value that cannot be an id, and for weights that do not fit.
        """
        slot = self.slot
        split = parts(
            array, slot.separator, self.data, self.column, where, fractions=slot.ids in BUCKETS
        )
        if slot.pooling == "none" and split.lengths is None:
            split = self._listed(split.values)
        given: NDArray[np.float64] | None = None
        if weights is not None:
            split, given = self._weighted(split, weights, where)
        owners = split.owners
        with owned(owners, where) as place:
            ids, gone = self._ids(split.values, place, owners is not None)
            found = None if given is None else self._finite(given, gone, place)
        return self._cells(ids, gone, split.lengths, owners, found)

    def _listed(self, array: pa.Array) -> Parts:
        """The single values of a sequence as lists: one that is missing as a whole is none.

        So a null is the same whether others of its column are lists, values or nulls.
        """
        array = numbers.plain(array)
        gone = np.asarray(array.is_null().to_numpy(zero_copy_only=False))
        if numbers.is_text(array.type) or pt.is_integer(array.type):
            gone = gone | np.isin(hashes(array, self.slot.seed), self.missing_texts)
        elif pt.is_floating(array.type):
            gone = gone | np.isnan(array.to_numpy(zero_copy_only=False))
        return Parts(array.filter(pa.array(~gone)), (~gone).astype(np.int64))

    def crossed(self, crossed: Sequence[Cells], rows: int, where: Where) -> Cells:
        """The cells of a cross: every combination of the ids of the others.

        Raises `BadRowsError` for too many in a row, `UserError` for too many of all rows.
        """
        if any(cells.offsets is not None for cells in crossed):
            counts = np.prod([cells.lengths() for cells in crossed], axis=0, dtype=np.float64)
            refuse_many_ids(counts, f"slots.{self.name} crosses", where)
            refuse_large_window(float(counts.sum()))
        ids, offsets = c_columns.cross(
            [cells.ids for cells in crossed],
            [cells.offsets for cells in crossed],
            rows,
            self.slot.seed,
        )
        if self.slot.ids == "modulo":
            ids = ids % np.uint64(self.slot.size or 1)
        found = Cells(ids, offsets, None)
        if offsets is None:
            return self._cells(ids, None, None, None, None)
        lengths = found.lengths()
        return self._cells(ids, None, lengths, np.repeat(np.arange(rows), lengths), None)

    def _cells(
        self,
        ids: NDArray[np.uint64],
        gone: NDArray[np.bool_] | None,
        lengths: NDArray[np.int64] | None,
        owners: NDArray[np.int64] | None,
        weights: NDArray[np.float32] | None,
    ) -> Cells:
        """What is left of the ids of all rows; `gone` tells those that are missing."""
        slot = self.slot
        stands = slot.missing == "value"
        if stands and slot.pooling == "none" and gone is not None:
            ids, gone = np.where(gone, self.missing_id, ids), None
        if slot.padding is not None:
            padded = ids == np.uint64(slot.padding)
            gone = padded if gone is None else gone | padded
        if gone is not None and not gone.any():
            gone = None
        if lengths is None or owners is None:
            if gone is None:
                return Cells(ids, None, weights)
            if stands and slot.pooling != "none":
                weights = None if weights is None else np.where(gone, np.float32(1), weights)
                return Cells(np.where(gone, self.missing_id, ids), None, weights)
            offsets = np.zeros(len(ids) + 1, np.int32)
            np.cumsum(~gone, out=offsets[1:])
            return Cells(ids[~gone], offsets, None if weights is None else weights[~gone])
        if gone is not None:
            ids, weights = ids[~gone], None if weights is None else weights[~gone]
            lengths = np.bincount(owners[~gone], minlength=len(lengths))
        if slot.max_length is not None and (lengths > slot.max_length).any():
            kept = _within(lengths, slot.max_length, slot.keep)
            ids, weights = ids[kept], None if weights is None else weights[kept]
            lengths = np.minimum(lengths, slot.max_length)
        if stands and slot.pooling != "none" and (bare := lengths == 0).any():
            starts = (np.cumsum(lengths) - lengths)[bare]
            ids = np.insert(ids, starts, self.missing_id)
            weights = None if weights is None else np.insert(weights, starts, np.float32(1))
            lengths = np.where(bare, 1, lengths)
        if (lengths == 1).all():
            return Cells(ids, None, weights)
        offsets = np.zeros(len(lengths) + 1, np.int32)
        np.cumsum(lengths, out=offsets[1:])
        return Cells(ids, offsets, weights)

    def _weighted(
        self, values: Parts, weights: pa.Array, where: Where
    ) -> tuple[Parts, NDArray[np.float64]]:
        """The values, and their weights, as many as they are; NaN where missing."""
        column = self.slot.weights or ""
        found = parts(weights, self.slot.separator, self.data, column, where, fractions=True)
        if values.lengths is not None or found.lengths is not None:
            values, found = values.listed(), found.listed()
            assert values.lengths is not None
            assert found.lengths is not None
            wrong = np.flatnonzero(values.lengths != found.lengths)
            if len(wrong):
                raise BadRowsError(
                    f"{named(where(int(wrong[0])))}: column '{self.column}' has "
                    f"{values.lengths[wrong[0]]} values and column '{column}' "
                    f"{found.lengths[wrong[0]]} weights. Mend the row, or leave out "
                    f"slots.{self.name}.weights",
                    wrong,
                )
        with owned(found.owners, where) as place:
            missing = [*self.data.missing, ""]
            return values, numbers.parsed(found.values, missing, column, place)

    def _finite(
        self, weights: NDArray[np.float64], gone: NDArray[np.bool_] | None, where: Where
    ) -> NDArray[np.float32]:
        """The weights of values, which must be finite where a value is."""
        with np.errstate(over="ignore"):
            found = weights.astype(np.float32)
        wrong = ~np.isfinite(found)
        if gone is not None:
            wrong &= ~gone
        if wrong.any():
            rows = np.flatnonzero(wrong)
            shown = "none" if np.isnan(weights[rows[0]]) else weights[rows[0]]
            raise BadRowsError(
                f"{named(where(int(rows[0])))}, column '{self.slot.weights}': the weight of a "
                f"value must be a finite number. Received: {shown}. Mend the row",
                rows,
            )
        return found

    def _ids(
        self, array: pa.Array, where: Where, several: bool
    ) -> tuple[NDArray[np.uint64], NDArray[np.bool_] | None]:
        """One id per value (any, where missing), and where values are missing."""
        if self.slot.ids in BUCKETS:
            return self._buckets(array, where, several)
        if pt.is_dictionary(array.type) and self.slot.ids != "integer":
            return self._ids_of_dictionary(array, where, several)
        kind = array.type
        if array.null_count or not _is_view(kind):
            array = numbers.plain(array)
            kind = array.type
        if pt.is_null(kind):
            return np.zeros(len(array), np.uint64), np.ones(len(array), bool)
        if not (numbers.is_text(kind) or pt.is_integer(kind)):
            raise self._refused(kind, where)
        hashed = hashes(array, self.slot.seed)
        gone = _missing(array, hashed, self.missing_parts if several else self.missing_texts)
        if self.vocabulary is not None:
            return self._places(self.vocabulary, hashed, gone)
        if self.slot.ids == "modulo":
            return hashed % np.uint64(self.slot.size or 1), gone
        if self.slot.ids == "hash":
            return hashed, gone
        ids = self._integers(array, gone, where)
        if self.slot.size is not None:
            outside = ids >= np.uint64(self.slot.size)
            gone = outside if gone is None else gone | outside
        return ids, gone

    def _ids_of_dictionary(
        self, array: pa.DictionaryArray, where: Where, several: bool
    ) -> tuple[NDArray[np.uint64], NDArray[np.bool_] | None]:
        indices = array.indices.fill_null(0).to_numpy(zero_copy_only=False)
        gone = _nulls(array.indices)
        if not len(array.dictionary):
            return np.zeros(len(array), np.uint64), gone
        # No entry can be bad: these kinds take every text.
        ids, absent = self._ids(array.dictionary, where, several)
        if absent is not None:
            absent = absent[indices]
            gone = absent if gone is None else gone | absent
        return ids[indices], gone

    def _places(
        self, vocabulary: Vocabulary, hashed: NDArray[np.uint64], gone: NDArray[np.bool_] | None
    ) -> tuple[NDArray[np.uint64], NDArray[np.bool_] | None]:
        places, known = vocabulary.places(hashed)
        if self.slot.oov:
            beyond = np.uint64(len(vocabulary)) + hashed % np.uint64(self.slot.oov)
            return np.where(known, places, beyond), gone
        return places, ~known if gone is None else gone | ~known

    def _buckets(
        self, array: pa.Array, where: Where, several: bool
    ) -> tuple[NDArray[np.uint64], NDArray[np.bool_] | None]:
        values = bucket_numbers(array, self.column, self.data, where, several)
        found = np.searchsorted(self.boundaries, values, side="right").astype(np.uint64)
        return found, np.isnan(values)

    def _refused(self, kind: pa.DataType, where: Where) -> UserError:
        way = "write it as text or integers"
        if pt.is_floating(kind):
            way = "take ids=boundaries or quantiles, or read it as a numeric input"
        return UserError(
            f"{where(0)[0]}: column '{self.column}' is {kind}, and ids are made of text or "
            f"integers; {way}"
        )

    def _integers(
        self, array: pa.Array, gone: NDArray[np.bool_] | None, where: Where
    ) -> NDArray[np.uint64]:
        """Integers as they are, modulo 2^64; text as its decimal number."""
        if pt.is_integer(array.type):
            return _words(array)
        array = numbers.texts(array, self.column, where)
        if gone is not None:
            array = pc.if_else(pa.array(gone), None, array)
        for kind in (pa.int64(), pa.uint64()):
            try:
                # Arrow takes hexadecimal too, which the other formats and the C part do not.
                if not pc.any(pc.match_substring(array, "x", ignore_case=True)).as_py():
                    return _words(pc.cast(array, kind))
            except pa.ArrowInvalid:
                continue
        return self._integers_one_by_one(array, where)

    def _integers_one_by_one(self, array: pa.Array, where: Where) -> NDArray[np.uint64]:
        out = np.zeros(len(array), np.uint64)
        wrong: list[int] = []
        for row in range(len(array)):
            if not array[row].is_valid:
                continue
            text = numbers.bytes_at(array, row).decode("utf-8", "replace")
            if (
                numbers.INTEGER.fullmatch(text)
                and len(text) <= 40
                and -(2**63) <= int(text) < 2**64
            ):
                out[row] = int(text) % 2**64
            else:
                wrong.append(row)
        if wrong:
            raise numbers.not_a_number(array, wrong, "an integer of 64 bits", self.column, where)
        return out


def bucket_numbers(
    array: pa.Array, column: str, data: Data, where: Where, several: bool
) -> NDArray[np.float64]:
    """The numbers that become buckets, NaN where missing; `several`: an empty part is missing.

    Raises `BadRowsError` for what is no finite number.
    """
    missing = [*data.missing, ""] if several else data.missing
    values = numbers.parsed(array, missing, column, where)
    numbers.refuse_infinite(values, values, column, where)
    return values


def _within(lengths: NDArray[np.int64], most: int, keep: str) -> NDArray[np.bool_]:
    """Which values max_length keeps."""
    places = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    if keep == "last":
        places = np.repeat(lengths, lengths) - 1 - places
    return places < most


def _nulls(array: pa.Array) -> NDArray[np.bool_] | None:
    """Where values are null, or None when none is."""
    if not array.null_count:
        return None
    return np.asarray(array.is_null().to_numpy(zero_copy_only=False))


def _missing(
    array: pa.Array, hashed: NDArray[np.uint64], missing: NDArray[np.uint64]
) -> NDArray[np.bool_] | None:
    """Where values are null or have the hash of a missing text; None when none can be."""
    found = _nulls(array)
    for value in missing:
        same = hashed == value
        found = same if found is None else found | same
    return found


def _is_view(kind: pa.DataType) -> bool:
    return bool(pt.is_string_view(kind) or pt.is_binary_view(kind))


def hashes(array: pa.Array, seed: int) -> NDArray[np.uint64]:
    """The hash of each text, or of each integer's decimal text: uint64 [n]; any where null.

    Views must not be null.
    """
    kind = array.type
    if _is_view(kind):
        _, views, *texts = array.buffers()
        first, end = array.offset * VIEW_BYTES, (array.offset + len(array)) * VIEW_BYTES
        return c_columns.hash_views(memoryview(views)[first:end], texts, seed)
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


def _words(array: pa.Array) -> NDArray[np.uint64]:
    """Integers as uint64 [n], negative ones modulo 2^64; 0 where null."""
    if not pt.is_unsigned_integer(array.type):
        signed = array.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
        return np.ascontiguousarray(signed).view(np.uint64)
    words = array.cast(pa.uint64()).fill_null(0).to_numpy(zero_copy_only=False)
    return np.ascontiguousarray(words)
