"""What the training loop needs of the processes that train; here of one, this process."""

import contextlib
import gc
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from tnctl.checkpoint.document import Position
from tnctl.checkpoint.load import load, open_checkpoint
from tnctl.data.bad_rows import Skipped
from tnctl.data.batches import Batch, batches
from tnctl.data.features import Features
from tnctl.data.read_ahead import ReadAhead
from tnctl.data.windows import order, windows
from tnctl.evaluation.evaluate import (
    READ_AHEAD,
    Counting,
    Counts,
    features_of,
    in_file_order,
    labelled_heads,
    metrics_line,
    score,
)
from tnctl.evaluation.inference import Inference
from tnctl.model.building import Model
from tnctl.progress import say, waiting
from tnctl.schema import Conf
from tnctl.training import eviction
from tnctl.training.pass_sums import PassSums
from tnctl.training.signals import Signals
from tnctl.training.step import TrainingStep

WINDOWS_AHEAD = 1
BATCHES_AHEAD = 4


@dataclass(frozen=True)
class SplitMetrics:
    """Exact metrics of a split by the model as it is, and how often each input was there."""

    split: str
    metrics: dict[str, Any]
    counts: Counts
    seconds: float
    """what it took; 0 when it was known already"""


class Batches(Protocol):
    """A pass over the training data, batch by batch."""

    @property
    def rows(self) -> int:
        """The rows of the next batch."""

    @property
    def seconds_waited(self) -> float:
        """How long training waited for data."""

    def wait(self) -> bool:
        """Wait for the next batch; False when the pass has no more. Raises Stopped on a signal."""

    def train(self, rate_factor: float, sums: PassSums) -> None:
        """Train a step on the next batch, and add its figures to the sums of the pass."""


class Workers(Protocol):
    """The processes that train a model. The loop knows them by this alone."""

    @property
    def steps(self) -> int:
        """The steps trained so far."""

    @property
    def model(self) -> Model:
        """The model, its dense part and the layout of its rows."""

    def batches(
        self, conf: Conf, position: Position, skipped: Skipped
    ) -> contextlib.AbstractContextManager[Batches]:
        """What is left of the pass at a position over data.train of a conf."""

    def evaluate(self, split: str) -> SplitMetrics:
        """Exact metrics of a split; of the last evaluation when the model is the same since."""

    def look(self, conf: Conf, counting: Counting, *, scored: bool) -> dict[str, Any] | None:
        """One pass over data.train of a conf in file order, read-only: metrics when `scored`.

        `counting` is given every batch.
        """

    def set_days(self, days: Sequence[tuple[int, int]]) -> None:
        """The number and the first step of each day, for rows that decay or age by days."""

    def end_of_period(self) -> dict[str, int]:
        """Evict what a day's or an epoch's end evicts; the rows removed, by share group."""


class LocalBatches:
    """A pass over the training data in this process."""

    def __init__(
        self, ahead: ReadAhead[Batch], signals: Signals, step: TrainingStep, label: int
    ) -> None:
        self._ahead, self._step, self._label = ahead, step, label
        self._source = signals.watching(ahead)
        self._next: Batch | None = None

    @property
    def rows(self) -> int:
        return 0 if self._next is None else self._next.rows

    @property
    def seconds_waited(self) -> float:
        return self._ahead.seconds_waited

    def wait(self) -> bool:
        self._next = next(self._source, None)
        return self._next is not None

    def train(self, rate_factor: float, sums: PassSums) -> None:
        assert self._next is not None
        self._step.rate_factor = rate_factor
        result, labels = self._step(self._next), self._next.labels
        sums.add(result.loss, result.logits[:, self._label], labels[:, self._label])


class LocalWorkers:
    """One process trains, and it is this one."""

    def __init__(self, conf: Conf, model: Model, steps: int, signals: Signals) -> None:
        """`steps` were trained before."""
        self.conf, self.model = conf, model
        self.features = features_of(conf, model)
        self._signals = signals
        self.step: TrainingStep | None = TrainingStep(model, conf.train.batch_size, steps)
        self._trained_steps = steps
        self.inference = Inference(model, conf.train.batch_size)
        [(_, _, self._main_label), *_] = labelled_heads(model)
        # Of the model as it was after so many steps.
        self._last_metrics: SplitMetrics | None = None
        self._last_metrics_step = steps

    @property
    def steps(self) -> int:
        return self._trained_steps if self.step is None else self.step.steps

    @contextlib.contextmanager
    def batches(self, conf: Conf, position: Position, skipped: Skipped) -> Iterator[LocalBatches]:
        assert self.step is not None
        source = training_batches(
            conf,
            self.features,
            position.passes,
            skipped,
            start=position.window,
            offset=position.offset,
        )
        with ReadAhead(source, BATCHES_AHEAD) as ahead:
            yield LocalBatches(ahead, self._signals, self.step, self._main_label)

    def evaluate(self, split: str) -> SplitMetrics:
        known = self._last_metrics
        if known is not None and known.split == split and self._last_metrics_step == self.steps:
            return replace(known, seconds=0.0)
        started = time.perf_counter()
        counts = Counts(self.model.layout)
        with waiting(f"evaluating on data.{split}"):
            scored = score(
                self.inference, self.conf, split, counts=counts, between=self._signals.check
            )
            metrics = scored.metrics()
        say(f"{split}  {metrics_line(metrics)}")
        self._last_metrics_step = self.steps
        self._last_metrics = SplitMetrics(
            split, metrics, counts, seconds=time.perf_counter() - started
        )
        return self._last_metrics

    def look(self, conf: Conf, counting: Counting, *, scored: bool) -> dict[str, Any] | None:
        # The model is judged on all examples, also where it is trained on a part of the negatives.
        conf = replace(conf, data=replace(conf.data, negatives=1.0))
        check = self._signals.check
        if scored:
            return score(self.inference, conf, "train", counts=counting, between=check).metrics()
        features = features_of(conf, self.model)
        with ReadAhead(in_file_order(conf, features, "train"), READ_AHEAD) as ahead:
            for batch in ahead:
                counting.add(batch)
                check()
        return None

    def set_days(self, days: Sequence[tuple[int, int]]) -> None:
        for table in self.model.tables:
            table.set_days(days)
        self._last_metrics = None

    def end_of_period(self) -> dict[str, int]:
        removed = eviction.end_of_period(self.model)
        if any(removed.values()):
            self._last_metrics = None
        return removed

    def load(self, folder: str) -> None:
        """Put the model of a checkpoint in the place of the trained one, which is dropped first.

        It can be evaluated and saved, and not be trained any more.
        """
        steps = self.steps
        self._last_metrics = None
        self._trained_steps, self.step = steps, None
        del self.model, self.inference
        gc.collect()
        self.model = load(open_checkpoint(folder), self.conf)
        self.inference = Inference(self.model, self.conf.train.batch_size)


def training_batches(
    conf: Conf,
    features: Features,
    passes: int,
    skipped: Skipped | None = None,
    *,
    start: int = 0,
    offset: int = 0,
) -> Iterator[Batch]:
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
