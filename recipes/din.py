"""Deep Interest Network: a sequence of behaviors, each weighed by its relation to the candidate.

    v_U(A) = sum over j of a(e_j, v_A) e_j                                 (equation 3)
    logit  = tower([v_U(A), v_A, profile, context])                        (figure 2, right)

Zhou et al., Deep Interest Network for Click-Through Rate Prediction, KDD 2018
(https://arxiv.org/abs/1706.06978). `behavior` is a slot with pooling=none, and `target` the slot of
the candidate; usually they share a group, so that an id has the same embedding in both. Of lists,
such as [items, categories] and [item, category], the embeddings are concatenated place by place.
All pooled slots and the numbers are inputs of the tower, too.
"""

from collections.abc import Sequence
from typing import Any

from tnctl.model import Inputs, Tower, layers


def build(
    inputs: Inputs,
    *,
    behavior: str | Sequence[str],
    target: str | Sequence[str],
    attention: Sequence[int] = (80, 40),
    attention_activation: str = "dice",
    softmax: bool = False,
    tower: Tower = Tower((200, 80), activation="dice"),
) -> Any:
    """The logit [B, 1]; `attention` are the widths of the activation unit."""
    behaviors, lengths, candidate = layers.side_by_side(inputs, behavior, target)

    interest = layers.TargetAttention(
        attention, attention_activation, softmax, l2=tower.l2, name="attention"
    )(behaviors, lengths, candidate)

    deep = layers.Mlp(**vars(tower), name="deep")(layers.concatenated(interest, inputs.deep))
    return layers.Logit(l2=tower.l2, name="logit")(deep)
