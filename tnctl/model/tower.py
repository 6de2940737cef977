"""The settings of a tower of fully connected layers, which most recipes have."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Tower:
    """The settings of a tower, as a parameter `tower: Tower` of a recipe.

    Its fields are settings of the recipe like any other (`recipe.hidden=[64,32]`); the default of
    the parameter has their defaults. `layers.Mlp` explains them; docs/recipes.md has them all.
    """

    hidden: Sequence[int] = (400, 400, 400)
    activation: str = "relu"
    batch_norm: bool = False
    dropout: float = 0.0
    residual: bool = False
    l2: float = 0.0
