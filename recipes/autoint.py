"""AutoInt: layers of self-attention, in which each field's vector attends to all others.

    psi_h(m, k) = <Query_h e_m, Key_h e_k>, alpha_h = softmax over k of psi_h   (equation 5)
    e~_m,h = sum over k of alpha_h(m, k) Value_h e_k                            (equation 6)
    e_m    = relu([e~_m,1, …, e~_m,H] + Residual e_m)                           (equations 7 and 8)
    logit  = w^T [e_1, …, e_M] + b                                              (equation 9)

Song et al., AutoInt: Automatic Feature Interaction Learning via Self-Attentive Neural Networks,
CIKM 2019 (https://arxiv.org/abs/1810.11921). Fields are slots, and numbers with a vector each
(equation 4). With `hidden` the logit of a tower is added: AutoInt+ (section 5.5). Residual is a
matrix in each layer, as in the authors' code. Defaults: FuxiCTR's for Avazu.
"""

from collections.abc import Sequence
from typing import Any

from keras import ops

from tnctl.model import Inputs, Tower, layers

INPUTS = "embeddings of one width, numbers"


class SelfAttention(layers.RegularizedLayer):
    """Layers of attention, of these `widths` of all heads together.

    Input shape: [B, F, d]. Output shape: [B, F, widths[-1]].
    """

    by_field = True

    def __init__(self, widths: Sequence[int], heads: int, l2: float, **settings: Any) -> None:
        super().__init__(l2, **settings)
        if heads < 1 or not widths or any(width < 1 or width % heads for width in widths):
            raise ValueError("heads must divide the width of each layer of attention")
        self.widths, self.heads = widths, heads

    def build(self, shape: Sequence[int]) -> None:
        shapes = zip([shape[-1], *self.widths], self.widths, strict=False)
        parts = ("query", "key", "value", "residual")
        self.kernels = [
            [self.add_kernel(f"{part}_{number}", of_layer) for part in parts]
            for number, of_layer in enumerate(shapes)
        ]

    def call(self, x: Any) -> Any:
        count = x.shape[1]
        for kernels, width in zip(self.kernels, self.widths, strict=True):
            x = ops.matmul(ops.reshape(x, (-1, x.shape[-1])), ops.concatenate(kernels, axis=1))
            x = ops.reshape(x, (-1, count, 4, self.heads, width // self.heads))
            # Each [B, heads, F, width of a head].
            query, key, value, residual = ops.unstack(ops.transpose(x, (2, 0, 3, 1, 4)), axis=0)
            scores = ops.softmax(ops.matmul(query, ops.transpose(key, (0, 1, 3, 2))))
            x = ops.transpose(ops.relu(ops.matmul(scores, value) + residual), (0, 2, 1, 3))
            x = ops.reshape(x, (-1, count, width))
        return x

    def weight_axes(self, columns: layers.Axis) -> dict[str, layers.WeightAxes]:  # noqa: ARG002
        first = self.kernels[0]
        return {kernel.path: {0: layers.coordinates(kernel.shape[0])} for kernel in first}

    def output_places(self, columns: layers.Axis) -> layers.Axis:
        fields = layers.field_places(columns, self.kernels[0][0].shape[0])
        return layers.vector_places(fields, self.widths[-1])


def build(
    inputs: Inputs,
    *,
    attention: Sequence[int] = (40, 40, 40),
    heads: int = 2,
    tower: Tower = Tower(()),
) -> Any:
    """The logit [B, 1]; `attention` are the widths of a field's vector in layers of attention."""
    vectors = SelfAttention(attention, heads, tower.l2, name="attention")(
        layers.fields(inputs, tower.l2)
    )
    logit = layers.Logit(l2=tower.l2, name="logit")(layers.flat(vectors))
    return logit + layers.tower_logit(inputs.deep, tower, "deep") if tower.hidden else logit
