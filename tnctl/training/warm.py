"""Warm start: a new run that begins with what a checkpoint of another conf has learned.

docs/warm_start.md has the rules. The clock goes on with that of the checkpoint, so that what rows
know of their past (last change, decay, show, click) stays true.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from tnctl import documents, files, progress
from tnctl.checkpoint.chain import Checkpoint, newest, open_checkpoint
from tnctl.checkpoint.document import WarmDense, WarmInput, WarmReport
from tnctl.data import statistics
from tnctl.data.day_records import DayRecord
from tnctl.data.days import daily
from tnctl.data.statistics import Statistics
from tnctl.errors import Failure, UserError
from tnctl.folders import Place
from tnctl.manifest import NAME
from tnctl.masking import masked
from tnctl.model.building import Model
from tnctl.outputs import refuse_overlap
from tnctl.saved_conf import conf_of
from tnctl.schema import Conf
from tnctl.training import warm_dense, warm_inputs, warm_rows

NONE = "–"


def check(conf: Conf, overwrite: bool) -> None:
    """Refuse a warm start that cannot be, before an earlier run is removed for it.

    Raises UserError, also for starting from what the run itself would write or remove.
    """
    if conf.warm.start is None:
        return
    start, output = Place(conf.warm.start), Place(conf.output)
    if start.is_same(output) or start.is_inside(output):
        raise UserError(
            f"warm.start={start.url} is in the output of this run. Give another output=URL, which "
            "is new, or leave warm.start out to go on with this one"
        )
    if files.exists(files.join(start.url, NAME)):  # it is a checkpoint, and no output of a run
        refuse_overlap([conf.output], [conf.warm.start], "output")
    if overwrite:
        begin(conf)


def begin(conf: Conf) -> "WarmStart | None":
    """The warm start that a conf asks for. Raises UserError where the inputs do not match."""
    if conf.warm.start is None:
        return None
    checkpoint = checkpoint_at(conf.warm.start)
    old = conf_of(checkpoint.conf(), checkpoint.folder)
    return WarmStart(checkpoint, warm_inputs.pair(checkpoint.folder, old, conf))


def checkpoint_at(start: str) -> Checkpoint:
    """A checkpoint, or the newest of a run, by its folder or URL. Raises Failure."""
    if files.exists(files.join(start, NAME)):
        return open_checkpoint(start)
    checkpoint = newest(start)
    if checkpoint is None:
        raise Failure(
            f"warm.start={start} is no checkpoint, and no output of a run that has one. Check the "
            "path or URL"
        )
    return checkpoint


@dataclass
class WarmStart:
    """A checkpoint, and how the inputs of a new conf go on from its."""

    checkpoint: Checkpoint
    pairing: warm_inputs.Pairing
    report: WarmReport | None = None
    """after `fill`: what became of everything, for report.json"""

    @property
    def step(self) -> int:
        """The step that the clock of the new run goes on from."""
        return self.checkpoint.step

    @property
    def days(self) -> list[tuple[int, int]]:
        """The days that the clock has seen: (day, first step)."""
        return list(self.checkpoint.clock.days)

    @property
    def record(self) -> list[DayRecord]:
        """The days that were trained, if both train day by day: they are not trained again.

        Of what a day looked like, inputs that go on are kept, by the names that they have here.
        """
        if not daily(self.pairing.conf):
            return []
        names, dropped = self.pairing.names_here, self.pairing.dropped

        def seen_here(entry: DayRecord) -> DayRecord:
            # The rest of a day that training was in the middle of is not trained here.
            entry = replace(entry, last_step=entry.last_step or self.step)
            if (seen := entry.statistics) is None:
                return entry
            inputs = {
                names.get(one, one): of for one, of in seen.inputs.items() if one not in dropped
            }
            return replace(entry, statistics=replace(seen, inputs=inputs))

        return [seen_here(entry) for entry in self.checkpoint.days]

    def statistics(self, measure: Callable[[Conf], Statistics]) -> Statistics:
        """What the new model knows of its data: `measure` is asked for inputs that start anew.

        Raises UserError where an input that goes on would be read in another way.
        """
        conf, before = self.pairing.conf, self.checkpoint.statistics
        if conf.data.prepared or warm_inputs.must_measure(self.pairing):
            here = measure(conf)
        else:
            here = statistics.given(conf)
        found = warm_inputs.statistics(self.pairing, before, here)
        warm_inputs.check(self.pairing, before, found)
        return found

    def fill(self, model: Model) -> None:
        """Give a new model the rows and dense weights of the checkpoint, and say what came along.

        Raises UserError for what cannot, and Failure for a damaged checkpoint.
        """
        pairing, checkpoint = self.pairing, self.checkpoint
        rows = warm_rows.Rows(pairing, checkpoint, model)
        rows.check()
        warm_dense.check(pairing, checkpoint, model)
        with progress.waiting(f"starting from {checkpoint.folder}"):
            carried = warm_dense.fill(pairing, checkpoint, model)
            counted = rows.insert()
        self.report = WarmReport(
            from_=masked(checkpoint.folder),
            step=self.step,
            optimizer=pairing.conf.warm.optimizer,
            inputs=self._inputs(counted),
            dense=WarmDense(**vars(carried)),
            notes=[*warm_inputs.notes(pairing), *rows.notes()],
        )
        self._say(self.report)

    def _inputs(self, counted: dict[str, int]) -> list[WarmInput]:
        """Every input of both confs, its outcome, where it is from, and its group's rows."""
        conf = self.pairing.conf
        found: list[WarmInput] = []
        for name in [*conf.slots, *conf.numeric]:
            old_name = self.pairing.goes_on.get(name)
            slot = conf.slots.get(name)
            found.append(
                WarmInput(
                    input=name,
                    outcome="new" if old_name is None else "matched",
                    from_=old_name,
                    rows=None if slot is None else counted.get(slot.group or name),
                )
            )
        return found + [
            WarmInput(input=None, outcome="dropped", from_=name, rows=None)
            for name in self.pairing.dropped
        ]

    def _say(self, report: WarmReport) -> None:
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
