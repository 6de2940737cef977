"""Gates: of single numbers, by a network of something else; of experts, which are mixed."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import keras
from keras import ops

from tnctl.errors import UserError
from tnctl.model.layers.fully_connected import Axis, Dense, Mlp, WeightAxes
from tnctl.model.layers.interactions import coordinates
from tnctl.model.recipes import Tower


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


class GateUnit(keras.layers.Layer):
    """x, every number of which is scaled by a gate between 0 and 2: x * delta.

    delta = 2 sigmoid(relu([prior, sg(seen)] W + b) W' + b')       (Gate NU, equations 2 and 3)

    Chang et al., PEPNet, KDD 2023; sg passes no gradient. At logits of 0 it scales by 1. `l2` as in
    l2_regularizer.

    Input shapes: x [B, n], prior [B, p], seen [B, m]. Output shape: [B, n].
    """

    keeps_columns = multiplies_input = True

    def __init__(self, hidden: int, l2: float = 0.0, **settings: Any) -> None:
        super().__init__(**settings)
        self.gated = Gated([hidden], "sigmoid", 2.0, l2=l2, name="gated")

    def build(self, x_shape: Any, prior_shape: Any, seen_shape: Any) -> None:
        self.gated.build(x_shape, (x_shape[0], prior_shape[-1] + seen_shape[-1]))

    def call(self, x: Any, prior: Any, seen: Any) -> Any:
        return self.gated(x, ops.concatenate([prior, ops.stop_gradient(seen)], axis=1))

    def weight_axes(self, x: Axis, prior: Axis, seen: Axis) -> dict[str, WeightAxes]:
        return self.gated.weight_axes(x, [*prior, *seen])


class ExpertGate(keras.layers.Layer):
    """The experts' outputs, weighted by a softmax over x: sum over i of g(x)_i f_i.

    g(x) = softmax(x W + b)                                                  (equation 8)

    Ma et al., Multi-gate Mixture-of-Experts, KDD 2018, which has no bias; of `hidden` layers, W is
    over what they make of x, with rectifiers. `l2` as in l2_regularizer.

    Input shapes: x [B, n], experts [B, E, h]. Output shape: [B, h].
    """

    def __init__(self, hidden: Sequence[int] = (), l2: float = 0.0, **settings: Any) -> None:
        super().__init__(**settings)
        self.hidden = Mlp(hidden, l2=l2, name="hidden")
        self.l2 = l2

    def build(self, x_shape: Sequence[int], experts_shape: Sequence[int]) -> None:
        self.hidden.build(x_shape)
        widths = [x_shape[-1], *(layer.width for layer in self.hidden.hidden)]
        self.scores = Dense(experts_shape[1], l2=self.l2, name="scores")
        self.scores.build((x_shape[0], widths[-1]))

    def call(self, x: Any, experts: Any) -> Any:
        gate = ops.softmax(self.scores(self.hidden(x)))
        return ops.sum(gate[:, :, None] * experts, axis=1)

    def weight_axes(
        self,
        columns: Axis,
        experts: Axis,  # noqa: ARG002 (an axis for each input)
    ) -> dict[str, WeightAxes]:
        first = self.hidden if self.hidden.hidden else self.scores
        return first.weight_axes(columns)


def experts_over(x: Any, count: int, hidden: Sequence[int], tower: Tower, name: str) -> Any:
    """The outputs [B, count, h] of towers over x [B, n], each with its own weights.

    Their layers are `hidden`, otherwise as in `tower`; they are called NAME_0, NAME_1, …
    Raises UserError when there would be none, or no layers.
    """
    if count < 1 or not hidden:
        raise UserError(
            "a gate needs at least 1 expert, and an expert at least 1 layer. "
            f"Received: {count} with layers {list(hidden)}"
        )
    settings = vars(replace(tower, hidden=hidden))
    towers = [Mlp(**settings, name=f"{name}_{number}") for number in range(count)]
    return ops.stack([tower(x) for tower in towers], axis=1)
