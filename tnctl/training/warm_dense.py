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

An axis that does not grow is of units, or of inputs that a recipe takes by name. Silence tells
which, unless all of a variable is over the same inputs: then all of its axes vanish together.
"""

import dataclasses
import inspect
import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from tnctl.checkpoint import dense
from tnctl.checkpoint.chain import Checkpoint
from tnctl.checkpoint.document import Variable as SavedVariable
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
# The first part names the inputs that it is over.
Meaning = tuple[tuple[str, ...], Hashable, Hashable]
Growth = dict[str, tuple[int, ...]]


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
    before, here = recipe_of(pairing), pairing.conf.recipe
    if here["name"] == before["name"]:
        before, here = complete(before), complete(here)
    keys = [key for key in ("name", *here, *before) if here.get(key) != before.get(key)]
    if keys:
        raise UserError(
            f"recipe.{keys[0]} is {here.get(keys[0])} here and was {before.get(keys[0])} in "
            f"{pairing.there}, and weights of one recipe mean nothing in another. Take the same, "
            f"{ANEW}"
        )
    name, digest = pairing.conf.recipe["name"], checkpoint.manifest.recipe.sha256
    if name.endswith(".py") and recipes.digest_of(name) != digest:
        raise UserError(
            f"{name} is not the file that {pairing.there} was trained with. Take that one, {ANEW}"
        )
    if warm.optimizer == "match":
        refuse_other_state(
            "dense weights",
            model.dense.optimizer,
            checkpoint.manifest.dense.optimizer,
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
            count = math.prod(len(axis) for axis in here)
            partly = carried.partly if count else carried.new
            (carried.matched if count == math.prod(shape) else partly).append(name)
    if keeps_state:
        model.dense.step = checkpoint.manifest.dense.step
    elif model.dense.optimizer.name in FTRL:
        make_sums(model.dense)
    model.check_aliases()
    return carried


def described(variables: Any) -> dict[str, tuple[int, ...]]:
    """The shape of each variable, by name, in their order."""
    return {one.path: tuple(one.value.shape) for one in variables}


def variables(checkpoint: Checkpoint) -> dict[str, Variable]:
    """The dense variables of a checkpoint and its moving statistics, by name."""
    described = checkpoint.manifest.dense
    floats, at = dense.floats(checkpoint.folder, checkpoint.manifest), 0

    def taken(of: Iterable[SavedVariable]) -> Iterator[tuple[str, NDArray[np.float32]]]:
        nonlocal at
        for one in of:
            yield one.name, floats[at : at + one.size].reshape(one.shape)
            at += one.size

    weights = dict(taken(described.variables))
    states = {state: dict(taken(described.variables)) for state in described.states}
    found = {
        name: Variable(array, {state: of[name] for state, of in states.items()})
        for name, array in weights.items()
    }
    return found | {name: Variable(array, {}) for name, array in taken(described.moving)}


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
        same = outline(before, names) == outline(layout, {})
        self._equal = same and not takes_others(pairing)
        if self._equal:
            return
        longer = wider(pairing, layout, statistics)
        self._here = Network(pairing.conf, layout, {})
        self._before = Network(pairing.old, before, names)
        self._growth = {
            name: tuple(np.subtract(longer.get(name, shape), shape))
            for name, shape in self._here.shapes.items()
        }
        self._on_both = {
            name
            for name, old_name in pairing.goes_on.items()
            for one, other in (
                (layout.pooled, before.pooled),
                (layout.numeric_columns, before.numeric_columns),
                (layout.sequences, before.sequences),
            )
            if name in one and old_name in other
        }

    def places(
        self, name: str, shape: tuple[int, ...], was: tuple[int, ...]
    ) -> tuple[list[NDArray[np.int64]], list[NDArray[np.int64]]]:
        """For each axis, the places here that go on, and where each of them was.

        Raises UserError where that cannot be told, and where an input that goes on would find
        none of its weights.
        """
        # A manifest may have variables of other shapes than its conf makes.
        other = not self._equal and self._before.shapes.get(name) != was
        if len(shape) != len(was) or (self._equal and shape != was) or other:
            raise self._unknown(name, shape, was)
        here, before = [], []
        for axis, (length, old_length) in enumerate(zip(shape, was, strict=True)):
            readings = None if self._equal else self._readings(name, axis)
            if readings is None and length != old_length:
                raise self._unknown(name, shape, was)
            if readings is None:
                here.append(np.arange(length))
                before.append(np.arange(length))
                continue
            own, old = readings
            at = {meaning: place for place, meaning in enumerate(old)}
            pairs = [(k, at[meaning]) for k, meaning in enumerate(own) if meaning in at]
            self._refuse_lost(name, own, old, {own[k][0] for k, _ in pairs})
            here.append(np.array([k for k, _ in pairs], np.int64))
            before.append(np.array([k for _, k in pairs], np.int64))
        return here, before

    def _readings(self, name: str, axis: int) -> tuple[list[Meaning], list[Meaning]] | None:
        """What the places along an axis are, here and before; None for units.

        Both are read in the same way. Raises UserError where only one tells.
        """
        networks = self._here, self._before
        shape, was = (one.shapes[name] for one in networks)
        own, old = (one.by_silence(name, axis) for one in networks)
        if self._growth[name][axis]:
            own = own or self._here.by_length(name, axis, self._growth)
            old = old or self._before.by_length(name, axis, self._growth)
            if own is None or old is None:
                raise self._unknown(name, shape, was)
            return own, old
        apart = [one is not None and not uniform(one) for one in (own, old)]
        if own is not None and old is not None:
            if any(apart) or not {*own[0][0]} & {*old[0][0]}:
                return own, old
        elif any(apart) and shape[axis] == was[axis]:
            raise self._unknown(name, shape, was)
        elif own is None and old is None:
            beside = [one.by_layer(name, axis, self._growth) for one in networks]
            if beside[0] is not None and beside[1] is not None:
                return beside[0], beside[1]
            if beside != [None, None]:
                raise self._unknown(name, shape, was)
            behind = [one.by_silence(name, axis, shifted=False) for one in networks]
            told = [one is not None and not uniform(one) for one in behind]
            if behind[0] is not None and behind[1] is not None and all(told):
                return behind[0], behind[1]
        if shape[axis] == was[axis]:
            return None
        wide = [one.by_width(name, axis) for one in networks]
        if wide[0] is not None and wide[1] is not None:
            return wide[0], wide[1]
        return None if own is None or old is None else (own, old)

    def _refuse_lost(
        self, name: str, own: list[Meaning], old: list[Meaning], kept: set[Any]
    ) -> None:
        """Raise UserError for an input of both sides that is in one reading only."""
        for inputs in dict.fromkeys(meaning[0] for meaning in (*own, *old)):
            if inputs and inputs not in kept and self._on_both.issuperset(inputs):
                shown = " and ".join(inputs)
                raise UserError(
                    f"dense weights {name} are over other inputs here than in {self._there}, and "
                    f"would lose what was learned of {shown}. Give the recipe its inputs in the "
                    f"roles that they had, {ANEW}"
                )

    def _unknown(self, name: str, shape: Any, was: Any) -> UserError:
        return UserError(
            f"dense weights {name} are {list(shape)} here and were {list(was)} in {self._there}, "
            f"and which inputs their places are of cannot be told. Keep the inputs as they were, "
            f"{ANEW}"
        )


def takes_others(pairing: Pairing) -> bool:
    """Whether a name that a recipe of the user's own may have in it is another input here."""
    old = {*pairing.old.slots, *pairing.old.numeric}
    here = (*pairing.conf.slots, *pairing.conf.numeric)
    moved = any(name in old and pairing.goes_on.get(name) != name for name in here)
    return moved and pairing.conf.recipe["name"].endswith(".py")


def uniform(reading: list[Meaning]) -> bool:
    """Whether all places are over the same inputs."""
    return len({meaning[0] for meaning in reading}) == 1


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
        self.shapes = described(network.variables)
        shifts = [
            one.path
            for one in network.trainable_variables
            if len(one.shape) == 1 and not np.any(one.value.numpy())
        ]
        self._vanishing = silenced(network, layout, ())
        # Only a recipe of the user's own can take inputs by names that no setting tells.
        own = conf.recipe["name"].endswith(".py")
        self._unshifted = silenced(network, layout, shifts) if own else {}

    def by_silence(self, name: str, axis: int, shifted: bool = True) -> list[Meaning] | None:
        """By the inputs that silence each place; None where there is none that any silences.

        Unless `shifted`, biases are zeros: what is behind one of an input is silenced too.
        """
        vanishing = self._vanishing if shifted else self._unshifted
        if name not in self._trained:
            return None
        length = self.shapes[name][axis]
        over: list[tuple[str, ...]] = [()] * length
        # In an order that is the same for both confs.
        for one in sorted(vanishing, key=lambda one: self._names.get(one, one)):
            for at in np.flatnonzero(vanishing[one][name][axis]):
                over[int(at)] = (*over[int(at)], one)
        if not any(over):
            return None
        found: list[Meaning] = [((), None, None)] * length
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

    def _fitting(self, inputs: tuple[str, ...], places: int) -> list[Hashable]:
        """The parts of an input, counts or not, that so many places are once or several times."""
        parts = self._parts(inputs[0]) if inputs else []
        for some in (parts, self._embedding(inputs[0]) if inputs else []):
            if some and places % len(some) == 0:
                return some
        return []

    def _embedding(self, name: str) -> list[Hashable]:
        """The parts of an input without its counts."""
        return [one for one in self._parts(name) if one not in COUNTS]

    def _parts(self, name: str) -> list[Hashable]:
        """What the columns of an input are: coordinates of its embedding, counts, numbers."""
        layout = self._layout
        if name in layout.numeric:
            return list(range(layout.numeric[name]))
        one = layout.sequences.get(name)
        columns = layout.pooled[name][1] if one is None else one.width
        if name not in layout.with_cvm:
            return list(range(columns))
        return [*range(columns - CVM_COLUMNS), *COUNTS]

    def by_length(self, name: str, axis: int, growth: Growth) -> list[Meaning] | None:
        """Of an axis that grows with the inputs: as beside it in its layer, else as its length."""
        if (found := self.by_layer(name, axis, growth)) is not None:
            return found
        layout, length = self._layout, self.shapes[name][axis]
        slots: list[Meaning] = [
            ((self._names.get(one, one),), "slot", None) for one in layout.pooled
        ]
        numbers = self._columns(list(layout.numeric))
        columns = self._columns([*layout.pooled, *layout.numeric])
        both = growth[name][axis] > 1 or not layout.pooled
        fitting = [one for one in ([columns] if both else [numbers, slots]) if len(one) == length]
        return fitting[0] if len(fitting) == 1 else None

    def by_layer(self, name: str, axis: int, growth: Growth) -> list[Meaning] | None:
        """As another variable of the layer that has an axis of this length and growth.

        One that is as far from the last axis goes first, for so variables are broadcast: a bias
        has the units of its kernel, also where there are as many inputs.
        """
        shape, layer = self.shapes[name], name.rpartition("/")[0]
        alike = [
            (other, at)
            for other in self._trained
            if other != name and other in growth and other.rpartition("/")[0] == layer
            for at, length in enumerate(self.shapes[other])
            if length == shape[axis] and growth[other][at] == growth[name][axis]
        ]
        aligned = [
            (other, at) for other, at in alike if len(self.shapes[other]) - at == len(shape) - axis
        ]
        grows = growth[name][axis] > 0
        for other, at in [*aligned, *alike] if grows else aligned or alike:
            found = self.by_silence(other, at)
            if found is not None and (grows or not uniform(found)):
                return found
        return None

    def by_width(self, name: str, axis: int) -> list[Meaning] | None:
        """As the coordinates of embeddings, where all are as wide as an axis is long."""
        length = self.shapes[name][axis]
        widths = {len(self._embedding(one)) for one in self._layout.pooled}
        return [((), "width", k) for k in range(length)] if widths == {length} else None

    def _columns(self, names: list[str]) -> list[Meaning]:
        """The columns of x of some inputs, as `_by_silence` names them."""
        return [
            ((self._names.get(one, one),), 0, part) for one in names for part in self._parts(one)
        ]


def silenced(
    network: Any, layout: Layout, shifts: Sequence[str]
) -> dict[str, dict[str, list[NDArray[np.bool_]]]]:
    """For each input, for each variable and axis of it, the places that vanish without the input.

    A place vanishes when the gradient of all weights there is zero; one that has none with all
    inputs vanishes by none. The weights of the network become random, those of `shifts` zeros.
    """
    random = np.random.default_rng(1)
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

    def without(name: str) -> tuple[Any, Any]:
        others, apart = x.copy(), sequences.copy()
        if name in places:
            at, width = places[name]
            others[:, at : at + width] = 0
        else:
            sequence = layout.sequences[name]
            apart[:, sequence.column : sequence.column + sequence.length * sequence.width] = 0
        return others, apart

    def both(some: Any, others: Any) -> Any:
        return [
            [a & b for a, b in zip(*axes, strict=True)] for axes in zip(some, others, strict=True)
        ]

    def drawn(above: bool) -> dict[str | None, list[list[NDArray[np.bool_]]]]:
        """What vanishes without each input, and by None what does with all of them."""
        for one in network.trainable_variables:
            # Of a size that saturates no unit: what is flat has no gradient.
            deviation = (one.shape[0] if one.shape else 1) ** -0.5
            weights = random.normal(0, deviation, one.shape).astype(np.float32)
            weights = np.abs(weights) * deviation if above else weights
            one.assign(np.zeros_like(weights) if one.path in shifts else weights)
        each: dict[str | None, Any] = {name: vanishing(*without(name)) for name in names}
        return {**each, None: vanishing(x, sequences)}

    places = {**layout.pooled, **layout.numeric_columns}
    names = [*places, *layout.sequences]
    # A unit may be off in one draw when an input is gone. With weights above 0 that is rare.
    first, second = drawn(above=False), drawn(above=True)
    found = {name: both(first[name], second[name]) for name in first}
    return {
        name: {
            variable.path: [gone & ~known for gone, known in zip(*axes, strict=True)]
            for variable, *axes in zip(
                network.trainable_variables, found[name], found[None], strict=True
            )
        }
        for name in names
    }
