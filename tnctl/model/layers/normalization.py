"""Batch normalization and dropout, in forms that assign nothing and keep no hidden state."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any
from zlib import crc32

import keras
import tensorflow as tf
from keras import ops

from tnctl.errors import UserError
from tnctl.model.layers.gradients import normalised

_STEP: ContextVar[Any] = ContextVar("step")


@contextmanager
def at_step(step: Any, seed: int = 0) -> Iterator[None]:
    """A context in which dropout is a function of (seed, step); step is an int64 scalar tensor."""
    token = _STEP.set((step, seed))
    try:
        yield
    finally:
        _STEP.reset(token)


def current_step() -> tuple[Any, int]:
    """The (step, seed) of the innermost at_step. Raises RuntimeError outside of any."""
    try:
        return _STEP.get()
    except LookupError:
        raise RuntimeError(
            "a layer that draws random numbers trains only within at_step(step)"
        ) from None


class Float32Layer(keras.layers.Layer):
    """A layer that computes in float32 whatever the precision of the rest."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(dtype="float32", **settings)


class BatchNorm(Float32Layer):
    """Batch normalization: y = gamma * (x - mean) / sqrt(variance + epsilon) + beta.

    Ioffe and Szegedy, Batch Normalization, ICML 2015, algorithm 1. In training the mean and
    (biased) variance of the batch are used; else the moving ones. Always float32.

    The layer never assigns: a training call leaves the batch's statistics, two tensors [n], in
    `batch_statistics`, from which `move_statistics` moves the moving ones:
    moving += max(1 - momentum, 1 / step) * (batch - moving): a plain mean of the first batches.

    Input shape: [B, n]. Output shape: [B, n]. With `where`, bool [B], the statistics are of the
    rows that it marks.
    """

    keeps_columns = True

    def __init__(
        self, momentum: float = 0.99, epsilon: float = 1e-3, affine: bool = True, **settings: Any
    ) -> None:
        super().__init__(**settings)
        if not 0 <= momentum <= 1:
            raise UserError(f"the momentum of batch norm is between 0 and 1. Received: {momentum}")
        self.momentum = momentum
        self.epsilon = epsilon
        self.affine = affine
        self.batch_statistics: Any = None

    def build(self, shape: Sequence[int]) -> None:
        width = (shape[-1],)
        if self.affine:
            self.gamma = self.add_weight(shape=width, initializer="ones", name="gamma")
            self.beta = self.add_weight(shape=width, initializer="zeros", name="beta")
        self.moving_mean = self.add_weight(
            shape=width, initializer="zeros", trainable=False, name="moving_mean"
        )
        self.moving_variance = self.add_weight(
            shape=width, initializer="ones", trainable=False, name="moving_variance"
        )

    def call(self, x: Any, where: Any = None, training: bool | None = None) -> Any:
        gamma, beta = tf.ones(x.shape[-1:]), tf.zeros(x.shape[-1:])
        if self.affine:
            gamma, beta = ops.convert_to_tensor(self.gamma), ops.convert_to_tensor(self.beta)
        if training:
            y, *statistics = normalised(x, gamma, beta, where, self.epsilon)
            self.batch_statistics = tuple(statistics)
            return y
        scale = ops.rsqrt(self.moving_variance + self.epsilon) * gamma
        return x * scale + (beta - self.moving_mean * scale)


class Dropout(keras.layers.Layer):
    """Dropout: in training every number is 0 with probability `rate`, else x / (1 - rate).

    Srivastava et al., Dropout, JMLR 2014, section 4, scaled in training instead of at the test.
    Which outputs are dropped is a function of (the layer's path, seed, step), so a run that resumes
    from a checkpoint drops the same ones as without the interruption.

    Input shape: any. Output shape: the same.
    """

    keeps_columns = True

    def __init__(self, rate: float, **settings: Any) -> None:
        super().__init__(**settings)
        if not 0 <= rate < 1:
            raise UserError(f"dropout must be at least 0 and below 1. Received: {rate}")
        self.rate = rate

    def call(self, x: Any, training: bool | None = None) -> Any:
        if not training or not self.rate:
            return x
        step, seed = current_step()
        layer_and_seed = crc32(self.path.encode()) + (seed % 2**31 << 32)
        # One algorithm by name: left to itself TensorFlow takes another one on other devices.
        drawn = tf.random.stateless_uniform(
            tf.shape(x), tf.stack([tf.constant(layer_and_seed, tf.int64), step]), alg="philox"
        )
        return tf.where(drawn >= self.rate, x / (1 - self.rate), tf.zeros_like(x))
