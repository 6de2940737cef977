"""Columns that are times: dates, and instants as text or as numbers."""

import re
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
from tnctl.tables import c_times

WORDS = {"time", "times", "timestamp", "ts", "date", "datetime", "day", "dt", "at", "created"}
HOUR = "hour"  # the name of a column that often has the hour with its date
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
# A clock, or a month beside a number; no address of a network.
A_TIME = re.compile(
    rf"(?:(?<![\w:])|(?<=\dt))\d\d?:[0-5]\d(?::[0-5]\d)?(?!\d|\w*:\w*:)"
    rf"|\b\d\d?[-/. ]{{1,2}}{MONTH}\b|\b{MONTH}[-/. ]{{1,2}}\d",
    re.I,
)
UNITS = {"epoch_s": 1, "epoch_ms": 1e3, "epoch_us": 1e6}  # in a second
# In seconds: from 1973 or, where no name says that it is a time, 1990; to 2033.
LOWEST, LOWEST_UNNAMED, HIGHEST = 1e8, 631_152_000, 2e9
OF_DIGITS = ("%Y%m%d", "%Y%m%d%H", "%Y%m%d%H%M", "%Y%m%d%H%M%S")
OF_HOURS = "%y%m%d%H"
FIRST, END = 0, 4_102_444_800_000_000  # 1970 and 2100: digits beyond are no dates
DAY = 86_400_000_000


@dataclass(frozen=True)
class TimeForm:
    """How a column writes times, and what they are.

    `format` is that of data.times, None where no format has all values; `times` int64 [distinct]
    are those of the values that occur, in microseconds since 1970. `is_ambiguous`: another format,
    with day and month exchanged, has all values too.
    """

    words: str
    format: str | None
    times: NDArray[np.int64]
    is_ambiguous: bool = False

    def part(self, name: str) -> NDArray[np.uint64]:
        """The distinct ids of a part (hour, weekday, …) of the times, ascending."""
        return np.unique(c_times.parts(self.times, name, 0))

    @property
    def range(self) -> str:
        """The first and the last day, in words."""
        days = (self.times // DAY).astype("datetime64[D]")
        return f"{days.min()} to {days.max()}"


def time_form(column: Figures, tokens: set[str], is_other: bool) -> TimeForm | None:
    """How a column writes times; None for a column of something else.

    `tokens` are of its name; `is_other` says whether the last means ids or amounts.
    """
    if column.lengths is not None or column.distinct < 2:
        return None
    values = column.values.filter(pa.array(column.counts > 0))
    if column.form == "time":
        return _form("by its type", values, [ISO])
    if column.form == "text" and column.number_share < 0.05:
        first = values.slice(0, TRIED)
        # One of those that are tried may be wrong.
        if not any(A_DATE.search(text) for text in first.slice(0, 2).to_pylist()):
            return None
        tried = [format for format in OF_TEXT if _read(first, format, 1) is not None]
        return _form("as text", values, tried) if tried else None
    if column.number_share < 0.99 or not column.is_whole:
        return None
    return _of_numbers(column, values, tokens, is_other)


def may_be_times(column: Figures) -> bool:
    """Whether most texts look like times, though they are in no format that is tried."""
    first = column.values.filter(pa.array(column.counts > 0)).slice(0, TRIED).to_pylist()
    return sum(bool(A_TIME.search(str(text))) for text in first) > len(first) / 2


def times_of_rows(column: Figures, form: TimeForm) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The time of each row in microseconds since 1970, and whether it has one: both [rows]."""
    times = np.zeros(len(column.values), np.int64)
    times[column.counts > 0] = form.times
    return times[column.codes], column.codes >= 0


def are_in_order(column: Figures, form: TimeForm) -> bool:
    """Whether the rows are nearly in the order of the times that a column has in a form."""
    if form.format is None or form.is_ambiguous:
        return False
    times, is_known = times_of_rows(column, form)
    steps = np.diff(times[is_known])
    forwards, backwards = int((steps > 0).sum()), int((steps < 0).sum())
    return forwards > 9 * backwards and backwards < 0.05 * len(steps)


def _form(words: str, values: pa.Array, formats: list[str]) -> TimeForm | None:
    """The first of some formats that all values are in; None where too many are in none."""
    read = {format: times for format in formats if (times := _read(values, format)) is not None}
    if not read:
        most_wrong = MOST_WRONG * len(values)
        if all(_read(values, format, most_wrong) is None for format in formats):
            return None
        return TimeForm(words, None, np.empty(0, np.int64))
    format, *others = read
    differ = any((read[other] != read[format]).any() for other in others)
    return TimeForm(words, format, read[format], differ)


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


def _of_numbers(
    column: Figures, values: pa.Array, tokens: set[str], is_other: bool
) -> TimeForm | None:
    numbers = column.numbers[(column.counts > 0) & np.isfinite(column.numbers)]
    low, high = float(numbers.min()), float(numbers.max())
    is_named = bool(tokens & WORDS)
    whole = pc.cast(pa.array(numbers), pa.int64(), safe=False)
    for format in (*OF_DIGITS, *([OF_HOURS] if is_named or HOUR in tokens else [])):
        digits = len(format) + 2 * format.count("%Y")
        if not (10 ** (digits - 1) <= low and high < 10**digits):
            continue
        times = _read(whole, format)
        if times is not None and times.min() >= FIRST and times.max() < END:
            # Numbers with a point, as pandas writes integers beside gaps, are in no such format.
            return _form(f"as {format}", values, [format])
    names_time = is_named and not (is_other and tokens & {"id", "ids"})
    lowest = LOWEST if names_time else LOWEST_UNNAMED
    for format, second in UNITS.items():
        if not (lowest * second <= low and high < HIGHEST * second):
            continue
        if names_time or (not is_other and _ascends(column)):
            return _form(f"as {format}", values, [format])
    return None


def _ascends(column: Figures) -> bool:
    """Whether the rows are nearly in the order of the numbers, and are not numbered by them."""
    steps = np.diff(column.numbers[column.codes[column.codes >= 0]])
    if not len(steps):
        return False
    return float((steps >= 0).mean()) > 0.95 and float((steps == 1).mean()) < 0.95
