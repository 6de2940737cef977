"""The state of a run: everything that a checkpoint keeps of training, beside the model."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pydantic import JsonValue

from tnctl.checkpoint.chain import Checkpoint
from tnctl.checkpoint.document import (
    Clock,
    Epoch,
    Evaluation,
    Metrics,
    Position,
    WarmReport,
    WatchState,
    evaluation_at,
)
from tnctl.checkpoint.golden_lines import GoldenLine
from tnctl.data.day_records import DayRecord, Fingerprint
from tnctl.schema import Loss
from tnctl.training import pass_sums
from tnctl.training.early_stopping import EarlyStopping
from tnctl.training.pass_sums import PassSums

if TYPE_CHECKING:  # it imports TensorFlow
    from tnctl.checkpoint.staging import Contents


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
    evaluations: list[Evaluation] = field(default_factory=list)
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
            extras={} if self.sums is None else {pass_sums.NAME: self.sums.to_bytes()},
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
            sums=pass_sums.read(checkpoint, pass_sums.has_classes(loss)),
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
        """The step of the model: with evaluation.keep=best that of the best one, at the end."""
        return self.stopping.best_step if self.best_is_loaded else self.steps

    @property
    def validation(self) -> dict[str, JsonValue] | None:
        """The metrics of this very model on data.validation; None where it was not evaluated."""
        return self.evaluated if self.recalibrated is None else self.recalibrated

    @property
    def evaluated(self) -> dict[str, JsonValue] | None:
        """The same before recalibration."""
        evaluation = evaluation_at(self.evaluations, self.model_step)
        return None if evaluation is None else evaluation.validation

    @property
    def first_step(self) -> int:
        """The steps before this run: of the checkpoint of a warm start, else 0."""
        return 0 if self.warm is None else self.warm.step
