"""Warm start: rows of a checkpoint to rows of a model with other groups, widths and optimizers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl.checkpoint import rows as row_files
from tnctl.checkpoint.chain import Checkpoint
from tnctl.checkpoint.document import Clock, Table
from tnctl.checkpoint.document import Optimizer as SavedOptimizer
from tnctl.checkpoint.document import Segment as SavedSegment
from tnctl.errors import Failure, UserError
from tnctl.model.layout import Layout, plan
from tnctl.model.parameter_tables import ParameterTables
from tnctl.optimizer_table import EXTRAS, KINDS
from tnctl.tables import (
    ALL_SHARDS,
    Optimizer,
    Segment,
    SparseTable,
    days_of_steps,
    weight_factors,
)
from tnctl.tables.columns import group_salt, mix64
from tnctl.training.warm.pairing import Pairing

# How often a row was shown and clicked, as of the day of `changed`.
COUNTS = ("show", "click")
FTRL = ("ftrl", "tensornet_ftrl")
FRESH = "Take the same, or warm.optimizer=fresh (weights come along, their state does not)"


@dataclass(frozen=True)
class Move:
    """Rows of a group of the checkpoint become rows of a group of the new model."""

    part: str  # the checkpoint's table
    number: int  # the group's number in the checkpoint
    name: str  # the group's name in the checkpoint
    table: int  # place among the new model's tables
    group: str
    group_number: int


def moves(pairing: Pairing, old_layout: Layout, layout: Layout) -> Iterator[Move]:
    """Which groups' rows go where. A new group takes the rows of one group of the checkpoint.

    Raises UserError when its slots had rows of several.
    """
    old_groups = {
        group: (table.name, number)
        for table in old_layout.tables
        for group, number in table.groups.items()
    }
    for place, table in enumerate(layout.tables):
        for group, number in table.groups.items():
            sources: dict[str, str] = {}  # groups of the checkpoint, each by the first slot
            for name, group_number in zip(table.slots, table.group_of, strict=True):
                if group_number == number and (old_name := pairing.matched.get(name)) is not None:
                    sources.setdefault(pairing.old.slots[old_name].group or old_name, name)
            sources = {old: name for old, name in sources.items() if old in old_groups}
            if len(sources) > 1:
                first, second = list(sources)[:2]
                raise UserError(
                    f"slots {sources[first]} and {sources[second]} share the rows of group {group} "
                    f"here, and had those of {first} and {second} in {pairing.source}, so an id "
                    "would have two rows. Reinitialise one of them (warm.new and warm.drop), or "
                    "keep the groups apart"
                )
            for old_group in sources:
                yield Move(*old_groups[old_group], old_group, place, group, number)


def refuse_other_state(what: str, optimizer: Optimizer, saved: SavedOptimizer, source: str) -> None:
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
            f"{FRESH}"
        )


def meaning_of_state(optimizer: Optimizer) -> dict[str, Any]:
    """The name and the settings of an optimizer that determine what its state means."""
    free = {"learning_rate", *EXTRAS} - KINDS[optimizer.name].settings.keys()
    if optimizer.name in FTRL:
        free.discard("learning_rate")
    else:
        free.add("initial_accumulator")
    return {key: value for key, value in optimizer.described().items() if key not in free}


def ages(days: Sequence[tuple[int, int]], changed: NDArray[np.uint32]) -> NDArray[np.float64]:
    """Days from the step that each row was changed at to the last day of a clock."""
    last_day = days[-1][0] if days else 0
    return last_day - days_of_steps(days, changed).astype(np.float64)


class Conversion:
    """Records of one table of a checkpoint to records of one table of the new model."""

    def __init__(self, part: Table, table: SparseTable, clock: Clock, keeps_state: bool) -> None:
        self._table, self._clock, self._keeps_state = table, clock, keeps_state
        self._optimizers = {segment.name: segment.optimizer.rule() for segment in part.segments}
        # A row keeps the step of its last change only if the decay since that step is the same by
        # both confs: then its stored weights read as before.
        self._unchanged = all(
            self._decays_as_before(segment.optimizer, self._optimizers.get(segment.name))
            for segment in table.segments
        )
        decays = any(segment.optimizer.decays for segment in table.segments)
        self._changed_now = decays and not self._unchanged

    def _decays_as_before(self, optimizer: Optimizer, earlier: Optimizer | None) -> bool:
        if earlier is None:
            return not optimizer.decays
        if optimizer.lazy_l2 or earlier.lazy_l2:  # it goes by the accumulator too
            return self._keeps_state and optimizer == earlier
        return optimizer.decay_factor == earlier.decay_factor

    def __call__(
        self,
        records: NDArray[Any],
        numbers: NDArray[np.uint16],
        show_decays: tuple[NDArray[np.float64], NDArray[np.float64]],
    ) -> NDArray[Any]:
        """The new records of the same ids in the groups of these numbers.

        `show_decays` are the factors, float64 [n], by which show and click decay in a day: by the
        old conf, and by the new one.
        """
        made: NDArray[Any] = self._table.fresh_records(numbers, records["id"])
        made["flags"] = records["flags"]
        if not self._changed_now:
            made["changed"] = records["changed"]
        for segment in self._table.segments:
            if segment.name in self._optimizers:
                self._fill_segment(segment, records, made)
        self._fill_counts(records, made, show_decays)
        return made

    def _fill_segment(self, segment: Segment, records: NDArray[Any], made: NDArray[Any]) -> None:
        """Copy the weights of a segment, and the optimizer's state or what replaces it."""
        weights = records[segment.name]
        earlier = self._optimizers[segment.name]
        if not self._unchanged and earlier.decays:
            since = (self._clock.step - records["changed"]).astype(np.uint32)
            factors = weight_factors(earlier, segment.name, records, since)
            weights = weights * factors[:, None]
        made[segment.name][:, : weights.shape[1]] = weights
        if self._keeps_state:
            for name, _, _ in segment.optimizer.state_names(segment.width):
                state = records[f"{segment.name}.{name}"]
                made[f"{segment.name}.{name}"][:, : state.shape[1]] = state
        elif segment.optimizer.name in FTRL:
            sums = made[f"{segment.name}.n"]
            made[f"{segment.name}.z"] = ftrl_z(segment.optimizer, made[segment.name], sums)

    def _fill_counts(
        self,
        records: NDArray[Any],
        made: NDArray[Any],
        show_decays: tuple[NDArray[np.float64], NDArray[np.float64]],
    ) -> None:
        """Copy show and click, so that read at the last day they are what the old model reads."""
        names = {*COUNTS} & {*(records.dtype.names or ())} & {*(made.dtype.names or ())}
        if not names:
            return
        old_decay, decay = show_decays
        days = ages(self._clock.days, records["changed"])
        factors = old_decay**days
        if not self._changed_now:
            # They are stored as of the day of `changed`, and reading multiplies them by the decay
            # of the new conf since then: divide by it. Where it is 0, the counts are read as 0.
            new_factors = decay**days
            divisors = np.where(new_factors > 0, new_factors, np.inf)
            factors = np.where(old_decay == decay, 1.0, factors / divisors)
        for name in names:
            made[name] = records[name] * factors[:, None].astype(np.float32)


def ftrl_z(
    optimizer: Optimizer, weights: NDArray[np.float32], sums: NDArray[np.float32]
) -> NDArray[np.float32]:
    """The z from which FTRL makes these weights, float32 of their shape; its n are `sums`.

    FTRL computes the weights from n and z at every update (McMahan et al. 2013, algorithm 1), so
    with a z of 0 the first update would lose all that was learned.
    """
    rate = np.float64(optimizer.learning_rate)
    slope = rate if optimizer.name == "tensornet_ftrl" else 1 / rate if rate else np.float64(0)
    scale = (optimizer.beta + np.sqrt(sums.astype(np.float64))) * slope + optimizer.l2
    return (-(weights * scale + np.sign(weights) * optimizer.l1)).astype(np.float32)


class Rows:
    """The rows of a checkpoint, to be inserted into a new model."""

    def __init__(self, pairing: Pairing, checkpoint: Checkpoint, model: ParameterTables) -> None:
        self._pairing, self._checkpoint, self._model = pairing, checkpoint, model
        old_layout = plan(pairing.old, checkpoint.statistics)
        self._moves = list(moves(pairing, old_layout, model.layout))
        self._parts = {table.name: table for table in checkpoint.manifest.tables}

    def check(self) -> None:
        """Refuse rows that the new tables would misread or remove at once.

        Raises UserError that names the group, what differs, and the way out.
        """
        conf, old, source = self._pairing.conf, self._pairing.old, self._pairing.source
        for move in self._moves:
            eviction = conf.life_of(move.group).eviction
            rules = [key for key in ("show", "score") if getattr(eviction, key) is not None]
            if rules and not old.life_of(move.name).counts:
                raise UserError(
                    f"life.eviction.{rules[0]} of group {move.group} goes by show and click, and "
                    f"{source} kept none: all its rows would be removed. Begin with "
                    "life.shows.keep=true without this rule, and add it some days later"
                )
        if conf.warm.optimizer == "fresh":
            return
        for key, value, old_value in (
            ("compat", conf.compat, old.compat),
            ("optimizer.updates", conf.optimizer.updates, old.optimizer.updates),
        ):
            if value != old_value:
                raise UserError(f"{key} is {value} here and was {old_value} in {source}. {FRESH}")
        for move, segment, saved in self._segments():
            if saved is not None:
                refuse_other_state(
                    f"the {segment.name} weights of group {move.group}",
                    segment.optimizer,
                    saved.optimizer,
                    source,
                )

    def _segments(self) -> Iterator[tuple[Move, Segment, SavedSegment | None]]:
        """The segments of all moves, each with the checkpoint's of that name, if it has one."""
        for move in self._moves:
            saved = {segment.name: segment for segment in self._parts[move.part].segments}
            for segment in self._model.tables[move.table].segments:
                yield move, segment, saved.get(segment.name)

    def notes(self) -> Iterator[str]:
        """The differences of the new model's rows, a line each."""
        for move, segment, saved in self._segments():
            weights = f"group {move.group}: {segment.name} weights"
            if saved is None:
                yield f"{weights} are reinitialised: {self._pairing.source} has none"
                continue
            if saved.width < segment.width:
                yield (
                    f"{weights} are {segment.width} wide and were {saved.width}: the others "
                    "are reinitialised"
                )
            rate, old_rate = segment.optimizer.learning_rate, saved.optimizer.learning_rate
            if rate != old_rate:
                yield f"{weights} are trained at learning_rate {rate}, it was {old_rate}"
        for move in self._moves:
            kept = {segment.name for segment in self._model.tables[move.table].segments}
            for saved in self._parts[move.part].segments:
                if saved.name not in kept:
                    yield f"group {move.group}: {saved.name} weights are left out"
        for group in (group for part in self._parts.values() for group in part.groups):
            copies = [move.group for move in self._moves if move.name == group.name]
            if not copies and group.rows:
                yield f"{group.rows:,} rows of group {group.name} are left out"
            elif len(copies) > 1:
                yield f"the rows of group {group.name} are copied to {', '.join(copies)}"
        if any(self._pairing.old.life_of(move.name).waits for move in self._moves):
            yield "ids that wait for their rows are counted from 0"

    def insert(self) -> dict[str, int]:
        """Insert the rows of all moves; returns how many each group of the new model received.

        A table that owns some shards receives the rows of these. The clock of the tables is set
        first, to the checkpoint's. Raises Failure when one of its files is damaged.
        """
        clock = self._checkpoint.clock
        for table in self._model.tables:
            table.set_step(clock.step)
            table.set_days(clock.days)
        row_counts = dict.fromkeys((move.group for move in self._moves), 0)
        for part in dict.fromkeys(move.part for move in self._moves):
            moves_ = [move for move in self._moves if move.part == part]
            inserters = [
                Inserter(self._parts[part], self._model, round_, clock, self._pairing)
                for round_ in rounds(moves_)
            ]
            # The name of a group is in the hashes of its keys, so under another name a row of any
            # shard can be of any other.
            shards = ALL_SHARDS
            if all(move.name == move.group for move in moves_):
                shards = self._model.tables[moves_[0].table].shards
            for records in row_files.stream(self._checkpoint, part, *shards.hashes):
                for inserter in inserters:
                    for group, count in inserter.insert(records):
                        row_counts[group] += count
        return row_counts


def rounds(moves: list[Move]) -> Iterator[list[Move]]:
    """Moves to one table, each group of the checkpoint at most once in each list."""
    remaining = list(moves)
    while remaining:
        taken: dict[int, Move] = {}
        for move in remaining:
            if move.table == remaining[0].table:
                taken.setdefault(move.number, move)
        remaining = [move for move in remaining if move not in taken.values()]
        yield list(taken.values())


class Inserter:
    """Inserts the records of some groups of a table of the checkpoint into a table of the model."""

    def __init__(
        self,
        part: Table,
        model: ParameterTables,
        moves: list[Move],
        clock: Clock,
        pairing: Pairing,
    ) -> None:
        self._source = pairing.source
        self._table = model.tables[moves[0].table]
        keeps_state = pairing.conf.warm.optimizer == "match"
        self._convert = Conversion(part, self._table, clock, keeps_state)
        count = max(group.number for group in part.groups) + 1
        self._numbers = np.full(count, -1, np.int32)
        self._salts = np.zeros(len(model.layout.tables[moves[0].table].groups), np.uint64)
        self._old_decays, self._decays = np.ones(count), np.ones(count)
        self._names = {move.group_number: move.group for move in moves}
        for move in moves:
            self._numbers[move.number] = move.group_number
            self._salts[move.group_number] = group_salt(move.group)
            self._old_decays[move.number] = pairing.old.life_of(move.name).shows.decay
            self._decays[move.number] = pairing.conf.life_of(move.group).shows.decay

    def insert(self, records: NDArray[Any]) -> Iterator[tuple[str, int]]:
        """Insert the records of the groups that are moved; yields new groups and their row counts.

        `records` are of the checkpoint's table, and may have other groups, and keys that the table
        does not own. Nothing is inserted before the first value is taken. Raises Failure when the
        table refuses the records.
        """
        records = records[self._numbers[records["group"]] >= 0]
        numbers = self._numbers[records["group"]].astype(np.uint16)
        if self._table.shards != ALL_SHARDS:
            owned = self._table.owned(numbers, records["id"])
            records, numbers = records[owned], numbers[owned]
        if not len(records):
            return
        hashes = mix64(records["id"] ^ self._salts[numbers])
        order = np.lexsort((numbers, hashes))  # insert_records takes them in (hash, group) order
        records, numbers = records[order], numbers[order]
        decays = (self._old_decays[records["group"]], self._decays[records["group"]])
        try:
            self._table.insert_records(self._convert(records, numbers, decays).view("u1"))
        except ValueError as error:
            raise Failure(
                f"{self._source} is damaged ({error}). Take another checkpoint"
            ) from error
        counts = np.bincount(numbers)
        for number in np.flatnonzero(counts):
            yield self._names[int(number)], int(counts[number])
