"""Behavior Sequence Transformer: a candidate that attends to a sequence of behaviors.

    logit = tower([F(candidate, behaviors), profile, context])              (figure 1)

F are transformer blocks, whose output for the candidate is taken (equations 1 to 8); the layer has
them. Chen et al., Behavior Sequence Transformer for E-commerce Recommendation in Alibaba, DLP-KDD
2019 (https://arxiv.org/abs/1905.06874). Defaults are of its table of settings, but for its dropout
of 0.2. Where it leaves a choice, FuxiCTR's BST is followed: a place is as wide as an embedding of
the default width, and LeakyReLU has slope 0.01 in the blocks. `behavior` and `target` are as in
din: lists are concatenated place by place, and lists of lists are several sequences, each with
its own blocks.
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
    heads: int = 8,
    blocks: int = 1,
    place_width: int = 8,
    tower: Tower = Tower((1024, 512, 256), activation="leaky_relu"),
) -> Any:
    """The logit [B, 1]; `place_width` are the numbers that a place has beside an embedding."""
    attended = [
        layers.BehaviorTransformer(
            heads, blocks, place_width, tower.dropout, tower.l2, name=f"transformer_{number}"
        )(*sequence)
        for number, sequence in enumerate(layers.sequences_of(inputs, behavior, target))
    ]

    deep = layers.Mlp(**vars(tower), name="deep")(layers.concatenated(*attended, inputs.deep))
    return layers.Logit(l2=tower.l2, name="logit")(deep)
