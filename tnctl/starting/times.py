"""Columns that are times: dates, and instants as text or as numbers."""

import re
from dataclasses import dataclass

import numpy as np

from tnctl.starting.column_figures import Figures

TEXT = re.compile(
    r"(19|20)\d\d[-/.](0?[1-9]|1[0-2])[-/.](0?[1-9]|[12]\d|3[01])"
    r"([T ]\d{1,2}:\d\d(:\d\d([.,]\d+)?)?\s?(Z|UTC|[+-]\d\d:?\d\d)?)?"
    r"|\d{1,2}/\d{1,2}/(19|20)\d\d( \d{1,2}:\d\d(:\d\d)?)?"
)
WORDS = {"time", "times", "timestamp", "ts", "date", "datetime", "day", "dt", "at", "created"}
TRIED = 1000
# Seconds, milliseconds and microseconds since 1970, from September 2001 to 2033.
UNITS = {"seconds": 1e9, "milliseconds": 1e12, "microseconds": 1e15}
DIGITS = {8: "YYYYMMDD", 10: "YYYYMMDDHH", 14: "YYYYMMDDHHMMSS"}


@dataclass(frozen=True)
class TimeForm:
    """How a column writes times: `words` name the form for a comment."""

    words: str


def time_form(column: Figures, tokens: set[str]) -> TimeForm | None:
    """How a column writes times; None for a column of something else. `tokens` are of its name."""
    if column.lengths is not None or column.distinct < 2:
        return None
    if column.form == "time":
        return TimeForm(f"of the type {column.values.type}")
    if column.form == "text" and column.number_share < 0.05:
        texts = column.texts()[:TRIED]
        if sum(bool(TEXT.fullmatch(text)) for text in texts) > 0.95 * len(texts):
            return TimeForm("as text")
    if column.number_share < 0.99 or not column.is_whole:
        return None
    return _of_numbers(column, bool(tokens & WORDS))


def _of_numbers(column: Figures, is_named: bool) -> TimeForm | None:
    numbers = column.numbers[(column.counts > 0) & np.isfinite(column.numbers)]
    low, high = float(numbers.min()), float(numbers.max())
    for unit, least in UNITS.items():
        if least <= low and high < 2 * least and (is_named or _ascends(column)):
            return TimeForm(f"in {unit} since 1970")
    for digits, words in DIGITS.items():
        scale = 10.0 ** (digits - 8)
        if 19_700_101 * scale <= low and high < 21_000_101 * scale:
            days = np.floor(numbers / scale)
            month, day = days // 100 % 100, days % 100
            if ((month >= 1) & (month <= 12) & (day >= 1) & (day <= 31)).all():
                return TimeForm(f"as {words}")
    return None


def _ascends(column: Figures) -> bool:
    """Whether the rows are nearly in the order of the numbers."""
    rows = column.numbers[column.codes[column.codes >= 0]]
    return len(rows) > 1 and float((np.diff(rows) >= 0).mean()) > 0.95
