"""Recalibration at the end of a run, and after each day: `evaluation.recalibrate`."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pydantic import JsonValue

from tnctl.data.days import daily
from tnctl.errors import refuse_if
from tnctl.evaluation.metrics import Scored, scalars
from tnctl.evaluation.platt_scaling import recalibrated
from tnctl.model.parameter_tables import Recalibration
from tnctl.progress import say
from tnctl.schema import AUTO, Conf
from tnctl.training.report.report_document import RecalibratedHead
from tnctl.training.report.terminal_tables import in_words
from tnctl.training.run_folder import Log
from tnctl.training.state import RunState

FIGURES = ("logloss", "ne", "ctr", "pctr", "copc")  # of which a head says what changes
SHARE_OF_DAY = 0.15  # of what would have been best for a day

if TYPE_CHECKING:  # they import TensorFlow
    from tnctl.model.building import Model
    from tnctl.training.observers import Stopwatch
    from tnctl.training.workers import Workers


def check(conf: Conf) -> None:
    """Refuse a recalibration for which nothing can be fitted. Raises UserError."""
    if conf.evaluation.recalibrate in (False, AUTO):
        return
    refuse_if(
        conf.train.loss.name == "mse",
        "evaluation.recalibrate is for probabilities, which train.loss.name=mse does not predict. "
        "Leave it out",
    )
    refuse_if(
        conf.data.source("validation") is None and not daily(conf),
        "evaluation.recalibrate needs data.validation, which is not given. Give "
        "data.validation=FILES, or a share of data.train: data.split.validation=0.1",
    )


def is_wanted(conf: Conf) -> bool:
    """Whether the model of a run is recalibrated: with {day} after each day, else at the end."""
    if conf.evaluation.recalibrate == AUTO:
        # A day's error says little of the next day's (docs/defaults.md).
        has_rows = conf.data.source("validation") is not None and not daily(conf)
        return has_rows and conf.train.loss.name != "mse"
    return bool(conf.evaluation.recalibrate)


def recalibrate_for_next_day(conf: Conf, model: "Model", day: str, scored: Scored) -> None:
    """Correct a model, if a conf wants it, by the predictions of a day before it is trained.

    It goes a share of the way, for one day is noisy, and what is wrong on every day is corrected
    after some.
    """
    if not is_wanted(conf):
        return
    fitted, _ = recalibrated(scored, day)
    for head, of_day in fitted.items():
        earlier = model.recalibration.get(head, Recalibration(slope=1.0, intercept=0.0))
        corrected = of_day.after(earlier, SHARE_OF_DAY)
        model.recalibration = model.recalibration | {head: corrected}
        of_head = f" head {head}" if len(fitted) > 1 else ""
        say(
            f"{day}  recalibrated{of_head} for the next day: slope {corrected.slope:.4f}, "
            f"intercept {corrected.intercept:+.4f}"
        )


def recalibrate(state: RunState, workers: "Workers", log: Log, stopwatch: "Stopwatch") -> None:
    """Fit the model that a run ends with, and record and show what that changes."""
    measured = workers.recalibrate()
    stopwatch.evaluating += measured.seconds
    if not workers.model.recalibration:
        return
    state.recalibrated = scalars(measured.metrics)
    heads = compared(workers.model.recalibration, state)
    log.add(
        "recalibrated",
        step=state.model_step,
        recalibration={name: vars(head) for name, head in heads.items()},
        validation=state.recalibrated,
        timing=stopwatch.now(),
    )
    for name, head in heads.items():
        of_head = f" head {name}" if len(workers.model.heads) > 1 else ""
        say(f"recalibrated{of_head} on data.validation: {in_words(head)}")


def compared(
    recalibration: Mapping[str, Recalibration], state: RunState
) -> dict[str, RecalibratedHead]:
    """Each recalibrated head, with its figures on data.validation before and after."""
    before, after = state.evaluated or {}, state.recalibrated or {}
    return {
        head: RecalibratedHead(
            slope=fitted.slope,
            intercept=fitted.intercept,
            before=figures_of(before, head),
            after=figures_of(after, head),
        )
        for head, fitted in recalibration.items()
    }


def figures_of(metrics: Mapping[str, JsonValue], head: str) -> dict[str, JsonValue]:
    """The figures of a head among the metrics of all, those that concern calibration."""
    others = metrics.get("heads")
    of_head = others.get(head, metrics) if isinstance(others, dict) else metrics
    assert isinstance(of_head, Mapping)
    return {name: of_head[name] for name in FIGURES if name in of_head}
