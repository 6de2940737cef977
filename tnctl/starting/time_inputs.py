"""Parts of times: the hour and the weekday."""

import numpy as np

from tnctl.starting.column import Column, Context, Input, missing_key
from tnctl.starting.column_figures import Figures
from tnctl.starting.time_forms import DAY, TimeForm
from tnctl.tables import c_times

DAYS_OF_WEEK = 7
RECURRING = 1.5  # days, on average, on which an hour or a weekday occurs


def time_of(column: Figures, times: TimeForm, context: Context) -> Column:
    """A time: its hour and its weekday, where the sample has several of them, on several days."""
    result = Column(column, "time", times=times)
    shown = f"a time {times.words}"
    example = column.examples().split(", ")[0]
    if times.format is None:
        result.remark = f"{shown}, such as {example}, but not all values are in one format"
        return result
    days = f"{shown}, {times.range}"
    base = "" if column.name.lower() == "hour" else f"{column.name}_"
    hours, weekdays = len(times.part("hour")), len(times.part("weekday"))
    once = [part for part in ("hour", "weekday") if context.is_whole and not _recurs(times, part)]
    wanted = []
    if hours > 1 and "hour" not in once:
        shown_hours = f"{days}: {hours} hours of the day"
        if weekdays < DAYS_OF_WEEK and not context.is_whole:
            shown_hours += f", {weekdays} of 7 weekdays read, so no weekday"
        wanted.append((f"{base}hour", "hour", shown_hours))
    if weekdays == DAYS_OF_WEEK and not times.is_ambiguous and "weekday" not in once:
        wanted.append((f"{base}weekday", "weekday", f"{days}: all weekdays"))
    for name, ids, evidence in wanted:
        settings = {"ids": ids, **missing_key(column)}
        result.inputs.append(Input("slots", name, column.name, settings, evidence))
    if not wanted:
        if times.is_ambiguous:
            reason = "day and month could be exchanged"
        elif hours > 1:
            reason = "each hour of the day is on one day alone, so none is known when it comes"
        else:
            reason = "the rows that were read have one hour of the day and not all weekdays"
        result.remark = f"{shown if times.is_ambiguous else days}, such as {example}: {reason}"
    return result


def _recurs(times: TimeForm, part: str) -> bool:
    """Whether most hours or weekdays occur on more than one day."""
    days = times.times // DAY
    ids = c_times.parts(times.times, part, 0).astype(np.int64)
    pairs = np.unique(np.stack([days, ids]), axis=1).shape[1]
    return bool(pairs >= RECURRING * len(np.unique(ids)))
