"""One trial: a run that ends early when its evaluations are poor."""

import gc
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import keras

from tnctl.errors import UserError
from tnctl.schema import Conf
from tnctl.training import events
from tnctl.training.report import number_of
from tnctl.training.state import RunState
from tnctl.training.training_run import train

# Takes the monitored metric of all evaluations so far; True when the trial is to be stopped.
Judge = Callable[[Sequence[float | None]], bool]


@dataclass(frozen=True)
class Outcome:
    """How a trial ended; `message` says why it failed or was interrupted."""

    state: Literal["complete", "pruned", "failed", "interrupted"]
    value: float | None = None
    evaluations: tuple[float | None, ...] = ()
    message: str = ""
    exit_code: int = 0


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


def run_trial(conf: Conf, golden: int, judge: Judge) -> Outcome:
    """Train a trial from where it is, and say how it ended. What it raises is in the outcome."""
    monitor = conf.evaluation.monitor
    try:
        report = train(conf, golden=golden, observer=partial(Pruning, monitor, judge))
    except PrunedError:
        return Outcome("pruned")
    except KeyboardInterrupt as error:
        code = getattr(error, "exit_code", 130)
        return Outcome("interrupted", message=str(error), exit_code=code)
    except UserError as error:
        return Outcome("failed", message=str(error), exit_code=error.exit_code)
    except Exception as error:
        # A fault of tnctl or of a user's recipe needs its traceback; the next trial starts.
        lines = f"{traceback.format_exc().rstrip()}\n{type(error).__name__}: {error}"
        return Outcome("failed", message=lines, exit_code=1)
    finally:
        # The memory of graphs and tables must be free for the next trial.
        keras.backend.clear_session()
        gc.collect()
    return Outcome(
        "complete",
        number_of(report.of_split("validation"), monitor),
        tuple(evaluation.figure(monitor) for evaluation in report.evaluations),
    )
