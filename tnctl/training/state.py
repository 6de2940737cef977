"""The state of a run: all that a checkpoint keeps of training, beside the model."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tnctl.checkpoint.document import Clock, Epoch, Evaluation, Metrics, Position, WarmReport
from tnctl.checkpoint.load import Checkpoint
from tnctl.data.day_records import DayRecord, Fingerprint
from tnctl.schema import Conf
from tnctl.training import pass_sums
from tnctl.training.early_stopping import EarlyStopping
from tnctl.training.pass_sums import PassSums

if TYPE_CHECKING:
    from tnctl.training.warm import WarmStart


@dataclass
class RunState:
    """Where training is. A run that is resumed from a checkpoint has the same state again.

    `days` has a record of every day that was begun, `clock_days` the number and the first step of
    each. `sums` and `data` (the files, as they were) are of the pass under way; None and empty
    between passes.
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
    """whether the model is the best one, put in the place of the last one at the end"""

    @classmethod
    def after_warm_start(cls, start: "WarmStart") -> "RunState":
        """The clock continues from the old run's; schedules and epochs begin from scratch."""
        return cls(steps=start.step, warm=start.report, days=start.record, clock_days=start.days)

    @classmethod
    def of_checkpoint(cls, checkpoint: Checkpoint, conf: Conf) -> "RunState":
        """The state that a checkpoint was saved with. Raises DamagedError."""
        manifest, metrics = checkpoint.manifest, checkpoint.manifest.metrics
        return cls(
            position=checkpoint.position,
            steps=manifest.steps_trained,
            epochs=list(metrics.epochs),
            evaluations=list(metrics.evaluations),
            days=checkpoint.days,
            clock_days=list(checkpoint.clock.days),
            stopping=EarlyStopping.from_state(metrics.watch),
            sums=pass_sums.read(checkpoint, has_classes(conf)),
            data=checkpoint.data,
            warm=metrics.warm,
            trained=manifest.finished,
            # Only at its end is a run's checkpoint of another step than the run.
            best_is_loaded=checkpoint.step < manifest.steps_trained,
        )

    def clock(self, model_step: int | None = None) -> Clock:
        """The clock of a model of these steps; of an earlier one when the best model is kept."""
        return Clock(self.steps if model_step is None else model_step, tuple(self.clock_days))

    def metrics(self, log_lines: int) -> Metrics:
        """What a manifest has of the training so far."""
        return Metrics(
            steps=self.steps,
            epochs=tuple(self.epochs),
            evaluations=tuple(self.evaluations),
            watch=self.stopping.state(),
            warm=self.warm,
            log_lines=log_lines,
        )

    def extras(self) -> dict[str, bytes]:
        """The extra files of a checkpoint."""
        return {} if self.sums is None else {pass_sums.NAME: self.sums.to_bytes()}

    @property
    def first_step(self) -> int:
        """The steps before this run: those of the checkpoint of a warm start."""
        return 0 if self.warm is None else self.warm.step


def has_classes(conf: Conf) -> bool:
    """Whether labels are classes: of other numbers there is no AUC."""
    return conf.train.loss.name != "mse"
