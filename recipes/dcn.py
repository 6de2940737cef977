"""Deep & Cross: a cross network, whose every layer multiplies by the input again, and a tower.

    version 1:  x_{l+1} = x_0 (x_l^T w_l) + b_l + x_l               (2017, equation 3)
    version 2:  x_{l+1} = x_0 * (W_l x_l + b_l) + x_l               (2021, equation 1)
                W_l = U_l V_l^T with low_rank                       (2021, equation 2)
                a gated sum of experts, each of low rank            (2021, equations 3 and 4)

    stacked:    logit = w^T tower(x_L)                              (2021, figure 1)
    parallel:   logit = w^T [x_L, tower(x_0)]                       (figure 1 of both)

Wang et al., Deep & Cross Network for Ad Click Predictions, ADKDD 2017
(https://arxiv.org/abs/1708.05123), and DCN V2: Improved Deep & Cross Network and Practical Lessons
for Web-scale Learning to Rank Systems, WWW 2021 (https://arxiv.org/abs/2008.13535).
"""

from typing import Any, Literal

from tnctl.model import Inputs, Tower
from tnctl.model.layers import MatrixCross, MixtureCross, VectorCross, cross_and_tower

INPUTS = "embeddings, numbers"


def build(
    inputs: Inputs,
    *,
    version: Literal[1, 2] = 2,
    structure: Literal["parallel", "stacked"] = "parallel",
    layers: int = 3,
    low_rank: int = 0,
    experts: int = 1,
    tower: Tower = Tower(),
) -> Any:
    """The logit [B, 1]; `layers` are those of the cross network."""
    x = inputs.deep
    if version == 1:
        cross = VectorCross(layers, l2=tower.l2, name="cross")(x)
    elif experts == 1:
        cross = MatrixCross(layers, low_rank, l2=tower.l2, name="cross")(x)
    else:
        cross = MixtureCross(layers, low_rank, experts, l2=tower.l2, name="cross")(x)

    return cross_and_tower(x, cross, tower, structure)
