"""The results of a run: report.json and the page report.html."""

from tnctl.training.report.report_document import (
    Baseline,
    Best,
    GroupLife,
    LogLine,
    RecalibratedHead,
    Report,
    TableSize,
    Timing,
    number_of,
)

__all__ = [
    "Baseline",
    "Best",
    "GroupLife",
    "LogLine",
    "RecalibratedHead",
    "Report",
    "TableSize",
    "Timing",
    "number_of",
]
