"""When a run saves a checkpoint, and what the checkpoint has beside the model."""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import JsonValue

from tnctl import files
from tnctl.checkpoint.chain import Checkpoint
from tnctl.checkpoint.document import Position
from tnctl.checkpoint.saver import Saver
from tnctl.data.days import daily
from tnctl.errors import Failure
from tnctl.evaluation.metrics import scalars
from tnctl.evaluation.predictions import GoldenRows
from tnctl.model.parameter_tables import Recalibration
from tnctl.progress import say, waiting
from tnctl.schema import Conf
from tnctl.system import RESUME_WITH_MORE
from tnctl.training import run_folder, schedule
from tnctl.training.loop import (
    BetweenSteps,
    DayEnds,
    DayStarts,
    Evaluated,
    Event,
    Interrupted,
    PassEnds,
    RowsEvicted,
    StepDone,
)
from tnctl.training.observers import Stopwatch
from tnctl.training.report.report_document import RecalibratedHead
from tnctl.training.report.terminal_tables import in_words
from tnctl.training.run_folder import Log
from tnctl.training.schedule import is_crossed
from tnctl.training.state import RunState
from tnctl.training.workers import Workers

FIGURES = ("logloss", "ne", "ctr", "pctr", "copc")  # of which a head says what changes
STEPS_BETWEEN_CHECKS = 8  # for errors of the thread that completes a checkpoint


@dataclass
class Checkpoints:
    """Saves the checkpoints of a run as the training loop proceeds.

    `checkpoint` is the one that the run is resumed from. `saved` is the newest complete checkpoint,
    `staged` the one that is being completed; both are empty at first.
    """

    conf: Conf
    state: RunState
    workers: Workers
    log: Log
    stopwatch: Stopwatch
    golden_rows: int
    checkpoint: Checkpoint | None

    def __post_init__(self) -> None:
        conf, state = self.conf, self.state
        self.saver = Saver(conf, self.checkpoint, self.workers.owners)
        self.saved = self.staged = "" if self.checkpoint is None else self.checkpoint.folder
        self._saved_at: tuple[int, Position] = (state.steps, state.position)
        self._looked_at = state.steps
        self._best_is_due = self._full_is_due = False
        minutes = conf.save.every_minutes
        self._seconds_between = math.inf if minutes is None else 60 * minutes
        self._next_save = time.monotonic() + self._seconds_between
        # Golden rows of data.train are rows of a day: they are read when the day starts.
        self._by_day = conf.data.source("validation") is None and daily(conf)
        golden_rows = 0 if self._by_day else self.golden_rows
        self._golden = GoldenRows(conf, self.workers.model, golden_rows)

    def see(self, event: Event) -> None:
        """Save what is due. Raises Failure when memory runs out, with everything saved."""
        match event:
            case BetweenSteps():
                self._save_if_due()
                self._check_memory()
            case RowsEvicted(removed=removed) if any(removed.values()):
                # No delta has rows that are removed at the step of its parent. In asynchronous
                # training a pause may be at the end of a pass.
                is_saved = self.state.steps == self._saved_at[0]
                self._full_is_due = is_saved and self.state.position.day is None
            case StepDone(index=index) if index % STEPS_BETWEEN_CHECKS == 0:
                self.saver.check()
            case Evaluated(is_best=is_best):
                self._best_is_due = is_best and schedule.keeps_best(self.conf)
            case DayStarts(conf=conf) if self._by_day:
                self._golden = GoldenRows(conf, self.workers.model, self.golden_rows)
            case PassEnds(is_last=False) | DayEnds(is_last=False):
                self.save()
            case Interrupted():
                self.save_when_interrupted()

    def _save_if_due(self) -> None:
        """Save if steps or minutes make it due, or the model is the best so far."""
        every, steps = self.conf.save.every_steps, self.state.steps
        is_due = every is not None and is_crossed(every, self._looked_at, steps)
        self._looked_at = steps
        is_due = is_due or time.monotonic() >= self._next_save
        if self._best_is_due or (is_due and steps > self._saved_at[0]):
            self.save()

    def _check_memory(self) -> None:
        """Save and raise Failure when the tables may not have room to grow."""
        if (shortage := self.workers.shortage()) is not None:
            self._save_if_new()
            self.wait()
            raise Failure(
                f"stopped after step {self.state.steps:,} before memory runs out: {shortage}. "
                f"{self.saved} is saved. {RESUME_WITH_MORE}"
            )

    def save(self, *, full: bool = False) -> None:
        """Save the model and the state of the run."""
        started = time.perf_counter()
        self.log.flush()
        state, stopping = self.state, self.state.stopping
        with waiting("saving a checkpoint"):
            self.workers.settle(state)
            self.saver.protect(stopping.best_step if stopping.best is not None else None)
            folder = self.saver.save(
                self.workers.model,
                state.contents(self._golden.lines(self.workers.inference), len(self.log.events)),
                full=full or self._full_is_due,
                name_step=state.steps,
            )
        # `Saver.save` has waited until the checkpoint before this one was complete.
        self.saved, self.staged = self.staged, files.join(self.conf.output, folder)
        self._saved_at = (state.steps, state.position)
        self._best_is_due = self._full_is_due = False
        self._looked_at = state.steps
        self._next_save = time.monotonic() + self._seconds_between
        self.stopwatch.saving += time.perf_counter() - started

    def save_last(self) -> None:
        """The last checkpoint of a run, of the model that is kept."""
        stopping, best = self.state.stopping, self.state.stopping.best_step
        is_earlier = stopping.best is not None and best != self.state.steps
        is_earlier = is_earlier and schedule.keeps_best(self.conf)
        if is_earlier:
            self.saver.wait()
            # Every byte is read before the last model is dropped, for it may have to be kept.
            needed = run_folder.names_of_chain(self.staged)
            folder = run_folder.newest_whole(self.conf.output, best, needed, read=True)
            if folder is None:
                say(f"the best model, of step {best:,}, is lost; the last one is kept instead")
            else:
                say(f"keeping the model of step {best:,}, the best")
                self.workers.load(folder)
                self.state.best_is_loaded = True
        self._complete_model()
        self.save(full=is_earlier)

    def _complete_model(self) -> None:
        """Lines of the log about the model that the run ends with, which is recalibrated if due."""
        state = self.state
        if schedule.keeps_best(self.conf):
            timing = self.stopwatch.now()
            self.log.add("kept", step=state.model_step, validation=state.validation, timing=timing)
        if schedule.recalibrates(self.conf) and not daily(self.conf):
            recalibrate(state, self.workers, self.log, self.stopwatch)

    def save_when_interrupted(self) -> None:
        """Save what is new, unless a second signal asks to leave at once."""
        if not self.workers.signals.again:
            self._save_if_new()

    def _save_if_new(self) -> None:
        """Save if there were steps since the last checkpoint."""
        self.workers.settle(self.state)
        if self._saved_at != (self.state.steps, self.state.position):
            if self.workers.signals.received:
                say(
                    f"stopping after step {self.state.steps:,}: a checkpoint is saved first. "
                    "A second Ctrl-C or SIGTERM leaves without it"
                )
            self.save()

    def wait(self) -> None:
        """Wait until the last checkpoint is complete."""
        self.saver.wait()
        self.saved = self.staged


def recalibrate(state: RunState, workers: Workers, log: Log, stopwatch: Stopwatch) -> None:
    """Fit the model that a run ends with, and record and show what that changes."""
    measured = workers.recalibrate()
    stopwatch.evaluating += measured.seconds
    if not workers.model.recalibration:
        return
    state.recalibrated = scalars(measured.metrics)
    heads = recalibrated_heads(workers.model.recalibration, state)
    log.add(
        "recalibrated",
        step=state.model_step,
        recalibration={name: vars(head) for name, head in heads.items()},
        validation=state.recalibrated,
        timing=stopwatch.now(),
    )
    for name, head in heads.items():
        of_head = f" head {name}" if len(workers.model.heads) > 1 else ""
        say(f"recalibrated{of_head} on data.validation: {in_words(head)}")


def recalibrated_heads(
    recalibration: Mapping[str, Recalibration], state: RunState
) -> dict[str, RecalibratedHead]:
    """Each recalibrated head, with its figures on data.validation before and after."""
    before, after = state.evaluated or {}, state.recalibrated or {}
    return {
        head: RecalibratedHead(
            slope=fitted.slope,
            intercept=fitted.intercept,
            before=figures_of(before, head),
            after=figures_of(after, head),
        )
        for head, fitted in recalibration.items()
    }


def figures_of(metrics: Mapping[str, JsonValue], head: str) -> dict[str, JsonValue]:
    """The figures of a head among the metrics of all, those that concern calibration."""
    others = metrics.get("heads")
    of_head = others.get(head, metrics) if isinstance(others, dict) else metrics
    assert isinstance(of_head, Mapping)
    return {name: of_head[name] for name in FIGURES if name in of_head}
