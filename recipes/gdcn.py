"""GDCN: a cross network with a gate for each product, and a tower.

    c_{l+1} = c_0 * (W_l c_l + b_l) * sigmoid(G_l c_l) + c_l    (the gated cross network, section 3)

    stacked:  logit = w^T tower(c_L)
    parallel: logit = w^T [c_L, tower(c_0)]

Wang et al., Towards Deeper, Lighter and Interpretable Cross Network for CTR Prediction, CIKM 2023
(https://arxiv.org/abs/2311.04635). Field-level dimensions, its other part, are the widths of slots.
Defaults: FuxiCTR's GDCN_default.
"""

from collections.abc import Sequence
from typing import Any, Literal

from keras import ops

from tnctl.model import Inputs, Tower
from tnctl.model.layers import Axis, CrossNetwork, WeightAxes, cross_and_tower

INPUTS = "embeddings, numbers"


class GatedCross(CrossNetwork):
    """The gated cross network. Input shape: [B, n]. Output shape: [B, n]."""

    multiplies_input = True

    def build(self, shape: Sequence[int]) -> None:
        square = (shape[-1], shape[-1])
        self.add_layers(shape[-1], {"kernel": square, "gate": square})

    def call(self, x: Any) -> Any:
        start = x
        for (kernel, gate), bias in zip(self.kernels, self.biases, strict=True):
            crossed = ops.matmul(x, kernel) + bias
            x = start * crossed * ops.sigmoid(ops.matmul(x, gate)) + x
        return x

    def weight_axes(self, columns: Axis) -> dict[str, WeightAxes]:
        kernels = {w.path: {0: columns, 1: columns} for of_layer in self.kernels for w in of_layer}
        return kernels | {bias.path: {0: columns} for bias in self.biases}


def build(
    inputs: Inputs,
    *,
    structure: Literal["parallel", "stacked"] = "parallel",
    layers: int = 3,
    tower: Tower = Tower((1024, 512, 256)),
) -> Any:
    """The logit [B, 1]; `layers` are those of the cross network."""
    x = inputs.deep
    cross = GatedCross(layers, tower.l2, name="cross")(x)
    return cross_and_tower(x, cross, tower, structure)
