"""Layers of CTR models: formula, paper, shapes.

`gradients` has functions whose gradients are written out; `normalization` batch norm and dropout
that assign nothing; `fully_connected`, `interactions`, `attention`, `gates` what recipes are of.

What a warm start must know of a layer: which axes of its weights are over its input.
A layer with weights has a method `weight_axes(columns)`. Its argument says for each number along
the last axis of the layer's input which column of the model's inputs it is. The method returns, by
the paths of variables, the same for those axes of theirs that are over the input; all other axes
are over units of the layer. A layer of several tensors has a parameter for each. Attributes may say
more:

- `keeps_columns`: column k of the output is column k of the (first) input; else they are units.
  Without `weight_axes` the first axis of all its weights is over the input
- `multiplies_input`: all of the layer is multiplied by its first input, so that its weights have no
  meaning for another input
- `by_field`: the argument has all numbers of an input [B, F, d], field by field

A layer whose outputs belong to inputs, but are not their columns, has a method
`output_places(columns)`: the place of each number of its output.
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
    RegularizedLayer,
    Shown,
    VectorProjection,
    WeightAxes,
    activation_of,
    concatenated,
    cross_and_tower,
    flat,
    linear_model,
    total,
    tower_logit,
)
from tnctl.model.layers.gates import ExpertGate, Gated, GateUnit, experts_over
from tnctl.model.layers.interactions import (
    CrossNetwork,
    FactorizationMachine,
    InnerProducts,
    MatrixCross,
    MixtureCross,
    NumericFactors,
    VectorCross,
    coordinates,
    field_places,
    fields,
    vector_places,
)
from tnctl.model.layers.normalization import BatchNorm, Dropout, Float32Layer, at_step, current_step

__all__ = [
    "Axis",
    "BatchNorm",
    "BehaviorTransformer",
    "Bias",
    "Columns",
    "CrossNetwork",
    "Dense",
    "Dice",
    "Dropout",
    "ExpertGate",
    "FactorizationMachine",
    "Float32Layer",
    "GateUnit",
    "Gated",
    "InnerProducts",
    "Logit",
    "LogitOfBoth",
    "MatrixCross",
    "MixtureCross",
    "Mlp",
    "NumericFactors",
    "PRelu",
    "Place",
    "RegularizedLayer",
    "Shown",
    "TargetAttention",
    "VectorCross",
    "VectorProjection",
    "WeightAxes",
    "activation_of",
    "at_step",
    "concatenated",
    "coordinates",
    "cross_and_tower",
    "current_step",
    "experts_over",
    "field_places",
    "fields",
    "flat",
    "linear_model",
    "sequences_of",
    "side_by_side",
    "times_of",
    "total",
    "tower_logit",
    "vector_places",
]
