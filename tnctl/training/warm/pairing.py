"""Warm start: which input of the new conf is which of the old one, and what may differ.

Everything here is about the two confs, their statistics and optimizers; no row is read.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl.checkpoint.document import OptimizerEntry as SavedOptimizer
from tnctl.data.column_names import numeric_columns, slot_column
from tnctl.data.features import counted_ids
from tnctl.data.statistics_document import Statistics
from tnctl.errors import UserError, did_you_mean
from tnctl.optimizer_table import EXTRAS, KINDS
from tnctl.schema import Conf, Slot, Warm
from tnctl.tables import RowOptimizer

# The keys by which values become ids. If one differs, an id is another value's.
MAKES_IDS = ("indicator", "ids", "seed", "oov", "missing")
# Keys that change which values an example has, or how rows are pooled: reported, not refused.
OF_VALUES = ("separator", "padding", "max_length", "keep", "weights", "pooling")
OF_NUMBERS = ("clip", "default", "separator", "since")
FTRL = ("ftrl", "tensornet_ftrl")
FRESH_STATE = "Take the same, or warm.optimizer=fresh (weights come along, their state does not)"
OF_DATA = ("missing", "strip", "times", "negatives", "label", "labels")


@dataclass(frozen=True)
class Pairing:
    """The inputs of two confs side by side.

    `matched` maps inputs of the new conf to inputs of the old one whose weights they take; `new`
    and `dropped` are the others. `source` is the checkpoint, as messages name it.
    """

    source: str
    old: Conf
    conf: Conf
    matched: dict[str, str]
    new: tuple[str, ...]
    dropped: tuple[str, ...]

    @property
    def new_names(self) -> dict[str, str]:
        """The names in the new conf of old inputs that are matched."""
        return {old: name for name, old in self.matched.items()}


def pair(source: str, old: Conf, conf: Conf) -> Pairing:
    """Give every input of both confs exactly one outcome, by warm.rename, drop and new.

    Raises UserError for an input that is on one side only and not named, and for names in the
    three keys that are no such inputs.
    """
    warm = conf.warm
    names, old_names = [*conf.slots, *conf.numeric], [*old.slots, *old.numeric]
    for key, listed, choices in (
        ("rename", warm.rename, names),
        ("new", warm.new, names),
        ("drop", warm.drop, old_names),
        ("rename", warm.rename.values(), old_names),
    ):
        for name in listed:
            if name not in choices:
                side = "this conf" if choices is names else source
                raise UserError(
                    f"warm.{key}: {side} has no input '{name}'. {did_you_mean(name, choices)}"
                )
    taken = list(warm.rename.values())
    for name in warm.rename:
        if name in warm.new:
            raise UserError(f"{name} is in warm.rename and in warm.new; it can be in one of them")
    for name in taken:
        if name in warm.drop or taken.count(name) > 1:
            place = "warm.drop" if name in warm.drop else "another place of warm.rename"
            raise UserError(f"{name} is in warm.rename and in {place}; it can be in one of them")
    free = [name for name in old_names if name not in taken and name not in warm.drop]
    matched = {
        name: warm.rename.get(name, name)
        for name in names
        if name in warm.rename or (name not in warm.new and name in free)
    }
    unnamed = [name for name in names if name not in matched and name not in warm.new]
    remaining = [name for name in free if name not in matched.values()]
    if unnamed or remaining:
        raise UserError(_without_outcome(source, conf.warm, unnamed, remaining))
    dropped = tuple(name for name in old_names if name not in matched.values())
    return Pairing(source, old, conf, matched, tuple(warm.new), dropped)


def _without_outcome(source: str, warm: Warm, unnamed: list[str], remaining: list[str]) -> str:
    """The inputs without an outcome, and how to set the keys that give them one."""
    parts, ways = [], []
    if unnamed:
        parts.append(f"{source} has no {_listed(unnamed)}, which this conf has")
        ways.append(f"warm.new=[{','.join([*warm.new, *unnamed])}] (initialised from scratch)")
    if remaining:
        parts.append(f"{source} has {_listed(remaining)}, which this conf has not")
        ways.append(f"warm.drop=[{','.join([*warm.drop, *remaining])}]")
    way = " and ".join(ways)
    if unnamed and remaining:
        pairs = {**warm.rename, unnamed[0]: remaining[0]}.items()
        names = ", ".join(f"{name}: {old_name}" for name, old_name in pairs)
        way += f", or where it is one input of two names warm.rename={{{names}}}"
    return f"{', and '.join(parts)}. Give {way}"


def _listed(names: list[str]) -> str:
    return f"input{'s' if len(names) > 1 else ''} {', '.join(names)}"


def check_inputs(pairing: Pairing, old_statistics: Statistics, statistics: Statistics) -> None:
    """Refuse matched inputs whose rows or weights would mean something else in the new model.

    `old_statistics` are the checkpoint's, `statistics` what the new model will have.
    Raises UserError that names the input, what differs, and the way out.
    """
    for name, old_name in pairing.matched.items():
        slot, old_slot = pairing.conf.slots.get(name), pairing.old.slots.get(old_name)
        if (slot is None) != (old_slot is None):
            kinds = ["a numeric input" if given is None else "a slot" for given in (slot, old_slot)]
            difference: Difference | None = ("kind", kinds[0], kinds[1])
        elif slot is not None and old_slot is not None:
            difference = _other_slot(pairing, name, slot, old_slot, old_statistics, statistics)
        else:
            difference = _other_numbers(pairing, name, old_statistics, statistics)
        if difference:
            what, value, old_value = difference
            kind = "slots" if slot is not None else "numeric"
            warm = pairing.conf.warm
            new = ",".join([*warm.new, name])
            drop = ",".join([*warm.drop, old_name])
            raise UserError(
                f"{kind}.{name}: {what} is {value} here and was {old_value} in {pairing.source}, "
                "so what was learned of it would be about something else. Take the same, or "
                f"reinitialise it: warm.new=[{new}] and warm.drop=[{drop}]"
            )


Difference = tuple[str, Any, Any]  # what differs, its value, and what it was


def _other_slot(
    pairing: Pairing,
    name: str,
    slot: Slot,
    old: Slot,
    old_statistics: Statistics,
    statistics: Statistics,
) -> Difference | None:
    """A difference that changes the ids of values, or narrows the embedding; else None."""
    old_name = pairing.matched[name]
    if (slot.vectors is None) != (old.vectors is None):
        return "vectors", slot.vectors, old.vectors
    for key in (*MAKES_IDS, *slot.kind.decided_by):
        if getattr(slot, key) != getattr(old, key):
            return key, getattr(slot, key), getattr(old, key)
    if _crossed(pairing.conf.slots, slot, {}) != _crossed(
        pairing.old.slots, old, pairing.new_names
    ):
        return "cross", slot.cross, old.cross
    edges, words = statistics.lists_of(name, slot)
    old_edges, old_words = old_statistics.lists_of(old_name, old)
    if edges is not None and old_edges is not None and edges.tolist() != old_edges.tolist():
        return "the list of its boundaries", _short(edges), _short(old_edges)
    if words is not None and old_words is not None:
        # Values at the end of the list move no id, unless ids that come after the list would move.
        grows = words[: len(old_words)] == old_words and not slot.oov and slot.missing == "none"
        if words != old_words and not grows:
            return "vocabulary", _short(words), _short(old_words)
    if slot.indicator and (counted_ids(name, slot, statistics) or 0) < (
        counted_ids(old_name, old, old_statistics) or 0
    ):
        return "size", slot.size, old.size
    # An embedding can be made wider, but no part of it is known to be worth less than another.
    width, old_width = pairing.conf.width_of(slot), pairing.old.width_of(old)
    is_other = width != old_width if slot.vectors else width < old_width
    return ("width", width, old_width) if is_other else None


def _crossed(
    slots: Mapping[str, Slot], slot: Slot, names: dict[str, str]
) -> list[tuple[str, bool]] | None:
    """The parts of a cross: name, and whether it is a slot."""
    if slot.cross is None:
        return None
    return [(names.get(part, part), part in slots) for part in slot.cross]


def _other_numbers(
    pairing: Pairing, name: str, old_statistics: Statistics, statistics: Statistics
) -> Difference | None:
    numeric, old_name = pairing.conf.numeric[name], pairing.matched[name]
    old = pairing.old.numeric[old_name]
    for key in ("transform", "numbers", "is_age", "unit"):
        if getattr(numeric, key) != getattr(old, key):
            return key, getattr(numeric, key), getattr(old, key)
    scale, old_scale = (
        None if pair is None else list(pair)
        for pair in (statistics.standardize.get(name), old_statistics.standardize.get(old_name))
    )
    return None if scale == old_scale else ("[mean, deviation]", scale, old_scale)


def _short(values: Iterable[Any]) -> str:
    """A list in a message: how long it is, and how it begins."""
    texts = [str(value) for value in values]
    return f"[{', '.join(texts[:3])}{', …' if len(texts) > 3 else ''}] ({len(texts):,})"


def statistics_of_both(pairing: Pairing, old: Statistics, new: Statistics) -> Statistics:
    """The statistics of the new model: those measured of matched inputs are kept.

    Weights were trained on numbers and buckets that were made with them. Statistics that the conf
    gives are the conf's, and prepared rows are ids already: `check_inputs` compares these.
    """
    both = Statistics(dict(new.standardize), dict(new.boundaries), dict(new.vocabularies))
    if pairing.conf.data.prepared:
        return both
    for name, old_name in pairing.matched.items():
        numeric, slot = pairing.conf.numeric.get(name), pairing.conf.slots.get(name)
        measured = numeric and numeric.transform == "standardize" and numeric.mean is None
        if measured and old_name in old.standardize:
            both.standardize[name] = old.standardize[old_name]
        elif slot is not None and slot.kind.measured and old_name in old.boundaries:
            both.boundaries[name] = old.boundaries[old_name]
    return both


def must_measure(pairing: Pairing) -> bool:
    """Whether a new input needs statistics of the training data."""
    slots, numeric = pairing.conf.slots, pairing.conf.numeric
    return any(
        slots[name].kind.measured if name in slots else numeric[name].transform == "standardize"
        for name in pairing.new
    )


def differences(pairing: Pairing) -> Iterator[str]:
    """The differences that are allowed, a line each."""
    for name, old_name in pairing.matched.items():
        if name in pairing.conf.slots:
            slot, old = pairing.conf.slots[name], pairing.old.slots[old_name]
            yield from _differing(f"slots.{name}", slot, old, OF_VALUES)
            if "size" not in slot.kind.decided_by:
                yield from _differing(f"slots.{name}", slot, old, ("size",))
            column, old_column = slot_column(name, slot), slot_column(old_name, old)
            if slot.cross is None and column != old_column:
                yield f"slots.{name} is read from column {column}, it was {old_column}"
        else:
            number, old_number = pairing.conf.numeric[name], pairing.old.numeric[old_name]
            yield from _differing(f"numeric.{name}", number, old_number, OF_NUMBERS)
            columns = ", ".join(numeric_columns(name, number))
            old_columns = ", ".join(numeric_columns(old_name, old_number))
            if columns != old_columns:
                yield f"numeric.{name} is read from {columns}, it was {old_columns}"
    yield from _differing("data", pairing.conf.data, pairing.old.data, OF_DATA)
    yield from _differing("train", pairing.conf.train, pairing.old.train, ("loss",))


def _differing(section: str, new: Any, old: Any, keys: Iterable[str]) -> list[str]:
    return [
        f"{section}.{key} is {getattr(new, key)}, it was {getattr(old, key)}"
        for key in keys
        if getattr(new, key) != getattr(old, key)
    ]


def recipe_of(pairing: Pairing) -> dict[str, Any]:
    """The old conf's recipe, its settings with the names that inputs have in the new conf."""

    def renamed(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [renamed(element) for element in value]
        return pairing.new_names.get(value, value) if isinstance(value, str) else value

    recipe = pairing.old.recipe
    return {key: value if key == "name" else renamed(value) for key, value in recipe.items()}


def refuse_other_state(
    what: str, optimizer: RowOptimizer, saved: SavedOptimizer, source: str
) -> None:
    """Raise UserError unless an optimizer can continue with the state of a saved one.

    Names and settings must be equal. Learning rate, decay, clipping, bounds and where accumulators
    start may differ, because no state that is there depends on them; of FTRL only clipping and
    bounds, because its weights follow from its state.
    """
    new, old = (meaning_of_state(rule) for rule in (optimizer, saved.rule()))
    if new != old:
        keys = [key for key in dict.fromkeys([*new, *old]) if new.get(key) != old.get(key)]
        shown = [", ".join(f"{key} {side.get(key, 'none')}" for key in keys) for side in (new, old)]
        raise UserError(
            f"{what} are trained with {shown[0]} here, and were with {shown[1]} in {source}. "
            f"{FRESH_STATE}"
        )


def meaning_of_state(optimizer: RowOptimizer) -> dict[str, Any]:
    """The name and the settings of an optimizer that determine what its state means."""
    free = {"learning_rate", *EXTRAS} - KINDS[optimizer.name].settings.keys()
    if optimizer.name in FTRL:
        free.discard("learning_rate")
    else:
        free.add("initial_accumulator")
    return {key: value for key, value in optimizer.described().items() if key not in free}


def ftrl_z(
    optimizer: RowOptimizer, weights: NDArray[np.float32], sums: NDArray[np.float32]
) -> NDArray[np.float32]:
    """The z from which FTRL makes these weights, float32 of their shape; its n are `sums`.

    FTRL computes the weights from n and z at every update (McMahan et al. 2013, algorithm 1), so
    with a z of 0 the first update would lose all that was learned.
    """
    rate = np.float64(optimizer.learning_rate)
    slope = rate if optimizer.name == "tensornet_ftrl" else 1 / rate if rate else np.float64(0)
    scale = (optimizer.beta + np.sqrt(sums.astype(np.float64))) * slope + optimizer.l2
    return (-(weights * scale + np.sign(weights) * optimizer.l1)).astype(np.float32)
