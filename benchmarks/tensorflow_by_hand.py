"""W1's step as a competent TensorFlow user writes it, without tnctl.

One variable [10 M, 9] holds all embeddings with their linear weight, another AdaGrad's
accumulators; an id's row is the id modulo 10 M, so ids collide and the table never grows. The
dense part (DeepFM, Keras' Adam) is the floor's network plus a linear weight per numeric feature.

XLA cannot compile the whole step (tf.unique has no static shape, the sparse AdaGrad no kernel):
with `xla` the dense part alone is compiled. That was the faster of the two at a batch of 1024 and
made no difference at 4096, so it is the default. In bfloat16 (the MLP alone, as
Keras' mixed_bfloat16) XLA is slower: it has no fast bfloat16 on CPUs.
"""

from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

from benchmarks import timing
from benchmarks.floor import fm, initial_variables, make_floor, mlp
from benchmarks.workload import DIM, KEYS, NUMERIC, SLOTS, Workload, load

ROW = DIM + 1


def make_by_hand(
    workload: Workload, batch_size: int, xla: bool = True, precision: str = "float32"
) -> Callable[[int], np.ndarray]:
    """A training step over the workload's batches; it returns the loss."""
    table = tf.Variable(tf.random.stateless_uniform([KEYS, ROW], [1, 2], -0.01, 0.01))
    accumulator = tf.Variable(tf.fill([KEYS, ROW], 0.1))
    variables = [*initial_variables(), tf.Variable(tf.zeros([NUMERIC, 1]))]
    optimizer = keras.optimizers.Adam(1e-3)
    optimizer.build(variables)

    @tf.function(jit_compile=xla)
    def dense_step(rows, numeric, labels):
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch([rows, *variables])
            # tf.split, not two slices: a slice's gradient is padded to full size and then added
            embeddings, linear = tf.split(rows, [DIM, 1], axis=2)
            x = tf.concat([tf.reshape(embeddings, [-1, SLOTS * DIM]), numeric], 1)
            first_order = tf.reduce_sum(linear, [1, 2]) + (numeric @ variables[-1])[:, 0]
            logits = mlp(variables[:-1], x, precision) + fm(x) + first_order
            losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)
            loss = tf.reduce_mean(losses)
        of_rows, *dense = tape.gradient(loss, [rows, *variables])
        optimizer.apply_gradients(zip(dense, variables, strict=True))
        return loss, of_rows

    @tf.function(
        input_signature=[
            tf.TensorSpec([batch_size, SLOTS], tf.int64),
            tf.TensorSpec([batch_size, NUMERIC], tf.float32),
            tf.TensorSpec([batch_size], tf.float32),
        ]
    )
    def step(ids, numeric, labels):
        indices = tf.reshape(tf.math.floormod(ids, KEYS), [-1])
        rows = tf.reshape(tf.gather(table, indices), [batch_size, SLOTS, ROW])
        loss, of_rows = dense_step(rows, numeric, labels)
        unique, places = tf.unique(indices)
        summed = tf.math.unsorted_segment_sum(
            tf.reshape(of_rows, [-1, ROW]), places, tf.size(unique)
        )
        tf.raw_ops.ResourceSparseApplyAdagradV2(
            var=table.handle,
            accum=accumulator.handle,
            lr=0.05,
            epsilon=1e-7,
            grad=summed,
            indices=unique,
        )
        return loss

    ids = workload.ids.view(np.int64)  # ids are below 2**63
    batches = len(ids) // batch_size

    def run(i: int) -> np.ndarray:
        first = i % batches * batch_size
        part = slice(first, first + batch_size)
        given = (ids[part], workload.numeric[part], workload.labels[part])
        return step(*map(tf.constant, given)).numpy()

    run.tables = (table, accumulator)  # the graph holds variables weakly
    return run


def main() -> None:
    workload = load()
    comparisons = {}
    for batch_size in (4096, 1024):
        steps = {
            "floor": make_floor(batch_size),
            "by hand, dense part by XLA": make_by_hand(workload, batch_size),
            "by hand, plain": make_by_hand(workload, batch_size, xla=False),
        }
        comparisons[f"B={batch_size}"] = timing.compare(steps, batch_size)
    timing.show("TensorFlow by hand", "samples", comparisons)


if __name__ == "__main__":
    main()
