"""Which rows an export has: all of a checkpoint, those that pass a filter, or what has changed.

Everything is streamed. Rows are told as they are read at the checkpoint's step and day.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl.checkpoint import rows, tombstones
from tnctl.checkpoint.chain import Checkpoint
from tnctl.checkpoint.decayed_rows import as_read, known_rows, shows_as_read, unseen_days
from tnctl.checkpoint.table_document import Table
from tnctl.errors import UserError, did_you_mean
from tnctl.model.layout import EMBEDDING, LINEAR
from tnctl.saved_conf import conf_of
from tnctl.schema import Conf
from tnctl.serving.export_document import Filter, RowsManifest, Threshold
from tnctl.serving.precision import Precision, RowShape, encode, parted
from tnctl.tables import REMOVED_DTYPE, cvm_columns, decay_factors, key_hashes
from tnctl.tables.columns import group_salt

Days = Sequence[tuple[int, int]]  # (day, its first step), ascending
SPARE = 1 << 18  # candidates for the top rows beyond those, before they are looked through


EVERYTHING = Filter()


@dataclass(frozen=True)
class Group:
    """A share group of an export; `rows` and `removed` are as many as the parts will have."""

    name: str
    table: str
    number: int
    shape: RowShape
    salt: int
    rows: int
    removed: int
    threshold: Threshold | None = None


@dataclass(frozen=True)
class Part:
    """Some rows of a group, in ascending order of their hashes."""

    group: Group
    ids: NDArray[np.uint64]
    hashes: NDArray[np.uint64]
    rows: NDArray[np.float32]  # [n, columns]; zeros where removed
    removed: NDArray[np.bool_] | None  # None: none is


@dataclass(frozen=True)
class Moment:
    """A step and its days, at which rows are read, and which rows passed then."""

    step: int
    days: Days
    thresholds: Mapping[int, Threshold | None]  # by the numbers of groups


class Selection:
    """The rows of an export. `parts` may be called more than once."""

    def __init__(self, kind: str, tables: "list[TableSelection]") -> None:
        self.kind, self.tables = kind, tables
        self.groups = [group for table in tables for group in table.groups]

    @property
    def exported(self) -> int:
        """The rows and removed keys of all groups."""
        return sum(group.rows + group.removed for group in self.groups)

    def parts(self) -> Iterator[Part]:
        """Table by table; each group's parts ascend by hash, and those of groups alternate."""
        for table in self.tables:
            yield from table.parts()


def select(
    checkpoint: Checkpoint,
    conf: Conf,
    filter: Filter = EVERYTHING,
    precision: Precision = "float32",
    since: RowsManifest | None = None,
) -> Selection:
    """The rows of a checkpoint that an export has; with `since`, a manifest, those that differ.

    What is not known from the checkpoint's manifest is counted in a pass over the rows. Raises
    UserError for a filter that cannot be, and a `since` that this checkpoint did not come from.
    """
    chosen = chosen_groups(checkpoint, conf, filter)
    if since is not None:
        check_since(checkpoint, filter, precision, since)
    tables = []
    for part in checkpoint.manifest.tables:
        names = [group.name for group in part.groups if group.name in chosen]
        if names:
            tables.append(TableSelection(checkpoint, part, names, filter, precision, since))
    if since is not None:
        check_shapes(tables, since)
    for table in tables:
        table.count()
    return Selection("full" if since is None else "delta", tables)


def chosen_groups(checkpoint: Checkpoint, conf: Conf, filter: Filter) -> set[str]:
    """The names of the groups that a filter's slots read. Raises UserError."""
    tables = checkpoint.manifest.tables
    slots = [slot for table in tables for slot in table.slots]
    for slot in filter.slots or ():
        if slot not in slots:
            raise UserError(f"no slot {slot} with rows to export. {did_you_mean(slot, slots)}")
    wanted = slots if filter.slots is None else filter.slots
    chosen = {conf.slots[slot].group or slot for slot in wanted}
    if filter.min_show is not None and not 0 <= filter.min_show < np.inf:
        raise UserError(f"min_show must be a number from 0 on. Received: {filter.min_show}")
    if filter.top is not None and filter.top < 1:
        raise UserError(f"top must be a whole number from 1 on. Received: {filter.top}")
    if filter.counts:
        for table in tables:
            without = [group.name for group in table.groups if group.name in chosen]
            if without and not table.life.shows:
                key = "min_show" if filter.min_show is not None else "top"
                raise UserError(
                    f"{key} needs rows that keep their show, and those of {without[0]} do not. "
                    "Train with life.shows.keep=true, or leave it out"
                )
    return chosen


def check_since(
    checkpoint: Checkpoint, filter: Filter, precision: str, since: RowsManifest
) -> None:
    """Raise UserError unless a checkpoint came from the one of an earlier export, as it is now."""
    folder, step, before = since.checkpoint.folder, since.clock.step, since.sessions
    for key, then, now in (
        ("precision", since.precision, precision), ("filter", since.filter, filter)
    ):  # fmt: skip
        if then != now:
            raise UserError(
                f"the export of since= has {key} {then}, and this one {now}. Give the same, "
                "or export in full without since="
            )
    own = checkpoint.sessions
    further = own[len(before) : len(before) + 1]
    came = bool(before) and own[: len(before)] == before
    if not came or any(first - 1 < step for _, first in further):
        raise UserError(
            f"the export of since= ({folder}) was exported from another training than "
            f"{checkpoint.folder}: export in full, without since="
        )
    if step > checkpoint.step:
        raise UserError(
            f"the export of since= is of step {step:,} ({folder}), which is after step "
            f"{checkpoint.step:,} of {checkpoint.folder}. Name a later checkpoint"
        )
    kept = conf_of(checkpoint.conf(), checkpoint.folder).save.tombstone_days
    calendar = checkpoint.clock.days or checkpoint.calendar
    if tombstones.first_step_kept(calendar, kept) > step + 1:
        raise UserError(
            f"the export of since= is of step {step:,} ({folder}), and what was removed since is "
            f"kept for {kept} days only (save.tombstone_days): export in full, without since="
        )


def check_shapes(tables: "list[TableSelection]", since: RowsManifest) -> None:
    """Raise UserError unless the groups and the kinds of their rows are those of `since`."""
    before = since.shapes
    now = {group.name: group.shape for table in tables for group in table.groups}
    if before != now:
        name = next(name for name in {**before, **now} if before.get(name) != now.get(name))
        raise UserError(
            f"the export of since= has other groups or other rows: {name} differs. Export in full, "
            "without since="
        )


class TableSelection:
    """The rows of one table, of some of its groups."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        part: Table,
        names: list[str],
        filter: Filter,
        precision: Precision,
        since: RowsManifest | None,
    ) -> None:
        self._checkpoint, self._part, self._filter = checkpoint, part, filter
        self._keys = rows.keys_of(part)
        self._names = {group.number: group.name for group in part.groups}
        self.shape = RowShape(
            bool(part.width_of(LINEAR)),
            part.width_of(EMBEDDING),
            part.life.cvm,
            precision,
        )
        self.groups = [
            Group(
                group.name,
                part.name,
                group.number,
                self.shape,
                group_salt(group.name),
                group.rows,
                0,
            )
            for group in part.groups
            if group.name in names
        ]
        self._chosen = np.zeros(1 << 16, bool)
        self._chosen[[group.number for group in self.groups]] = True
        self._now = Moment(checkpoint.step, checkpoint.clock.days, {})
        self._then: Moment | None = None
        if since is not None:
            numbers = {group.name: group.number for group in self.groups}
            thresholds = {
                numbers[entry.group]: entry.threshold
                for entry in since.groups
                if entry.group in numbers
            }
            self._then = Moment(since.clock.step, since.clock.days, thresholds)

    def count(self) -> None:
        """Find out how many rows and removed keys each group has, in a pass where it must be."""
        if self._filter.top is not None:
            found = self._thresholds(self._filter.top)
            self._now = replace(self._now, thresholds=found)
        if not self._filter.counts and self._then is None:
            return
        taken, gone = np.zeros(1 << 16, np.int64), np.zeros(1 << 16, np.int64)
        for block in self._blocks():
            numbers = block.records["group"]
            taken += np.bincount(numbers[block.taken], minlength=1 << 16)
            gone += np.bincount(numbers[block.gone], minlength=1 << 16)
            gone += np.bincount(block.removed["group"], minlength=1 << 16)
        self.groups = [
            replace(
                group,
                rows=int(taken[group.number]),
                removed=int(gone[group.number]),
                threshold=self._now.thresholds.get(group.number),
            )
            for group in self.groups
        ]

    def parts(self) -> Iterator[Part]:
        """The rows and removed keys, each group's by hash."""
        groups = {group.number: group for group in self.groups}
        for block in self._blocks():
            wanted = block.taken | block.gone
            records = block.records if wanted.all() else block.records[wanted]
            gone = block.gone[wanted]
            ids, numbers = (np.ascontiguousarray(records[key]) for key in ("id", "group"))
            hashes = key_hashes(self._names, numbers, ids)
            floats = self.rows(records, self._now)
            floats[gone] = 0
            order = np.argsort(numbers, kind="stable")
            if len(block.removed):
                ids = np.append(ids, block.removed["id"])
                numbers = np.append(numbers, block.removed["group"])
                hashes = np.append(hashes, self._keys.hashes(block.removed))
                nothing = np.zeros((len(block.removed), self.shape.columns), np.float32)
                floats = np.vstack([floats, nothing])
                gone = np.append(gone, np.ones(len(block.removed), bool))
                order = np.lexsort((hashes, numbers))
            ids, hashes, gone = ids.take(order), hashes.take(order), gone.take(order)
            floats, numbers = floats.take(order, axis=0), numbers.take(order)
            ends = np.cumsum(np.bincount(numbers))
            for number in np.flatnonzero(np.diff(ends, prepend=0)).tolist():
                own = slice(int(ends[number - 1]) if number else 0, int(ends[number]))
                removed = gone[own] if gone[own].any() else None
                yield Part(groups[number], ids[own], hashes[own], floats[own], removed)

    def rows(self, records: NDArray[Any], moment: Moment) -> NDArray[np.float32]:
        """The floats of records as they are read at a moment, float32 [n, columns]."""
        found = np.empty((len(records), self.shape.columns), np.float32)
        linear, embedding, counts = parted(found, self.shape)
        weights = as_read(records, self._part, moment.step)
        if self.shape.linear:
            linear[:] = weights[LINEAR]
        if self.shape.width:
            embedding[:] = weights[EMBEDDING]
        if self.shape.cvm:
            factors = np.ones(len(records), np.float32)
            unseen = unseen_days(records["changed"], moment.days).astype(np.uint32)
            decays = self._decays[records["group"]]
            for decay in np.unique(decays):
                some = decays == decay
                factors[some] = decay_factors(float(decay), unseen[some])
            counts[:] = cvm_columns(records["show"][:, 0], records["click"][:, 0], factors)
        return found

    @cached_property
    def _decays(self) -> NDArray[np.float64]:
        """What a day leaves of show and click, by the numbers of groups."""
        decays = np.ones(1 << 16)
        for group in self._part.groups:
            decays[group.number] = (self._part.life.decay or {})[group.name]
        return decays

    def _blocks(self) -> Iterator["Block"]:
        """All records, judged, with the removed keys that stand between them."""
        records = known_rows(self._checkpoint, self._part.name)
        if self._then is None:
            for some in records:
                taken = self._passing(some, self._now) & self._chosen[some["group"]]
                yield Block(some, taken, np.zeros(len(some), bool), NO_KEYS)
            return
        removed = rows.tombstones(self._checkpoint, self._part.name)
        beside = Beside(self._of_interest(removed), self._keys)
        for some in records:
            if not len(some):
                continue
            taken, gone = self._changed(some, self._then)
            yield Block(some, taken, gone, beside.until(self._keys.hashes(some[-1:])[0]))
        nothing = np.zeros(0, bool)
        for keys in beside.rest():
            yield Block(np.empty(0, self._part.record_dtype), nothing, nothing, keys)

    def _of_interest(self, removed: Iterator[NDArray[Any]]) -> Iterator[NDArray[Any]]:
        """Removed keys of the chosen groups, of the time since the earlier export."""
        assert self._then is not None
        for some in removed:
            yield some[(some["step"] >= self._then.step) & self._chosen[some["group"]]]

    def _changed(
        self, records: NDArray[Any], then: Moment
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Which records a delta has as rows, and which as removed keys."""
        chosen = self._chosen[records["group"]]
        passes = self._passing(records, self._now) & chosen
        fresh = records["changed"] > then.step
        # What a row was that has changed since is not known: it may have passed.
        passed = np.ones(len(records), bool)
        passed[~fresh] = self._passing(records[~fresh], then)
        taken = passes & (fresh | ~passed)
        same = np.flatnonzero(passes & ~fresh & passed)
        if len(same) and self._reads_differ(then):
            taken[same] = self._differing(records[same], then)
        return taken, chosen & ~passes & passed if self._filter.counts else chosen & False

    def _reads_differ(self, then: Moment) -> bool:
        """Whether rows that were not touched may read otherwise than they did."""
        decaying = any(segment.optimizer.decay for segment in self._part.segments)
        days = [list(days)[-1:] for days in (then.days, self._now.days)]
        counted = self.shape.cvm and days[0] != days[1]
        return counted or (decaying and then.step != self._now.step)

    def _differing(self, records: NDArray[Any], then: Moment) -> NDArray[np.bool_]:
        """Whether the payload of each record is another than it was."""
        now, before = (encode(self.rows(records, at), self.shape) for at in (self._now, then))
        different: NDArray[np.bool_] = (now != before).any(axis=1)
        return different

    def _passing(self, records: NDArray[Any], moment: Moment) -> NDArray[np.bool_]:
        """Which records the filter's counts let through at a moment."""
        passing = np.ones(len(records), bool)
        if not self._filter.counts or not len(records):
            return passing
        shows, _ = shows_as_read(records, self._part, moment.days)
        if self._filter.min_show is not None:
            passing &= shows >= self._filter.min_show
        if moment.thresholds:
            hashes = self._keys.hashes(records)
            for number, threshold in moment.thresholds.items():
                if threshold is not None:
                    own = records["group"] == number
                    more = shows > threshold.show
                    equal = (shows == threshold.show) & (hashes <= np.uint64(int(threshold.hash)))
                    passing &= ~own | more | equal
        return passing

    def _thresholds(self, top: int) -> dict[int, Threshold | None]:
        """Of each chosen group the last of its top rows; None where all are among them."""
        best = {group.number: Best(top) for group in self.groups}
        for records in known_rows(self._checkpoint, self._part.name):
            shows, _ = shows_as_read(records, self._part, self._now.days)
            hashes = self._keys.hashes(records)
            for number, one in best.items():
                own = records["group"] == number
                one.add(shows[own], hashes[own])
        return {number: one.threshold() for number, one in best.items()}


NO_KEYS = np.empty(0, REMOVED_DTYPE)


@dataclass(frozen=True)
class Block:
    """Records in (hash, group) order: which are rows of the export, and which are removed there.

    `removed` are keys without a record, which come before the next block.
    """

    records: NDArray[Any]
    taken: NDArray[np.bool_]
    gone: NDArray[np.bool_]
    removed: NDArray[Any]


class Beside:
    """Removed keys in (hash, group) order, given out beside records of the same order."""

    def __init__(self, source: Iterator[NDArray[Any]], keys: Any) -> None:
        self._source, self._keys = source, keys
        self._waiting, self._hashes = NO_KEYS, np.empty(0, np.uint64)
        self._ended = False

    def until(self, last: np.uint64) -> NDArray[Any]:
        """Those whose hash is not above the last one's of a block."""
        while not self._ended and (not len(self._hashes) or self._hashes[-1] <= last):
            self._read()
        count = int(np.searchsorted(self._hashes, last, side="right"))
        taken, self._waiting = self._waiting[:count], self._waiting[count:]
        self._hashes = self._hashes[count:]
        return taken

    def rest(self) -> Iterator[NDArray[Any]]:
        """Those after all records."""
        yield self._waiting
        yield from self._source

    def _read(self) -> None:
        some = next(self._source, None)
        if some is None:
            self._ended = True
        elif len(some):
            self._waiting = np.append(self._waiting, some)
            self._hashes = np.append(self._hashes, self._keys.hashes(some))


class Best:
    """The rows of a group with the highest show, found in one pass in the order of the hashes."""

    def __init__(self, top: int) -> None:
        self._top, self._rows, self._waiting = top, 0, 0
        self._shows: list[NDArray[np.float64]] = []
        self._hashes: list[NDArray[np.uint64]] = []

    def add(self, shows: NDArray[np.float64], hashes: NDArray[np.uint64]) -> None:
        """Take rows, whose hashes come after those before."""
        self._shows.append(shows)
        self._hashes.append(hashes)
        self._rows += len(shows)
        self._waiting += len(shows)
        if self._waiting > self._top + max(SPARE, self._top // 4):
            self._look_through()

    def threshold(self) -> Threshold | None:
        """The last of the top rows; None when there are no others."""
        if self._rows <= self._top:
            return None
        self._look_through()
        [shows], [hashes] = self._shows, self._hashes
        last = shows.min()
        return Threshold(show=float(last), hash=str(hashes[shows == last].max()))

    def _look_through(self) -> None:
        """Keep the top rows only."""
        shows, hashes = np.concatenate(self._shows), np.concatenate(self._hashes)
        if len(shows) > self._top:
            least = np.partition(shows, len(shows) - self._top)[len(shows) - self._top]
            equal = np.flatnonzero(shows == least)
            kept = shows > least
            kept[equal[: self._top - int(kept.sum())]] = True
            shows, hashes = shows[kept], hashes[kept]
        self._shows, self._hashes, self._waiting = [shows], [hashes], len(shows)
