"""PEPNet: embeddings scaled by gates of a domain, and layers by gates of a user and an item.

    delta = 2 sigmoid(relu(z W + b) W' + b')                    (Gate NU, equations 2 and 3)
    O_ep  = U_ep(E(F_d), sg(E)) * E                             (EPNet)
    H^l   = U_pp(O_prior, sg(O_ep)) * f(H^(l-1) W^l + b^l),  H^0 = O_ep        (PPNet)

Chang et al., PEPNet: Parameter and Embedding Personalized Network for Infusing with Personalized
Prior Information, KDD 2023 (https://arxiv.org/abs/2302.01115). sg passes no gradient, * is per
element. F_d are the inputs `domain`, such as a tab and what its users click there; O_prior the
inputs `prior`, such as ids of a user, an item and its author. E are all pooled embeddings and the
numbers, domain and prior included. Each label has a tower, each layer of it a gate.
Widths that the paper leaves open are as in FuxiCTR's PPNet, which scales O_ep by a gate, too.
"""

from collections.abc import Sequence
from typing import Any

from tnctl.model import Inputs, Tower, layers

INPUTS = (
    "slots or numbers of a domain (recipe.domain), and of a user and an item (recipe.prior), "
    "embeddings, numbers, any labels"
)


def build(
    inputs: Inputs,
    *,
    domain: Sequence[str],
    prior: Sequence[str],
    gate_hidden: int = 64,
    tower: Tower = Tower((64, 64, 64)),
) -> dict[str, Any]:
    """The logit [B, 1] of each label; `domain` and `prior` are slots and numbers."""
    if not domain or not prior:
        raise ValueError("domain and prior have at least 1 slot or number each")

    def gated(x: Any, names: Sequence[str], seen: Any, name: str) -> Any:
        given = [inputs.field(input_name) for input_name in names]
        gate = layers.GateUnit(gate_hidden, tower.l2, name=name)
        return gate(x, layers.concatenated(*given), seen)

    embedded = gated(inputs.deep, domain, inputs.deep, "domain_gate")

    def logit(label: str) -> Any:
        h = embedded
        for number, width in enumerate(tower.hidden):
            settings = {**vars(tower), "hidden": [width]}
            h = layers.Mlp(**settings, name=f"{label}_{number}")(h)
            h = gated(h, prior, embedded, f"{label}_gate_{number}")
        return layers.Logit(l2=tower.l2, name=f"{label}_logit")(h)

    return {label: logit(label) for label in inputs.labels}
