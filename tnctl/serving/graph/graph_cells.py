"""Ids, and raw values to ids and numbers, in a graph: plain TensorFlow operations.

docs/formats/ids.md. Ids are unsigned and TensorFlow's operations signed: an id is the int64 of the
same bits, products wrap, and a shift to the right is masked. Of raw values the caller cuts texts at
their separator and reads numbers; the graph does all that follows. Texts are hashed by their bytes,
which TensorFlow decodes as words of 8.
"""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
import tensorflow as tf

from tnctl.data.slot_encoder import Encoder, VocabularyIds
from tnctl.data.times import SECOND, since
from tnctl.documents import is_name
from tnctl.schema import UNITS, Data, Slot, can_name_input
from tnctl.serving.graph.graph_document import (
    LENGTH,
    OF_WEIGHTS,
    GraphManifest,
    NumericInput,
    conf_of,
    fed_slots,
)

FACTORS = (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53)
TOP_BIT = -(2**63)  # flipped, unsigned order is signed order
WORD = 8  # bytes
PER_SECOND = {"epoch_s": 1e6, "epoch_ms": 1e3, "epoch_us": 1.0, "epoch_ns": 1e-3}  # microseconds
HOUR, DAY = 3600 * SECOND, 86400 * SECOND


def encoders_of(description: GraphManifest) -> dict[str, Encoder]:
    """The encoders of the slots that a graph reads, and of the parts of crosses among them."""
    conf, statistics = conf_of(description)
    encoders = {}
    for slot_name, fed in fed_slots(description).items():
        for name in (slot_name, *(fed.cross or ())):
            slot = conf.slots.get(name, Slot())  # of a cross' column the texts are hashed
            encoders[name] = Encoder(name, slot, conf.data, statistics.lists_of(name, slot))
    return encoders


class Cell(NamedTuple):
    """A slot of all examples: ids int64 [B, N], which count bool [B, N], weights float32 or None.

    Of a sequence the ids of an example come first, and N is its `max_length`.
    """

    ids: Any
    kept: Any
    weights: Any | None = None


def given_cell(encoder: Encoder, inputs: Mapping[str, Any]) -> Cell:
    """The cell of a slot, by its ids or values [B, N], their number and weights in `inputs`."""
    name = encoder.name
    kept = tf.sequence_mask(inputs[name + LENGTH], tf.shape(inputs[name])[1])
    weighted = encoder.slot.weights is not None
    return Cell(inputs[name], kept, inputs[name + OF_WEIGHTS] if weighted else None)


def kept_ids(encoder: Encoder, cell: Cell) -> Cell:
    """The ids without padding and those beyond `max_length`, or else the one of missing values."""
    slot, (ids, kept, weights) = encoder.slot, cell
    if slot.padding is not None:
        kept &= ids != int64(slot.padding)
    if slot.max_length is not None:
        turn = tf.cumsum(tf.cast(kept, tf.int32), axis=1, reverse=slot.keep == "last")
        kept &= turn <= slot.max_length
    if slot.pooling == "none":
        order = tf.argsort(tf.cast(~kept, tf.int32), axis=1, stable=True)
        ids = tf.pad(tf.gather(ids, order, batch_dims=1), [[0, 0], [0, slot.max_length]])
        length = tf.reduce_sum(tf.cast(kept, tf.int32), axis=1)
        return Cell(
            tf.reshape(ids[:, : slot.max_length], [-1, slot.max_length]),
            tf.sequence_mask(length, slot.max_length),
        )
    if slot.missing == "value":
        bare = ~tf.reduce_any(kept, axis=1, keepdims=True)
        ids = tf.concat([ids, tf.where(bare, int64(encoder.missing_id), int64(0))], axis=1)
        kept = tf.concat([kept, bare], axis=1)
        if weights is not None:
            weights = tf.concat([weights, tf.ones_like(bare, tf.float32)], axis=1)
    return Cell(ids, kept, weights)


def mix64(words: Any) -> Any:
    """MurmurHash3's finalizer of int64 words, of any shape."""
    for factor in FACTORS:
        words = (words ^ high_bits(words)) * int64(factor)
    return words ^ high_bits(words)


def high_bits(words: Any) -> Any:
    """Int64 words shifted to the right by 33 as if they were unsigned."""
    return tf.bitwise.right_shift(words, 33) & (2**31 - 1)


def int64(numbers: Any) -> Any:
    """Unsigned numbers as constant int64 of the same bits."""
    return tf.constant(np.asarray(numbers, np.uint64).view(np.int64))


def float64(number: float) -> Any:
    """A constant float64."""
    return tf.constant(number, tf.float64)


# ---- Raw values ----


def refusal(description: GraphManifest, encoders: Mapping[str, Encoder]) -> str | None:
    """Why the graph cannot take raw values; None: it can."""
    time_of = conf_of(description)[0].data.time_of
    for name, encoder in encoders.items():
        for part in encoder.slot.cross or ():
            if not (is_name(part) and can_name_input(part)):
                return f"column '{part}' of a cross is no name of an input"
            if encoders[part].slot.cross is not None:
                return f"slot {part} is a cross that is part of another"
        if encoder.slot.kind.of_times and not time_of(encoder.column).is_number:
            return f"the times of slot {name} are not numbers (epoch_s)"
    for name, number in description.numeric.items():
        if name not in description.inputs or number.unit is None:
            continue
        if number.since_column is not None:
            return f"{name} is since another column"
        if not all(time_of(column).is_number for column in columns_of(number)):
            return f"the times of {name} are not numbers (epoch_s)"
    return None


def dtype_of(slot: Slot) -> Literal["string", "int64", "float64"]:
    """What the values of a slot are given as."""
    if slot.kind.of_numbers or slot.kind.of_times:
        return "float64"
    return "int64" if slot.ids == "integer" else "string"


def columns_of(number: NumericInput) -> tuple[str, ...]:
    """The columns of a numeric input."""
    return number.columns or (number.column or "",)


def value_cell(name: str, encoders: Mapping[str, Encoder], inputs: Mapping[str, Any]) -> Cell:
    """The ids of a slot's values, int64 [B, N]; of a cross, of every combination of its parts."""
    encoder = encoders[name]
    slot = encoder.slot
    if slot.cross is not None:
        parts = [kept_ids(encoders[part], value_cell(part, encoders, inputs))
                 for part in slot.cross]  # fmt: skip
        hashed = tf.fill(tf.stack([tf.shape(parts[0].ids)[0], 1]), int64(slot.seed))
        kept = tf.ones_like(hashed, tf.bool)
        for part in parts:
            hashed = pairs(lambda a, b: mix64(a ^ b), hashed, part.ids)
            kept = pairs(tf.logical_and, kept, part.kept)
        return Cell(modulo(mix64(hashed ^ (WORD * len(parts))), slot.size), kept)
    given = given_cell(encoder, inputs)
    ids, missing = ids_of(encoder, given.ids)
    if slot.missing == "value" and slot.pooling == "none":
        return given._replace(ids=tf.where(missing, int64(encoder.missing_id), ids))
    return given._replace(ids=ids, kept=given.kept & ~missing)


def ids_of(encoder: Encoder, values: Any) -> tuple[Any, Any]:
    """The ids of values [B, N], any where missing, and which are missing."""
    slot, data = encoder.slot, encoder.data
    if slot.kind.of_times:
        time = data.time_of(encoder.column)
        local = times_of(values, time.format) + time.seconds_ahead * SECOND
        return time_part(local, slot.ids), tf.math.is_nan(values)
    if slot.kind.of_numbers:
        boundaries = np.asarray(encoder.ids.lists.boundaries, np.float64)
        return searched(boundaries, values, "right"), tf.math.is_nan(values)
    if slot.ids == "integer":
        # Missing by its decimal text, as docs/formats/ids.md has it.
        missing = among(values, [int(text) % 2**64 for text in data.missing if is_decimal(text)])
        if slot.size is not None:
            missing |= (values ^ TOP_BIT) >= (int64(slot.size) ^ TOP_BIT)
        return values, missing
    hashed = hash_texts(values, slot.seed)
    several = slot.separator is not None or slot.pooling == "none"
    missing = among(hashed, encoder.ids.missing_parts if several else encoder.ids.missing_texts)
    if not isinstance(encoder.ids, VocabularyIds):
        return modulo(hashed, slot.size), missing
    ascending, keys = int64(encoder.ids.ascending) ^ TOP_BIT, hashed ^ TOP_BIT
    at = tf.minimum(searched(ascending, keys), len(encoder.ids.ascending) - 1)
    places = tf.gather(tf.constant(encoder.ids.places), at)
    known = tf.gather(ascending, at) == keys
    if not slot.oov:
        return places, missing | ~known
    return tf.where(known, places, modulo(hashed, slot.oov) + ascending.shape[0]), missing


def numbers_of(number: NumericInput, data: Data, values: Any) -> Any:
    """A numeric input float32 [B, width]: clipped, without missing numbers, transformed."""
    absent = tf.math.is_nan(values)
    if number.unit is not None:
        times = zip(tf.unstack(values, axis=1), map(data.time_of, columns_of(number)), strict=True)
        passed = [times_of(of, time.format) - since(number.since or "", time) for of, time in times]
        values = tf.cast(tf.stack(passed, axis=1), tf.float64) / (UNITS[number.unit] * SECOND)
    for bound, limit in zip(number.clip or (), (tf.maximum, tf.minimum), strict=False):
        if bound is not None:
            values = limit(values, bound)
    if number.default is not None:
        values, absent = tf.where(absent, float64(number.default), values), False
    if number.transform == "log1p":
        values = tf.sign(values) * tf.math.log1p(tf.abs(values))
    elif number.transform == "standardize":
        values = (values - number.mean) / number.deviation
    return tf.cast(tf.where(absent, float64(0), values), tf.float32)


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


def among(words: Any, chosen: Any) -> Any:
    """Which int64 words [B, N] are one of the chosen, which are unsigned."""
    return tf.reduce_any(words[:, :, tf.newaxis] == int64(chosen), axis=2)


def modulo(words: Any, size: int | None) -> Any:
    """Int64 words, which are unsigned, modulo a size; None: the words."""
    if size is None:
        return words
    unsigned = tf.bitcast(words, tf.uint64)
    return tf.bitcast(tf.math.floormod(unsigned, tf.constant(size, tf.uint64)), tf.int64)


def searched(ascending: Any, values: Any, side: Literal["left", "right"] = "left") -> Any:
    """How many of ascending numbers [n] are below values [B, N], or with `right` not above."""
    places = tf.searchsorted(ascending, tf.reshape(values, [-1]), side, tf.int64)
    return tf.reshape(places, tf.shape(values))


def pairs(joined: Any, left: Any, right: Any) -> Any:
    """`joined` of every two of left [B, M] and right [B, N], the right ones changing fastest."""
    both = joined(left[:, :, tf.newaxis], right[:, tf.newaxis, :])
    rows, *counts = tf.unstack(tf.shape(both))
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
