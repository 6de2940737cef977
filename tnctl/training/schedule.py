"""How long a run trains, and how fast: the best evaluation, the last pass, learning rates."""

import math
from dataclasses import dataclass

from tnctl.checkpoint.document import Epoch
from tnctl.data.days import daily
from tnctl.errors import UserError, refuse_if
from tnctl.evaluation.metrics import METRICS
from tnctl.schema import AUTO, Conf, Evaluation, Schedule, Train

# Of a pass, with train.epochs=auto: above the first the second pass is tried for a tenth of its
# steps, above the second there is none.
MANY_ROWS, MOST_ROWS_AGAIN = 3_000_000, 100_000_000
TRIED = 10


@dataclass
class EarlyStopping:
    """The monitored metric over the evaluations of a run. Checkpoints keep all of it."""

    best: float | None = None
    """the best value so far"""
    best_step: int = 0
    """the steps done when it was measured"""
    without: int = 0
    """evaluations since the best, for stopping"""
    flat: int = 0
    """evaluations without a better value since the last reduction"""
    plateau: float = 1.0
    """the factor of the learning rates after all reductions"""

    def judge(self, evaluation: Evaluation, schedule: Schedule, value: float, steps: int) -> bool:
        """Record the value of an evaluation after `steps`; True when it is the best so far.

        Better is better by at least min_delta, and an equal value never is. NaN is never better.
        """
        sign = 1 if METRICS[evaluation.monitor].greater_is_better else -1
        gain = math.inf if self.best is None else sign * (value - self.best)
        if gain >= max(evaluation.min_delta, math.ulp(0.0)) and not math.isnan(value):
            self.best, self.best_step = value, steps
            self.without = self.flat = 0
            return True
        self.without += 1
        self.flat += 1
        if schedule.name == "plateau" and self.flat >= schedule.patience:
            self.plateau, self.flat = max(self.plateau * schedule.reduce, schedule.end), 0
        return False

    def end_now(self, evaluation: Evaluation) -> None:
        """Let training end here, as after `patience` evaluations that were not better."""
        self.without = max(self.without, evaluation.patience or 0)

    def stops(self, patience: int | None) -> bool:
        """Whether training ends here: `patience` evaluations in a row were not better."""
        return patience is not None and self.without >= patience


def most_passes(train: Train, rows: int, *, of_day: bool) -> int:
    """After how many passes over `rows`, of a day or all, there is none whatever happens."""
    is_one = train.epochs == AUTO and (of_day or rows > MOST_ROWS_AGAIN)
    return 1 if is_one else train.most_passes


def trial_step(train: Train, passes: int, first: Epoch, first_step: int) -> int | None:
    """The step at which the pass after `passes` ends if an evaluation there is not better.

    `first` is the first pass, which began after `first_step`. Models of clicks may collapse as soon
    as they see their rows again, at the beginning of the second pass (Zhang et al., Towards
    Understanding the Overfitting Phenomenon of Deep Click-Through Rate Prediction Models, CIKM
    2022), and with many rows a pass takes long.
    """
    if train.epochs != AUTO or passes != 1 or first.examples < MANY_ROWS:
        return None
    return first.step + max((first.step - first_step) // TRIED, 1)


def keeps_best(conf: Conf) -> bool:
    """Whether a run ends with the model of its best evaluation, not of its last step."""
    keep = conf.evaluation.keep
    if keep == "auto":
        return conf.data.source("validation") is not None and not daily(conf)
    return keep == "best"


def recalibrates(conf: Conf) -> bool:
    """Whether the model of a run is recalibrated: with {day} after each day, else at the end."""
    if conf.evaluation.recalibrate == AUTO:
        # A day's error says little of the next day's (docs/defaults.md).
        has_rows = conf.data.source("validation") is not None and not daily(conf)
        return has_rows and conf.train.loss.name != "mse"
    return bool(conf.evaluation.recalibrate)


def matters(conf: Conf) -> bool:
    """Whether a conf asks for something that the monitored metric decides."""
    return (
        conf.evaluation.patience is not None
        or (conf.train.epochs == AUTO and not daily(conf))
        or conf.evaluation.keep == "best"
        or conf.optimizer.schedule.name == "plateau"
    )


def check_late_labels(conf: Conf) -> None:
    """Refuse labels that arrive late where no day could be trained on them. Raises UserError."""
    for name, mature_days in conf.data.late_labels.items():
        given = f"label {name} has mature_days={mature_days}"
        refuse_if(
            not daily(conf),
            f"{given}, which counts days of daily training, and data.train has no {{day}}: it is "
            "never mature. Leave it out",
        )
        refuse_if(
            name == next(iter(conf.data.all_labels)),
            f"{given}, and the first label is trained with its day, when rows count its clicks. "
            "Name one without mature_days first; where all are late, train each day later",
        )


def check(conf: Conf) -> None:
    """Refuse evaluations and schedules that can have no effect. Raises UserError."""
    check_late_labels(conf)
    evaluation = conf.evaluation
    if daily(conf) and matters(conf):
        raise UserError(
            "evaluation.patience, keep=best and schedule.name=plateau go by one set of data, and "
            "with {day} in data.train the newest day counts. Leave them out: every day is "
            "evaluated before it is trained"
        )
    needs_validation = matters(conf) or evaluation.every_steps is not None
    if needs_validation and conf.data.source("validation") is None:
        raise UserError(
            "evaluation.every_steps, patience, keep=best, schedule.name=plateau and "
            "train.epochs=auto need data.validation, which is not given. Give "
            "data.validation=FILES, or a share of data.train: data.split.validation=0.1"
        )
    if conf.train.epochs == AUTO and not daily(conf) and evaluation.patience is None:
        raise UserError(
            "train.epochs=auto trains until evaluation.patience evaluations were not better, and "
            "patience is not given. Give evaluation.patience=2"
        )
    if conf.train.loss.name == "mse" and evaluation.monitor in ("logloss", "ne"):
        raise UserError(
            f"evaluation.monitor={evaluation.monitor} does not exist with train.loss.name=mse. "
            "Take evaluation.monitor=mse"
        )
    if evaluation.recalibrate not in (False, AUTO):
        refuse_if(
            conf.train.loss.name == "mse",
            "evaluation.recalibrate is for probabilities, which train.loss.name=mse does not "
            "predict. Leave it out",
        )
        refuse_if(
            conf.data.source("validation") is None and not daily(conf),
            "evaluation.recalibrate needs data.validation, which is not given. Give "
            "data.validation=FILES, or a share of data.train: data.split.validation=0.1",
        )
    if conf.optimizer.schedule.name == "day":
        refuse_if(
            not daily(conf),
            "optimizer.schedule.name=day is for days: data.train has no {day}. Take another",
        )
        refuse_if(
            conf.data.negatives < 1,
            "optimizer.schedule.name=day needs the rows of a day, and data.negatives leaves out "
            "some. Take another schedule, or data.negatives=1",
        )


def is_crossed(every: int, earlier: int, steps: int) -> bool:
    """Whether a multiple of `every` is among the steps after `earlier` up to `steps`.

    Several workers may take a few steps between two looks at the clock.
    """
    return steps // every > earlier // every


def factor(
    schedule: Schedule, steps: int, plateau: float = 1.0, share_of_day: float = 0.0
) -> float:
    """The factor of the step that follows `steps` steps.

    `share_of_day` is the part of its day that the steps before have trained: steps of the pass
    times the rows of a full step, over the rows of the day.

    With s = steps, w = warmup_steps, t = s - w, e = end:

    - s < w: s / w, whatever the schedule
    - constant: 1
    - exponential: max(decay_rate ^ (t / decay_steps), e)
    - step: the factor of the last boundary below s (boundaries count all steps, also warm-up's)
    - cosine: e + (1 - e) * (1 + cos(pi * min(t / decay_steps, 1))) / 2
    - plateau: `plateau`, which evaluations reduce
    - day: 1 - (1 - e) * share_of_day

    Up to the warm-up of others than cosine, these are Keras' ExponentialDecay,
    PiecewiseConstantDecay and CosineDecay.
    """
    if steps < schedule.warmup_steps:
        return steps / schedule.warmup_steps
    after = steps - schedule.warmup_steps
    if schedule.name == "exponential":
        return max(schedule.decay_rate ** (after / schedule.decay_steps), schedule.end)
    if schedule.name == "step":
        passed = sum(boundary < steps for boundary in schedule.boundaries)
        return schedule.factors[passed - 1] if passed else 1.0
    if schedule.name == "cosine":
        share = min(after / schedule.decay_steps, 1.0)
        return schedule.end + (1 - schedule.end) * (1 + math.cos(math.pi * share)) / 2
    if schedule.name == "day":
        return 1 - (1 - schedule.end) * min(share_of_day, 1.0)
    return plateau if schedule.name == "plateau" else 1.0
