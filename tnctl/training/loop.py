"""The training loop: passes over the data, steps, evaluations.

`train_passes` yields what happens and knows no display, log, checkpoint or day: whoever iterates
over it reacts to each event before the loop continues (tnctl/training/run.py). Days are
trained one after the other by tnctl/training/days/daily.py.
"""

import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace

from tnctl.checkpoint.document import Epoch, EvaluationEntry, Position
from tnctl.data.bad_rows import Skipped
from tnctl.data.column_names import label_keys
from tnctl.data.day_records import DayRecord
from tnctl.data.sources import Source
from tnctl.errors import Failure, Stopped, quoted
from tnctl.evaluation.metrics import scalars
from tnctl.evaluation.split_scoring import labelled_heads
from tnctl.schema import AUTO, Conf, Data, Train
from tnctl.training import schedule
from tnctl.training.schedule import factor, is_crossed
from tnctl.training.state import PassSums, RunState, has_classes
from tnctl.training.workers import Batches, SplitMetrics, Workers

MANY = 100_000  # examples after which labels of one class are probably a mistake


@dataclass(frozen=True)
class Visit:
    """What passes over data train: some labels, or all; `rows` counts the data, if known.

    With `again` the data was trained before, on other labels: nothing of it counts, and no id gets
    a row.
    """

    labels: tuple[str, ...] | None = None
    rows: int | None = None
    again: bool = False


EVERYTHING = Visit()


class EndedError(Exception):
    """Raised by an observer that ends the run, with its reason: this is no failure."""


@dataclass
class PassUnderWay:
    """A pass over the training data, as far as this process has trained it."""

    epoch: int
    title: str
    sums: PassSums
    batches: Batches
    rows: int | None
    """the rows of the whole pass, if known"""
    rows_are_estimated: bool
    examples_at_start: int
    """examples trained before this process resumed the pass"""
    started: float = field(default_factory=time.perf_counter)
    seconds_paused: float = 0.0
    """spent between steps: evaluations and checkpoints"""
    rate_factor: float = 1.0

    @property
    def examples(self) -> int:
        """The examples that this process trained on."""
        return self.sums.examples - self.examples_at_start

    @property
    def seconds_training(self) -> float:
        return time.perf_counter() - self.started - self.seconds_paused

    @property
    def speed(self) -> float:
        """Examples that this process trained on, per second."""
        return self.examples / self.seconds_training

    @property
    def waited(self) -> float:
        """The share of the time that was spent waiting for data; the rest was spent in steps."""
        return min(self.batches.seconds_waited / self.seconds_training, 1)


@dataclass(frozen=True)
class DayLooked:
    """The model was evaluated on a day that it will be trained on."""

    record: DayRecord
    seconds: float


@dataclass(frozen=True)
class LateTrained:
    """A day was trained on late labels; the model was evaluated on it before, for `seconds`."""

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
    index: int
    """of the step, among the steps of this pass that this process trained"""


@dataclass(frozen=True)
class LabelsEqual:
    """A label has one value in many rows; `source` is where it comes from, in keys of the conf."""

    source: str
    only: float
    where: str
    """which rows these are, in words"""


@dataclass(frozen=True)
class PassTrained:
    """The last step of a pass is done; its evaluation is still to come."""

    current: PassUnderWay


@dataclass(frozen=True)
class Evaluated:
    """data.validation was evaluated."""

    evaluation: EvaluationEntry
    measured: SplitMetrics
    is_best: bool
    seconds: float


@dataclass(frozen=True)
class RowsEvicted:
    """The rules for the end of a day or epoch were applied: rows removed, by share group."""

    removed: dict[str, int]


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
    """A signal arrived: the steps done must be saved now, before the loop waits for data again."""


Event = (
    DayLooked
    | LateTrained
    | DayStarts
    | PassStarts
    | BetweenSteps
    | StepDone
    | LabelsEqual
    | PassTrained
    | Evaluated
    | RowsEvicted
    | PassEnds
    | DayEnds
    | Interrupted
)
Events = Generator[Event, None, None]


# ---- The loop ------------------------------------------------------------------


def train_passes(
    conf: Conf, state: RunState, workers: Workers, visit: Visit = EVERYTHING
) -> Events:
    """The passes over data.train that are left, or as many as early stopping allows.

    `state` is kept up to date with each event. Raises Stopped after `Interrupted`, and Failure for
    data that cannot be read, or when something depends on a metric that the labels do not give.
    """
    while state.position.epoch < conf.train.most_passes:
        epoch, is_resumed = state.position.epoch + 1, state.sums is not None
        figures = yield from _train_pass(conf, state, workers, visit)
        if epoch == 1:
            yield from _main_label_equal(conf.data, state, workers, figures)
            if not is_resumed:  # then this process has trained the first rows too
                yield from _further_labels_equal(conf.data, workers, figures)
        # Rows are evicted before the evaluation, so that the evaluated model is the saved one.
        of_day = state.position.day is not None
        ends = epoch >= schedule.most_passes(conf.train, figures.examples, of_day=of_day)
        if not of_day or (ends and not visit.again):
            yield RowsEvicted(workers.end_of_period())
        if conf.data.source("validation") is not None:
            if not state.evaluations or state.evaluations[-1].step != state.steps:
                yield _evaluate(conf, state, workers)
            figures = replace(figures, validation=state.evaluations[-1].validation)
        state.epochs.append(figures)
        state.position = Position(state.position.day, epoch, passes=state.position.passes + 1)
        state.sums, state.data = None, []
        stops = state.stopping.stops(conf.evaluation.patience)
        yield PassEnds(figures, stops and not ends, is_last=stops or ends)
        if stops or ends:
            return


def _train_pass(
    conf: Conf, state: RunState, workers: Workers, visit: Visit
) -> Generator[Event, None, Epoch]:
    """The steps that are left of a pass; the figures are of predictions made before each."""
    if state.sums is None:
        state.sums = PassSums(has_classes(conf.train.loss))
        state.data = Source(conf, "train").fingerprints()
    epoch, sums = state.position.epoch, state.sums
    skipped = Skipped("train", conf.data.bad_rows)
    rows, estimated = _rows_to_train(conf, state, visit)
    title = _title(conf.train, state.position, visit)
    # Later passes read the same examples again, and each example counts once.
    workers.set_counting(epoch == 0 and not visit.again, not visit.again)
    labels = visit.labels or tuple(conf.data.all_labels)
    with workers.batches(conf, state.position, skipped, labels) as batches:
        current = PassUnderWay(epoch, title, sums, batches, rows, estimated, sums.examples)
        try:
            yield from _train_batches(conf, state, workers, current)
        except Stopped:
            # Before the reader is closed, for reading may hang, and closing it waits for it.
            yield Interrupted()
            raise
    workers.settle(state)
    return Epoch(
        epoch=epoch + 1,
        step=state.steps,
        examples=sums.examples,
        loss=sums.loss,
        running_auc=sums.area(),
        skipped_rows=skipped.rows if conf.data.bad_rows else None,
        day=state.position.day,
        labels=visit.labels,
    )


def _main_label_equal(data: Data, state: RunState, workers: Workers, figures: Epoch) -> Events:
    """Raises Failure when the main head's label has one value in all rows of a pass."""
    only = state.sums.only_label if state.sums is not None else None
    if only is not None:
        source = _source_of_label(data, workers, figures.labels)
        if figures.day is None:
            raise Failure(
                f"with {source} the label is {only} in all {figures.examples:,} rows of "
                "data.train, and nothing can be learned. `tnctl check` shows what the column has; "
                "mend it, or name another"
            )
        # A day may have one class alone.
        yield LabelsEqual(source, only, f"all {figures.examples:,} rows of {figures.day}")


def _further_labels_equal(data: Data, workers: Workers, figures: Epoch) -> Events:
    """The labels of further heads that have one value in all rows that this process trained."""
    seen = workers.labels
    for head, (_, _, column) in enumerate(labelled_heads(workers.model, figures.labels)):
        if head > 0 and (only := seen.only(column)) is not None:
            where = f"all {seen.rows:,} rows that this process trained"
            yield LabelsEqual(_source_of_label(data, workers, figures.labels, head), only, where)


def _source_of_label(
    data: Data, workers: Workers, labels: Sequence[str] | None = None, head: int = 0
) -> str:
    """Where the label of a head comes from, in keys of the conf; of the heads of `labels`."""
    _, _, column = labelled_heads(workers.model, labels)[head]
    key, label = list(label_keys(data).items())[column]
    source = f"{key}.column={label.column}"
    if label.positive is not None:
        return f"{source} {key}.positive=[{', '.join(map(quoted, label.positive))}]"
    return source if label.above is None else f"{source} {key}.above={label.above:g}"


def _train_batches(conf: Conf, state: RunState, workers: Workers, current: PassUnderWay) -> Events:
    """The steps that are left of a pass.

    With train.epochs=auto and many rows the second pass is on trial: it ends at `trial_step` when
    the evaluation there is not better (`schedule.trial_step`).
    """
    yield PassStarts(current)
    batches, index, earlier = current.batches, 0, state.steps - 1
    every, trial_step = conf.evaluation.every_steps, None
    if state.epochs:
        passes = state.position.epoch
        trial_step = schedule.trial_step(conf.train, passes, state.epochs[0], state.first_step)
    # What is due after a step (an evaluation, a checkpoint) is done when the next batch is ready.
    # After the last step there is none: train_passes does it at the end of the pass.
    while batches.wait():
        paused = time.perf_counter()
        ends_trial = trial_step is not None and earlier < trial_step <= state.steps
        if ends_trial or _evaluation_is_due(every, state, earlier):
            yield _evaluate(conf, state, workers)
        earlier = state.steps
        yield BetweenSteps()
        current.seconds_paused += time.perf_counter() - paused
        if ends_trial and state.stopping.without:
            state.stopping.end_now(conf.evaluation)
        if state.stopping.stops(conf.evaluation.patience):
            break
        current.rate_factor = factor(
            conf.optimizer.schedule,
            state.steps - state.first_step,
            state.stopping.plateau,
            _share_of_pass(conf, state, current.rows),
        )
        examples = current.sums.examples
        batches.train(current.rate_factor, current.sums)
        state.steps, state.position = workers.steps, batches.position
        yield StepDone(current, index)
        is_first_pass = state.position.epoch == 0 and state.position.day is None
        if is_first_pass and examples < MANY <= current.sums.examples:
            only = current.sums.only_label
            if only is not None:
                where = f"the first {current.sums.examples:,} rows"
                yield LabelsEqual(_source_of_label(conf.data, workers), only, where)
        index += 1
    yield PassTrained(current)


def _share_of_pass(conf: Conf, state: RunState, rows: int | None) -> float:
    """The part of a pass that is trained, 0 where its rows are not known.

    By its steps: several workers know the examples of a step only when the next one is done.
    """
    steps = state.steps - (state.epochs[-1].step if state.epochs else state.first_step)
    workers = conf.cluster.workers if conf.cluster.start is not None else 1
    return steps * conf.train.batch_rows * (workers or 1) / rows if rows else 0.0


def _title(train: Train, position: Position, visit: Visit) -> str:
    epochs, title = train.epochs, f"epoch {position.epoch + 1}"
    if epochs != AUTO:
        title += f"/{epochs}"
    if position.day is None:
        return title
    day = f"{position.day}  {', '.join(visit.labels or ())}" if visit.again else position.day
    return day if epochs in (1, AUTO) else f"{day}  {title}"


def _rows_to_train(conf: Conf, state: RunState, visit: Visit) -> tuple[int | None, bool]:
    """How many rows a pass has if that is known, and whether it is an estimate."""
    if state.epochs and state.position.day is None:
        return state.epochs[-1].examples, False
    if conf.data.negatives < 1:
        return None, False
    if visit.rows is not None:
        return visit.rows, False
    count = Source(conf, "train").count()
    return (None, False) if count is None else (round(count.estimate), count.low < count.high)


def _evaluation_is_due(every_steps: int | None, state: RunState, earlier: int) -> bool:
    """`earlier` are the steps at the look before this one."""
    if every_steps is None or not is_crossed(every_steps, earlier, state.steps):
        return False
    return state.steps > (state.evaluations[-1].step if state.evaluations else state.first_step)


def _evaluate(conf: Conf, state: RunState, workers: Workers) -> Evaluated:
    """Evaluate on data.validation, and record the result in the state."""
    started = time.perf_counter()
    workers.settle(state)
    measured = workers.evaluate("validation")
    monitor, is_best = conf.evaluation.monitor, False
    if monitor in measured.metrics:
        # An undefined value, such as the AUC of one class, says nothing about the model.
        if (value := measured.metrics[monitor]) is not None:
            is_best = state.stopping.judge(
                conf.evaluation, conf.optimizer.schedule, value, state.steps
            )
    elif schedule.matters(conf):
        raise Failure(
            f"evaluation.monitor={monitor} is of labels 0 and 1, and data.validation has "
            "others. Take evaluation.monitor=mse"
        )
    evaluation = EvaluationEntry(
        step=state.steps, epoch=state.position.epoch + 1, validation=scalars(measured.metrics)
    )
    state.evaluations.append(evaluation)
    return Evaluated(evaluation, measured, is_best, time.perf_counter() - started)
