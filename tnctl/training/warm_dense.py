"""Warm start: dense weights of a checkpoint to those of a network with other inputs.

A weight comes along by the name of its variable and its place in it. Places along an axis mean
something: units of a layer, which stay where they are, or the inputs that the axis is over, which
move with their columns. Which axes are over inputs is found out by asking the network itself:

- *widening*: the same conf with one slot and one number more is built. The axes of the variables
  that are longer there grow with the inputs.
- *silencing*: with random weights and inputs, the gradient of a weight that an input multiplies is
  zero when this input is zero. So the slices of a variable that vanish with an input are over it.

An axis that grows and that no input silences (a bias over x, a moving mean of it) takes its
meaning from another variable of its layer with an axis of this length, else from its length: that
of x, of the numbers, or of the slots.
"""

import dataclasses
import inspect
import math
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from tnctl.checkpoint import dense
from tnctl.checkpoint.chain import Checkpoint
from tnctl.data.statistics import Statistics
from tnctl.errors import UserError
from tnctl.model import recipes
from tnctl.model.building import Model, build_network
from tnctl.model.layout import CVM_COLUMNS, Layout, plan
from tnctl.schema import Conf, Numeric, Slot
from tnctl.tables import DenseTable
from tnctl.training.warm_inputs import Pairing, recipe_of
from tnctl.training.warm_rows import FTRL, ftrl_z, refuse_other_state

COUNTS = ("show", "click")
EXAMPLES = 64  # of the random batch: a unit that is off for all of them is as good as none
WIDENING = "tnctl_widening"
WIDENING_NUMBER = "tnctl_widening_number"
ANEW = "or warm.dense=fresh (dense weights start anew, rows come along)"
# What a place along an axis stands for; equal meanings of two networks hold the same weight.
Meaning = Hashable


@dataclass(frozen=True)
class Variable:
    """A variable of a checkpoint: its weights, and its states by their names."""

    weights: NDArray[np.float32]
    states: dict[str, NDArray[np.float32]]


@dataclass
class Carried:
    """What became of the dense variables, by name."""

    matched: list[str] = dataclasses.field(default_factory=list)
    partly: list[str] = dataclasses.field(default_factory=list)  # parts of inputs start anew
    new: list[str] = dataclasses.field(default_factory=list)
    dropped: list[str] = dataclasses.field(default_factory=list)


def check(pairing: Pairing, checkpoint: Checkpoint, model: Model) -> None:
    """Refuse another recipe, and state that the new optimizer would misread.

    Raises UserError with the way out, warm.dense=fresh or warm.optimizer=fresh.
    """
    warm = pairing.conf.warm
    if warm.dense == "fresh":
        return
    before, here = complete(recipe_of(pairing)), complete(pairing.conf.recipe)
    keys = [key for key in dict.fromkeys([*here, *before]) if here.get(key) != before.get(key)]
    if keys:
        raise UserError(
            f"recipe.{keys[0]} is {here.get(keys[0])} here and was {before.get(keys[0])} in "
            f"{pairing.there}, and weights of one recipe mean nothing in another. Take the same, "
            f"{ANEW}"
        )
    name, digest = pairing.conf.recipe["name"], checkpoint.manifest["recipe"]["sha256"]
    if name.endswith(".py") and recipes.digest_of(name) != digest:
        raise UserError(
            f"{name} is not the file that {pairing.there} was trained with. Take that one, {ANEW}"
        )
    if warm.optimizer == "match":
        refuse_other_state(
            "dense weights",
            model.dense.optimizer,
            checkpoint.manifest["dense"]["optimizer"],
            pairing.there,
        )


def complete(recipe: dict[str, Any]) -> dict[str, Any]:
    """A recipe with the settings that it leaves to their defaults."""
    parameters = inspect.signature(recipes.load(recipe["name"])).parameters.values()
    defaults = {one.name: one.default for one in parameters if one.default is not one.empty}
    return {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in {**defaults, **recipe}.items()
    }


def fill(pairing: Pairing, checkpoint: Checkpoint, model: Model) -> Carried:
    """Give the dense weights, moving statistics and optimizer state what the checkpoint has.

    Raises UserError for a variable whose places cannot be told apart.
    """
    trained = described(model.network.trainable_variables)
    moving = described(model.network.non_trainable_variables)
    if pairing.conf.warm.dense == "fresh":
        return Carried(new=[*trained, *moving])
    there = variables(checkpoint)
    carried = Carried(dropped=[name for name in there if name not in {**trained, **moving}])
    meanings = Meanings(pairing, checkpoint, model.layout, model.statistics)
    keeps_state = pairing.conf.warm.optimizer == "match"
    for memory, names in ((model.dense.weights, trained), (model.moving, moving)):
        for number, (name, shape) in enumerate(names.items()):
            if name not in there:
                carried.new.append(name)
                continue
            old = there[name]
            here, before = meanings.places(name, shape, old.weights.shape)
            copy(memory[number], shape, here, old.weights, before)
            if names is trained and keeps_state:
                for state, of_all in zip(model.dense.state_names, model.dense.states, strict=True):
                    copy(of_all[number], shape, here, old.states[state], before)
            whole = math.prod(len(axis) for axis in here) == math.prod(shape)
            (carried.matched if whole else carried.partly).append(name)
    if keeps_state:
        model.dense.step = int(checkpoint.manifest["dense"]["step"])
    elif model.dense.optimizer.name in FTRL:
        make_sums(model.dense)
    model.check_aliases()
    return carried


def described(variables: Any) -> dict[str, tuple[int, ...]]:
    """The shape of each variable, by name, in their order."""
    return {one.path: tuple(one.value.shape) for one in variables}


def variables(checkpoint: Checkpoint) -> dict[str, Variable]:
    """The dense variables of a checkpoint and its moving statistics, by name."""
    part = checkpoint.manifest["dense"]
    floats, at = dense.floats(checkpoint.folder, checkpoint.manifest), 0

    def taken(of: list[dict[str, Any]]) -> Iterator[tuple[str, NDArray[np.float32]]]:
        nonlocal at
        for one in of:
            size = math.prod(one["shape"])
            yield one["name"], floats[at : at + size].reshape(one["shape"])
            at += size

    weights = dict(taken(part["variables"]))
    states = {state: dict(taken(part["variables"])) for state in part["states"]}
    found = {
        name: Variable(array, {state: of[name] for state, of in states.items()})
        for name, array in weights.items()
    }
    return found | {name: Variable(array, {}) for name, array in taken(part["moving"])}


def copy(
    memory: NDArray[np.float32],
    shape: tuple[int, ...],
    here: list[NDArray[np.int64]],
    values: NDArray[np.float32],
    before: list[NDArray[np.int64]],
) -> None:
    """Write the values at the places `before` to the places `here` of a variable's memory."""
    memory.reshape(shape)[np.ix_(*here)] = values[np.ix_(*before)]


def make_sums(table: DenseTable) -> None:
    """Give FTRL the z that its weights follow from; see `ftrl_z`."""
    sums, z = (table.states[table.state_names.index(name)] for name in ("n", "z"))
    for number, weights in enumerate(table.weights):
        z[number][:] = ftrl_z(table.optimizer, weights, sums[number])


class Meanings:
    """Which places of a variable in the checkpoint are which in the new network."""

    def __init__(
        self, pairing: Pairing, checkpoint: Checkpoint, layout: Layout, statistics: Statistics
    ) -> None:
        self._there = pairing.there
        before = plan(pairing.old, checkpoint.statistics)
        # An input that was dropped may have the name of one that is new.
        gone = {name: f"{name} (dropped)" for name in pairing.dropped}
        names = {**gone, **pairing.names_here}
        self._equal = outline(before, names) == outline(layout, {})
        if self._equal:
            return
        self._here = Network(pairing.conf, layout, {})
        self._before = Network(pairing.old, before, names)
        self._wider = wider(pairing, layout, statistics)

    def places(
        self, name: str, shape: tuple[int, ...], was: tuple[int, ...]
    ) -> tuple[list[NDArray[np.int64]], list[NDArray[np.int64]]]:
        """For each axis, the places here that go on, and where they were; both ascend together."""
        if len(shape) != len(was) or (self._equal and shape != was):
            raise self._unknown(name, shape, was)
        here, before = [], []
        for axis, (length, old_length) in enumerate(zip(shape, was, strict=True)):
            grown = 0
            if not self._equal and name in self._wider:
                grown = self._wider[name][axis] - length
            if length == old_length and not grown:
                here.append(np.arange(length))
                before.append(np.arange(length))
                continue
            own = self._here.meanings(name, axis, grown)
            old = self._before.meanings(name, axis, grown)
            if own is None or old is None:
                raise self._unknown(name, shape, was)
            at = {meaning: place for place, meaning in enumerate(old)}
            pairs = [(k, at[meaning]) for k, meaning in enumerate(own) if meaning in at]
            here.append(np.array([k for k, _ in pairs], np.int64))
            before.append(np.array([k for _, k in pairs], np.int64))
        return here, before

    def _unknown(self, name: str, shape: Any, was: Any) -> UserError:
        return UserError(
            f"dense weights {name} are {list(shape)} here and were {list(was)} in {self._there}, "
            f"and which inputs their places are of cannot be told. Keep the inputs as they were, "
            f"{ANEW}"
        )


def outline(layout: Layout, names: dict[str, str]) -> Any:
    """What the dense model sees of its inputs, with inputs renamed."""
    columns = {names.get(name, name): at for name, at in layout.pooled.items()}
    numbers = {names.get(name, name): at for name, at in layout.numeric_columns.items()}
    apart = {names.get(name, name): one for name, one in layout.sequences.items()}
    counted = {names.get(name, name) for name in layout.with_cvm}
    return list(columns.items()), list(numbers.items()), list(apart.items()), counted


def wider(pairing: Pairing, layout: Layout, statistics: Statistics) -> dict[str, tuple[int, ...]]:
    """The shapes of a recipe's variables when the conf has a slot and a number more."""
    conf = pairing.conf
    slots = dict(conf.slots)
    if layout.pooled:
        like = conf.slots[next(iter(layout.pooled))]
        slots[WIDENING] = Slot(width=like.width, linear=like.linear, frozen=like.frozen)
    numeric = {**conf.numeric, WIDENING_NUMBER: Numeric()}
    more = dataclasses.replace(conf, slots=slots, numeric=numeric)
    try:
        network, _ = build_network(more, plan(more, statistics), "float32")
    except UserError as error:
        raise UserError(
            f"inputs are others than in {pairing.there}, and which dense weights are over which "
            f"cannot be told, as the recipe takes no more of them ({error}). Keep the inputs as "
            f"they were, {ANEW}"
        ) from error
    return described(network.variables)


class Network:
    """The network of a conf, with random weights, to be asked which weights are over which inputs.

    `names` are those of the inputs in the new conf.
    """

    def __init__(self, conf: Conf, layout: Layout, names: dict[str, str]) -> None:
        self._layout, self._names = layout, names
        network, _ = build_network(conf, layout, "float32")
        self._trained = [one.path for one in network.trainable_variables]
        self._shapes = described(network.variables)
        random = np.random.default_rng(1)
        for one in network.trainable_variables:
            # Of a size that saturates no unit: what is flat has no gradient.
            deviation = (one.shape[0] if one.shape else 1) ** -0.5
            one.assign(random.normal(0, deviation, one.shape).astype(np.float32))
        self._vanishing = silenced(network, layout, random)
        self._found: dict[tuple[str, int], list[Meaning] | None] = {}

    def meanings(self, name: str, axis: int, grown: int) -> list[Meaning] | None:
        """What each place along an axis stands for, or None where it cannot be told.

        `grown` is how much longer the axis is with one slot and one number more.
        """
        if (name, axis) not in self._found:
            self._found[name, axis] = self._by_silence(name, axis) or self._by_length(
                name, axis, grown
            )
        return self._found[name, axis]

    def _by_silence(self, name: str, axis: int) -> list[Meaning] | None:
        """By the inputs that silence each place; None where there is none that any silences."""
        if name not in self._trained:
            return None
        length = self._shapes[name][axis]
        over: list[tuple[str, ...]] = [()] * length
        for one, slices in self._vanishing.items():
            for at in np.flatnonzero(slices[name][axis]):
                over[int(at)] = (*over[int(at)], one)
        if not any(over):
            return None
        found: list[Meaning] = [None] * length
        for inputs in dict.fromkeys(over):
            places = [place for place, one in enumerate(over) if one == inputs]
            named = tuple(self._names.get(one, one) for one in inputs)
            parts = self._fitting(inputs, len(places))
            if parts:
                for k, place in enumerate(places):
                    found[place] = (named, k // len(parts), parts[k % len(parts)])
            else:
                # Units beside inputs. A place more or less would move what follows.
                for k, place in enumerate(places):
                    found[place] = (named, len(places), k)
        return found

    def _fitting(self, inputs: tuple[str, ...], places: int) -> list[Meaning]:
        """The parts of an input, counts or not, that so many places are once or several times."""
        parts = self._parts(inputs[0]) if inputs else []
        for some in (parts, self._embedding(inputs[0]) if inputs else []):
            if some and places % len(some) == 0:
                return some
        return []

    def _embedding(self, name: str) -> list[Meaning]:
        """The parts of an input without its counts."""
        return [one for one in self._parts(name) if one not in COUNTS]

    def _parts(self, name: str) -> list[Meaning]:
        """What the columns of an input are: coordinates of its embedding, counts, numbers."""
        layout = self._layout
        if name in layout.numeric:
            return list(range(layout.numeric[name]))
        one = layout.sequences.get(name)
        columns = layout.pooled[name][1] if one is None else one.width
        if name not in layout.with_cvm:
            return list(range(columns))
        return [*range(columns - CVM_COLUMNS), *COUNTS]

    def _by_length(self, name: str, axis: int, grown: int) -> list[Meaning] | None:
        length, layer = self._shapes[name][axis], name.rpartition("/")[0]
        for other in self._trained:
            if other != name and other.rpartition("/")[0] == layer:
                for at, of in enumerate(self._shapes[other]):
                    if of == length and (found := self._by_silence(other, at)) is not None:
                        return found
        layout = self._layout
        if not grown:  # and still longer or shorter: made by the width of the embeddings
            widths = {len(self._embedding(one)) for one in layout.pooled}
            return list(range(length)) if widths == {length} else None
        slots: list[Meaning] = [(self._names.get(one, one), "slot") for one in layout.pooled]
        numbers = self._columns(list(layout.numeric))
        columns = self._columns([*layout.pooled, *layout.numeric])
        by_growth = [columns] if grown > 1 or not layout.pooled else [numbers, slots]
        fitting = [one for one in by_growth if len(one) == length]
        return fitting[0] if len(fitting) == 1 else None

    def _columns(self, names: list[str]) -> list[Meaning]:
        """The columns of x of some inputs, as `_by_silence` names them."""
        return [
            ((self._names.get(one, one),), 0, part) for one in names for part in self._parts(one)
        ]


def silenced(
    network: Any, layout: Layout, random: np.random.Generator
) -> dict[str, dict[str, list[NDArray[np.bool_]]]]:
    """For each input, for each variable and axis of it, the places that vanish without the input.

    A place vanishes when the gradient of all weights there is zero; one that has none with all
    inputs vanishes by none.
    """
    x = random.normal(size=(EXAMPLES, layout.width)).astype(np.float32)
    sequences = random.normal(size=(EXAMPLES, layout.sequences_width)).astype(np.float32)
    linear = random.normal(size=(EXAMPLES, 1)).astype(np.float32)
    lengths = np.tile([one.length for one in layout.sequences.values()], (EXAMPLES, 1))
    upstream = tf.constant(random.normal(size=(EXAMPLES, 1)).astype(np.float32))
    trained = [one.value for one in network.trainable_variables]

    @tf.function(autograph=False)
    def gradients(*tensors: Any) -> Any:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(trained)
            outputs = network(list(tensors), training=False)
            total = tf.add_n([tf.reduce_sum(upstream * one) for one in outputs.values()])
        return tape.gradient(total, trained, unconnected_gradients="zero")

    def vanishing(x: Any, sequences: Any) -> list[list[NDArray[np.bool_]]]:
        given = [
            tf.constant(array)
            for array, exists in (
                (x, layout.width),
                (linear, layout.has_linear),
                (sequences, layout.sequences),
                (lengths.astype(np.int32), layout.sequences),
            )
            if exists
        ]
        return [
            [
                ~np.any(array, axis=tuple(k for k in range(array.ndim) if k != axis))
                for axis in range(array.ndim)
            ]
            for array in map(np.asarray, gradients(*given))
        ]

    always = vanishing(x, sequences)
    found = {}
    places = {**layout.pooled, **layout.numeric_columns}
    for name in [*places, *layout.sequences]:
        without, apart = x.copy(), sequences.copy()
        if name in places:
            at, width = places[name]
            without[:, at : at + width] = 0
        else:
            sequence = layout.sequences[name]
            apart[:, sequence.column : sequence.column + sequence.length * sequence.width] = 0
        found[name] = {
            variable.path: [now & ~before for now, before in zip(axes, known, strict=True)]
            for variable, axes, known in zip(
                network.trainable_variables, vanishing(without, apart), always, strict=True
            )
        }
    return found
