"""The report of a run, written at its end: report.json and report.html."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pydantic import JsonValue

from tnctl import files
from tnctl.checkpoint.saver import Saver
from tnctl.evaluation.importance import MEASURED_SPLITS, permutation_importance
from tnctl.evaluation.input_figures import NormSum, kind_of, row_bytes, rows_and_bytes
from tnctl.evaluation.split_scoring import Counts, first_given, reported_splits
from tnctl.evaluation.value_figures import ValueFigures, figures_by_value
from tnctl.masking import masked
from tnctl.model.building import Model
from tnctl.model.table_figures import TableFigures, total_bytes
from tnctl.progress import waiting
from tnctl.saved_conf import conf_to_json
from tnctl.schema import Conf
from tnctl.training import eviction, recalibrating, run_folder
from tnctl.training.baseline import baseline_of
from tnctl.training.days.daily import Daily
from tnctl.training.observers import Stopwatch, show_metrics
from tnctl.training.report import page
from tnctl.training.report.page import InputRow
from tnctl.training.report.report_document import Best, LogLine, Report, TableSize, Timing
from tnctl.training.run_log import Log
from tnctl.training.saving import Checkpoints
from tnctl.training.state import RunState
from tnctl.training.weak_points import weak_points
from tnctl.training.worker_figures import ExchangeFigures, WorkerFigures
from tnctl.training.workers import Workers

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

    `timing` is that of an earlier report of the same run, which is kept.
    """
    model, split = workers.model, first_given(conf.data, reported_splits(conf.evaluation))
    tables = workers.figures()
    of_workers, exchanged = workers.worker_figures(), workers.exchanged()
    metrics: dict[str, JsonValue] = {}
    counts = None
    if split is not None:
        metrics, counts = measured_on(split, workers, stopwatch)
    importance, importance_of = importance_of_inputs(conf, workers)
    checkpoints.wait()
    trees, seconds = baseline_of(conf, model) if conf.baseline.enabled else (None, 0.0)
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
        recalibration=recalibrating.compared(model.recalibration, state) or None,
        tables=sizes_of(model, tables),
        life=eviction.figures(model.layout, tables) or None,
        dense_weights=sum(model.dense.sizes),
        by=measured_by_value(conf, split, workers),
        importance=importance or None,
        importance_of=importance_of if importance else None,
        baseline=trees,
        checkpoint=checkpoints.staged.removeprefix(files.join(conf.output, "")),
        timing=timing
        or timing_of(
            of_workers,
            exchanged,
            total_bytes(tables),
            checkpoints.saver,
            stopwatch,
        ),
    )
    if trees is not None:
        timed = replace(report.timing, baseline_seconds=round(seconds, 3))
        report = replace(report, timing=timed)
    report = replace(report, weak_points=weak_points(conf, report) or None)
    report = masked(report)
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
    of_workers: Sequence[WorkerFigures],
    exchanged: ExchangeFigures | None,
    table_bytes: int,
    saver: Saver,
    stopwatch: Stopwatch,
) -> Timing:
    """How long the parts of a run took, and what was saved and exchanged."""
    return Timing(
        **stopwatch.timing(),
        save_stalled_seconds=round(saver.seconds_stalled, 3),
        save_waited_seconds=round(saver.seconds_waited, 3),
        saved_bytes=saver.bytes_written,
        table_bytes=table_bytes,
        workers=tuple(worker.rounded() for worker in of_workers) or None,
        exchange=None if exchanged is None else exchanged.report(),
    )


def measured_on(
    split: str, workers: Workers, stopwatch: Stopwatch
) -> tuple[dict[str, JsonValue], Counts]:
    """The metrics of a split, which are shown, and how often each input is present in it."""
    measured = workers.evaluate(split)
    show_metrics(measured)
    stopwatch.evaluating += measured.seconds
    return measured.metrics, measured.counts


def measured_by_value(
    conf: Conf, split: str | None, workers: Workers
) -> dict[str, tuple[ValueFigures, ...]] | None:
    """The metrics of a split for each value of `evaluation.by`; None where that is empty."""
    if not conf.evaluation.by or split is None:
        return None
    with waiting(f"evaluating data.{split} by {', '.join(conf.evaluation.by)}"):
        return figures_by_value(workers.inference, conf, split)


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
    rows, shown = rows_and_bytes(model, tables), []
    for name in [*model.layout.slots, *model.layout.numeric]:
        count, size = rows.get(name, (None, None))
        slot = model.conf.slots.get(name)
        shown.append(
            InputRow(
                name,
                kind_of(model.layout, name),
                coverage=None if counts is None else counts.present[name] / counts.examples,
                ids=None if counts is None or slot is None else counts.ids[name] / counts.examples,
                group=None if count is None or slot is None else slot.group or name,
                rows=count,
                bytes=size,
                norm=norms[name].mean if name in norms else None,
                importance=importance.get(name),
            )
        )
    return shown
