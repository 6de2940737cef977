"""Wide & Deep: a linear model, of crosses too, beside a deep tower.

    logit     = w_wide^T [x, phi(x)] + w_deep^T a^(lf) + b                 (equation 3)
    a^(l + 1) = f(W^(l) a^(l) + b^(l))                                     (equation 2)

Cheng et al., Wide & Deep Learning for Recommender Systems, DLRS 2016, figure 1
(https://arxiv.org/abs/1606.07792). A cross phi(x) (equation 1) is a slot with `cross` and width 0:
it has a linear weight and no part in the tower.
"""

from typing import Any

from tnctl.model import Inputs, Tower, layers

INPUTS = "linear weights with crosses, embeddings, numbers"


def build(inputs: Inputs, *, tower: Tower = Tower()) -> Any:
    """The logit [B, 1]."""
    wide = layers.linear_model(inputs.linear, inputs.numeric, tower.l2)

    deep = layers.tower_logit(inputs.deep, tower, "deep")

    return layers.total(wide, deep)
