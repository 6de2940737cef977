"""Several confs trained one after the other, and a table of their results."""

import gc
import traceback
from collections.abc import Sequence

import keras

from tnctl import progress
from tnctl.errors import UserError
from tnctl.evaluation.metrics import METRICS
from tnctl.schema import Conf
from tnctl.training.report import Report
from tnctl.training.training_run import train as train_conf

# The name that a run has in messages, and the conf it trains.
Run = tuple[str, Conf]
# The name, and the report; None when the run failed.
Outcome = tuple[str, Report | None]


def train(runs: Sequence[Run], *, overwrite: bool, golden: int, accept: bool = False) -> int:
    """Train every run and show a table of the results; returns the worst exit code.

    A run that fails is reported in a line, and the next one starts.
    """
    worst = 0
    outcomes: list[Outcome] = []
    for number, (name, conf) in enumerate(runs, 1):
        progress.say(f"{number}/{len(runs)}  {name}")
        report: Report | None = None
        try:
            report = train_conf(conf, overwrite=overwrite, golden=golden, accept=accept)
        except UserError as error:
            progress.say(f"{name} failed: {error}")
            worst = max(worst, error.exit_code)
        except Exception as error:
            # A fault of tnctl or of a user's recipe needs its traceback; the next run starts.
            progress.say(traceback.format_exc().rstrip())
            progress.say(f"{name} failed: {type(error).__name__}: {error}")
            worst = max(worst, 1)
        outcomes.append((name, report))
        # The memory of graphs and tables must be free for the next run.
        keras.backend.clear_session()
        gc.collect()
    show(outcomes, runs[0][1].evaluation.monitor)
    return worst


def show(outcomes: Sequence[Outcome], monitor: str) -> None:
    """The table of results: the best by the monitored metric first, failed runs last."""
    columns = list(dict.fromkeys((monitor, "auc", "logloss")))
    sign = -1 if METRICS[monitor].greater_is_better else 1

    def rank(outcome: Outcome) -> tuple[bool, bool, float]:
        value = None if outcome[1] is None else outcome[1].figure(monitor)
        return outcome[1] is None, value is None, 0.0 if value is None else sign * value

    rows = []
    for name, report in sorted(outcomes, key=rank):
        figures = [None if report is None else report.figure(column) for column in columns]
        shown = ["-" if value is None else f"{value:.5f}" for value in figures]
        seconds = "failed" if report is None else f"{report.timing.seconds:,.1f}"
        rows.append((name, *shown, seconds))
    progress.table("", ("trained", *columns, "seconds"), rows)
