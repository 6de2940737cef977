"""A run as monitoring sees it: `monitor` of its conf says where its figures are written."""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from tnctl.checkpoint.document import number_of
from tnctl.data.day_records import DayRecord
from tnctl.data.days import calendar
from tnctl.errors import Stopped, UserError
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
from tnctl.training.state import RunState
from tnctl.training.workers import Workers

STATUSES = {0: "FINISHED", 130: "KILLED", 143: "KILLED"}  # of MLflow, by exit code


@contextmanager
def monitored(conf: Conf) -> Iterator["Monitor"]:
    """What monitors a run in the block, whose end it records. Raises UserError, Failure."""
    monitor, code, refused = Monitor(conf), 1, False
    try:
        yield monitor
        code = 0
    except EndedError:
        code = 0
        raise
    except KeyboardInterrupt as error:
        code = error.exit_code if isinstance(error, Stopped) else 130
        raise
    except UserError as error:
        code, refused = error.exit_code, isinstance(error, DayRefused)
        raise
    finally:
        monitor.end(code, refused)


class Monitor:
    """Writes figures at each evaluation, pass, day and checkpoint; does nothing without a place."""

    def __init__(self, conf: Conf) -> None:
        """Raises UserError and Failure for a file that cannot be written."""
        self._conf, self._url = conf, conf.monitor.prometheus
        self._samples: prometheus.Samples = {}
        self._mlflow: MlflowRun | None = None
        self._checkpoints: Checkpoints | None = None
        self._steps, self._warned, self._saved = 0, False, ""
        self._set(running=1)
        if self._url is not None:
            prometheus.put(self._url, self._samples)

    def follow(
        self, conf: Conf, state: RunState, workers: Workers, checkpoints: Checkpoints
    ) -> None:
        """From here on `see` takes the figures of a run; `conf` is complete."""
        self._state, self._workers, self._checkpoints = state, workers, checkpoints
        self._saved, self._steps = checkpoints.staged, state.steps
        if self._conf.monitor.mlflow is not None:
            self._mlflow = MlflowRun(self._conf.monitor.mlflow, conf, checkpoints.log)
            self._mlflow.send(state.steps)

    def see(self, event: Event) -> None:
        """Write the figures that an event changes."""
        heads, self._steps = self._workers.model.heads, self._state.steps
        checkpoints = self._checkpoints
        assert checkpoints is not None  # `follow` comes first
        match event:
            case DayLooked(record=record):
                self._metrics("next_day", record.before or {}, heads)
            case Evaluated(evaluation=evaluation):
                self._metrics("validation", evaluation.validation, heads)
            case PassEnds(figures=epoch):
                self._note("train", {"loss": epoch.loss, "running_auc": epoch.running_auc})
            case DayEnds(record=record):
                self._day(record)
            case _ if checkpoints.staged == self._saved:
                return
        tables = self._workers.figures()
        lives = row_life.figures(self._workers.model.layout, tables)
        self._size(checkpoints.stopwatch.now()["seconds"], total_rows(tables), lives)
        self._write()

    def report(self, report: Report, heads: Sequence[str]) -> None:
        """Take the figures of the model that a run ends with; `end` writes them."""
        self._steps = report.steps
        if report.split is not None:
            self._metrics(report.split, report.metrics, heads)
        for record in (report.days or ())[-1:]:
            self._day(record)
        rows = sum(table.rows for table in report.tables.values())
        self._size(report.timing.seconds, rows, report.life or {})

    def end(self, code: int, refused: bool) -> None:
        """Write how the process ends."""
        self._set(running=0, exit_code=code, gate_refused=int(refused))
        if code == 0:
            self._set(success_timestamp_seconds=time.time())
        self._write(STATUSES.get(code, "FAILED"))

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
        """Take the metrics of the main head, and of others, on a split."""
        by_head = {metrics.get("head", heads[0]): metrics, **metrics.get("heads", {})}
        for head, of_head in by_head.items():
            figures = {name: number_of(of_head, name) for name in prometheus.METRICS if name in of_head}
            self._set({"head": head, "split": split}, **figures)
        self._note(split, metrics)

    def _set(self, more: Mapping[str, str] | None = None, **figures: float | None) -> None:
        """Take figures by their names without `tnctl_`, with `more` labels; None is undefined."""
        labels = prometheus.labels(self._conf.output, **(more or {}))
        for name, value in figures.items():
            self._samples[f"tnctl_{name}", labels] = math.nan if value is None else value

    def _note(self, name: str, figures: Mapping[str, Any]) -> None:
        if self._mlflow is not None:
            self._mlflow.add(self._steps, tagged(name, figures))

    def _write(self, status: str = "RUNNING") -> None:
        """Write all figures; a file that cannot be written any more is a line, and no error."""
        now = time.time()
        self._set(update_timestamp_seconds=now)
        if self._checkpoints is not None and self._checkpoints.staged != self._saved:
            self._saved = self._checkpoints.staged
            self._set(checkpoint_timestamp_seconds=now)
        if self._mlflow is not None:
            self._mlflow.send(self._steps, status)
        if self._url is None:
            return
        try:
            prometheus.put(self._url, self._samples)
        except UserError as error:
            if not self._warned:
                say(f"warning: {error}. Training goes on")
            self._warned = True
