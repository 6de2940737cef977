"""Multi-gate Mixture-of-Experts: several labels, each with its own mixture of shared networks.

    y_k    = h^k(f^k(x))                                                    (equation 6)
    f^k(x) = sum over i of g^k(x)_i f_i(x)                                  (equation 7)
    g^k(x) = softmax(W_gk x)                                                (equation 8)

Ma et al., Modeling Task Relationships in Multi-task Learning with Multi-gate Mixture-of-Experts,
KDD 2018, figure 1c. The heads are the labels of the conf. Default widths and experts are those of
FuxiCTR's MMoE, whose gates have hidden layers, too ([128, 64]); the paper's have none.
"""

from collections.abc import Sequence
from typing import Any

from tnctl.model import Inputs, Tower, layers

INPUTS = "embeddings, numbers, any labels"


def build(
    inputs: Inputs,
    *,
    experts: int = 8,
    expert_hidden: Sequence[int] = (512, 256, 128),
    gate_hidden: Sequence[int] = (),
    tower: Tower = Tower((128, 64)),
) -> dict[str, Any]:
    """The logit [B, 1] of each label."""
    x = inputs.deep
    outputs = layers.experts_over(x, experts, expert_hidden, tower, "expert")

    def logit(label: str) -> Any:
        gate = layers.ExpertGate(gate_hidden, tower.l2, name=f"{label}_gate")
        return layers.tower_logit(gate(x, outputs), tower, label)

    return {label: logit(label) for label in inputs.labels}
