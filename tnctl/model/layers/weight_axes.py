"""Which axes of a layer's weights are over its input: what a warm start must know of a layer.

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

from collections.abc import Hashable

# What a number is: the model's inputs that it belongs to (none: it is a unit of a layer), and which
# number of theirs. Weights at equal places of two networks correspond.
Place = tuple[tuple[str, ...], Hashable]
Axis = list[Place | None]  # None: not known
WeightAxes = dict[int, Axis]
