"""Warm start: rows of a checkpoint to rows of a model with other groups, widths and optimizers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl.checkpoint.chain import Checkpoint, Clock
from tnctl.checkpoint.reading import known_rows
from tnctl.checkpoint.table_document import Optimizer as SavedOptimizer
from tnctl.checkpoint.table_document import Segment as SavedSegment
from tnctl.checkpoint.table_document import Table
from tnctl.errors import Failure, UserError
from tnctl.manifest import DamagedError
from tnctl.model.building import Model
from tnctl.model.layout import EMBEDDING, LINEAR, Layout, plan
from tnctl.tables import Optimizer, Segment, SparseTable, days_of_steps, decay_factors, optimizers
from tnctl.tables.columns import group_salt, mix64
from tnctl.training.warm_inputs import Pairing

# Of a row's bookkeeping: shown and clicked so often, as of the day of `changed`.
COUNTS = ("show", "click")
FTRL = ("ftrl", "tensornet_ftrl")
FRESH = "Take the same, or warm.optimizer=fresh (weights come along, their state starts anew)"


@dataclass(frozen=True)
class Move:
    """Rows of a group of the checkpoint become rows of a group of the new model."""

    part: str  # the checkpoint's table
    number: int  # the group's number there
    name: str  # the group's name there
    table: int  # place among the new model's tables
    group: str
    group_number: int


def moves(pairing: Pairing, before: Layout, layout: Layout) -> list[Move]:
    """Which groups' rows go where. A group of here takes the rows of one group of there.

    Raises UserError when its slots had rows of several.
    """
    there = {
        group: (table.name, number)
        for table in before.tables
        for group, number in table.groups.items()
    }
    found = []
    for place, table in enumerate(layout.tables):
        for group, number in table.groups.items():
            sources: dict[str, str] = {}
            for name, of in zip(table.slots, table.group_of, strict=True):
                old_name = pairing.goes_on.get(name)
                if of != number or old_name is None:
                    continue
                old_group = pairing.old.slots[old_name].group or old_name
                if old_group in there:
                    sources.setdefault(old_group, name)
            if len(sources) > 1:
                (one, first), (other, second) = list(sources.items())[:2]
                raise UserError(
                    f"slots {first} and {second} share the rows of group {group} here, and had "
                    f"those of {one} and {other} in {pairing.there}, so an id would have two rows. "
                    f"Start one of them anew (warm.new and warm.drop), or keep the groups apart"
                )
            found += [
                Move(*there[old_group], old_group, place, group, number) for old_group in sources
            ]
    return found


def refuse_other_state(
    of_what: str, optimizer: Optimizer, saved: SavedOptimizer, there: str
) -> None:
    """Raise UserError unless an optimizer can go on with the state of the one that was saved.

    Rule and settings must be equal. A learning rate, decay, clipping and bounds may differ, for
    they say nothing about state; of FTRL only the last two, for its state is its weights.
    """
    own, was = (meaning_of_state(one) for one in (optimizer, saved.rule()))
    if own != was:
        keys = [key for key in dict.fromkeys([*own, *was]) if own.get(key) != was.get(key)]
        shown = [", ".join(f"{key} {one.get(key, 'none')}" for key in keys) for one in (own, was)]
        raise UserError(
            f"{of_what} are trained with {shown[0]} here, and were with {shown[1]} in {there}. "
            f"{FRESH}"
        )


def meaning_of_state(optimizer: Optimizer) -> dict[str, Any]:
    """What of an optimizer says how to read its state."""
    described, name = optimizer.described(), optimizer.name
    free = {"learning_rate", *optimizers.EXTRAS} - set(optimizers.settings(name))
    if name in FTRL:
        free.discard("learning_rate")
    return {key: value for key, value in described.items() if key not in free}


def ages(days: Sequence[tuple[int, int]], changed: NDArray[np.uint32]) -> NDArray[np.float64]:
    """Days from the step that each row was changed at to the last day of a clock."""
    last_day = days[-1][0] if days else 0
    return last_day - days_of_steps(days, changed).astype(np.float64)


class Conversion:
    """Records of one table of a checkpoint to records of one table of the new model."""

    def __init__(self, part: Table, table: SparseTable, clock: Clock, keeps_state: bool) -> None:
        self._table, self._clock, self._keeps_state = table, clock, keeps_state
        self._was = {one.name: one for one in part.segments}
        self._kept = {name: one.optimizer.rule().decay_factor for name, one in self._was.items()}
        # A row keeps the step of its last change only if its weights then read as they did:
        # their decay is counted from it.
        self._as_they_stand = all(
            segment.name in self._was and self._kept[segment.name] == segment.optimizer.decay_factor
            for segment in table.segments
        )
        decays = any(segment.optimizer.decay_factor != 1 for segment in table.segments)
        self._changed_now = decays and not self._as_they_stand

    def __call__(
        self,
        records: NDArray[Any],
        numbers: NDArray[np.uint16],
        show_decays: tuple[NDArray[np.float64], NDArray[np.float64]],
    ) -> NDArray[Any]:
        """The new records of the same ids in the groups of these numbers.

        `show_decays` are what a day leaves of show and click, float64 [n]: there, and here.
        """
        made: NDArray[Any] = self._table.fresh_records(numbers, records["id"])
        made["flags"] = records["flags"]
        if not self._changed_now:
            made["changed"] = records["changed"]
        for segment in self._table.segments:
            if segment.name in self._was:
                self._segment(segment, records, made)
        self._counts(records, made, show_decays)
        return made

    def _segment(self, segment: Segment, records: NDArray[Any], made: NDArray[Any]) -> None:
        weights = records[segment.name]
        if not self._as_they_stand and self._kept[segment.name] != 1:
            since = (self._clock.step - records["changed"]).astype(np.uint32)
            weights = weights * decay_factors(self._kept[segment.name], since)[:, None]
        made[segment.name][:, : weights.shape[1]] = weights
        if self._keeps_state:
            for name, _, _ in segment.optimizer.state_names(segment.width):
                state = records[f"{segment.name}.{name}"]
                made[f"{segment.name}.{name}"][:, : state.shape[1]] = state
        elif segment.optimizer.name in FTRL:
            sums = made[f"{segment.name}.n"]
            made[f"{segment.name}.z"] = ftrl_z(segment.optimizer, made[segment.name], sums)

    def _counts(
        self,
        records: NDArray[Any],
        made: NDArray[Any],
        show_decays: tuple[NDArray[np.float64], NDArray[np.float64]],
    ) -> None:
        names = [
            one
            for one in COUNTS
            if one in (records.dtype.names or ()) and one in (made.dtype.names or ())
        ]
        if not names:
            return
        was, now = show_decays
        days = ages(self._clock.days, records["changed"])
        factors = was**days
        if not self._changed_now:
            # They stand as of the day of `changed`, and a day here may leave another share.
            read = now**days
            factors = np.where(was == now, 1.0, factors / np.where(read > 0, read, np.inf))
        for name in names:
            made[name] = records[name] * factors[:, None].astype(np.float32)


def ftrl_z(
    optimizer: Optimizer, weights: NDArray[np.float32], sums: NDArray[np.float32]
) -> NDArray[np.float32]:
    """The z from which FTRL makes these weights, float32 of their shape; its n are `sums`.

    FTRL has no weights of its own: it makes them of n and z at every update (McMahan et al. 2013,
    algorithm 1), so with a z of 0 all that was learned would be gone at the first one.
    """
    rate = np.float64(optimizer.learning_rate)
    slope = rate if optimizer.name == "tensornet_ftrl" else 1 / rate if rate else np.float64(0)
    scale = (optimizer.beta + np.sqrt(sums.astype(np.float64))) * slope + optimizer.l2
    return (-(weights * scale + np.sign(weights) * optimizer.l1)).astype(np.float32)


class Rows:
    """The rows of a checkpoint on their way into a new model."""

    def __init__(self, pairing: Pairing, checkpoint: Checkpoint, model: Model) -> None:
        self._pairing, self._checkpoint, self._model = pairing, checkpoint, model
        before = plan(pairing.old, checkpoint.statistics)
        self._moves = moves(pairing, before, model.layout)
        self._parts = {table.name: table for table in checkpoint.manifest.tables}
        check_tables(checkpoint, before)

    def check(self) -> None:
        """Refuse what the new tables would misread, or throw away at once.

        Raises UserError that names the group, what differs, and the way out.
        """
        conf, old, there = self._pairing.conf, self._pairing.old, self._pairing.there
        for move in self._moves:
            eviction = conf.life_of(move.group).eviction
            rules = [key for key in ("show", "score") if getattr(eviction, key) is not None]
            if rules and not old.life_of(move.name).counts:
                raise UserError(
                    f"life.eviction.{rules[0]} of group {move.group} goes by show and click, and "
                    f"{there} kept none: all its rows would be removed. Begin with "
                    "life.shows.keep=true without this rule, and add it some days later"
                )
        if conf.warm.optimizer == "fresh":
            return
        for key, here, was in (
            ("compat", conf.compat, old.compat),
            ("optimizer.updates", conf.optimizer.updates, old.optimizer.updates),
        ):
            if here != was:
                raise UserError(f"{key} is {here} here and was {was} in {there}. {FRESH}")
        for move, segment, saved in self._segments():
            if saved is not None:
                refuse_other_state(
                    f"the {segment.name} weights of group {move.group}",
                    segment.optimizer,
                    saved.optimizer,
                    there,
                )

    def _segments(self) -> Iterator[tuple[Move, Segment, SavedSegment | None]]:
        """The segments of all moves, each with what the checkpoint's was, if it had it."""
        for move in self._moves:
            was = {one.name: one for one in self._parts[move.part].segments}
            for segment in self._model.tables[move.table].segments:
                yield move, segment, was.get(segment.name)

    def notes(self) -> list[str]:
        """What of rows does not come along as it was, a line each."""
        found = []
        for move, segment, was in self._segments():
            of = f"group {move.group}: {segment.name} weights"
            if was is None:
                found.append(f"{of} start anew, {self._pairing.there} has none")
                continue
            if was.width < segment.width:
                found.append(
                    f"{of} are {segment.width} wide and were {was.width}: the further ones "
                    "start anew"
                )
            rate = was.optimizer.learning_rate
            if segment.optimizer.learning_rate != rate:
                now = segment.optimizer.learning_rate
                found.append(f"{of} are trained at learning_rate {now}, it was {rate}")
        for move in self._moves:
            here = {one.name for one in self._model.tables[move.table].segments}
            found += [
                f"group {move.group}: {one.name} weights stay behind"
                for one in self._parts[move.part].segments
                if one.name not in here
            ]
        copies: dict[str, list[str]] = {}
        for move in self._moves:
            copies.setdefault(move.name, []).append(move.group)
        for part in self._parts.values():
            for group in part.groups:
                groups = copies.get(group.name, [])
                if not groups and group.rows:
                    found.append(f"{group.rows:,} rows of group {group.name} stay behind")
                elif len(groups) > 1:
                    found.append(f"the rows of group {group.name} come to {', '.join(groups)}")
        if any(self._pairing.old.life_of(move.name).waits for move in self._moves):
            found.append("ids that wait for their rows are counted anew")
        return found

    def insert(self) -> dict[str, int]:
        """Insert all rows that go on; returns how many each group has got.

        The clock of the tables is set first, to that of the checkpoint. Raises Failure when a file
        of it is damaged.
        """
        clock = self._checkpoint.clock
        for table in self._model.tables:
            table.set_step(clock.step)
            table.set_days(clock.days)
        counted = dict.fromkeys((move.group for move in self._moves), 0)
        for name in dict.fromkeys(move.part for move in self._moves):
            of_part = [move for move in self._moves if move.part == name]
            deals = [
                Deal(self._parts[name], self._model, some, clock, self._pairing)
                for some in rounds(of_part)
            ]
            for records in known_rows(self._checkpoint, name):
                for deal in deals:
                    for group, count in deal(records):
                        counted[group] += count
        return counted


def check_tables(checkpoint: Checkpoint, layout: Layout) -> None:
    """Raise DamagedError unless tables, groups and widths are those that the conf makes."""
    described = {
        table.name: (
            {group.name: group.number for group in table.groups},
            {segment.name: segment.width for segment in table.segments},
        )
        for table in checkpoint.manifest.tables
    }
    expected = {}
    for table in layout.tables:
        widths = {LINEAR: 1} if table.linear else {}
        widths |= {EMBEDDING: table.width} if table.width else {}
        expected[table.name] = (table.groups, widths)
    if described != expected:
        what = f"{checkpoint.folder} has other tables, groups or widths than its conf makes"
        raise DamagedError(checkpoint.folder, what, "Take another checkpoint")


def rounds(found: list[Move]) -> Iterator[list[Move]]:
    """Moves to one table, each group of the checkpoint at most once in each list."""
    left = list(found)
    while left:
        taken: list[Move] = []
        for move in left:
            if move.table == left[0].table and move.number not in [one.number for one in taken]:
                taken.append(move)
        left = [move for move in left if move not in taken]
        yield taken


class Deal:
    """Takes the records of some groups of a table of the checkpoint into a table of the model."""

    def __init__(
        self,
        part: Table,
        model: Model,
        found: list[Move],
        clock: Clock,
        pairing: Pairing,
    ) -> None:
        self._there = pairing.there
        self._table = model.tables[found[0].table]
        keeps_state = pairing.conf.warm.optimizer == "match"
        self._convert = Conversion(part, self._table, clock, keeps_state)
        count = max(group.number for group in part.groups) + 1
        self._numbers = np.full(count, -1, np.int32)
        self._salts = np.zeros(len(model.layout.tables[found[0].table].groups), np.uint64)
        self._was, self._now = np.ones(count), np.ones(count)
        self._names = {move.group_number: move.group for move in found}
        for move in found:
            self._numbers[move.number] = move.group_number
            self._salts[move.group_number] = group_salt(move.group)
            self._was[move.number] = pairing.old.life_of(move.name).shows.decay
            self._now[move.number] = pairing.conf.life_of(move.group).shows.decay

    def __call__(self, records: NDArray[Any]) -> Iterator[tuple[str, int]]:
        """Insert what is theirs of some records; yields the groups and how many rows each got."""
        records = records[self._numbers[records["group"]] >= 0]
        if not len(records):
            return
        numbers = self._numbers[records["group"]].astype(np.uint16)
        hashes = mix64(records["id"] ^ self._salts[numbers])
        order = np.lexsort((numbers, hashes))
        records, numbers = records[order], numbers[order]
        decays = (self._was[records["group"]], self._now[records["group"]])
        try:
            self._table.insert_records(self._convert(records, numbers, decays).view("u1"))
        except ValueError as error:
            raise Failure(f"{self._there} is damaged ({error}). Take another checkpoint") from error
        counts = np.bincount(numbers)
        for number in np.flatnonzero(counts):
            yield self._names[int(number)], int(counts[number])
