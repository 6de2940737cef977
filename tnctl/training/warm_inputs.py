"""Warm start: which input of the new conf goes on from which of the old one, and what may differ.

Everything here is about the two confs and their statistics; no row is read.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tnctl.data.features import counted_ids
from tnctl.data.reading import numeric_columns, slot_column
from tnctl.data.statistics import Statistics
from tnctl.errors import UserError, did_you_mean
from tnctl.schema import Conf, Numeric, Slot, Warm

# What makes ids of values. With another of these, the rows would be those of other values.
MAKES_IDS = ("indicator", "ids", "seed", "oov", "missing")
# What changes which values an example has, and what becomes of their rows: told, not refused.
OF_VALUES = ("separator", "padding", "max_length", "keep", "weights", "pooling")
OF_NUMBERS = ("clip", "default", "separator")
OF_DATA = ("missing", "strip", "negatives", "label", "labels")


@dataclass(frozen=True)
class Pairing:
    """The inputs of two confs side by side.

    `goes_on` maps a new input to the old one whose weights it takes; `new` and `dropped` are the
    others. `there` is the checkpoint, as messages name it.
    """

    there: str
    old: Conf
    conf: Conf
    goes_on: dict[str, str]
    new: tuple[str, ...]
    dropped: tuple[str, ...]

    @property
    def names_here(self) -> dict[str, str]:
        """The old inputs that go on, by the names that they have in the new conf."""
        return {old: name for name, old in self.goes_on.items()}


def pair(there: str, old: Conf, conf: Conf) -> Pairing:
    """Give every input of both confs exactly one outcome, by warm.rename, drop and new.

    Raises UserError for an input that is on one side only and not named, and for names in the
    three keys that are no such inputs.
    """
    warm = conf.warm
    here, before = [*conf.slots, *conf.numeric], [*old.slots, *old.numeric]
    for key, names, choices in (
        ("rename", warm.rename, here),
        ("new", warm.new, here),
        ("drop", warm.drop, before),
        ("rename", warm.rename.values(), before),
    ):
        for name in names:
            if name not in choices:
                side = "this conf" if choices is here else there
                raise UserError(
                    f"warm.{key}: {side} has no input '{name}'. {did_you_mean(name, choices)}"
                )
    taken = list(warm.rename.values())
    for name in warm.rename:
        if name in warm.new:
            raise UserError(f"{name} is in warm.rename and in warm.new; it can be in one of them")
    for name in taken:
        if name in warm.drop or taken.count(name) > 1:
            other = "warm.drop" if name in warm.drop else "another place of warm.rename"
            raise UserError(f"{name} is in warm.rename and in {other}; it can be in one of them")
    free = [name for name in before if name not in taken and name not in warm.drop]
    goes_on = {
        name: warm.rename.get(name, name)
        for name in here
        if name in warm.rename or (name not in warm.new and name in free)
    }
    unnamed = [name for name in here if name not in goes_on and name not in warm.new]
    left = [name for name in free if name not in goes_on.values()]
    if unnamed or left:
        raise UserError(_unnamed(there, conf.warm, unnamed, left))
    dropped = tuple(name for name in before if name not in goes_on.values())
    return Pairing(there, old, conf, goes_on, tuple(warm.new), dropped)


def _unnamed(there: str, warm: Warm, unnamed: list[str], left: list[str]) -> str:
    """What has no outcome, and the keys that give it one, with what is in them already."""
    parts, ways = [], []
    if unnamed:
        parts.append(f"{there} has no {_listed(unnamed)}, which this conf has")
        ways.append(f"warm.new=[{','.join([*warm.new, *unnamed])}] (starts anew)")
    if left:
        parts.append(f"{there} has {_listed(left)}, which this conf has not")
        ways.append(f"warm.drop=[{','.join([*warm.drop, *left])}]")
    way = " and ".join(ways)
    if unnamed and left:
        pairs = {**warm.rename, unnamed[0]: left[0]}.items()
        names = ", ".join(f"{name}: {old_name}" for name, old_name in pairs)
        way += f", or where it is one input of two names warm.rename={{{names}}}"
    return f"{', and '.join(parts)}. Give {way}"


def _listed(names: list[str]) -> str:
    return f"input{'s' if len(names) > 1 else ''} {', '.join(names)}"


def check(pairing: Pairing, before: Statistics, here: Statistics) -> None:
    """Refuse inputs whose rows or weights would mean something else here.

    `before` are the statistics of the checkpoint, `here` those that the new model will have.
    Raises UserError that names the input, what differs, and the way out.
    """
    for name, old_name in pairing.goes_on.items():
        slot, old_slot = pairing.conf.slots.get(name), pairing.old.slots.get(old_name)
        if (slot is None) != (old_slot is None):
            kinds = ("a slot", "a numeric input")
            one, other = kinds if slot is not None else kinds[::-1]
            found: Differing | None = ("kind", one, other)
        elif slot is not None and old_slot is not None:
            found = _other_ids(pairing, name, slot, old_slot, before, here) or _narrower(
                pairing.conf.width_of(slot), pairing.old.width_of(old_slot)
            )
        else:
            found = _other_numbers(pairing, name, before, here)
        if found:
            what, value, was = found
            kind = "slots" if slot is not None else "numeric"
            warm = pairing.conf.warm
            new = ",".join([*warm.new, name])
            drop = ",".join([*warm.drop, old_name])
            raise UserError(
                f"{kind}.{name}: {what} is {value} here and was {was} in {pairing.there}, so what "
                "was learned of it would be about something else. Take the same, or start it "
                f"anew: warm.new=[{new}] and warm.drop=[{drop}]"
            )


Differing = tuple[str, Any, Any]


def _narrower(width: int, was: int) -> Differing | None:
    """An embedding can be made wider, but no part of it is known to be worth less than another."""
    return ("width", width, was) if width < was else None


def _other_ids(
    pairing: Pairing, name: str, slot: Slot, old: Slot, before: Statistics, here: Statistics
) -> Differing | None:
    """What makes other ids of the same values: (key, value, what it was), or None."""
    old_name = pairing.goes_on[name]
    keys = (*MAKES_IDS, *(["size"] if slot.ids == "modulo" else []))
    keys += ("buckets",) if slot.ids == "quantiles" else ()
    for key in keys:
        if getattr(slot, key) != getattr(old, key):
            return key, getattr(slot, key), getattr(old, key)
    crossed, old_crossed = (
        _crossed(pairing.conf, slot, {}),
        _crossed(pairing.old, old, pairing.names_here),
    )
    if crossed != old_crossed:
        return "cross", slot.cross, old.cross
    edges, old_edges = here.boundaries_of(name, slot), before.boundaries_of(old_name, old)
    if edges is not None and old_edges is not None and edges.tolist() != old_edges.tolist():
        return "the list of its boundaries", _short(edges), _short(old_edges)
    words, old_words = here.vocabulary_of(name, slot), before.vocabulary_of(old_name, old)
    if words is not None and old_words is not None:
        # Values at the end of the list move no id, unless ids that come after the list would move.
        grows = words[: len(old_words)] == old_words and not slot.oov and slot.missing == "none"
        if words != old_words and not grows:
            return "vocabulary", _short(words), _short(old_words)
    if slot.indicator and (counted_ids(name, slot, here) or 0) < (
        counted_ids(old_name, old, before) or 0
    ):
        return "size", slot.size, old.size
    return None


def _crossed(conf: Conf, slot: Slot, names_here: dict[str, str]) -> list[tuple[str, bool]] | None:
    """The parts of a cross: name, and whether it is a slot."""
    if slot.cross is None:
        return None
    return [(names_here.get(one, one), one in conf.slots) for one in slot.cross]


def _other_numbers(
    pairing: Pairing, name: str, before: Statistics, here: Statistics
) -> Differing | None:
    numeric, old_name = pairing.conf.numeric[name], pairing.goes_on[name]
    old = pairing.old.numeric[old_name]
    for key in ("transform", "numbers"):
        if getattr(numeric, key) != getattr(old, key):
            return key, getattr(numeric, key), getattr(old, key)
    scale, old_scale = here.standardize.get(name), before.standardize.get(old_name)
    if _plain(scale) != _plain(old_scale):
        return "[mean, deviation]", _plain(scale), _plain(old_scale)
    return None


def _plain(scale: Any) -> list[Any] | None:
    return None if scale is None else list(scale)


def _short(values: Iterable[Any]) -> str:
    """A list in a message: how long it is, and how it begins."""
    items = list(values)
    shown = ", ".join(str(one) for one in items[:3])
    return f"[{shown}{', …' if len(items) > 3 else ''}] ({len(items):,})"


def statistics(pairing: Pairing, before: Statistics, here: Statistics) -> Statistics:
    """The statistics of the new model: what was measured of an input that goes on stays.

    Its weights were trained on numbers and buckets that were made with them. What the conf gives
    itself stays the conf's, and prepared rows have been made into ids already: `check` compares.
    """
    found = Statistics(dict(here.standardize), dict(here.boundaries), dict(here.vocabularies))
    if pairing.conf.data.prepared:
        return found
    for name, old_name in pairing.goes_on.items():
        numeric, slot = pairing.conf.numeric.get(name), pairing.conf.slots.get(name)
        if numeric is not None and measured(numeric) and old_name in before.standardize:
            found.standardize[name] = before.standardize[old_name]
        elif slot is not None and slot.ids == "quantiles" and old_name in before.boundaries:
            found.boundaries[name] = before.boundaries[old_name]
    return found


def measured(numeric: Numeric) -> bool:
    """Whether the mean and deviation of a numeric input are measured."""
    return numeric.transform == "standardize" and numeric.mean is None


def must_measure(pairing: Pairing) -> bool:
    """Whether an input that starts anew needs statistics of the training data."""
    slots, numeric = pairing.conf.slots, pairing.conf.numeric
    return any(
        slots[name].ids == "quantiles"
        if name in slots
        else numeric[name].transform == "standardize"
        for name in pairing.new
    )


def notes(pairing: Pairing) -> list[str]:
    """What differs and is allowed, a line each."""
    found = []
    for name, old_name in pairing.goes_on.items():
        if name in pairing.conf.slots:
            slot, old = pairing.conf.slots[name], pairing.old.slots[old_name]
            found += _differing(f"slots.{name}", slot, old, OF_VALUES)
            if slot.ids == "integer":
                found += _differing(f"slots.{name}", slot, old, ("size",))
            column, was = slot_column(name, slot), slot_column(old_name, old)
            if slot.cross is None and column != was:
                found.append(f"slots.{name} is read from column {column}, it was {was}")
        else:
            number, before = pairing.conf.numeric[name], pairing.old.numeric[old_name]
            found += _differing(f"numeric.{name}", number, before, OF_NUMBERS)
            columns, were = numeric_columns(name, number), numeric_columns(old_name, before)
            if columns != were:
                found.append(
                    f"numeric.{name} is read from {', '.join(columns)}, it was {', '.join(were)}"
                )
    found += _differing("data", pairing.conf.data, pairing.old.data, OF_DATA)
    return found + _differing("train", pairing.conf.train, pairing.old.train, ("loss",))


def _differing(where: str, here: Any, before: Any, keys: Iterable[str]) -> list[str]:
    return [
        f"{where}.{key} is {getattr(here, key)}, it was {getattr(before, key)}"
        for key in keys
        if getattr(here, key) != getattr(before, key)
    ]


def recipe_of(pairing: Pairing) -> dict[str, Any]:
    """The old conf's recipe, its settings with the names that inputs have here."""

    def renamed(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [renamed(one) for one in value]
        return pairing.names_here.get(value, value) if isinstance(value, str) else value

    recipe = pairing.old.recipe
    return {key: value if key == "name" else renamed(value) for key, value in recipe.items()}
