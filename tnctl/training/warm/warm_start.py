"""The warm start of a run, from the check of its keys to its report: docs/warm_start.md.

Rows of a checkpoint become rows of a model with other groups, widths and optimizers. The clock
continues from the checkpoint's, so that what rows know of their past (last change, decay, show,
click) stays true.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tnctl import documents, files, progress
from tnctl.checkpoint import rows as row_files
from tnctl.checkpoint.chain import Checkpoint, newest, open_checkpoint
from tnctl.checkpoint.document import Clock, Table, WarmInput, WarmReport
from tnctl.checkpoint.document import SegmentEntry as SavedSegment
from tnctl.data import statistics
from tnctl.data.day_records import DayRecord
from tnctl.data.days import daily
from tnctl.data.statistics_document import Statistics
from tnctl.errors import Failure, UserError
from tnctl.manifest import NAME
from tnctl.masking import masked
from tnctl.model.layout import Layout, plan
from tnctl.model.parameter_tables import ParameterTables
from tnctl.outputs import Place, refuse_overlap
from tnctl.saved_conf import conf_of
from tnctl.schema import Conf
from tnctl.tables import (
    ALL_SHARDS,
    RowOptimizer,
    Segment,
    SparseTable,
    days_of_steps,
    weight_factors,
)
from tnctl.training.warm.pairing import (
    FRESH_STATE,
    FTRL,
    Pairing,
    check_inputs,
    differences,
    ftrl_z,
    must_measure,
    pair,
    refuse_other_state,
    statistics_of_both,
)

if TYPE_CHECKING:
    from tnctl.model.building import Model

# How often a row was shown and clicked, as of the day of `changed`.
COUNTS = ("show", "click")
NONE = "–"


def check(conf: Conf, overwrite: bool) -> None:
    """Refuse a warm start that cannot be, before an earlier run is removed for it.

    Raises UserError, also for starting from what the run itself would write or remove.
    """
    if conf.warm.start is None:
        return
    start, output = Place(conf.paths.path("warm.start", conf.warm.start)), Place(conf.output)
    if start.is_same(output) or start.is_inside(output):
        raise UserError(
            f"warm.start={start.url} is in the output of this run. Give another output=URL, which "
            "is new, or leave warm.start out to resume this run"
        )
    if files.exists(files.join(start.url, NAME)):  # it is a checkpoint, and no output of a run
        refuse_overlap([conf.output], [start.url], "output")
    if overwrite:
        begin(conf)


def begin(conf: Conf) -> "WarmStart | None":
    """The warm start that a conf asks for. Raises UserError where the inputs do not match."""
    if conf.warm.start is None:
        return None
    return start_from(conf, checkpoint_at(conf.paths.path("warm.start", conf.warm.start)))


def start_from(conf: Conf, checkpoint: Checkpoint) -> "WarmStart":
    """The warm start of a conf from a checkpoint. Raises UserError where inputs do not match."""
    old = conf_of(checkpoint.conf(), checkpoint.folder)
    return WarmStart(checkpoint, pair(checkpoint.folder, old, conf))


def start_again(conf: Conf, folder: str, sha256: str) -> "WarmStart":
    """The warm start that another process has begun, from the checkpoint in a folder.

    Raises Failure when its manifest has another digest.
    """
    checkpoint = open_checkpoint(folder)
    if checkpoint.manifest.sha256 != sha256:
        raise Failure(
            f"{folder} has been written again since the warm start began. Run the same command "
            "again"
        )
    return start_from(conf, checkpoint)


def checkpoint_at(start: str) -> Checkpoint:
    """A checkpoint, or the newest of a run, by its folder or URL. Raises Failure."""
    if files.exists(files.join(start, NAME)):
        return open_checkpoint(start)
    checkpoint = newest(start)
    if checkpoint is None:
        raise Failure(
            f"warm.start={start} is no checkpoint{files.in_folder(start)}, and no output of a run "
            "that has one. Check the path or URL"
        )
    return checkpoint


@dataclass(frozen=True)
class Move:
    """Rows of a group of the checkpoint become rows of a group of the new model."""

    part: str  # the checkpoint's table
    number: int  # the group's number in the checkpoint
    name: str  # the group's name in the checkpoint
    table: int  # index among the new model's tables
    group: str
    group_number: int


def moves(pairing: Pairing, old_layout: Layout, layout: Layout) -> Iterator[Move]:
    """Which groups' rows go where. A new group takes the rows of one group of the checkpoint.

    Frozen vectors come from their file. Raises UserError when its slots had rows of several.
    """
    old_groups = {
        group: (table.name, number)
        for table in old_layout.tables
        for group, number in table.groups.items()
    }
    for index, table in enumerate(layout.tables):
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
            for old_group, name in sources.items():
                slots = pairing.conf.slots[name], pairing.old.slots[pairing.matched[name]]
                if all(slot.frozen and slot.vectors for slot in slots):
                    continue
                yield Move(*old_groups[old_group], old_group, index, group, number)


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

    def _decays_as_before(self, optimizer: RowOptimizer, earlier: RowOptimizer | None) -> bool:
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
                raise UserError(
                    f"{key} is {value} here and was {old_value} in {source}. {FRESH_STATE}"
                )
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
        row_counts = Counter({move.group: 0 for move in self._moves})
        copies: Counter[tuple[int, str]] = Counter()
        # Moves to one table, with each group of the checkpoint at most once.
        rounds: dict[tuple[str, int, int], list[Move]] = defaultdict(list)
        for move in self._moves:
            copies[move.table, move.name] += 1
            rounds[move.part, move.table, copies[move.table, move.name]].append(move)
        for part in {move.part: None for move in self._moves}:
            moved = [of_round for (name, *_), of_round in rounds.items() if name == part]
            inserters = [
                Inserter(self._parts[part], self._model, moves, clock, self._pairing)
                for moves in moved
            ]
            # The name of a group is in the hashes of its keys, so under another name a row of any
            # shard can be of any other.
            same = all(move.name == move.group for of_round in moved for move in of_round)
            shards = self._model.tables[moved[0][0].table].shards if same else ALL_SHARDS
            for records in row_files.stream(self._checkpoint, part, *shards.hashes):
                for inserter in inserters:
                    row_counts.update(inserter.insert(records))
        return dict(row_counts)


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
        self._old_decays, self._decays = np.ones(count), np.ones(count)
        self._names = {move.group_number: move.group for move in moves}
        for move in moves:
            self._numbers[move.number] = move.group_number
            self._old_decays[move.number] = pairing.old.life_of(move.name).shows.decay
            self._decays[move.number] = pairing.conf.life_of(move.group).shows.decay

    def insert(self, records: NDArray[Any]) -> dict[str, int]:
        """Insert the records of the groups that are moved; returns how many each new group got.

        `records` are of the checkpoint's table, and may have other groups, and keys that the table
        does not own. Raises Failure when the table refuses the records.
        """
        records = records[self._numbers[records["group"]] >= 0]
        numbers = self._numbers[records["group"]].astype(np.uint16)
        owned = self._table.owned(numbers, records["id"])
        records, numbers = records[owned], numbers[owned]
        if not len(records):
            return {}
        # insert_records takes them in (hash, group) order
        order = np.lexsort((numbers, self._table.hashes(numbers, records["id"])))
        records, numbers = records[order], numbers[order]
        decays = (self._old_decays[records["group"]], self._decays[records["group"]])
        try:
            self._table.insert_records(self._convert(records, numbers, decays).view("u1"))
        except ValueError as error:
            raise Failure(
                f"{self._source} is damaged ({error}). Take another checkpoint"
            ) from error
        counts = np.bincount(numbers)
        return {self._names[n]: int(counts[n]) for n in np.flatnonzero(counts).tolist()}


@dataclass
class WarmStart:
    """A checkpoint, and which of its inputs the inputs of a new conf continue."""

    checkpoint: Checkpoint
    pairing: Pairing
    report: WarmReport | None = None
    """after `fill`: the outcome of every input and dense weight, for report.json"""

    @property
    def record(self) -> list[DayRecord]:
        """The days that were trained, if both train day by day: they are not trained again.

        Of a day's statistics only matched inputs are kept, by their names in the new conf.
        """
        if not daily(self.pairing.conf):
            return []
        names, dropped = self.pairing.new_names, self.pairing.dropped

        def renamed(day: DayRecord) -> DayRecord:
            # The rest of a day that training was in the middle of is not trained by this run.
            day = replace(day, last_step=day.last_step or self.checkpoint.step)
            if (statistics := day.statistics) is None:
                return day
            inputs = {
                names.get(name, name): figures
                for name, figures in statistics.inputs.items()
                if name not in dropped
            }
            return replace(day, statistics=replace(statistics, inputs=inputs))

        return [renamed(day) for day in self.checkpoint.days]

    def statistics(self, measure: Callable[[], Statistics]) -> Statistics:
        """The statistics of the new model; `measure` is called for inputs that are new.

        Raises UserError where a matched input would be read in another way.
        """
        conf = self.pairing.conf
        measures = conf.data.prepared or must_measure(self.pairing)
        new = measure() if measures else statistics.given(conf)
        both = statistics_of_both(self.pairing, self.checkpoint.statistics, new)
        check_inputs(self.pairing, self.checkpoint.statistics, both)
        return both

    def fill(self, model: "Model", insert: Callable[[Rows], dict[str, int]] = Rows.insert) -> None:
        """Give a new model the rows and dense weights of the checkpoint, and report them.

        `insert` inserts the rows, when dense weights are there, and returns how many each group
        received. Raises UserError where the new model cannot take them, Failure for a damaged
        checkpoint.
        """
        from tnctl.training.warm import dense_transfer

        pairing, checkpoint = self.pairing, self.checkpoint
        rows = Rows(pairing, checkpoint, model)
        rows.check()
        dense_transfer.check(pairing, checkpoint, model)
        with progress.waiting(f"starting from {checkpoint.folder}"):
            dense = dense_transfer.fill(pairing, checkpoint, model)
            row_counts = insert(rows)
        self.report = WarmReport(
            from_=masked(checkpoint.folder),
            step=self.checkpoint.step,
            optimizer=pairing.conf.warm.optimizer,
            inputs=self._inputs(row_counts),
            dense=dense,
            notes=[*differences(pairing), *rows.notes()],
        )
        self._print_report(self.report)

    def transfer_dense(self, model: "Model") -> None:
        """Give a model that is one of several its dense weights, without a report.

        It is checked that one of them can take the rows and weights.
        """
        from tnctl.training.warm import dense_transfer

        dense_transfer.fill(self.pairing, self.checkpoint, model)

    def transfer_rows(self, model: ParameterTables) -> dict[str, int]:
        """Give tables that are a part of a model's their rows; how many each group received."""
        return Rows(self.pairing, self.checkpoint, model).insert()

    def _inputs(self, row_counts: dict[str, int]) -> list[WarmInput]:
        """Every input of both confs, its outcome, where it is from, and its group's rows."""
        conf, matched = self.pairing.conf, self.pairing.matched
        groups = {name: slot.group or name for name, slot in conf.slots.items()}
        return [
            WarmInput(
                input=name,
                outcome="matched" if name in matched else "new",
                from_=matched.get(name),
                rows=row_counts.get(groups[name]) if name in groups else None,
            )
            for name in [*conf.slots, *conf.numeric]
        ] + [
            WarmInput(input=None, outcome="dropped", from_=name, rows=None)
            for name in self.pairing.dropped
        ]

    def _print_report(self, report: WarmReport) -> None:
        """Print the outcome of every input, how many dense weights had which, and the notes."""
        rows = [
            (
                entry.input or NONE,
                entry.outcome,
                entry.from_ or NONE,
                NONE if entry.rows is None else f"{entry.rows:,}",
            )
            for entry in report.inputs
        ]
        dense: dict[str, list[str]] = documents.plain(report.dense)
        title = f"warm start from {self.checkpoint.folder}"
        progress.table(title, ("input", "", "there", "rows"), rows)
        shown = [f"{len(names)} {outcome}" for outcome, names in dense.items() if names]
        progress.say(f"dense weights: {', '.join(shown) or 'none'}")
        for note in report.notes:
            progress.say(note)
