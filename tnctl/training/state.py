"""Where training is: all that a checkpoint keeps of a run beside the model, and its pass."""

import io
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import JsonValue

from tnctl import files
from tnctl.checkpoint.chain import EXTRA, Checkpoint
from tnctl.checkpoint.document import (
    Clock,
    Epoch,
    EvaluationEntry,
    Metrics,
    Position,
    WarmReport,
    WatchState,
    evaluation_at,
)
from tnctl.checkpoint.golden_lines import GoldenLine
from tnctl.data.bad_rows import Skipped
from tnctl.data.day_records import DayRecord, Fingerprint
from tnctl.data.sources import Source
from tnctl.data.unit_records import (
    WHOLE,
    Progress,
    Remainder,
    UnitsProgress,
    dealt,
    record_of,
    remaining,
)
from tnctl.manifest import DamagedError
from tnctl.schema import Conf, Loss
from tnctl.tables import StreamingAuc
from tnctl.training.schedule import EarlyStopping

if TYPE_CHECKING:  # it imports TensorFlow
    from tnctl.checkpoint.staging import Contents

RUNNING = "running"  # of the checkpoint's extra file
MOST_BYTES = 1 << 20  # of an array in it
FROM_SCRATCH = "overwrite=true to train from scratch"


class PassSums:
    """Sums over the steps of a pass, of predictions made before each update."""

    def __init__(self, classes: bool) -> None:
        """`classes` says whether labels are classes: of other numbers there is no AUC."""
        self.classes, self.auc = classes, StreamingAuc()
        self.fractions = False
        """whether this process has seen a label between 0 and 1"""
        # Examples, and loss times examples: of the pass, and since the last line of the log.
        self._examples, self._losses = np.zeros(2, np.int64), np.zeros(2)
        clicks, others = self.auc.counts
        self._arrays: dict[str, Any] = {
            "clicks": clicks,
            "others": others,
            "examples": self._examples,
            "losses": self._losses,
        }

    def add(self, loss: float, logits: Any, labels: Any) -> None:
        """Add a step: its mean loss, logits and labels float32 [B] of the main head."""
        if self.classes:
            self.auc.update(np.ascontiguousarray(logits), np.ascontiguousarray(labels))
            self.fractions = self.fractions or bool((labels % 1).any())
        self._losses += loss * len(logits)
        self._examples += len(logits)

    @property
    def examples(self) -> int:
        """The examples of the pass so far."""
        return int(self._examples[0])

    @property
    def loss(self) -> float:
        """The mean loss of the pass so far."""
        return float(self._losses[0]) / max(self.examples, 1)

    def area(self) -> float | None:
        """The AUC so far; None where labels are no classes, or of one class only."""
        return self.auc.result() if self.classes else None

    @property
    def only_label(self) -> int | None:
        """The label of all examples so far, 0 or 1; None where they have several."""
        clicks, others = (bool(counts.any()) for counts in self.auc.counts)
        return None if self.fractions or clicks == others else int(clicks)

    def loss_since(self) -> float:
        """The mean loss since the last call."""
        loss = float(self._losses[1]) / max(int(self._examples[1]), 1)
        self._examples[1] = self._losses[1] = 0
        return loss

    def to_bytes(self) -> bytes:
        """All sums, exactly: a .npz of numpy. docs/formats/checkpoint.md."""
        stream = io.BytesIO()
        np.savez_compressed(stream, **self._arrays)
        return stream.getvalue()

    def fill(self, data: bytes) -> None:
        """Continue from what `to_bytes` gave. Raises ValueError when it is something else."""
        try:
            with np.load(io.BytesIO(data)) as archive:
                sizes = [archive.zip.getinfo(f"{name}.npy").file_size for name in self._arrays]
                if max(sizes) > MOST_BYTES:
                    raise ValueError("too large")
                saved = {name: archive[name] for name in self._arrays}
        except Exception as error:
            # zipfile, zlib and numpy raise errors of many types.
            raise ValueError(f"no running figures: {error}") from error
        for name, array in self._arrays.items():
            if (saved[name].dtype, saved[name].shape) != (array.dtype, array.shape):
                raise ValueError(f"no running figures: {name} is no {array.dtype} {array.shape}")
        if (saved["examples"] < 0).any() or not np.isfinite(saved["losses"]).all():
            raise ValueError("no running figures: examples below 0, or losses that are not finite")
        for name, array in self._arrays.items():
            array[:] = saved[name]


def saved_sums(checkpoint: Checkpoint, classes: bool) -> PassSums | None:
    """The running figures of a checkpoint; None where none were saved. Raises DamagedError."""
    data = checkpoint.extra(RUNNING)
    if data is None:
        return None
    sums = PassSums(classes)
    try:
        sums.fill(data)
    except ValueError as error:
        what = f"{files.join(checkpoint.folder, f'{EXTRA}/{RUNNING}')} has {error}"
        raise DamagedError(checkpoint.folder, what, "Take another checkpoint") from error
    return sums


def has_classes(loss: Loss) -> bool:
    """Whether labels are classes: for other numbers there is no AUC."""
    return loss.name != "mse"


@dataclass
class RunState:
    """Where training is. A run that is resumed from a checkpoint has the same state again.

    `days` has a record of every day that was begun, `clock_days` the number and the first step of
    each. `sums` and `data` (the files with their fingerprints) are of the pass under way; None and
    empty between passes.
    """

    position: Position = field(default_factory=Position)
    steps: int = 0
    epochs: list[Epoch] = field(default_factory=list)
    evaluations: list[EvaluationEntry] = field(default_factory=list)
    days: list[DayRecord] = field(default_factory=list)
    clock_days: list[tuple[int, int]] = field(default_factory=list)
    stopping: EarlyStopping = field(default_factory=EarlyStopping)
    sums: PassSums | None = None
    data: list[Fingerprint] = field(default_factory=list)
    warm: WarmReport | None = None
    trained: bool = False
    """whether nothing is left to be trained"""
    best_is_loaded: bool = False
    """whether the best model has replaced the last one, at the end of training"""
    recalibrated: dict[str, JsonValue] | None = None
    """metrics of the recalibrated model on data.validation; None of one that is not"""

    def contents(self, golden: list[GoldenLine], log_lines: int) -> "Contents":
        """What a checkpoint has of the state; the inverse of `restored`.

        `log_lines` is how many lines log.jsonl has.
        """
        from tnctl.checkpoint.staging import Contents

        return Contents(
            clock=Clock(self.model_step, tuple(self.clock_days)),
            position=self.position,
            finished=self.trained,
            golden=golden,
            metrics=Metrics(
                steps=self.steps,
                epochs=tuple(self.epochs),
                evaluations=tuple(self.evaluations),
                validation=self.validation,
                watch=WatchState(**vars(self.stopping)),
                warm=self.warm,
                log_lines=log_lines,
            ),
            extras={} if self.sums is None else {RUNNING: self.sums.to_bytes()},
            # Copies: they are written while training continues.
            data=tuple(self.data),
            days=tuple(self.days),
        )

    @classmethod
    def restored(cls, checkpoint: Checkpoint, loss: Loss) -> "RunState":
        """The state that a checkpoint was saved with. Raises DamagedError."""
        manifest, metrics = checkpoint.manifest, checkpoint.manifest.metrics
        return cls(
            position=checkpoint.position,
            steps=manifest.steps_trained,
            epochs=list(metrics.epochs),
            evaluations=list(metrics.evaluations),
            days=checkpoint.days,
            clock_days=list(checkpoint.clock.days),
            stopping=EarlyStopping(**vars(metrics.watch)),
            sums=saved_sums(checkpoint, has_classes(loss)),
            data=checkpoint.data,
            warm=metrics.warm,
            trained=manifest.finished,
            # Only the last checkpoint of a run can have the model of an earlier step.
            best_is_loaded=checkpoint.step < manifest.steps_trained,
            recalibrated=metrics.validation
            if manifest.recalibration is not None and not checkpoint.days
            else None,
        )

    @property
    def model_step(self) -> int:
        """The step of the model: with evaluation.keep=best the best one's, at the end."""
        return self.stopping.best_step if self.best_is_loaded else self.steps

    @property
    def validation(self) -> dict[str, JsonValue] | None:
        """The metrics of this very model on data.validation; None where it was not evaluated."""
        return self.evaluated if self.recalibrated is None else self.recalibrated

    @property
    def evaluated(self) -> dict[str, JsonValue] | None:
        """The metrics of the model on data.validation before recalibration."""
        evaluation = evaluation_at(self.evaluations, self.model_step)
        return None if evaluation is None else evaluation.validation

    @property
    def first_step(self) -> int:
        """The steps before this run: of the checkpoint of a warm start, else 0."""
        return 0 if self.warm is None else self.warm.step


class PassPosition:
    """The position of a pass that several workers share, or one trains alone.

    A pass that begins is cut for the workers that there are; one that is resumed keeps its units,
    whatever the number of workers. One worker does not cut it.
    """

    def __init__(self, conf: Conf, start: Position, workers: int, skipped: Skipped) -> None:
        """`start` is where the pass begins or is resumed.

        `skipped` gets the rows that could not be read in the units that are done. Raises `Failure`
        when the data is not cut into the units of `start` any more, or cannot be listed.
        """
        self._position, self._workers, self._skipped = start, workers, skipped
        self._units: UnitsProgress | None = None
        self.remainders = [Remainder(WHOLE, start.window, start.offset)]
        """what is left of the pass: units that were begun, then the others"""
        source, record = Source(conf, "train"), start.units
        if record is not None:
            cut = source.units_again(record, FROM_SCRATCH)
            skipped.add(record.skipped, "it was before training was resumed")
        elif workers > 1 and not start.window and not start.offset:
            cut = source.units(workers)
            record = record_of(cut, workers)
        if record is not None:
            self._units, self.remainders = UnitsProgress(record), remaining(cut, record)

    def dealt(self) -> list[list[Remainder]]:
        """The remainders of each worker, in the order in which it trains them."""
        return dealt(self.remainders, self._workers)

    def add(self, progress: Progress) -> None:
        """Take in what a worker trained."""
        if self._units is None:
            self._position = replace(self._position, window=progress.window, offset=progress.offset)
        else:
            self._units.add(progress)

    @property
    def is_at_start(self) -> bool:
        """Whether not one row of the pass was trained."""
        position = self.position
        units = position.units
        in_units = units is not None and (units.done or units.open)
        return not (position.window or position.offset or in_units)

    def report_skipped(self) -> None:
        """Say how many rows were left out, at the end of a pass that is cut into units.

        Of a split that is not cut its reader says it.
        """
        if self._units is not None:
            self._skipped.report()

    @property
    def position(self) -> Position:
        """The position after all that was added."""
        if self._units is None:
            return self._position
        return replace(self._position, units=self._units.record())
