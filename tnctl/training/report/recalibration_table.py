"""What recalibration changed: the same figures for the terminal and for report.html."""

from tnctl.evaluation.metrics import shown
from tnctl.training.report.fragments import Markup, fill, joined, table_of, table_row
from tnctl.training.report.report_document import RecalibratedHead, Report, number_of

FIGURES = ("logloss", "ne", "ctr", "pctr", "copc")  # ctr does not change, and pctr comes near to it
NOTE = (
    "Figures are of data.validation, to which slope and intercept were fitted. The order of "
    "predictions stays, and so does the AUC. Evaluations while training were before this."
)


def in_words(head: RecalibratedHead) -> str:
    """What recalibration did to a head, on one line."""
    changes = ", ".join(f"{name} {changed(head, name, '->')}" for name in ("logloss", "ne", "copc"))
    return f"slope {head.slope:.5g}, intercept {head.intercept:.5g}; {changes}"


def changed(head: RecalibratedHead, name: str, arrow: str) -> str:
    """A figure of a head before and after."""
    before, after = (shown(number_of(figures, name), 5) for figures in (head.before, head.after))
    return f"{before} {arrow} {after}"


def recalibration_table(report: Report) -> Markup:
    """The section of the page, empty without a recalibration."""
    heads = report.recalibration or {}
    names = [name for name in FIGURES if name != "ctr"]
    rows = [
        table_row(
            head,
            [
                f"{of_head.slope:.5g}",
                f"{of_head.intercept:.5g}",
                *(changed(of_head, name, "→") for name in names),
            ],
        )
        for head, of_head in heads.items()
    ]
    table = table_of(("head", "slope", "intercept", *names), rows)
    return joined([table, fill("note", text=NOTE)]) if rows else Markup()
