"""Shared bottom: several labels, one network below a tower for each.

    y_k = h^k(f(x)),  f the bottom and h^k the tower of label k             (equation 1)

Caruana, Multitask Learning, Machine Learning 28, 1997, section 1; the equation is of Ma et al.,
Modeling Task Relationships in Multi-task Learning with Multi-gate Mixture-of-Experts, KDD 2018.
The heads are the labels of the conf. Default widths are those of FuxiCTR's SharedBottom.
"""

from collections.abc import Sequence
from typing import Any

from tnctl.model import Inputs, Tower, layers

INPUTS = "embeddings, numbers, any labels"


def build(
    inputs: Inputs,
    *,
    bottom: Sequence[int] = (512, 256, 128),
    tower: Tower = Tower((128, 64)),
) -> dict[str, Any]:
    """The logit [B, 1] of each label; `bottom` are the widths of the shared layers."""
    below = {**vars(tower), "hidden": bottom}
    shared = layers.Mlp(**below, name="bottom")(inputs.deep)
    return {label: layers.tower_logit(shared, tower, label) for label in inputs.labels}
