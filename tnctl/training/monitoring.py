"""A run as monitoring sees it: `monitor` of its conf says where its figures are written."""

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
from tnctl.training.observers import Stopwatch
from tnctl.training.report import mlflow_run, prometheus
from tnctl.training.report.report_document import Report, tagged
from tnctl.training.run_folder import Log
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
        self._mlflow: mlflow_run.MlflowRun | None = None
        self._warned, self._saved, self._steps = False, "", 0
        self._set(tnctl_running=1)
        if self._url is not None:
            prometheus.put(self._url, self._samples)

    def follow(
        self,
        conf: Conf,
        state: RunState,
        workers: Workers,
        checkpoints: Checkpoints,
        log: Log,
        stopwatch: Stopwatch,
    ) -> None:
        """From here on `see` reads figures of a run with its complete conf."""
        self._state, self._workers, self._stopwatch = state, workers, stopwatch
        self._checkpoints, self._saved, self._steps = checkpoints, checkpoints.staged, state.steps
        if self._conf.monitor.mlflow is not None:
            self._mlflow = mlflow_run.MlflowRun(self._conf.monitor.mlflow, conf, log)
            self._mlflow.send(state.steps)

    def see(self, event: Event) -> None:
        """Write the figures that an event changes."""
        heads = self._workers.model.heads
        match event:
            case DayLooked(record=record):
                self._metrics("next_day", record.before or {}, heads)
            case Evaluated(evaluation=evaluation):
                self._metrics("validation", evaluation.validation, heads)
            case PassEnds(figures=epoch):
                figures = {"loss": epoch.loss, "running_auc": epoch.running_auc}
                self._note(tagged("train", figures))
            case DayEnds(record=record):
                self._day(record)
            case _ if self._checkpoints.staged == self._saved:
                return
        self._of_run()
        self._write()

    def report(self, report: Report, heads: Sequence[str]) -> None:
        """Take the figures of the model that was kept; `end` writes them."""
        if report.split is not None:
            self._metrics(report.split, report.metrics, heads)
        for record in (report.days or ())[-1:]:
            self._day(record)
        self._set(tnctl_steps=report.steps, tnctl_seconds=report.timing.seconds)

    def end(self, code: int, refused: bool) -> None:
        """Write how the process ends."""
        self._set(tnctl_running=0, tnctl_exit_code=code, tnctl_gate_refused=int(refused))
        if code == 0:
            self._set(**{prometheus.SUCCESS: time.time()})
        self._write(STATUSES.get(code, "FAILED"))

    def _of_run(self) -> None:
        """Take what is true at any time."""
        model, tables = self._workers.model, self._workers.figures()
        lives = row_life.figures(model.layout, tables).values()
        self._steps = self._state.steps
        self._set(
            tnctl_steps=self._steps,
            tnctl_rows=total_rows(tables),
            tnctl_evicted_rows=sum(life.evicted for life in lives),
            **{"tnctl_" + name: value for name, value in self._stopwatch.now().items()},
        )
        if self._checkpoints.staged != self._saved:
            self._saved = self._checkpoints.staged
            self._set(tnctl_checkpoint_timestamp_seconds=time.time())

    def _day(self, record: DayRecord) -> None:
        self._set(tnctl_day_examples=record.rows, tnctl_gate_accepted=len(record.accepted))
        if (day := calendar(record.day)) is not None:
            midnight = datetime(day.year, day.month, day.day, tzinfo=UTC)
            self._set(tnctl_day_timestamp_seconds=midnight.timestamp())
        self._note({"day/examples": float(record.rows)})

    def _metrics(self, split: str, metrics: Mapping[str, Any], heads: Sequence[str]) -> None:
        """Take the metrics of a split, of its main head and of others."""
        for head, of_head in {metrics.get("head", heads[0]): metrics, **metrics.get("heads", {})}.items():
            values = {name: number_of(of_head, name) for name in prometheus.METRICS}
            numbers = {f"tnctl_{name}": value for name, value in values.items() if value is not None}
            self._set(numbers, head=head, split=split)
        self._note(tagged(split, metrics))

    def _set(self, figures: Mapping[str, float] | None = None, **more: Any) -> None:
        raise NotImplementedError

    def _note(self, figures: Mapping[str, float]) -> None:
        if self._mlflow is not None:
            self._mlflow.add(self._steps, figures)

    def _write(self, status: str = "RUNNING") -> None:
        """Write all figures. A file that cannot be written any more is a line, and no error."""
