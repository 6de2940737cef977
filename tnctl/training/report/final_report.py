"""The report of a run, written at its end: report.json and report.html."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from pydantic import JsonValue

from tnctl import files
from tnctl.checkpoint.document import number_of
from tnctl.checkpoint.saver import Saver
from tnctl.evaluation.importance import (
    MEASURED_SPLITS,
    NormSum,
    kind_of,
    permutation_importance,
    row_bytes,
    rows_and_bytes,
)
from tnctl.evaluation.metrics import METRICS
from tnctl.evaluation.split_scoring import (
    Counts,
    figures_by_value,
    first_given,
    reported_splits,
)
from tnctl.masking import masked
from tnctl.model.building import Model
from tnctl.model.parameter_tables import TableFigures, total_bytes
from tnctl.progress import waiting
from tnctl.saved_conf import conf_to_json
from tnctl.schema import Conf, Life
from tnctl.training import row_life, run_folder, schedule
from tnctl.training.baseline import baseline_of
from tnctl.training.days.daily import Daily
from tnctl.training.observers import Stopwatch, show_metrics
from tnctl.training.report import page
from tnctl.training.report.page import InputRow
from tnctl.training.report.report_document import (
    BaselineFigures,
    Best,
    LogLine,
    Report,
    TableSize,
    Timing,
)
from tnctl.training.report.worker_figures import WorkerSums
from tnctl.training.run_folder import Log
from tnctl.training.saving import Checkpoints, recalibrated_heads
from tnctl.training.state import RunState
from tnctl.training.workers import Workers

SMALL_BIAS = 0.02  # of COPC, that nobody would mend
SMALL_LOSS = 0.02  # of AUC, from the rows that were trained on to others
IMPORTANCE_ROWS = 50_000  # for the report; `tnctl ablate` takes all


def write_report(
    conf: Conf,
    state: RunState,
    workers: Workers,
    daily: Daily | None,
    checkpoints: Checkpoints,
    log: Log,
    stopwatch: Stopwatch,
    timing: Timing | None = None,
) -> Report:
    """Evaluate the model that is kept; write report.html, and report.json as the last file.

    `timing` is taken from an earlier report of this run, if there is one.
    """
    model, split = workers.model, first_given(conf.data, reported_splits(conf.evaluation))
    tables, sums = workers.figures(), workers.sums()
    metrics: dict[str, JsonValue] = {}
    counts = by = trees = None
    if split is not None:
        measured = workers.evaluate(split)
        show_metrics(measured)
        stopwatch.evaluating += measured.seconds
        metrics, counts = measured.metrics, measured.counts
        if names := conf.evaluation.by:
            with waiting(f"evaluating data.{split} by {', '.join(names)}"):
                by = figures_by_value(workers.inference, conf, split)
    importance, importance_of = importance_of_inputs(conf, workers)
    checkpoints.wait()
    seconds = None
    if conf.baseline.enabled:
        trees, seconds = baseline_of(conf, model)
    timing = timing or timing_of(sums, total_bytes(tables), checkpoints.saver, stopwatch)
    if seconds is not None:
        timing = replace(timing, baseline_seconds=round(seconds, 3))
    report = Report(
        metrics=metrics,
        split=split,
        steps=state.steps,
        warm=state.warm,
        epochs=tuple(state.epochs),
        evaluations=tuple(state.evaluations),
        validation=state.validation,
        days=None if daily is None else tuple(record.summary() for record in daily.record),
        best=best_of(conf.evaluation.monitor, state),
        recalibration=recalibrated_heads(model.recalibration, state) or None,
        tables=sizes_of(model, tables),
        life=row_life.figures(model.layout, tables) or None,
        dense_weights=sum(model.dense.sizes),
        by=by,
        importance=importance or None,
        importance_of=importance_of or None,
        baseline=trees,
        checkpoint=checkpoints.staged.removeprefix(files.join(conf.output, "")),
        timing=timing,
    )
    report = masked(replace(report, weak_points=weak_points(conf, report) or None))
    inputs = input_rows(model, tables, counts, importance, workers.embedding_norms())
    write_files(conf, report, inputs, log)
    return report


def write_files(conf: Conf, report: Report, inputs: Sequence[InputRow], log: Log) -> None:
    """Write report.html, and report.json last."""
    lines = [LogLine.of(event) for event in log.events]
    html = page.render(masked(conf.output), conf_to_json(conf), report, lines, inputs)
    log.flush()
    files.write_bytes(files.join(conf.output, run_folder.PAGE), html.encode())
    files.write_bytes(files.join(conf.output, run_folder.REPORT), report.to_bytes())


def sizes_of(model: Model, tables: Sequence[TableFigures]) -> dict[str, TableSize]:
    """The rows of each table and their bytes, by its name."""
    return {
        layout.name: TableSize(rows=held.rows, bytes=round(held.rows * row_bytes(table)))
        for layout, table, held in zip(model.layout.tables, model.tables, tables, strict=True)
    }


def timing_of(
    sums: WorkerSums | None, table_bytes: int, saver: Saver, stopwatch: Stopwatch
) -> Timing:
    """How long the parts of a run took, and what was saved and exchanged."""
    return Timing(
        **stopwatch.timing(),
        save_stalled_seconds=round(saver.seconds_stalled, 3),
        save_waited_seconds=round(saver.seconds_waited, 3),
        saved_bytes=saver.bytes_written,
        table_bytes=table_bytes,
        workers=None if sums is None else tuple(of.rounded() for of in sums.processes),
        exchange=None if sums is None else sums.exchanged.report(),
    )


def importance_of_inputs(conf: Conf, workers: Workers) -> tuple[dict[str, float], str]:
    """What the model loses with each input shuffled, and by which metric on which split."""
    split = first_given(conf.data, MEASURED_SPLITS)
    if not conf.evaluation.ablate or split is None:
        return {}, ""
    with waiting(f"measuring what each input is worth on data.{split}"):
        measured = permutation_importance(workers.inference, conf, split, IMPORTANCE_ROWS)
    losses = {of_input.name: of_input.loss for of_input in measured.inputs}
    return losses, f"{measured.metric} on data.{split}"


def best_of(monitor: str, state: RunState) -> Best | None:
    """The best evaluation, and whether its model is the one that is kept; None without one."""
    best, step = state.stopping.best, state.stopping.best_step
    if best is None:
        return None
    kept = state.best_is_loaded or step == state.steps
    return Best(monitor=monitor, value=best, step=step, kept=kept)


def input_rows(
    model: Model,
    tables: Sequence[TableFigures],
    counts: Counts | None,
    importance: Mapping[str, float],
    norms: Mapping[str, NormSum],
) -> list[InputRow]:
    """Every input of a model as the report page shows it; `counts` of the reported split."""
    sizes, rows = rows_and_bytes(model, tables), []
    for name in [*model.layout.slots, *model.layout.numeric]:
        count, size = sizes.get(name, (None, None))
        slot = model.conf.slots.get(name)
        coverage = ids = None
        if counts is not None:
            coverage = counts.present[name] / counts.examples
            ids = None if slot is None else counts.ids[name] / counts.examples
        rows.append(
            InputRow(
                name=name,
                kind=kind_of(model.layout, name),
                coverage=coverage,
                ids=ids,
                rows=count,
                bytes=size,
                norm=norms[name].mean if name in norms else None,
                importance=importance.get(name),
                group=None if count is None or slot is None else slot.group or name,
            )
        )
    return rows


# ---- Weak points -------------------------------------------------------------------------


def weak_points(conf: Conf, report: Report) -> tuple[str, ...]:
    """A sentence for each, with what to try; none without the metrics of a split."""
    lines = [*of_calibration(conf, report), *of_memorising(conf.life, report)]
    if report.baseline is not None:
        lines += of_baseline(report, report.baseline)
    return tuple(lines)


def bounds(report: Report, name: str) -> tuple[float, float] | None:
    """The interval of a metric; None where it is undefined."""
    match report.metrics.get("intervals"):
        case {**intervals} if isinstance(interval := intervals.get(name), list):
            low, high = map(float, interval)
            return low, high
    return None


def of_calibration(conf: Conf, report: Report) -> Iterator[str]:
    """Predictions no better than the mean label, or too high or too low in all."""
    way = "more rows, or a lower optimizer.embedding.learning_rate"
    if not schedule.recalibrates(conf):
        way = "evaluation.recalibrate=auto"
    ne, copc = bounds(report, "ne"), bounds(report, "copc")
    if ne is not None and ne[0] >= 1:
        yield (
            f"NE {_in_words(report, 'ne', ne)}: predicting the mean label for every row would be "
            f"better. Try {way}"
        )
    if copc is None or copc[0] <= 1 <= copc[1]:
        return
    if abs((report.figure("copc") or 1) - 1) >= SMALL_BIAS:
        low = copc[0] > 1
        yield (
            f"COPC {_in_words(report, 'copc', copc)}: there are "
            f"{'more' if low else 'fewer'} clicks than predicted. Try {way}; if clicks "
            f"became {'more' if low else 'fewer'} frequent with time, train to a later day"
        )


def of_memorising(life: Life, report: Report) -> Iterator[str]:
    """The rows of the last pass much better ordered than others, after several passes."""
    kept = [epoch for epoch in report.epochs if epoch.step <= _kept_step(report)]
    auc, metrics = report.figure("auc"), report.metrics
    if report.days or len(kept) < 2 or auc is None or kept[-1].running_auc is None:
        return
    gap = kept[-1].running_auc - auc
    if gap > SMALL_LOSS + 1.96 * error_of_auc(auc, *_classes(metrics)):
        way = "a greater optimizer.embedding.lazy_l2"
        if life.admission.after < 2:
            way = "life.admission.after=5"
        yield (
            f"AUC {kept[-1].running_auc:.4f} on the rows of pass {kept[-1].epoch} while they were "
            f"trained, and {auc:.4f} on data.{report.split}: rows are memorised. Try {way}"
        )


def of_baseline(report: Report, baseline: BaselineFigures) -> Iterator[str]:
    """Boosted trees that are better in the main metric."""
    others = baseline.of_split(report.split)
    if baseline.head is not None:
        return
    for name in ("auc", "logloss"):
        value, other = report.figure(name), number_of(others, name)
        if value is None or other is None:
            continue
        noise = 0.01 * value
        if METRICS[name].greater_is_better:
            noise = 1.96 * error_of_auc(value, *_classes(report.metrics))
        if abs(other - value) > noise and (other > value) == METRICS[name].greater_is_better:
            yield (
                f"{baseline.library} is better: {METRICS[name].title} {other:.4f} beside "
                f"{value:.4f} on data.{report.split}. Try a search: -m sweep.trials=20"
            )
            return


def error_of_auc(auc: float, positives: float, negatives: float) -> float:
    """The standard error of an AUC (Hanley and McNeil, Radiology 143, 1982, equation 1)."""
    if positives < 1 or negatives < 1:
        return math.inf
    first, second = auc / (2 - auc), 2 * auc**2 / (1 + auc)
    variance = auc * (1 - auc)
    variance += (positives - 1) * (first - auc**2) + (negatives - 1) * (second - auc**2)
    return math.sqrt(max(variance, 0.0) / (positives * negatives))


def _classes(metrics: dict) -> tuple[float, float]:
    """How many examples are clicks, and how many are not."""
    examples, rate = (number_of(metrics, name) or 0.0 for name in ("examples", "ctr"))
    return examples * rate, examples * (1 - rate)


def _kept_step(report: Report) -> int:
    return report.best.step if report.best is not None and report.best.kept else report.steps


def _in_words(report: Report, name: str, interval: tuple[float, float]) -> str:
    """A figure with its interval and the split."""
    value = report.figure(name) or 0.0
    low, high = interval
    return f"{value:.3f} ({low:.3f} to {high:.3f}) on data.{report.split}"
