"""The training loop: days, passes over the data, steps, evaluations.

`train` yields what happened. It knows nothing of displays, logs and checkpoints: whoever iterates
over it does what an event asks for before the loop continues (tnctl/training/train.py).
"""

import time
from collections.abc import Generator
from dataclasses import dataclass, field, replace

from tnctl.checkpoint.document import Epoch, Evaluation, Position
from tnctl.data.bad_rows import Skipped
from tnctl.data.day_records import DayRecord
from tnctl.data.days import conf_of_day
from tnctl.data.row_estimates import count_rows
from tnctl.data.sources import fingerprints
from tnctl.data.windows import window_rows
from tnctl.errors import Failure, Stopped
from tnctl.evaluation.metrics import scalars
from tnctl.schema import Conf
from tnctl.training import early_stopping
from tnctl.training.days.daily import Daily
from tnctl.training.pass_sums import PassSums
from tnctl.training.schedule import factor
from tnctl.training.state import RunState, has_classes
from tnctl.training.workers import Batches, SplitMetrics, Workers


@dataclass
class PassUnderWay:
    """A pass over the training data, by what this process has seen of it."""

    epoch: int
    title: str
    sums: PassSums
    batches: Batches
    rows: int | None
    """what the pass has in all, if that is known"""
    rows_are_estimated: bool
    examples_at_start: int
    """those trained on before this process resumed the pass"""
    started: float = field(default_factory=time.perf_counter)
    seconds_paused: float = 0.0
    """spent between steps: evaluations and checkpoints"""
    rate_factor: float = 1.0

    @property
    def examples(self) -> int:
        """Those that this process trained on."""
        return self.sums.examples - self.examples_at_start

    @property
    def seconds_training(self) -> float:
        return time.perf_counter() - self.started - self.seconds_paused


@dataclass(frozen=True)
class DayLooked:
    """The model was evaluated on a day that it is to be trained on."""

    record: DayRecord
    seconds: float


@dataclass(frozen=True)
class DayStarts:
    """The passes over a day begin, or are resumed; `conf` reads the files of that day."""

    conf: Conf


@dataclass(frozen=True)
class PassStarts:
    current: PassUnderWay


@dataclass(frozen=True)
class BetweenSteps:
    """The next batch is ready, and nothing of it is trained yet."""


@dataclass(frozen=True)
class StepDone:
    current: PassUnderWay
    number: int
    """of the pass, in this process, from 0"""


@dataclass(frozen=True)
class PassTrained:
    """The last step of a pass is done; its evaluation is still to come."""

    current: PassUnderWay


@dataclass(frozen=True)
class Evaluated:
    """data.validation was evaluated."""

    evaluation: Evaluation
    measured: SplitMetrics
    is_best: bool
    seconds: float


@dataclass(frozen=True)
class RowsEvicted:
    removed: int


@dataclass(frozen=True)
class PassEnds:
    """`is_last`: of its day, or of the run."""

    figures: Epoch
    stops_early: bool
    is_last: bool


@dataclass(frozen=True)
class DayEnds:
    record: DayRecord
    is_last: bool


@dataclass(frozen=True)
class Interrupted:
    """A signal came: what is done has to be saved now, before data is waited for again."""


Event = (
    DayLooked
    | DayStarts
    | PassStarts
    | BetweenSteps
    | StepDone
    | PassTrained
    | Evaluated
    | RowsEvicted
    | PassEnds
    | DayEnds
    | Interrupted
)
Events = Generator[Event, None, None]


def train(conf: Conf, state: RunState, workers: Workers, daily: Daily | None = None) -> Events:
    """Train all that is left; `state` is kept up to date with each event.

    Raises Stopped after `Interrupted`, Failure for data that cannot be read, for a day that may
    not be trained on, and when something depends on a metric that the labels do not give.
    """
    try:
        if daily is None:
            yield from _train_passes(conf, state, workers, None)
        else:
            yield from _train_days(conf, state, workers, daily)
    except Stopped:
        yield Interrupted()
        raise
    state.trained = True


def _train_days(conf: Conf, state: RunState, workers: Workers, daily: Daily) -> Events:
    while daily.left:
        if daily.under_way is None:
            started = time.perf_counter()
            record = _begin_day(state, workers, daily, daily.left[0])
            yield DayLooked(record, time.perf_counter() - started)
        record = daily.record[-1]
        if record.rows:
            conf_of_record = conf_of_day(conf, record.day)
            yield DayStarts(conf_of_record)
            yield from _train_passes(conf_of_record, state, workers, daily)
        else:
            daily.evicted(workers.end_of_period())
        summary = daily.end(state.steps)
        state.position = Position(passes=state.position.passes)
        yield DayEnds(summary, is_last=not daily.left)


def _begin_day(state: RunState, workers: Workers, daily: Daily, day: str) -> DayRecord:
    previous = state.clock_days[-1][0] if state.clock_days else 0
    record = daily.begin(day, workers, state.steps, previous)
    # Rows of a warm start from before there were days are as old as the first day.
    first_step = record.first_step if state.clock_days else 1
    state.clock_days.append((record.number, first_step))
    workers.set_days(state.clock_days)
    state.position = replace(state.position, day=day)
    return record


def _train_passes(conf: Conf, state: RunState, workers: Workers, daily: Daily | None) -> Events:
    """The passes over data.train that are left, or as many as early stopping allows."""
    while state.position.epoch < conf.train.epochs:
        epoch = state.position.epoch
        figures = yield from _train_pass(conf, state, workers, daily)
        if daily is not None:
            figures = replace(figures, day=state.position.day)
        # Before the evaluation, so that what is saved is what was measured.
        if daily is None or epoch + 1 == conf.train.epochs:
            removed = workers.end_of_period()
            if daily is not None:
                daily.evicted(removed)
            if rows := sum(removed.values()):
                yield RowsEvicted(rows)
        if conf.data.validation is not None:
            if not state.evaluations or state.evaluations[-1].step != state.steps:
                yield _evaluate(conf, state, workers)
            figures = replace(figures, validation=state.evaluations[-1].validation)
        state.epochs.append(figures)
        stops = state.stopping.stops(conf)
        passes = state.position.passes + 1
        state.position = Position(state.position.day, epoch + 1, passes=passes)
        state.sums, state.data = None, []
        is_last = stops or epoch + 1 == conf.train.epochs
        yield PassEnds(figures, stops and epoch + 1 < conf.train.epochs, is_last)
        if is_last:
            return


def _train_pass(
    conf: Conf, state: RunState, workers: Workers, daily: Daily | None
) -> Generator[Event, None, Epoch]:
    """The steps that are left of a pass; the figures are of predictions made before each."""
    if state.sums is None:
        state.sums, state.data = PassSums(has_classes(conf)), fingerprints(conf, "train")
    epoch, sums = state.position.epoch, state.sums
    skipped = Skipped("train", conf.data.bad_rows)
    rows, estimated = rows_to_train(conf, state, daily)
    with workers.batches(conf, state.position, skipped) as batches:
        title = _title(conf, state.position)
        current = PassUnderWay(epoch, title, sums, batches, rows, estimated, sums.examples)
        try:
            yield PassStarts(current)
            number = 0
            # What is due between two steps waits for the second: where there is none, the end of
            # the pass does it.
            while batches.wait():
                paused = time.perf_counter()
                if _evaluation_is_due(conf, state):
                    yield _evaluate(conf, state, workers)
                yield BetweenSteps()
                current.seconds_paused += time.perf_counter() - paused
                if state.stopping.stops(conf):
                    break
                current.rate_factor = factor(
                    conf.optimizer.schedule, state.steps - state.first_step, state.stopping.plateau
                )
                consumed = batches.rows
                batches.train(current.rate_factor, sums)
                state.steps = workers.steps
                state.position = behind(state.position, consumed, window_rows(conf))
                yield StepDone(current, number)
                number += 1
            yield PassTrained(current)
        except Stopped:
            # Before the reader is closed, for reading may hang, and closing it waits for it.
            yield Interrupted()
            raise
    return Epoch(
        epoch=epoch + 1,
        step=state.steps,
        examples=sums.examples,
        loss=sums.loss,
        running_auc=sums.area(),
        skipped_rows=skipped.rows if conf.data.bad_rows else None,
    )


def _title(conf: Conf, position: Position) -> str:
    title = f"epoch {position.epoch + 1}/{conf.train.epochs}"
    if position.day is None:
        return title
    return f"{position.day}  {title}" if conf.train.epochs > 1 else position.day


def rows_to_train(conf: Conf, state: RunState, daily: Daily | None) -> tuple[int | None, bool]:
    """How many rows a pass has if that is known, and whether it is an estimate."""
    if state.epochs and daily is None:
        return state.epochs[-1].examples, False
    if conf.data.negatives < 1:
        return None, False
    if daily is not None:
        return daily.record[-1].rows, False
    count = count_rows(conf, "train")
    return (None, False) if count is None else (round(count.estimate), count.low < count.high)


def _evaluation_is_due(conf: Conf, state: RunState) -> bool:
    every = conf.evaluation.every_steps
    last = state.evaluations[-1].step if state.evaluations else state.first_step
    return every is not None and state.steps % every == 0 and state.steps > last


def _evaluate(conf: Conf, state: RunState, workers: Workers) -> Evaluated:
    """Evaluate on data.validation, and take it into the state."""
    started = time.perf_counter()
    measured = workers.evaluate("validation")
    monitor, is_best = conf.evaluation.monitor, False
    if monitor in measured.metrics:
        is_best = state.stopping.judge(conf, measured.metrics[monitor], state.steps)
    elif early_stopping.matters(conf):
        raise Failure(
            f"evaluation.monitor={monitor} is of labels 0 and 1, and data.validation has "
            "others. Take evaluation.monitor=mse"
        )
    evaluation = Evaluation(
        step=state.steps, epoch=state.position.epoch + 1, validation=scalars(measured.metrics)
    )
    state.evaluations.append(evaluation)
    return Evaluated(evaluation, measured, is_best, time.perf_counter() - started)


def behind(position: Position, rows: int, window: int) -> Position:
    """The position behind a batch of so many rows; windows are whole, but the last."""
    offset = position.offset + rows
    return replace(position, window=position.window + offset // window, offset=offset % window)
