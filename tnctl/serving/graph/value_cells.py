"""Raw values to ids and numbers in a graph, in plain TensorFlow operations: docs/formats/ids.md.

The caller cuts texts at their separator and reads numbers; the graph does all that follows. Texts
are hashed by their bytes, which TensorFlow decodes as words of 8.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from tnctl.data.times import SECOND, since
from tnctl.documents import is_name
from tnctl.schema import ID_KINDS, UNITS, can_name_input
from tnctl.serving.graph.graph_document import (
    GraphManifest,
    NumericInput,
    SlotInput,
    conf_of,
    fed_slots,
)
from tnctl.serving.graph.id_cells import TOP_BIT, Cell, as_int64, given_cell, kept_ids, mix64
from tnctl.tables.columns import hash_bytes

WORD = 8  # bytes
PER_SECOND = {"epoch_s": 1e6, "epoch_ms": 1e3, "epoch_us": 1.0, "epoch_ns": 1e-3}  # microseconds
HOUR, DAY = 3600 * SECOND, 86400 * SECOND
# A slot that stands for a column of a cross: its texts are hashed.
HASHED: dict[str, Any] = {
    "cross": None, "ids": "hash", "seed": 0, "size": None, "padding": None, "missing": "none",
    "max_length": None, "pooling": "sum", "indicator": False, "group": None,
}  # fmt: skip


def value_slots(description: GraphManifest) -> dict[str, SlotInput]:
    """The slots of whose values the graph makes ids, and parts of crosses; by names of inputs."""
    slots = {}
    for name, slot in fed_slots(description).items():
        for part in slot.cross or (name,):
            column = dataclasses.replace(slot, column=part, **HASHED)
            slots[part] = description.slots.get(part, column)
    return slots


def dtype_of(slot: SlotInput) -> Literal["string", "int64", "float64"]:
    """What the values of a slot are given as."""
    kind = ID_KINDS[slot.ids]
    if kind.of_numbers or kind.of_times:
        return "float64"
    return "int64" if slot.ids == "integer" else "string"


def refusal(description: GraphManifest) -> str | None:
    """Why the graph cannot take raw values; None: it can."""
    time_of = conf_of(description)[0].data.time_of
    for name, slot in value_slots(description).items():
        if not (is_name(name) and can_name_input(name)):
            return f"column '{name}' of a cross is no name of an input"
        if slot.cross is not None:
            return f"slot {name} is a cross that is part of another"
        if ID_KINDS[slot.ids].of_times and not time_of(slot.column or name).is_number:
            return f"the times of slot {name} are not numbers (epoch_s)"
    for name, number in description.numeric.items():
        if name not in description.inputs or number.unit is None:
            continue
        if number.since_column is not None:
            return f"{name} is since another column"
        if not all(time_of(column).is_number for column in columns_of(number)):
            return f"the times of {name} are not numbers (epoch_s)"
    return None


def columns_of(number: NumericInput) -> tuple[str, ...]:
    """The columns of a numeric input."""
    return number.columns or (number.column or "",)


class Values:
    """The inputs of signature by_value as cells of ids, and numbers."""

    def __init__(self, description: GraphManifest, inputs: Mapping[str, Any]) -> None:
        self._description, self._inputs = description, inputs
        self._slots, self._data = value_slots(description), conf_of(description)[0].data

    def cell(self, name: str) -> Cell:
        """The ids of a slot, int64 [B, N]; of a cross, of every combination of its parts."""
        slot = self._description.slots[name]
        if slot.cross is None:
            return self._cell(name, slot)
        parts = [kept_ids(self._slots[part], self._cell(part, self._slots[part]))
                 for part in slot.cross]  # fmt: skip
        hashed = tf.fill(tf.stack([tf.shape(parts[0].ids)[0], 1]), int64(slot.seed))
        kept = tf.ones_like(hashed, tf.bool)
        for part in parts:
            hashed = pairs(lambda a, b: mix64(a ^ b), hashed, part.ids)
            kept = pairs(tf.logical_and, kept, part.kept)
        ids = mix64(hashed ^ (WORD * len(parts)))
        return Cell(ids if slot.size is None else modulo(ids, int(slot.size)), kept)

    def _cell(self, name: str, slot: SlotInput) -> Cell:
        given = given_cell(name, slot, self._inputs, self._inputs[name])
        ids, missing = self._ids(slot, given.ids)
        if slot.missing == "value" and slot.pooling == "none":
            return given._replace(ids=tf.where(missing, int64(int(slot.missing_id or 0)), ids))
        return given._replace(ids=ids, kept=given.kept & ~missing)

    def _ids(self, slot: SlotInput, values: Any) -> tuple[Any, Any]:
        """The ids of values [B, N], any where missing, and which are missing."""
        kind = ID_KINDS[slot.ids]
        if kind.of_times:
            time = self._data.time_of(slot.column or "")
            parts = time_part(times_of(values, time.format) + time.seconds_ahead * SECOND, slot.ids)
            return parts, tf.math.is_nan(values)
        if kind.of_numbers:
            boundaries = tf.constant(slot.boundaries, tf.float64, [len(slot.boundaries or ())])
            return searched(boundaries, values, "right"), tf.math.is_nan(values)
        if slot.ids == "integer":
            # Missing by its decimal text, as docs/formats/ids.md has it.
            numbers = [int(text) for text in self._data.missing if is_decimal(text)]
            missing = among(values, [as_int64(number % 2**64) for number in numbers])
            if slot.size is not None:
                missing |= (values ^ TOP_BIT) >= (as_int64(int(slot.size)) ^ TOP_BIT)
            return values, missing
        texts = {*self._data.missing, *([""] if slot.separator or slot.pooling == "none" else [])}
        hashed = hash_texts(values, slot.seed)
        missing = among(
            hashed, [as_int64(hash_bytes(text.encode(), slot.seed)) for text in sorted(texts)]
        )
        if slot.ids == "vocabulary":
            places, known = places_of(hashed, slot)
            if not slot.oov:
                return places, missing | ~known
            beyond = modulo(hashed, slot.oov) + len(slot.vocabulary or ())
            return tf.where(known, places, beyond), missing
        return hashed if slot.size is None else modulo(hashed, int(slot.size)), missing

    def numbers(self, name: str) -> Any:
        """A numeric input float32 [B, width]: clipped, without missing numbers, transformed."""
        number, values = self._description.numeric[name], self._inputs[name]
        if number.unit is not None:
            ages = []
            for place, column in enumerate(columns_of(number)):
                time, of_column = self._data.time_of(column), values[:, place]
                passed = times_of(of_column, time.format) - since(number.since or "", time)
                age = tf.cast(passed, tf.float64) / (UNITS[number.unit] * SECOND)
                ages.append(tf.where(tf.math.is_nan(of_column), of_column, age))
            values = tf.stack(ages, axis=1)
        absent = tf.math.is_nan(values)
        for bound, limit in zip(number.clip or (), (tf.maximum, tf.minimum), strict=False):
            if bound is not None:
                values = tf.where(absent, values, limit(values, float64(bound)))
        if number.default is not None:
            values, absent = (
                tf.where(absent, float64(number.default), values),
                tf.zeros_like(absent),
            )
        if number.transform == "log1p":
            values = tf.sign(values) * tf.math.log1p(tf.abs(values))
        elif number.transform == "standardize":
            values = (values - float64(number.mean)) / float64(number.deviation)
        return tf.cast(tf.where(absent, float64(0), values), tf.float32)


def int64(number: int) -> Any:
    """An unsigned number as a constant int64."""
    return tf.constant(as_int64(number), tf.int64)


def float64(numbers: Any) -> Any:
    """A constant float64."""
    return tf.constant(numbers, tf.float64)


def is_decimal(text: str) -> bool:
    """Whether a text is the decimal text of an integer of 64 bits."""
    digits = text.removeprefix("-")
    is_integer = digits.isascii() and digits.isdecimal() and len(digits) <= 20
    return is_integer and str(int(text)) == text and -(2**63) <= int(text) < 2**64


def hash_texts(texts: Any, seed: int) -> Any:
    """The hash int64 [B, N] of texts [B, N], by their bytes."""
    length = tf.strings.length(texts)
    most = tf.maximum(tf.reduce_max(length), 1)
    words = tf.io.decode_raw(texts, tf.int64, fixed_length=(most + WORD - 1) // WORD * WORD)

    def mixed(at: Any, hashed: Any) -> tuple[Any, Any]:
        return at + 1, tf.where(at * WORD < length, mix64(hashed ^ words[:, :, at]), hashed)

    start = tf.zeros_like(length, tf.int64) + int64(seed)
    _, hashed = tf.while_loop(lambda at, _: at * WORD < most, mixed, (tf.constant(0), start))
    return mix64(hashed ^ tf.cast(length, tf.int64))


def among(words: Any, chosen: list[int]) -> Any:
    """Which int64 words [B, N] are one of the chosen."""
    return tf.reduce_any(words[:, :, tf.newaxis] == tf.constant(chosen, tf.int64), axis=2)


def modulo(words: Any, size: int) -> Any:
    """Int64 words, which are unsigned, modulo a size."""
    unsigned = tf.bitcast(words, tf.uint64)
    return tf.bitcast(tf.math.floormod(unsigned, tf.constant(size, tf.uint64)), tf.int64)


def searched(ascending: Any, values: Any, side: Literal["left", "right"] = "left") -> Any:
    """How many of ascending numbers [n] are below values [B, N], or with `right` not above."""
    places = tf.searchsorted(ascending, tf.reshape(values, [-1]), side, tf.int64)
    return tf.reshape(places, tf.shape(values))


def places_of(hashed: Any, slot: SlotInput) -> tuple[Any, Any]:
    """The places int64 [B, N] of hashes in a vocabulary, any where unknown; which are known."""
    hashes = [hash_bytes(value.encode(), slot.seed) for value in slot.vocabulary or ()]
    order = np.argsort(np.array(hashes, np.uint64), kind="stable")
    ascending = tf.constant([as_int64(hashes[place]) ^ TOP_BIT for place in order], tf.int64)
    keys = hashed ^ TOP_BIT
    at = tf.minimum(searched(ascending, keys), len(hashes) - 1)
    return tf.gather(tf.constant(order, tf.int64), at), tf.gather(ascending, at) == keys


def pairs(joined: Any, left: Any, right: Any) -> Any:
    """`joined` of every two of left [B, M] and right [B, N], the right ones changing fastest."""
    both = joined(left[:, :, tf.newaxis], right[:, tf.newaxis, :])
    rows, *counts = (tf.shape(both)[axis] for axis in range(3))
    return tf.reshape(both, tf.stack([rows, counts[0] * counts[1]]))


def times_of(values: Any, format: str) -> Any:
    """Numbers since 1970, float64, as int64 microseconds; any where NaN."""
    scale = PER_SECOND[format]
    ticks = values / 1e3 if scale < 1 else values * scale
    return tf.cast(tf.round(tf.where(tf.math.is_nan(ticks), float64(0), ticks)), tf.int64)


def time_part(local: Any, part: str) -> Any:
    """The hour, weekday, day_of_month or day of local times, int64 microseconds."""
    day = local // DAY
    if part == "hour":
        return (local - day * DAY) // HOUR
    if part == "weekday":
        return tf.math.floormod(day + 3, 7)
    if part == "day":
        return day
    # The proleptic Gregorian calendar in eras of 400 years that begin in March.
    of_era = tf.math.floormod(day + 719_468, 146_097)
    year = (of_era - of_era // 1460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * year + year // 4 - year // 100)
    month = (5 * of_year + 2) // 153
    return of_year - (153 * month + 2) // 5 + 1
