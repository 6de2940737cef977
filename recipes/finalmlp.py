"""FinalMLP: two towers over the same embeddings, each behind gates, and a bilinear fusion.

    h_s   = 2 sigmoid(gate_s(context_s)) * x, o_s = tower_s(h_s), s = 1, 2      (feature selection)
    logit = b + w_1^T o_1 + w_2^T o_2 + sum over heads of o_1,h^T W_h o_2,h     (bilinear fusion)

Mao et al., FinalMLP: An Enhanced Two-Stream MLP Model for CTR Prediction, AAAI 2023
(https://arxiv.org/abs/2304.00902). A context are embeddings of slots, those that the towers have,
too; without slots it is a learned vector. Defaults: FuxiCTR's FinalMLP_default.
"""

from collections.abc import Sequence
from typing import Any

from keras import ops

from tnctl.model import Inputs, Tower, layers

INPUTS = "embeddings, numbers"


class BilinearFusion(layers.RegularizedLayer):
    """The sum over heads of a_h^T W_h b_h. Input shapes: [B, p], [B, q]. Output shape: [B, 1]."""

    def __init__(self, heads: int, l2: float, **settings: Any) -> None:
        super().__init__(l2, dtype="float32", **settings)
        self.heads = heads

    def build(self, a_shape: Sequence[int], b_shape: Sequence[int]) -> None:
        widths = (a_shape[-1], b_shape[-1])
        if self.heads < 1 or any(width % self.heads for width in widths):
            raise ValueError(f"heads must divide the widths of both towers' last layers, {widths}")
        of_head = tuple(width // self.heads for width in widths)
        self.kernel = self.add_kernel("kernel", (self.heads, *of_head))

    def call(self, a: Any, b: Any) -> Any:
        a, b = (ops.reshape(x, (-1, self.heads, x.shape[1] // self.heads)) for x in (a, b))
        products = ops.transpose(ops.matmul(ops.transpose(a, (1, 0, 2)), self.kernel), (1, 0, 2))
        return ops.sum(products * b, axis=(1, 2))[:, None]

    def weight_axes(self, a: Any, b: Any) -> dict[str, layers.WeightAxes]:  # noqa: ARG002
        return {}  # over units of the towers


def build(
    inputs: Inputs,
    *,
    second: Sequence[int] = (1024, 512, 256),
    gate: Sequence[int] = (1024, 512),
    first_context: Sequence[str] = (),
    second_context: Sequence[str] = (),
    heads: int = 2,
    tower: Tower = Tower((1024, 512)),
) -> Any:
    """The logit [B, 1]; `hidden` and `second` are the widths of the towers."""
    if not (tower.hidden and second):
        raise ValueError("both towers need layers")

    def stream(name: str, hidden: Sequence[int], context: Sequence[str]) -> Any:
        x = inputs.deep
        if gate:
            given = [inputs.slot(slot) for slot in context]
            width = max(inputs.slots.values())  # of a learned context
            selection = layers.Gated(gate, "sigmoid", 2, width, tower.l2, name=f"{name}_gate")
            x = selection(x, layers.concatenated(*given)) if given else selection(x)
        return layers.Mlp(**vars(tower) | {"hidden": hidden}, name=name)(x)

    a, b = stream("first", tower.hidden, first_context), stream("second", second, second_context)
    return layers.total(
        layers.Logit(l2=tower.l2, name="first_logit")(a),
        layers.Logit(use_bias=False, l2=tower.l2, name="second_logit")(b),
        BilinearFusion(heads, tower.l2, name="fusion")(a, b),
    )
