"""FCN, or DCNv3: two cross networks with self-masks; in one each layer doubles the degree.

    h = W x, half as wide as x;  m = h * relu(LayerNorm(h))                      (self-mask)
    x_{l+1} = x_l * ([h, m] + b) + x_l, or with x_1 in place of the first x_l    (ECN, LCN)
    logit   = (w_E^T x_E + b_E + w_L^T x_L + b_L) / 2, the mean over heads

Li et al., FCN: Fusing Exponential and Linear Cross Network for Click-Through Rate Prediction, 2024
(https://arxiv.org/abs/2407.13349). Each head has a part of all fields' vectors, of which x has the
first halves and then the second. Defaults: FuxiCTR's DCNv3_test. Tri-BCE has constant weights here.
"""

from collections.abc import Sequence
from typing import Any

from keras import ops
from keras.layers import LayerNormalization

from tnctl.model import Inputs, layers

INPUTS = "embeddings of one even width, numbers"


class SelfMaskCross(layers.CrossNetwork):
    """The logit of one of the networks. Input shape: [B, F, d]. Output shape: [B, 1]."""

    by_field, keeps_columns = True, False

    def __init__(self, name: str, count: int, heads: int, dropout: float, l2: float) -> None:
        super().__init__(count, l2, name=f"{name}_cross")
        self.heads, self.doubles = heads, name == "exponential"
        self.norms = [LayerNormalization(epsilon=1e-5, name=f"norm_{k}") for k in range(count)]
        self.dropouts = [layers.Dropout(dropout, name=f"dropout_{k}") for k in range(count)]
        self.logit = layers.Logit(l2=l2, name="logit")

    def build(self, shape: Sequence[int]) -> None:
        (_, count, width), heads = shape, self.heads
        if heads < 1 or width % (2 * heads):
            raise ValueError(f"twice the heads must divide the width of an embedding, {width}")
        self.split, width = (count, heads, 2, width // heads // 2), count * width // heads
        self.add_layers(width, {"kernel": (width, width // 2)})
        for layer in self.norms:
            layer.build((shape[0], width // 2))
        self.logit.build((shape[0], width))

    def call(self, vectors: Any, training: bool | None = None) -> Any:
        x = ops.transpose(ops.reshape(vectors, (-1, *self.split)), (0, 2, 3, 1, 4))
        x = start = ops.reshape(x, (-1, self.biases[0].shape[0]))  # [B * heads, width]
        parts = (self.kernels, self.biases, self.norms, self.dropouts)
        for [kernel], bias, norm, dropout in zip(*parts, strict=True):
            h = ops.matmul(x, kernel)
            h = ops.concatenate([h, h * ops.relu(norm(h))], axis=1)
            x = dropout((x if self.doubles else start) * (h + bias) + x, training=training)
        return ops.mean(ops.reshape(self.logit(x), (-1, self.heads)), axis=1, keepdims=True)

    def weight_axes(self, columns: layers.Axis) -> dict[str, layers.WeightAxes]:
        # The first head's. Another width would pair other coordinates, so it is in their places.
        width, half = 2 * self.heads * self.split[-1], self.split[-1]
        places: layers.Axis = [place and (place[0], (place[1], width)) for place in columns]
        of_head = [k for k in range(len(columns)) if k % width < 2 * half]
        x = [places[k] for k in sorted(of_head, key=lambda k: k % width >= half)]
        axes: dict[str, layers.WeightAxes] = {bias.path: {0: x} for bias in self.biases}
        axes |= {kernel.path: {0: x, 1: x[: len(x) // 2]} for [kernel] in self.kernels}
        axes |= {w.path: {0: x[: len(x) // 2]} for norm in self.norms for w in norm.variables}
        return axes | self.logit.weight_axes(x)


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
    deep = SelfMaskCross("exponential", exponential, heads, dropout, l2)(vectors)
    shallow = SelfMaskCross("linear", linear, heads, dropout, l2)(vectors)
    logit = (deep + shallow) / 2
    return {"label": logit, "exponential": deep, "linear": shallow} if branches else logit
