"""xDeepFM: a linear model, a compressed interaction network and a tower over the same embeddings.

    X^k_h = sum over i, j of W^(k,h)_ij (X^(k-1)_i * X^0_j)                (equation 6)
    p^k_h = sum over the coordinates of X^k_h                              (equation 7)
    logit = w_linear^T a + w_dnn^T tower(x) + w_cin^T [p^1, …, p^T] + b    (section 3.3)

Lian et al., xDeepFM: Combining Explicit and Implicit Feature Interactions for Recommender Systems,
KDD 2018 (https://arxiv.org/abs/1803.05170); * is per coordinate. X^0 are the vectors of the fields:
slots, and numbers. The network has no activation, as the paper found best. Defaults: FuxiCTR's
xDeepFM_default; the paper has 200 vectors in a layer on Criteo.
"""

from collections.abc import Sequence
from typing import Any

from keras import ops

from tnctl.model import Inputs, Tower, layers

INPUTS = "linear weights, embeddings of one width, numbers"


class CompressedInteractions(layers.RegularizedLayer):
    """The sums p of all layers, which have `widths` vectors each. Always float32.

    Input shape: [B, F, d]. Output shape: [B, sum of widths].
    """

    by_field = True

    def __init__(self, widths: Sequence[int], l2: float = 0.0, **settings: Any) -> None:
        super().__init__(l2, dtype="float32", **settings)
        if not widths or min(widths) < 1:
            raise ValueError("cin needs layers of at least 1 vector")
        self.widths = widths

    def build(self, shape: Sequence[int]) -> None:
        counts = [shape[1], *self.widths]
        self.filters = [
            self.add_kernel(f"filters_{k}", (counts[k], shape[1], width))
            for k, width in enumerate(self.widths)
        ]

    def call(self, vectors: Any) -> Any:
        # Products are per coordinate: with these before the fields a layer is one matrix product.
        start = x = ops.transpose(vectors, (0, 2, 1))
        width, sums = x.shape[1], []
        for filters in self.filters:
            count, fields, new = filters.shape
            pairs = ops.reshape(x[:, :, :, None] * start[:, :, None, :], (-1, count * fields))
            x = ops.matmul(pairs, ops.reshape(filters, (count * fields, new)))
            x = ops.reshape(x, (-1, width, new))
            sums.append(ops.sum(x, axis=1))
        return ops.concatenate(sums, axis=1)

    def weight_axes(self, columns: layers.Axis) -> dict[str, layers.WeightAxes]:
        first, *others = self.filters
        fields = layers.field_places(columns, len(columns) // first.shape[1])
        return {first.path: {0: fields, 1: fields}} | {w.path: {1: fields} for w in others}


def build(
    inputs: Inputs, *, cin: Sequence[int] = (32, 32, 32), tower: Tower = Tower((500, 500, 500))
) -> Any:
    """The logit [B, 1]; `cin` are the numbers of vectors in its layers."""
    linear = layers.linear_model(inputs.linear, inputs.numeric, tower.l2)

    sums = CompressedInteractions(cin, tower.l2, name="cin")(layers.fields(inputs, tower.l2))
    explicit = layers.Logit(use_bias=False, l2=tower.l2, name="cin_logit")(sums)

    return layers.total(linear, explicit, layers.tower_logit(inputs.deep, tower, "deep"))
