"""The column of a slot to its cells: zero, one or many ids per row.

There is one class for each kind of ids. Texts are hashed where they are in Arrow's buffers. Whether
a value is missing is decided by its hash: two texts with one hash are one feature everywhere, so
nothing else is compared.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from tnctl.data import Bools, Float32s, Float64s, Int32s, Int64s, Uint64s, numbers
from tnctl.data.bad_rows import as_rows, refuse, refuse_large_window, refuse_many_ids
from tnctl.data.column_names import slot_column, takes_fractions
from tnctl.data.file_pieces import Where
from tnctl.data.numbers import RowValues, indices_within, offsets_of, owners_of, row_values
from tnctl.data.times import is_temporal, times_of
from tnctl.errors import UserError, refuse_if
from tnctl.schema import Data, Slot
from tnctl.tables import columns as c_columns

VIEW_BYTES = 16


class Lists(NamedTuple):
    """What was measured or read for a slot before its values can become ids."""

    boundaries: Float64s | None = None  # ascending, of buckets
    vocabulary: list[str] | None = None  # in the order of its ids


class Ids(NamedTuple):
    """The ids of values: uint64 [n] (any, where missing), and which are missing: bool [n]."""

    ids: Uint64s
    missing: Bools

    def without(self, missing: Bools) -> "Ids":
        """These ids with more missing values (bool [n])."""
        return Ids(self.ids, self.missing | missing)


def present(ids: Uint64s) -> Ids:
    """Ids [n] none of which is missing."""
    return Ids(ids, np.zeros(len(ids), bool))


class HashIds:
    """ids=hash, and what the other kinds share: text is hashed, `of_hashes` makes ids of hashes."""

    def __init__(self, name: str, slot: Slot, data: Data, lists: Lists) -> None:
        """Raises `UserError` when the settings of the slot and its lists do not fit together."""
        self.name, self.slot, self.data, self.lists = name, slot, data, lists
        self.column = slot_column(name, slot)
        hashed = [c_columns.hash_bytes(text.encode(), slot.seed) for text in data.missing]
        self.empty = np.array([c_columns.hash_bytes(b"", slot.seed)], np.uint64)
        self.missing_texts = np.unique(np.array(hashed, np.uint64))
        self.missing_parts = np.union1d(self.missing_texts, self.empty)  # of split texts

    @staticmethod
    def count(slot: Slot, lists: Lists) -> int | None:  # noqa: ARG004
        """How many ids the slot can have when they are 0 .. n - 1, else None."""
        return slot.size

    @property
    def missing_id(self) -> int:
        """The id of missing values, with missing=value."""
        return int(self.of_hashes(present(self.empty)).ids[0])

    def of_hashes(self, hashed: Ids) -> Ids:
        """The ids of values whose hashes are given."""
        return hashed

    def encode(self, array: pa.Array, where: Where, several: bool) -> Ids:
        """The ids of values [n] of a column; `several`: a row may have many, or none.

        Raises `BadRowsError` for a value that cannot be an id, `UserError` for another type.
        """
        if pt.is_dictionary(array.type):
            return self._of_dictionary(array, where, several)
        return self.of_hashes(self.hashed(prepared(array, self.column, where), several))

    def hashed(self, array: pa.Array, several: bool) -> Ids:
        """The hashes of texts or integers [n], any where missing."""
        missing = numbers.is_null(array)
        if pt.is_null(array.type):
            return Ids(np.zeros(len(array), np.uint64), missing)
        ids = hashes(array, self.slot.seed)
        for text in self.missing_parts if several else self.missing_texts:
            missing |= ids == text  # numpy's isin takes thrice as long
        return Ids(ids, missing)

    def _of_dictionary(self, array: pa.DictionaryArray, where: Where, several: bool) -> Ids:
        nulls = numbers.is_null(array.indices)
        if not len(array.dictionary):
            return Ids(np.zeros(len(array), np.uint64), nulls)
        indices = numbers.as_numpy(array.indices.fill_null(0))
        # No entry can be bad: these kinds take every text.
        entries = self.encode(array.dictionary, where, several)
        return Ids(entries.ids[indices], nulls | entries.missing[indices])


class ModuloIds(HashIds):
    """ids=modulo: the hash modulo `size`."""

    def of_hashes(self, hashed: Ids) -> Ids:
        return Ids(hashed.ids % np.uint64(self.slot.size or 1), hashed.missing)


class VocabularyIds(HashIds):
    """ids=vocabulary: the place of a value in a list, found by its hash.

    Other values are missing, or with `oov` have ids after the list.
    """

    def __init__(self, name: str, slot: Slot, data: Data, lists: Lists) -> None:
        super().__init__(name, slot, data, lists)
        if lists.vocabulary is None:
            raise UserError(f"slots.{name}: ids=vocabulary needs its vocabulary_file read")
        if absent := sorted(set(lists.vocabulary) & set(data.missing)):
            raise UserError(
                f"slots.{name}: '{absent[0]}' means a missing value (data.missing). Leave it out "
                "of the vocabulary; missing=value gives missing values an id"
            )
        hashed = [c_columns.hash_bytes(value.encode(), slot.seed) for value in lists.vocabulary]
        self.places = np.argsort(np.array(hashed, np.uint64), kind="stable")
        self.ascending = np.array(hashed, np.uint64)[self.places]
        if len(same := np.flatnonzero(self.ascending[1:] == self.ascending[:-1])):
            first, second = (lists.vocabulary[k] for k in self.places[same[0] : same[0] + 2])
            raise UserError(
                f"slots.{name}: '{first}' and '{second}' have one hash. Take another seed"
            )

    @staticmethod
    def count(slot: Slot, lists: Lists) -> int | None:
        return len(lists.vocabulary or ()) + slot.oov + (slot.missing == "value")

    @property
    def missing_id(self) -> int:
        return len(self.ascending) + self.slot.oov

    def of_hashes(self, hashed: Ids) -> Ids:
        at = np.minimum(np.searchsorted(self.ascending, hashed.ids), len(self.ascending) - 1)
        places, known = self.places[at].astype(np.uint64), self.ascending[at] == hashed.ids
        if self.slot.oov:
            beyond = np.uint64(len(self.ascending)) + hashed.ids % np.uint64(self.slot.oov)
            return Ids(np.where(known, places, beyond), hashed.missing)
        return Ids(places, hashed.missing).without(~known)


class IntegerIds(HashIds):
    """ids=integer: integers as they are, modulo 2^64; text as its decimal number."""

    def encode(self, array: pa.Array, where: Where, several: bool) -> Ids:
        array = prepared(array, self.column, where)
        hashed = self.hashed(array, several)
        if pt.is_null(array.type):
            return hashed
        ids = Ids(self._integers(array, hashed.missing, where), hashed.missing)
        size = self.slot.size
        return ids if size is None else ids.without(ids.ids >= np.uint64(size))

    def _integers(self, array: pa.Array, missing: Bools, where: Where) -> Uint64s:
        if pt.is_integer(array.type):
            return _words(array)
        array = numbers.texts(array, self.column, where)
        if missing.any():
            array = pc.if_else(pa.array(missing), None, array)
        # Arrow takes hexadecimal too, which the other formats and the C part do not.
        if not pc.any(pc.match_substring(array, "x", ignore_case=True)).as_py():
            for kind in (pa.int64(), pa.uint64()):
                try:
                    return _words(pc.cast(array, kind))
                except pa.ArrowInvalid:
                    continue
        return self._integers_one_by_one(array, where)

    def _integers_one_by_one(self, array: pa.Array, where: Where) -> Uint64s:
        """The slow way, for a column that is no int64 or uint64 as a whole: finds the bad rows."""
        ids = np.zeros(len(array), np.uint64)
        wrong = np.zeros(len(array), bool)
        for row in np.flatnonzero(array.is_valid()):
            text = numbers.bytes_at(array, int(row)).decode("utf-8", "replace")
            # int() of a long text takes long, and no integer of 64 bits needs 40 digits.
            is_number = numbers.INTEGER.fullmatch(text) and len(text) <= 40
            wrong[row] = not is_number or not -(2**63) <= int(text) < 2**64
            if not wrong[row]:
                ids[row] = int(text) % 2**64
        numbers.refuse_texts(array, wrong, "an integer of 64 bits", self.column, where)
        return ids


class BucketIds(HashIds):
    """ids=boundaries and both quantiles: the number of boundaries at or below a number."""

    def __init__(self, name: str, slot: Slot, data: Data, lists: Lists) -> None:
        super().__init__(name, slot, data, lists)
        if lists.boundaries is None:
            raise UserError(f"slots.{name}: ids={slot.ids} needs the boundaries of data.train")
        self._boundaries = lists.boundaries

    @staticmethod
    def count(slot: Slot, lists: Lists) -> int | None:
        boundaries = 0 if lists.boundaries is None else len(lists.boundaries)
        return boundaries + 1 + (slot.missing == "value")

    @property
    def missing_id(self) -> int:
        return len(self._boundaries) + 1

    def encode(self, array: pa.Array, where: Where, several: bool) -> Ids:
        values = bucket_numbers(array, self.column, self.data, where, several)
        ids = np.searchsorted(self._boundaries, values, side="right").astype(np.uint64)
        return Ids(ids, np.isnan(values))


class TimeIds(HashIds):
    """ids=hour, weekday, day_of_month and day: a part of a time."""

    @staticmethod
    def count(slot: Slot, lists: Lists) -> int | None:  # noqa: ARG004
        most = TIME_IDS[slot.ids]
        return None if most is None else most + (slot.missing == "value")

    @property
    def missing_id(self) -> int:
        most = TIME_IDS[self.slot.ids]
        return NO_DAY if most is None else most

    def encode(self, array: pa.Array, where: Where, several: bool) -> Ids:
        times = times_of(array, self.column, self.data, where, several)
        ahead = self.data.time_of(self.column).seconds_ahead
        return Ids(c_columns.time_parts(times.values, self.slot.ids, ahead), times.missing)


TIME_IDS = {"hour": 24, "weekday": 7, "day_of_month": 32, "day": None}  # and how many ids
NO_DAY = 2**63  # the id of a missing day, which no day has

ENCODERS: dict[str, type[HashIds]] = {
    "hash": HashIds,
    "modulo": ModuloIds,
    "integer": IntegerIds,
    "vocabulary": VocabularyIds,
    "boundaries": BucketIds,
    "quantiles": BucketIds,
    "row_quantiles": BucketIds,
    **dict.fromkeys(TIME_IDS, TimeIds),
}


def bucket_numbers(
    array: pa.Array, column: str, data: Data, where: Where, several: bool
) -> Float64s:
    """The numbers that become buckets, float64 [n] for values [n], NaN where missing.

    With `several` values in a row an empty part of a text is missing too. Raises `BadRowsError` for
    what is no finite number.
    """
    missing = [*data.missing, ""] if several else data.missing
    values = numbers.parsed(array, missing, column, where)
    numbers.refuse_infinite(values, values, column, where)
    return values


def prepared(array: pa.Array, column: str, where: Where) -> pa.Array:
    """A column [n] as `hashes` takes it. Raises `UserError` for neither text nor integers."""
    if array.null_count or not _is_view(array.type):
        array = numbers.plain(array)
    kind = array.type
    if not (numbers.is_text(kind) or pt.is_integer(kind) or pt.is_null(kind)):
        way = "write it as text or integers"
        if pt.is_floating(kind):
            way = "take ids=boundaries or row_quantiles, or read it as a numeric input"
        elif is_temporal(kind):
            way = "take ids=hour, weekday, day_of_month or day"
        raise UserError(
            f"{where(0)[0]}: column '{column}' is {kind}, and ids are made of text or integers; "
            f"{way}"
        )
    return array


def _is_view(kind: pa.DataType) -> bool:
    return bool(pt.is_string_view(kind) or pt.is_binary_view(kind))


def hashes(array: pa.Array, seed: int) -> Uint64s:
    """The hash of each text, or of each integer's decimal text: uint64 [n]; any where null.

    Views must not be null.
    """
    kind = array.type
    if _is_view(kind):
        _, views, *texts = array.buffers()
        first, end = array.offset * VIEW_BYTES, (array.offset + len(array)) * VIEW_BYTES
        return c_columns.hash_views(memoryview(views)[first:end], texts, seed)
    if pt.is_integer(kind):
        signed: Any = np.uint64 if pt.is_unsigned_integer(kind) else np.int64
        return c_columns.hash_integers(_words(array).view(signed), seed)
    offsets, data = numbers.text_buffers(array)
    return c_columns.hash_strings(data, offsets, seed)


def _words(array: pa.Array) -> Uint64s:
    """Integers as uint64 [n], negative ones modulo 2^64; 0 where null."""
    kind = pa.uint64() if pt.is_unsigned_integer(array.type) else pa.int64()
    words = numbers.as_numpy(array.cast(kind).fill_null(0))
    return np.ascontiguousarray(words).view(np.uint64)


class Cells(NamedTuple):
    """One slot, all rows."""

    ids: Uint64s  # [ids], row after row
    offsets: Int32s | None  # [rows + 1]; None when every row has exactly one id
    weights: Float32s | None  # [ids], only for slots with weights
    empty: int = 0  # rows whose only id is the id of missing values

    def lengths(self) -> Int64s:
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
        refuse_if(
            slot.missing == "value" and slot.padding == self.missing_id,
            f"slots.{name}: padding={slot.padding} is the id of missing values. Leave out "
            "padding or missing=value",
        )

    def encode(self, array: pa.Array, where: Where, weights: pa.Array | None = None) -> Cells:
        """The cells of a column [rows], with their weights if a column of weights [rows] is given.

        Raises `BadRowsError` for a value that cannot be an id, and for weights that do not fit.
        """
        values, column = self.parts(array, where, weights)
        owners = values.owners
        with as_rows(owners, where) as place:
            ids = self.ids.encode(values.values, place, owners is not None)
            finite = None if column is None else self._finite(column, ids.missing, place)
        return self._cells(ids, values.lengths, owners, finite)

    def parts(
        self, array: pa.Array, where: Where, weights: pa.Array | None = None
    ) -> tuple[RowValues, Float64s | None]:
        """The values of a column [rows], cut and not yet ids, and as many weights if given."""
        slot = self.slot
        values = row_values(array, slot.separator, self.data, self.column, where, self._fractions)
        if slot.pooling == "none" and values.lengths is None:
            values = self._listed(values.values)
        return (values, None) if weights is None else self._weighted(values, weights, where)

    def _listed(self, array: pa.Array) -> RowValues:
        """The single values of a sequence as lists: of a value that is missing, an empty list.

        So a null is the same whether others of its column are lists, values or nulls.
        """
        array = numbers.plain(array)
        missing = numbers.is_null(array)
        if numbers.is_text(array.type) or pt.is_integer(array.type):
            missing = missing | np.isin(hashes(array, self.slot.seed), self.ids.missing_texts)
        elif pt.is_floating(array.type):
            missing = missing | np.isnan(numbers.as_numpy(array))
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
        ids = self.ids.of_hashes(present(hashed))
        if offsets is None:
            return self._cells(ids, None, None, None)
        lengths = np.diff(offsets).astype(np.int64)
        return self._cells(ids, lengths, owners_of(lengths), None)

    def _cells(
        self,
        encoded: Ids,
        lengths: Int64s | None,
        owners: Int64s | None,
        weights: Float32s | None,
    ) -> Cells:
        """The ids of all rows without those that are missing or padding, or beyond max_length."""
        slot = self.slot
        keeps_place = slot.missing == "value" and slot.pooling == "none"
        fills_rows = slot.missing == "value" and slot.pooling != "none"
        if keeps_place:
            encoded = present(np.where(encoded.missing, self.missing_id, encoded.ids))
        if slot.padding is not None:
            encoded = encoded.without(encoded.ids == np.uint64(slot.padding))
        ids, missing = encoded
        any_missing = bool(missing.any())
        if lengths is None or owners is None:
            if not any_missing:
                return Cells(ids, None, weights)
            if fills_rows:
                weights = None if weights is None else np.where(missing, np.float32(1), weights)
                filled = np.where(missing, self.missing_id, ids)
                return Cells(filled, None, weights, int(missing.sum()))
            lengths = (~missing).astype(np.int64)
            return Cells(ids[~missing], offsets_of(lengths), _kept(weights, ~missing))
        if any_missing:
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
        return Cells(ids, None if (lengths == 1).all() else offsets_of(lengths), weights, empty)

    def _weighted(
        self, values: RowValues, weights: pa.Array, where: Where
    ) -> tuple[RowValues, Float64s]:
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
        with as_rows(given.owners, where) as place:
            missing = [*self.data.missing, ""]
            return values, numbers.parsed(given.values, missing, column, place)

    def _finite(self, weights: Float64s, missing: Bools, where: Where) -> Float32s:
        """The weights of values, which must be finite where a value is."""
        with np.errstate(over="ignore"):
            finite = weights.astype(np.float32)
        refuse(
            ~(np.isfinite(finite) | missing),
            where,
            lambda value: (
                "the weight of a value must be a finite number. Received: "
                f"{'none' if np.isnan(weights[value]) else weights[value]}. Mend the row"
            ),
            self.slot.weights,
        )
        return finite


def _kept(weights: Float32s | None, kept: Bools) -> Float32s | None:
    return None if weights is None else weights[kept]


def _within(lengths: Int64s, most: int, keep: str) -> Bools:
    """Which values max_length keeps."""
    indices = indices_within(lengths)
    if keep == "last":
        indices = np.repeat(lengths, lengths) - 1 - indices
    return indices < most
