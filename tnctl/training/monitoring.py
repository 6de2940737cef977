"""A run as monitoring sees it: `monitor` of its conf says where its figures are written."""

import math
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Self

from tnctl.checkpoint.document import number_of
from tnctl.data.day_records import DayRecord
from tnctl.data.days import calendar
from tnctl.errors import UserError, exit_code_of
from tnctl.model.parameter_tables import total_rows
from tnctl.progress import say
from tnctl.schema import Conf
from tnctl.training import row_life
from tnctl.training.days.gate import DayRefused
from tnctl.training.loop import DayEnds, DayLooked, EndedError, Evaluated, Event, PassEnds
from tnctl.training.report import prometheus
from tnctl.training.report.mlflow_run import MlflowRun
from tnctl.training.report.report_document import LifeFigures, Report, tagged
from tnctl.training.saving import Checkpoints

STATUSES = {0: "FINISHED", 130: "KILLED", 143: "KILLED"}  # of MLflow, by exit code


class Monitor:
    """Writes figures at each evaluation, pass, day and checkpoint, and when a process ends."""

    def __init__(self, conf: Conf) -> None:
        self._output, self._places = conf.output, conf.monitor
        self._samples: prometheus.Samples = {}
        self._mlflow: MlflowRun | None = None
        self._checkpoints: Checkpoints | None = None
        self._steps, self._saved, self._warned = 0, "", False

    def __enter__(self) -> Self:
        """Raises UserError and Failure for a file that cannot be written."""
        self._set(running=1)
        if self._places.prometheus is not None:
            prometheus.put(self._places.prometheus, self._samples)
        return self

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> None:
        code = 0 if error is None or isinstance(error, EndedError) else exit_code_of(error)
        self._set(running=0, exit_code=code, gate_refused=int(isinstance(error, DayRefused)))
        if code == 0:
            self._set(success_timestamp_seconds=time.time())
        self._write(STATUSES.get(code, "FAILED"))

    def follow(self, conf: Conf, checkpoints: Checkpoints) -> None:
        """From here on `see` takes figures of a run; `conf` is complete."""
        self._checkpoints, self._saved = checkpoints, checkpoints.staged
        self._steps = checkpoints.state.steps
        if self._places.mlflow is not None:
            self._mlflow = MlflowRun(self._places.mlflow, conf, checkpoints.log)
            self._mlflow.send(self._steps)

    def see(self, event: Event) -> None:
        """Write the figures that an event changes."""
        checkpoints = self._checkpoints
        if checkpoints is None or not (self._places.prometheus or self._places.mlflow):
            return
        model, self._steps = checkpoints.workers.model, checkpoints.state.steps
        match event:
            case DayLooked(record=record):
                self._metrics("next_day", record.before or {}, model.heads)
            case Evaluated(evaluation=evaluation):
                self._metrics("validation", evaluation.validation, model.heads)
            case PassEnds(figures=epoch):
                self._note("train", {"loss": epoch.loss, "running_auc": epoch.running_auc})
            case DayEnds(record=record):
                self._day(record)
            case _ if checkpoints.staged == self._saved:
                return
        tables = checkpoints.workers.figures()
        lives = row_life.figures(model.layout, tables)
        self._size(checkpoints.stopwatch.now()["seconds"], total_rows(tables), lives)
        self._write()

    def report(self, report: Report, heads: Sequence[str]) -> None:
        """Take the figures of the model that a run ends with, which are written at the end."""
        self._note_checkpoint()
        self._steps = report.steps
        if report.split is not None:
            self._metrics(report.split, report.metrics, heads)
        for record in (report.days or ())[-1:]:
            self._day(record)
        rows = sum(table.rows for table in report.tables.values())
        self._size(report.timing.seconds, rows, report.life or {})

    def _size(self, seconds: float, rows: int, lives: Mapping[str, LifeFigures]) -> None:
        evicted = sum(life.evicted for life in lives.values())
        self._set(steps=self._steps, run_seconds=seconds, rows=rows, evicted_rows=evicted)

    def _day(self, record: DayRecord) -> None:
        self._set(day_examples=record.rows, gate_accepted=len(record.accepted))
        if (day := calendar(record.day)) is not None:
            midnight = datetime(day.year, day.month, day.day, tzinfo=UTC)
            self._set(day_timestamp_seconds=midnight.timestamp())
        self._note("day", {"examples": record.rows})

    def _metrics(self, split: str, metrics: Mapping[str, Any], heads: Sequence[str]) -> None:
        by_head = {metrics.get("head", heads[0]): metrics, **metrics.get("heads", {})}
        for head, of_head in by_head.items():
            names = [name for name in prometheus.METRICS if name in of_head]
            figures = {name: number_of(of_head, name) for name in names}
            self._set({"head": head, "split": split}, **figures)
        self._note(split, metrics)

    def _set(self, more: Mapping[str, str] | None = None, **figures: float | None) -> None:
        """Take figures by their names without `tnctl_`, with `more` labels; None is undefined."""
        labels = prometheus.labels(self._output, **(more or {}))
        for name, value in figures.items():
            self._samples[f"tnctl_{name}", labels] = math.nan if value is None else value

    def _note(self, name: str, figures: Mapping[str, Any]) -> None:
        if self._mlflow is not None:
            self._mlflow.add(self._steps, tagged(name, figures))

    def _note_checkpoint(self) -> None:
        if self._checkpoints is not None and self._checkpoints.staged != self._saved:
            self._saved = self._checkpoints.staged
            self._set(checkpoint_timestamp_seconds=time.time())

    def _write(self, status: str = "RUNNING") -> None:
        """Write all figures; a file that cannot be written any more is a line, and no error."""
        self._note_checkpoint()
        self._set(update_timestamp_seconds=time.time())
        if self._mlflow is not None:
            self._mlflow.send(self._steps, status)
        try:
            if self._places.prometheus is not None:
                prometheus.put(self._places.prometheus, self._samples)
        except UserError as error:
            if not self._warned:
                say(f"warning: {error}. Training goes on")
            self._warned = True
