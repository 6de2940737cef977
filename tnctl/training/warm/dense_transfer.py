"""Warm start: dense weights of a checkpoint for a network with other inputs.

A weight comes along by the name of its variable and its place in it. Places along an axis are of
inputs, and move with their columns, or of units of a layer, and stay: `input_axes` says which.
"""

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl.checkpoint import dense_file
from tnctl.checkpoint.chain import Checkpoint
from tnctl.checkpoint.document import WarmDense
from tnctl.errors import UserError
from tnctl.model import recipes
from tnctl.model.building import Model, build_network
from tnctl.model.layers.weight_axes import Axis
from tnctl.model.layout import Layout, plan
from tnctl.tables import DenseTable
from tnctl.training.warm.input_axes import InputAxes
from tnctl.training.warm.pairing import Pairing, recipe_of
from tnctl.training.warm.row_transfer import FTRL, ftrl_z, refuse_other_state

FRESH = "or warm.dense=fresh (dense weights are reinitialised, rows come along)"


@dataclass(frozen=True)
class Variable:
    """A variable of a checkpoint: its weights, and its states by their names."""

    weights: NDArray[np.float32]
    states: dict[str, NDArray[np.float32]]


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
    for memory, names in ((model.dense.weights, trained), (model.moving, moving)):
        for position, (name, shape) in enumerate(names.items()):
            if name not in saved:
                outcomes.new.append(name)
                continue
            new, old = mapping.places(name, shape, saved[name].weights.shape)
            copies = [(memory[position], saved[name].weights)]
            if names is trained and keeps_state:
                states = zip(model.dense.state_names, model.dense.states, strict=True)
                copies += [
                    (arrays[position], saved[name].states[state]) for state, arrays in states
                ]
            for target, values in copies:
                target.reshape(shape)[np.ix_(*new)] = values[np.ix_(*old)]
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


def variables(checkpoint: Checkpoint) -> dict[str, Variable]:
    """The dense variables of a checkpoint and its moving statistics, by name."""
    names = checkpoint.manifest.dense.states
    weights, *states, moving = dense_file.variables(checkpoint.folder, checkpoint.manifest)
    trained = {
        name: Variable(
            array, {state: arrays[name] for state, arrays in zip(names, states, strict=True)}
        )
        for name, array in weights.items()
    }
    return trained | {name: Variable(array, {}) for name, array in moving.items()}


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
        network, _ = build_network(pairing.old, old_layout, "float32")
        self._new = InputAxes(model.inference_network, layout, {})
        self._old = InputAxes(network, old_layout, names)
        if operation := self._new.untracked or self._old.untracked:
            raise UserError(
                f"inputs are others than in {self._source}, and {operation} of the recipe combines "
                "units of a layer with inputs, number by number: which unit is of which input is "
                f"not known. Keep the inputs as they were, {FRESH}"
            )
        self._in_both = {
            name
            for name, old_name in pairing.matched.items()
            for inputs, old_inputs in (
                (layout.pooled, old_layout.pooled),
                (layout.numeric_columns, old_layout.numeric_columns),
                (layout.sequences, old_layout.sequences),
            )
            if name in inputs and old_name in old_inputs
        }

    def places(
        self, name: str, shape: tuple[int, ...], old_shape: tuple[int, ...]
    ) -> tuple[list[NDArray[np.int64]], list[NDArray[np.int64]]]:
        """For each axis, the places that have weights in the checkpoint, and their places there.

        Raises UserError where these are not known, and where an input of both confs would get none
        of its weights.
        """
        if self._same_inputs:
            if shape != old_shape:
                raise self._unknown(name, shape, old_shape)
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
            if None in new or None in old or units_of(new) != units_of(old):
                raise self._unknown(name, shape, old_shape)
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

    def _unknown(self, name: str, shape: Any, old_shape: Any) -> UserError:
        return UserError(
            f"dense weights {name} are {list(shape)} here and were {list(old_shape)} in "
            f"{self._source}, and which of them are over which inputs is not known. Keep the "
            f"inputs as they were, {FRESH}"
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
