"""Attention of a candidate over sequences of behaviors."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf
from keras import ops

from tnctl.errors import UserError
from tnctl.model.layers.fully_connected import Axis, Logit, Mlp, RegularizedLayer, WeightAxes
from tnctl.model.layers.normalization import Dropout


class TargetAttention(keras.layers.Layer):
    """The sum of a sequence's embeddings, each weighted by its relation to the target.

    v = sum over j of a(e_j, t) e_j                                          (equation 3)

    Zhou et al., Deep Interest Network, KDD 2018; a is the activation unit of its figure 2: fully
    connected layers over (e_j, e_j * t, t). (Implementations add the difference t - e_j, which the
    first layer can compute from e_j and t.) The weights are not normalised, so that their sum
    expresses how strong the interest is; with `softmax` they sum to 1. Places after the end of a
    sequence have no weight, and no part in an activation's statistics. An empty sequence: zeros.

    A weight is multiplied by exp(b) with `positions`, b being learned for each place, which counts
    from the sequence's end, and by exp(t) with `times`. Both start at 1. With `softmax` the
    products sum to 1.

    Input shapes: sequence [B, L, d], lengths int [B], target [B, d], times [B, L, 1] or None.
    Output shape: [B, d].
    """

    keeps_columns = multiplies_input = True

    def __init__(
        self,
        hidden: Sequence[int],
        activation: str = "dice",
        softmax: bool = False,
        positions: bool = False,
        l2: float = 0.0,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        self.positions = positions
        self.unit = Mlp(hidden, activation, l2=l2, name="unit")
        self.score = Logit(l2=l2, name="score")
        self.softmax = softmax

    def build(
        self,
        sequence_shape: Sequence[int],
        lengths_shape: Sequence[int],  # noqa: ARG002 (Keras passes the shape of each input)
        target_shape: Sequence[int],  # noqa: ARG002
        times_shape: Sequence[int] | None = None,  # noqa: ARG002
    ) -> None:
        if self.positions:
            places = (sequence_shape[1],)
            self.of_place = self.add_weight(shape=places, initializer="zeros", name="positions")
        shape = (sequence_shape[0], 3 * sequence_shape[-1])
        self.unit.build(shape)
        width = self.unit.hidden[-1].width if self.unit.hidden else shape[-1]
        self.score.build((shape[0], width))

    def call(
        self,
        sequence: Any,
        lengths: Any,
        target: Any,
        times: Any = None,
        training: bool | None = None,
    ) -> Any:
        length, width = sequence.shape[1:]
        present = presence(length, lengths)
        targets = ops.broadcast_to(target[:, None, :], ops.shape(sequence))
        pairs = ops.concatenate([sequence, sequence * targets, targets], axis=2)
        pairs = ops.reshape(pairs, (-1, 3 * width))
        where = ops.reshape(present, (-1,))
        scores = self.score(self.unit(pairs, where=where, training=training))
        scores = ops.reshape(scores, (-1, length))
        logs = [] if times is None else [ops.cast(times[:, :, 0], scores.dtype)]
        if self.positions:
            logs.append(ops.cast(from_the_end(self.of_place, lengths), scores.dtype))
        if self.softmax:
            weights = masked_softmax(sum(logs, scores), present)
        else:
            weights = scores * mask(present)
            weights = weights * ops.exp(sum(logs)) if logs else weights
        return ops.sum(ops.cast(weights, sequence.dtype)[:, :, None] * sequence, axis=1)

    def weight_axes(
        self,
        sequence: Axis,
        lengths: Axis,  # noqa: ARG002 (an axis for each input)
        target: Axis,
        times: Axis | None = None,  # noqa: ARG002
    ) -> dict[str, WeightAxes]:
        products: Axis = [
            e and t and ((*e[0], *t[0]), ("product", e[1]))
            for e, t in zip(sequence, target, strict=True)
        ]
        first = self.unit if self.unit.hidden else self.score
        return first.weight_axes([*sequence, *products, *target])


class BehaviorTransformer(RegularizedLayer):
    """What transformer blocks make of a candidate, which attends to a sequence of behaviors.

    E  = the sequence, then the target; with each its place, learned, side by side
    MH(E) = [head_1, ..., head_h] W^H                                        (equation 2)
    head_i = softmax(E W^Q_i (E W^K_i)^T / sqrt(d / h)) E W^V_i              (equations 1 and 3)
    S' = LayerNorm(E + Dropout(MH(E)))                                       (equation 5)
    F  = LayerNorm(S' + Dropout(LeakyReLU(S' W_1 + b_1) W_2 + b_2))          (equation 6)

    Chen et al., Behavior Sequence Transformer, DLP-KDD 2019. The last block computes only what is
    returned: its output for the target. A place is the distance from the end of the sequence, the
    target's 0, where the paper has the difference of times. LeakyReLU has slope 0.01. `l2` as in
    l2_regularizer, of all kernels.

    Input shapes: sequence [B, L, n], lengths int [B], target [B, n]. Output shape: [B, d], where
    d is n and the `place_width`.
    """

    def __init__(
        self,
        heads: int,
        blocks: int,
        place_width: int,
        dropout: float = 0.0,
        l2: float = 0.0,
        **settings: Any,
    ) -> None:
        super().__init__(l2, **settings)
        if min(heads, blocks, place_width) < 1:
            raise UserError(
                "a transformer has at least 1 head and block, and places of width 1. Received: "
                f"heads={heads}, blocks={blocks} and place_width={place_width}"
            )
        self.heads, self.blocks, self.place_width = heads, blocks, place_width
        names = [f"{part}_{block}" for block in range(blocks) for part in ("attention", "fed")]
        self.dropouts = {name: Dropout(dropout, name=f"dropout_{name}") for name in names}
        self.norms = {
            name: keras.layers.LayerNormalization(
                epsilon=1e-5, dtype="float32", name=f"norm_{name}"
            )
            for name in names
        }

    def build(
        self,
        sequence_shape: Sequence[int],
        lengths_shape: Sequence[int],  # noqa: ARG002 (Keras passes the shape of each input)
        target_shape: Sequence[int],  # noqa: ARG002
    ) -> None:
        width = sequence_shape[-1] + self.place_width
        if width % self.heads:
            raise UserError(
                f"the width {width} ({sequence_shape[-1]} of behaviors and {self.place_width} of "
                f"places) must divide into equal heads. Received: heads={self.heads}"
            )
        self.places = self.add_weight(
            shape=(sequence_shape[1] + 1, self.place_width),
            initializer=keras.initializers.RandomNormal(stddev=0.01),
            name="places",
        )
        self.kernels = {
            f"{name}_{block}": self.add_kernel(f"{name}_{block}", (width, width))
            for block in range(self.blocks)
            for name in ("query", "key", "value", "heads", "w1", "w2")
        }
        self.biases = {
            f"{name}_{block}": self.add_weight(
                shape=(width,), initializer="zeros", name=f"{name}_{block}"
            )
            for block in range(self.blocks)
            for name in ("b1", "b2")
        }
        for name, norm in self.norms.items():
            norm.build((*sequence_shape[:-1], width))
            self.dropouts[name].build((*sequence_shape[:-1], width))

    def call(self, sequence: Any, lengths: Any, target: Any, training: bool | None = None) -> Any:
        x = ops.concatenate([sequence, target[:, None, :]], axis=1)
        places = from_the_end(self.places[1:], lengths)
        of_target = ops.broadcast_to(self.places[:1], ops.shape(places[:, :1]))
        places = ops.concatenate([places, of_target], axis=1)
        x = ops.concatenate([x, ops.cast(places, x.dtype)], axis=2)
        present = presence(sequence.shape[1], lengths)
        present = ops.concatenate([present, tf.ones_like(present[:, :1])], axis=1)
        for block in range(self.blocks):
            queries = x if block + 1 < self.blocks else x[:, -1:]
            x = self._block(block, queries, x, present, training)
        return x[:, 0]

    def _block(self, block: int, queries: Any, x: Any, present: Any, training: bool | None) -> Any:
        """One block: the queries [B, Q, d] attend to x [B, T, d] where it is present [B, T]."""

        def product(y: Any, name: str) -> Any:
            return ops.matmul(y, self.kernels[f"{name}_{block}"])

        def apart(y: Any) -> Any:  # [B, Q, d] to [B, h, Q, d / h]
            shape = (-1, y.shape[1], self.heads, y.shape[2] // self.heads)
            return ops.transpose(ops.reshape(y, shape), (0, 2, 1, 3))

        def added(to: Any, y: Any, part: str) -> Any:
            y = self.dropouts[f"{part}_{block}"](y, training=training)
            return ops.cast(self.norms[f"{part}_{block}"](to + y), y.dtype)

        query = apart(product(queries, "query"))
        key, value = (apart(product(x, name)) for name in ("key", "value"))
        scores = tf.matmul(query, key, transpose_b=True) / query.shape[-1] ** 0.5
        weights = masked_softmax(ops.cast(scores, "float32"), present[:, None, None, :])
        heads = ops.transpose(ops.matmul(ops.cast(weights, value.dtype), value), (0, 2, 1, 3))
        heads = ops.reshape(heads, (-1, queries.shape[1], x.shape[2]))
        s = added(queries, product(heads, "heads"), "attention")
        b1, b2 = (ops.cast(self.biases[f"{name}_{block}"], s.dtype) for name in ("b1", "b2"))
        inner = tf.nn.leaky_relu(product(s, "w1") + b1, 0.01)
        return added(s, product(inner, "w2") + b2, "fed")

    def weight_axes(
        self,
        sequence: Axis,
        lengths: Axis,  # noqa: ARG002 (an axis for each input)
        target: Axis,
    ) -> dict[str, WeightAxes]:
        columns: Axis = [
            e if e == t else e and ((), e[1]) for e, t in zip(sequence, target, strict=True)
        ]
        columns += [((), ("place", column)) for column in range(self.place_width)]
        axes: dict[str, WeightAxes] = {self.places.path: {1: columns[-self.place_width :]}}
        for name, kernel in self.kernels.items():
            axes[kernel.path] = {1 if name.startswith(("heads", "w2")) else 0: columns}
        over = [bias for name, bias in self.biases.items() if name.startswith("b2")]
        over += [weight for norm in self.norms.values() for weight in norm.weights]
        return axes | {weight.path: {0: columns} for weight in over}


def presence(length: int, lengths: Any) -> Any:
    """Which of `length` places are within sequences of `lengths`, [B]: bool [B, length]."""
    return ops.arange(length)[None, :] < lengths[:, None]


def mask(present: Any) -> Any:
    """1 where a value is present, else 0: float32 of the shape of `present`."""
    return ops.cast(present, "float32")


def masked_softmax(scores: Any, present: Any) -> Any:
    """The softmax of [..., L] over the places that are present, bool; without any: zeros."""
    lowest = tf.where(present, scores, scores.dtype.min)
    weights = tf.exp(lowest - tf.stop_gradient(tf.reduce_max(lowest, axis=-1, keepdims=True)))
    weights = weights * mask(present)
    return weights / tf.maximum(tf.reduce_sum(weights, axis=-1, keepdims=True), 1e-30)


def from_the_end(places: Any, lengths: Any) -> Any:
    """Values [L, ...] of places that count from the end of sequences of `lengths`: [B, L, ...]."""
    places = ops.convert_to_tensor(places)
    shape = tf.concat([tf.shape(lengths), tf.shape(places)], axis=0)
    return tf.reverse_sequence(tf.broadcast_to(places, shape), lengths, seq_axis=1)


def sequences_of(inputs: Any, behavior: Any, target: Any) -> list[tuple[Any, Any, Any]]:
    """What `side_by_side` returns for each sequence; lists of lists name several sequences."""
    if isinstance(behavior, str) or not any(isinstance(entry, list | tuple) for entry in behavior):
        return [side_by_side(inputs, behavior, target)]
    targets = names(target)
    if len(behavior) != len(targets):
        raise no_pairs(behavior, target)
    return [side_by_side(inputs, *pair) for pair in zip(behavior, targets, strict=True)]


def no_pairs(behavior: Any, target: Any) -> UserError:
    """The error for behaviors and targets that are not as many."""
    return UserError(
        "each behavior has its target. Received: "
        f"recipe.behavior={behavior} and recipe.target={target}"
    )


def times_of(inputs: Any, sequences: Sequence[tuple[Any, Any, Any]], given: Any) -> list[Any]:
    """The sequences [B, L, 1] that weigh the places of each of `sequences`, by name; or Nones.

    Raises UserError unless there is one for each sequence, as long as it and of width 1.
    """
    if given is None:
        return [None] * len(sequences)
    times = [inputs.sequence(name)[0] for name in names(given)]
    shapes = [list(time.shape[1:]) for time in times]
    expected = [[sequence.shape[1], 1] for sequence, _, _ in sequences]
    if shapes != expected:
        raise UserError(
            "recipe.time_weight has for each sequence a slot with pooling=none, of its max_length "
            f"and width 1: {expected}. Received: {shapes} of {given}"
        )
    return times


def side_by_side(inputs: Any, behavior: Any, target: Any) -> tuple[Any, Any, Any]:
    """Sequences and their target slots, by name: one name each, or lists of equal length.

    Returns the sequences' embeddings [B, L, d], their lengths int32 [B] and the targets' embeddings
    [B, d]; of several slots the embeddings are concatenated along d. Raises UserError where shapes
    differ.
    """
    behaviors, targets = names(behavior), names(target)
    if not behaviors or len(behaviors) != len(targets):
        raise no_pairs(behavior, target)
    sequences, lengths = zip(*map(inputs.sequence, behaviors), strict=True)
    candidates = [inputs.slot(name) for name in targets]
    for name, sequence, of, candidate in zip(
        behaviors, sequences, targets, candidates, strict=True
    ):
        if sequence.shape[2] != candidate.shape[1]:
            raise UserError(
                f"slots.{name} and its target slots.{of} must have one width. Received: "
                f"{sequence.shape[2]} and {candidate.shape[1]}"
            )
        if sequence.shape[1] != sequences[0].shape[1]:
            raise UserError(
                f"behaviors go place by place, so slots.{behaviors[0]} and slots.{name} must have "
                f"one max_length. Received: {sequences[0].shape[1]} and {sequence.shape[1]}"
            )
    if len(behaviors) == 1:
        return sequences[0], lengths[0], candidates[0]
    shortest = ops.min(ops.stack(lengths, axis=1), axis=1)
    return (
        ops.concatenate(sequences, axis=2),
        shortest,
        ops.concatenate(candidates, axis=1),
    )


def names(given: str | Sequence[str]) -> list[str]:
    """One name or several, as a list."""
    return [given] if isinstance(given, str) else list(given)
