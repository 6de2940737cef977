"""Several confs trained one after the other, and what came of each."""

import gc
import traceback
from collections.abc import Sequence

import keras

from tnctl import progress
from tnctl.errors import UserError
from tnctl.schema import Conf
from tnctl.training.report import Report
from tnctl.training.train import train as train_conf

# What is told of a run, and the conf it trains.
Run = tuple[str, Conf]
# What is told of it, and its report; None when it failed.
Outcome = tuple[str, Report | None]


def train(runs: Sequence[Run], *, overwrite: bool, golden: int, accept: bool = False) -> int:
    """Train every run and show a table of the results; returns the worst exit code.

    A run that fails is told in a line, and the next one starts.
    """
    worst = 0
    outcomes: list[Outcome] = []
    for number, (name, conf) in enumerate(runs):
        progress.say(f"{number + 1}/{len(runs)}  {name}")
        report: Report | None = None
        try:
            report = train_conf(conf, overwrite=overwrite, golden=golden, accept=accept)
        except UserError as error:
            progress.say(f"{name} failed: {error}")
            worst = max(worst, error.exit_code)
        except Exception as error:
            # A mistake of ours or of a user's recipe: its trace is needed, and so are the others.
            progress.say(traceback.format_exc().rstrip())
            progress.say(f"{name} failed: {type(error).__name__}: {error}")
            worst = max(worst, 1)
        outcomes.append((name, report))
        # Graphs and tables of a run must not stay for the next one.
        keras.backend.clear_session()
        gc.collect()
    show(outcomes, runs[0][1])
    return worst


def show(outcomes: Sequence[Outcome], conf: Conf) -> None:
    """The table of results: the best by evaluation.monitor first, what failed last."""
    monitor, higher = conf.evaluation.monitor, conf.evaluation.higher_is_better
    columns = list(dict.fromkeys((monitor, "auc", "logloss")))

    def place(outcome: Outcome) -> tuple[bool, bool, float]:
        value = None if outcome[1] is None else outcome[1].figure(monitor)
        return outcome[1] is None, value is None, 0.0 if value is None else value * (1 - 2 * higher)

    rows = []
    for name, report in sorted(outcomes, key=place):
        seconds = "failed" if report is None else f"{report.timing.seconds:,.1f}"
        figures = [None if report is None else report.figure(column) for column in columns]
        rows.append((name, *map(_figure, figures), seconds))
    progress.table("", ("trained", *columns, "seconds"), rows)


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.5f}"
