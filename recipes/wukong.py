"""Wukong: stacked factorization machines, whose products are vectors again.

    X_{l+1} = LayerNorm([FMB(X_l), LCB(X_l)] + X_l)            (interaction stack)
    FMB(X)  = vectors of tower(LayerNorm(X X^T Y))             (factorization machine block)
    LCB(X)  = W X                                              (linear compression block)
    logit   = w^T tower(X_L) + b

Zhang et al., Wukong: Towards a Scaling Law for Large-Scale Recommendation, ICML 2024
(https://arxiv.org/abs/2403.02545). Y is [n, rank] for n vectors X [n, d]. Where n changes, and in
the first layer, whose vectors are in any order, R X takes the place of the added X. Fields are
slots, and numbers with a vector each. Defaults: FuxiCTR's class WuKong, whose 40 are numbers.
"""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from tnctl.model import Inputs, Tower, layers


class InteractionLayer(layers.RegularizedLayer):
    """A layer. Input shape: [B, n, d]. Output shape: [B, products + compressed, d]."""

    by_field = True

    def __init__(
        self, sizes: tuple[int, int, int], hidden: Sequence[int], first: bool, l2: float, name: str
    ) -> None:
        super().__init__(l2, name=name)
        if min(sizes) < 1:
            raise ValueError("products, compressed and rank are at least 1")
        self.sizes, self.hidden, self.first, self.l2 = sizes, hidden, first, l2
        self.fm_norm, self.norm = (
            keras.layers.LayerNormalization(epsilon=1e-5, name=part) for part in ("fm_norm", "norm")
        )

    def build(self, shape: Sequence[int]) -> None:
        products, compressed, rank = self.sizes
        (_, count, width), new = shape, products + compressed
        widths = {"y": rank, "w": compressed}
        if self.first or new != count:
            widths["r"] = new
        self.kernels = [self.add_kernel(name, (count, of)) for name, of in widths.items()]
        self.tower = layers.Mlp([*self.hidden, products * width], l2=self.l2, name="fm")
        for layer in (self.fm_norm, self.tower):
            layer.build((shape[0], count * rank))
        self.norm.build((shape[0], new, width))
        self.places = [((), (self.name, k)) for k in range(new * width)]

    def call(self, x: Any) -> Any:
        (products, compressed, rank), (count, width) = self.sizes, x.shape[1:]
        # All that combines vectors, by a single matrix product.
        combined = ops.reshape(ops.transpose(x, (0, 2, 1)), (-1, count))
        combined = ops.matmul(combined, ops.concatenate(self.kernels, axis=1))
        combined = ops.reshape(combined, (-1, width, combined.shape[1]))
        xy, compression, residual = ops.split(combined, [rank, rank + compressed], axis=2)
        fm = self.fm_norm(ops.reshape(ops.matmul(x, xy), (-1, count * rank)))
        fm = ops.reshape(self.tower(fm), (-1, products, width))
        added = ops.transpose(residual, (0, 2, 1)) if len(self.kernels) == 3 else x
        lcb = ops.transpose(compression, (0, 2, 1))
        return self.norm(ops.concatenate([fm, lcb], axis=1) + added)

    def weight_axes(self, columns: layers.Axis) -> dict[str, layers.WeightAxes]:
        count, rank = self.kernels[0].shape
        fields = layers.field_places(columns, len(columns) // count)
        of_fm = [field and (field[0], (field[1], k)) for field in fields for k in range(rank)]
        axes = {kernel.path: {0: fields} for kernel in self.kernels}
        axes |= {weight.path: {0: of_fm} for weight in self.fm_norm.variables}
        return axes | self.tower.weight_axes(of_fm)

    def output_places(self, columns: layers.Axis) -> layers.Axis:  # noqa: ARG002
        return self.places


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
    x, sizes = layers.fields(inputs, tower.l2), (products, compressed, rank)
    for number in range(depth):
        first = number == 0
        x = InteractionLayer(sizes, fm_hidden, first, tower.l2, f"interaction_{number}")(x)
    return layers.tower_logit(layers.flat(x), tower, "deep")
