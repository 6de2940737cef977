"""When a run saves a checkpoint, and what the checkpoint has beside the model."""

import math
import time

from tnctl import files
from tnctl.checkpoint.chain import Checkpoint
from tnctl.checkpoint.document import Position
from tnctl.checkpoint.saver import Saver
from tnctl.data.days import daily
from tnctl.errors import Failure
from tnctl.evaluation.golden_rows import GoldenRows
from tnctl.progress import say, waiting
from tnctl.schema import Conf
from tnctl.system import RESUME_WITH_MORE
from tnctl.training import events, recalibrating, resuming, schedule
from tnctl.training.observers import Stopwatch
from tnctl.training.run_folder import Log
from tnctl.training.schedule import is_crossed
from tnctl.training.signals import Signals
from tnctl.training.state import RunState
from tnctl.training.workers import Workers

STEPS_BETWEEN_CHECKS = 8  # for errors of the thread that completes a checkpoint


class Checkpoints:
    """Saves the checkpoints of a run as the training loop proceeds.

    `saved` is the newest complete checkpoint, `staged` the one that is being completed; both are
    empty at first.
    """

    def __init__(
        self,
        conf: Conf,
        state: RunState,
        workers: Workers,
        log: Log,
        signals: Signals,
        stopwatch: Stopwatch,
        golden_rows: int,
        checkpoint: Checkpoint | None,
    ) -> None:
        """`checkpoint` is the one that the run is resumed from."""
        self._conf, self._state, self._workers = conf, state, workers
        self._log, self._signals, self._stopwatch = log, signals, stopwatch
        self.saver = Saver(conf, checkpoint, workers.owners)
        self.saved = self.staged = "" if checkpoint is None else checkpoint.folder
        self._saved_at: tuple[int, Position] = (state.steps, state.position)
        self._looked_at = state.steps
        self._best_is_due = self._full_is_due = False
        minutes = conf.save.every_minutes
        self._seconds_between = math.inf if minutes is None else 60 * minutes
        self._next_save = time.monotonic() + self._seconds_between
        self._golden_rows = golden_rows
        by_day = conf.data.source("validation") is None and daily(conf)
        # Golden rows of data.train are rows of a day: they are read when the day starts.
        self._golden = GoldenRows(conf, workers.model, 0 if by_day else golden_rows)

    def see(self, event: events.Event) -> None:
        """Save what is due. Raises Failure when memory runs out, with everything saved."""
        match event:
            case events.BetweenSteps():
                self._save_if_due()
                self._check_memory()
            case events.RowsEvicted(removed=removed) if any(removed.values()):
                # No delta has rows that are removed at the step of its parent. In asynchronous
                # training a pause may be at the end of a pass.
                is_saved = self._state.steps == self._saved_at[0]
                self._full_is_due = is_saved and self._state.position.day is None
            case events.StepDone(number=number) if number % STEPS_BETWEEN_CHECKS == 0:
                self.saver.check()
            case events.Evaluated(is_best=is_best):
                self._best_is_due = is_best and schedule.keeps_best(self._conf)
            case events.DayStarts(conf=conf) if self._conf.data.source("validation") is None:
                self._golden = GoldenRows(conf, self._workers.model, self._golden_rows)
            case events.PassEnds(is_last=False) | events.DayEnds(is_last=False):
                self.save()
            case events.Interrupted():
                self.save_when_interrupted()

    def _save_if_due(self) -> None:
        """Save if steps or minutes make it due, or the model is the best so far."""
        every, steps = self._conf.save.every_steps, self._state.steps
        is_due = every is not None and is_crossed(every, self._looked_at, steps)
        self._looked_at = steps
        is_due = is_due or time.monotonic() >= self._next_save
        if self._best_is_due or (is_due and steps > self._saved_at[0]):
            self.save()

    def _check_memory(self) -> None:
        """Save and raise Failure when the tables may not have room to grow."""
        if (shortage := self._workers.shortage()) is not None:
            self._save_if_new()
            self.wait()
            raise Failure(
                f"stopped after step {self._state.steps:,} before memory runs out: {shortage}. "
                f"{self.saved} is saved. {RESUME_WITH_MORE}"
            )

    def save(self, *, full: bool = False) -> None:
        """Save the model and the state of the run."""
        started = time.perf_counter()
        self._log.flush()
        state, stopping = self._state, self._state.stopping
        with waiting("saving a checkpoint"):
            self._workers.settle(state)
            self.saver.protect(stopping.best_step if stopping.best is not None else None)
            folder = self.saver.save(
                self._workers.model,
                state.contents(self._golden.lines(self._workers.inference), len(self._log.events)),
                full=full or self._full_is_due,
                name_step=state.steps,
            )
        # `Saver.save` has waited until the checkpoint before this one was complete.
        self.saved, self.staged = self.staged, files.join(self._conf.output, folder)
        self._saved_at = (state.steps, state.position)
        self._best_is_due = self._full_is_due = False
        self._looked_at = state.steps
        self._next_save = time.monotonic() + self._seconds_between
        self._stopwatch.saving += time.perf_counter() - started

    def save_last(self) -> None:
        """The last checkpoint of a run, of the model that is kept."""
        stopping, best = self._state.stopping, self._state.stopping.best_step
        keeps_last = not schedule.keeps_best(self._conf) or stopping.best is None
        if keeps_last or best == self._state.steps:
            self._complete_model()
            self.save()
            return
        self.saver.wait()
        # Every byte is read before the last model is dropped, for it may have to be kept.
        needed = resuming.names_of_chain(self.staged)
        folder = resuming.newest_whole(self._conf.output, best, needed, read=True)
        if folder is None:
            say(f"the best model, of step {best:,}, is lost; the last one is kept instead")
            self._complete_model()
            self.save(full=True)
            return
        say(f"keeping the model of step {best:,}, the best")
        self._workers.load(folder)
        self._state.best_is_loaded = True
        self._complete_model()
        self.save(full=True)

    def _complete_model(self) -> None:
        """Lines of the log about the model that the run ends with, which is recalibrated if due."""
        state = self._state
        if schedule.keeps_best(self._conf):
            timing = self._stopwatch.now()
            self._log.add("kept", step=state.model_step, validation=state.validation, timing=timing)
        if recalibrating.is_wanted(self._conf) and not daily(self._conf):
            recalibrating.recalibrate(state, self._workers, self._log, self._stopwatch)

    def save_when_interrupted(self) -> None:
        """Save what is new, unless a second signal asks to leave at once."""
        if not self._signals.again:
            self._save_if_new()

    def _save_if_new(self) -> None:
        """Save if there were steps since the last checkpoint."""
        self._workers.settle(self._state)
        if self._saved_at != (self._state.steps, self._state.position):
            if self._signals.received:
                say(
                    f"stopping after step {self._state.steps:,}: a checkpoint is saved first. "
                    "A second Ctrl-C or SIGTERM leaves without it"
                )
            self.save()

    def wait(self) -> None:
        """Wait until the last checkpoint is complete."""
        self.saver.wait()
        self.saved = self.staged
