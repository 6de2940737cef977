"""Tables for the terminal: the report of a run, and what each input is worth."""

from collections.abc import Sequence

from pydantic import JsonValue

from tnctl import files, progress
from tnctl.checkpoint.document import number_of
from tnctl.data.day_records import DayRecord
from tnctl.evaluation.importance import Importance
from tnctl.evaluation.metrics import main_metrics, shown
from tnctl.evaluation.split_scoring import FIGURES_BY_VALUE, ValueFigures
from tnctl.training.report.report_document import BaselineFigures, RecalibratedHead, Report
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
    if report.days:
        progress.table("", *day_table(report.days[-MOST_DAYS:]))
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
        rows.append((name, in_words(of_head)))
    if days := report.days:
        rows.append(("days", f"{len(days):,}, the last trained {days[-1].day}"))
        for newest in [day for day in days if day.before is not None][-1:]:
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
        losses = ", ".join(f"{name} {loss:.4f}" for name, loss in most)
        rows.append((f"{metric} lost when shuffled", losses))
    if speed := report.timing.examples_per_second:  # 0 of a run that had nothing left to train
        rows.append(("examples/s while training", f"{speed:,.0f}"))
    for name, path in (("checkpoint", report.checkpoint), ("report", REPORT), ("page", PAGE)):
        rows.append((name, files.join(output, path)))
    progress.table("", ("trained", ""), rows)
    for name, values in (report.by or {}).items():
        progress.table("", (name, "rows", *FIGURES_BY_VALUE), by_value(values[:MOST_VALUES]))
    if (baseline := report.baseline) is not None:
        heading = f"on data.{report.split}" if report.split else ""
        names = (heading, "recipe", baseline.library)
        progress.table("", names, side_by_side(report, baseline))
    for sentence in report.weak_points or ():
        progress.say(f"weak point: {sentence}")


def day_table(days: Sequence[DayRecord]) -> tuple[list[str], list[list[str]]]:
    """The names of columns, and a row for each day."""
    known = {key for day in days for key in day.before or {}}
    keys = ["mse" if "mse" in known and "auc" not in known else "auc"]
    names = ["day", "examples", f"{keys[0]} before"]
    if "reference_auc" in known:
        keys, names = [*keys, "reference_auc"], [*names, "reference"]
    late = list(dict.fromkeys(label for day in days for label in day.late or ()))
    names += [f"{keys[0]} of {label}" for label in late]
    rows = []
    for day in days:
        metrics = [number_of(day.before or {}, key) for key in keys]
        trained = [(day.late or {}).get(label) for label in late]
        metrics += [number_of(of.before or {}, keys[0]) if of else None for of in trained]
        slot = max(day.new_ids, key=lambda name: day.new_ids[name], default=None)
        rows.append([
            day.day,
            f"{day.rows:,}",
            *(NONE if metric is None else shown(metric, 4) for metric in metrics),
            NONE if slot is None else f"{day.new_ids[slot]:.1%} of {slot}",
            NONE if day.evicted is None else f"{sum(day.evicted.values()):,}",
        ])  # fmt: skip
    return [*names, "most new ids", "rows evicted"], rows


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


# ---- Figures in words, which the page has too --------------------------------------------


def by_value(values: Sequence[ValueFigures]) -> list[list[str]]:
    """For each value of a column its text, its rows and their metrics."""
    return [
        [
            "all others" if of.value is None else of.value or "(empty)",
            f"{of.examples:,}",
            *(shown(getattr(of, name), 4) for name in FIGURES_BY_VALUE),
        ]
        for of in values
    ]


def in_words(head: RecalibratedHead) -> str:
    """What recalibration did to a head, on one line."""
    changes = [
        f"{name} {' -> '.join(shown(number_of(of, name), 5) for of in (head.before, head.after))}"
        for name in ("logloss", "ne", "copc")
        if name in head.before  # none by days: each was for the day after
    ]
    fitted = f"slope {head.slope:.5g}, intercept {head.intercept:.5g}"
    return "; ".join([fitted, *filter(None, [", ".join(changes)])])


def side_by_side(report: Report, baseline: BaselineFigures) -> list[tuple[str, str, str]]:
    """The name of a figure, its value of the recipe, and its value of the baseline.

    Metrics are of the report's split.
    """
    others, timing = baseline.of_split(report.split), report.timing
    rows = [
        (metric.title, shown(value, 5), shown(number_of(others, metric.name), 5))
        for metric, value in main_metrics(report.metrics)
    ]
    recalibration = report.recalibration or {}
    if recalibration or baseline.recalibration is not None:
        # Without the name of a head there is only one.
        heads = [of for head, of in recalibration.items() if baseline.head in (None, head)]
        fitted = (heads[0] if heads else None, baseline.recalibration)
        recipe, trees = (NONE if of is None else f"{of.slope:.5g}" for of in fitted)
        rows.append(("slope of recalibration", recipe, trees))
    seconds = timing.training_seconds + timing.evaluation_seconds
    return [
        *rows,
        ("rows of data.train", f"{baseline.rows_seen:,}", f"{baseline.rows:,}"),
        ("trees", NONE, f"{baseline.trees:,}"),
        ("seconds", f"{seconds:,.1f}", f"{timing.baseline_seconds or 0:,.1f}"),
    ]
