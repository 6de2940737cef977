"""Which inputs the dense weights of a network are over: the rule that docs/warm_start.md gives.

The graph of the network is followed from its inputs. Every tensor has an array of its shape (with
a batch of 1) that says for each of its numbers what it is: a Place, by its number in a list.
Operations that move numbers are run on these arrays; layers say which axes of their weights are
over what they are given (`tnctl.model.layers.weight_axes`).
"""

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from tnctl.model.layers.weight_axes import Axis, Place, WeightAxes, units
from tnctl.model.layout import CVM_COLUMNS, Layout

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
REDUCING = {"Sum", "Mean", "Max", "Min"}
UNTRACKED = "output"  # the part of a place that an operation which the rule does not know has made
Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Places:
    """What the numbers of a tensor are: places of a list, by their number there; 0: not known."""

    numbers: Numbers


def merged(places: Iterable[Place | None]) -> Place | None:
    """What several places have in common; None where that has no order of its own."""
    distinct = list(set(places))
    known = [place for place in distinct if place is not None]
    if len(known) < len(distinct) or len(known) == 1:
        return distinct[0] if len(distinct) == 1 else None
    if len({part for _, part in known}) == 1:
        return (), known[0][1]
    return (known[0][0], "several") if len({inputs for inputs, _ in known}) == 1 else None


def columns_of(layout: Layout, names: dict[str, str]) -> dict[str, list[Place]]:
    """What the columns of each input tensor of a network are, by the tensor's name.

    `names` are names of inputs for those of the layout, where they differ.
    """

    def places(name: str, columns: int) -> list[Place]:
        counts = ("show", "click") if name in layout.with_cvm else ()
        parts = [*range(columns - (CVM_COLUMNS if counts else 0)), *counts]
        return [((names.get(name, name),), part) for part in parts]

    x = [place for name, (_, width) in layout.pooled.items() for place in places(name, width)]
    for name, width in layout.numeric.items():
        x += [((names.get(name, name),), part) for part in range(width)]
    sequences: list[Place] = []
    lengths: list[Place] = []
    for name, sequence in layout.sequences.items():
        sequences += places(name, sequence.width) * sequence.length
        lengths.append(((names.get(name, name),), "length"))
    linear: list[Place] = [((), "linear")]
    return {"x": x, "linear": linear, "sequences": sequences, "lengths": lengths}


class InputAxes:
    """What the places along each axis of a network's variables are.

    `shapes` has the variables by their paths, `scopes` the inputs that all of a variable's layer is
    multiplied by, if it is; `untracked` is the operation, if any, whose output is
    combined with inputs though the rule does not know what it is.
    """

    def __init__(self, network: Any, layout: Layout, names: dict[str, str]) -> None:
        self.shapes = {variable.path: tuple(variable.value.shape) for variable in network.variables}
        self.scopes: dict[str, tuple[str, ...]] = {}
        self.untracked: str | None = None
        self._places: list[Place | None] = [None]
        self._numbers: dict[Place | None, int] = {None: 0}
        self._weights: dict[str, tuple[Axis, ...]] = {}
        # Units that are added to, or multiplied with, other units; and with numbers of inputs.
        self._same: dict[Place, Place] = {}
        self._combined: dict[Place, Place | None] = {}
        columns = columns_of(layout, names)
        self._follow(network, [self._numbered(columns[x.name])[None] for x in network.inputs])

    def axis(self, path: str, axis: int) -> Axis:
        """What the places along an axis of a variable are."""
        length = self.shapes[path][axis]
        places = self._weights[path][axis] if path in self._weights else []
        if len(places) != length:  # a layer of the user's own, with a declaration that is wrong
            return [None] * length
        return [place and self._combined.get(self._first(place), place) for place in places]

    def _numbered(self, places: Sequence[Place | None]) -> Numbers:
        for place in places:
            if place not in self._numbers:
                self._numbers[place] = len(self._places)
                self._places.append(place)
        return np.array([self._numbers[place] for place in places], np.int64)

    def _follow(self, network: Any, inputs: Sequence[Numbers]) -> list[Numbers]:
        """Follow the graph of a functional model; returns what its outputs are."""
        known = {
            id(tensor): Places(numbers)
            for tensor, numbers in zip(network.inputs, inputs, strict=True)
        }
        for depth in sorted(network._nodes_by_depth, reverse=True):
            for node in network._nodes_by_depth[depth]:
                if node.is_input:
                    continue
                args, kwargs = node.arguments.fill_in(known)
                outputs = self._apply(node.operation, args, kwargs, node.outputs)
                for tensor, numbers in zip(node.outputs, outputs, strict=True):
                    known[id(tensor)] = Places(numbers)
        return [known[id(tensor)].numbers for tensor in network.outputs]

    def _apply(self, operation: Any, args: Any, kwargs: Any, outputs: Any) -> list[Numbers]:
        """What the outputs of an operation are. What is known of its weights is kept."""
        leaves = keras.tree.flatten((args, kwargs))
        given = [leaf.numbers for leaf in leaves if isinstance(leaf, Places)]
        shapes = [(len(given[0]), *tensor.shape[1:]) for tensor in outputs]
        name = type(operation).__name__
        nested = getattr(operation, "_functional", operation)
        if (declared := declaration(operation)) is not None:
            count = len(inspect.signature(declared).parameters)
            columns = [self._last_axis(numbers) for numbers in given[:count]]
            axes = declared(*columns)
            self._keep(axes.weights)
            self.scopes |= dict.fromkeys(axes.weights, axes.scope)
            if axes.output is columns[0] and shapes[0] == given[0].shape:
                return [given[0]]
            return [self._output(axes.output, given[0], shapes[0])]
        if hasattr(nested, "_nodes_by_depth"):
            return self._follow(nested, given)
        if name in MOVING and (moved := self._moved(operation, args, kwargs)) is not None:
            return moved
        if name in BY_ELEMENT:
            return [self._by_element(name, given, shapes[0])]
        if name in REDUCING:
            return [self._reduced(operation.axis, given[0], shapes[0])]
        return self._untracked(operation, given, shapes)

    def _last_axis(self, numbers: Numbers) -> Axis:
        """What the numbers along the last axis are, in all rows alike."""
        if numbers.ndim < 2:
            return []
        rows = numbers.reshape(-1, numbers.shape[-1])
        return [merged(self._places[number] for number in set(column)) for column in rows.T]

    def _keep(self, weights: dict[str, tuple[Axis, ...]]) -> None:
        """Keep what the axes of weights are over; a layer may be called several times."""
        for path, axes in weights.items():
            known = self._weights.get(path, axes)
            self._weights[path] = tuple(
                [merged(pair) for pair in zip(*both, strict=True)]
                for both in zip(known, axes, strict=True)
            )

    def _output(self, axis: Axis, numbers: Numbers, shape: tuple[int, ...]) -> Numbers:
        """The output of a layer that has `axis` as its last one, of a tensor of these numbers."""
        scopes = [self._inputs(row) for row in numbers.reshape(-1, numbers.shape[-1])]
        if len(set(scopes)) == 1:
            return np.broadcast_to(self._numbered(axis), shape)
        if None in scopes or shape[:-1] != numbers.shape[:-1]:
            return np.zeros(shape, np.int64)
        places = [
            place and (tuple(sorted({*place[0], *scope})), place[1])
            for scope in scopes
            if scope is not None
            for place in axis
        ]
        return self._numbered(places).reshape(shape)

    def _inputs(self, numbers: Numbers) -> tuple[str, ...] | None:
        """The inputs that some numbers are of; None where that is not known."""
        places = [self._places[number] for number in np.unique(numbers)]
        known = [place[0] for place in places if place is not None]
        return tuple(sorted(set().union(*known))) if len(known) == len(places) else None

    def _moved(self, operation: Any, args: Any, kwargs: Any) -> list[Numbers] | None:
        args, kwargs = keras.tree.map_structure(
            lambda leaf: tf.constant(leaf.numbers) if isinstance(leaf, Places) else leaf,
            (args, kwargs),
        )
        try:
            outputs = operation.call(*args, **kwargs)
            return [numbers.numpy() for numbers in keras.tree.flatten(outputs)]
        except (TypeError, ValueError, tf.errors.OpError):  # a shape that only a real batch has
            return None

    def _by_element(self, name: str, given: list[Numbers], shape: tuple[int, ...]) -> Numbers:
        # One number of a unit for all of an example has no place along the others.
        several = [array for array in given if array.size > 1 or self._inputs(array) != ()]
        arrays = [np.broadcast_to(array, shape).reshape(-1) for array in several or given]
        numbers, *others = arrays
        for other in others:
            pairs, where = np.unique(np.stack([numbers, other], 1), axis=0, return_inverse=True)
            places = [
                self._pair(name, self._places[number], self._places[other_number])
                for number, other_number in pairs
            ]
            numbers = self._numbered(places)[where.reshape(-1)]
        return numbers.reshape(shape)

    def _pair(self, name: str, place: Place | None, other: Place | None) -> Place | None:
        """What a number made of two is; units that meet a number of an input belong to it."""
        if place == other:
            return place
        if place is None or other is None:
            known = place or other
            return known if known and known[0] else None
        if place[0] and other[0]:
            if name != "Multiply":
                return merged((place, other))
            part = place[1] if place[1] == other[1] else (place[1], other[1])
            return tuple(sorted({*place[0], *other[0]})), part
        unit, column = (other, place) if place[0] else (place, other)
        first = self._first(unit)
        if column[0]:
            self._combine(first, column)
        elif (second := self._first(column)) != first:
            self._same[second] = first
            if second in self._combined:
                self._combine(first, self._combined.pop(second))
        return column if column[0] else unit

    def _combine(self, unit: Place, column: Place | None) -> None:
        if isinstance(unit[1], tuple) and unit[1][0] == UNTRACKED:
            self.untracked = str(unit[1][1])
        self._combined[unit] = merged((column, self._combined.get(unit, column)))

    def _first(self, place: Place) -> Place:
        """The unit that all units which are added to or multiplied with this one are known by."""
        while place in self._same:
            place = self._same[place]
        return place

    def _reduced(self, axis: Any, numbers: Numbers, shape: tuple[int, ...]) -> Numbers:
        axes = range(numbers.ndim) if axis is None else np.atleast_1d(axis) % numbers.ndim
        last = np.moveaxis(numbers, tuple(axes), range(-len(axes), 0))
        rows = last.reshape(-1, np.prod(last.shape[last.ndim - len(axes) :], dtype=int))
        places = [merged(self._places[number] for number in set(row)) for row in rows]
        return self._numbered(places).reshape(shape)

    def _untracked(self, operation: Any, given: list[Numbers], shapes: Any) -> list[Numbers]:
        """What is made of units alone is units; what is made of inputs is not known."""
        of_units = all(self._inputs(numbers) == () for numbers in given)
        for variable in getattr(operation, "variables", ()):
            axes: list[Axis] = [
                units(f"{variable.path} {axis}", length) if of_units else [None] * length
                for axis, length in enumerate(variable.shape)
            ]
            self._keep({variable.path: tuple(axes)})
        outputs = []
        for number, shape in enumerate(shapes):
            count = int(np.prod(shape))
            places = [((), (UNTRACKED, operation.name, number, k)) for k in range(count)]
            output = self._numbered(places) if of_units else np.zeros(count, np.int64)
            outputs.append(output.reshape(shape))
        return outputs


def declaration(layer: Any) -> Callable[..., WeightAxes] | None:
    """The `weight_axes` of a layer, also for those of Keras that have the same rule."""
    if isinstance(layer, keras.layers.Dense):

        def of_dense(columns: Axis) -> WeightAxes:
            output = units(layer.kernel.path, layer.units)
            bias = {layer.bias.path: (output,)} if layer.use_bias else {}
            return WeightAxes({layer.kernel.path: (columns, output), **bias}, output)

        return of_dense
    by_column = isinstance(layer, keras.layers.LayerNormalization | keras.layers.PReLU)
    if by_column and all(len(variable.shape) == 1 for variable in layer.variables):
        return lambda columns: WeightAxes(
            {variable.path: (columns,) for variable in layer.variables}, columns
        )
    return getattr(layer, "weight_axes", None)
