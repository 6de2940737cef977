"""Progressive Layered Extraction: several labels, with experts of their own and shared ones.

    g^k(x)     = w^k(x) S^k(x)                                              (equation 1)
    w^k(x)     = softmax(W_g^k x)                                           (equation 2)
    S^k(x)     = the experts of label k, and the shared ones                (equation 3)
    g^{k,j}(x) = w^{k,j}(g^{k,j-1}(x)) S^{k,j}(x)                           (equation 5)
    y^k(x)     = t^k(g^{k,N}(x))                                            (equation 6)

Tang et al., Progressive Layered Extraction (PLE): A Novel Multi-Task Learning Model for
Personalized Recommendations, RecSys 2020, figures 4 and 5. A layer is a Customized Gate Control;
below the last, a gate of the shared part mixes all experts of its layer. One layer is the paper's
CGC. The heads are the labels of the conf. There are two layers, as in section 4.1.3; default widths
and experts are those of FuxiCTR's PLE, whose gates have hidden layers, too.
"""

from collections.abc import Sequence
from typing import Any

from tnctl.model import Inputs, Tower
from tnctl.model.layers import ExpertGate, concatenated, experts_over, tower_logit

INPUTS = "embeddings, numbers, any labels"


def build(
    inputs: Inputs,
    *,
    layers: int = 2,
    shared_experts: int = 8,
    experts: int = 1,
    expert_hidden: Sequence[int] = (512, 256, 128),
    gate_hidden: Sequence[int] = (),
    tower: Tower = Tower((128, 64)),
) -> dict[str, Any]:
    """The logit [B, 1] of each label; `experts` are those of each label, in each layer."""
    if layers < 1:
        raise ValueError("it has at least 1 layer")
    # None is the shared part.
    counts = dict.fromkeys(inputs.labels, experts) | {None: shared_experts}
    given = dict.fromkeys(counts, inputs.deep)
    for layer in range(layers):
        outputs = {
            part: experts_over(
                given[part], count, expert_hidden, tower, f"{part or 'shared'}_expert_{layer}"
            )
            for part, count in counts.items()
        }
        mixed: dict[str | None, tuple[Any, ...]] = {
            label: (outputs[label], outputs[None]) for label in inputs.labels
        }
        if layer + 1 < layers:
            mixed[None] = tuple(outputs.values())
        given = {
            part: ExpertGate(gate_hidden, tower.l2, name=f"{part or 'shared'}_gate_{layer}")(
                given[part], concatenated(*several)
            )
            for part, several in mixed.items()
        }
    return {label: tower_logit(given[label], tower, label) for label in inputs.labels}
