"""The warm start of a run, from the check of its keys to its report: docs/warm_start.md.

The clock continues from the checkpoint's, so that what rows know of their past (last change, decay,
show, click) stays true.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tnctl import documents, files, progress
from tnctl.checkpoint.chain import Checkpoint, newest, open_checkpoint
from tnctl.checkpoint.document import WarmInput, WarmReport
from tnctl.data import statistics
from tnctl.data.day_records import DayRecord
from tnctl.data.days import daily
from tnctl.data.statistics_document import Statistics
from tnctl.errors import Failure, UserError
from tnctl.manifest import NAME
from tnctl.masking import masked
from tnctl.model.parameter_tables import ParameterTables
from tnctl.outputs import Place, refuse_overlap
from tnctl.saved_conf import conf_of
from tnctl.schema import Conf
from tnctl.training.warm.pairing import (
    Pairing,
    check_inputs,
    differences,
    must_measure,
    pair,
    statistics_of_both,
)
from tnctl.training.warm.row_transfer import Rows

if TYPE_CHECKING:
    from tnctl.model.building import Model

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
