"""Which axes of a layer's weights are over its input: what a warm start must know of a layer.

A layer with weights declares it with a method `weight_axes(columns)`. It is given what the numbers
are along the last axis of the tensor that the layer is called with, and returns, for variables by
their paths, what the places along those axes are that are over the input; all others are units. A
layer of several tensors has a parameter for each. Two attributes may say more:

- `keeps_columns`: column k of the output is column k of the (first) input; else they are units
- `multiplies_input`: all of the layer is multiplied by its first input, so that no weight of it
  means anything for another one
"""

from collections.abc import Hashable

# What a number is: the inputs of the model that it is of (none: it is a unit of a layer), and which
# number of them. Equal places of two networks hold the same weight.
Place = tuple[tuple[str, ...], Hashable]
Axis = list[Place | None]  # None: not known
WeightAxes = dict[int, Axis]
