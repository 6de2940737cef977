"""Warm start: dense weights of a checkpoint for a network with other inputs.

A weight comes along by the name of its variable and its place in it. Places along an axis are of
inputs, and move with their columns, or of units of a layer, and stay: `InputAxes` says which.
"""

import inspect
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.tree import flatten
from numpy.typing import NDArray

from tnctl.checkpoint import dense_file
from tnctl.checkpoint.chain import Checkpoint
from tnctl.checkpoint.document import WarmDense
from tnctl.errors import UserError
from tnctl.model import recipes
from tnctl.model.building import Model, build_network
from tnctl.model.layers import Axis, Place, WeightAxes
from tnctl.model.layout import Layout, plan
from tnctl.tables import CVM_COLUMNS, DenseTable
from tnctl.training.warm.pairing import FTRL, Pairing, ftrl_z, recipe_of, refuse_other_state

WEIGHTS = "weights"
FRESH = "or warm.dense=fresh (dense weights are reinitialised, rows come along)"
# Operations and layers of Keras, by the names of their classes.
MOVING = {
    "Columns", "Concatenate", "ExpandDims", "Flatten", "GetItem", "Moveaxis", "Permute", "Repeat",
    "RepeatVector", "Reshape", "Split", "Squeeze", "Stack", "Swapaxes", "Take", "Tile", "Transpose",
}  # fmt: skip
BY_ELEMENT = {
    "Abs", "Absolute", "Activation", "Add", "Average", "Cast", "Clip", "Divide", "ELU", "Elu",
    "Exp", "Expm1", "Gelu", "Identity", "LeakyReLU", "LeakyRelu", "Log", "Log1p", "Maximum",
    "Minimum", "Multiply", "Negative", "Power", "ReLU", "Relu", "Rsqrt", "Selu", "Sigmoid", "Sign",
    "Silu", "Softmax", "Softplus", "Sqrt", "Square", "StopGradient", "Subtract", "Tanh",
    "TrueDivide", "Where",
}  # fmt: skip
Tag = NDArray[Any]  # an array of Place | None


def check(pairing: Pairing, checkpoint: Checkpoint, model: Model) -> None:
    """Refuse another recipe, and state that the new optimizer would misread.

    Raises UserError with the way out, warm.dense=fresh or warm.optimizer=fresh.
    """
    warm = pairing.conf.warm
    if warm.dense == "fresh":
        return
    old, new = recipe_of(pairing), pairing.conf.recipe
    if new["name"] == old["name"]:
        build = recipes.load(pairing.conf.recipe_name)
        old, new = with_defaults(old, build), with_defaults(new, build)
    keys = [key for key in ("name", *new, *old) if new.get(key) != old.get(key)]
    if keys:
        raise UserError(
            f"recipe.{keys[0]} is {new.get(keys[0])} here and was {old.get(keys[0])} in "
            f"{pairing.source}, and weights of one recipe mean nothing in another. Take the same, "
            f"{FRESH}"
        )
    name, digest = pairing.conf.recipe_name, checkpoint.manifest.recipe.sha256
    if name.endswith(".py") and recipes.digest_of(name) != digest:
        raise UserError(
            f"{name} is not the file that {pairing.source} was trained with. Take that file, "
            f"{FRESH}"
        )
    if warm.optimizer == "match":
        refuse_other_state(
            "dense weights",
            model.dense.optimizer,
            checkpoint.manifest.dense.optimizer,
            pairing.source,
        )


def with_defaults(recipe: dict[str, Any], build: recipes.Recipe) -> dict[str, Any]:
    """A recipe with the settings that it leaves to their defaults."""
    defaults = {
        name: setting.default
        for name, setting in recipes.declared(build).items()
        if setting.default is not setting.empty
    }
    return {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in {**defaults, **recipe}.items()
    }


def fill(pairing: Pairing, checkpoint: Checkpoint, model: Model) -> WarmDense:
    """Copy dense weights, moving statistics and optimizer state of the checkpoint to the model.

    Returns the outcome of every variable; of those that are `partly` matched, places of new inputs
    are reinitialised. Raises UserError for a variable whose places cannot be mapped.
    """
    trained = shapes_of(model.network.trainable_variables)
    moving = shapes_of(model.network.non_trainable_variables)
    if pairing.conf.warm.dense == "fresh":
        return WarmDense(matched=[], partly=[], new=[*trained, *moving], dropped=[])
    saved = variables(checkpoint)
    dropped = [name for name in saved if name not in {**trained, **moving}]
    outcomes = WarmDense(matched=[], partly=[], new=[], dropped=dropped)
    mapping = PlaceMapping(pairing, checkpoint, model)
    keeps_state = pairing.conf.warm.optimizer == "match"
    memory = {WEIGHTS: model.dense.weights}
    if keeps_state:
        memory |= zip(model.dense.state_names, model.dense.states, strict=True)
    for arrays, shapes in ((memory, trained), ({WEIGHTS: model.moving}, moving)):
        for position, (name, shape) in enumerate(shapes.items()):
            if name not in saved:
                outcomes.new.append(name)
                continue
            new, old = mapping.places(name, shape, saved[name][WEIGHTS].shape)
            for part, targets in arrays.items():
                target = targets[position].reshape(shape)
                target[np.ix_(*new)] = saved[name][part][np.ix_(*old)]
            count = math.prod(len(places) for places in new)
            partly = outcomes.partly if count else outcomes.new
            (outcomes.matched if count == math.prod(shape) else partly).append(name)
    if keeps_state:
        model.dense.step = checkpoint.manifest.dense.step
    elif model.dense.optimizer.name in FTRL:
        fill_z(model.dense)
    model.check_aliases()
    return outcomes


def shapes_of(variables: Any) -> dict[str, tuple[int, ...]]:
    """The shape of each variable, by name, in their order."""
    return {variable.path: tuple(variable.value.shape) for variable in variables}


def variables(checkpoint: Checkpoint) -> dict[str, dict[str, NDArray[np.float32]]]:
    """The dense variables and moving statistics of a checkpoint, by name: weights, and states."""
    weights, *states, moving = dense_file.variables(checkpoint.folder, checkpoint.manifest)
    parts = {WEIGHTS: weights} | dict(zip(checkpoint.manifest.dense.states, states, strict=True))
    trained = {name: {part: parts[part][name] for part in parts} for name in weights}
    return trained | {name: {WEIGHTS: array} for name, array in moving.items()}


def fill_z(table: DenseTable) -> None:
    """Set the z of FTRL from which its weights follow; see `ftrl_z`."""
    sums, z = (table.states[table.state_names.index(name)] for name in ("n", "z"))
    for target, weights, of_weights in zip(z, table.weights, sums, strict=True):
        target[:] = ftrl_z(table.optimizer, weights, of_weights)


class PlaceMapping:
    """Which places of a variable in the checkpoint are which in the new network."""

    def __init__(self, pairing: Pairing, checkpoint: Checkpoint, model: Model) -> None:
        self._source = pairing.source
        layout, old_layout = model.layout, plan(pairing.old, checkpoint.statistics)
        # An input that was dropped may have the name of one that is new.
        dropped = {name: f"{name} (dropped)" for name in pairing.dropped}
        names = {**dropped, **pairing.new_names}
        same = outline(old_layout, names) == outline(layout, {})
        self._same_inputs = same and not takes_others(pairing)
        if self._same_inputs:
            return
        self._in_both = {
            name
            for kind in ("pooled", "numeric_columns", "sequences")
            for name in getattr(layout, kind)
            if pairing.matched.get(name) in getattr(old_layout, kind)
        }
        network, _ = build_network(pairing.old, old_layout, "float32")
        self._new = InputAxes(model.inference_network, layout, {}, self._in_both)
        self._old = InputAxes(network, old_layout, names, self._in_both)
        if operation := self._new.untracked or self._old.untracked:
            raise UserError(
                f"inputs are others than in {self._source}, and {operation} of the recipe combines "
                "units of a layer with inputs, number by number: which unit is of which input is "
                f"not known. Keep the inputs as they were, {FRESH}"
            )

    def places(
        self, name: str, shape: tuple[int, ...], old_shape: tuple[int, ...]
    ) -> tuple[list[NDArray[np.int64]], list[NDArray[np.int64]]]:
        """For each axis, the places that have weights in the checkpoint, and their places there.

        Raises UserError where these are not known, and where an input of both confs would get none
        of its weights.
        """
        if self._same_inputs:
            if shape != old_shape:
                raise self._other_units(name, shape, old_shape)
            both = [np.arange(length) for length in shape]
            return both, both
        # A manifest may have variables of other shapes than its conf makes.
        if len(shape) != len(old_shape) or self._old.shapes.get(name) != old_shape:
            raise self._unknown(name, shape, old_shape)
        scope, old_scope = (side.scopes.get(name, set()) for side in (self._new, self._old))
        if scope and old_scope and scope.isdisjoint(old_scope):
            nothing = [np.arange(0) for _ in shape]
            return nothing, nothing
        new_places, old_places = [], []
        for axis in range(len(shape)):
            new, old = (side.axis(name, axis) for side in (self._new, self._old))
            for side, places in ((self._new, new), (self._old, old)):
                if None in places:
                    raise self._unknown(name, shape, old_shape, f": {side.undeclared(name)}")
            if units_of(new) != units_of(old):
                raise self._other_units(name, shape, old_shape)
            where = {place: position for position, place in enumerate(counted(old))}
            pairs = [(k, where[place]) for k, place in enumerate(counted(new)) if place in where]
            self._refuse_lost(name, [*new, *old], [new[k] for k, _ in pairs])
            new_places.append(np.array([k for k, _ in pairs], np.int64))
            old_places.append(np.array([k for _, k in pairs], np.int64))
        return new_places, old_places

    def _refuse_lost(self, name: str, places: Axis, kept: Axis) -> None:
        """Raise UserError for an input of both confs that is on one side of an axis only."""
        lost = dict.fromkeys(place[0] for place in places if place)
        for inputs in lost.keys() - {place[0] for place in kept if place}:
            if inputs and self._in_both.issuperset(inputs):
                raise UserError(
                    f"dense weights {name} are over other inputs here than in {self._source}, and "
                    f"would lose what was learned of {' and '.join(inputs)}. Give the recipe its "
                    f"inputs in the roles that they had, {FRESH}"
                )

    def _other_units(self, name: str, shape: Any, old_shape: Any) -> UserError:
        return UserError(
            f"dense weights {name} are {list(shape)} here and were {list(old_shape)} in "
            f"{self._source}, of other units. Keep the settings of the recipe as they were, {FRESH}"
        )

    def _unknown(self, name: str, shape: Any, old_shape: Any, reason: str = "") -> UserError:
        return UserError(
            f"dense weights {name} are {list(shape)} here and were {list(old_shape)} in "
            f"{self._source}, and which of them are over which inputs is not known{reason}. Keep "
            f"the inputs as they were, {'declare it there, ' if reason else ''}{FRESH}"
        )


def units_of(axis: Axis) -> set[Any]:
    """The places of no input, which both sides must have alike. Embeddings may become wider."""
    return {place for place in axis if place and not place[0] and not isinstance(place[1], int)}


def counted(axis: Axis) -> Iterator[tuple[Any, int]]:
    """The places of an axis, the second of two equal ones with 1, and so on."""
    counts: dict[Any, int] = defaultdict(int)
    for place in axis:
        yield place, counts[place]
        counts[place] += 1


def takes_others(pairing: Pairing) -> bool:
    """Whether a name is another input now, and the recipe a user's file, which may name inputs."""
    old_names = {*pairing.old.slots, *pairing.old.numeric}
    names = (*pairing.conf.slots, *pairing.conf.numeric)
    moved = any(name in old_names and pairing.matched.get(name) != name for name in names)
    return moved and pairing.conf.recipe["name"].endswith(".py")


def outline(layout: Layout, names: dict[str, str]) -> Any:
    """The names and places of a layout's inputs, with inputs renamed: equal for equal networks."""
    inputs = [
        [(names.get(name, name), place) for name, place in places.items()]
        for places in (layout.pooled, layout.numeric_columns, layout.sequences)
    ]
    return inputs, {names.get(name, name) for name in layout.with_cvm}


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
    """Which inputs the weights of a network are over: the rule that docs/warm_start.md gives.

    The network is called again, on inputs with tags, which operations pass on. The tag of a tensor
    is an array of its shape (with a batch of 1) with a Place for each of its numbers. Operations
    that move numbers move their tags; layers say which axes of their weights are over their input
    (`tnctl.model.layers`). The place of a unit is ((), (layer, index, *inputs)), with
    the inputs that its layer was given, directly or through other layers.

    `shapes` has the variables by their paths; `scopes` the inputs without which nothing of a
    variable's layer means anything. `untracked` is the operation, if any, that combines units with
    numbers of inputs: these units belong to the inputs, and no rule says which they are.
    """

    def __init__(
        self, network: Any, layout: Layout, names: dict[str, str], kept: Iterable[str]
    ) -> None:
        """`names` maps names of the layout to names of inputs; `kept` are inputs of both confs."""
        self.shapes = {variable.path: tuple(variable.value.shape) for variable in network.variables}
        self.scopes: dict[str, set[str]] = {}
        self.untracked: str | None = None
        self._kept = set(kept)
        self._axes: dict[str, WeightAxes] = {}
        # By the path of a variable: the first operation on the way to it that loses places.
        self._lost_by: dict[str, Any] = {}
        columns = columns_of(layout, names)
        inputs = [keras.Input(x.shape[1:], dtype=x.dtype) for x in network.inputs]
        for x, given in zip(inputs, network.inputs, strict=True):
            x.tag, x.lost_by = np.fromiter(columns[given.name], object)[None], None
        self._call_again(network, inputs)

    def axis(self, path: str, axis: int) -> Axis:
        """The places along an axis of a variable."""
        length = self.shapes[path][axis]
        places = self._axes[path].get(axis, [((), ("unit", index)) for index in range(length)])
        # A layer of the user's own may declare another length.
        return told_apart(places) if len(places) == length else [None] * length

    def undeclared(self, path: str) -> str:
        """Which layer does not declare the places of a variable, and how it would."""
        operation = self._lost_by[path]
        if weight_axes_of(operation) is None:
            lacks = "declares no weight_axes"
        elif path in {variable.path for variable in operation.variables}:
            lacks = "has weight_axes without it"
        else:
            lacks = "declares no output_places"
        return f"{operation.name} ({type(operation).__name__}) of the recipe {lacks}"

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
        given = [x for x in flatten((args, kwargs)) if isinstance(x, keras.KerasTensor)]
        if isinstance(operation, keras.Sequential) or hasattr(operation, "operations"):
            return self._call_again(operation, given)  # a model of its own
        outputs = operation(*args, **kwargs)
        flat, tags = flatten(outputs), [x.tag for x in given]
        shapes = [(len(tags[0]), *output.shape[1:]) for output in flat]
        name = type(operation).__name__
        if (declared := weight_axes_of(operation)) is not None:
            passed_on = [self._layer(operation, declared, tags, shapes[0])]
        elif name in MOVING and (moved := moved_tags(operation, args, kwargs)) is not None:
            passed_on = moved
        elif name in BY_ELEMENT:
            passed_on = [self._by_element(operation, tags, shapes[0])]
        else:
            passed_on = [self._unknown_operation(operation, tags, shape) for shape in shapes]
        lost_by = next((x.lost_by for x in given if x.lost_by), None)
        for variable in getattr(operation, "variables", ()):
            if lost_by or variable.path not in self._lost_by:
                self._lost_by[variable.path] = lost_by or operation
        for output, tag in zip(flat, passed_on, strict=True):
            output.tag = tag
            output.lost_by = (lost_by or operation) if inputs_of(tag) is None else None
        return outputs

    def _unknown_operation(self, operation: Any, given: list[Tag], shape: tuple[int, ...]) -> Tag:
        """The output of any other operation: units, where it is given only units."""
        of_units = all(inputs_of(tag) == set() for tag in given)
        for variable in getattr(operation, "variables", ()):
            lengths = {} if of_units else dict(enumerate(variable.shape))
            self._keep(variable.path, {axis: [None] * size for axis, size in lengths.items()})
        return self._units(operation, given, shape) if of_units else np.full(shape, None)

    def _layer(self, layer: Any, declared: Any, given: list[Tag], shape: tuple[int, ...]) -> Tag:
        """The output of a layer that has declared which axes of its weights are over its input."""
        places = [*map(every_place if getattr(layer, "by_field", False) else last_axis, given)]
        columns = places[: len(inspect.signature(declared).parameters)]
        axes = declared(*columns)
        for variable in layer.variables:
            self._keep(variable.path, axes.get(variable.path, {}))
            if getattr(layer, "multiplies_input", False):
                scopes = [{*place[0]} for place in columns[0] if place]
                self.scopes[variable.path] = set.intersection(*scopes) if scopes else set()
        if hasattr(layer, "output_places"):
            return np.fromiter(layer.output_places(*columns), object).reshape(1, *shape[1:])
        if keeps_columns(layer):
            first = given[0]
            kept = first if shape == first.shape else np.fromiter(last_axis(first), object)
            return np.broadcast_to(kept, shape)
        rows = given[0].reshape(-1, given[0].shape[-1])
        alike = all(inputs_of(row) == inputs_of(rows[0]) for row in rows)
        if len(shape) < given[0].ndim or (len(shape) == given[0].ndim and alike):
            return self._units(layer, given, shape)
        return np.full(shape, None)

    def _by_element(self, operation: Any, given: list[Tag], shape: tuple[int, ...]) -> Tag:
        """Numbers made of several at the same place: of the same input, or of units alone."""
        arrays = [(inputs_of(tag), np.broadcast_to(tag, shape)) for tag in given]
        inputs = [array for names, array in arrays if names]
        if inputs and any(inputs_of(tag) == set() and tag.size > 1 for tag in given):
            self.untracked = operation.name  # but one unit for all of an example has no place
        # `Inputs.deep` has logarithms where x has shows: in the same columns.
        known = type(operation).__name__ == "Where" or all(names is not None for names, _ in arrays)
        distinct = any(not np.array_equal(inputs[0], array) for array in inputs)
        if distinct or (len(arrays) > 1 and not known):
            return np.full(shape, None)
        return [*inputs, *(array for _, array in arrays)][0]

    def _units(self, operation: Any, given: list[Tag], shape: tuple[int, ...]) -> Tag:
        """Units of an operation, which are identified by their positions and what it is given."""
        names = {
            name
            for inputs, part in filter(None, set().union(*(tag.flat for tag in given)))
            for name in (*inputs, *(part[2:] if isinstance(part, tuple) else ()))
        }
        behind = sorted(names & self._kept or names)
        units = (((), (operation.name, k, *behind)) for k in range(math.prod(shape[1:])))
        return np.broadcast_to(np.fromiter(units, object).reshape(1, *shape[1:]), shape)

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


def inputs_of(tag: Tag) -> set[str] | None:
    """The inputs that numbers belong to; None where one is not known."""
    places = set(tag.flat)
    return None if None in places else {name for names, _ in places for name in names}


def every_place(tag: Tag) -> Axis:
    """The places of all numbers of an example."""
    return list(tag[0].flat)


def last_axis(tag: Tag) -> Axis:
    """The places along the last axis that all rows have in common."""
    return [in_common(column) for column in tag.reshape(-1, tag.shape[-1]).T]


def in_common(places: Iterable[Place | None]) -> Place | None:
    """The place that several are, or the unit or coordinate that they have in common; else None."""
    known = set(places)
    if len(known) == 1:
        return known.pop()
    parts = {place and of_any_call(((), place[1])) for place in known}
    return parts.pop() if len(parts) == 1 else None


def of_any_call(place: Place | None) -> Place | None:
    """The place of a unit without the inputs that tell the calls of its layer apart."""
    return (place[0], place[1][:2]) if place and isinstance(place[1], tuple) else place


def told_apart(axis: Axis) -> Axis:
    """An axis whose units have the inputs of their calls only where one layer was called twice."""
    alike = [of_any_call(place) for place in axis]
    return axis if len(set(alike)) < len(set(axis)) else alike


def moved_tags(operation: Any, args: Any, kwargs: Any) -> list[Tag] | None:
    """The tags of what an operation moves, as it moves their indices; None where it cannot."""
    places: list[Place | None] = []

    def indices(leaf: Any) -> Any:
        if not isinstance(leaf, keras.KerasTensor):
            return leaf
        places.extend(leaf.tag.flat)
        first = len(places) - leaf.tag.size
        return tf.reshape(tf.range(first, len(places)), leaf.tag.shape)

    args, kwargs = keras.tree.map_structure(indices, (args, kwargs))
    try:
        outputs = operation.call(*args, **kwargs)
    except (TypeError, ValueError, tf.errors.OpError):  # a shape that only a real batch has
        return None
    every = np.fromiter(places, object)
    return [every[moved.numpy().ravel()].reshape(moved.shape) for moved in flatten(outputs)]


def keeps_columns(layer: Any) -> bool:
    """Whether the columns of an operation's output correspond to its first input's."""
    return getattr(layer, "keeps_columns", isinstance(layer, keras.layers.LayerNormalization))


def weight_axes_of(layer: Any) -> Any:
    """The method `weight_axes` of a layer, or what takes its place; None where nothing is known."""
    if hasattr(layer, "weight_axes"):
        return layer.weight_axes
    if keeps_columns(layer):
        variables = layer.variables
    elif type(layer).__name__ == "Dense":
        variables = [layer.kernel]
    else:
        return None
    return lambda columns: {variable.path: {0: columns} for variable in variables}
