"""The monitored metric: which evaluation is the best, when to stop, when to reduce the rate."""

import math
from dataclasses import dataclass

from tnctl.checkpoint.document import WatchState
from tnctl.data.days import daily
from tnctl.errors import UserError
from tnctl.schema import Conf


@dataclass
class EarlyStopping:
    """The monitored metric over the evaluations of a run. All of it goes into checkpoints."""

    best: float | None = None
    """the best value so far"""
    best_step: int = 0
    """the steps done when it was measured"""
    without: int = 0
    """evaluations since the best, for stopping"""
    flat: int = 0
    """evaluations without a better value since the last reduction"""
    plateau: float = 1.0
    """the factor that plateaus have left"""

    def judge(self, conf: Conf, value: float, steps: int) -> bool:
        """Take in an evaluation; True when it is the best so far.

        Better is by at least min_delta, and never by nothing. NaN is never better.
        """
        better = self.best is None or _gain(conf, value, self.best) >= max(
            conf.evaluation.min_delta, math.ulp(0.0)
        )
        if better and not math.isnan(value):
            self.best, self.best_step = value, steps
            self.without = self.flat = 0
            return True
        self.without += 1
        schedule = conf.optimizer.schedule
        self.flat += 1
        if schedule.name == "plateau" and self.flat >= schedule.patience:
            self.plateau = max(self.plateau * schedule.reduce, schedule.end)
            self.flat = 0
        return False

    def stops(self, conf: Conf) -> bool:
        """Whether training ends here."""
        patience = conf.evaluation.patience
        return patience is not None and self.without >= patience

    def state(self) -> WatchState:
        """As checkpoints have it."""
        return WatchState(**vars(self))

    @classmethod
    def from_state(cls, state: WatchState) -> "EarlyStopping":
        """The inverse of `state`."""
        return cls(**vars(state))


def _gain(conf: Conf, value: float, best: float) -> float:
    return value - best if conf.evaluation.higher_is_better else best - value


def matters(conf: Conf) -> bool:
    """Whether anything follows from the monitored metric."""
    return (
        conf.evaluation.patience is not None
        or conf.evaluation.keep == "best"
        or conf.optimizer.schedule.name == "plateau"
    )


def check(conf: Conf) -> None:
    """Refuse evaluation settings that nothing can come of."""
    evaluation = conf.evaluation
    if daily(conf) and matters(conf):
        raise UserError(
            "evaluation.patience, keep=best and schedule.name=plateau go by one set of data, and "
            "with {day} in data.train the newest day counts. Leave them out: every day is "
            "evaluated before it is trained"
        )
    if conf.data.validation is None and (matters(conf) or evaluation.every_steps is not None):
        raise UserError(
            "evaluation.every_steps, patience, keep=best and schedule.name=plateau need "
            "data.validation, which is not given. Give data.validation=FILES"
        )
    if conf.train.loss.name == "mse" and evaluation.monitor == "logloss":
        raise UserError(
            "evaluation.monitor=logloss does not exist with train.loss.name=mse. "
            "Take evaluation.monitor=mse"
        )
