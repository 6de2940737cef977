"""Entire Space Multi-task Model: clicks and conversions, both learned from all impressions.

    p_ctcvr = p_ctr * p_cvr                                                (equation 1)
    loss    = l(click, p_ctr) + l(click and conversion, p_ctcvr)           (equation 3)

Ma et al., Entire Space Multi-Task Model: An Effective Approach for Estimating Post-Click Conversion
Rate, SIGIR 2018, figure 2 (https://arxiv.org/abs/1804.07931). Two towers over the same embeddings.
The heads ctr and ctcvr are trained on the labels of their names; cvr, the probability of a
conversion after a click, has no label of its own and is served.
"""

from collections.abc import Sequence
from typing import Any

from tnctl.model import Inputs, layers


def build(
    inputs: Inputs,
    *,
    hidden: Sequence[int] = (360, 200, 80),
    activation: str = "relu",
    batch_norm: bool = False,
    dropout: float = 0.0,
    residual: bool = False,
    l2: float = 0.0,
) -> dict[str, Any]:
    """The logits [B, 1] of the heads; `hidden` are the widths of each tower."""

    def tower(name: str) -> Any:
        deep = layers.Mlp(
            hidden, activation, batch_norm=batch_norm, dropout=dropout, residual=residual, l2=l2,
            name=name,
        )(inputs.deep)  # fmt: skip
        return layers.Logit(l2=l2, name=f"{name}_logit")(deep)

    ctr, cvr = tower("ctr"), tower("cvr")
    return {"ctr": ctr, "ctcvr": layers.LogitOfBoth(name="ctcvr_logit")(ctr, cvr), "cvr": cvr}
