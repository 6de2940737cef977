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
from tnctl.limits import size
from tnctl.model.parameter_tables import total_bytes, total_rows
from tnctl.progress import Display, say
from tnctl.schema import Conf
from tnctl.training import row_life, schedule
from tnctl.training.loop import (
    BetweenSteps,
    DayEnds,
    DayLooked,
    Evaluated,
    Event,
    LabelsEqual,
    LateTrained,
    PassEnds,
    PassStarts,
    PassTrained,
    PassUnderWay,
    RowsEvicted,
    StepDone,
)
from tnctl.training.report.report_document import TENSORBOARD
from tnctl.training.report.tensorboard import EventFile
from tnctl.training.report.worker_figures import KINDS, WorkerSums
from tnctl.training.run_folder import Log
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
            case DayLooked(seconds=seconds) | LateTrained(seconds=seconds):
                self.evaluating += seconds
            case Evaluated(measured=measured):
                self.evaluating += measured.seconds
            case PassTrained(current=current):
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
    scalars: dict[str, float] = {}
    servers = [process for process in sums.processes if process.role == "server"]
    for role, processes in (("worker", sums.workers), ("server", servers)):
        for rank, process in enumerate(processes):
            shares = {f"{kind}_share": getattr(process, f"{kind}_seconds") for kind in KINDS}
            figures = {name: process.share(seconds) for name, seconds in shares.items()}
            figures["bytes_per_second"] = process.bytes_per_second
            scalars |= {f"cluster_{name}/{role}_{rank}": figures[name] for name in figures}
    of_workers = {"awaited_seconds": sums.exchanged.awaited.tolist()}
    if stale := sums.exchanged.staleness():
        of_workers |= {
            "staleness_mean": [worker.mean for worker in stale],
            "staleness_max": [worker.max for worker in stale],
            "ahead": [worker.ahead for worker in stale],
        }
    return scalars | {
        f"cluster_{name}/worker_{rank}": value
        for name, values in of_workers.items()
        for rank, value in enumerate(values)
    }


@dataclass
class Screen:
    """A display of each pass, and lines for rows evicted, equal labels and stopping early."""

    conf: Conf
    state: RunState
    workers: Workers
    watch: WorkerWatch

    def __post_init__(self) -> None:
        self._monitor = self.conf.evaluation.monitor
        self._displays = ExitStack()
        self._display: Display | None = None

    def see(self, event: Event) -> None:
        """Show an event."""
        stopping = self.state.stopping
        match event:
            case PassStarts(current=current):
                display = Display(
                    current.title,
                    current.rows,
                    current.rows_are_estimated,
                    current.examples_at_start,
                )
                self._display = self._displays.enter_context(display)
                self.watch.start_pass()
            case StepDone(current=current, index=index):
                if index % STEPS_BETWEEN_UPDATES == 0:
                    self._update(current, self.watch.now(), self._validation())
            case LabelsEqual(source=source, only=only, where=where):
                say(
                    f"warning: with {source} the label is {only:g} in {where}. `tnctl check` shows "
                    "what the column has"
                )
            case PassTrained(current=current):
                self._update(current, self.watch.of_pass(), {}).finish()
                self.close()
            case Evaluated(measured=measured):
                show_metrics(measured)
                is_undefined = measured.metrics.get(self._monitor, 0.0) is None
                if is_undefined and schedule.matters(self.conf):
                    say(
                        f"evaluation.monitor={self._monitor} is undefined on these examples: this "
                        "evaluation counts neither as better nor as worse"
                    )
            case RowsEvicted(removed=removed) if count := sum(removed.values()):
                rows = total_rows(self.workers.figures())
                say(f"{count:,} rows were evicted; {rows:,} remain")
            case PassEnds(stops_early=True):
                say(
                    f"stopped early: {stopping.without} evaluations without a better "
                    f"{self._monitor} than {stopping.best:.5f}"
                )
            # A trial of a search has the passes of the search, and days have theirs.
            case PassEnds(figures=epoch, is_last=True) if (
                stopping.best_step == epoch.step
                and self.conf.evaluation.test
                and not daily(self.conf)
            ):
                say(
                    f"the last pass was the best by {self._monitor}, so more may be better: the "
                    f"same command with train.epochs={epoch.epoch + 5} goes on"
                )

    def close(self) -> None:
        """Leave the terminal without a display."""
        self._displays.close()

    def _update(self, current: PassUnderWay, of_workers: str, more: dict[str, str]) -> Display:
        assert self._display is not None
        shown_now = figures(current, self.workers) | more
        self._display.update(current.sums.examples, shown_now, of_workers)
        return self._display

    def _validation(self) -> dict[str, str]:
        """The monitored metric at the last evaluation, if there was one."""
        return {
            f"validation {self._monitor}": shown(evaluation.figure(self._monitor), 4)
            for evaluation in self.state.evaluations[-1:]
        }


def show_metrics(measured: SplitMetrics) -> None:
    """A line with the metrics of a split, unless they were known already."""
    if measured.seconds:
        say(f"{measured.split}  {metrics_line(measured.metrics)}")


def figures(current: PassUnderWay, workers: Workers) -> dict[str, str]:
    """The pass so far, as the display shows it."""
    sums, tables = current.sums, workers.figures()
    return {
        "examples": f"{sums.examples:,}",
        "examples/s": f"{current.speed:,.0f}",
        "loss": f"{sums.loss:.4f}",
        **({"auc": shown(sums.area(), 4)} if sums.classes else {}),
        "rows": f"{total_rows(tables):,} ({size(total_bytes(tables))})",
        **row_life.totals(workers.model.layout, tables),
        "waited": f"{current.waited:.0%}",
        **({} if current.rate_factor == 1 else {"rate": f"× {current.rate_factor:.4g}"}),
    }


@dataclass
class Recorder:
    """Lines of log.jsonl, and TensorBoard's event files where the conf asks for them."""

    state: RunState
    workers: Workers
    log: Log
    stopwatch: Stopwatch
    watch: WorkerWatch
    event_files: EventFile | None

    def __post_init__(self) -> None:
        self._looked_at = self.state.steps

    def see(self, event: Event) -> None:
        """Record an event."""
        steps, event_files = self.state.steps, self.event_files
        match event:
            case DayLooked(record=record) if event_files is not None and record.before is not None:
                event_files.metrics(steps, record.before, "next_day")
            case StepDone(current=current):
                earlier, self._looked_at = self._looked_at, steps
                if logged(steps, earlier):
                    self._record_steps(current)
            case Evaluated(evaluation=evaluation, is_best=is_best, seconds=seconds):
                timing = {**self.stopwatch.now(), "evaluation_seconds": round(seconds, 3)}
                fields = documents.plain(evaluation)
                self.log.add("evaluation", **fields, better=is_best, timing=timing)
                self.log.flush()
                if event_files is not None:
                    event_files.metrics(steps, evaluation.validation)
                    event_files.weights(steps, self.workers.model)
                    event_files.flush()
            case PassEnds(figures=epoch):
                timing = self.stopwatch.timing() | self.watch.pass_record
                self.log.add("epoch", **documents.plain(epoch), timing=timing)
                if event_files is not None:
                    event_files.flush()
            case DayEnds(record=record) | LateTrained(record=record):
                name = "day" if isinstance(event, DayEnds) else "late"
                timing = self.stopwatch.timing()
                self.log.add(name, step=steps, **documents.plain(record), timing=timing)

    def _record_steps(self, current: PassUnderWay) -> None:
        """A line about the steps since the one before."""
        values = {
            "loss": current.sums.loss_since(),
            "running_auc": current.sums.area(),
            "rate_factor": current.rate_factor,
            "rows": total_rows(self.workers.figures()),
        }
        speed = current.speed
        self.log.add(
            "step",
            step=self.state.steps,
            epoch=current.epoch + 1,
            examples=current.sums.examples,
            **values,
            timing={
                **self.stopwatch.now(),
                "examples_per_second": round(speed, 1),
                "input_wait_share": round(current.waited, 4),
                **self.watch.since_line(),
            },
        )
        if self.event_files is not None:
            values["examples_per_second"] = speed
            scalars = {f"train/{key}": value for key, value in values.items() if value is not None}
            self.event_files.scalars(self.state.steps, scalars | self.watch.scalars)


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

    def see(self, event: Event) -> None:
        """Start or stop the profiler."""
        match event:
            case BetweenSteps():
                earlier, self._looked_at = self._looked_at, self._state.steps + 1
                if earlier < self._first <= self._looked_at:
                    self._folder = files.TemporaryFolder("profile")
                    with files.translated(self._url, "written"):
                        tf.profiler.experimental.start(self._folder.name)
            case StepDone() if self._state.steps >= self._last:
                self.close()

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
