"""What is shown and recorded of training: the terminal, log.jsonl, TensorBoard, seconds.

Each observer sees every event of the training loop, in the order in which it happens.
"""

import time
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import tensorflow as tf

from tnctl import documents, files
from tnctl.data.days import daily
from tnctl.evaluation.metrics import shown
from tnctl.evaluation.split_scoring import metrics_line
from tnctl.model.parameter_tables import total_bytes, total_rows
from tnctl.progress import Display, say, size
from tnctl.schema import Conf
from tnctl.training import events, row_life, schedule
from tnctl.training.events import Event, PassUnderWay
from tnctl.training.report.tensorboard import EventFile
from tnctl.training.report.worker_figures import KINDS, WorkerFigures, WorkerSums
from tnctl.training.run_folder import TENSORBOARD, Log
from tnctl.training.schedule import is_crossed
from tnctl.training.state import RunState
from tnctl.training.workers import SplitMetrics, Workers

STEPS_BETWEEN_UPDATES = 8
SECONDS = 10.0  # to twice of which the line about now is of
MOST_LISTED = 8  # workers whose shares are listed in a line
LEAST_WAIT = 0.01  # share of the workers' time; below it nobody is waited for


class Observer(Protocol):
    """Reacts to what happens in training."""

    def see(self, event: Event) -> None:
        """Do what the event requires, before the loop continues."""


@dataclass
class Stopwatch:
    """Seconds spent, for the part of the report that differs between any two runs."""

    started: float = field(default_factory=time.perf_counter)
    earlier: float = 0.0
    """of the processes that trained the run before it was resumed"""
    training: float = 0.0
    waiting: float = 0.0
    evaluating: float = 0.0
    saving: float = 0.0
    examples: int = 0

    def see(self, event: Event) -> None:
        """Add the seconds of an event."""
        match event:
            case events.DayLooked(seconds=seconds):
                self.evaluating += seconds
            case events.Evaluated(measured=measured):
                self.evaluating += measured.seconds
            case events.PassTrained(current=current):
                self.waiting += current.batches.seconds_waited
                self.training += current.seconds_training
                self.examples += current.examples

    def now(self) -> dict[str, float]:
        """The seconds since the run began, without the time in which no process trained it.

        It is the first key under `timing` of lines of log.jsonl.
        """
        return {"seconds": round(self.earlier + time.perf_counter() - self.started, 3)}

    def timing(self) -> dict[str, float]:
        """The keys under `timing` in a line of log.jsonl."""
        speed = self.examples / self.training if self.training else 0.0
        return {
            **self.now(),
            "training_seconds": round(self.training, 3),
            "input_wait_seconds": round(self.waiting, 3),
            "evaluation_seconds": round(self.evaluating, 3),
            "save_seconds": round(self.saving, 3),
            "examples_per_second": round(speed, 1),
        }


class WorkerWatch:
    """Follows the figures of each worker; with one process there is nothing to show."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._of_pass = self._of_line = workers.sums()
        self._marks: deque[tuple[float, WorkerSums]] = deque(maxlen=2)
        self.scalars: dict[str, float] = {}
        """of the last line of log.jsonl, for TensorBoard"""
        self.pass_record: dict[str, Any] = {}
        """what the line of a pass in log.jsonl has, in `timing`"""

    def start_pass(self) -> None:
        """From now on `of_pass` has the sums of another pass."""
        self._of_pass = self._workers.sums()

    def now(self) -> str:
        """A line about the last 10 to 20 s; empty with one process."""
        if (sums := self._workers.sums()) is None:
            return ""
        now = time.monotonic()
        if not self._marks or now - self._marks[-1][0] >= SECONDS:
            self._marks.append((now, sums))
        return line_of(sums.since(self._marks[0][1]))

    def of_pass(self) -> str:
        """A line about the whole pass, when its last step is done; sets `pass_record`."""
        sums = self._workers.sums()
        if sums is None or self._of_pass is None:
            return ""
        of_pass = sums.since(self._of_pass)
        self.pass_record = {"exchange": documents.plain(of_pass.exchanged.report())}
        return line_of(of_pass)

    def since_line(self) -> dict[str, Any]:
        """What a line of log.jsonl has of each worker, in `timing`, since the line before."""
        sums = self._workers.sums()
        if sums is None or self._of_line is None:
            return {}
        since_line, self._of_line = sums.since(self._of_line), sums
        self.scalars = scalars_of(since_line)
        return {
            "workers": [asdict(process.rounded()) for process in since_line.processes],
            "exchange": documents.plain(since_line.exchanged.report()),
        }


def line_of(sums: WorkerSums) -> str:
    """The shares of each worker's time, and which of them the others waited for most."""
    shares = {
        "data": lambda worker: worker.input_wait_seconds,
        "compute": lambda worker: worker.compute_seconds,
        "peers": lambda worker: worker.worker_wait_seconds + worker.idle_seconds,
        "network": lambda worker: worker.exchange_seconds,
    }
    parts = [
        f"{name} {_listed([worker.share(of(worker)) for worker in sums.workers])}"
        for name, of in shares.items()
    ]
    awaited, seconds = sums.exchanged.awaited, sum(worker.seconds for worker in sums.workers)
    if seconds and awaited.max() >= LEAST_WAIT * seconds:
        parts.append(f"waited for worker {awaited.argmax()}")
    return f"workers: {', '.join(parts)}"


def _listed(shares: Sequence[float]) -> str:
    """A share for each, or of many the least and the most."""
    if len(shares) > MOST_LISTED:
        return f"{min(shares):.0%} to {max(shares):.0%}"
    return " | ".join(f"{share:.0%}" for share in shares)


def scalars_of(sums: WorkerSums) -> dict[str, float]:
    """Numbers of each worker and server by tags such as `cluster_exchange_share/worker_0`."""
    of_workers = {**_by_process(sums.workers), "awaited_seconds": sums.exchanged.awaited.tolist()}
    if stale := sums.exchanged.staleness():
        of_workers |= {
            "staleness_mean": [worker.mean for worker in stale],
            "staleness_max": [worker.max for worker in stale],
            "ahead": [worker.ahead for worker in stale],
        }
    servers = [process for process in sums.processes if process.role == "server"]
    return {**_tagged(of_workers, "worker"), **_tagged(_by_process(servers), "server")}


def _by_process(figures: Sequence[WorkerFigures]) -> dict[str, Sequence[float]]:
    shares = {
        f"{kind}_share": [process.share(getattr(process, f"{kind}_seconds")) for process in figures]
        for kind in KINDS
    }
    return {**shares, "bytes_per_second": [process.bytes_per_second for process in figures]}


def _tagged(figures: dict[str, Sequence[float]], kind: str) -> dict[str, float]:
    return {
        f"cluster_{name}/{kind}_{number}": value
        for name, values in figures.items()
        for number, value in enumerate(values)
    }


class Screen:
    """A display of each pass, and lines for rows evicted, equal labels and stopping early."""

    def __init__(self, conf: Conf, state: RunState, workers: Workers, watch: WorkerWatch) -> None:
        self._monitor, self._state, self._workers = conf.evaluation.monitor, state, workers
        self._is_watched = schedule.matters(conf)
        self._watch = watch
        # A trial of a search has the passes of the search, and days have theirs.
        self._goes_on = conf.evaluation.test and not daily(conf)
        self._displays = ExitStack()
        self._display: Display | None = None

    def see(self, event: Event) -> None:
        """Show an event."""
        match event:
            case events.PassStarts(current=current):
                display = Display(
                    current.title,
                    current.rows,
                    current.rows_are_estimated,
                    current.examples_at_start,
                )
                self._display = self._displays.enter_context(display)
                self._watch.start_pass()
            case events.StepDone(current=current, number=number):
                if number % STEPS_BETWEEN_UPDATES == 0:
                    self._update(current, self._watch.now(), self._validation())
            case events.LabelsEqual(source=source, only=only, where=where):
                say(
                    f"warning: with {source} the label is {only:g} in {where}. `tnctl check` shows "
                    "what the column has"
                )
            case events.PassTrained(current=current):
                self._update(current, self._watch.of_pass()).finish()
                self.close()
            case events.Evaluated(measured=measured):
                show_metrics(measured)
                if measured.metrics.get(self._monitor, 0.0) is None and self._is_watched:
                    say(
                        f"evaluation.monitor={self._monitor} is undefined on these examples: this "
                        "evaluation counts neither as better nor as worse"
                    )
            case events.RowsEvicted(removed=removed) if count := sum(removed.values()):
                rows = total_rows(self._workers.figures())
                say(f"{count:,} rows were evicted; {rows:,} remain")
            case events.PassEnds(figures=epoch, is_last=True, stops_early=False) if (
                self._state.stopping.best_step == epoch.step and self._goes_on
            ):
                say(
                    f"the last pass was the best by {self._monitor}, so more may be better: the "
                    f"same command with train.epochs={epoch.epoch + 5} goes on"
                )
            case events.PassEnds(stops_early=True):
                stopping = self._state.stopping
                say(
                    f"stopped early: {stopping.without} evaluations without a better "
                    f"{self._monitor} than {stopping.best:.5f}"
                )

    def close(self) -> None:
        """Leave the terminal without a display."""
        self._displays.close()

    def _update(
        self, current: PassUnderWay, of_workers: str, more: dict[str, str] | None = None
    ) -> Display:
        assert self._display is not None
        shown_now = figures(current, self._workers) | (more or {})
        self._display.update(current.sums.examples, shown_now, of_workers)
        return self._display

    def _validation(self) -> dict[str, str]:
        """The monitored metric at the last evaluation, if there was one."""
        evaluations = self._state.evaluations
        if not evaluations:
            return {}
        return {f"validation {self._monitor}": shown(evaluations[-1].figure(self._monitor), 4)}


def show_metrics(measured: SplitMetrics) -> None:
    """A line with the metrics of a split, unless they were known already."""
    if measured.seconds:
        say(f"{measured.split}  {metrics_line(measured.metrics)}")


def figures(current: PassUnderWay, workers: Workers) -> dict[str, str]:
    """The pass so far, as the display shows it."""
    seconds, sums = current.seconds_training, current.sums
    tables = workers.figures()
    return {
        "examples": f"{sums.examples:,}",
        "examples/s": f"{current.examples / seconds:,.0f}",
        "loss": f"{sums.loss:.4f}",
        **({"auc": shown(sums.area(), 4)} if sums.classes else {}),
        "rows": f"{total_rows(tables):,} ({size(total_bytes(tables))})",
        **row_life.totals(workers.model.layout, tables),
        # The share of the time that was spent waiting for data; the rest was spent in steps.
        "waited": f"{min(current.batches.seconds_waited / seconds, 1):.0%}",
        **({} if current.rate_factor == 1 else {"rate": f"× {current.rate_factor:.4g}"}),
    }


class Recorder:
    """Lines of log.jsonl, and TensorBoard's event files where the conf asks for them."""

    def __init__(
        self,
        state: RunState,
        workers: Workers,
        log: Log,
        stopwatch: Stopwatch,
        watch: WorkerWatch,
        event_files: EventFile | None,
    ) -> None:
        self._state, self._workers, self._watch = state, workers, watch
        self._log, self._stopwatch, self._event_files = log, stopwatch, event_files
        self._looked_at = state.steps

    def see(self, event: Event) -> None:
        """Record an event."""
        match event:
            case events.StepDone(current=current):
                earlier, self._looked_at = self._looked_at, self._state.steps
                if logged(self._state.steps, earlier):
                    self._record_steps(current)
            case events.Evaluated(evaluation=evaluation, is_best=is_best, seconds=seconds):
                timing = {**self._stopwatch.now(), "evaluation_seconds": round(seconds, 3)}
                fields = documents.plain(evaluation)
                self._log.add("evaluation", **fields, better=is_best, timing=timing)
                self._log.flush()
            case events.PassEnds(figures=epoch):
                timing = self._stopwatch.timing() | self._watch.pass_record
                self._log.add("epoch", **documents.plain(epoch), timing=timing)
            case events.DayEnds(record=record):
                fields = {"step": self._state.steps, **documents.plain(record)}
                self._log.add("day", **fields, timing=self._stopwatch.timing())
        if self._event_files is not None:
            self._write_events(self._event_files, event)

    def _record_steps(self, current: PassUnderWay) -> None:
        """A line about the steps since the one before."""
        seconds, sums = current.seconds_training, current.sums
        values = {
            "loss": sums.loss_since(),
            "running_auc": sums.area(),
            "rate_factor": current.rate_factor,
            "rows": total_rows(self._workers.figures()),
        }
        speed = current.examples / seconds
        self._log.add(
            "step",
            step=self._state.steps,
            epoch=current.epoch + 1,
            examples=sums.examples,
            **values,
            timing={
                **self._stopwatch.now(),
                "examples_per_second": round(speed, 1),
                "input_wait_share": round(min(current.batches.seconds_waited / seconds, 1), 4),
                **self._watch.since_line(),
            },
        )
        if self._event_files is not None:
            values["examples_per_second"] = speed
            scalars = {f"train/{key}": value for key, value in values.items() if value is not None}
            self._event_files.scalars(self._state.steps, scalars | self._watch.scalars)

    def _write_events(self, event_files: EventFile, event: Event) -> None:
        steps = self._state.steps
        match event:
            case events.DayLooked(record=record) if record.before is not None:
                event_files.metrics(steps, record.before, "next_day")
            case events.Evaluated(evaluation=evaluation):
                event_files.metrics(steps, evaluation.validation)
                event_files.weights(steps, self._workers.model)
                event_files.flush()
            case events.PassEnds():
                event_files.flush()


def logged(steps: int, earlier: int) -> bool:
    """Whether the steps after `earlier` get a line in log.jsonl: first every 10th, later fewer."""
    return is_crossed(10 if steps <= 1000 else 100 if steps <= 10_000 else 1000, earlier, steps)


class Profiler:
    """Writes a profile of the steps from the first to the last of `steps`, counted from 1."""

    def __init__(self, output: str, steps: Sequence[int], state: RunState) -> None:
        self._url = files.join(output, TENSORBOARD)
        self._first, self._last = steps
        self._state = state
        self._looked_at = state.steps
        self._folder: files.TemporaryFolder | None = None  # while the profiler runs

    def see(self, event: events.Event) -> None:
        """Start or stop the profiler."""
        match event:
            case events.BetweenSteps() if self._is_due():
                self._folder = files.TemporaryFolder("profile")
                with files.translated(self._url, "written"):
                    tf.profiler.experimental.start(self._folder.name)
            case events.StepDone() if self._state.steps >= self._last:
                self.close()

    def _is_due(self) -> bool:
        earlier, self._looked_at = self._looked_at, self._state.steps + 1
        return earlier < self._first <= self._looked_at

    def close(self) -> None:
        """Write the profile of the steps so far, if the profiler runs."""
        if self._folder is None:
            return
        folder, self._folder = self._folder, None
        with files.translated(self._url, "written"):
            tf.profiler.experimental.stop()
        root = Path(folder.name, "plugins")
        files.upload_folder(root, files.join(self._url, "plugins"))
        folder.cleanup()
