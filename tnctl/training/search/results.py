"""The results of a search: a table of its trials, and the best of them."""

import math
import re
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Any

from tnctl import files, progress
from tnctl.errors import Failure
from tnctl.evaluation.metrics import shown
from tnctl.training import run_folder
from tnctl.training.report.report_document import Report
from tnctl.training.search.search_parameters import Parameter, Value

# Optuna's states, those of the best trials first, as the table shows them.
STATES = {
    "COMPLETE": "", "PRUNED": "stopped", "RUNNING": "unfinished", "WAITING": "unfinished",
    "FAIL": "undefined",
}  # fmt: skip
FOLDER = re.compile(r"(trial|refit)-[0-9]{4,}")  # of a run of a search
LONGEST_VALUE = 40  # characters of a value in the table


def folder_of(number: int) -> str:
    """The folder of a trial under the output."""
    return f"trial-{number:04d}"


@dataclass(frozen=True)
class Results:
    """Optuna's trials of a search, and the numbers of those that failed in this command."""

    trials: Sequence[Any]
    monitor: str
    greater_is_better: bool
    failed: Set[int]

    def ranked(self) -> list[Any]:
        """The trials, the best first; those that were stopped are behind all that were not."""
        sign = -1 if self.greater_is_better else 1

        def place(trial: Any) -> tuple[int, bool, float, int]:
            value = value_of(trial)
            state = list(STATES).index(trial.state.name)
            return state, value is None, 0.0 if value is None else sign * value, trial.number

        return sorted(self.trials, key=place)

    @property
    def best(self) -> Any:
        """The best trial that was trained to its end; None without one."""
        return next((trial for trial in self.ranked()[:1] if trial.state.name == "COMPLETE"), None)

    @property
    def under_way(self) -> int:
        """How many trials other commands train."""
        running = [trial.number for trial in self.trials if trial.state.name == "RUNNING"]
        return len(set(running) - self.failed)


def value_of(trial: Any) -> float | None:
    """The metric of a trial; of one that was not trained to its end, its last evaluation."""
    value = trial.value
    if value is None and trial.intermediate_values:
        value = trial.intermediate_values[max(trial.intermediate_values)]
    return None if value is None or not math.isfinite(value) else float(value)


def show(summary: Results, parameters: Sequence[Parameter]) -> None:
    """The table of trials, the best first."""
    rows = []
    for trial in summary.ranked():
        values = [_text(trial.params.get(parameter.key)) for parameter in parameters]
        state = "failed" if trial.number in summary.failed else STATES[trial.state.name]
        rows.append((str(trial.number), *values, shown(value_of(trial), 5), state))
    names = [parameter.key.lstrip("+") for parameter in parameters]
    progress.table("", ("trial", *names, f"{summary.monitor} (validation)", ""), rows)


def _text(value: Value | None) -> str:
    """A value as the table shows it."""
    if value is None:
        return "-"
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}…"


def report_of(output: str, number: int) -> Report:
    """The report of a trial that was trained to its end. Raises Failure."""
    url = files.join(output, folder_of(number))
    report = run_folder.finished(url)
    if report is None:
        raise Failure(f"{url} has no whole report of the best trial. Give overwrite=true")
    return report


def passes_of_best(report: Report) -> int:
    """How many passes the model took that a run has kept.

    Where the best model is of the middle of a pass, those up to the nearest end of one.
    """
    if report.best is None or not report.best.kept:
        return len(report.epochs)
    step = report.best.step
    return min(report.epochs, key=lambda epoch: abs(epoch.step - step)).epoch
