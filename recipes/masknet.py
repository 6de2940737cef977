"""MaskNet: blocks whose inputs are multiplied by masks, which the example itself guides.

    mask     = W_2 relu(W_1 v + b_1) + b_2, where v are the embeddings     (section 3.2)
    block(h) = relu(LayerNorm(W (mask * h)))                               (section 3.3)
    serial:    logit = w^T block(… block(block(LayerNorm(v)))) + b         (section 3.4)
    parallel:  logit = w^T tower([block(LayerNorm(v)), …]) + b             (section 3.4)

Wang et al., MaskNet: Introducing Feature-Wise Multiplication to CTR Ranking Models by
Instance-Guided Mask, DLP-KDD 2021 (https://arxiv.org/abs/2102.07619). Embeddings are normalised
field by field; fields are slots, and numbers with a vector each. In the serial structure blocks
take the place of a tower's layers. Defaults: FuxiCTR's MaskNet_default.
"""

from collections.abc import Sequence
from typing import Any, Literal

import keras
from keras import ops

from tnctl.model import Inputs, Tower, layers

INPUTS = "embeddings of one width, numbers"


class FieldNorm(keras.layers.Layer):
    """Each field's vector normalised, side by side. Input: [B, F, d]. Output: [B, F * d]."""

    by_field = True

    def build(self, shape: Sequence[int]) -> None:
        self.gamma = self.add_weight(shape=shape[1:], initializer="ones", name="gamma")
        self.beta = self.add_weight(shape=shape[1:], initializer="zeros", name="beta")

    def call(self, vectors: Any) -> Any:
        vectors = ops.layer_normalization(vectors, epsilon=1e-5)
        return layers.flat(vectors * self.gamma + self.beta)

    def weight_axes(self, columns: layers.Axis) -> dict[str, layers.WeightAxes]:
        width = self.gamma.shape[1]
        axes = {0: layers.field_places(columns, width), 1: layers.coordinates(width)}
        return {self.gamma.path: axes, self.beta.path: axes}

    def output_places(self, columns: layers.Axis) -> layers.Axis:
        return columns


def build(
    inputs: Inputs,
    *,
    structure: Literal["serial", "parallel"] = "serial",
    blocks: int = 1,
    block_width: int = 64,
    reduction: float = 1.0,
    tower: Tower = Tower((400, 400, 400)),
) -> Any:
    """The logit [B, 1]; `reduction` is the width of a mask's hidden layer over the mask's."""
    vectors = layers.fields(inputs, tower.l2)
    v, h = layers.flat(vectors), FieldNorm(name="norm")(vectors)

    def block(h: Any, width: int, name: str) -> Any:
        hidden = [int(h.shape[1] * reduction)]
        h = layers.Gated(hidden, l2=tower.l2, name=f"{name}_mask")(h, v)
        h = layers.Dense(width, use_bias=False, l2=tower.l2, name=name)(h)
        h = keras.layers.LayerNormalization(epsilon=1e-5, name=f"{name}_norm")(h)
        h = layers.activation_of(tower.activation)(h)
        return layers.Dropout(tower.dropout, name=f"{name}_dropout")(h)

    if structure == "serial":
        for number, width in enumerate(tower.hidden):
            h = block(h, width, f"block_{number}")
        return layers.Logit(l2=tower.l2, name="logit")(h)
    if blocks < 1:
        raise ValueError("it has at least 1 block")
    outputs = [block(h, block_width, f"block_{number}") for number in range(blocks)]
    return layers.tower_logit(layers.concatenated(*outputs), tower, "deep")
