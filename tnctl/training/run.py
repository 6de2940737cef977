"""`tnctl train`: start or resume a run, train it to its end, write the report."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import numpy as np

from tnctl import files
from tnctl.checkpoint.chain import Checkpoint
from tnctl.data import statistics
from tnctl.data.bad_rows import SPLITS
from tnctl.data.batch_sizes import chosen, sized
from tnctl.data.batches import batches
from tnctl.data.days import conf_of_day, daily
from tnctl.data.features import Features, counted_ids
from tnctl.data.sources import Source
from tnctl.data.windows import windows
from tnctl.errors import Failure, Stopped, UserError
from tnctl.evaluation.split_scoring import features_of
from tnctl.model import recipes
from tnctl.model.building import Model, bfloat16_advice, enable_determinism
from tnctl.model.parameters import Parameters
from tnctl.progress import say, waiting
from tnctl.schema import Cluster, Conf
from tnctl.system import RESUME_WITH_MORE, OutOfMemory, is_out_of_memory
from tnctl.tables import SlotPlan, SparseTable, Workspace
from tnctl.training import events, resuming, run_folder
from tnctl.training import plan as plans
from tnctl.training.check.forecast import memory_of_machine
from tnctl.training.days.daily import Daily, train_days
from tnctl.training.loop import train_passes
from tnctl.training.observers import Observer, Profiler, Recorder, Screen, Stopwatch, WorkerWatch
from tnctl.training.plan import Plan, days_left, has_more_passes
from tnctl.training.report.final_report import write_report
from tnctl.training.report.report_document import Report, Timing
from tnctl.training.report.tensorboard import EventFile
from tnctl.training.row_life import table_words
from tnctl.training.run_folder import FAILED, PRUNED, STOPPED, Log
from tnctl.training.saving import Checkpoints
from tnctl.training.signals import Signals
from tnctl.training.state import RunState
from tnctl.training.warm import warm_start
from tnctl.training.warm.warm_start import WarmStart
from tnctl.training.workers import OneProcess, Workers

IDS_AT_A_TIME = 1 << 20


def train(
    conf: Conf,
    *,
    overwrite: bool = False,
    golden: int = 200,
    accept: bool = False,
    processes: OneProcess | None = None,
    observer: Callable[[RunState], Observer] | None = None,
) -> Report:
    """Train a conf to its end and return the report. A finished run is not changed.

    `processes` train it; by default this one alone. `observer` makes one more observer of training,
    which sees an event before it has consequences, and may end the run by raising EndedError.

    With {day} in data.train the end is the last day that has files; `accept` trains days that came
    late, are empty or look broken. `golden` rows are kept with each checkpoint. Raises `Stopped`
    after Ctrl-C or SIGTERM, with a checkpoint of the last step, and Failure while another process
    trains into the same output.
    """
    plans.check(conf, overwrite, accept)
    processes = processes or OneProcess()
    with files.locked(conf.output):
        run_folder.check(conf)
        stopwatch = Stopwatch()
        plan = plans.plan(conf, overwrite, accept)
        if plan.kind == "finished" and plan.report is not None:
            say(f"{conf.output} {plan.why}: nothing to do (overwrite=true trains from scratch)")
            return plan.report
        if conf.train.deterministic:
            enable_determinism()
        if plan.checkpoint is None:
            run = begin_run(conf, processes, overwrite, accept, stopwatch)
        else:
            run = resume_run(plan, plan.checkpoint, processes, accept, stopwatch)
        record_workers(run.log, run.conf.cluster, run.state.steps)
        return run.to_its_end(golden, observer)


@dataclass
class Run:
    """A run that is ready to be trained. `checkpoint` is the one that it is resumed from.

    `timing` is its report's, if it is finished and gets a baseline only.
    """

    conf: Conf
    processes: OneProcess
    model: Model
    state: RunState
    daily: Daily | None
    log: Log
    stopwatch: Stopwatch
    checkpoint: Checkpoint | None = None
    timing: Timing | None = None

    def to_its_end(
        self, golden: int, observer: Callable[[RunState], Observer] | None = None
    ) -> Report:
        """Train all that is left, save it, and write the report."""
        conf, state = self.conf, self.state
        with Signals() as signals, end_recorded(self.log, state, self.stopwatch):
            workers = self.processes.workers(conf, self.model, state.steps, signals)
            del self.model  # the best one may take its place
            checkpoints = Checkpoints(
                conf, state, workers, self.log, signals, self.stopwatch, golden, self.checkpoint
            )
            with interruption_reported(state, workers, checkpoints, signals):
                if not state.trained:
                    self._train(workers, checkpoints, [observer(state)] if observer else [])
                signals.impatient()
                report = write_report(
                    conf,
                    state,
                    workers,
                    self.daily,
                    checkpoints,
                    self.log,
                    self.stopwatch,
                    self.timing,
                )
        return report

    def _train(
        self, workers: Workers, checkpoints: Checkpoints, others: Sequence[Observer]
    ) -> None:
        """Let each observer react to each event of training, first `others`."""
        conf, state = self.conf, self.state
        checkpoints.saver.check_room(workers.model)
        with ExitStack() as stack:
            watch = WorkerWatch(workers)
            screen = Screen(conf, state, workers, watch)
            stack.callback(screen.close)
            event_files = None
            if conf.train.tensorboard:
                event_files = EventFile(conf.output, state.steps)
                stack.callback(event_files.close)
                if self.checkpoint is None:
                    event_files.graph(workers.model)
            recorder = Recorder(state, workers, self.log, self.stopwatch, watch, event_files)
            observers = [*others, self.stopwatch, screen, recorder, checkpoints]
            if conf.train.profile is not None:
                profiler = Profiler(conf.output, conf.train.profile, state)
                stack.callback(profiler.close)
                observers.append(profiler)
            if self.daily is None:
                happening = train_passes(conf, state, workers)
            else:
                happening = train_days(conf, state, workers, self.daily)
            stack.callback(happening.close)
            for event in happening:
                for observer in observers:
                    observer.see(event)
            state.trained = True
            checkpoints.save_last()


def begin_run(
    conf: Conf, processes: OneProcess, overwrite: bool, accept: bool, stopwatch: Stopwatch
) -> Run:
    """A new run: the data is measured, and the model is built."""
    recipes.settings_of(conf.recipe, recipes.load(conf.recipe_name))
    start = warm_start.begin(conf)
    run_folder.refuse_foreign(conf.output)
    if not overwrite:
        # Before the data is measured: that may take long, and the output be read-only.
        log = Log(conf.output)
    record = [] if start is None else start.record
    with contextlib.nullcontext() if overwrite else end_recorded(log, RunState(), stopwatch):
        days = None
        if daily(conf):
            days = Daily(conf, record, days_left(conf, record, accept), accept)
        conf = with_batch_size(conf, days)
        # What is measured on the first day is valid for all days.
        of_first_day = conf_of_day(conf, None if days is None else days.first)
        model = new_model(conf, processes, start, of_first_day)
    if (advice := bfloat16_advice(conf.train, sum(model.dense.sizes))) is not None:
        say(advice)
    if overwrite:
        # Only now, when the conf and the data are known to make a model. The first window of each
        # split is read, for what training would raise for it later.
        for split in SPLITS:
            if of_first_day.data.source(split) is not None:
                next(windows(Source(of_first_day, split), features_of(conf, model)), None)
        run_folder.remove(conf.output, by_workers=conf.cluster.start is not None)
        log = Log(conf.output)
    state = RunState(days=record if days is None else days.record)
    if start is not None:
        # The clock continues from the old run's; schedules and epochs begin from scratch.
        state.steps, state.warm = start.checkpoint.step, start.report
        state.clock_days = list(start.checkpoint.clock.days)
    return Run(conf, processes, model, state, days, log, stopwatch)


def resume_run(
    plan: Plan, newest: Checkpoint, processes: OneProcess, accept: bool, stopwatch: Stopwatch
) -> Run:
    """The run of an output in the state of its newest checkpoint that is whole."""
    conf, days = plan.conf, None
    if daily(conf):
        days = Daily(conf, newest.days, plan.left, accept)
    # An imported checkpoint may leave its batch size open too.
    conf = with_batch_size(conf, days)
    checkpoint, model = resuming.load_newest(conf, newest, processes.load, plan.damaged)
    if days is not None and checkpoint.folder != newest.folder:
        days = Daily(conf, checkpoint.days, days_left(conf, checkpoint.days, accept), accept)
    say(f"resuming from {checkpoint.folder}")
    run_folder.refuse_foreign(conf.output)
    more = has_more_passes(conf, checkpoint)
    if more:
        # From here on the run is one that is not finished.
        files.remove_file(files.join(conf.output, run_folder.REPORT))
        model.recalibration = {}  # it was fitted to weights that are now trained on
    log = Log(conf.output, checkpoint.manifest.metrics.log_lines)
    if more:
        log.go_on()
    stopwatch.earlier = log.earlier_seconds
    state = resuming.state_of(conf, checkpoint, more)
    if days is not None:
        state.days, state.trained = days.record, not days.left
    # A report has the times of the process that trained the run.
    timing = None if plan.report is None else plan.report.timing
    return Run(conf, processes, model, state, days, log, stopwatch, checkpoint, timing)


def with_batch_size(conf: Conf, days: Daily | None) -> Conf:
    """A conf with the batch size that it gives, or else with one that fits its data.

    `days` get the same: they evaluate the model with it.
    """
    if conf.train.batch_size is not None:
        return conf
    with waiting("counting the rows of data.train"):
        choice = chosen(conf_of_day(conf, None if days is None else days.first))
    say(choice.sentence)
    conf = sized(conf, choice.batch_size)
    if days is not None:
        days.conf = conf
    return conf


def record_workers(log: Log, cluster: Cluster, step: int) -> None:
    """A line of the log when the run has another number of workers than before: at first 1."""
    workers = cluster.workers if cluster.start is not None else 1
    recorded = (line.get("workers") for line in reversed(log.events) if line["event"] == "workers")
    if workers != next(recorded, 1):
        log.add("workers", step=step, workers=workers)


def new_model(
    conf: Conf, processes: OneProcess, start: WarmStart | None, of_first_day: Conf
) -> Model:
    """The model that a new run begins with; inputs are measured on data.train of `of_first_day`."""
    measure = partial(statistics.measure, of_first_day)
    with waiting("measuring the training data"):
        measured = measure() if start is None else start.statistics(measure)
    model = processes.build(conf, measured)
    if start is not None:
        processes.fill(start, model)
    if conf.optimizer.updates == "all":
        with waiting("making every row of the training data"):
            insert_all_rows(model, features_of(conf, model))
    return model


def insert_all_rows(model: Model, features: Features) -> None:
    """Insert every row that training on data.train will use, with its initial weights.

    Ids that are counted (of a vocabulary, a modulo, buckets) are all inserted, used or not; for
    the others one pass over the data finds them. Raises Failure when the data cannot be read.
    """
    counts = counted_rows(model)
    check_memory(model, counts)
    for table, of_groups in zip(model.tables, counts, strict=True):
        for group, count in of_groups.items():
            insert_counted(table, group, count or 0)
    if all(count is not None for of_groups in counts for count in of_groups.values()):
        return
    size = model.conf.train.batch_rows
    parameters = Parameters(model)
    for window in windows(Source(model.conf, "train"), features):
        for batch in batches(window, np.arange(window.rows, dtype=np.uint32), size):
            parameters.find(batch, insert=True)


def counted_rows(model: Model) -> list[dict[int, int | None]]:
    """For each table, how many ids each group can have; None where they cannot be counted."""
    counts_of_tables: list[dict[int, int | None]] = []
    for layout in model.layout.tables:
        counts: dict[int, int | None] = {}
        for slot, group in zip(layout.slots, layout.group_of, strict=True):
            count = counted_ids(slot, model.conf.slots[slot], model.statistics)
            # Slots of one group have ids of one kind; buckets that are measured may differ.
            counts[group] = None if count is None else max(count, counts.get(group) or 0)
        counts_of_tables.append(counts)
    return counts_of_tables


def check_memory(model: Model, counts: list[dict[int, int | None]]) -> None:
    """Raise UserError when the rows of all `counts` need more memory than the machine has.

    `counts` has for each table the rows by group; groups with None are left out of the sum.
    """
    needed = sum(
        table.stride * sum(count or 0 for count in of_groups.values())
        for table, of_groups in zip(model.tables, counts, strict=True)
    )
    memory = memory_of_machine()
    if needed > memory:
        raise UserError(
            f"optimizer.updates=all makes every row before the first step: {needed:,} bytes, and "
            f"this machine has {memory:,}. Take a smaller size, or updates=touched"
        )


def insert_counted(table: SparseTable, group: int, count: int) -> None:
    """Insert the ids 0 .. count - 1 of a group."""
    batch = Workspace(table, [SlotPlan(group, "sum", 0)])
    for start in range(0, count, IDS_AT_A_TIME):
        ids = np.arange(start, min(start + IDS_AT_A_TIME, count), dtype=np.uint64)
        offsets = np.arange(len(ids) + 1, dtype=np.uint32)
        batch.find(ids, offsets, len(ids), insert=True)


@contextlib.contextmanager
def end_recorded(log: Log, state: RunState, stopwatch: Stopwatch) -> Iterator[None]:
    """End the log with the reason when training fails, is stopped, or is ended by an observer.

    A run that is resumed cuts that line off.
    """
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        event = STOPPED if isinstance(error, KeyboardInterrupt) else FAILED
        if isinstance(error, events.EndedError):
            event = PRUNED
        is_sentence = isinstance(error, UserError | Stopped | events.EndedError)
        # Where the log cannot be written either, `error` is what is reported.
        with contextlib.suppress(Failure, OSError):
            log.add(
                event,
                step=state.steps,
                reason=str(error) if is_sentence else f"{type(error).__name__}: {error}",
                timing=stopwatch.now(),
            )
            log.flush()
        raise


@contextlib.contextmanager
def interruption_reported(
    state: RunState, workers: Workers, checkpoints: Checkpoints, signals: Signals
) -> Iterator[None]:
    """Save and report what is done when training ends by a signal, or because memory runs out."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, Stopped):
            # The signal may have come outside of the loop.
            checkpoints.save_when_interrupted()
        if not signals.again:
            # A checkpoint that is being completed may still succeed; `error` is what is reported.
            with contextlib.suppress(Failure, Stopped):
                checkpoints.wait()
        saved = checkpoints.saved
        if isinstance(error, KeyboardInterrupt):
            code = error.exit_code if isinstance(error, Stopped) else 130
            way_on = "nothing is saved yet. Run the same command again to train from scratch"
            if saved:
                way_on = f"{saved} is saved. Run the same command again to resume"
            raise Stopped(f"stopped after step {state.steps:,}: {way_on}", code) from None
        if is_out_of_memory(error):
            raise OutOfMemory(
                error,
                RESUME_WITH_MORE,
                when=f"after step {state.steps:,}",
                held=table_words(workers.model),
                saved=saved,
            ) from error
        raise
