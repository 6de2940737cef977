"""A run beside its baseline: the same figures for the terminal and for report.html."""

from tnctl.evaluation.metrics import main_metrics, shown
from tnctl.training.report.fragments import NONE, Markup, fill, joined, table_of, table_row
from tnctl.training.report.report_document import Baseline, Report, number_of


def side_by_side(report: Report, baseline: Baseline) -> list[tuple[str, str, str]]:
    """The name of a figure, its value of the recipe, and its value of the baseline.

    Metrics are those of the report's split.
    """
    others, timing = baseline.of_split(report.split), report.timing
    rows = [
        (metric.title, shown(value, 5), shown(number_of(others, metric.name), 5))
        for metric, value in main_metrics(report.metrics)
    ]
    seconds = timing.training_seconds + timing.evaluation_seconds
    recalibration = report.recalibration or {}
    if recalibration or baseline.recalibration is not None:
        # Without the name of a head there is only one.
        heads = [of for head, of in recalibration.items() if baseline.head in (None, head)]
        of_both = (heads[0] if heads else None, baseline.recalibration)
        slopes = [NONE if fitted is None else f"{fitted.slope:.5g}" for fitted in of_both]
        rows.append(("slope of recalibration", slopes[0], slopes[1]))
    return [
        *rows,
        ("rows of data.train", f"{baseline.rows_seen:,}", f"{baseline.rows:,}"),
        ("trees", NONE, f"{baseline.trees:,}"),
        ("seconds", f"{seconds:,.1f}", f"{timing.baseline_seconds or 0:,.1f}"),
    ]


def baseline_table(report: Report) -> Markup:
    """The section of the page, empty without a baseline."""
    baseline = report.baseline
    if baseline is None:
        return Markup()
    rows = [table_row(name, cells) for name, *cells in side_by_side(report, baseline)]
    heading = f"data.{report.split}" if report.split else ""
    notes = []
    if baseline.rows < baseline.rows_seen:
        notes.append(
            f"The trees were trained on {baseline.rows / baseline.rows_seen:.1%} of the rows of "
            "data.train, chosen by a hash of their numbers."
        )
    if baseline.head is not None:
        notes.append(f"Both are of head {baseline.head}.")
    notes.append(
        f"The trees have {baseline.columns:,} columns, {baseline.categorical:,} of them with "
        "categories."
    )
    table = table_of((heading, "recipe", baseline.library), rows)
    return joined([table, fill("note", text=" ".join(notes))])
