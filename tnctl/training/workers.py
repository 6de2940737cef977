"""The processes that train a model, as the training loop uses them: here it is this one alone."""

import contextlib
import gc
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl.checkpoint.chain import Checkpoint, open_checkpoint
from tnctl.checkpoint.document import Position
from tnctl.checkpoint.load import load
from tnctl.checkpoint.owners import LocalOwners, Owners
from tnctl.data.bad_rows import Skipped
from tnctl.data.batches import Batch
from tnctl.data.read_ahead import ReadAhead
from tnctl.data.statistics_document import Statistics
from tnctl.data.unit_records import Progress
from tnctl.data.windows import training_batches
from tnctl.evaluation.importance import NormSum, norm_sums
from tnctl.evaluation.inference import Inference
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
from tnctl.model.parameter_tables import TableFigures, table_figures
from tnctl.progress import waiting
from tnctl.schema import Conf
from tnctl.training import row_life, row_vectors
from tnctl.training.report.worker_figures import WorkerSums
from tnctl.training.row_life import MemoryWatch
from tnctl.training.signals import Signals
from tnctl.training.state import PassPosition, PassSums, RunState
from tnctl.training.step import SeenLabels, TrainingStep
from tnctl.training.warm.warm_start import WarmStart

BATCHES_AHEAD = 4


@dataclass(frozen=True)
class SplitMetrics:
    """Exact metrics of a split by the current model, and how often each input is present."""

    split: str
    metrics: dict[str, Any]
    counts: Counts
    seconds: float
    """spent on them; 0 when they were known already"""


@dataclass
class Batches:
    """A pass over the training data, batch by batch. Several processes have a subclass.

    `position` is where the pass is after the last step that was trained, `label` the column of the
    label whose predictions are summed up.
    """

    ahead: ReadAhead[tuple[Batch, Progress]]
    of_pass: PassPosition
    signals: Signals
    step: TrainingStep
    label: int

    def __post_init__(self) -> None:
        self.position = self.of_pass.position
        self._next: tuple[Batch, Progress] | None = None

    @property
    def seconds_waited(self) -> float:
        """How long training waited for data."""
        return self.ahead.seconds_waited

    def wait(self) -> bool:
        """Wait for the next batch; False when the pass has no more. Raises Stopped on a signal."""
        self._next = self.signals.next_of(self.ahead)
        if self._next is None:
            self.of_pass.report_skipped()
        return self._next is not None

    def train(self, rate_factor: float, sums: PassSums) -> None:
        """Train a step on the next batch, and add its figures to the sums of the pass."""
        assert self._next is not None
        batch, progress = self._next
        self.step.rate_factor = rate_factor
        result, labels = self.step(batch), batch.labels
        sums.add(result.loss, result.logits[:, self.label], labels[:, self.label])
        self.of_pass.add(progress)
        self.position = self.of_pass.position


class Workers:
    """The processes that train a model: all that the training loop and the days use of them.

    Here it is this process alone. A subclass is several processes, and does the same on all of
    them: a call returns when every process has done its part.
    """

    def __init__(self, conf: Conf, model: Model, steps: int, signals: Signals) -> None:
        """`steps` were trained before."""
        self._conf, self.signals = conf, signals
        self.owners: Owners = LocalOwners(conf)
        """the same processes, as those that write the rows of a checkpoint"""
        self._memory = MemoryWatch(model)
        # Of the current model, by the step after which they were computed.
        self._last_metrics: tuple[int, SplitMetrics] | None = None
        self._step: TrainingStep | None = TrainingStep(model, conf.train.batch_rows, steps)
        self._trained_steps = steps  # as long as there is no step that knows it
        self._use(model)

    def _use(self, model: Model) -> None:
        self._model, self._inference = model, Inference(model, self._conf.train.batch_rows)

    @property
    def steps(self) -> int:
        """The steps trained so far."""
        return self._trained_steps if self._step is None else self._step.steps

    @property
    def model(self) -> Model:
        """The model: its network, the layout of its rows, and the tables of this process."""
        return self._model

    @property
    def labels(self) -> SeenLabels:
        """The labels of what this process has trained since a pass began or was resumed."""
        assert self._step is not None
        return self._step.labels

    @property
    def inference(self) -> Inference:
        """Logits of the current model, between steps."""
        return self._inference

    def figures(self) -> list[TableFigures]:
        """What the tables hold at the moment, of all processes together."""
        return table_figures(self.model)

    def sums(self) -> WorkerSums | None:
        """What each of several processes owns and did, by rank; None with one process."""
        return None

    def shortage(self) -> str | None:
        """What is wrong when the tables of a process may not have room to grow, else None."""
        return self._memory.shortage(self.model)

    @contextlib.contextmanager
    def batches(
        self, conf: Conf, position: Position, skipped: Skipped, labels: Sequence[str]
    ) -> Iterator[Batches]:
        """What is left after a position of a pass over data.train of a conf, to train `labels`.

        `skipped` counts the rows that cannot be read, and refuses too many.
        """
        assert self._step is not None
        self._step.train_on(labels)
        of_pass = PassPosition(conf, position, 1, skipped)
        [remainders] = of_pass.dealt()
        features = features_of(self._conf, self.model)
        source = training_batches(conf, features, position.passes, remainders, skipped)
        [(_, _, main_label), *_] = labelled_heads(self.model, labels)
        with ReadAhead(source, BATCHES_AHEAD) as ahead:
            yield Batches(ahead, of_pass, self.signals, self._step, main_label)

    def score(self, split: str, between: Callable[[], None]) -> tuple[Scored, Counts]:
        """The logits of a split, and how often each input is present in it.

        `between` is called after every batch.
        """
        counts = Counts(self.model.layout)
        return score(self.inference, self._conf, split, counter=counts, between=between), counts

    def evaluate(self, split: str) -> SplitMetrics:
        """Exact metrics of a split; of the last evaluation if the model has not changed since."""
        if self._last_metrics is not None:
            step, known = self._last_metrics
            if (step, known.split) == (self.steps, split):
                return replace(known, seconds=0.0)
        started = time.perf_counter()
        with waiting(f"evaluating on data.{split}"):
            scored, counts = self.score(split, self.signals.check)
            return self._measured(split, scored, counts, started)

    def recalibrate(self) -> SplitMetrics:
        """Recalibrate the heads of the model by data.validation, anew; its metrics after that.

        A signal is not looked at meanwhile: the model that is saved next must be complete.
        """
        split, started = "validation", time.perf_counter()
        self.model.recalibration = {}  # other processes get it with each evaluation
        with waiting(f"recalibrating on data.{split}"):
            scored, counts = self.score(split, lambda: None)
            halved = self._conf.data.source("test") is None
            self.model.recalibration, scored = recalibrated(scored, halved=halved)
            return self._measured(split, scored, counts, started)

    def _measured(self, split: str, scored: Scored, counts: Counts, started: float) -> SplitMetrics:
        metrics = scored.metrics()
        measured = SplitMetrics(split, metrics, counts, time.perf_counter() - started)
        self._last_metrics = self.steps, measured
        return measured

    def look(self, conf: Conf, counter: BatchCounter, *, scored: bool) -> Scored | None:
        """One pass over data.train of a conf in file order, read-only: its logits when `scored`.

        Each batch is passed to `counter`. Also of several processes this one reads the data alone:
        what counters keep depends on the order of rows.
        """
        # The model is evaluated on all examples, even if it is trained on a part of the negatives.
        conf = replace(conf, data=replace(conf.data, negatives=1.0))
        inference, between = self.inference, self.signals.check
        if scored:
            return score(inference, conf, "train", counter=counter, between=between)
        with unshuffled(conf, self.model, "train") as ahead:
            for batch in ahead:
                counter.add(batch)
                between()
        return None

    def contains(
        self, table: int, groups: NDArray[np.uint16], ids: NDArray[np.uint64]
    ) -> NDArray[np.bool_]:
        """Which of n keys of a table, by its position, have a row: bool [n]. Between steps."""
        return self.model.tables[table].contains(groups, ids)

    def embedding_norms(self) -> dict[str, NormSum]:
        """The norms of embeddings, by slot, of a sample of the rows."""
        return norm_sums(self.model)

    def set_days(self, days: Sequence[tuple[int, int]]) -> None:
        """The number and the first step of each day, for rows that decay or age by days."""
        for table in self.model.tables:
            table.set_days(days)
        self._last_metrics = None

    def set_counting(self, counting: bool, inserting: bool) -> None:
        """Whether the steps from now on count occurrences: only a first pass over data does.

        And whether ids without a row get one.
        """
        for table in self.model.tables:
            table.set_counting(counting)
            table.set_inserting(inserting)

    def end_of_period(self) -> dict[str, int]:
        """Evict the rows that the end of a day or epoch evicts; how many, by share group."""
        removed = row_life.end_of_period(self.model)
        if any(removed.values()):
            self._last_metrics = None
        return removed

    def settle(self, state: RunState) -> None:
        """Finish what is under way: the model and the state are then of the last step."""

    def load(self, folder: str) -> None:
        """Replace the trained model, which is dropped first, by a checkpoint's model.

        The loaded model can be evaluated and saved, and not be trained any more.
        """
        self._trained_steps, self._step, self._last_metrics = self.steps, None, None
        del self._model, self._inference
        gc.collect()
        self._use(load(open_checkpoint(folder), self._conf))


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

    def insert_vectors(self, model: Model) -> None:
        """Give the model that was built the rows that start from vectors. Raises UserError."""
        row_vectors.insert(model)

    def load(self, checkpoint: Checkpoint, conf: Conf) -> Model:
        """The model of a checkpoint. Raises DamagedError."""
        return load(checkpoint, conf)

    def workers(self, conf: Conf, model: Model, steps: int, signals: Signals) -> Workers:
        """The processes with the model that was built or loaded; `steps` were trained before."""
        return Workers(conf, model, steps, signals)
