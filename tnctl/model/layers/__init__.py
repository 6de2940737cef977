"""Layers of CTR models: formula, paper, shapes.

`gradients` has functions whose gradients are written out; `normalization` batch norm and dropout
that assign nothing; `fully_connected`, `interactions`, `attention`, `gates` what recipes are of.

What a warm start must know of a layer: which axes of its weights are over its input.
A layer with weights has a method `weight_axes(columns)`. Its argument says for each number along
the last axis of the layer's input which column of the model's inputs it is. The method returns, by
the paths of variables, the same for those axes of theirs that are over the input; all other axes
are over units of the layer. A layer of several tensors has a parameter for each. Two attributes may
say more:

- `keeps_columns`: column k of the output is column k of the (first) input; else they are units.
  Without `weight_axes` the first axis of all its weights is over the input
- `multiplies_input`: all of the layer is multiplied by its first input, so that its weights have no
  meaning for another input
"""

from tnctl.model.layers.attention import (
    BehaviorTransformer,
    TargetAttention,
    sequences_of,
    side_by_side,
    times_of,
)
from tnctl.model.layers.fully_connected import (
    Axis,
    Bias,
    Columns,
    Dense,
    Dice,
    Logit,
    LogitOfBoth,
    Mlp,
    Place,
    PRelu,
    Shown,
    WeightAxes,
    concatenated,
    linear_model,
    total,
    tower_logit,
)
from tnctl.model.layers.gates import ExpertGate, GateUnit, experts_over
from tnctl.model.layers.interactions import (
    FactorizationMachine,
    MatrixCross,
    MixtureCross,
    NumericFactors,
    VectorCross,
)
from tnctl.model.layers.normalization import BatchNorm, Dropout, at_step, current_step

__all__ = [
    "Axis",
    "BatchNorm",
    "BehaviorTransformer",
    "Bias",
    "Columns",
    "Dense",
    "Dice",
    "Dropout",
    "ExpertGate",
    "FactorizationMachine",
    "GateUnit",
    "Logit",
    "LogitOfBoth",
    "MatrixCross",
    "MixtureCross",
    "Mlp",
    "NumericFactors",
    "PRelu",
    "Place",
    "Shown",
    "TargetAttention",
    "VectorCross",
    "WeightAxes",
    "at_step",
    "concatenated",
    "current_step",
    "experts_over",
    "linear_model",
    "sequences_of",
    "side_by_side",
    "times_of",
    "total",
    "tower_logit",
]
