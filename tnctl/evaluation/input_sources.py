"""What inputs are made of: columns, and parts of times."""

from collections.abc import Iterable
from typing import NamedTuple

from tnctl.data.column_names import slot_column, value_columns
from tnctl.schema import Conf


class Source(NamedTuple):
    """A column, or the part of a time column that one input alone reads, such as the hour."""

    column: str
    time_input: str | None = None


def shuffled_together(conf: Conf, names: Iterable[str]) -> dict[str, frozenset[str]]:
    """By input, those of `names` that are shuffled with it: all that read everything it reads.

    Those are itself, a number and the buckets of the same column, and every cross of it. What is
    made of a part of it only keeps its values: the parts of a cross, when that is shuffled. Hour
    and weekday of one time are different things, which do not go together.
    """
    sources = {name: _sources(conf, name) for name in names}
    return {
        name: frozenset(other for other, of_other in sources.items() if of_name <= of_other)
        for name, of_name in sources.items()
    }


def _sources(conf: Conf, name: str) -> frozenset[Source]:
    """Everything that an input's values are read from; the weights of values are not among it."""
    if (numeric := conf.numeric.get(name)) is not None:
        if numeric.since is not None or numeric.since_column is not None:
            return frozenset({Source(numeric.column or name, name)})
        return frozenset(map(Source, value_columns(name, numeric)))
    slot = conf.slots[name]
    if slot.cross is None:
        return frozenset({Source(slot_column(name, slot), name if slot.kind.of_times else None)})
    of_parts = (
        _sources(conf, part) if part in conf.slots else {Source(part)} for part in slot.cross
    )
    return frozenset().union(*of_parts)
