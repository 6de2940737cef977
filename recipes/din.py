"""Deep Interest Network: a sequence of behaviors, each weighed by what it is to the candidate.

    v_U(A) = sum over j of a(e_j, v_A) e_j                                 (equation 3)
    logit  = tower([v_U(A), v_A, profile, context])                        (figure 2, right)

Zhou et al., Deep Interest Network for Click-Through Rate Prediction, KDD 2018
(https://arxiv.org/abs/1706.06978). `behavior` is a slot with pooling=none, and `target` the slot of
the candidate, as a rule of one group, so that an id has one embedding in both. Lists of several,
such as [items, categories] and [item, category], are laid side by side place by place. All other
slots, and numbers, enter the tower as they are.
"""

from collections.abc import Sequence
from typing import Any

from tnctl.model import Inputs, layers


def build(
    inputs: Inputs,
    *,
    behavior: str | Sequence[str],
    target: str | Sequence[str],
    attention: Sequence[int] = (80, 40),
    attention_activation: str = "dice",
    softmax: bool = False,
    hidden: Sequence[int] = (200, 80),
    activation: str = "dice",
    batch_norm: bool = False,
    dropout: float = 0.0,
    residual: bool = False,
    l2: float = 0.0,
) -> Any:
    """The logit [B, 1]; `attention` are the widths of the activation unit, `hidden` the tower's."""
    behaviors, lengths, candidate = layers.side_by_side(inputs, behavior, target)

    interest = layers.TargetAttention(
        attention, attention_activation, softmax, l2=l2, name="attention"
    )(behaviors, lengths, candidate)

    deep = layers.Mlp(
        hidden, activation, batch_norm=batch_norm, dropout=dropout, residual=residual, l2=l2,
        name="deep",
    )(layers.concatenated(interest, inputs.deep))  # fmt: skip
    return layers.Logit(l2=l2, name="logit")(deep)
