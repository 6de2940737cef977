"""report.json and the lines of log.jsonl: docs/train.md has the keys, attributes their names."""

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field, JsonValue

from tnctl import documents
from tnctl.checkpoint.document import Epoch, EvaluationEntry, WarmReport, number_of
from tnctl.data.day_records import DayRecord
from tnctl.documents import Count, Figures, Name, Text, flat, omitted
from tnctl.evaluation.metrics import METRICS
from tnctl.evaluation.split_scoring import ValueFigures
from tnctl.model.parameter_tables import Recalibration
from tnctl.training.report.worker_figures import ExchangeReport, WorkerFigures

TENSORBOARD = "tensorboard"  # the folder of a run for its event files
Number = Annotated[float, Field(allow_inf_nan=True)]


@dataclass(frozen=True, kw_only=True)
class Best:
    """The best evaluation, and whether its model is the one that is kept."""

    monitor: Text
    value: Number | None
    step: Count
    kept: bool


@dataclass(frozen=True, kw_only=True)
class TableSize:
    """The rows of a table, and the bytes of memory that they take."""

    rows: Count
    bytes: Count


@dataclass(frozen=True, kw_only=True)
class LifeFigures:
    """The ids of a share group with rules for its rows' life; `waiting` is an estimate."""

    rows: Count
    admitted: Count
    waiting: Count
    evicted: Count


@dataclass(frozen=True, kw_only=True)
class BaselineFigures:
    """What boosted trees reach on the data of a run: tnctl.training.baseline.

    They were trained on `rows` of `rows_seen` of data.train; `categorical` of their `columns` have
    categories. Metrics are of the main head, and of all rows of a split.
    """

    library: Text
    head: Name | None = omitted()
    rows: Count
    rows_seen: Count
    columns: Count
    categorical: Count
    trees: Count
    validation: Figures | None = omitted()
    test: Figures | None = omitted()
    recalibration: Recalibration | None = omitted()
    """with evaluation.recalibrate: the slope and intercept that its logits have"""

    def of_split(self, split: str | None) -> dict[str, JsonValue]:
        """The metrics on data.validation or data.test; none without any."""
        return {"validation": self.validation, "test": self.test}.get(split or "") or {}


@dataclass(frozen=True, kw_only=True)
class RecalibratedHead:
    """The recalibration of a head, and its figures on data.validation without and with it."""

    slope: Number
    intercept: Number
    before: Figures
    after: Figures


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Durations, and figures that depend on them."""

    seconds: Number = 0.0
    training_seconds: Number = 0.0
    input_wait_seconds: Number = 0.0
    evaluation_seconds: Number = 0.0
    save_seconds: Number = 0.0
    examples_per_second: Number = 0.0
    save_stalled_seconds: Number = 0.0
    save_waited_seconds: Number = 0.0
    saved_bytes: Count = 0
    table_bytes: Count = 0
    baseline_seconds: Number | None = omitted()
    workers: tuple[WorkerFigures, ...] | None = omitted()
    exchange: ExchangeReport | None = omitted()


@dataclass(frozen=True, kw_only=True)
class Report:
    """The results of a run: report.json.

    `metrics` are of the model that was kept, on `split`; in the file their keys are beside the
    others. `validation` are its metrics on data.validation, which with evaluation.keep=best are not
    from the last evaluation, nor with evaluation.recalibrate from any.
    """

    metrics: dict[str, JsonValue] = flat()
    split: Text | None
    steps: Count
    warm: WarmReport | None = omitted()
    epochs: tuple[Epoch, ...] = ()
    evaluations: tuple[EvaluationEntry, ...] = ()
    validation: Figures | None = omitted()
    days: tuple[DayRecord, ...] | None = omitted()
    best: Best | None = omitted()
    recalibration: dict[Name, RecalibratedHead] | None = omitted()
    tables: dict[Text, TableSize] = field(default_factory=dict)
    life: dict[Text, LifeFigures] | None = omitted()
    dense_weights: Count
    importance: dict[Text, Number] | None = omitted()
    importance_of: Text | None = omitted()
    baseline: BaselineFigures | None = omitted()
    by: dict[Text, tuple[ValueFigures, ...]] | None = omitted()
    """with evaluation.by: the metrics on the rows of each value"""
    weak_points: tuple[Text, ...] | None = omitted()
    """what is wrong, with what to try: tnctl.training.report.final_report"""
    checkpoint: Text
    timing: Timing

    @classmethod
    def parse(cls, text: bytes) -> "Report":
        """The inverse of `to_bytes`. Raises DocumentError."""
        report, values = documents.parse(cls, text), documents.parse(dict[str, JsonValue], text)
        metrics = {key: value for key, value in values.items() if key not in KEYS}
        return dataclasses.replace(report, metrics=metrics)

    def to_bytes(self) -> bytes:
        """The JSON text."""
        return json.dumps(documents.plain(self), indent=2).encode() + b"\n"

    def figure(self, name: str) -> float | None:
        """A metric of the main head; None where there is no number of that name."""
        return number_of(self.metrics, name)

    def of_split(self, split: str) -> dict[str, JsonValue]:
        """The metrics of the kept model on data.validation or data.test; none without any."""
        if split == self.split:
            return self.metrics
        return (self.validation or {}) if split == "validation" else {}

    @property
    def step_milliseconds(self) -> float | None:
        """The mean time of a step in the last process, with its wait for input; None of no pass."""
        speed, steps = self.timing.examples_per_second, self.epochs[-1].step if self.epochs else 0
        steps -= 0 if self.warm is None else self.warm.step
        examples = sum(epoch.examples for epoch in self.epochs)
        return 1000 * examples / steps / speed if speed > 0 and steps > 0 else None

    @property
    def heads(self) -> dict[str, dict[str, JsonValue]]:
        """The metrics of the heads beside the main one, by their names."""
        heads = self.metrics.get("heads")
        values = heads.items() if isinstance(heads, dict) else ()
        return {name: metrics for name, metrics in values if isinstance(metrics, dict)}

    def bins(self, metric: str, *keys: str) -> list[list[float]]:
        """The numbers of these keys of each bin of the calibration or the histogram."""
        value = self.metrics.get(metric)
        entries = (
            [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []
        )
        return [[number_of(entry, key) or 0.0 for key in keys] for entry in entries]


KEYS = {entry.name for entry in dataclasses.fields(Report)} - {"metrics"}


def rank(value: float | None, metric: str) -> tuple[bool, float]:
    """What sorts values of a metric, the best first, and those that are undefined last."""
    if value is None or math.isnan(value):
        return True, 0.0
    return False, -value if METRICS[metric].greater_is_better else value


def tagged(name: str, metrics: Mapping[str, Any]) -> dict[str, float]:
    """Metrics that are numbers, by tags such as `validation/auc`, or `validation/HEAD/auc`."""
    numbers = {key: number_of(metrics, key) for key in metrics}
    tags = {f"{name}/{key}": float(value) for key, value in numbers.items() if value is not None}
    for head, of_head in metrics.get("heads", {}).items():
        tags |= tagged(f"{name}/{head}", of_head)
    return tags


@dataclass(frozen=True, kw_only=True)
class LogLine:
    """The values of a line of log.jsonl that pages draw curves of, or that tell a run's state."""

    event: Text
    step: Count = 0
    loss: Number | None = None
    running_auc: Number | None = None
    rate_factor: Number | None = None
    rows: Number | None = None
    validation: dict[str, JsonValue] = field(default_factory=dict)
    reason: str | None = None

    @classmethod
    def of(cls, values: dict[str, Any]) -> "LogLine":
        """The line with these values. Raises DocumentError."""
        return documents.parse(cls, json.dumps(values).encode())
