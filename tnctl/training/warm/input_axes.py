"""Which inputs the dense weights of a network are over: the rule that docs/warm_start.md gives.

`Inputs` tags its tensors with the columns that they are. Layers that say which axes of their
weights are over their input (`tnctl.model.layers.weight_axes`) pass tags on, and concatenations.
Whatever else is made of inputs has no tag.
"""

import inspect
from collections.abc import Callable
from typing import Any

import keras

from tnctl.model.layers import Columns
from tnctl.model.layers.weight_axes import Axis, WeightAxes


class InputAxes:
    """The axes of a network's variables that are over inputs.

    `shapes` has the variables by their paths; `scopes` the inputs without which nothing of a
    variable's layer means anything. `untracked` is the operation, if any, that combines units with
    inputs: these units belong to the inputs, and no rule says which they are.
    """

    def __init__(self, network: Any, names: dict[str, str]) -> None:
        """`names` maps names of slots and numbers to names of inputs, where they differ."""
        self.shapes = {variable.path: tuple(variable.value.shape) for variable in network.variables}
        self.scopes: dict[str, set[str]] = {}
        self.untracked: str | None = None
        self._names = names
        self._axes: dict[str, WeightAxes] = {}
        self._tags = {id(tensor): self._named(tensor) for tensor in network.inputs}
        for operation in network.operations:
            if not isinstance(operation, keras.layers.InputLayer):
                self._add(operation)

    def axis(self, path: str, axis: int) -> Axis:
        """The places along an axis of a variable."""
        length = self.shapes[path][axis]
        places = self._axes[path].get(axis, [((), ("unit", place)) for place in range(length)])
        # A layer of the user's own may declare another length.
        return places if len(places) == length else [None] * length

    def _named(self, tensor: Any) -> Axis:
        """The tag that `Inputs` gave a tensor, with the names of inputs; else of unknown places."""
        tag = getattr(tensor, "tag", [None] * (tensor.shape[-1] or 1))
        names = self._names
        return [place and (tuple(names.get(n, n) for n in place[0]), place[1]) for place in tag]

    def _add(self, operation: Any) -> None:
        """Record the places of an operation's weights, and the tags of its outputs."""
        inputs, outputs = (keras.tree.flatten(x) for x in (operation.input, operation.output))
        given = [self._tags.get(id(x)) or self._named(x) for x in inputs]
        of_inputs = [any(place is None or place[0] for place in tag) for tag in given]
        declared = weight_axes_of(operation)
        axes: dict[str, WeightAxes] = {}
        if any(of_inputs) and declared is not None:
            axes = declared(*given[: len(inspect.signature(declared).parameters)])
        for variable in getattr(operation, "variables", ()):
            unknown: WeightAxes = {n: [None] * length for n, length in enumerate(variable.shape)}
            is_known = declared is not None or not any(of_inputs)
            self._axes[variable.path] = axes.get(variable.path, {}) if is_known else unknown
            if any(of_inputs) and getattr(operation, "multiplies_input", False):
                columns = [{*place[0]} for place in given[0] if place]
                self.scopes[variable.path] = set.intersection(*columns) if columns else set()
        tags = zip(given, of_inputs, strict=True)
        # One unit for all of an example has no place.
        combines = any(of_inputs) and any(not is_of and len(tag) > 1 for tag, is_of in tags)
        for output in outputs:
            tag: Axis | None = None
            if not any(of_inputs):
                tag = units(operation, output)
            elif declared is not None:
                tag = passed_on(operation, inputs, given, output)
            elif is_concatenation(operation, output):
                tag = [place for part in given for place in part]
            elif is_flattening(operation, inputs[0], output):
                output.tag = inputs[0].flat_tag
            elif combines:
                self.untracked = operation.name
            if tag is None or hasattr(output, "tag"):
                tag = self._named(output)
            self._tags[id(output)] = tag


def weight_axes_of(operation: Any) -> Callable[..., dict[str, WeightAxes]] | None:
    """What says which axes of an operation's weights are over its inputs, if anything does."""
    if hasattr(operation, "weight_axes"):
        return operation.weight_axes
    keeps = keeps_columns(operation)
    if not keeps and type(operation).__name__ != "Dense":
        return None
    variables = operation.variables if keeps else [operation.kernel]
    return lambda columns: {variable.path: {0: columns} for variable in variables}


def keeps_columns(layer: Any) -> bool:
    """Whether the columns of an operation's output correspond to its first input's."""
    kinds = (Columns, keras.layers.LayerNormalization)
    return getattr(layer, "keeps_columns", isinstance(layer, kinds))


def is_concatenation(operation: Any, output: Any) -> bool:
    """Whether an operation puts its inputs side by side along the last axis."""
    axis = getattr(operation, "axis", None)
    return type(operation).__name__ == "Concatenate" and axis in (-1, len(output.shape) - 1)


def is_flattening(operation: Any, stacked: Any, output: Any) -> bool:
    """Whether an operation puts the embeddings that `Inputs` has stacked side by side again."""
    is_reshape = type(operation).__name__ in ("Flatten", "Reshape")
    return is_reshape and output.shape[1:] == (len(getattr(stacked, "flat_tag", ())),)


def passed_on(layer: Any, inputs: list[Any], given: list[Axis], output: Any) -> Axis | None:
    """The tag of the output of a layer that is given inputs; None where it is not known."""
    if isinstance(layer, Columns):
        return given[0][layer.first : layer.first + layer.count]
    if keeps_columns(layer):
        return given[0]
    # A layer over each of several inputs has units for each of them.
    over_each = len(output.shape) > 2 and None in given[0]
    if over_each or len(output.shape) > len(inputs[0].shape):
        return None
    return units(layer, output)


def units(operation: Any, output: Any) -> Axis:
    """Units of an operation, which are identified by their positions."""
    return [((), (operation.name, k)) for k in range(output.shape[-1] or 1)]
