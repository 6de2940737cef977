"""`tnctl train`: measure, build, passes of steps, evaluations, checkpoints, report."""

import contextlib
import gc
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from tnctl import documents, files
from tnctl.checkpoint.document import Epoch, Evaluation, Metrics, WarmReport
from tnctl.checkpoint.load import Checkpoint, load, open_checkpoint
from tnctl.checkpoint.save import Clock, Position
from tnctl.checkpoint.saver import Saver
from tnctl.data import statistics
from tnctl.data.bad_rows import Skipped
from tnctl.data.day_records import DayRecord, Fingerprint
from tnctl.data.days import conf_of_day, daily
from tnctl.data.features import Features, Window
from tnctl.data.prepared_document import SPLITS
from tnctl.data.sources import fingerprints
from tnctl.data.survey import count_rows
from tnctl.data.windows import ReadAhead, batches, order, window_rows, windows
from tnctl.errors import Failure, Stopped, UserError
from tnctl.masking import masked
from tnctl.model import recipes
from tnctl.model.building import Model, build, enable_determinism
from tnctl.model.graph import conf_to_json
from tnctl.ownership import Claims
from tnctl.progress import Display, say, size, waiting
from tnctl.schema import Conf
from tnctl.training import life, run, running, warm, watch
from tnctl.training.ablation import ablate, ablated_split
from tnctl.training.daily import Daily
from tnctl.training.evaluation import Counts, features_of, labelled_heads, reported_split, score
from tnctl.training.events import Events
from tnctl.training.first_rows import insert_rows
from tnctl.training.golden import Golden
from tnctl.training.inputs import input_rows, row_bytes
from tnctl.training.memory_watch import WAY_OUT, MemoryWatch, table_bytes, table_words
from tnctl.training.metrics import scalars
from tnctl.training.report import Best, Report, TableSize, Timing, page
from tnctl.training.running import Running
from tnctl.training.schedule import factor
from tnctl.training.signals import Signals
from tnctl.training.step import Inference, TrainingStep
from tnctl.training.watch import Watch

WINDOWS_AHEAD = 1
BATCHES_AHEAD = 4
STEPS_BETWEEN_UPDATES = 8
ABLATED_ROWS = 50_000  # for the report; `tnctl ablate` takes all
EVALUATING = "evaluating on data.{}"
GOES_ON = "{} is saved, and the same command goes on from there"
STARTS_ANEW = "nothing is saved yet, and the same command starts anew"


@dataclass
class Stopwatch:
    """Seconds spent, for the part of the report that no two runs share."""

    started: float = field(default_factory=time.perf_counter)
    training: float = 0.0
    waiting: float = 0.0
    evaluating: float = 0.0
    saving: float = 0.0
    examples: int = 0

    def seconds(self) -> float:
        return time.perf_counter() - self.started

    def timing(self) -> dict[str, float]:
        return {
            "seconds": round(self.seconds(), 3),
            "training_seconds": round(self.training, 3),
            "input_wait_seconds": round(self.waiting, 3),
            "evaluation_seconds": round(self.evaluating, 3),
            "save_seconds": round(self.saving, 3),
            "examples_per_second": round(self.examples / self.training, 1)
            if self.training
            else 0.0,
        }


def train(
    conf: Conf, *, overwrite: bool = False, golden: int = 200, accept: bool = False
) -> Report:
    """Train a conf to its end and return the report. A finished run is left as it is.

    With {day} in data.train the end is that of the last day that is there; `accept` trains days
    that came late, are empty or look broken. Raises `Stopped` after Ctrl-C or SIGTERM, with a
    checkpoint of the last step, and Failure while another process trains into the same output.
    """
    watch.check(conf)
    life.check(conf)
    warm.check(conf, overwrite)
    if accept and not daily(conf):
        raise UserError("accept=true is for days: data.train has no {day}. Leave it out")
    with files.locked(conf.output):
        return _train(conf, overwrite, golden, accept)


def _train(conf: Conf, overwrite: bool, golden: int, accept: bool) -> Report:
    by_day = daily(conf)
    run.refuse_data_in_places(conf)
    run.refuse_no_folders(conf.output)
    checkpoint = None if overwrite else run.start(conf)
    days = Daily(conf, checkpoint.days, accept) if by_day and checkpoint is not None else None
    if checkpoint is not None and (days is None or not days.left):
        report = run.finished(conf)
        # Of days since, a report may not have been written.
        if report is not None and (days is None or days.all_are_in(report)):
            what = "is finished" if days is None else "is trained on every day that is there"
            say(f"{conf.output} {what}: nothing to do (overwrite=true starts anew)")
            return report
    stopwatch = Stopwatch()
    if conf.train.deterministic:
        enable_determinism()
    start: warm.WarmStart | None = None
    if checkpoint is None:
        recipes.settings_of(conf.recipe, recipes.load(conf.recipe["name"]))
        start = warm.begin(conf)
        if overwrite:
            run.refuse_foreign(conf.output)
        else:  # before the data is measured: that may take long, and the output be read-only
            claims, log = run.new_log(conf.output)
        if by_day:
            days = Daily(conf, [] if start is None else start.record, accept)
        model = new_model(conf, start, None if days is None else days.first)
        if overwrite:
            # Only now, when the conf and the data are known to make a model.
            read_first_rows(conf, model, None if days is None else days.first)
            run.remove(conf.output)
            claims, log = run.new_log(conf.output)
    else:
        newest = checkpoint
        checkpoint, model = run.load_newest(conf, newest)
        if by_day and checkpoint.folder != newest.folder:
            days = Daily(conf, checkpoint.days, accept)
        say(f"going on from {checkpoint.folder}")
        claims = run.claims_of(conf.output)
        log = run.Log(conf.output, checkpoint.manifest.metrics.log_lines)
    with Trainer(conf, model, stopwatch, golden, log, claims, checkpoint, start, days) as trainer:
        trainer.train()
        return trainer.report()


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


class Trainer:
    """A model on its way through the data.

    What is to be known of the way when it is gone on later is in `position`, `running` and
    `metrics()`: a checkpoint has them, whenever it is written.
    """

    def __init__(
        self,
        conf: Conf,
        model: Model,
        stopwatch: Stopwatch,
        golden: int,
        log: run.Log,
        claims: Claims,
        checkpoint: Checkpoint | None,
        start: warm.WarmStart | None = None,
        daily: Daily | None = None,
    ) -> None:
        self.conf, self.model, self.stopwatch, self.log = conf, model, stopwatch, log
        self.features = features_of(conf, model)
        self.position = Position()
        self.epochs: list[Epoch] = []
        self.evaluations: list[Evaluation] = []
        self.days: list[DayRecord] = []
        self.clock_days: list[tuple[int, int]] = []
        self.watch = Watch()
        self.steps = 0
        self.trained = False
        self.best_is_loaded = False  # in the place of the last model, at the end
        # The checkpoint in force, and the one on its way to be; none at first.
        self.saved = self.going = ""
        self.saved_at: tuple[int, Position] = (0, self.position)
        # Of numbers that are no classes there is no AUC.
        self.classes = conf.train.loss.name != "mse"
        self.running: Running | None = None  # of the pass under way
        self.data: list[Fingerprint] = []  # the files of the pass under way
        self.warm: WarmReport | None = None  # what a warm start brought
        if start is not None:
            # The clock goes on with the checkpoint's; schedules begin anew.
            self.steps, self.warm = start.step, start.report
            self.days, self.clock_days = start.record, start.days
            self.saved_at = (self.steps, self.position)
        if checkpoint is not None:
            self._go_on_from(checkpoint)
        self.daily = daily
        if daily is not None:
            self.days = daily.record
            self.trained = checkpoint is not None and not daily.left
        self.saver = Saver(conf, checkpoint)
        self.best_is_due = False
        minutes = conf.save.every_minutes
        self.seconds_between_saves = math.inf if minutes is None else 60 * minutes
        self.next_save = time.monotonic() + self.seconds_between_saves
        self.signals = Signals()
        self.memory = MemoryWatch(model)
        self.step = TrainingStep(model, conf.train.batch_size)
        self.step.steps = self.steps
        self.inference = Inference(model, conf.train.batch_size)
        [(_, _, self.main_label), *_] = labelled_heads(model)
        self.golden_rows = golden
        self.golden = Golden(conf, model, 0)
        if daily is None or conf.data.validation is not None:
            self.golden = Golden(conf, model, golden)
        # What was found last, of the model as it is: (split, metrics, counts of the inputs).
        self.last: tuple[str, dict[str, Any], Counts] | None = None
        self.events: Events | None = None
        if conf.train.tensorboard or conf.train.profile is not None:
            self.events = Events(conf, self.steps, claims)
            if checkpoint is None:
                self.events.graph(model)

    def _go_on_from(self, checkpoint: Checkpoint) -> None:
        content = checkpoint.manifest
        metrics = content.metrics
        self.position, self.trained = checkpoint.position, content.finished
        self.steps = content.steps_trained
        self.epochs = list(metrics.epochs)
        self.evaluations = list(metrics.evaluations)
        self.warm = metrics.warm
        self.watch = Watch.from_state(metrics.watch)
        # Only at its end is a run's checkpoint of another step than the run.
        self.best_is_loaded = checkpoint.step < self.steps
        if self.conf.evaluation.keep == "best" and not self.trained:
            run.find_best(self.conf, checkpoint, self.watch, self.evaluations)
        self.days = checkpoint.days
        self.clock_days = list(checkpoint.clock.days)
        self.data = checkpoint.data
        self.saved = self.going = checkpoint.folder
        self.saved_at = (self.steps, self.position)
        self.running = running.read(checkpoint, self.classes)

    def __enter__(self) -> "Trainer":
        self.signals.__enter__()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        with contextlib.ExitStack() as at_last:
            at_last.callback(self.signals.__exit__)
            if self.events is not None:
                at_last.callback(self.events.close)
            if error is not None and not self.signals.again:
                # What went wrong is told; a checkpoint that is on its way may still arrive.
                with contextlib.suppress(Failure, Stopped):
                    self.wait_until_saved()
        if isinstance(error, KeyboardInterrupt):
            code = error.exit_code if isinstance(error, Stopped) else 130
            goes_on = GOES_ON.format(self.saved) if self.saved else STARTS_ANEW
            raise Stopped(f"stopped after step {self.steps:,}: {goes_on}", code) from None
        if isinstance(error, MemoryError):
            place = f"{self.saved} is saved. {WAY_OUT}" if self.saved else WAY_OUT
            reason = f" ({error})" if str(error) else ""
            raise Failure(
                f"out of memory after step {self.steps:,}{reason}: {table_words(self.model)}. "
                f"{place}"
            ) from error

    def train(self) -> None:
        """All that is left to be trained, and saved."""
        with self.saved_when_stopped():
            if not self.trained:
                self.saver.check_room(self.model)
                if self.daily is None:
                    self.train_data(self.conf)
                else:
                    self.train_days(self.daily)
                self.trained = True
                self.save_last()
            self.signals.impatient()

    @contextlib.contextmanager
    def saved_when_stopped(self) -> Iterator[None]:
        """A signal inside ends with a checkpoint of what is done."""
        try:
            yield
        except Stopped:
            if not self.signals.again:
                self.save_what_is_new()
            raise

    @property
    def first_step(self) -> int:
        """The steps that were done before this run: those of the checkpoint of a warm start."""
        return 0 if self.warm is None else self.warm.step

    def train_days(self, daily: Daily) -> None:
        """The days that are left, each saved at its end but the last: that is for the caller."""
        while daily.left:
            if daily.under_way is None:
                self.begin_day(daily, daily.left[0])
            entry = daily.record[-1]
            conf = conf_of_day(self.conf, entry.day)
            if entry.rows:
                if self.conf.data.validation is None:
                    self.golden = Golden(conf, self.model, self.golden_rows)
                self.train_data(conf)
            self.end_day(daily)
            if daily.left:
                self.save()

    def begin_day(self, daily: Daily, day: str) -> None:
        """Evaluate the model on a day, and let the day begin. Raises Failure where it may not."""
        started = time.perf_counter()
        before = self.clock_days[-1][0] if self.clock_days else 0
        entry = daily.begin(day, self.inference, self.steps, before, self.signals.check)
        # Rows of a warm start from before there were days are as old as the first day.
        first_step = entry.first_step if self.clock_days else 1
        self.clock_days.append((entry.number, first_step))
        for table in self.model.tables:
            table.set_days(self.clock_days)
        self.position, self.last = replace(self.position, day=day), None
        if self.events is not None and entry.before is not None:
            self.events.metrics(self.steps, entry.before, "next_day")
        self.stopwatch.evaluating += time.perf_counter() - started

    def end_day(self, daily: Daily) -> None:
        """What a day's end brings; the position is that of the next day."""
        if not daily.record[-1].rows:
            daily.evicted(life.end_of_period(self.model))
        summary = documents.plain(daily.end(self.steps))
        self.position = Position(passes=self.position.passes)
        self.log.add("day", step=self.steps, **summary, timing=self.stopwatch.timing())

    def train_data(self, conf: Conf) -> None:
        """The passes over data.train of a conf that are left, or as many as early stopping allows.

        Saved after each but the last one: that is for the caller to do, when all is done that
        follows from it.
        """
        while self.position.epoch < conf.train.epochs:
            stops = self.epoch(conf, self.position.epoch)
            if stops or self.position.epoch == conf.train.epochs:
                break
            self.save()

    def epoch(self, conf: Conf, epoch: int) -> bool:
        """What is left of a pass over the data, and an evaluation; whether training stops early."""
        figures = self.train_pass(conf, epoch)
        if self.daily is not None:
            figures = replace(figures, day=self.position.day)
        # Before the evaluation, so that what is saved is what was measured.
        if self.daily is None or epoch + 1 == conf.train.epochs:
            removed = life.end_of_period(self.model)
            if self.daily is not None:
                self.daily.evicted(removed)
            if gone := sum(removed.values()):
                self.last = None
                left = sum(table.rows for table in self.model.tables)
                say(f"{gone:,} rows were evicted; {left:,} stay")
        if self.conf.data.validation is not None:
            if not self.evaluations or self.evaluations[-1].step != self.steps:
                self.evaluate_while_training(epoch)
            figures = replace(figures, validation=self.evaluations[-1].validation)
        self.epochs.append(figures)
        stops = self.watch.stops(self.conf)
        if stops and epoch + 1 < conf.train.epochs:
            say(
                f"stopped early: {self.watch.without} evaluations without a better "
                f"{self.conf.evaluation.monitor} than {self.watch.best:.5f}"
            )
        self.log.add("epoch", **documents.plain(figures), timing=self.stopwatch.timing())
        if self.events is not None:
            self.events.flush()
        at = self.position
        self.position = Position(at.day, epoch + 1, window=0, offset=0, passes=at.passes + 1)
        self.running, self.data = None, []
        return stops

    def train_pass(self, conf: Conf, epoch: int) -> Epoch:
        """The steps that are left of a pass; the figures are of predictions made before each."""
        if self.running is None:
            self.running, self.data = Running(self.classes), fingerprints(conf, "train")
        progress = Progress(self, epoch, self.running)
        skipped = Skipped("train", conf.data.bad_rows)
        at = self.position
        source = training_batches(
            conf, self.features, at.passes, skipped, start=at.window, offset=at.offset
        )
        title = f"epoch {epoch + 1}/{conf.train.epochs}"
        if at.day is not None:
            title = f"{at.day}  {title}" if conf.train.epochs > 1 else at.day
        total, guessed = self.rows_to_train(conf)
        done = self.running.examples
        with (
            Display(title, total, guessed, done) as display,
            ReadAhead(source, BATCHES_AHEAD) as ahead,
            # Here too, for reading may hang, and ending it waits for it.
            self.saved_when_stopped(),
        ):
            for number, batch in enumerate(self.signals.watching(ahead)):
                # What is due between two steps waits for the second: where there is none, the end
                # of the pass does it.
                progress.apart += self.between_steps(epoch)
                if self.watch.stops(conf):
                    break
                self.train_step(batch, self.running)
                if number % STEPS_BETWEEN_UPDATES == 0:
                    self.saver.check()
                    display.update(self.running.examples, progress.shown(ahead.seconds_waited))
                if logged(self.steps):
                    progress.log(ahead.seconds_waited)
            display.update(self.running.examples, progress.shown(ahead.seconds_waited))
            display.finish()
            self.stopwatch.waiting += ahead.seconds_waited
        self.stopwatch.training += progress.seconds()
        self.stopwatch.examples += progress.examples
        return Epoch(
            epoch=epoch + 1,
            step=self.steps,
            examples=self.running.examples,
            loss=self.running.loss,
            running_auc=self.running.area(),
            skipped_rows=skipped.rows if conf.data.bad_rows else None,
        )

    def train_step(self, batch: Window, sums: Running) -> None:
        """One step, after which the position is behind its batch."""
        self.step.rate_factor = factor(
            self.conf.optimizer.schedule, self.steps - self.first_step, self.watch.plateau
        )
        if self.events is not None:
            self.events.before_step(self.steps + 1)
        result = self.step(batch)
        self.steps, self.last = self.step.steps, None
        self.position = behind(self.position, batch.rows, window_rows(self.conf))
        if self.events is not None:
            self.events.after_step(self.steps)
        label = self.main_label
        sums.add(result.loss, result.logits[:, label], batch.labels[:, label])

    def between_steps(self, epoch: int) -> float:
        """The evaluation and the checkpoint that are due before the next step; their seconds."""
        started = time.perf_counter()
        every = self.conf.evaluation.every_steps
        done = self.evaluations[-1].step if self.evaluations else self.first_step
        if every is not None and self.steps % every == 0 and self.steps > done:
            self.evaluate_while_training(epoch)
        every = self.conf.save.every_steps
        due = every is not None and self.steps % every == 0
        due = due or time.monotonic() >= self.next_save
        if self.best_is_due or (due and self.steps > self.saved_at[0]):
            self.save()
        if (shortage := self.memory.shortage(self.model)) is not None:
            self.save_what_is_new()
            self.wait_until_saved()
            raise Failure(
                f"stopped after step {self.steps:,} before memory runs out: {shortage}. "
                f"{self.saved} is saved. {WAY_OUT}"
            )
        return time.perf_counter() - started

    def rows_to_train(self, conf: Conf) -> tuple[int | None, bool]:
        """How many rows a pass has if that is known, and whether it is a guess."""
        if self.epochs and conf is self.conf:
            return self.epochs[-1].examples, False
        if conf.data.negatives < 1:
            return None, False
        if self.daily is not None:
            return self.daily.record[-1].rows, False
        found = count_rows(conf, "train")
        return (None, False) if found is None else (round(found.estimate), found.low < found.high)

    def evaluate_while_training(self, epoch: int) -> None:
        """Evaluate on data.validation, and see what follows from it.

        Raises Failure when something depends on a metric that the labels do not give.
        """
        started = time.perf_counter()
        metrics = self.evaluate("validation", between=self.signals.check)
        monitor = self.conf.evaluation.monitor
        if monitor in metrics:
            better = self.watch.judge(self.conf, metrics[monitor], self.steps)
        elif watch.matters(self.conf):
            raise Failure(
                f"evaluation.monitor={monitor} is of labels 0 and 1, and data.validation has "
                "others. Take evaluation.monitor=mse"
            )
        else:
            better = False
        kept = scalars(metrics)
        evaluation = Evaluation(step=self.steps, epoch=epoch + 1, validation=kept)
        self.evaluations.append(evaluation)
        timing = {
            "seconds": round(self.stopwatch.seconds(), 3),
            "evaluation_seconds": round(time.perf_counter() - started, 3),
        }
        self.log.add("evaluation", **documents.plain(evaluation), better=better, timing=timing)
        self.log.flush()
        if self.events is not None:
            self.events.metrics(self.steps, kept)
            self.events.weights(self.steps, self.model)
            self.events.flush()
        self.best_is_due = better and self.conf.evaluation.keep == "best"

    def evaluate(self, split: str, between: Callable[[], None] | None = None) -> dict[str, Any]:
        """Exact metrics of a split by the model as it is; `between` is called after each batch."""
        if self.last is not None and self.last[0] == split:
            return self.last[1]
        started = time.perf_counter()
        counts = Counts(self.model.layout)
        with waiting(EVALUATING.format(split)):
            metrics = score(
                self.inference, self.conf, split, counts=counts, between=between
            ).metrics()
        self.last = (split, metrics, counts)
        self.stopwatch.evaluating += time.perf_counter() - started
        names = ("auc", "gauc", "logloss", "mse") if "logloss" not in metrics else (
            "auc", "gauc", "logloss"
        )  # fmt: skip
        shown = [f"{name} {metrics[name]:.4f}" for name in names if name in metrics]
        if "reference_auc" in metrics:
            shown.insert(1, f"reference {metrics['reference_auc']:.4f}")
        say(f"{split}  {'  '.join(shown)}")
        return metrics

    def metrics(self) -> Metrics:
        """What a checkpoint keeps of the training so far."""
        return Metrics(
            steps=self.steps,
            epochs=tuple(self.epochs),
            evaluations=tuple(self.evaluations),
            watch=self.watch.state(),
            warm=self.warm,
            log_lines=len(self.log.events),
        )

    def save(self, *, full: bool = False, model_step: int | None = None) -> None:
        """A checkpoint of the model and of the way it went.

        `model_step` is the step that the model is of, when training has gone further.
        """
        started = time.perf_counter()
        self.log.flush()
        extras = {} if self.running is None else {running.NAME: self.running.to_bytes()}
        best = self.watch.best_step if self.watch.best is not None else None
        with waiting("saving a checkpoint"):
            self.saver.protect(best)
            folder = self.saver.save(
                self.model,
                clock=Clock(
                    self.steps if model_step is None else model_step, tuple(self.clock_days)
                ),
                position=self.position,
                finished=self.trained,
                golden=self.golden.lines(self.inference),
                metrics=self.metrics(),
                extras=extras,
                # They are written while training goes on.
                data=tuple(self.data),
                days=tuple(self.days),
                full=full,
                name_step=self.steps,
            )
        # The one before is committed, or this one had not begun.
        self.saved, self.going = self.going, files.join(self.conf.output, folder)
        self.saved_at, self.best_is_due = (self.steps, self.position), False
        self.next_save = time.monotonic() + self.seconds_between_saves
        self.stopwatch.saving += time.perf_counter() - started

    def save_last(self) -> None:
        """The checkpoint that a run ends with, of the model that is kept."""
        best = self.watch.best_step
        if self.conf.evaluation.keep == "last" or self.watch.best is None or best == self.steps:
            self.save()
            return
        self.saver.wait()
        # Every byte is read before the last model is dropped, for it may have to be kept.
        if not run.is_whole(self.conf.output, best, run.names_of_chain(self.going), read=True):
            say(f"the best model, of step {best:,}, is lost; the last one is kept instead")
            self.save(full=True)
            return
        self.load_best()
        self.save(full=True, model_step=best)

    def save_what_is_new(self) -> None:
        """A checkpoint, if there were steps since the last one."""
        if self.saved_at != (self.steps, self.position):
            self.save()

    def wait_until_saved(self) -> None:
        """What was saved last is in force afterwards."""
        self.saver.wait()
        self.saved = self.going

    def load_best(self) -> None:
        """Put the best model in the place of the last one, which is dropped first."""
        folder = run.newest_of_step(self.conf.output, self.watch.best_step)
        assert folder is not None
        say(f"keeping the model of step {self.watch.best_step:,}, the best")
        del self.model, self.step, self.inference
        self.last = None
        gc.collect()
        self.model = load(open_checkpoint(folder), self.conf)
        self.inference = Inference(self.model, self.conf.train.batch_size)
        self.best_is_loaded = True

    def report(self) -> Report:
        """Evaluate the model that was kept; write report.html, and report.json as the last."""
        split = reported_split(self.conf)
        figures: dict[str, Any] = {} if split is None else self.evaluate(split)
        counts = None if self.last is None else self.last[2]
        importance: dict[str, float] = {}
        of_what = ""
        on = ablated_split(self.conf)
        if self.conf.evaluation.ablate and on is not None:
            with waiting(f"measuring what each input is worth on data.{on}"):
                found = ablate(self.inference, self.conf, on, ABLATED_ROWS)
            importance = {one.name: one.loss for one in found.inputs}
            of_what = f"{found.metric} on data.{on}"
        self.wait_until_saved()
        report = Report(
            metrics=figures,
            split=split,
            steps=self.steps,
            warm=self.warm,
            epochs=tuple(self.epochs),
            evaluations=tuple(self.evaluations),
            days=None if self.daily is None else tuple(self.daily.summaries()),
            best=self.best(),
            tables={
                layout.name: TableSize(rows=table.rows, bytes=round(table.rows * row_bytes(table)))
                for layout, table in zip(self.model.layout.tables, self.model.tables, strict=True)
            },
            life=life.figures(self.model) or None,
            dense_weights=sum(self.model.dense.sizes),
            importance=importance or None,
            importance_of=of_what if importance else None,
            checkpoint=self.going.removeprefix(files.join(self.conf.output, "")),
            timing=self.timing(),
        )
        report = masked(report)
        html = page.render(
            masked(self.conf.output),
            conf_to_json(self.conf),
            report,
            self.log.lines(),
            input_rows(self.model, counts, importance),
        )
        self.log.flush()
        files.write_bytes(files.join(self.conf.output, run.PAGE), html.encode())
        files.write_bytes(files.join(self.conf.output, run.REPORT), report.to_bytes())
        return report

    def timing(self) -> Timing:
        """What depends on the clock."""
        return Timing(
            **self.stopwatch.timing(),
            save_stalled_seconds=round(self.saver.seconds_stalled, 3),
            save_waited_seconds=round(self.saver.seconds_waited, 3),
            saved_bytes=self.saver.bytes_written,
            table_bytes=table_bytes(self.model),
        )

    def best(self) -> Best | None:
        """The best evaluation, and whether its model is the one that is kept; None without one."""
        if self.watch.best is None:
            return None
        return Best(
            monitor=self.conf.evaluation.monitor,
            value=self.watch.best,
            step=self.watch.best_step,
            kept=self.best_is_loaded or self.watch.best_step == self.steps,
        )


class Progress:
    """What is told of a pass on its way, by what this process has seen of it."""

    def __init__(self, trainer: Trainer, epoch: int, sums: Running) -> None:
        self._trainer, self._epoch, self._sums = trainer, epoch, sums
        self._before = sums.examples
        self._started = time.perf_counter()
        self.apart = 0.0  # seconds of evaluations and checkpoints

    @property
    def examples(self) -> int:
        return self._sums.examples - self._before

    def seconds(self) -> float:
        return time.perf_counter() - self._started - self.apart

    def shown(self, waited: float) -> dict[str, str]:
        """The pass so far, as the display shows it."""
        seconds, sums = self.seconds(), self._sums
        tables, held = self._trainer.model.tables, table_bytes(self._trainer.model)
        figures = {
            "examples": f"{sums.examples:,}",
            "examples/s": f"{self.examples / seconds:,.0f}",
            "loss": f"{sums.loss:.4f}",
        }
        if (area := sums.area()) is not None:
            figures["auc"] = f"{area:.4f}"
        figures["rows"] = f"{sum(table.rows for table in tables):,} ({size(held)})"
        figures |= life.shown(self._trainer.model)
        # The rest of the time is that of the steps.
        figures["waited"] = f"{min(waited / seconds, 1):.0%}"
        if self._trainer.step.rate_factor != 1:
            figures["rate"] = f"× {self._trainer.step.rate_factor:.4g}"
        return figures

    def log(self, waited: float) -> None:
        """A line of log.jsonl about the steps since the one before."""
        trainer, seconds = self._trainer, self.seconds()
        figures = {
            "loss": self._sums.loss_since(),
            "running_auc": self._sums.area(),
            "rate_factor": trainer.step.rate_factor,
            "rows": sum(table.rows for table in trainer.model.tables),
        }
        speed = self.examples / seconds
        trainer.log.add(
            "step",
            step=trainer.steps,
            epoch=self._epoch + 1,
            examples=self._sums.examples,
            **figures,
            timing={
                "seconds": round(trainer.stopwatch.seconds(), 3),
                "examples_per_second": round(speed, 1),
                "input_wait_share": round(min(waited / seconds, 1), 4),
            },
        )
        if trainer.events is not None:
            told = {f"train/{name}": value for name, value in figures.items() if value is not None}
            trainer.events.scalars(trainer.steps, {**told, "train/examples_per_second": speed})


def logged(steps: int) -> bool:
    """Whether a step gets a line in log.jsonl: often at first, then every 1000 steps."""
    return steps % (10 if steps <= 1000 else 100 if steps <= 10_000 else 1000) == 0


def behind(position: Position, rows: int, window: int) -> Position:
    """The position behind a batch of so many rows; windows are whole, but the last."""
    offset = position.offset + rows
    return replace(position, window=position.window + offset // window, offset=offset % window)


def training_batches(
    conf: Conf,
    features: Features,
    passes: int,
    skipped: Skipped | None = None,
    *,
    start: int = 0,
    offset: int = 0,
) -> Iterator[Window]:
    """The batches of a pass in their shuffled order, windows read one ahead.

    `passes` seeds the order: how many there were before. It begins `offset` rows behind the
    beginning of window `start`, which is where a batch ends.
    """
    source = windows(conf, features, "train", start=start, skipped=skipped)
    with ReadAhead(source, WINDOWS_AHEAD) as ahead:
        for number, window in enumerate(ahead, start):
            chosen = order(conf, passes, number, window.rows)
            yield from batches(window, chosen[offset:], conf.train.batch_size)
            offset = 0
