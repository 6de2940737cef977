"""`tnctl train`: start or resume a run, train it to its end, write the report."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial

import numpy as np

from tnctl import files
from tnctl.checkpoint.chain import FOLDER as CHECKPOINTS
from tnctl.checkpoint.chain import Checkpoint, newest_first, open_checkpoint
from tnctl.data import sources, statistics
from tnctl.data.bad_rows import SPLITS
from tnctl.data.batch_sizes import chosen, sized
from tnctl.data.batches import batches
from tnctl.data.day_records import DayRecord, Fingerprint
from tnctl.data.days import conf_of_day, daily
from tnctl.data.features import Features, counted_ids
from tnctl.data.sources import Source
from tnctl.data.windows import windows
from tnctl.errors import Failure, Stopped, UserError, exit_code_of, quoted
from tnctl.evaluation.split_scoring import features_of
from tnctl.limits import is_plain
from tnctl.manifest import DamagedError
from tnctl.masking import bare, is_masked
from tnctl.model import recipes
from tnctl.model.building import Model, bfloat16_advice, enable_determinism
from tnctl.model.parameters import Parameters
from tnctl.progress import say, waiting
from tnctl.schema import Cluster, Conf
from tnctl.system import RESUME_WITH_MORE, OutOfMemory, is_out_of_memory
from tnctl.tables import SlotPlan, SparseTable, Workspace
from tnctl.training import plan as plans
from tnctl.training import run_folder, schedule
from tnctl.training.check.forecast import memory_of_machine
from tnctl.training.days.daily import Daily, train_days
from tnctl.training.loop import EndedError, train_passes
from tnctl.training.monitoring import Monitor
from tnctl.training.observers import Observer, Profiler, Recorder, Screen, Stopwatch, WorkerWatch
from tnctl.training.plan import Plan, days_left, has_more_passes
from tnctl.training.report.final_report import write_report
from tnctl.training.report.report_document import Report, Timing
from tnctl.training.report.tensorboard import EventFile
from tnctl.training.row_life import table_words
from tnctl.training.run_folder import FAILED, PRUNED, STOPPED, Log
from tnctl.training.saving import Checkpoints
from tnctl.training.state import FROM_SCRATCH, RunState, saved_sums
from tnctl.training.warm import warm_start
from tnctl.training.warm.warm_start import WarmStart
from tnctl.training.workers import OneProcess, Signals, Workers

# What the user can do when the data of the pass under way is not available unchanged.
WAY_ON = (
    "go back to a checkpoint at the end of a pass (tnctl checkpoint list, tnctl rollback), or "
    f"{FROM_SCRATCH}"
)
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
    with files.locked(conf.output), Monitor(conf) as monitor:
        run_folder.check(conf)
        stopwatch = Stopwatch()
        plan = plans.plan(conf, overwrite, accept)
        if plan.kind == "finished" and plan.report is not None:
            if plan.checkpoint is not None:
                monitor.report(plan.report, plan.checkpoint.manifest.heads)
            say(f"{conf.output} {plan.why}: nothing to do (overwrite=true trains from scratch)")
            return plan.report
        if conf.train.deterministic:
            enable_determinism()
        if plan.checkpoint is None:
            run = begin_run(conf, processes, overwrite, accept, stopwatch)
        else:
            run = resume_run(plan, plan.checkpoint, processes, accept, stopwatch)
        record_workers(run.log, run.conf.cluster, run.state.steps)
        return run.to_its_end(golden, monitor, observer)


@dataclass
class TrainingRun:
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
        self,
        golden: int,
        monitor: Monitor,
        observer: Callable[[RunState], Observer] | None = None,
    ) -> Report:
        """Train all that is left, save it, and write the report."""
        conf, state = self.conf, self.state
        with Signals() as signals, end_recorded(self.log, state, self.stopwatch):
            workers = self.processes.workers(conf, self.model, state.steps, signals)
            del self.model  # the best one may take its place
            checkpoints = Checkpoints(
                conf, state, workers, self.log, self.stopwatch, golden, self.checkpoint
            )
            monitor.follow(conf, checkpoints)
            with interruption_reported(state, workers, checkpoints, signals):
                if not state.trained:
                    others = [observer(state)] if observer else []
                    self._train(workers, checkpoints, [*others, monitor])
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
            monitor.report(report, workers.model.heads)
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
) -> TrainingRun:
    """A new run: the data is measured, and the model is built."""
    recipes.settings_of(conf.recipe, recipes.load(conf.recipe_name))
    start = warm_start.begin(conf)
    run_folder.refuse_foreign(conf.output)
    if not overwrite:
        # Before the data is measured: that may take long, and the output be read-only.
        log = Log(conf.output)
    record = [] if start is None else start.record
    with contextlib.nullcontext() if overwrite else end_recorded(log, RunState(), stopwatch):
        left = days_left(conf, record, accept) if daily(conf) else []
        conf, of_first_day = with_batch_size(conf, record, left)
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
    days = Daily(conf, record, left, accept) if daily(conf) else None
    state = RunState(days=record if days is None else days.record)
    if start is not None:
        # The clock continues from the old run's; schedules and epochs begin from scratch.
        state.steps, state.warm = start.checkpoint.step, start.report
        state.clock_days = list(start.checkpoint.clock.days)
    return TrainingRun(conf, processes, model, state, days, log, stopwatch)


def resume_run(
    plan: Plan, newest: Checkpoint, processes: OneProcess, accept: bool, stopwatch: Stopwatch
) -> TrainingRun:
    """The run of an output in the state of its newest checkpoint that is whole."""
    # An imported checkpoint may leave its batch size open too.
    conf, _ = with_batch_size(plan.conf, newest.days, plan.left)
    checkpoint, model = load_newest(conf, newest, processes.load, plan.damaged)
    days: Daily | None = None
    left: Sequence[str] = plan.left
    if daily(conf):
        if checkpoint.folder != newest.folder:
            left = days_left(conf, checkpoint.days, accept)
        days = Daily(conf, checkpoint.days, left, accept)
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
    state = state_of(conf, checkpoint, more)
    if days is not None:
        state.days, state.trained = days.record, not days.left
    # A report has the times of the process that trained the run.
    timing = None if plan.report is None else plan.report.timing
    return TrainingRun(conf, processes, model, state, days, log, stopwatch, checkpoint, timing)


def load_newest(
    conf: Conf,
    checkpoint: Checkpoint,
    load: Callable[[Checkpoint, Conf], Model],
    damaged: Sequence[str] = (),
) -> tuple[Checkpoint, Model]:
    """The checkpoint to resume from, `checkpoint` or an older one, and its model.

    When its files are damaged the one before is taken, and so on, and that is reported; those that
    are passed over, and newer ones that are `damaged`, are moved to `damaged` under the output.
    Raises Failure when none is left, or when data has changed in the middle of which training was
    stopped.
    """
    damage: DamagedError | None = None
    passed = list(damaged)
    for folder in newest_first(files.join(conf.output, CHECKPOINTS)):
        if folder <= checkpoint.folder:
            try:
                candidate = open_checkpoint(folder)
                check_data(conf, candidate)
                saved_sums(candidate, classes=True)  # damage must be found before `passed` is
                model = load(candidate, conf)
            except DamagedError as error:
                say(str(error))
                damage = damage or error
            else:
                for unusable in passed:
                    run_folder.report_set_aside(conf.output, unusable)
                return candidate, model
            passed.append(folder)
    assert damage is not None
    raise plans.nothing_whole(conf.output, damage)


def check_data(conf: Conf, checkpoint: Checkpoint) -> None:
    """Raise Failure when data has changed in the middle of which a checkpoint was saved.

    Data of completed passes is not read again, and may change.
    """
    if not checkpoint.data:
        return
    # An earlier tnctl named the files of a glob by whole paths.
    source = Source(conf, "train")
    data = [replace(file, file=source.saved_name(file.file)) for file in checkpoint.data]
    earlier = {file.file: file for file in bare(data)}
    position = checkpoint.position
    source_now = Source(conf_of_day(conf, position.day), "train")
    try:
        fingerprints_now = source_now.fingerprints()
    except files.AbsentError as error:
        names = [source.url_of(file.file) for file in data if is_plain(file.file)]
        names = [name for name in names if not is_masked(name) and not files.exists(name)]
        if not names:
            raise
        raise Failure(
            f"{names[0]} is missing, and training stopped in the middle of it. Put it back, or "
            f"{WAY_ON}"
        ) from error
    current = {file.file: file for file in bare(list(fingerprints_now))}
    for name in [*earlier, *current]:
        if earlier.get(name) != current.get(name):
            raise Failure(
                f"{name} differs from when training stopped in the middle of the data: it was "
                f"{_in_words(earlier.get(name))}, and is {_in_words(current.get(name))}. Put the "
                f"old one back, or {WAY_ON}"
            )
    if list(earlier) != list(current):
        raise Failure(
            "the files of data.train come in another order than before training stopped. Name "
            f"them in the earlier order, or {WAY_ON}"
        )
    if position.units is not None:
        source_now.units_again(position.units, WAY_ON)


def _in_words(fingerprint: Fingerprint | None) -> str:
    if fingerprint is None:
        return "not among the files of data.train"
    size = "unknown" if fingerprint.bytes is None else f"{fingerprint.bytes:,}"
    words = f"of {size} bytes"
    if fingerprint.etag is not None:
        return f"{words} with etag {quoted(fingerprint.etag)}"
    modified = fingerprint.modified
    if isinstance(modified, int):
        with contextlib.suppress(ValueError, OverflowError, OSError):  # beyond the calendar
            modified = datetime.fromtimestamp(modified / 1e9, UTC).isoformat(sep=" ")
    return words if modified is None else f"{words}, modified {modified}"


def state_of(conf: Conf, checkpoint: Checkpoint, more: bool) -> RunState:
    """The state of a run that is resumed, with `more` passes than it was begun with.

    The best model is one whose checkpoint is still there.
    """
    state = RunState.restored(checkpoint, conf.train.loss)
    if state.trained and more:
        state.trained, state.recalibrated = False, None
    stopping, lost = state.stopping, state.stopping.best_step
    if not schedule.keeps_best(conf) or state.trained or stopping.best is None:
        return state
    if (
        run_folder.newest_whole(conf.output, lost, run_folder.names_of_chain(checkpoint.folder))
        is None
    ):
        stopping.best, stopping.best_step = None, 0
        say(f"the best model, of step {lost:,}, is lost; the next evaluation counts as the best")
    return state


def with_batch_size(
    conf: Conf, record: Sequence[DayRecord], left: Sequence[str]
) -> tuple[Conf, Conf]:
    """A conf with the batch size that it gives, or one that fits its data; and its first day's.

    What is measured on the first day is valid for all days.
    """
    first = None
    if daily(conf):
        first = left[0] if left else record[-1].day
    if conf.train.batch_size is None:
        with waiting("counting the rows of data.train"):
            choice = chosen(conf_of_day(conf, first))
        say(choice.sentence)
        conf = sized(conf, choice.batch_size)
    return conf, conf_of_day(conf, first)


def record_workers(log: Log, cluster: Cluster, step: int) -> None:
    """Log the number of workers when it has changed; a run begins with 1."""
    workers = cluster.workers if cluster.start is not None else 1
    recorded = (line.get("workers") for line in reversed(log.events) if line["event"] == "workers")
    if workers != (earlier := next(recorded, 1)):
        log.add("workers", step=step, workers=workers)
        if step:
            say(f"workers: {workers}, and {earlier} before; a step has the rows of all")


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
    if sources.files_of_slots(conf, "vectors"):
        with waiting("reading vectors"):
            processes.insert_vectors(model)
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
    if not any(None in of_groups.values() for of_groups in counts):
        return
    parameters, train = Parameters(model), Source(model.conf, "train")
    for window in windows(train, features):
        rows = np.arange(window.rows, dtype=np.uint32)
        for batch in batches(window, rows, model.conf.train.batch_rows):
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
        event, reason = FAILED, f"{type(error).__name__}: {error}"
        if isinstance(error, UserError | Stopped | EndedError):
            reason = str(error)
        if isinstance(error, KeyboardInterrupt | EndedError):
            event = PRUNED if isinstance(error, EndedError) else STOPPED
        # Where the log cannot be written either, `error` is what is reported.
        with contextlib.suppress(Failure, OSError):
            log.add(event, step=state.steps, reason=reason, timing=stopwatch.now())
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
            way_on = "nothing is saved yet. Run the same command again to train from scratch"
            if saved:
                way_on = f"{saved} is saved. Run the same command again to resume"
            stopped = f"stopped after step {state.steps:,}: {way_on}"
            raise Stopped(stopped, exit_code_of(error)) from None
        if is_out_of_memory(error):
            raise OutOfMemory(
                error,
                RESUME_WITH_MORE,
                when=f"after step {state.steps:,}",
                held=table_words(workers.model),
                saved=saved,
            ) from error
        raise
