"""Functions whose gradients are written out.

The gradients that TensorFlow derives for a slice, a bias, a product with a column or a
normalisation are several times slower (benchmarks/README.md), and they are most of a step beside
the large products.
"""

from typing import Any

import numpy as np
import tensorflow as tf


@tf.custom_gradient
def columns_of(x: Any, first: int, count: int) -> Any:
    """x[:, first : first + count] of [B, W]; the gradient is padded, cheaper than a slice's own."""
    after = x.shape[1] - first - count

    def gradient(upstream: Any) -> Any:
        return tf.pad(upstream, [[0, 0], [first, after]]), None, None

    return x[:, first : first + count], gradient


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


@tf.custom_gradient
def inner_products(vectors: Any) -> Any:
    """<v_i, v_j> for all i < j of [B, F, d], row by row: [B, F * (F - 1) / 2]."""
    count = vectors.shape[1]
    rows, columns = np.triu_indices(count, 1)
    pairs = np.full((count, count), len(rows))
    pairs[rows, columns] = pairs[columns, rows] = np.arange(len(rows))

    def gradient(upstream: Any) -> Any:
        padded = tf.pad(upstream, [[0, 0], [0, 1]])  # nothing is learned of <v_i, v_i>
        weights = tf.reshape(tf.gather(padded, pairs.ravel(), axis=1), [-1, count, count])
        return tf.matmul(weights, vectors)

    products = tf.reshape(tf.matmul(vectors, vectors, transpose_b=True), [-1, count**2])
    return tf.gather(products, rows * count + columns, axis=1), gradient


def normalised(x: Any, gamma: Any, beta: Any, where: Any, epsilon: float) -> Any:
    """Gamma * (x - mean) / sqrt(variance + epsilon) + beta of [B, n], then mean and variance [n].

    The statistics are of the rows that `where`, bool [B], marks (None: of all). Mean and variance
    are handed out to be stored, and pass no gradient.
    """
    share: Any = None
    if where is not None:
        weights = tf.cast(where, x.dtype)[:, None]
        share = weights / tf.maximum(tf.reduce_sum(weights), 1.0)

    def mean_of(values: Any) -> Any:
        if share is None:
            return tf.reduce_mean(values, axis=0)
        return tf.reduce_sum(share * values, axis=0)

    @tf.custom_gradient
    def function(x: Any, gamma: Any, beta: Any) -> Any:
        mean = mean_of(x)
        centred = x - mean
        variance = mean_of(tf.square(centred))
        root = tf.math.rsqrt(variance + epsilon)
        scale = root * gamma

        def gradient(upstream: Any, *_: Any) -> Any:
            of_beta = tf.reduce_sum(upstream, axis=0)
            of_gamma = tf.reduce_sum(upstream * centred, axis=0) * root
            part = 1 / tf.cast(tf.shape(x)[0], x.dtype) if share is None else share
            through = part * (scale * of_beta + centred * (scale * root * of_gamma))
            return scale * upstream - through, of_gamma, of_beta

        return (centred * scale + beta, mean, variance), gradient

    return function(x, gamma, beta)
