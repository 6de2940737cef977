"""One run as it is compared with others: its conf, its results, and what is wrong with it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Literal

from pydantic import JsonValue

from tnctl import files, limits
from tnctl.checkpoint.chain import FOLDER as CHECKPOINTS
from tnctl.checkpoint.chain import Checkpoint, newest_first, open_checkpoint
from tnctl.checkpoint.document import Evaluation, number_of
from tnctl.data.day_records import DayRecord
from tnctl.documents import DocumentError
from tnctl.errors import Failure
from tnctl.evaluation.metrics import METRICS
from tnctl.saved_conf import conf_of, conf_to_json
from tnctl.training import run_folder
from tnctl.training.report.report_document import Report
from tnctl.training.run_folder import LOG, REPORT

State = Literal["finished", "unfinished", "failed", "pruned", "damaged"]
LOG_BYTES = 16 << 20  # of a log whose end is looked at
SOURCE = "sha256"  # beside recipe.name: two runs of one recipe may have other code


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """A run. `validation` and `test` are metrics of the model that is kept, by their names.

    Of daily training `validation` is the mean over its days, each before it was trained. Of a run
    that is not finished, `validation`, `step` and `rows` are of its newest checkpoint; it has
    failed, or a search has pruned it, if its log ends so, and its `problem` is the reason. `conf`
    has plain values, with those of keys that an older tnctl did not have. It is None where no
    checkpoint can be read.
    """

    name: str
    output: str
    state: State
    problem: str | None = None
    conf: dict[str, Any] | None = None
    step: int | None = None
    validation: dict[str, float] = field(default_factory=dict)
    test: dict[str, float] = field(default_factory=dict)
    seconds: float | None = None
    rows: int | None = None
    bytes: int | None = None

    @property
    def monitor(self) -> str | None:
        """The metric that the run kept its best model by."""
        return None if self.conf is None else str(self.conf["evaluation"]["monitor"])

    @property
    def seed(self) -> int | None:
        return None if self.conf is None else int(self.conf["seed"])


class ForeignError(Exception):
    """A folder with a file of a run's name that tnctl did not write; the message says which."""


def summary_of(name: str, output: str, names: set[str]) -> RunSummary:
    """What is known of the run at `output`, whose files have `names`.

    Raises ForeignError for what is no run. Damage is told in `problem`.
    """
    report, problem = _report(output) if REPORT in names else (None, None)
    checkpoint, conf, damage = _checkpoint(output) if CHECKPOINTS in names else (None, None, None)
    if report is not None:
        # Damage of a newer checkpoint concerns who resumes the run, and not its results.
        damage = damage if conf is None else None
        return _finished(name, output, report, conf, damage)
    if checkpoint is None and damage is None and not (LOG in names and _has_log(output)):
        raise ForeignError(problem or f"{files.join(output, LOG)} is no log of tnctl")
    problem = problem or damage
    state: State = "damaged"
    if problem is None:
        state, problem = _end(output) if LOG in names else ("unfinished", None)
    if checkpoint is None:
        problem = problem or "no checkpoint yet"
        return RunSummary(name=name, output=output, state=state, problem=problem)
    content = checkpoint.manifest
    validation = content.validation
    if validation is None and content.recalibration is None:
        validation = _kept(content.metrics.evaluations, None)
    return RunSummary(
        name=name,
        output=output,
        state=state,
        problem=problem,
        conf=conf,
        step=content.steps_trained,
        validation=figures(validation or {}) or of_days(content.days),
        rows=content.rows,
    )


def _finished(
    name: str,
    output: str,
    report: Report,
    conf: dict[str, Any] | None,
    problem: str | None,
) -> RunSummary:
    best = report.best.step if report.best is not None and report.best.kept else None
    validation = report.of_split("validation") or _kept(report.evaluations, best)
    tables = report.tables.values()
    return RunSummary(
        name=name,
        output=output,
        state="finished",
        problem=problem,
        conf=conf,
        step=report.steps,
        validation=figures(validation) or of_days(report.days or ()),
        test=figures(report.metrics if report.split == "test" else {}),
        seconds=report.timing.seconds if math.isfinite(report.timing.seconds) else None,
        rows=sum(table.rows for table in tables),
        bytes=sum(table.bytes for table in tables),
    )


def figures(metrics: Mapping[str, JsonValue]) -> dict[str, float]:
    """The metrics that are known by name and are finite numbers."""
    values = ((name, number_of(dict(metrics), name)) for name in METRICS)
    return {name: value for name, value in values if value is not None and math.isfinite(value)}


def of_days(days: Sequence[DayRecord]) -> dict[str, float]:
    """The means of the metrics that all days have which were evaluated before they were trained."""
    evaluated = [figures(day.before) for day in days if day.before is not None]
    shared = [name for name in METRICS if all(name in metrics for metrics in evaluated)]
    return {name: fmean(metrics[name] for metrics in evaluated) for name in shared if evaluated}


def _report(output: str) -> tuple[Report | None, str | None]:
    """The report of a run, or why there is none."""
    url = files.join(output, REPORT)
    try:
        return Report.parse(files.read_bytes(url, most=limits.MANIFEST_BYTES)), None
    except DocumentError as error:
        return None, f"{url} is damaged or no report of this tnctl: {error}"
    except Failure as error:
        return None, str(error)


def _checkpoint(output: str) -> tuple[Checkpoint | None, dict[str, Any] | None, str | None]:
    """The newest checkpoint with a conf that can be used, the conf, and what is damaged."""
    damage: str | None = None
    try:
        for folder in newest_first(files.join(output, CHECKPOINTS)):
            try:
                checkpoint = open_checkpoint(folder)
                conf = conf_to_json(conf_of(checkpoint.conf(), folder))
            except Failure as error:
                damage = damage or str(error)
                continue
            conf["recipe"][SOURCE] = checkpoint.manifest.recipe.sha256[:8]
            return checkpoint, conf, damage
    except Failure as error:
        damage = damage or str(error)
    return None, None, damage


def _has_log(output: str) -> bool:
    """Whether a log is one that a run began: it is empty, or has a line of a run."""
    try:
        return run_folder.is_of_a_run(output, LOG_BYTES)
    except Failure:
        return False


def _end(output: str) -> tuple[State, str | None]:
    """The state of a run without a report by the last line of its log, and the reason."""
    states: dict[str, State] = {run_folder.FAILED: "failed", run_folder.PRUNED: "pruned"}
    try:
        last = run_folder.lines_of(output, LOG_BYTES)[-1:]
    except Failure:
        last = []
    if not last or last[0].event not in states or not last[0].reason:
        return "unfinished", None
    return states[last[0].event], last[0].reason


def _kept(evaluations: Sequence[Evaluation], best: int | None) -> dict[str, JsonValue]:
    """The metrics of the model that is kept: of the best step, else of the last evaluation."""
    chosen = [entry for entry in evaluations if best is None or entry.step == best]
    return dict(chosen[-1].validation) if chosen else {}
