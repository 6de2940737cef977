"""Wukong: stacked factorization machines, whose products are vectors again.

    X_{l+1} = LayerNorm([FMB(X_l), LCB(X_l)] + X_l), or + R X_l in the first layer, of another size
    FMB(X)  = vectors of tower(LayerNorm(X X^T Y)), LCB(X) = W X, for X [n, d] and Y [n, rank]

Zhang et al., Wukong: Towards a Scaling Law for Large-Scale Recommendation, ICML 2024, section 3
(https://arxiv.org/abs/2403.02545). Defaults: FuxiCTR's class WuKong.
"""

from collections.abc import Sequence
from typing import Any

from keras import ops
from keras.layers import LayerNormalization

from tnctl.model import Inputs, Tower, layers

INPUTS = "embeddings of one width, numbers"


class InteractionLayer(layers.RegularizedLayer):
    """A layer. Input shape: [B, n, d]. Output shape: [B, products + compressed, d]."""

    by_field = True

    def __init__(self, number: int, sizes: Any, hidden: Sequence[int], l2: float) -> None:
        super().__init__(l2, name=f"interaction_{number}")
        if min(sizes) < 1:
            raise ValueError("products, compressed and rank are at least 1")
        self.first, self.sizes, self.hidden, self.l2 = number == 0, sizes, hidden, l2
        norms = (LayerNormalization(epsilon=1e-5, name=name) for name in ("fm_norm", "norm"))
        self.fm_norm, self.norm = norms

    def build(self, shape: Sequence[int]) -> None:
        (products, compressed, rank), (_, count, width) = self.sizes, shape
        widths = {"y": rank, "w": compressed} | ({"r": products + compressed} if self.first else {})
        self.kernels = [self.add_kernel(name, (count, size)) for name, size in widths.items()]
        self.tower = layers.Mlp([*self.hidden, products * width], l2=self.l2, name="fm")
        for layer in (self.fm_norm, self.tower):
            layer.build((shape[0], count * rank))
        self.norm.build((shape[0], products + compressed, width))

    def call(self, x: Any) -> Any:
        (count, width), columns = x.shape[1:], ops.transpose(x, (0, 2, 1))
        rows = ops.reshape(columns, (-1, count))
        # Products of one large matrix; those of many small ones are slower.
        xy, *sums = (
            ops.reshape(ops.matmul(rows, w), (-1, width, w.shape[1])) for w in self.kernels
        )
        fm = self.tower(self.fm_norm(layers.flat(ops.matmul(x, xy))))
        fm = ops.reshape(fm, (-1, self.sizes[0], width))
        lcb, *added = (ops.transpose(part, (0, 2, 1)) for part in sums)
        return self.norm(ops.concatenate([fm, lcb], axis=1) + (added[0] if added else x))

    def weight_axes(self, columns: layers.Axis) -> dict[str, layers.WeightAxes]:
        count, rank = self.kernels[0].shape
        fields = layers.field_places(columns, len(columns) // count)
        of_fm = layers.vector_places(fields, rank)
        axes: dict[str, layers.WeightAxes] = {w.path: {0: fields} for w in self.kernels}
        axes |= {w.path: {0: of_fm} for w in self.fm_norm.variables}
        return axes | self.tower.weight_axes(of_fm)

    def output_places(self, columns: layers.Axis) -> layers.Axis:
        width = len(columns) // self.kernels[0].shape[0]
        return layers.vector_places([((), self.name)], sum(self.sizes[:2]) * width)


def build(
    inputs: Inputs,
    *,
    depth: int = 3,
    products: int = 40,
    compressed: int = 40,
    rank: int = 8,
    fm_hidden: Sequence[int] = (32, 32),
    tower: Tower = Tower((32, 32)),
) -> Any:
    """The logit [B, 1]; `products` and `compressed` are the vectors that a layer makes."""
    x = layers.fields(inputs, tower.l2)
    for number in range(depth):
        x = InteractionLayer(number, (products, compressed, rank), fm_hidden, tower.l2)(x)
    return layers.tower_logit(layers.flat(x), tower, "deep")
