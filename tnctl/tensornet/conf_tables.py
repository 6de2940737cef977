"""Which table of TensorNet has which weights of a conf's rows: by their width, or as given."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tnctl.errors import UserError, did_you_mean, quoted
from tnctl.model.layout import Layout, segments
from tnctl.schema import Conf, Slot
from tnctl.tables import Segment
from tnctl.tensornet.table_files import RULES, Described, RowForm, Rule

GIVEN = re.compile(r"([^:,]+):([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)?)")


@dataclass(frozen=True)
class Weights:
    """The weights of a share group that a table of TensorNet has: a segment of its rows.

    `table` is the table's place in the layout, `number` the group's in it.
    """

    table: int
    group: str
    number: int
    segment: Segment

    @property
    def name(self) -> str:
        """As `tables=` and messages have it."""
        return f"{self.group}.{self.segment.name}"

    @property
    def form(self) -> RowForm:
        """The rows that TensorNet has of them. Raises UserError for another optimizer."""
        return RowForm(rule_of(self.segment, self.name), self.segment.width)


def rule_of(segment: Segment, name: str) -> Rule:
    """TensorNet's optimizer of a segment's state. Raises UserError when it has none."""
    optimizer = segment.optimizer.name
    for rule in RULES:
        if optimizer in rule.optimizers:
            return rule
    raise UserError(
        f"{name} is trained with {optimizer}, whose state TensorNet's tables do not have. Take "
        "adagrad, or with compat=tensornet adam or ftrl"
    )


def weights_of(conf: Conf, layout: Layout) -> list[Weights]:
    """All weights of rows that the layout of a conf has."""
    return [
        Weights(place, group, number, segment)
        for place, table in enumerate(layout.tables)
        for group, number in table.groups.items()
        for segment in segments(conf, table)
    ]


def named_weights(given: str, known: Sequence[Weights]) -> dict[str, Weights]:
    """The weights that `tables=NAME:GROUP.SEGMENT,…` gives to each table; without GROUP. the only.

    Raises UserError for weights that the conf does not have, and for names that come twice.
    """
    chosen: dict[str, Weights] = {}
    for entry in given.strip("[]{} ").split(","):
        match = GIVEN.fullmatch(entry.strip())
        if match is None:
            raise UserError(
                "tables= is NAME:GROUP.SEGMENT for each table, by commas, with the segments linear "
                f"and embedding. Received: {quoted(entry)}"
            )
        name, received = match[1], match[2]
        fitting = [w for w in known if received in (w.name, w.segment.name)]
        if len(fitting) != 1:
            raise UserError(
                f"tables={entry.strip()}: the conf has {len(fitting) or 'no'} {received}. "
                f"{did_you_mean(received, [weights.name for weights in known])}"
            )
        if name in chosen or fitting[0] in chosen.values():
            raise UserError(f"tables= has {name} or {fitting[0].name} twice. Received: {given}")
        chosen[name] = fitting[0]
    return chosen


def matched(sources: Mapping[str, Described], known: Sequence[Weights]) -> dict[str, Weights]:
    """The weights that each table of TensorNet has, where only one pairing is possible by width.

    Raises UserError otherwise.
    """
    pairs: dict[str, Weights] = {}
    for name, source in sources.items():
        fitting = [weights for weights in known if weights.segment.width == source.dim]
        if not fitting:
            raise UserError(
                f"table {name} has dim {source.dim}, and the rows of this conf have "
                f"{in_words(known)}. Give the slots that width (slots.NAME.width, "
                "embedding.width), or name the tables to import: tables=NAME:GROUP.SEGMENT"
            )
        if len(fitting) > 1:
            raise UserError(
                f"table {name} with dim {source.dim} may have {in_words(fitting)}: TensorNet's "
                "keys do not say which slot they are of. Say it with "
                f"tables={name}:{fitting[0].name},…, or give slots that share rows there one group"
            )
        if (taken := next((n for n, w in pairs.items() if w == fitting[0]), None)) is not None:
            raise UserError(
                f"tables {taken} and {name} both have dim {source.dim}, and this conf has only "
                f"{fitting[0].name} of that width. Say which it is: tables={name}:"
                f"{fitting[0].name}"
            )
        pairs[name] = fitting[0]
    return pairs


def in_words(weights: Sequence[Weights]) -> str:
    """Names and widths in a message."""
    return ", ".join(f"{entry.name} ({entry.segment.width})" for entry in weights) or "no weights"


def check(name: str, source: Described, weights: Weights, slots: Mapping[str, Slot]) -> None:
    """Raise UserError unless a table of TensorNet can be these weights of a conf with `slots`."""
    form, optimizer = weights.form, weights.segment.optimizer
    if source.dim != form.dim:
        raise UserError(
            f"table {name} has dim {source.dim}, and {weights.name} has the width {form.dim}. "
            "Give the slots of the group the same width"
        )
    if source.optimizer is not None and source.optimizer.lower() != form.rule.name.lower():
        raise UserError(
            f"table {name} was trained with {source.optimizer}, and {weights.name} is trained with "
            f"{optimizer.name}, whose state is another. Take the same optimizer; later "
            "warm.optimizer=fresh can change it"
        )
    if optimizer.decays:
        setting = "lazy_l2" if optimizer.lazy_l2 else "weight_decay"
        raise UserError(
            f"{weights.name} has a {setting}, which TensorNet does not have. Import without it, "
            "and begin another run from the result with warm.start"
        )
    for slot_name, slot in slots.items():
        if (slot.group or slot_name) == weights.group and slot.ids != "integer":
            raise UserError(
                f"slots.{slot_name}.ids is {slot.ids}, and TensorNet's signs are ids as they are "
                "given. Take ids=integer"
            )
