"""What happens in training, as the loop yields it: one class per kind of event."""

import time
from collections.abc import Generator
from dataclasses import dataclass, field

from tnctl.checkpoint.document import Epoch, Evaluation
from tnctl.data.day_records import DayRecord
from tnctl.schema import Conf
from tnctl.training.state import PassSums
from tnctl.training.workers import Batches, SplitMetrics


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


@dataclass(frozen=True)
class DayLooked:
    """The model was evaluated on a day that it will be trained on."""

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
    """the steps of this pass that this process trained before this step"""


@dataclass(frozen=True)
class LabelsEqual:
    """A label has one value in many rows; `source` is where it comes from, as the conf says it."""

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

    evaluation: Evaluation
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
