"""FCN, or DCNv3: two cross networks with self-masks, of which one doubles the degree by each layer.

    h_l     = W_l x_l, half as wide as x_l
    mask_l  = h_l * relu(LayerNorm(h_l))
    linear:      x_{l+1} = x_1 * ([h_l, mask_l] + b_l) + x_l
    exponential: x_{l+1} = x_l * ([h_l, mask_l] + b_l) + x_l
    logit   = (mean over heads of w_e^T x_e + b_e  +  mean over heads of w_l^T x_l + b_l) / 2

Li et al., FCN: Fusing Exponential and Linear Cross Network for Click-Through Rate Prediction, 2024
(https://arxiv.org/abs/2407.13349), its sections on LCN, ECN and self-mask. Each head has a part of
all embeddings, of which x has the first halves and then the second. Fields are slots, and numbers
with a vector each. Defaults: FuxiCTR's DCNv3_test. Left out is that Tri-BCE multiplies the losses
of the networks by what they exceed the loss of both: with `branches` their weights are constants.
"""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from tnctl.model import Inputs, layers


class SelfMaskCross(layers.CrossNetwork):
    """The logit of one of the networks. Input shape: [B, F, d]. Output shape: [B, 1]."""

    by_field, keeps_columns = True, False

    def __init__(
        self, layers_: int, exponential: bool, heads: int, dropout: float, l2: float, name: str
    ) -> None:
        super().__init__(layers_, l2, name=name)
        self.exponential, self.heads = exponential, heads
        self.norms = [
            keras.layers.LayerNormalization(epsilon=1e-5, name=f"norm_{layer}")
            for layer in range(layers_)
        ]
        self.dropouts = [layers.Dropout(dropout, name=f"dropout_{k}") for k in range(layers_)]
        self.logit = layers.Logit(l2=l2, name="logit")

    def build(self, shape: Sequence[int]) -> None:
        count, width = shape[1:]
        if self.heads < 1 or width % (2 * self.heads):
            raise ValueError(f"twice the heads must divide the width of an embedding, {width}")
        self.split = (count, self.heads, 2, width // self.heads // 2)
        width = count * width // self.heads
        self.add_layers(width, {"kernel": (width, width // 2)})
        for layer in (*self.norms, *self.dropouts):
            layer.build((shape[0], self.heads, width // 2))
        self.logit.build((shape[0], width))

    def call(self, vectors: Any, training: bool | None = None) -> Any:
        x = ops.transpose(ops.reshape(vectors, (-1, *self.split)), (0, 2, 3, 1, 4))
        x = start = ops.reshape(x, (-1, self.biases[0].shape[0]))  # [B * heads, width]
        for [kernel], bias, norm, dropout in zip(
            self.kernels, self.biases, self.norms, self.dropouts, strict=True
        ):
            h = ops.matmul(x, kernel)
            h = ops.concatenate([h, h * ops.relu(norm(h))], axis=1)
            x = dropout((x if self.exponential else start) * (h + bias) + x, training=training)
        return ops.mean(ops.reshape(self.logit(x), (-1, self.heads)), axis=1, keepdims=True)

    def weight_axes(self, columns: layers.Axis) -> dict[str, layers.WeightAxes]:
        count, heads, _, half = self.split
        width = 2 * heads * half
        # The first head's. Another width would pair other coordinates, so it is in their places.
        places = [place and (place[0], ("column", (place[1], width))) for place in columns]
        x = [
            places[field * width + part * half + k]
            for part in range(2)
            for field in range(count)
            for k in range(half)
        ]
        halves = {w.path: {0: x[: len(x) // 2]} for norm in self.norms for w in norm.variables}
        kernels = {kernel.path: {0: x, 1: x[: len(x) // 2]} for [kernel] in self.kernels}
        biases = {bias.path: {0: x} for bias in self.biases}
        return kernels | biases | halves | self.logit.weight_axes(x)


def build(
    inputs: Inputs,
    *,
    exponential: int = 2,
    linear: int = 3,
    heads: int = 1,
    dropout: float = 0.0,
    branches: bool = False,
    l2: float = 0.0,
) -> Any:
    """The logit [B, 1]; `exponential` and `linear` are the numbers of layers of the networks."""
    vectors = layers.fields(inputs, l2)
    deep = SelfMaskCross(exponential, True, heads, dropout, l2, name="exponential_cross")(vectors)
    shallow = SelfMaskCross(linear, False, heads, dropout, l2, name="linear_cross")(vectors)
    logit = (deep + shallow) / 2
    return {"label": logit, "exponential": deep, "linear": shallow} if branches else logit
