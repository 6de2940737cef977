"""Gates: of experts, networks of one shape that are mixed; and of single numbers, by a prior."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import keras
from keras import ops

from tnctl.errors import UserError
from tnctl.model.layers.fully_connected import Axis, Dense, Mlp, WeightAxes
from tnctl.model.recipes import Tower


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
        self.hidden = Dense(hidden, "relu", l2=l2, name="hidden")
        self.l2 = l2

    def build(
        self, x_shape: Sequence[int], prior_shape: Sequence[int], seen_shape: Sequence[int]
    ) -> None:
        self.hidden.build((x_shape[0], prior_shape[-1] + seen_shape[-1]))
        self.scores = Dense(x_shape[-1], "sigmoid", l2=self.l2, name="scores")
        self.scores.build((x_shape[0], self.hidden.width))

    def call(self, x: Any, prior: Any, seen: Any) -> Any:
        z = ops.concatenate([prior, ops.stop_gradient(seen)], axis=1)
        return x * (2 * self.scores(self.hidden(z)))

    def weight_axes(self, x: Axis, prior: Axis, seen: Axis) -> dict[str, WeightAxes]:
        outputs = {self.scores.kernel.path: {1: x}, self.scores.bias.path: {0: x}}
        return self.hidden.weight_axes([*prior, *seen]) | outputs


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
