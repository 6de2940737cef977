"""Tables for the terminal: the report of a run, and what each input is worth."""

from collections.abc import Sequence

from pydantic import JsonValue

from tnctl import files, progress
from tnctl.checkpoint.document import number_of
from tnctl.data.day_records import DayRecord
from tnctl.evaluation.importance import Importance
from tnctl.evaluation.metrics import main_metrics, shown
from tnctl.evaluation.value_figures import FIGURES, ValueFigures
from tnctl.training.report.page import by_value, side_by_side
from tnctl.training.report.page import in_words as recalibration_in_words
from tnctl.training.report.report_document import Baseline, Report
from tnctl.training.run_folder import PAGE, REPORT

NONE = "–"
LIVES = {
    "admitted": "ids admitted",
    "waiting": "ids waiting (estimate)",
    "evicted": "rows evicted",
}
MOST_INPUTS = 3  # of the most important
MOST_VALUES = 10  # of a column of evaluation.by, those with the most rows
MOST_DAYS = 10  # of the newest in the table of days


def show_report(output: str, report: Report) -> None:
    """The main figures of a report, and where the rest is."""
    show_days(report.days or ())
    rows = [(metric.title, shown(value, 5)) for metric, value in main_metrics(report.metrics)]
    if rows:
        rows[0] = (f"{rows[0][0]} ({report.split})", rows[0][1])
    if "reference_auc" in report.metrics:
        rows.insert(1, ("AUC of the reference", shown(report.figure("reference_auc"), 5)))
    for head, figures in report.heads.items():
        rows += _main_figure(figures, f"of {head}")
    best = report.best
    if best is not None and best.value is not None and len(report.evaluations) > 1:
        kept = ", which is kept" if best.kept else ""
        words = f"{best.value:.5f} at step {best.step:,}{kept}"
        rows.append((f"best {best.monitor} on validation", words))
    for head, of_head in (report.recalibration or {}).items():
        name = f"recalibrated, {head}" if report.heads else "recalibrated"
        rows.append((name, recalibration_in_words(of_head)))
    if days := report.days:
        rows.append(("days", f"{len(days):,}, the last trained {days[-1].day}"))
        newest = next((day for day in reversed(days) if day.before is not None), None)
        if newest is not None:
            rows += _main_figure(newest.before or {}, f"of {newest.day} before it was trained")
    for name, table in report.tables.items():
        rows.append((f"rows of {name}", f"{table.rows:,} ({progress.size(table.bytes)})"))
    for name, title in LIVES.items():
        if count := sum(getattr(life, name) for life in (report.life or {}).values()):
            rows.append((title, f"{count:,}"))
    rows.append(("dense weights", f"{report.dense_weights:,}"))
    if report.importance:
        most = sorted(report.importance.items(), key=lambda entry: -entry[1])[:MOST_INPUTS]
        metric = (report.importance_of or "").partition(" ")[0]
        rows.append(
            (f"{metric} lost when shuffled", ", ".join(f"{n} {loss:.4f}" for n, loss in most))
        )
    if speed := report.timing.examples_per_second:  # 0 of a run that had nothing left to train
        rows.append(("examples/s while training", f"{speed:,.0f}"))
    rows += [
        ("checkpoint", files.join(output, report.checkpoint)),
        ("report", files.join(output, REPORT)),
        ("page", files.join(output, PAGE)),
    ]
    progress.table("", ("trained", ""), rows)
    for name, values in (report.by or {}).items():
        show_by_value(name, values[:MOST_VALUES])
    if report.baseline is not None:
        show_baseline(report, report.baseline)
    for sentence in report.weak_points or ():
        progress.say(f"weak point: {sentence}")


def show_by_value(name: str, values: Sequence[ValueFigures]) -> None:
    """The metrics on the rows of each value of a column, as the page has them."""
    progress.table("", (name, "rows", *FIGURES), by_value(values))


def show_baseline(report: Report, baseline: Baseline) -> None:
    """The main figures of a run beside those of its baseline, on the same rows."""
    heading = f"on data.{report.split}" if report.split else ""
    progress.table("", (heading, "recipe", baseline.library), side_by_side(report, baseline))


def show_days(days: Sequence[DayRecord]) -> None:
    """The newest days: the model on each before it was trained on it, and what came and went."""
    if not days:
        return
    with_reference = any("reference_auc" in (day.before or {}) for day in days)
    names = ["day", "examples", "auc before", *["reference"] * with_reference]
    names += ["most new ids", "rows evicted"]
    rows = []
    for day in days[-MOST_DAYS:]:
        keys = ("auc", "reference_auc") if with_reference else ("auc",)
        metrics = [number_of(day.before or {}, key) for key in keys]
        slot = max(day.new_ids, key=lambda name: day.new_ids[name], default=None)
        rows.append((
            day.day,
            f"{day.rows:,}",
            *[NONE if metric is None else shown(metric, 4) for metric in metrics],
            NONE if slot is None else f"{day.new_ids[slot]:.1%} of {slot}",
            NONE if day.evicted is None else f"{sum(day.evicted.values()):,}",
        ))  # fmt: skip
    progress.table("", names, rows)


def _main_figure(figures: dict[str, JsonValue], of: str) -> list[tuple[str, str]]:
    """The AUC, or where there is none the MSE, as a row of a table; no row without either."""
    key = "auc" if "auc" in figures else "mse"
    return [(f"{key.upper()} {of}", shown(number_of(figures, key), 5))] if key in figures else []


def show_importance(importance: Importance) -> None:
    """What each input is worth beside what it costs, the most valuable first."""
    metric = importance.metric
    names = ("input", "kind", f"{metric} shuffled", f"{metric} lost", "rows", "memory")
    rows = [
        (
            of_input.name,
            of_input.kind,
            f"{of_input.metric:.5f}",
            f"{of_input.loss:+.5f}",
            NONE if of_input.rows is None else f"{of_input.rows:,}",
            NONE if of_input.bytes is None else progress.size(of_input.bytes),
        )
        for of_input in importance.inputs
    ]
    examples = f"{importance.examples:,} examples of data.{importance.split}"
    progress.table(f"{metric} {importance.whole:.5f} on {examples}", names, rows)
