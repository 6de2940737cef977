"""Which inputs the dense weights of a network are over: the rule that docs/warm_start.md gives.

The network is called again, on inputs with tags, which operations pass on. The tag of a tensor is
an array of its shape (with a batch of 1) with a Place for each of its numbers, as an index into a
list. Operations that move numbers move their tags; layers say which axes of their weights are over
their input (`tnctl.model.layers.weight_axes`).
"""

import inspect
import math
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from tnctl.model.layers import Columns
from tnctl.model.layers.weight_axes import Axis, Place, WeightAxes
from tnctl.model.layout import Layout
from tnctl.tables.records import CVM_COLUMNS

# Operations and layers of Keras, by the names of their classes.
MOVING = {
    "Concatenate", "ExpandDims", "Flatten", "GetItem", "Moveaxis", "Permute", "Repeat",
    "RepeatVector", "Reshape", "Split", "Squeeze", "Stack", "Swapaxes", "Take", "Tile", "Transpose",
}  # fmt: skip
BY_ELEMENT = {
    "Abs", "Absolute", "Activation", "Add", "Average", "Cast", "Clip", "Divide", "ELU", "Elu",
    "Exp", "Expm1", "Gelu", "Identity", "LeakyReLU", "LeakyRelu", "Log", "Log1p", "Maximum",
    "Minimum", "Multiply", "Negative", "Power", "ReLU", "Relu", "Rsqrt", "Selu", "Sigmoid", "Sign",
    "Silu", "Softmax", "Softplus", "Sqrt", "Square", "StopGradient", "Subtract", "Tanh",
    "TrueDivide", "Where",
}  # fmt: skip
Numbers = NDArray[np.int64]


def in_common(places: Iterable[Place | None]) -> Place | None:
    """The place that several are, or the coordinate that they have in common; else None."""
    known = set(places)
    if None in known or len({place[1] for place in known if place}) != 1:
        return None
    first = known.pop()
    return ((), first[1]) if known and first else first


def columns_of(layout: Layout, names: dict[str, str]) -> dict[str, list[Place]]:
    """The places of the columns of each input tensor of a network, by the tensor's name.

    `names` maps names of the layout to names of inputs, where they differ.
    """

    def places(name: str, columns: int) -> list[Place]:
        counts = ("show", "click") if name in layout.with_cvm else ()
        parts = [*range(columns - (CVM_COLUMNS if counts else 0)), *counts]
        return [((names.get(name, name),), part) for part in parts]

    sequences = layout.sequences.items()
    widths = {name: width for name, (_, width) in layout.pooled.items()} | layout.numeric
    return {
        "x": [place for name, width in widths.items() for place in places(name, width)],
        "linear": [((), "linear")],
        "sequences": [p for name, of in sequences for p in places(name, of.width) * of.length],
        "lengths": [((names.get(name, name),), "length") for name, _ in sequences],
    }


class InputAxes:
    """The axes of a network's variables that are over inputs.

    `shapes` has the variables by their paths; `scopes` the inputs without which nothing of a
    variable's layer means anything. `untracked` is the operation, if any, that combines units with
    numbers of inputs: these units belong to the inputs, and no rule says which they are.
    """

    def __init__(self, network: Any, layout: Layout, names: dict[str, str]) -> None:
        self.shapes = {variable.path: tuple(variable.value.shape) for variable in network.variables}
        self.scopes: dict[str, set[str]] = {}
        self.untracked: str | None = None
        self._places: list[Place | None] = [None]
        self._numbers: dict[Place | None, int] = {None: 0}
        self._axes: dict[str, WeightAxes] = {}
        columns = columns_of(layout, names)
        inputs = [keras.Input(x.shape[1:], dtype=x.dtype) for x in network.inputs]
        for x, given in zip(inputs, network.inputs, strict=True):
            x.tag = self._numbered(columns[given.name])[None]
        self._call_again(network, inputs)

    def axis(self, path: str, axis: int) -> Axis:
        """The places along an axis of a variable."""
        length = self.shapes[path][axis]
        places = self._axes[path].get(axis, [((), ("unit", place)) for place in range(length)])
        # A layer of the user's own may declare another length.
        return places if len(places) == length else [None] * length

    def _numbered(self, places: Sequence[Place | None]) -> Numbers:
        for place in places:
            if place not in self._numbers:
                self._numbers[place] = len(self._places)
                self._places.append(place)
        return np.array([self._numbers[place] for place in places], np.int64)

    def _call_again(self, network: Any, inputs: Sequence[Any]) -> Any:
        """Call a functional model on tagged tensors, for tagged outputs."""
        if isinstance(network, keras.Sequential):
            for layer in network.layers:
                inputs = [self._call(layer, *inputs)]
            return inputs[0]
        given = keras.tree.pack_sequence_as(network.input, list(inputs))
        return keras.models.clone_model(network, given, lambda layer: layer, self._call).output

    def _call(self, operation: Any, *args: Any, **kwargs: Any) -> Any:
        """The outputs of an operation with their tags; the places of its weights are recorded."""
        given = [x for x in keras.tree.flatten((args, kwargs)) if isinstance(x, keras.KerasTensor)]
        if isinstance(operation, keras.Sequential) or hasattr(operation, "operations"):
            return self._call_again(operation, given)  # a model of its own
        outputs = operation(*args, **kwargs)
        flat = keras.tree.flatten(outputs)
        tags = [x.tag for x in given]
        shapes = [(len(tags[0]), *output.shape[1:]) for output in flat]
        passed_on = self._tags(operation, tags, shapes, args, kwargs)
        for output, tag in zip(flat, passed_on, strict=True):
            output.tag = tag
        return outputs

    def _tags(
        self, operation: Any, given: list[Numbers], shapes: list[Any], args: Any, kwargs: Any
    ) -> list[Numbers]:
        """The tags of an operation's outputs, of these shapes, from the tags of its inputs."""
        name = type(operation).__name__
        if isinstance(operation, Columns):
            return [given[0][:, operation.first : operation.first + operation.count]]
        if hasattr(operation, "weight_axes") or name == "Dense" or keeps_columns(operation):
            return [self._layer(operation, given, shapes[0])]
        if name in MOVING and (moved := moved_tags(operation, args, kwargs)) is not None:
            return moved
        if name in BY_ELEMENT:
            return [self._by_element(operation, given, shapes[0])]
        of_units = all(self._inputs(numbers) == set() for numbers in given)
        for variable in getattr(operation, "variables", ()):
            lengths = {} if of_units else dict(enumerate(variable.shape))
            self._keep(variable.path, {axis: [None] * size for axis, size in lengths.items()})
        unknown = [np.zeros(shape, np.int64) for shape in shapes]
        return [self._units(operation, shape) for shape in shapes] if of_units else unknown

    def _layer(self, layer: Any, given: list[Numbers], shape: tuple[int, ...]) -> Numbers:
        """The output of a layer for whose weights it is known which axes are over its input."""
        declared = getattr(layer, "weight_axes", partial(weight_axes_of, layer))
        count = len(inspect.signature(declared).parameters)
        axes = declared(*map(self._last_axis, given[:count]))
        for variable in layer.variables:
            self._keep(variable.path, axes.get(variable.path, {}))
            if getattr(layer, "multiplies_input", False):
                columns = [{*place[0]} for place in self._last_axis(given[0]) if place]
                self.scopes[variable.path] = set.intersection(*columns) if columns else set()
        if keeps_columns(layer):
            if shape == given[0].shape:
                return given[0]
            return np.broadcast_to(self._numbered(self._last_axis(given[0])), shape)
        rows = given[0].reshape(-1, given[0].shape[-1])
        alike = all(self._inputs(row) == self._inputs(rows[0]) for row in rows)
        if len(shape) < given[0].ndim or (len(shape) == given[0].ndim and alike):
            return self._units(layer, shape)
        return np.zeros(shape, np.int64)

    def _last_axis(self, numbers: Numbers) -> Axis:
        """The places along the last axis that all rows have in common."""
        rows = numbers.reshape(-1, numbers.shape[-1])
        return [in_common(self._places[number] for number in column) for column in rows.T]

    def _inputs(self, numbers: Numbers) -> set[str] | None:
        """The inputs that numbers belong to; None where one is not known."""
        places = [self._places[number] for number in np.unique(numbers)]
        known = [place[0] for place in places if place is not None]
        return set().union(*known) if len(known) == len(places) else None

    def _keep(self, path: str, axes: WeightAxes) -> None:
        """Record the places along the axes of a variable; a layer may be called several times."""
        known = self._axes.get(path, {})
        self._axes[path] = {
            axis: [
                in_common(pair)
                for pair in zip(known.get(axis, places), axes.get(axis, places), strict=False)
            ]
            for axis, places in (known | axes).items()
        }

    def _units(self, operation: Any, shape: tuple[int, ...]) -> Numbers:
        """Units of an operation, which are identified by their positions."""
        units: list[Place] = [((), (operation.name, k)) for k in range(math.prod(shape[1:]))]
        return np.broadcast_to(self._numbered(units).reshape(1, *shape[1:]), shape)

    def _by_element(self, operation: Any, given: list[Numbers], shape: tuple[int, ...]) -> Numbers:
        """Numbers made of several at the same place: of the same input, or of units alone."""
        arrays = [(self._inputs(numbers), np.broadcast_to(numbers, shape)) for numbers in given]
        inputs = [array for names, array in arrays if names]
        if inputs and any(self._inputs(units) == set() and units.size > 1 for units in given):
            self.untracked = operation.name  # but one unit for all of an example has no place
        # `Inputs.deep` has logarithms where x has shows: in the same columns.
        known = type(operation).__name__ == "Where" or all(names is not None for names, _ in arrays)
        distinct = any(not np.array_equal(inputs[0], array) for array in inputs)
        if distinct or (len(arrays) > 1 and not known):
            return np.zeros(shape, np.int64)
        return [*inputs, *(array for _, array in arrays)][0]


def moved_tags(operation: Any, args: Any, kwargs: Any) -> list[Numbers] | None:
    """The tags of what an operation moves, which is done to the tags; None where it cannot be."""
    args, kwargs = keras.tree.map_structure(
        lambda leaf: tf.constant(leaf.tag) if isinstance(leaf, keras.KerasTensor) else leaf,
        (args, kwargs),
    )
    try:
        outputs = operation.call(*args, **kwargs)
    except (TypeError, ValueError, tf.errors.OpError):  # a shape that only a real batch has
        return None
    return [numbers.numpy() for numbers in keras.tree.flatten(outputs)]


def keeps_columns(layer: Any) -> bool:
    """Whether the columns of an operation's output correspond to its first input's."""
    return getattr(layer, "keeps_columns", isinstance(layer, keras.layers.LayerNormalization))


def weight_axes_of(layer: Any, columns: Axis) -> dict[str, WeightAxes]:
    """As a layer's method `weight_axes`, for a layer without one."""
    variables = layer.variables if keeps_columns(layer) else [layer.kernel]
    return {variable.path: {0: columns} for variable in variables}
