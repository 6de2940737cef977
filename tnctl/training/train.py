"""`tnctl train`: start or resume a run, train it to its end, write the report."""

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from tnctl import files
from tnctl.checkpoint.load import Checkpoint
from tnctl.data import statistics
from tnctl.data.days import conf_of_day, daily
from tnctl.data.formats.prepared_document import SPLITS
from tnctl.data.windows import windows
from tnctl.errors import Failure, Stopped, UserError
from tnctl.evaluation.evaluate import features_of
from tnctl.model import recipes
from tnctl.model.building import Model, build, enable_determinism
from tnctl.ownership import Claims
from tnctl.progress import say, waiting
from tnctl.schema import Conf
from tnctl.training import early_stopping, eviction, loop, resuming, run_folder, warm
from tnctl.training.days.daily import Daily
from tnctl.training.final_report import write_report
from tnctl.training.first_rows import insert_rows
from tnctl.training.memory_watch import WAY_OUT, table_words
from tnctl.training.observers import Observer, Recorder, Screen, Stopwatch
from tnctl.training.report import Report
from tnctl.training.run_log import Log
from tnctl.training.saving import Checkpoints
from tnctl.training.signals import Signals
from tnctl.training.state import RunState
from tnctl.training.tensorboard import EventFiles
from tnctl.training.workers import LocalWorkers

GOES_ON = "{} is saved, and the same command goes on from there"
STARTS_ANEW = "nothing is saved yet, and the same command starts anew"


def train(
    conf: Conf, *, overwrite: bool = False, golden: int = 200, accept: bool = False
) -> Report:
    """Train a conf to its end and return the report. A finished run is left as it is.

    With {day} in data.train the end is that of the last day that is there; `accept` trains days
    that came late, are empty or look broken. `golden` rows are kept with each checkpoint. Raises
    `Stopped` after Ctrl-C or SIGTERM, with a checkpoint of the last step, and Failure while another
    process trains into the same output.
    """
    early_stopping.check(conf)
    eviction.check(conf)
    warm.check(conf, overwrite)
    if accept and not daily(conf):
        raise UserError("accept=true is for days: data.train has no {day}. Leave it out")
    with files.locked(conf.output):
        run_folder.refuse_data_in_places(conf)
        run_folder.refuse_no_folders(conf.output)
        checkpoint = None if overwrite else resuming.start(conf)
        days = None
        if checkpoint is not None:
            days = Daily(conf, checkpoint.days, accept) if daily(conf) else None
            if (report := finished_report(conf, days)) is not None:
                return report
        stopwatch = Stopwatch()
        if conf.train.deterministic:
            enable_determinism()
        if checkpoint is None:
            run = begin_run(conf, overwrite, accept, stopwatch)
        else:
            run = resume_run(conf, checkpoint, days, accept, stopwatch)
        return run.to_its_end(golden)


def finished_report(conf: Conf, days: Daily | None) -> Report | None:
    """The report of a run that nothing is left to be trained of, else None."""
    if days is not None and days.left:
        return None
    report = run_folder.finished(conf)
    # Of days since, a report may not have been written.
    if report is None or (days is not None and not days.all_are_in(report)):
        return None
    what = "is finished" if days is None else "is trained on every day that is there"
    say(f"{conf.output} {what}: nothing to do (overwrite=true starts anew)")
    return report


@dataclass
class Run:
    """A run that is ready to be trained. `checkpoint` is the one that it is resumed from."""

    conf: Conf
    model: Model
    state: RunState
    daily: Daily | None
    claims: Claims
    log: Log
    stopwatch: Stopwatch
    checkpoint: Checkpoint | None = None

    def to_its_end(self, golden: int) -> Report:
        """Train all that is left, save it, and write the report."""
        conf, state = self.conf, self.state
        with Signals() as signals:
            workers = LocalWorkers(conf, self.model, state.steps, signals)
            del self.model  # the best one may take its place
            checkpoints = Checkpoints(
                conf, state, workers, self.log, signals, self.stopwatch, golden, self.checkpoint
            )
            with ended_in_words(state, workers, checkpoints, signals), ExitStack() as stack:
                events = self._event_files(workers)
                if events is not None:
                    stack.callback(events.close)
                screen = Screen(conf, state, workers)
                stack.callback(screen.close)
                recorder = Recorder(state, workers, self.log, self.stopwatch, events)
                observers: list[Observer] = [self.stopwatch, screen, recorder, checkpoints]
                self._train(workers, checkpoints, observers)
                signals.impatient()
                report = write_report(
                    conf, state, workers, self.daily, checkpoints, self.log, self.stopwatch
                )
        run_folder.finish(self.claims)
        return report

    def _train(
        self, workers: LocalWorkers, checkpoints: Checkpoints, observers: Sequence[Observer]
    ) -> None:
        if self.state.trained:
            return
        checkpoints.saver.check_room(workers.model)
        events = loop.train(self.conf, self.state, workers, self.daily)
        with contextlib.closing(events):
            for event in events:
                for observer in observers:
                    observer.see(event)
        checkpoints.save_last()

    def _event_files(self, workers: LocalWorkers) -> EventFiles | None:
        if not self.conf.train.tensorboard and self.conf.train.profile is None:
            return None
        events = EventFiles(self.conf, self.state.steps, self.claims)
        if self.checkpoint is None:
            events.graph(workers.model)
        return events


def begin_run(conf: Conf, overwrite: bool, accept: bool, stopwatch: Stopwatch) -> Run:
    """A new run: the data is measured, and the model is built."""
    recipes.settings_of(conf.recipe, recipes.load(conf.recipe["name"]))
    start = warm.begin(conf)
    if overwrite:
        run_folder.refuse_foreign(conf.output)
    else:  # before the data is measured: that may take long, and the output be read-only
        claims, log = run_folder.claims_of(conf.output), Log(conf.output)
    state = RunState() if start is None else RunState.after_warm_start(start)
    days = Daily(conf, state.days, accept) if daily(conf) else None
    first_day = None if days is None else days.first
    model = new_model(conf, start, first_day)
    if overwrite:
        # Only now, when the conf and the data are known to make a model.
        read_first_rows(conf, model, first_day)
        run_folder.remove(conf.output)
        claims, log = run_folder.claims_of(conf.output), Log(conf.output)
    if days is not None:
        state.days = days.record
    return Run(conf, model, state, days, claims, log, stopwatch)


def resume_run(
    conf: Conf, newest: Checkpoint, days: Daily | None, accept: bool, stopwatch: Stopwatch
) -> Run:
    """The run of an output, as its newest checkpoint that is whole has it."""
    checkpoint, model = resuming.load_newest(conf, newest)
    if days is not None and checkpoint.folder != newest.folder:
        days = Daily(conf, checkpoint.days, accept)
    say(f"going on from {checkpoint.folder}")
    claims = run_folder.claims_of(conf.output)
    log = Log(conf.output, checkpoint.manifest.metrics.log_lines)
    state = resuming.state_of(conf, checkpoint)
    if days is not None:
        state.days, state.trained = days.record, not days.left
    return Run(conf, model, state, days, claims, log, stopwatch, checkpoint)


def read_first_rows(conf: Conf, model: Model, first_day: str | None) -> None:
    """Read the first window of each split. Raises what training would raise for it later."""
    of_first_day = conf_of_day(conf, first_day)
    for split in SPLITS:
        if getattr(of_first_day.data, split) is not None:
            next(windows(of_first_day, features_of(conf, model), split), None)


def new_model(
    conf: Conf, start: warm.WarmStart | None = None, first_day: str | None = None
) -> Model:
    """The model that a new run begins with. With days the first is measured, and that stays."""

    def measure(conf: Conf) -> statistics.Statistics:
        return statistics.measure(conf_of_day(conf, first_day))

    with waiting("measuring the training data"):
        measured = start.statistics(measure) if start else measure(conf)
    model = build(conf, measured)
    if start is not None:
        start.fill(model)
    if conf.optimizer.updates == "all":
        with waiting("making every row of the training data"):
            insert_rows(model, features_of(conf, model))
    return model


@contextlib.contextmanager
def ended_in_words(
    state: RunState, workers: LocalWorkers, checkpoints: Checkpoints, signals: Signals
) -> Iterator[None]:
    """Say what is saved when training ends by a signal, or for want of memory."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, Stopped):
            # Of a signal outside of the loop.
            checkpoints.save_when_interrupted()
        if not signals.again:
            # The error is reported; a checkpoint that is being completed may still arrive.
            with contextlib.suppress(Failure, Stopped):
                checkpoints.wait()
        saved = checkpoints.saved
        if isinstance(error, KeyboardInterrupt):
            code = error.exit_code if isinstance(error, Stopped) else 130
            goes_on = GOES_ON.format(saved) if saved else STARTS_ANEW
            raise Stopped(f"stopped after step {state.steps:,}: {goes_on}", code) from None
        if isinstance(error, MemoryError):
            place = f"{saved} is saved. {WAY_OUT}" if saved else WAY_OUT
            reason = f" ({error})" if str(error) else ""
            raise Failure(
                f"out of memory after step {state.steps:,}{reason}: {table_words(workers.model)}. "
                f"{place}"
            ) from error
        raise
