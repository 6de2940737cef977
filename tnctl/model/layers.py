"""Layers of CTR models: formula, paper, shapes."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops


class FactorizationMachine(keras.layers.Layer):
    """Second-order interactions of all pairs of slots.

    y = sum over i < j of <v_i, v_j> = 1/2 * sum over f of ((sum_i v_if)^2 - sum_i v_if^2)

    Rendle, Factorization Machines, ICDM 2010, lemma 3.1. Always float32: it is a sum of squares.

    Input shape: [B, S, d], the embeddings of S slots. Output shape: [B, 1].
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(dtype="float32", **settings)

    def call(self, embeddings: Any) -> Any:
        sums = ops.sum(embeddings, axis=1)
        squares = ops.sum(embeddings * embeddings, axis=1)
        return 0.5 * ops.sum(sums * sums - squares, axis=1, keepdims=True)


class Mlp(keras.layers.Layer):
    """Fully connected layers: h_k = activation(h_{k-1} W_k + b_k).

    Input shape: [B, n]. Output shape: [B, hidden[-1]].
    """

    def __init__(self, hidden: Sequence[int], activation: str = "relu", **settings: Any) -> None:
        super().__init__(**settings)
        # He et al., 2015: the scale that keeps the variance through rectifiers.
        self.hidden = [
            keras.layers.Dense(width, activation, kernel_initializer="he_normal")
            for width in hidden
        ]

    def build(self, shape: Sequence[int | None]) -> None:
        for layer in self.hidden:
            layer.build(shape)
            shape = layer.compute_output_shape(shape)

    def call(self, x: Any) -> Any:
        for layer in self.hidden:
            x = layer(x)
        return x


class Logit(keras.layers.Dense):
    """One linear unit, in float32 whatever the precision of the rest.

    Input shape: [B, n]. Output shape: [B, 1].
    """

    def __init__(self, use_bias: bool = True, **settings: Any) -> None:
        super().__init__(1, use_bias=use_bias, dtype="float32", **settings)


class Bias(keras.layers.Layer):
    """y = x + b, one b for all.

    Input shape: [B, 1]. Output shape: [B, 1].
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(dtype="float32", **settings)

    def build(self, shape: Sequence[int | None]) -> None:  # noqa: ARG002 (Keras' signature)
        self.bias = self.add_weight(shape=(1,), initializer="zeros", name="bias")

    def call(self, x: Any) -> Any:
        return x + self.bias
