"""Entire Space Multi-task Model: clicks and conversions, both learned from all impressions.

    p_ctcvr = p_ctr * p_cvr                                                (equation 1)
    loss    = l(click, p_ctr) + l(click and conversion, p_ctcvr)           (equation 3)

Ma et al., Entire Space Multi-Task Model: An Effective Approach for Estimating Post-Click Conversion
Rate, SIGIR 2018, figure 2 (https://arxiv.org/abs/1804.07931). Two towers over the same embeddings.
The heads ctr and ctcvr are trained on the labels of their names; cvr, the probability of a
conversion after a click, has no label: it is served.
"""

from typing import Any

from tnctl.model import Inputs, Tower, layers

INPUTS = "embeddings, numbers, two labels: ctr and ctcvr"


def build(inputs: Inputs, *, tower: Tower = Tower((360, 200, 80))) -> dict[str, Any]:
    """The logits [B, 1] of the heads; both towers have the same settings."""
    ctr, cvr = (layers.tower_logit(inputs.deep, tower, name) for name in ("ctr", "cvr"))
    return {"ctr": ctr, "ctcvr": layers.LogitOfBoth(name="ctcvr_logit")(ctr, cvr), "cvr": cvr}
