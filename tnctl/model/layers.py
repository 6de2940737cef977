"""Layers of CTR models: formula, paper, shapes.

Some gradients are written out: the ones TensorFlow derives for a slice, a bias or a product with a
column are several times slower (benchmarks/README.md), and they are most of a step beside the large
products.
"""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf
from keras import ops

from tnctl.errors import UserError


@tf.custom_gradient
def leading_columns(x: Any, columns: int) -> Any:
    """x[:, :columns] of [B, W]; the gradient is padded, which is cheaper than a slice's own."""
    width = x.shape[1]

    def gradient(upstream: Any) -> Any:
        return tf.pad(upstream, [[0, 0], [0, width - columns]]), None

    return x[:, :columns], gradient


@tf.custom_gradient
def add_bias(x: Any, bias: Any) -> Any:
    """X + b of [B, n] and [n]; the gradient of b is a plain sum."""

    def gradient(upstream: Any) -> Any:
        return upstream, tf.reduce_sum(upstream, axis=0)

    return tf.nn.bias_add(x, bias), gradient


@tf.custom_gradient
def times_column(x: Any, kernel: Any) -> Any:
    """X W of [B, n] and [n, 1]; the gradient of x is an outer product."""

    def gradient(upstream: Any) -> Any:
        return upstream * tf.transpose(kernel), tf.matmul(x, upstream, transpose_a=True)

    return tf.matmul(x, kernel), gradient


@tf.custom_gradient
def pairwise_products(embeddings: Any) -> Any:
    """Half of (square of the sum - sum of the squares) of [B, S, d], summed over d: [B, 1]."""
    sums = tf.reduce_sum(embeddings, axis=1)
    squares = tf.reduce_sum(tf.square(embeddings), axis=[1, 2])

    def gradient(upstream: Any) -> Any:
        return upstream[:, :, tf.newaxis] * (sums[:, tf.newaxis, :] - embeddings)

    return 0.5 * (tf.reduce_sum(tf.square(sums), axis=1) - squares)[:, tf.newaxis], gradient


class LeadingColumns(keras.layers.Layer):
    """The first columns of x.

    Input shape: [B, W]. Output shape: [B, columns].
    """

    def __init__(self, columns: int, **settings: Any) -> None:
        super().__init__(**settings)
        self.columns = columns

    def call(self, x: Any) -> Any:
        return leading_columns(x, self.columns)


class FactorizationMachine(keras.layers.Layer):
    """Second-order interactions of all pairs of slots.

    y = sum over i < j of <v_i, v_j> = 1/2 * sum over f of ((sum_i v_if)^2 - sum_i v_if^2)

    Rendle, Factorization Machines, ICDM 2010, lemma 3.1. Always float32: it is a sum of squares.

    Input shape: [B, S, d], the embeddings of S slots. Output shape: [B, 1].
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(dtype="float32", **settings)

    def call(self, embeddings: Any) -> Any:
        return pairwise_products(embeddings)


class Dense(keras.layers.Layer):
    """One fully connected layer: y = activation(x W + b).

    The kernel starts as in He et al., 2015, the scale that keeps the variance through rectifiers.

    Input shape: [B, n]. Output shape: [B, width].
    """

    def __init__(self, width: int, activation: str | None = None, **settings: Any) -> None:
        super().__init__(**settings)
        if width < 1:
            raise UserError(f"a layer must be at least 1 wide. Received: {width}")
        self.width = width
        self.activation = keras.activations.get(activation)

    def build(self, shape: Sequence[int]) -> None:
        self.kernel = self.add_weight(
            shape=(shape[-1], self.width), initializer="he_normal", name="kernel"
        )
        self.bias = self.add_weight(shape=(self.width,), initializer="zeros", name="bias")

    def call(self, x: Any) -> Any:
        return self.activation(
            add_bias(ops.matmul(x, self.kernel), ops.convert_to_tensor(self.bias))
        )


class Mlp(keras.layers.Layer):
    """Fully connected layers: h_k = activation(h_{k-1} W_k + b_k).

    Input shape: [B, n]. Output shape: [B, hidden[-1]].
    """

    def __init__(self, hidden: Sequence[int], activation: str = "relu", **settings: Any) -> None:
        super().__init__(**settings)
        self.hidden = [Dense(width, activation) for width in hidden]

    def build(self, shape: Sequence[int]) -> None:
        for layer in self.hidden:
            layer.build(shape)
            shape = (shape[0], layer.width)

    def call(self, x: Any) -> Any:
        for layer in self.hidden:
            x = layer(x)
        return x


class Logit(keras.layers.Layer):
    """One linear unit, y = x w + b, in float32 whatever the precision of the rest.

    Input shape: [B, n]. Output shape: [B, 1].
    """

    def __init__(self, use_bias: bool = True, **settings: Any) -> None:
        super().__init__(dtype="float32", **settings)
        self.use_bias = use_bias

    def build(self, shape: Sequence[int]) -> None:
        self.kernel = self.add_weight(
            shape=(shape[-1], 1), initializer="glorot_uniform", name="kernel"
        )
        if self.use_bias:
            self.bias = self.add_weight(shape=(1,), initializer="zeros", name="bias")

    def call(self, x: Any) -> Any:
        y = times_column(x, ops.convert_to_tensor(self.kernel))
        return y + self.bias if self.use_bias else y


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
