"""Attention of a candidate over a sequence."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf
from keras import ops

from tnctl.errors import UserError
from tnctl.model.layers.fully_connected import Axis, Logit, Mlp, WeightAxes


class TargetAttention(keras.layers.Layer):
    """The sum of a sequence's embeddings, each weighted by its relation to the target.

    v = sum over j of a(e_j, t) e_j                                          (equation 3)

    Zhou et al., Deep Interest Network, KDD 2018; a is the activation unit of its figure 2: fully
    connected layers over (e_j, e_j * t, t). (Implementations add the difference t - e_j, which the
    first layer can compute from e_j and t.) The weights are not normalised, so that their sum
    expresses how strong the interest is; with `softmax` they sum to 1. Places after the end of a
    sequence have no weight, and no part in an activation's statistics. An empty sequence: zeros.

    Input shapes: sequence [B, L, d], lengths int [B], target [B, d]. Output shape: [B, d].
    """

    keeps_columns = multiplies_input = True

    def __init__(
        self,
        hidden: Sequence[int],
        activation: str = "dice",
        softmax: bool = False,
        l2: float = 0.0,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        self.unit = Mlp(hidden, activation, l2=l2, name="unit")
        self.score = Logit(l2=l2, name="score")
        self.softmax = softmax

    def build(
        self,
        sequence_shape: Sequence[int],
        lengths_shape: Sequence[int],  # noqa: ARG002 (Keras passes the shape of each input)
        target_shape: Sequence[int],  # noqa: ARG002
    ) -> None:
        shape = (sequence_shape[0], 3 * sequence_shape[-1])
        self.unit.build(shape)
        width = self.unit.hidden[-1].width if self.unit.hidden else shape[-1]
        self.score.build((shape[0], width))

    def call(self, sequence: Any, lengths: Any, target: Any, training: bool | None = None) -> Any:
        length, width = sequence.shape[1:]
        present = ops.arange(length)[None, :] < lengths[:, None]
        targets = ops.broadcast_to(target[:, None, :], ops.shape(sequence))
        pairs = ops.concatenate([sequence, sequence * targets, targets], axis=2)
        pairs = ops.reshape(pairs, (-1, 3 * width))
        where = ops.reshape(present, (-1,))
        scores = self.score(self.unit(pairs, where=where, training=training))
        scores = ops.reshape(scores, (-1, length))
        weights = masked_softmax(scores, present) if self.softmax else scores * mask(present)
        return ops.sum(ops.cast(weights, sequence.dtype)[:, :, None] * sequence, axis=1)

    def weight_axes(
        self,
        sequence: Axis,
        lengths: Axis,  # noqa: ARG002 (an axis for each input)
        target: Axis,
    ) -> dict[str, WeightAxes]:
        products: Axis = [
            e and t and ((*e[0], *t[0]), ("product", e[1]))
            for e, t in zip(sequence, target, strict=True)
        ]
        first = self.unit if self.unit.hidden else self.score
        return first.weight_axes([*sequence, *products, *target])


def mask(present: Any) -> Any:
    """1 where a value is present, else 0: float32 of the shape of `present`."""
    return ops.cast(present, "float32")


def masked_softmax(scores: Any, present: Any) -> Any:
    """The softmax of [B, L] over the places that are present, bool [B, L]; without any: zeros."""
    lowest = tf.where(present, scores, scores.dtype.min)
    weights = tf.exp(lowest - tf.stop_gradient(tf.reduce_max(lowest, axis=1, keepdims=True)))
    weights = weights * mask(present)
    return weights / tf.maximum(tf.reduce_sum(weights, axis=1, keepdims=True), 1e-30)


def side_by_side(inputs: Any, behavior: Any, target: Any) -> tuple[Any, Any, Any]:
    """Sequences and their target slots, by name: one name each, or lists of equal length.

    Returns the sequences' embeddings [B, L, d], their lengths int32 [B] and the targets' embeddings
    [B, d]; of several slots the embeddings are concatenated along d. Raises UserError where shapes
    differ.
    """
    behaviors, targets = names(behavior), names(target)
    if not behaviors or len(behaviors) != len(targets):
        raise UserError(
            "each behavior has its target. Received: "
            f"recipe.behavior={behavior} and recipe.target={target}"
        )
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
