"""Ids in a graph, in plain TensorFlow operations: the hash of keys, and which ids of a slot count.

Ids are unsigned and TensorFlow's operations signed: an id is the int64 of the same bits, products
wrap, and a shift to the right is masked. docs/formats/ids.md.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from tnctl.serving.graph.graph_document import LENGTH, OF_WEIGHTS, SlotInput

FACTORS = (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53)
TOP_BIT = -(2**63)  # flipped, unsigned order is signed order


def as_int64(number: int) -> int:
    """The signed number with the 64 bits of an unsigned one."""
    return number - 2**64 if number >= 2**63 else number


def mix64(words: Any) -> Any:
    """MurmurHash3's finalizer of int64 words, of any shape."""
    for factor in FACTORS:
        words = (words ^ high_bits(words)) * as_int64(factor)
    return words ^ high_bits(words)


def high_bits(words: Any) -> Any:
    """Int64 words shifted to the right by 33 as if they were unsigned."""
    return tf.bitwise.right_shift(words, 33) & (2**31 - 1)


class Cell(NamedTuple):
    """A slot of all examples: ids int64 [B, N], which count bool [B, N], weights float32 or None.

    Of a sequence the ids of an example come first, and N is its `max_length`.
    """

    ids: Any
    kept: Any
    weights: Any | None = None


def given_cell(name: str, slot: SlotInput, inputs: Mapping[str, Any], ids: Any) -> Cell:
    """The cell of a slot whose ids [B, N] are given, with their number and weights in `inputs`."""
    kept = tf.sequence_mask(inputs[name + LENGTH], tf.shape(ids)[1])
    return Cell(ids, kept, None if slot.weights is None else inputs[name + OF_WEIGHTS])


def kept_ids(slot: SlotInput, cell: Cell) -> Cell:
    """The ids without padding and those beyond `max_length`, or else the one of missing values."""
    ids, kept, weights = cell
    if slot.padding is not None:
        kept &= ids != as_int64(int(slot.padding))
    turn = tf.cumsum(tf.cast(kept, tf.int64), axis=1)
    if slot.max_length is not None:
        if slot.keep == "last":
            count = tf.reduce_sum(tf.cast(kept, tf.int64), axis=1, keepdims=True)
            turn -= tf.maximum(count - slot.max_length, 0)
        kept &= (turn > 0) & (turn <= slot.max_length)
    if slot.pooling == "none":
        at = tf.where(kept)
        places = tf.stack([at[:, 0], tf.gather_nd(turn, at) - 1], axis=1)
        shape = tf.stack([tf.shape(ids, tf.int64)[0], slot.max_length])
        length = tf.reduce_sum(tf.cast(kept, tf.int32), axis=1)
        ids = tf.scatter_nd(places, tf.gather_nd(ids, at), shape)
        return Cell(ids, tf.sequence_mask(length, slot.max_length))
    if slot.missing == "value":
        bare = ~tf.reduce_any(kept, axis=1, keepdims=True)
        missing_id = tf.constant(as_int64(int(slot.missing_id or 0)), tf.int64)
        missing = tf.fill(tf.shape(bare), missing_id)
        ids, kept = tf.concat([ids, missing], axis=1), tf.concat([kept, bare], axis=1)
        if weights is not None:
            weights = tf.concat([weights, tf.ones_like(bare, tf.float32)], axis=1)
    return Cell(ids, kept, weights)
