"""The floor: what TensorFlow alone takes for the dense part of W1's step.

DeepFM's MLP 400-400-400, FM term, loss, all gradients (of the embeddings x and the linear term
too, which are given as inputs) and Keras' Adam, plain or compiled by XLA, on inputs aliased from
aligned memory: no table, no data, no copies. No training step around such a network can be faster.

Its inputs are planar: x [B, 221], linear [B], labels [B]. With bfloat16 the MLP
computes in it, and variables, FM term and loss are float32, as with Keras' mixed_bfloat16.
"""

from collections.abc import Callable
from itertools import pairwise

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from benchmarks import timing
from benchmarks.workload import DIM, HIDDEN, NUMERIC, SLOTS, load
from tnctl.tables import aligned

EMBEDDINGS = SLOTS * DIM
WIDTH = EMBEDDINGS + NUMERIC
LABEL_BATCHES = 8


def make_fastest_floor(batch_size: int, precision: str = "float32") -> Callable[[int], memoryview]:
    """The faster of the plain and the compiled floor on this machine, timed in turns."""
    steps = {
        name: make_floor(batch_size, xla, precision)
        for name, xla in (("plain", False), ("compiled", True))
    }
    comparison = timing.compare(steps, batch_size, rounds=6)
    fastest = max(steps, key=comparison.rate)
    print(f"B={batch_size} {precision}: the floor is {fastest}")
    return steps[fastest]


def make_floor(
    batch_size: int, xla: bool = True, precision: str = "float32"
) -> Callable[[int], memoryview]:
    """A step over fixed inputs; it returns the gradient of x."""
    variables = initial_variables()
    optimizer = keras.optimizers.Adam(1e-3)
    optimizer.build(variables)

    def step(x, linear, labels):
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch([x, linear, *variables])
            logits = mlp(variables, x, precision) + fm(x) + linear
            losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)
            loss = tf.reduce_mean(losses)
        *dense, of_x, of_linear = tape.gradient(loss, [*variables, x, linear])
        optimizer.apply_gradients(zip(dense, variables, strict=True))
        return loss, logits, of_x, of_linear

    vector = tf.TensorSpec([batch_size], tf.float32)
    matrix = tf.TensorSpec([batch_size, WIDTH], tf.float32)
    concrete = tf.function(step, jit_compile=xla).get_concrete_function(matrix, vector, vector)

    x = alias(np.random.default_rng(0).standard_normal((batch_size, WIDTH)) * 0.01)
    linear = alias(np.zeros(batch_size))
    given = load().labels[: LABEL_BATCHES * batch_size].reshape(LABEL_BATCHES, batch_size)
    labels = [alias(batch) for batch in given]
    return lambda i: memoryview(concrete(x, linear, labels[i % LABEL_BATCHES])[2])


def initial_variables() -> list[tf.Variable]:
    """Kernels and biases in turn: He normal, zeros."""
    rng = np.random.default_rng(0)
    widths = [WIDTH, *HIDDEN, 1]
    variables = []
    for rows, columns in pairwise(widths):
        kernel = rng.standard_normal((rows, columns)) * np.sqrt(2 / rows)
        variables += [tf.Variable(kernel.astype(np.float32)), tf.Variable(tf.zeros(columns))]
    return variables


def mlp(variables: list[tf.Variable], x: tf.Tensor, precision: str) -> tf.Tensor:
    """float32 [B], computed in `precision` from float32 variables."""
    x, *variables = [tf.cast(value, precision) for value in (x, *variables)]
    *hidden, last = zip(variables[::2], variables[1::2], strict=True)
    for kernel, bias in hidden:
        x = tf.nn.relu(tf.nn.bias_add(tf.matmul(x, kernel), bias))
    return tf.cast(tf.nn.bias_add(tf.matmul(x, last[0]), last[1])[:, 0], tf.float32)


def fm(x: tf.Tensor) -> tf.Tensor:
    """The factorization machine's second order: half of (square of sum - sum of squares)."""
    embeddings = tf.reshape(x[:, :EMBEDDINGS], [-1, SLOTS, DIM])
    total = tf.reduce_sum(embeddings, 1)
    return 0.5 * tf.reduce_sum(total * total - tf.reduce_sum(embeddings * embeddings, 1), 1)


def alias(values: NDArray[np.float64] | NDArray[np.float32]) -> tf.Tensor:
    """A float32 tensor over aligned memory that holds `values`."""
    memory = aligned(values.shape)
    memory[:] = values
    return tf.experimental.dlpack.from_dlpack(memory.__dlpack__())


def main() -> None:
    comparisons = {}
    for batch_size in (4096, 1024):
        for precision in ("float32", "bfloat16"):
            steps = {
                "plain": make_floor(batch_size, False, precision),
                "XLA": make_floor(batch_size, True, precision),
            }
            comparisons[f"B={batch_size} {precision}"] = timing.compare(steps, batch_size)
    timing.show("floor", "samples", comparisons)


if __name__ == "__main__":
    main()
