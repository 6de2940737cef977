"""Deep Interest Network: a sequence of behaviors, each weighed by its relation to the candidate.

    v_U(A) = sum over j of a(e_j, v_A) e_j                                 (equation 3)
    logit  = tower([v_U(A), v_A, profile, context])                        (figure 2, right)

Zhou et al., Deep Interest Network for Click-Through Rate Prediction, KDD 2018
(https://arxiv.org/abs/1706.06978). `behavior` is a slot with pooling=none, and `target` the slot of
the candidate; usually they share a group, so that an id has the same embedding in both. Of lists,
such as [items, categories] and [item, category], the embeddings are concatenated place by place;
lists of such lists are several sequences, each with its own attention. All pooled slots and the
numbers are inputs of the tower, too. Weights by position and time are no part of the paper.
"""

from collections.abc import Sequence
from typing import Any

from tnctl.model import Inputs, Tower, layers

INPUTS = (
    "a slot with pooling=none (recipe.behavior), the slot of the candidate (recipe.target), "
    "embeddings, numbers"
)


def build(
    inputs: Inputs,
    *,
    behavior: str | Sequence[str] | Sequence[Sequence[str]],
    target: str | Sequence[str] | Sequence[Sequence[str]],
    attention: Sequence[int] = (80, 40),
    attention_activation: str = "dice",
    softmax: bool = False,
    position_weight: bool = False,
    time_weight: str | Sequence[str] | None = None,
    tower: Tower = Tower((200, 80), activation="dice"),
) -> Any:
    """The logit [B, 1]; `attention` are the widths of the activation unit."""
    sequences = layers.sequences_of(inputs, behavior, target)
    times = layers.times_of(inputs, sequences, time_weight)

    interests = [
        layers.TargetAttention(
            attention,
            attention_activation,
            softmax,
            position_weight,
            l2=tower.l2,
            name=f"attention_{number}" if number else "attention",
        )(*sequence, time)
        for number, (sequence, time) in enumerate(zip(sequences, times, strict=True))
    ]

    deep = layers.Mlp(**vars(tower), name="deep")(layers.concatenated(*interests, inputs.deep))
    return layers.Logit(l2=tower.l2, name="logit")(deep)
