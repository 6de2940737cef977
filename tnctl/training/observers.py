"""What is shown and recorded of training: the terminal, log.jsonl, TensorBoard, seconds.

Each observer sees every event of the training loop, in the order in which it happens.
"""

import contextlib
import time
from dataclasses import dataclass, field
from typing import Protocol

from tnctl import documents
from tnctl.model.building import Model
from tnctl.progress import Display, say, size
from tnctl.schema import Conf
from tnctl.training import eviction, loop
from tnctl.training.loop import PassUnderWay
from tnctl.training.memory_watch import table_bytes
from tnctl.training.run_log import Log
from tnctl.training.state import RunState
from tnctl.training.tensorboard import EventFiles
from tnctl.training.workers import LocalWorkers

STEPS_BETWEEN_UPDATES = 8


class Observer(Protocol):
    """Sees what happens in training."""

    def see(self, event: loop.Event) -> None:
        """Do what the event asks for, before the loop continues."""


@dataclass
class Stopwatch:
    """Seconds spent, for the part of the report that no two runs share."""

    started: float = field(default_factory=time.perf_counter)
    training: float = 0.0
    waiting: float = 0.0
    evaluating: float = 0.0
    saving: float = 0.0
    examples: int = 0

    def see(self, event: loop.Event) -> None:
        """Add what an event took."""
        match event:
            case loop.DayLooked(seconds=seconds):
                self.evaluating += seconds
            case loop.Evaluated(measured=measured):
                self.evaluating += measured.seconds
            case loop.PassTrained(current=current):
                self.waiting += current.batches.seconds_waited
                self.training += current.seconds_training
                self.examples += current.examples

    def seconds(self) -> float:
        """Since the run began."""
        return time.perf_counter() - self.started

    def timing(self) -> dict[str, float]:
        """The keys under `timing` in a line of log.jsonl."""
        return {
            "seconds": round(self.seconds(), 3),
            "training_seconds": round(self.training, 3),
            "input_wait_seconds": round(self.waiting, 3),
            "evaluation_seconds": round(self.evaluating, 3),
            "save_seconds": round(self.saving, 3),
            "examples_per_second": round(self.examples / self.training, 1)
            if self.training
            else 0.0,
        }


class Screen:
    """A display of each pass, and a line for whatever else happens."""

    def __init__(self, conf: Conf, state: RunState, workers: LocalWorkers) -> None:
        self._conf, self._state, self._workers = conf, state, workers
        self._displays = contextlib.ExitStack()
        self._display: Display | None = None

    def see(self, event: loop.Event) -> None:
        """Show an event."""
        match event:
            case loop.PassStarts(current=current):
                self._display = self._displays.enter_context(
                    Display(
                        current.title,
                        current.rows,
                        current.rows_are_estimated,
                        current.examples_at_start,
                    )
                )
            case loop.StepDone(current=current, number=number):
                if number % STEPS_BETWEEN_UPDATES == 0:
                    self._update(current)
            case loop.PassTrained(current=current):
                self._update(current)
                assert self._display is not None
                self._display.finish()
                self.close()
            case loop.RowsEvicted(removed=removed):
                rows = sum(table.rows for table in self._workers.model.tables)
                say(f"{removed:,} rows were evicted; {rows:,} stay")
            case loop.PassEnds(stops_early=True):
                stopping = self._state.stopping
                say(
                    f"stopped early: {stopping.without} evaluations without a better "
                    f"{self._conf.evaluation.monitor} than {stopping.best:.5f}"
                )

    def close(self) -> None:
        """Leave the terminal as it was."""
        self._displays.close()

    def _update(self, current: PassUnderWay) -> None:
        assert self._display is not None
        self._display.update(current.sums.examples, figures(current, self._workers.model))


def figures(current: PassUnderWay, model: Model) -> dict[str, str]:
    """The pass so far, as the display shows it."""
    seconds, sums = current.seconds_training, current.sums
    shown = {
        "examples": f"{sums.examples:,}",
        "examples/s": f"{current.examples / seconds:,.0f}",
        "loss": f"{sums.loss:.4f}",
    }
    if (area := sums.area()) is not None:
        shown["auc"] = f"{area:.4f}"
    rows = sum(table.rows for table in model.tables)
    shown["rows"] = f"{rows:,} ({size(table_bytes(model))})"
    shown |= eviction.shown(model)
    # The rest of the time is that of the steps.
    shown["waited"] = f"{min(current.batches.seconds_waited / seconds, 1):.0%}"
    if current.rate_factor != 1:
        shown["rate"] = f"× {current.rate_factor:.4g}"
    return shown


class Recorder:
    """Lines of log.jsonl, and TensorBoard's event files where the conf asks for them."""

    def __init__(
        self,
        state: RunState,
        workers: LocalWorkers,
        log: Log,
        stopwatch: Stopwatch,
        events: EventFiles | None,
    ) -> None:
        self._state, self._workers = state, workers
        self._log, self._stopwatch, self._events = log, stopwatch, events

    def see(self, event: loop.Event) -> None:
        """Record an event."""
        match event:
            case loop.StepDone(current=current) if logged(self._state.steps):
                self._record_steps(current)
            case loop.Evaluated():
                self._record_evaluation(event)
            case loop.PassEnds(figures=epoch):
                self._log.add("epoch", **documents.plain(epoch), timing=self._stopwatch.timing())
            case loop.DayEnds(record=record):
                summary = documents.plain(record)
                timing = self._stopwatch.timing()
                self._log.add("day", step=self._state.steps, **summary, timing=timing)
        if self._events is not None:
            self._write_events(self._events, event)

    def _record_steps(self, current: PassUnderWay) -> None:
        """A line about the steps since the one before."""
        seconds, sums = current.seconds_training, current.sums
        values = {
            "loss": sums.loss_since(),
            "running_auc": sums.area(),
            "rate_factor": current.rate_factor,
            "rows": sum(table.rows for table in self._workers.model.tables),
        }
        speed = current.examples / seconds
        waited = current.batches.seconds_waited
        self._log.add(
            "step",
            step=self._state.steps,
            epoch=current.epoch + 1,
            examples=sums.examples,
            **values,
            timing={
                "seconds": round(self._stopwatch.seconds(), 3),
                "examples_per_second": round(speed, 1),
                "input_wait_share": round(min(waited / seconds, 1), 4),
            },
        )
        if self._events is not None:
            scalars = {f"train/{key}": value for key, value in values.items() if value is not None}
            scalars["train/examples_per_second"] = speed
            self._events.scalars(self._state.steps, scalars)

    def _record_evaluation(self, event: loop.Evaluated) -> None:
        timing = {
            "seconds": round(self._stopwatch.seconds(), 3),
            "evaluation_seconds": round(event.seconds, 3),
        }
        evaluation = documents.plain(event.evaluation)
        self._log.add("evaluation", **evaluation, better=event.is_best, timing=timing)
        self._log.flush()

    def _write_events(self, events: EventFiles, event: loop.Event) -> None:
        steps = self._state.steps
        match event:
            case loop.BetweenSteps():
                events.before_step(steps + 1)
            case loop.StepDone():
                events.after_step(steps)
            case loop.DayLooked(record=record) if record.before is not None:
                events.metrics(steps, record.before, "next_day")
            case loop.Evaluated(evaluation=evaluation):
                events.metrics(steps, evaluation.validation)
                events.weights(steps, self._workers.model)
                events.flush()
            case loop.PassEnds():
                events.flush()


def logged(steps: int) -> bool:
    """Whether a step gets a line in log.jsonl: often at first, then every 1000 steps."""
    return steps % (10 if steps <= 1000 else 100 if steps <= 10_000 else 1000) == 0
