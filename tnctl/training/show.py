"""A report as a person reads it."""

from pydantic import JsonValue

from tnctl import files, progress
from tnctl.evaluation.ablation import Ablation
from tnctl.training.report import Report, number_of
from tnctl.training.run_folder import PAGE, REPORT

NONE = "–"


def report(output: str, content: Report) -> None:
    """The figures that matter, and where the rest is."""
    rows: list[tuple[str, str]] = []
    for key, name in (("auc", "AUC"), ("gauc", "GAUC"), ("reference_auc", "AUC of the reference"),
                      ("logloss", "logloss"), ("mse", "MSE")):  # fmt: skip
        value = content.figure(key)
        if value is not None and not (key == "mse" and "logloss" in content.metrics):
            split = f" ({content.split})" if not rows else ""
            rows.append((f"{name}{split}", f"{value:.5f}"))
    for head, figures in content.heads.items():
        rows += main_figure(figures, f"of {head}")
    best = content.best
    if best is not None and best.value is not None and len(content.evaluations) > 1:
        kept = ", which is kept" if best.kept else ""
        shown = f"{best.value:.5f} at step {best.step:,}{kept}"
        rows.append((f"best {best.monitor} on validation", shown))
    if days := content.days:
        rows.append(("days", f"{len(days):,}, the last trained {days[-1].day}"))
        newest = next((day for day in reversed(days) if day.before is not None), None)
        if newest is not None:
            rows += main_figure(newest.before or {}, f"of {newest.day} before it was trained")
    for name, table in content.tables.items():
        rows.append((f"rows of {name}", f"{table.rows:,} ({progress.size(table.bytes)})"))
    rows.append(("dense weights", f"{content.dense_weights:,}"))
    rows.append(("examples/s while training", f"{content.timing.examples_per_second:,.0f}"))
    rows.append(("checkpoint", files.join(output, content.checkpoint)))
    rows.append(("report", files.join(output, REPORT)))
    rows.append(("page", files.join(output, PAGE)))
    progress.table("", ("trained", ""), rows)


def main_figure(figures: dict[str, JsonValue], of: str) -> list[tuple[str, str]]:
    """The AUC, or where there is none the MSE, as a row of a table; no row without either."""
    key = "auc" if "auc" in figures else "mse"
    value = number_of(figures, key)
    return [] if value is None else [(f"{key.upper()} {of}", f"{value:.5f}")]


def ablation(measured: Ablation) -> None:
    """What each input is worth beside what it costs, the dearest first."""
    names = (
        "input",
        "kind",
        f"{measured.metric} without",
        f"{measured.metric} lost",
        "rows",
        "memory",
    )
    rows = [
        (
            worth.name,
            worth.kind,
            f"{worth.metric:.5f}",
            f"{worth.loss:+.5f}",
            NONE if worth.rows is None else f"{worth.rows:,}",
            NONE if worth.bytes is None else progress.size(worth.bytes),
        )
        for worth in measured.inputs
    ]
    examples = f"{measured.examples:,} examples of data.{measured.split}"
    progress.table(f"{measured.metric} {measured.whole:.5f} on {examples}", names, rows)
