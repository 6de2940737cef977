"""Activations by name, and those that have weights."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf
from keras import ops

from tnctl.errors import UserError, did_you_mean
from tnctl.model.layers.normalization import BatchNorm

PLAIN = (
    "elu", "gelu", "leaky_relu", "linear", "relu", "selu", "sigmoid", "silu", "softplus", "tanh",
)  # fmt: skip


def activation_of(name: str | None) -> Any:
    """The activation of a name (None: linear): a function, or a new layer where it has weights."""
    name = name or "linear"
    with_weights = {"prelu": PRelu, "dice": Dice}
    if name in with_weights:
        return with_weights[name](name=name)
    if name not in PLAIN:
        raise UserError(f"no activation '{name}'. {did_you_mean(name, [*PLAIN, *with_weights])}")
    return keras.activations.get(name)


class PRelu(keras.layers.Layer):
    """f(s) = s where s > 0, else alpha * s, with an alpha per column that starts at 0.25.

    He et al., Delving Deep into Rectifiers, ICCV 2015, equation 1.

    Input shape: [B, n]. Output shape: [B, n].
    """

    keeps_columns = True

    def build(self, shape: Sequence[int]) -> None:
        start = keras.initializers.Constant(0.25)
        self.alpha = self.add_weight(shape=(shape[-1],), initializer=start, name="alpha")

    def call(self, s: Any) -> Any:
        return tf.nn.relu(s) - self.alpha * tf.nn.relu(-s)


class Dice(keras.layers.Layer):
    """f(s) = p(s) * s + (1 - p(s)) * alpha * s,  p(s) = sigmoid((s - E[s]) / sqrt(Var[s] + eps)).

    Zhou et al., Deep Interest Network, KDD 2018, equation 3: a PReLU whose bend follows the data.
    E and Var are batch normalization's (`where` as there); eps is 1e-8; an alpha per column starts
    at 0. Always float32.

    Input shape: [B, n]. Output shape: [B, n].
    """

    keeps_columns = True

    def __init__(self, **settings: Any) -> None:
        super().__init__(dtype="float32", **settings)
        self.standardized = BatchNorm(0.9, epsilon=1e-8, affine=False, name="standardized")

    def build(self, shape: Sequence[int]) -> None:
        self.standardized.build(shape)
        self.alpha = self.add_weight(shape=(shape[-1],), initializer="zeros", name="alpha")

    def call(self, s: Any, where: Any = None, training: bool | None = None) -> Any:
        p = ops.sigmoid(self.standardized(s, where=where, training=training))
        return s * (self.alpha + p * (1.0 - self.alpha))
