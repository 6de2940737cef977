"""The interface between the training loop and the processes that train, and one such process."""

import contextlib
import gc
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tnctl.checkpoint.document import Position
from tnctl.checkpoint.load import Checkpoint, load, open_checkpoint
from tnctl.checkpoint.owners import LocalOwners, Owners
from tnctl.data.bad_rows import Skipped
from tnctl.data.batches import Batch
from tnctl.data.read_ahead import ReadAhead
from tnctl.data.statistics import Statistics
from tnctl.data.unit_batches import training_batches
from tnctl.data.unit_records import Progress
from tnctl.evaluation.inference import Inference
from tnctl.evaluation.input_figures import NormSum, norm_sums
from tnctl.evaluation.metrics import Scored
from tnctl.evaluation.platt_scaling import recalibrated
from tnctl.evaluation.split_scoring import (
    BatchCounter,
    Counts,
    features_of,
    labelled_heads,
    score,
    unshuffled,
)
from tnctl.model.building import Model, build
from tnctl.model.table_figures import TableFigures, table_figures
from tnctl.progress import waiting
from tnctl.schema import Conf
from tnctl.training import row_life
from tnctl.training.row_life import MemoryWatch
from tnctl.training.signals import Signals
from tnctl.training.state import PassPosition, PassSums, RunState
from tnctl.training.step import SeenLabels, TrainingStep
from tnctl.training.warm.warm_start import WarmStart
from tnctl.training.worker_figures import ExchangeFigures, WorkerFigures

BATCHES_AHEAD = 4


@dataclass(frozen=True)
class SplitMetrics:
    """Exact metrics of a split by the current model, and how often each input is present."""

    split: str
    metrics: dict[str, Any]
    counts: Counts
    seconds: float
    """spent on them; 0 when they were known already"""


class Batches(Protocol):
    """A pass over the training data, batch by batch."""

    @property
    def seconds_waited(self) -> float:
        """How long training waited for data."""

    @property
    def position(self) -> Position:
        """Where the pass is after the last step that was trained."""

    def wait(self) -> bool:
        """Wait for the next batch; False when the pass has no more. Raises Stopped on a signal."""

    def train(self, rate_factor: float, sums: PassSums) -> None:
        """Train a step on the next batch, and add its figures to the sums of the pass."""


class Workers(Protocol):
    """The processes that train a model: all that the training loop and the days use of them.

    `LocalWorkers` is this process alone. An implementation for several machines does the same on
    all of them: a call returns when every process has done its part.
    """

    @property
    def steps(self) -> int:
        """The steps trained so far."""

    @property
    def model(self) -> Model:
        """The model: its network, the layout of its rows, and the tables of this process."""

    @property
    def labels(self) -> SeenLabels:
        """The labels of what this process has trained since a pass began or was resumed."""

    @property
    def inference(self) -> Inference:
        """Logits of the current model, between steps."""

    @property
    def owners(self) -> Owners:
        """The same processes, as those that write the rows of a checkpoint."""

    def figures(self) -> list[TableFigures]:
        """What the tables hold at the moment, of all processes together."""

    def worker_figures(self) -> list[WorkerFigures]:
        """What each of several processes owns and did, by rank; empty with one process."""

    def exchanged(self) -> ExchangeFigures | None:
        """For which of several processes the others waited; None with one process."""

    def shortage(self) -> str | None:
        """What is wrong when the tables of a process may not have room to grow, else None."""

    def batches(
        self, conf: Conf, position: Position, skipped: Skipped
    ) -> contextlib.AbstractContextManager[Batches]:
        """What is left after a position of a pass over data.train of a conf.

        `skipped` counts the rows that cannot be read, and refuses too many.
        """

    def evaluate(self, split: str) -> SplitMetrics:
        """Exact metrics of a split; of the last evaluation if the model has not changed since."""

    def recalibrate(self) -> SplitMetrics:
        """Recalibrate the heads of the model by data.validation, anew; its metrics after that.

        A signal is not looked at meanwhile: the model that is saved next must be complete.
        """

    def look(self, conf: Conf, counter: BatchCounter, *, scored: bool) -> Scored | None:
        """One pass over data.train of a conf in file order, read-only: its logits when `scored`.

        Each batch is passed to `counter`.
        """

    def contains(
        self, table: int, groups: NDArray[np.uint16], ids: NDArray[np.uint64]
    ) -> NDArray[np.bool_]:
        """Which of n keys of a table, by its number, have a row: bool [n]. Between steps."""

    def embedding_norms(self) -> dict[str, NormSum]:
        """The norms of embeddings, by slot, of a sample of the rows."""

    def set_days(self, days: Sequence[tuple[int, int]]) -> None:
        """The number and the first step of each day, for rows that decay or age by days."""

    def set_counting(self, counting: bool) -> None:
        """Whether the steps from now on count occurrences: those of the first pass over data do."""

    def end_of_period(self) -> dict[str, int]:
        """Evict the rows that the end of a day or epoch evicts; how many, by share group."""

    def settle(self, state: RunState) -> None:
        """Finish what is under way: the model and the state are those of the last step."""

    def load(self, folder: str) -> None:
        """Replace the trained model, which is dropped first, by a checkpoint's model.

        The loaded model can be evaluated and saved, and not be trained any more.
        """


def look_at_training_data(
    conf: Conf,
    inference: Inference,
    counter: BatchCounter,
    *,
    scored: bool,
    between: Callable[[], None],
) -> Scored | None:
    """`Workers.look` by this process alone; `between` is called after every batch."""
    # The model is evaluated on all examples, even if it is trained on a part of the negatives.
    conf = replace(conf, data=replace(conf.data, negatives=1.0))
    if scored:
        return score(inference, conf, "train", counter=counter, between=between)
    with unshuffled(conf, inference.model, "train") as ahead:
        for batch in ahead:
            counter.add(batch)
            between()
    return None


class LocalBatches:
    """A pass over the training data in this process."""

    def __init__(
        self,
        ahead: ReadAhead[tuple[Batch, Progress]],
        of_pass: PassPosition,
        signals: Signals,
        step: TrainingStep,
        label: int,
    ) -> None:
        self._ahead, self._signals, self._step, self._label = ahead, signals, step, label
        self._of_pass = of_pass
        self._next: tuple[Batch, Progress] | None = None

    @property
    def seconds_waited(self) -> float:
        return self._ahead.seconds_waited

    @property
    def position(self) -> Position:
        return self._of_pass.position

    def wait(self) -> bool:
        self._next = self._signals.next_of(self._ahead)
        if self._next is None:
            self._of_pass.report_skipped()
        return self._next is not None

    def train(self, rate_factor: float, sums: PassSums) -> None:
        assert self._next is not None
        batch, progress = self._next
        self._step.rate_factor = rate_factor
        result, labels = self._step(batch), batch.labels
        sums.add(result.loss, result.logits[:, self._label], labels[:, self._label])
        self._of_pass.add(progress)


class LocalWorkers:
    """One process trains, and it is this one."""

    def __init__(self, conf: Conf, model: Model, steps: int, signals: Signals) -> None:
        """`steps` were trained before."""
        self._conf, self._signals = conf, signals
        self.model, self.inference = model, Inference(model, conf.train.batch_rows)
        self.owners = LocalOwners(conf)
        self._memory = MemoryWatch(model)
        self._features = features_of(conf, model)
        self._step: TrainingStep | None = TrainingStep(model, conf.train.batch_rows, steps)
        self._trained_steps = steps  # as long as there is no step that knows it
        # Of the current model, by the step after which they were computed.
        self._last_metrics: tuple[int, SplitMetrics] | None = None

    @property
    def steps(self) -> int:
        return self._trained_steps if self._step is None else self._step.steps

    @property
    def labels(self) -> SeenLabels:
        assert self._step is not None
        return self._step.labels

    def figures(self) -> list[TableFigures]:
        return table_figures(self.model)

    def worker_figures(self) -> list[WorkerFigures]:
        return []

    def exchanged(self) -> None:
        return None

    def shortage(self) -> str | None:
        return self._memory.shortage(self.model)

    @contextlib.contextmanager
    def batches(self, conf: Conf, position: Position, skipped: Skipped) -> Iterator[LocalBatches]:
        assert self._step is not None
        self._step.labels = SeenLabels()
        of_pass = PassPosition(conf, position, 1, skipped)
        [remainders] = of_pass.dealt()
        source = training_batches(conf, self._features, position.passes, remainders, skipped)
        [(_, _, main_label), *_] = labelled_heads(self.model)
        with ReadAhead(source, BATCHES_AHEAD) as ahead:
            yield LocalBatches(ahead, of_pass, self._signals, self._step, main_label)

    def evaluate(self, split: str) -> SplitMetrics:
        if self._last_metrics is not None:
            step, known = self._last_metrics
            if (step, known.split) == (self.steps, split):
                return replace(known, seconds=0.0)
        started, counts = time.perf_counter(), Counts(self.model.layout)
        with waiting(f"evaluating on data.{split}"):
            scored = score(
                self.inference, self._conf, split, counter=counts, between=self._signals.check
            )
            metrics = scored.metrics()
        measured = SplitMetrics(split, metrics, counts, time.perf_counter() - started)
        self._last_metrics = self.steps, measured
        return measured

    def recalibrate(self) -> SplitMetrics:
        split, started, counts = "validation", time.perf_counter(), Counts(self.model.layout)
        self.model.recalibration = {}
        with waiting(f"recalibrating on data.{split}"):
            scored = score(self.inference, self._conf, split, counter=counts)
            halved = self._conf.data.source("test") is None
            self.model.recalibration, scored = recalibrated(scored, halved=halved)
            metrics = scored.metrics()
        measured = SplitMetrics(split, metrics, counts, time.perf_counter() - started)
        self._last_metrics = self.steps, measured
        return measured

    def look(self, conf: Conf, counter: BatchCounter, *, scored: bool) -> Scored | None:
        return look_at_training_data(
            conf, self.inference, counter, scored=scored, between=self._signals.check
        )

    def contains(
        self, table: int, groups: NDArray[np.uint16], ids: NDArray[np.uint64]
    ) -> NDArray[np.bool_]:
        return self.model.tables[table].contains(groups, ids)

    def embedding_norms(self) -> dict[str, NormSum]:
        return norm_sums(self.model)

    def set_days(self, days: Sequence[tuple[int, int]]) -> None:
        for table in self.model.tables:
            table.set_days(days)
        self._last_metrics = None

    def set_counting(self, counting: bool) -> None:
        for table in self.model.tables:
            table.set_counting(counting)

    def end_of_period(self) -> dict[str, int]:
        removed = row_life.end_of_period(self.model)
        if any(removed.values()):
            self._last_metrics = None
        return removed

    def settle(self, state: RunState) -> None:
        """Nothing is under way between two steps."""

    def load(self, folder: str) -> None:
        self._trained_steps, self._step, self._last_metrics = self.steps, None, None
        del self.model, self.inference
        gc.collect()
        self.model = load(open_checkpoint(folder), self._conf)
        self.inference = Inference(self.model, self._conf.train.batch_rows)


class OneProcess:
    """The process that will train a run, this one, while its model is made.

    A subclass is several processes.
    """

    def build(self, conf: Conf, statistics: Statistics) -> Model:
        """A model with initial weights and empty tables."""
        return build(conf, statistics)

    def fill(self, start: WarmStart, model: Model) -> None:
        """Give the model that was built what a warm start begins with, and report it.

        Raises UserError where it cannot take that, Failure for a damaged checkpoint.
        """
        start.fill(model)

    def load(self, checkpoint: Checkpoint, conf: Conf) -> Model:
        """The model of a checkpoint. Raises DamagedError."""
        return load(checkpoint, conf)

    def workers(self, conf: Conf, model: Model, steps: int, signals: Signals) -> Workers:
        """The processes with the model that was built or loaded; `steps` were trained before."""
        return LocalWorkers(conf, model, steps, signals)
