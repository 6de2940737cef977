"""One trial: a run that ends early when its evaluations are poor."""

from collections.abc import Callable, Sequence
from functools import partial

from tnctl.schema import Conf
from tnctl.training import events
from tnctl.training.report.report_document import Report
from tnctl.training.state import RunState
from tnctl.training.training_run import train

# Takes the monitored metric of all evaluations so far; True when the trial is to be stopped.
Judge = Callable[[Sequence[float | None]], bool]


class PrunedError(events.EndedError):
    """A trial was stopped, for others were better after as many evaluations."""


class Pruning:
    """Reports each evaluation of a run, and ends a poor run unless it is at its end anyway.

    It ends before anything of a later step is done or saved. So a killed trial that is resumed is
    judged again.
    """

    def __init__(self, monitor: str, judge: Judge, state: RunState) -> None:
        self._monitor, self._judge, self._state = monitor, judge, state
        self._is_new = bool(state.evaluations)
        self._is_poor = False

    def see(self, event: events.Event) -> None:
        """Raise PrunedError when training would go on though the run is poor."""
        match event:
            case events.Evaluated():
                self._ask()
            case events.BetweenSteps() | events.PassEnds(is_last=False):
                if self._is_new:  # it was resumed
                    self._ask()
                if self._is_poor:
                    raise PrunedError("other trials were better after as many evaluations")

    def _ask(self) -> None:
        values = [evaluation.figure(self._monitor) for evaluation in self._state.evaluations]
        self._is_new, self._is_poor = False, self._judge(values)


def run_trial(conf: Conf, golden: int, judge: Judge) -> Report | None:
    """Train a trial from where it is to its end; None when it was stopped. Raises as `train`."""
    try:
        return train(conf, golden=golden, observer=partial(Pruning, conf.evaluation.monitor, judge))
    except PrunedError:
        return None
