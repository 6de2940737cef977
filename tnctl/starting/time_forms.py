"""Columns that are times: dates, and instants as text or as numbers."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tnctl.data.bad_rows import BadRowsError
from tnctl.data.times import times_of
from tnctl.errors import Failure
from tnctl.schema import ISO, Data, Time
from tnctl.starting.column_figures import Figures

TRIED = 20  # texts that decide which formats all others are tried with
MOST_WRONG = 0.05  # the share of other texts in a column of times
DATES = (
    "%Y-%m-%d", "%Y/%m/%d", "%Y.%m.%d", "%m/%d/%Y", "%d/%m/%Y", "%d.%m.%Y", "%d-%m-%Y", "%m-%d-%Y",
    "%d %b %Y", "%d-%b-%Y", "%b %d %Y", "%b %d, %Y", "%m/%d/%y", "%d/%m/%y", "%d.%m.%y",
)  # fmt: skip
CLOCKS = (
    "", " %H:%M", " %H:%M:%S", " %H:%M:%S.%f", " %I:%M %p", " %I:%M:%S %p", " %I:%M%p",
    " %I:%M:%S%p", " %I:%M:%S:%f%p",
)  # fmt: skip
OF_TEXT = (
    ISO, *(date + clock for date in DATES for clock in CLOCKS),
    *(f"{clock} {date}" for date in DATES for clock in ("%H:%M", "%H:%M:%S")),
    *("%d-%b-%y" + clock for clock in ("", " %I.%M.%S.%f %p", " %I.%M.%S %p", " %H.%M.%S.%f")),
    "%d/%b/%Y:%H:%M:%S %z", "%a %b %d %H:%M:%S %z %Y", "%a %b %d %H:%M:%S %Y",
    "%a, %d %b %Y %H:%M:%S %z", "%a, %d %b %Y %H:%M:%S GMT",
)  # fmt: skip
MONTH = "(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*"
# What each text in one of these formats has, which is quicker to look for than to try them all.
A_DATE = re.compile(rf"\d[-/. ](?:\d\d?|{MONTH})[-/. ]\d|{MONTH} {{1,2}}\d|\d{{8}}t", re.I)
UNITS = {"epoch_s": 1, "epoch_ms": 1e3, "epoch_us": 1e6}  # in a second
LOWEST, HIGHEST = 3e8, 2e9  # in seconds: from 1979 to 2033
OF_DIGITS = ("%Y%m%d", "%y%m%d%H", "%Y%m%d%H", "%Y%m%d%H%M", "%Y%m%d%H%M%S")
FEWEST_HOURS = 5  # different numbers that are all a date without its century, and an hour
END = 4_102_444_800_000_000  # 2100: digits beyond, or before 1970, are no dates
ASCENDING = 0.95  # the share of rows that are not before the row above
DAY = 86_400_000_000


@dataclass(frozen=True)
class TimeForm:
    """How a column writes times, and what they are.

    `format` is that of data.times, None where no format has all values. `times` int64 [rows] are
    those of the rows that have one, in microseconds since 1970. `is_ambiguous`: another format,
    with day and month exchanged, has all values too.
    """

    format: str | None
    times: NDArray[np.int64]
    is_ambiguous: bool = False

    @property
    def range(self) -> str:
        """The first and the last day, in words."""
        days = (self.times // DAY).astype("datetime64[D]")
        return f"{days.min()} to {days.max()}"

    @property
    def are_in_order(self) -> bool:
        """Whether the rows are nearly in the order of their times."""
        if self.is_ambiguous:
            return False
        steps = np.diff(self.times)
        forwards, backwards = int((steps > 0).sum()), int((steps < 0).sum())
        return forwards > 9 * backwards and backwards < (1 - ASCENDING) * len(steps)


def time_form(column: Figures) -> TimeForm | None:
    """How a column writes times; None for a column of something else."""
    if column.lengths is not None or column.distinct < 2:
        return None
    values = column.values.filter(pa.array(column.counts > 0))
    if column.form == "time":
        return _form(column, values, [ISO])
    if column.form == "text" and column.number_share < 0.05:
        first = values.slice(0, TRIED)
        # One of those that are tried may be wrong.
        if not any(A_DATE.search(text) for text in first.slice(0, 2).to_pylist()):
            return None
        return _form(column, values, [f for f in OF_TEXT if _read(first, f, 1) is not None])
    numbers = column.numbers[column.counts > 0]
    if column.number_share < 1 or not column.is_whole or not np.isfinite(numbers).all():
        return None
    formats = [format for format in OF_DIGITS if _are_digits(numbers, format)][:1]
    if not formats and not column.name.lower().endswith("id"):
        formats = _unit_of(column)
    return _form(column, values, formats)


def _form(column: Figures, values: pa.Array, formats: Sequence[str]) -> TimeForm | None:
    """The first of some formats that all values are in; None where too many are in none."""
    read = {format: times for format in formats if (times := _read(values, format)) is not None}
    if not read:
        most_wrong = MOST_WRONG * len(values)
        if all(_read(values, format, most_wrong) is None for format in formats):
            return None
        return TimeForm(None, np.empty(0, np.int64))
    format, *others = read
    of_values = np.zeros(len(column.values), np.int64)
    of_values[column.counts > 0] = read[format]
    differ = any((read[other] != read[format]).any() for other in others)
    return TimeForm(format, of_values[column.codes[column.codes >= 0]], differ)


def _read(values: pa.Array, format: str, most_wrong: float = 0) -> NDArray[np.int64] | None:
    """The times of values [n] that are in a format, int64; None where over `most_wrong` are not."""
    data = Data(times={"": Time(format=format)})
    try:
        times = times_of(values, "", data, lambda row: ("", row))
    except BadRowsError as error:
        if len(error.rows) > most_wrong:
            return None
        left = np.delete(np.arange(len(values)), error.rows)
        return _read(values.take(pa.array(left)), format)
    except Failure:
        return None
    return None if times.missing.any() else times.values


def _are_digits(numbers: NDArray[np.float64], format: str) -> bool:
    """Whether all different numbers [n] are dates as digits, such as 20261120."""
    digits = len(format) + 2 * format.count("%Y")
    if not (10 ** (digits - 1) <= numbers.min() and numbers.max() < 10**digits):
        return False
    if format.startswith("%y") and len(numbers) < FEWEST_HOURS:
        return False
    times = _read(pc.cast(pa.array(numbers), pa.int64()), format)
    return times is not None and times.min() >= 0 and times.max() < END


def _unit_of(column: Figures) -> list[str]:
    """The unit since 1970 in which numbers count that ascend from row to row; or none.

    They ascend as times do, not by one as the numbers of rows.
    """
    numbers = column.numbers[column.counts > 0]
    steps = np.diff(column.numbers[column.codes[column.codes >= 0]])
    if (steps >= 0).mean() <= ASCENDING or (steps == 1).mean() >= ASCENDING:
        return []
    return [
        unit
        for unit, second in UNITS.items()
        if LOWEST * second <= numbers.min() and numbers.max() < HIGHEST * second
    ]
