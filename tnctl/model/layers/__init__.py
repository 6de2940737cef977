"""Layers of CTR models: formula, paper, shapes.

`gradients` has functions whose gradients are written out; `normalization` batch norm and dropout
that assign nothing; `activations`, `dense`, `interactions`, `attention` what recipes are of.
"""

from tnctl.model.layers.activations import Dice, PRelu
from tnctl.model.layers.attention import TargetAttention, side_by_side
from tnctl.model.layers.fully_connected import (
    Bias,
    Columns,
    Dense,
    Logit,
    LogitOfBoth,
    Mlp,
    concatenated,
    linear_model,
    total,
)
from tnctl.model.layers.interactions import (
    FactorizationMachine,
    MatrixCross,
    MixtureCross,
    NumericFactors,
    VectorCross,
)
from tnctl.model.layers.normalization import BatchNorm, Dropout, at_step, current_step

__all__ = [
    "BatchNorm",
    "Bias",
    "Columns",
    "Dense",
    "Dice",
    "Dropout",
    "FactorizationMachine",
    "Logit",
    "LogitOfBoth",
    "MatrixCross",
    "MixtureCross",
    "Mlp",
    "NumericFactors",
    "PRelu",
    "TargetAttention",
    "VectorCross",
    "at_step",
    "concatenated",
    "current_step",
    "linear_model",
    "side_by_side",
    "total",
]
