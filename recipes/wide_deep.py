"""Wide & Deep: a linear model, of crosses too, beside a deep tower.

    logit     = w_wide^T [x, phi(x)] + w_deep^T a^(lf) + b                 (equation 3)
    a^(l + 1) = f(W^(l) a^(l) + b^(l))                                     (equation 2)

Cheng et al., Wide & Deep Learning for Recommender Systems, DLRS 2016, figure 1
(https://arxiv.org/abs/1606.07792). A cross phi(x) (equation 1) is a slot with `cross` and width 0:
it has a linear weight and no part in the tower.
"""

from collections.abc import Sequence
from typing import Any

from tnctl.model import Inputs, layers


def build(
    inputs: Inputs,
    *,
    hidden: Sequence[int] = (400, 400, 400),
    activation: str = "relu",
    batch_norm: bool = False,
    dropout: float = 0.0,
    residual: bool = False,
    l2: float = 0.0,
) -> Any:
    """The logit [B, 1]; `hidden` are the widths of the tower."""
    wide = layers.linear_model(inputs.linear, inputs.numeric, l2)

    deep = layers.Mlp(
        hidden, activation, batch_norm=batch_norm, dropout=dropout, residual=residual, l2=l2,
        name="deep",
    )(inputs.deep)  # fmt: skip
    deep = layers.Logit(l2=l2, name="deep_logit")(deep)

    return layers.total(wide, deep)
