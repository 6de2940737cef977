"""Which rows an export has: all of a checkpoint, those that pass a filter, or what has changed.

Everything is streamed. Rows are judged as they are read at the checkpoint's step and day.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tnctl.checkpoint import rows
from tnctl.checkpoint.chain import Checkpoint
from tnctl.checkpoint.document import Table
from tnctl.checkpoint.merging import Cursor
from tnctl.checkpoint.rows import as_read, shows_as_read, unseen_days
from tnctl.errors import UserError, did_you_mean
from tnctl.model.layout import EMBEDDING, LINEAR
from tnctl.saved_conf import conf_of
from tnctl.schema import Slot
from tnctl.serving.rows.export_document import (
    ALL_HASHES,
    Filter,
    HashRange,
    RowsManifest,
    Threshold,
    stem_of,
)
from tnctl.serving.rows.precision import (
    Bools,
    Floats,
    Precision,
    Records,
    RowShape,
    Uint64s,
    encode,
    parted,
)
from tnctl.tables import REMOVED_DTYPE, cvm_columns, decay_factors, key_hashes
from tnctl.tables.columns import group_salt

Days = Sequence[tuple[int, int]]  # (day, its first step), ascending

EVERYTHING = Filter()
SPARE = 1 << 18  # rows beyond the top ones that are collected before the others are dropped
GROUP_NUMBERS = 1 << 16


@dataclass(frozen=True)
class SelectedGroup:
    """A share group of an export; `rows` and `removed` are as many as the parts will have."""

    name: str
    table: str
    number: int
    shape: RowShape
    salt: int
    rows: int
    removed: int = 0
    threshold: Threshold | None = None
    part: int | None = None  # of those whose files are written apart

    @property
    def stem(self) -> str:
        """How the names of its files begin."""
        return stem_of(self.name, self.part)


@dataclass(frozen=True)
class SelectedRows:
    """Some rows of a group, in ascending order of their hashes."""

    group: SelectedGroup
    ids: Uint64s
    hashes: Uint64s
    rows: Floats  # [n, columns]; zeros where removed
    removed: Bools | None  # None: no row is


@dataclass(frozen=True)
class Moment:
    """A step and its days, at which rows are read, and the thresholds of that time."""

    step: int
    days: Days
    thresholds: Mapping[int, Threshold | None] = field(default_factory=dict)  # by groups' numbers


class Selection:
    """The rows of an export. `parts` may be called more than once."""

    def __init__(self, kind: str, tables: "list[TableSelection]") -> None:
        self.kind, self.tables = kind, tables

    @property
    def groups(self) -> list[SelectedGroup]:
        """The groups of all tables, with the counts that they have by now."""
        return [group for table in self.tables for group in table.groups]

    def parts(self) -> Iterator[SelectedRows]:
        """Table by table; each group's parts ascend by hash, and groups alternate."""
        for table in self.tables:
            yield from table.parts()


def count_of(groups: Sequence[SelectedGroup]) -> int:
    """The rows and removed keys of groups."""
    return sum(group.rows + group.removed for group in groups)


@dataclass(frozen=True)
class Wanted:
    """Which rows an export has: those that pass a filter, of one or of all ranges of hashes.

    With `since`, a manifest, those that differ; `part` is the number of a range among several.
    """

    filter: Filter = EVERYTHING
    precision: Precision = "float32"
    since: RowsManifest | None = None
    part: int | None = None
    hashes: HashRange = ALL_HASHES


def select(
    checkpoint: Checkpoint, slots: Mapping[str, Slot], wanted: Wanted, counted: bool = True
) -> Selection:
    """The rows of a checkpoint that an export has; `slots` are the conf's.

    `counted`: what is not known from the checkpoint's manifest is counted in a pass over the rows.
    Raises UserError for a filter that is impossible, and for an export `since` of another training.
    """
    chosen, since = chosen_groups(checkpoint, slots, wanted.filter), wanted.since
    if since is not None:
        check_since(checkpoint, wanted, since)
    tables = [
        TableSelection(checkpoint, table, chosen, wanted)
        for table in checkpoint.manifest.tables
        if any(group.name in chosen for group in table.groups)
    ]
    selection = Selection("full" if since is None else "delta", tables)
    if since is not None:
        check_shapes({group.name: group.shape for group in selection.groups}, since)
    for table_ in tables if counted else ():
        table_.count()
    return selection


class TopRows:
    """The rows of a group with the highest show, selected in one pass in the order of the hashes.

    `rows` is how many there are, the top ones and the others.
    """

    def __init__(self, top: int) -> None:
        self._top, self.rows = top, 0
        self._parts = [(np.empty(0), np.empty(0, np.uint64))]  # the candidates, and what came since
        self._waiting = 0

    def add(self, shows: NDArray[np.float64], hashes: Uint64s, rows: int | None = None) -> None:
        """Add rows: shows float64 [n], hashes uint64 [n] above all earlier hashes.

        With `rows` they are the candidates among this number of rows.
        """
        self._parts.append((shows, hashes))
        self.rows += len(shows) if rows is None else rows
        self._waiting += len(shows)
        if self._waiting > max(SPARE, self._top // 4):
            self.candidates()

    def threshold(self) -> Threshold | None:
        """The last of the top rows; None when there are no others."""
        if self.rows <= self._top:
            return None
        shows, hashes = self.candidates()
        last = shows.min()
        return Threshold(show=float(last), hash=str(hashes[shows == last].max()))

    def candidates(self) -> tuple[NDArray[np.float64], Uint64s]:
        """The shows and hashes of those that can be among the top rows, in the order of hashes.

        Of equal shows those with the lowest hashes.
        """
        shows, hashes = (np.concatenate(arrays) for arrays in zip(*self._parts, strict=True))
        if len(shows) > self._top:
            least = np.partition(shows, len(shows) - self._top)[len(shows) - self._top]
            kept = shows > least
            kept[np.flatnonzero(shows == least)[: self._top - int(kept.sum())]] = True
            shows, hashes = shows[kept], hashes[kept]
        self._parts, self._waiting = [(shows, hashes)], 0
        return shows, hashes


@dataclass(frozen=True)
class SelectedRecords:
    """Records in (hash, group) order: which are rows of the export, and which are removed there.

    `removed` are keys without a record, which come before the next block.
    """

    records: Records
    taken: Bools
    gone: Bools
    removed: Records


class TableSelection:
    """The rows of one table, of the chosen groups."""

    def __init__(
        self, checkpoint: Checkpoint, table: Table, chosen: set[str], wanted: Wanted
    ) -> None:
        self._checkpoint, self._table, self._filter = checkpoint, table, wanted.filter
        self._hashes, since = wanted.hashes, wanted.since
        self._keys = rows.keys_of(table)
        self._names = {group.number: group.name for group in table.groups}
        linear, width = bool(table.width_of(LINEAR)), table.width_of(EMBEDDING)
        self.shape = shape = RowShape(linear, width, table.life.cvm, wanted.precision)
        self.groups = [
            SelectedGroup(
                entry.name,
                table.name,
                entry.number,
                shape,
                group_salt(entry.name),
                entry.rows,
                part=wanted.part,
            )
            for entry in table.groups
            if entry.name in chosen
        ]
        self._chosen = np.zeros(GROUP_NUMBERS, bool)
        self._chosen[[group.number for group in self.groups]] = True
        self._now = Moment(checkpoint.step, checkpoint.clock.days)
        self._then: Moment | None = None
        if since is not None:
            thresholds = {entry.group: entry.threshold for entry in since.groups}
            self._then = Moment(
                since.clock.step,
                since.clock.days,
                {group.number: thresholds.get(group.name) for group in self.groups},
            )

    def count(self) -> None:
        """Set how many rows and removed keys each group has, in a pass where one is needed."""
        if self._filter.top is not None:
            top_rows = self.top_rows(self._filter.top)
            self.limit({number: rows_.threshold() for number, rows_ in top_rows.items()})
        if self._filter.counts or self._then is not None:
            self.count_rows()

    def limit(self, thresholds: Mapping[int, Threshold | None]) -> None:
        """Set the last of the top rows by the numbers of groups; None where all are among them."""
        self._now = replace(self._now, thresholds=thresholds)

    def count_rows(self) -> None:
        """Set the counts of the groups, in a pass over the rows."""
        taken, gone = np.zeros((2, GROUP_NUMBERS), np.int64)
        for block in self._blocks():
            numbers = block.records["group"]
            taken += np.bincount(numbers[block.taken], minlength=GROUP_NUMBERS)
            gone += np.bincount(numbers[block.gone], minlength=GROUP_NUMBERS)
            gone += np.bincount(block.removed["group"], minlength=GROUP_NUMBERS)
        self.groups = [
            replace(
                group,
                rows=int(taken[group.number]),
                removed=int(gone[group.number]),
                threshold=self._now.thresholds.get(group.number),
            )
            for group in self.groups
        ]

    def parts(self) -> Iterator[SelectedRows]:
        """The rows and removed keys, each group's by hash."""
        groups = {group.number: group for group in self.groups}
        for block in self._blocks():
            wanted = block.taken | block.gone
            records = block.records if wanted.all() else block.records[wanted]
            both = records, block.removed
            ids, numbers = (np.concatenate([part[key] for part in both]) for key in ("id", "group"))
            hashes = key_hashes(self._names, numbers, ids)
            gone = np.append(block.gone[wanted], np.ones(len(block.removed), bool))
            floats = np.empty((len(ids), self.shape.columns), np.float32)
            floats[: len(records)] = self.rows(records, self._now)
            floats[gone] = 0
            order = np.lexsort((hashes, numbers))
            ids, hashes, gone = ids.take(order), hashes.take(order), gone.take(order)
            floats, numbers = floats.take(order, axis=0), numbers.take(order)
            starts = np.flatnonzero(np.diff(numbers, prepend=-1))
            for start, end in pairwise([*starts.tolist(), len(numbers)]):
                part = slice(start, end)
                removed = gone[part] if gone[part].any() else None
                group = groups[int(numbers[start])]
                yield SelectedRows(group, ids[part], hashes[part], floats[part], removed)

    def rows(self, records: Records, moment: Moment) -> Floats:
        """The floats of records as they are read at a moment, float32 [n, columns]."""
        floats = np.empty((len(records), self.shape.columns), np.float32)
        linear, embedding, counts = parted(floats, self.shape)
        weights = as_read(records, self._table, moment.step)
        if self.shape.linear:
            linear[:] = weights[LINEAR]
        if self.shape.width:
            embedding[:] = weights[EMBEDDING]
        if self.shape.cvm:
            factors = np.ones(len(records), np.float32)
            unseen = unseen_days(records["changed"], moment.days).astype(np.uint32)
            decays = self._decays[records["group"]]
            for decay in np.unique(decays):
                alike = decays == decay
                factors[alike] = decay_factors(float(decay), unseen[alike])
            counts[:] = cvm_columns(records["show"][:, 0], records["click"][:, 0], factors)
        return floats

    @cached_property
    def _decays(self) -> NDArray[np.float64]:
        """The factor by which a day reduces show and click, by the numbers of groups."""
        decays = np.ones(GROUP_NUMBERS)
        for number, name in self._names.items():
            decays[number] = (self._table.life.decay or {})[name]
        return decays

    def _blocks(self) -> Iterator[SelectedRecords]:
        """All records, judged, with the removed keys whose hashes are between theirs."""
        records = rows.stream(self._checkpoint, self._table.name, *self._hashes)
        removed = Cursor(self._removed(), self._keys, REMOVED_DTYPE)
        for batch in records:
            if len(batch):
                last = self._keys.hashes(batch[-1:])[0]
                yield SelectedRecords(batch, *self._judged(batch), removed.take_to(last))
        none, no_records = np.zeros(0, bool), np.empty(0, self._table.record_dtype)
        while len(removed.hashes) or not removed.ended:
            yield SelectedRecords(no_records, none, none, removed.take()[0])
            removed.read()

    def _removed(self) -> Iterator[Records]:
        """The keys of the chosen groups that a delta has as removed ones."""
        if self._then is None:
            return
        for keys in rows.tombstones(self._checkpoint, self._table.name, *self._hashes):
            yield keys[(keys["step"] >= self._then.step) & self._chosen[keys["group"]]]

    def _judged(self, records: Records) -> tuple[Bools, Bools]:
        """Which records the export has as rows, and which a delta has as removed keys."""
        then, chosen = self._then, self._chosen[records["group"]]
        passes = self._passing(records, self._now) & chosen
        if then is None:
            return passes, np.zeros(len(records), bool)
        fresh = records["changed"] > then.step
        # The earlier state of a row that has changed since is not known: it may have passed.
        passed = np.ones(len(records), bool)
        passed[~fresh] = self._passing(records[~fresh], then)
        taken = passes & (fresh | ~passed)
        same = passes & ~fresh & passed
        if same.any() and self._reads_differ(then):
            moments = (self._now, then)
            now, earlier = (encode(self.rows(records[same], at), self.shape) for at in moments)
            taken[same] = (now != earlier).any(axis=1)
        return taken, chosen & ~passes & passed if self._filter.counts else chosen & False

    def _reads_differ(self, then: Moment) -> bool:
        """Whether rows that were not updated may read otherwise than they did."""
        decaying = any(segment.optimizer.rule().decays for segment in self._table.segments)
        counted = self.shape.cvm and list(then.days)[-1:] != list(self._now.days)[-1:]
        return counted or (decaying and then.step != self._now.step)

    def _passing(self, records: Records, moment: Moment) -> Bools:
        """Which records the filter's counts let through at a moment."""
        passing = np.ones(len(records), bool)
        if not self._filter.counts or not len(records):
            return passing
        shows, _ = shows_as_read(records, self._table, moment.days)
        if self._filter.min_show is not None:
            passing &= shows >= self._filter.min_show
        hashes = self._keys.hashes(records) if moment.thresholds else np.empty(0, np.uint64)
        for number, threshold in moment.thresholds.items():
            if threshold is not None:
                more = shows > threshold.show
                equal = (shows == threshold.show) & (hashes <= np.uint64(int(threshold.hash)))
                passing &= (records["group"] != number) | more | equal
        return passing

    def top_rows(self, top: int) -> dict[int, TopRows]:
        """The rows of each chosen group with the highest show, by the numbers of groups."""
        top_rows = {group.number: TopRows(top) for group in self.groups}
        for records in rows.stream(self._checkpoint, self._table.name, *self._hashes):
            shows, _ = shows_as_read(records, self._table, self._now.days)
            hashes = self._keys.hashes(records)
            for number, rows_of_group in top_rows.items():
                of_group = records["group"] == number
                rows_of_group.add(shows[of_group], hashes[of_group])
        return top_rows


def chosen_groups(checkpoint: Checkpoint, slots: Mapping[str, Slot], filter: Filter) -> set[str]:
    """The names of the groups that a filter's slots read; `slots` are the conf's.

    Raises UserError.
    """
    tables = checkpoint.manifest.tables
    exported = [slot for table in tables for slot in table.slots]
    for slot in filter.slots or ():
        if slot not in exported:
            raise UserError(f"no slot {slot} with rows to export. {did_you_mean(slot, exported)}")
    wanted = exported if filter.slots is None else filter.slots
    chosen = {slots[slot].group or slot for slot in wanted}
    if filter.min_show is not None and not 0 <= filter.min_show < np.inf:
        raise UserError(f"min_show must be a number from 0 on. Received: {filter.min_show}")
    if filter.top is not None and filter.top < 1:
        raise UserError(f"top must be a whole number from 1 on. Received: {filter.top}")
    for table in tables if filter.counts else ():
        names = [group.name for group in table.groups if group.name in chosen]
        if names and not table.life.shows:
            key = "min_show" if filter.min_show is not None else "top"
            raise UserError(
                f"{key} needs rows that keep their show, and those of {names[0]} do not. "
                "Train with life.shows.keep=true, or leave it out"
            )
    return chosen


def check_since(checkpoint: Checkpoint, wanted: Wanted, since: RowsManifest) -> None:
    """Raise UserError unless a checkpoint continues the training of an earlier export's."""
    folder, step, sessions = since.checkpoint.folder, since.clock.step, since.sessions
    for key in ("precision", "filter"):
        if (then := getattr(since, key)) != (now := getattr(wanted, key)):
            raise UserError(
                f"the export of since= has {key} {then}, and this one {now}. Give the same, "
                "or export in full without since="
            )
    later = checkpoint.sessions[len(sessions) :]
    continued = sessions and checkpoint.sessions[: len(sessions)] == sessions
    if not continued or (later and later[0][1] - 1 < step):
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
    if rows.first_step_kept(calendar, kept) > step + 1:
        raise UserError(
            f"the export of since= is of step {step:,} ({folder}), and what was removed since is "
            f"kept for {kept} days only (save.tombstone_days): export in full, without since="
        )


def check_shapes(shapes: dict[str, RowShape], since: RowsManifest) -> None:
    """Raise UserError unless the groups and the kinds of their rows are the same in `since`."""
    for name in since.shapes | shapes:
        if since.shapes.get(name) != shapes.get(name):
            raise UserError(
                f"the export of since= has other groups or other rows: {name} differs. Export in "
                "full, without since="
            )
