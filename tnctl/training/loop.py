"""`tnctl train`: measure, build, epochs of steps, evaluation, checkpoint, report."""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tnctl import files
from tnctl.checkpoint.load import load
from tnctl.checkpoint.save import Position, folder_of, save
from tnctl.data import statistics
from tnctl.data.features import Features, Window
from tnctl.data.windows import ReadAhead, batches, count_hint, order, raw_rows, windows
from tnctl.model import recipes
from tnctl.model.building import Model, build, enable_determinism
from tnctl.progress import Display, say, waiting
from tnctl.schema import Conf
from tnctl.tables import StreamingAuc
from tnctl.training import run
from tnctl.training.evaluation import features_of, reported_split, score
from tnctl.training.step import Inference, TrainingStep

WINDOWS_AHEAD = 1
BATCHES_AHEAD = 4
STEPS_BETWEEN_UPDATES = 8


@dataclass
class Clock:
    """Seconds spent, for the part of the report that no two runs share."""

    started: float = field(default_factory=time.perf_counter)
    training: float = 0.0
    waiting: float = 0.0
    evaluating: float = 0.0
    saving: float = 0.0
    examples: int = 0

    def timing(self) -> dict[str, Any]:
        return {
            "seconds": round(time.perf_counter() - self.started, 3),
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
    checkpoint = run.start(conf, overwrite)
    if checkpoint is not None and (report := run.finished(conf)) is not None:
        say(f"{conf.output} is finished: nothing to do (overwrite=true starts anew)")
        return report
    clock = Clock()
    if conf.train.deterministic:
        enable_determinism()
    if checkpoint is None:
        recipes.settings_of(conf.recipe, recipes.load(conf.recipe["name"]))
        # An output that cannot be written should not be found out after hours of training.
        run.Log(conf.output).write()
        with waiting("measuring the training data"):
            measured = statistics.measure(conf)
        model, first_epoch, steps = build(conf, measured), 0, 0
    else:
        say(f"going on from {checkpoint.folder}")
        model = load(checkpoint, conf)
        first_epoch, steps = checkpoint.manifest["position"]["epoch"], checkpoint.step
    trainer = Trainer(conf, model, clock, golden, steps)
    if checkpoint is not None:
        trainer.history = list(checkpoint.manifest["metrics"]["epochs"])
        for figures in trainer.history:
            trainer.log.add("epoch", **figures)
    for epoch in range(first_epoch, conf.train.epochs):
        trainer.epoch(epoch)
    return trainer.report()


class Trainer:
    """A model on its way through the epochs."""

    def __init__(self, conf: Conf, model: Model, clock: Clock, golden: int, steps: int) -> None:
        self.conf, self.model, self.clock = conf, model, clock
        self.features = features_of(conf, model)
        self.step = TrainingStep(model, conf.train.batch_size)
        self.step.steps = steps
        self.inference = Inference(model, conf.train.batch_size)
        self.log = run.Log(conf.output)
        self.history: list[dict[str, Any]] = []
        split = "validation" if conf.data.validation is not None else "train"
        self.golden = raw_rows(conf, split, golden) if golden else []

    def epoch(self, epoch: int) -> None:
        """One pass over the training data, evaluation, checkpoint."""
        figures = {"epoch": epoch + 1, **self.train_epoch(epoch)}
        if self.conf.data.validation is not None:
            figures["validation"] = self.evaluate("validation")
        self.history.append(figures)
        self.log.add("epoch", **figures)
        started = time.perf_counter()
        with waiting("saving a checkpoint"):
            save(
                self.model,
                folder_of(self.conf.output, self.step.steps),
                step=self.step.steps,
                position=Position(epoch + 1, 0, 0),
                finished=epoch + 1 == self.conf.train.epochs,
                golden=self.golden,
                metrics={"epochs": self.history},
            )
        self.clock.saving += time.perf_counter() - started

    def train_epoch(self, epoch: int) -> dict[str, Any]:
        """Every step of an epoch; the figures are of predictions made before each update."""
        auc, losses, examples = StreamingAuc(), 0.0, 0
        total = count_hint(self.conf, "train")
        started = time.perf_counter()
        title = f"epoch {epoch + 1}/{self.conf.train.epochs}"
        source = training_batches(self.conf, self.features, epoch)
        with Display(title, total) as display, ReadAhead(source, BATCHES_AHEAD) as ahead:
            for number, batch in enumerate(ahead):
                result = self.step(batch)
                auc.update(result.logits, batch.labels)
                losses += result.loss * batch.rows
                examples += batch.rows
                if number % STEPS_BETWEEN_UPDATES == 0:
                    display.update(examples, self._line(examples, losses, auc, started, ahead))
            display.update(examples, self._line(examples, losses, auc, started, ahead))
            display.finish()
            self.clock.waiting += ahead.seconds_waited
        self.clock.training += time.perf_counter() - started
        self.clock.examples += examples
        return {"examples": examples, "loss": losses / examples, "running_auc": auc.result()}

    def _line(
        self, examples: int, losses: float, auc: StreamingAuc, started: float, ahead: Any
    ) -> str:
        seconds = time.perf_counter() - started
        rows = sum(table.rows for table in self.model.tables)
        return (
            f"{examples:,} examples  {examples / seconds:,.0f}/s  loss {losses / examples:.4f}  "
            f"auc {auc.result():.4f}  rows {rows:,}  waited {ahead.seconds_waited / seconds:.0%}"
        )

    def evaluate(self, split: str) -> dict[str, Any]:
        """Exact metrics of a split."""
        started = time.perf_counter()
        with waiting(f"evaluating on data.{split}"):
            metrics = score(self.inference, self.conf, split).metrics()
        self.clock.evaluating += time.perf_counter() - started
        reference = (
            f", reference {metrics['reference_auc']:.4f}" if "reference_auc" in metrics else ""
        )
        say(f"{split}  auc {metrics['auc']:.4f}{reference}  logloss {metrics['logloss']:.4f}")
        return metrics

    def report(self) -> dict[str, Any]:
        """Evaluate the model that was kept and write report.json, the mark of a finished run."""
        split = reported_split(self.conf)
        figures: dict[str, Any] = {}
        if split == "test":
            figures = self.evaluate("test")
        elif split == "validation":
            figures = self.history[-1]["validation"]
        report = {
            **figures,
            "split": split,
            "steps": self.step.steps,
            "epochs": self.history,
            "tables": {
                layout.name: {"rows": table.rows, "bytes": table.index_bytes + table.row_bytes}
                for layout, table in zip(self.model.layout.tables, self.model.tables, strict=True)
            },
            "dense_weights": sum(self.model.dense.sizes),
            "checkpoint": folder_of("", self.step.steps),
            "timing": self.clock.timing(),
        }
        text = json.dumps(report, indent=2).encode() + b"\n"
        files.write_bytes(files.join(self.conf.output, run.REPORT), text)
        return report


def training_batches(conf: Conf, features: Features, epoch: int) -> Iterator[Window]:
    """The batches of an epoch in their shuffled order, windows read one ahead."""
    with ReadAhead(windows(conf, features, "train"), WINDOWS_AHEAD) as ahead:
        for number, window in enumerate(ahead):
            chosen = order(conf, epoch, number, window.rows)
            yield from batches(window, chosen, conf.train.batch_size)
