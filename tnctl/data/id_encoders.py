"""How the values of a slot become ids: one encoder for each kind of ids.

Texts are hashed where they are in Arrow's buffers. Whether a value is missing is decided by its
hash: two texts with one hash are one feature everywhere, so nothing else is compared.
"""

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from numpy.typing import NDArray

from tnctl.data import numbers
from tnctl.data.column_names import slot_column
from tnctl.data.file_pieces import Where
from tnctl.data.times import is_temporal, times_of
from tnctl.errors import UserError
from tnctl.schema import Data, Slot
from tnctl.tables import columns as c_columns

VIEW_BYTES = 16


class Lists(NamedTuple):
    """What was measured or read for a slot before its values can become ids."""

    boundaries: NDArray[np.float64] | None = None  # ascending, of buckets
    vocabulary: list[str] | None = None  # in the order of its ids


class Ids(NamedTuple):
    """The ids of values: uint64 [n] (any, where missing), and which are missing (None: none)."""

    ids: NDArray[np.uint64]
    missing: NDArray[np.bool_] | None

    def without(self, missing: NDArray[np.bool_]) -> "Ids":
        """The same with more missing values (bool [n])."""
        return Ids(self.ids, missing if self.missing is None else self.missing | missing)


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
        return int(self.of_hashes(Ids(self.empty, None)).ids[0])

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
        if pt.is_null(array.type):
            return Ids(np.zeros(len(array), np.uint64), np.ones(len(array), bool))
        hashed = Ids(hashes(array, self.slot.seed), None)
        if array.null_count:
            hashed = hashed.without(np.asarray(array.is_null().to_numpy(zero_copy_only=False)))
        for text in self.missing_parts if several else self.missing_texts:
            hashed = hashed.without(hashed.ids == text)
        return hashed

    def _of_dictionary(self, array: pa.DictionaryArray, where: Where, several: bool) -> Ids:
        nulls = np.asarray(array.indices.is_null().to_numpy(zero_copy_only=False))
        if not len(array.dictionary):
            return Ids(np.zeros(len(array), np.uint64), nulls)
        indices = array.indices.fill_null(0).to_numpy(zero_copy_only=False)
        # No entry can be bad: these kinds take every text.
        entries = self.encode(array.dictionary, where, several)
        ids = Ids(entries.ids[indices], nulls if array.indices.null_count else None)
        return ids if entries.missing is None else ids.without(entries.missing[indices])


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
        self._places = np.argsort(np.array(hashed, np.uint64), kind="stable")
        self._hashed = np.array(hashed, np.uint64)[self._places]
        if len(same := np.flatnonzero(self._hashed[1:] == self._hashed[:-1])):
            first, second = (lists.vocabulary[self._places[same[0] + k]] for k in (0, 1))
            raise UserError(
                f"slots.{name}: '{first}' and '{second}' have one hash. Take another seed"
            )

    @staticmethod
    def count(slot: Slot, lists: Lists) -> int | None:
        return len(lists.vocabulary or ()) + slot.oov + (slot.missing == "value")

    @property
    def missing_id(self) -> int:
        return len(self._hashed) + self.slot.oov

    def of_hashes(self, hashed: Ids) -> Ids:
        at = np.minimum(np.searchsorted(self._hashed, hashed.ids), len(self._hashed) - 1)
        places, known = self._places[at].astype(np.uint64), self._hashed[at] == hashed.ids
        if self.slot.oov:
            beyond = np.uint64(len(self._hashed)) + hashed.ids % np.uint64(self.slot.oov)
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

    def _integers(
        self, array: pa.Array, missing: NDArray[np.bool_] | None, where: Where
    ) -> NDArray[np.uint64]:
        if pt.is_integer(array.type):
            return _words(array)
        array = numbers.texts(array, self.column, where)
        if missing is not None:
            array = pc.if_else(pa.array(missing), None, array)
        # Arrow takes hexadecimal too, which the other formats and the C part do not.
        if not pc.any(pc.match_substring(array, "x", ignore_case=True)).as_py():
            for kind in (pa.int64(), pa.uint64()):
                try:
                    return _words(pc.cast(array, kind))
                except pa.ArrowInvalid:
                    continue
        return self._integers_one_by_one(array, where)

    def _integers_one_by_one(self, array: pa.Array, where: Where) -> NDArray[np.uint64]:
        ids = np.zeros(len(array), np.uint64)
        wrong = np.zeros(len(array), bool)
        for row in np.flatnonzero(array.is_valid()):
            text = numbers.bytes_at(array, int(row)).decode("utf-8", "replace")
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
) -> NDArray[np.float64]:
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


def hashes(array: pa.Array, seed: int) -> NDArray[np.uint64]:
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
    large = pt.is_large_string(kind) or pt.is_large_binary(kind)
    _, ends, texts = array.buffers()
    if ends is None or len(array) == 0:
        return np.empty(0, np.uint64)
    dtype = np.dtype(np.int64 if large else np.int32)
    offsets = np.frombuffer(ends, dtype, len(array) + 1, array.offset * dtype.itemsize)
    data = np.frombuffer(texts, np.uint8) if texts is not None else np.empty(0, np.uint8)
    return c_columns.hash_strings(data, offsets, seed)


def _words(array: pa.Array) -> NDArray[np.uint64]:
    """Integers as uint64 [n], negative ones modulo 2^64; 0 where null."""
    kind = pa.uint64() if pt.is_unsigned_integer(array.type) else pa.int64()
    words = array.cast(kind).fill_null(0).to_numpy(zero_copy_only=False)
    return np.ascontiguousarray(words).view(np.uint64)
