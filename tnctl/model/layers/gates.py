"""Gates: inputs that are multiplied by what a small network makes of something else."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from tnctl.model.layers.fully_connected import Axis, Dense, Mlp, WeightAxes
from tnctl.model.layers.interactions import coordinates


class Gated(keras.layers.Layer):
    """x, number by number times `scale` * activation(W tower(context) + b).

    The tower has the layers `hidden`, with rectifiers. In the place of a context there may be a
    vector of `width` weights, for which it is None. `l2` as in l2_regularizer.

    Input shapes: x [B, n], context [B, c] or None. Output shape: [B, n].
    """

    keeps_columns = True

    def __init__(
        self,
        hidden: Sequence[int],
        activation: str = "linear",
        scale: float = 1.0,
        width: int = 1,
        l2: float = 0.0,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        self.hidden = Mlp(hidden, l2=l2, name="hidden")
        self.activation, self.scale, self.width, self.l2 = activation, scale, width, l2
        self.context: Any = None

    def build(self, x_shape: Sequence[int], context_shape: Sequence[int] | None = None) -> None:
        if context_shape is None:
            context_shape = (1, self.width)
            self.context = self.add_weight(shape=context_shape, initializer="zeros", name="context")
        self.hidden.build(context_shape)
        widths = [context_shape[-1], *(layer.width for layer in self.hidden.hidden)]
        self.gate = Dense(x_shape[-1], self.activation, l2=self.l2, name="gate")
        self.gate.build((context_shape[0], widths[-1]))

    def call(self, x: Any, context: Any = None) -> Any:
        if self.context is not None:
            context = ops.convert_to_tensor(self.context)
        return self.scale * self.gate(self.hidden(context)) * x

    def weight_axes(self, x: Axis, context: Axis | None = None) -> dict[str, WeightAxes]:
        axes: dict[str, WeightAxes] = {}
        if self.context is not None:
            context = coordinates(self.width)
            axes[self.context.path] = {1: context}
        first = self.hidden if self.hidden.hidden else self.gate
        axes |= first.weight_axes(context or [])
        axes[self.gate.kernel.path] = axes.get(self.gate.kernel.path, {}) | {1: x}
        return axes | {self.gate.bias.path: {0: x}}
