"""`tnctl train`: measure, build, epochs of steps, evaluations, checkpoints, report."""

import gc
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tnctl import files
from tnctl.checkpoint.load import Checkpoint, load, open_checkpoint
from tnctl.checkpoint.save import Position, folder_of, save
from tnctl.data import statistics
from tnctl.data.bad_rows import Skipped
from tnctl.data.features import Features, Window
from tnctl.data.survey import count_rows
from tnctl.data.windows import ReadAhead, batches, order, raw_rows, windows
from tnctl.errors import Failure
from tnctl.model import recipes
from tnctl.model.building import Model, build, enable_determinism
from tnctl.model.graph import conf_to_json
from tnctl.progress import Display, say, size, waiting
from tnctl.schema import Conf
from tnctl.tables import StreamingAuc
from tnctl.training import page, run, watch
from tnctl.training.ablation import ablate, ablated_split
from tnctl.training.evaluation import Counts, features_of, labelled_heads, reported_split, score
from tnctl.training.events import Events
from tnctl.training.first_rows import insert_rows
from tnctl.training.inputs import input_rows
from tnctl.training.metrics import scalars
from tnctl.training.schedule import factor
from tnctl.training.step import Inference, TrainingStep
from tnctl.training.watch import Watch

WINDOWS_AHEAD = 1
BATCHES_AHEAD = 4
STEPS_BETWEEN_UPDATES = 8
ABLATED_ROWS = 50_000  # for the report; `tnctl ablate` takes all
EVALUATING = "evaluating on data.{}"
GOES_ON = "{} is saved, and the same command goes on from there"


@dataclass
class Clock:
    """Seconds spent, for the part of the report that no two runs share."""

    started: float = field(default_factory=time.perf_counter)
    training: float = 0.0
    waiting: float = 0.0
    evaluating: float = 0.0
    saving: float = 0.0
    examples: int = 0

    def seconds(self) -> float:
        return time.perf_counter() - self.started

    def timing(self) -> dict[str, Any]:
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


def train(conf: Conf, *, overwrite: bool = False, golden: int = 200) -> dict[str, Any]:
    """Train a conf to its end and return the report. A finished run is left as it is."""
    watch.check(conf)
    checkpoint = run.start(conf, overwrite)
    if checkpoint is not None and (report := run.finished(conf)) is not None:
        say(f"{conf.output} is finished: nothing to do (overwrite=true starts anew)")
        return report
    clock = Clock()
    if conf.train.deterministic:
        enable_determinism()
    if checkpoint is None:
        recipes.settings_of(conf.recipe, recipes.load(conf.recipe["name"]))
        log = run.Log(conf.output)
        with waiting("measuring the training data"):
            measured = statistics.measure(conf)
        model = build(conf, measured)
        if conf.optimizer.updates == "all":
            with waiting("making every row of the training data"):
                insert_rows(model, features_of(conf, model))
    else:
        say(f"going on from {checkpoint.folder}")
        log = run.Log(conf.output, checkpoint.step)
        model = load(checkpoint, conf)
    with Trainer(conf, model, clock, golden, log, checkpoint) as trainer:
        trainer.train()
        return trainer.report()


class Trainer:
    """A model on its way through the epochs."""

    def __init__(
        self,
        conf: Conf,
        model: Model,
        clock: Clock,
        golden: int,
        log: run.Log,
        checkpoint: Checkpoint | None,
    ) -> None:
        self.conf, self.model, self.clock, self.log = conf, model, clock, log
        self.features = features_of(conf, model)
        self.epochs: list[dict[str, Any]] = []
        self.evaluations: list[dict[str, Any]] = []
        self.watch = Watch()
        self.steps = self.next_epoch = 0
        self.trained = False
        self.saved = "nothing is saved yet, and the same command starts anew"
        if checkpoint is not None:
            content = checkpoint.manifest
            self.steps, self.next_epoch = checkpoint.step, content["position"]["epoch"]
            self.trained = content["finished"]
            self.epochs = list(content["metrics"]["epochs"])
            self.evaluations = list(content["metrics"]["evaluations"])
            self.watch = Watch(**content["metrics"]["watch"])
            self.saved = GOES_ON.format(checkpoint.folder)
        self.step = TrainingStep(model, conf.train.batch_size)
        self.step.steps = self.steps
        self.inference = Inference(model, conf.train.batch_size)
        [(_, _, self.main_label), *_] = labelled_heads(model)
        split = "validation" if conf.data.validation is not None else "train"
        self.golden = raw_rows(conf, split, golden) if golden else []
        # What was found last, of the model as it is: (split, metrics, counts of the inputs).
        self.last: tuple[str, dict[str, Any], Counts] | None = None
        self.events: Events | None = None
        if conf.train.tensorboard or conf.train.profile is not None:
            self.events = Events(conf, self.steps)
            if self.steps == 0:
                self.events.graph(model)

    def __enter__(self) -> "Trainer":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self.events is not None:
            self.events.close()
        if kind is KeyboardInterrupt:
            say(f"stopped after step {self.steps:,}: {self.saved}")

    def train(self) -> None:
        """All epochs that are left, or as many as early stopping allows."""
        for epoch in range(self.next_epoch, self.conf.train.epochs):
            if self.trained:
                break
            self.epoch(epoch)

    def epoch(self, epoch: int) -> None:
        """One pass over the training data, evaluation, checkpoint."""
        figures = {"epoch": epoch + 1, **self.train_epoch(epoch)}
        if self.conf.data.validation is not None:
            if not self.evaluations or self.evaluations[-1]["step"] != self.steps:
                self.evaluate_while_training(epoch)
            figures["validation"] = self.evaluations[-1]["validation"]
        self.epochs.append(figures)
        stops = self.watch.stops(self.conf)
        if stops and epoch + 1 < self.conf.train.epochs:
            say(
                f"stopped early: {self.watch.without} evaluations without a better "
                f"{self.conf.evaluation.monitor} than {self.watch.best:.5f}"
            )
        self.trained = stops or epoch + 1 == self.conf.train.epochs
        self.log.add("epoch", **figures, timing=self.clock.timing())
        self.log.flush()
        if self.events is not None:
            self.events.flush()
        self.save(epoch)

    def train_epoch(self, epoch: int) -> dict[str, Any]:
        """The steps of an epoch; the figures are of predictions made before each update."""
        progress = Progress(self, epoch)
        skipped = Skipped("train", self.conf.data.bad_rows)
        source = training_batches(self.conf, self.features, epoch, skipped)
        title = f"epoch {epoch + 1}/{self.conf.train.epochs}"
        total, guessed = self.rows_to_train()
        every = self.conf.evaluation.every_steps
        schedule = self.conf.optimizer.schedule
        with Display(title, total, guessed) as display, ReadAhead(source, BATCHES_AHEAD) as ahead:
            for number, batch in enumerate(ahead):
                self.step.rate_factor = factor(schedule, self.steps, self.watch.plateau)
                if self.events is not None:
                    self.events.before_step(self.steps + 1)
                result = self.step(batch)
                self.steps, self.last = self.step.steps, None
                if self.events is not None:
                    self.events.after_step(self.steps)
                progress.add(batch, result.loss, result.logits[:, self.main_label])
                if number % STEPS_BETWEEN_UPDATES == 0:
                    display.update(progress.examples, progress.shown(ahead.seconds_waited))
                if logged(self.steps):
                    progress.log(ahead.seconds_waited)
                if every is not None and self.steps % every == 0:
                    with display.meanwhile(EVALUATING.format("validation")):
                        progress.apart += self.evaluate_while_training(epoch)
                    if self.watch.stops(self.conf):
                        break
            display.update(progress.examples, progress.shown(ahead.seconds_waited))
            display.finish()
            self.clock.waiting += ahead.seconds_waited
        self.clock.training += progress.seconds()
        self.clock.examples += progress.examples
        figures = progress.figures()
        return figures | ({"skipped_rows": skipped.rows} if self.conf.data.bad_rows else {})

    def rows_to_train(self) -> tuple[int | None, bool]:
        """How many rows an epoch has if that is known, and whether it is a guess."""
        if self.epochs:
            return self.epochs[-1]["examples"], False
        if self.conf.data.negatives < 1:
            return None, False
        found = count_rows(self.conf, "train")
        return (None, False) if found is None else (round(found.estimate), found.low < found.high)

    def evaluate_while_training(self, epoch: int) -> float:
        """Evaluate on data.validation, and do what follows from it; returns its seconds.

        Raises Failure when something depends on a metric that the labels do not give.
        """
        started = time.perf_counter()
        metrics = self.evaluate("validation")
        monitor = self.conf.evaluation.monitor
        if monitor in metrics:
            better = self.watch.judge(self.conf, metrics[monitor], self.steps)
        elif watch.matters(self.conf):
            raise Failure(
                f"evaluation.monitor={monitor} is of labels 0 and 1, and data.validation has "
                "others. Take evaluation.monitor=mse"
            )
        else:
            better = False
        kept = scalars(metrics)
        evaluation = {"step": self.steps, "epoch": epoch + 1, "validation": kept}
        self.evaluations.append(evaluation)
        seconds = time.perf_counter() - started
        timing = {
            "seconds": round(self.clock.seconds(), 3),
            "evaluation_seconds": round(seconds, 3),
        }
        self.log.add("evaluation", **evaluation, better=better, timing=timing)
        self.log.flush()
        if self.events is not None:
            self.events.metrics(self.steps, kept)
            self.events.weights(self.steps, self.model)
            self.events.flush()
        if better and self.conf.evaluation.keep == "best":
            self.save_best(epoch)
        return time.perf_counter() - started

    def evaluate(self, split: str) -> dict[str, Any]:
        """Exact metrics of a split by the model as it is."""
        if self.last is not None and self.last[0] == split:
            return self.last[1]
        started = time.perf_counter()
        counts = Counts(self.model.layout)
        with waiting(EVALUATING.format(split)):
            metrics = score(self.inference, self.conf, split, counts=counts).metrics()
        self.last = (split, metrics, counts)
        self.clock.evaluating += time.perf_counter() - started
        names = ("auc", "gauc", "logloss", "mse") if "logloss" not in metrics else (
            "auc", "gauc", "logloss"
        )  # fmt: skip
        shown = [f"{name} {metrics[name]:.4f}" for name in names if name in metrics]
        if "reference_auc" in metrics:
            shown.insert(1, f"reference {metrics['reference_auc']:.4f}")
        say(f"{split}  {'  '.join(shown)}")
        return metrics

    def metrics(self) -> dict[str, Any]:
        """What a checkpoint keeps of the training so far."""
        return {
            "epochs": self.epochs,
            "evaluations": self.evaluations,
            "watch": self.watch.to_json(),
        }

    def save_best(self, epoch: int) -> None:
        """Keep the model as it is, which is the best so far.

        It stands apart from the checkpoints that training goes on from. The end of the epoch may
        be here: then its checkpoint has it too, and this one goes.
        """
        started = time.perf_counter()
        self.watch.best_folder = f"{run.BEST}/step-{self.steps:010d}"
        with waiting("saving the best model so far"):
            self._write(self.watch.best_folder, epoch, finished=False)
        self.clock.saving += time.perf_counter() - started

    def save(self, epoch: int) -> None:
        """The checkpoint of an epoch's end; of the last one, with the model that is kept."""
        started = time.perf_counter()
        folder = folder_of("", self.steps)
        keeps_best = self.conf.evaluation.keep == "best" and self.watch.best is not None
        if keeps_best and self.watch.best_step == self.steps:
            self.watch.best_folder = folder
        elif keeps_best and self.trained:
            self.load_best()
        with waiting("saving a checkpoint"):
            self._write(folder, epoch + 1, finished=self.trained)
        self.saved = GOES_ON.format(files.join(self.conf.output, folder))
        # What the checkpoint before this one went on from is needed no longer.
        best = files.join(self.conf.output, run.BEST)
        names = files.list_folder(best)
        kept = self.watch.best_folder.removeprefix(f"{run.BEST}/")
        for name in names:
            if self.trained or name != kept:
                files.remove(files.join(best, name))
        if names and (self.trained or kept not in names):
            files.remove(best)
        self.clock.saving += time.perf_counter() - started

    def _write(self, folder: str, next_epoch: int, *, finished: bool) -> None:
        save(
            self.model,
            files.join(self.conf.output, folder),
            step=self.steps,
            position=Position(next_epoch, 0, 0),
            finished=finished,
            golden=self.golden,
            metrics=self.metrics(),
        )

    def load_best(self) -> None:
        """Put the best model in the place of the last one, which is dropped first."""
        folder = files.join(self.conf.output, self.watch.best_folder)
        say(f"keeping the model of step {self.watch.best_step:,}, the best")
        del self.model, self.step, self.inference
        self.last = None
        gc.collect()
        self.model = load(open_checkpoint(folder), self.conf)
        self.inference = Inference(self.model, self.conf.train.batch_size)

    def report(self) -> dict[str, Any]:
        """Evaluate the model that was kept; write report.html, and report.json as the last."""
        split = reported_split(self.conf)
        figures: dict[str, Any] = {} if split is None else self.evaluate(split)
        counts = None if self.last is None else self.last[2]
        importance: dict[str, float] = {}
        of_what = ""
        on = ablated_split(self.conf)
        if self.conf.evaluation.ablate and on is not None:
            with waiting(f"measuring what each input is worth on data.{on}"):
                found = ablate(self.inference, self.conf, on, ABLATED_ROWS)
            importance = {one.name: one.loss for one in found.inputs}
            of_what = f"{found.metric} on data.{on}"
        report = {
            **figures,
            "split": split,
            "steps": self.steps,
            "epochs": self.epochs,
            "evaluations": self.evaluations,
            **({"best": self.best()} if self.watch.best is not None else {}),
            "tables": {
                layout.name: {"rows": table.rows, "bytes": table.index_bytes + table.row_bytes}
                for layout, table in zip(self.model.layout.tables, self.model.tables, strict=True)
            },
            "dense_weights": sum(self.model.dense.sizes),
            **({"importance": importance, "importance_of": of_what} if importance else {}),
            "checkpoint": folder_of("", self.steps),
            "timing": self.clock.timing(),
        }
        html = page.render(
            self.conf.output,
            conf_to_json(self.conf),
            report,
            self.log.events,
            input_rows(self.model, counts, importance),
        )
        self.log.flush()
        files.write_bytes(files.join(self.conf.output, run.PAGE), html.encode())
        text = json.dumps(report, indent=2).encode() + b"\n"
        files.write_bytes(files.join(self.conf.output, run.REPORT), text)
        return report

    def best(self) -> dict[str, Any]:
        """The best evaluation, and whether its model is the one that is kept."""
        keeps = self.conf.evaluation.keep == "best" or self.watch.best_step == self.steps
        return {
            "monitor": self.conf.evaluation.monitor,
            "value": self.watch.best,
            "step": self.watch.best_step,
            "kept": keeps,
        }


class Progress:
    """What an epoch's steps add up to, and what is told of it on the way."""

    def __init__(self, trainer: Trainer, epoch: int) -> None:
        self._trainer, self._epoch = trainer, epoch
        self._auc = StreamingAuc()
        # Of numbers that are no classes there is no AUC.
        self._classes = trainer.conf.train.loss.name != "mse"
        self._losses = self._since_losses = 0.0
        self._since = 0
        self._started = time.perf_counter()
        self.examples = 0
        self.apart = 0.0  # seconds of evaluations

    def add(self, batch: Window, loss: float, logits: Any) -> None:
        """Count a step: its batch, loss, and the main head's logits [B]."""
        if self._classes:
            label = self._trainer.main_label
            self._auc.update(
                np.ascontiguousarray(logits), np.ascontiguousarray(batch.labels[:, label])
            )
        self._losses += loss * batch.rows
        self._since_losses += loss * batch.rows
        self._since += batch.rows
        self.examples += batch.rows

    def seconds(self) -> float:
        return time.perf_counter() - self._started - self.apart

    def running_auc(self) -> float | None:
        return self._auc.result() if self._classes else None

    def figures(self) -> dict[str, Any]:
        """The epoch so far."""
        return {
            "step": self._trainer.steps,
            "examples": self.examples,
            "loss": self._losses / self.examples,
            "running_auc": self.running_auc(),
        }

    def shown(self, waited: float) -> dict[str, str]:
        """The epoch so far, as the display shows it."""
        seconds = self.seconds()
        tables = self._trainer.model.tables
        held = sum(table.index_bytes + table.row_bytes for table in tables)
        figures = {
            "examples": f"{self.examples:,}",
            "examples/s": f"{self.examples / seconds:,.0f}",
            "loss": f"{self._losses / self.examples:.4f}",
        }
        if self._classes:
            figures["auc"] = f"{self._auc.result():.4f}"
        figures["rows"] = f"{sum(table.rows for table in tables):,} ({size(held)})"
        # The rest of the time is that of the steps.
        figures["waited"] = f"{min(waited / seconds, 1):.0%}"
        if self._trainer.step.rate_factor != 1:
            figures["rate"] = f"× {self._trainer.step.rate_factor:.4g}"
        return figures

    def log(self, waited: float) -> None:
        """A line of log.jsonl about the steps since the one before."""
        trainer, seconds = self._trainer, self.seconds()
        figures = {
            "loss": self._since_losses / self._since,
            "running_auc": self.running_auc(),
            "rate_factor": trainer.step.rate_factor,
            "rows": sum(table.rows for table in trainer.model.tables),
        }
        self._since_losses, self._since = 0.0, 0
        speed = self.examples / seconds
        trainer.log.add(
            "step",
            step=trainer.steps,
            epoch=self._epoch + 1,
            examples=self.examples,
            **figures,
            timing={
                "seconds": round(trainer.clock.seconds(), 3),
                "examples_per_second": round(speed, 1),
                "input_wait_share": round(min(waited / seconds, 1), 4),
            },
        )
        if trainer.events is not None:
            told = {f"train/{name}": value for name, value in figures.items() if value is not None}
            trainer.events.scalars(trainer.steps, {**told, "train/examples_per_second": speed})


def logged(steps: int) -> bool:
    """Whether a step gets a line in log.jsonl: often at first, then every 1000 steps."""
    return steps % (10 if steps <= 1000 else 100 if steps <= 10_000 else 1000) == 0


def training_batches(
    conf: Conf, features: Features, epoch: int, skipped: Skipped | None = None
) -> Iterator[Window]:
    """The batches of an epoch in their shuffled order, windows read one ahead."""
    source = windows(conf, features, "train", skipped=skipped)
    with ReadAhead(source, WINDOWS_AHEAD) as ahead:
        for number, window in enumerate(ahead):
            chosen = order(conf, epoch, number, window.rows)
            yield from batches(window, chosen, conf.train.batch_size)
