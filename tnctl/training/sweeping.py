"""Several confs trained one after the other, and a table of their results."""

import gc
import traceback
from collections.abc import Callable, Sequence
from functools import partial

import keras

from tnctl import progress
from tnctl.checkpoint.document import number_of
from tnctl.errors import UserError
from tnctl.evaluation.metrics import shown
from tnctl.schema import Conf
from tnctl.training.report.report_document import Report, rank
from tnctl.training.run import train as train_conf

# The name that a run has in messages, and the conf it trains.
Run = tuple[str, Conf]
# The name, and the report; None when the run failed.
Outcome = tuple[str, Report | None]
SHOWN_SPLITS = ("validation", "test")


def train(runs: Sequence[Run], *, overwrite: bool, golden: int, accept: bool = False) -> int:
    """Train every run and show a table of the results; returns the worst exit code.

    A run that fails is reported in a line, and the next one starts.
    """
    worst = 0
    outcomes: list[Outcome] = []
    for index, (name, conf) in enumerate(runs, 1):
        progress.say(f"{index}/{len(runs)}  {name}")
        report, code = attempted(
            name,
            partial(train_conf, conf, overwrite=overwrite, golden=golden, accept=accept),
        )
        worst = max(worst, code)
        outcomes.append((name, report))
    show(outcomes, runs[0][1].evaluation.monitor)
    return worst


def attempted(name: str, train: Callable[[], Report | None]) -> tuple[Report | None, int]:
    """What `train` returns for one of several runs, and exit code 0.

    When it fails, a line says why, the report is None and the exit code is not 0.
    """
    try:
        return train(), 0
    except UserError as error:
        progress.say(f"{name} failed: {error}")
        return None, error.exit_code
    except Exception as error:
        # A fault of tnctl or of a user's recipe needs its traceback; the next run starts.
        progress.say(*traceback.format_exc().splitlines())
        progress.say(f"{name} failed: {type(error).__name__}: {error}")
        return None, 1
    finally:
        # The memory of graphs and tables must be free for the next run.
        keras.backend.clear_session()
        gc.collect()


def show(outcomes: Sequence[Outcome], monitor: str) -> None:
    """The table of results: the best on data.validation first, failed runs last.

    Metrics on data.test are shown beside those on data.validation and have no part in the order: a
    run that is chosen by its test data looks better on it than it is. Without data.validation in
    any run they are in the order in which they were trained, which a line says.
    """
    reports = [report for _, report in outcomes if report is not None]
    columns = [
        (split, metric)
        for split in SHOWN_SPLITS
        for metric in dict.fromkeys((monitor, "auc", "logloss"))
        if any(number_of(report.of_split(split), metric) is not None for report in reports)
    ]
    if reports and not any(report.of_split("validation") for report in reports):
        progress.say(
            "the runs are not ranked: they have no data.validation, and data.test is not for "
            "choosing among them. Give data.validation=FILES"
        )
    rows = []
    for name, report in sorted(outcomes, key=lambda outcome: _rank(outcome[1], monitor)):
        cells, costs = ["-"] * len(columns), ["-", "-", "failed"]
        if report is not None:
            cells = [shown(number_of(report.of_split(split), key), 5) for split, key in columns]
            step, seconds = shown(report.step_milliseconds, 1), f"{report.timing.seconds:,.1f}"
            costs = [f"{report.dense_weights:,}", step, seconds]
        rows.append((name, *cells, *costs))
    headings = (f"{metric} ({split})" for split, metric in columns)
    progress.table("", ("trained", *headings, "dense", "ms/step", "seconds"), rows)


def _rank(report: Report | None, monitor: str) -> tuple[bool, bool, float]:
    """What sorts runs, the best first."""
    value = None if report is None else number_of(report.of_split("validation"), monitor)
    return report is None, *rank(value, monitor)
