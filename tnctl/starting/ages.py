"""Ages: how long before the event of a row another time of it is, such as a sign-up."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl.starting.column import Column, Input, tokens_of
from tnctl.starting.column_kinds import FEW_VALUES
from tnctl.starting.column_value import GIVES_AWAY, SUSPICIOUS, held_out_auc
from tnctl.starting.number_inputs import transform_of
from tnctl.starting.time_forms import DAY, are_in_order, times_of_rows
from tnctl.starting.time_forms import WORDS as TIME_WORDS

# Words of times that are before an event, and of those after it: neither is the event's.
BEFORE = {
    "signup", "sign", "signed", "registered", "registration", "register", "joined", "join", "birth",
    "birthday", "birthdate", "born", "dob", "published", "publication", "publish", "release",
    "released", "founded", "opened", "since", "first", "last", "previous", "prev", "install",
    "installed", "launch", "launched", "listed",
}  # fmt: skip
AFTER = {
    "conversion", "converted", "purchase", "purchased", "paid", "delivery", "delivered", "returned",
    "closed", "end", "ended", "finish", "finished", "complete", "completed", "updated", "modified",
    "cancelled", "canceled", "deleted", "expires", "expiry", "due", "resolved",
}  # fmt: skip
UNITS = {"day": DAY, "hour": DAY // 24, "minute": DAY // 1440, "second": 1_000_000}
MOST_LATER = 0.02  # the share of rows in which a time that is before the event may be after it
MOST_MISSING = 0.05  # the share of rows in which the time of the event may be missing
FEWEST_ROWS = 20
HISTORY = 3  # how much longer times before an event reach back than those of the events


@dataclass(frozen=True)
class RowTimes:
    """The time of each row of a column, in microseconds since 1970: int64 and bool [rows]."""

    times: NDArray[np.int64]
    is_known: NDArray[np.bool_]

    @property
    def known(self) -> NDArray[np.int64]:
        return self.times[self.is_known]

    @property
    def are_dates(self) -> bool:
        """Whether no time of a day is known."""
        return not (self.known % DAY).any()


def add_ages(
    columns: Mapping[str, Column], labels: NDArray[np.float64]
) -> tuple[str | None, list[str]]:
    """Add ages to the inputs of times before the event; leave out times after it.

    `labels` [rows], NaN where missing. Returns the column of the time of the
    event, None where nothing shows it, and what the data does not say.
    """
    times = {
        name: RowTimes(*times_of_rows(column.figures, column.times))
        for name, column in columns.items()
        if column.times and column.times.format is not None and not column.times.is_ambiguous
    }
    candidates = _candidates(times)
    event = _event_of(candidates, columns, times)
    if event is None:
        return None, [
            f"which of the times {', '.join(candidates or times)} is the event's: so no age is "
            "among the inputs, and a time after the event may be"
        ] * (len(times) > 1)
    for name in times:
        if name != event:
            _add_age(columns[name], times[name], event, times[event], labels)
    return event, []


def _candidates(times: Mapping[str, RowTimes]) -> list[str]:
    """The columns that may have the time of the event: nearly no gap, and no word against it."""
    return [
        name
        for name, of_rows in times.items()
        if not (BEFORE | AFTER) & set(tokens_of(name))
        and of_rows.is_known.mean() >= 1 - MOST_MISSING
    ]


def _event_of(
    candidates: Sequence[str], columns: Mapping[str, Column], times: Mapping[str, RowTimes]
) -> str | None:
    """The column of the time of the event, where order, names or ranges show it."""
    in_order = [
        name
        for name in candidates
        if (form := columns[name].times) and are_in_order(columns[name].figures, form)
    ]
    if in_order:  # of a day and a time the time
        return max(in_order, key=lambda name: columns[name].figures.distinct)
    if len(candidates) < 2:
        return candidates[0] if candidates else None
    named = [name for name in candidates if TIME_WORDS & set(tokens_of(name))]
    if len(named) == 1:
        return named[0]
    # Events are of the time that a log covers; what was before them reaches back further.
    for name in candidates:
        others = [times[other] for other in candidates if other != name]
        span = int(np.ptp(times[name].known))
        if all(
            np.ptp(other.known) > HISTORY * span and _later(other, times[name]) <= MOST_LATER
            for other in others
        ):
            return name
    return None


def _differences(other: RowTimes, event: RowTimes) -> NDArray[np.int64]:
    """How long before the event a time is, in microseconds [rows that have both]."""
    both = other.is_known & event.is_known
    starts, ends = other.times[both], event.times[both]
    if other.are_dates or event.are_dates:
        starts, ends = starts // DAY * DAY, ends // DAY * DAY
    return ends - starts


def _later(other: RowTimes, event: RowTimes) -> float:
    """The share of rows in which a time is after the event."""
    differences = _differences(other, event)
    return float((differences < 0).mean()) if len(differences) else 0.0


def _add_age(
    column: Column, other: RowTimes, event: str, at: RowTimes, labels: NDArray[np.float64]
) -> None:
    """Add the age to the inputs of a column; or leave the column out, and say why."""
    name = column.figures.name
    differences = _differences(other, at)
    if len(differences) < FEWEST_ROWS:
        return
    later = float((differences < 0).mean())
    if later > MOST_LATER:
        _leave_out(column, f"it is after {event} in {later:.1%} of the rows that have both, so it "
                   "may be known only after the event")  # fmt: skip
        return
    low, middle, high = (int(age) for age in np.quantile(differences, [0.05, 0.5, 0.95]))
    if low == high:  # the same day, say
        return
    unit = next((unit for unit, size in UNITS.items() if middle >= 2 * size), "second")
    ages = np.maximum(differences, 0) / UNITS[unit]
    area = _alone(ages, labels[other.is_known & at.is_known])
    if area >= GIVES_AWAY:
        _leave_out(column, f"its age at {event} gives the label away: alone an AUC of {area:.3f}")
        return
    if area >= SUSPICIOUS and not column.warning:
        column.warning = (
            f"the age of {name} at {event} alone has an AUC of {area:.3f}: is {name} known before "
            "the label is?"
        )
    settings: dict[str, Any] = {"since_column": name, "unit": unit, "transform": transform_of(ages)}
    if later:
        settings["clip"] = [0, None]
    shown = (
        f"{name} is before {event} in {1 - later:.1%} of the rows that have both, by "
        f"{middle / UNITS[unit]:,.3g} {unit}s at the middle, in most by {low / UNITS[unit]:,.3g} "
        f"to {high / UNITS[unit]:,.3g}"
    )
    column.inputs.append(Input("numeric", f"{name}_age", event, settings, shown))


def _leave_out(column: Column, reason: str) -> None:
    column.inputs = []
    column.kind = "later time"
    column.remark = reason
    column.warning = (
        f"{column.figures.name} is left out: {reason}. If it is known before, add it by hand"
    )


def _alone(ages: NDArray[np.float64], labels: NDArray[np.float64]) -> float:
    """The AUC of ages [rows] alone, by buckets of as many rows, whichever way it is above 0.5."""
    edges = np.unique(np.quantile(ages, np.linspace(0, 1, 6 * FEW_VALUES)[1:-1]))
    area = held_out_auc(np.searchsorted(edges, ages, side="right"), labels)
    return max(area, 1 - area)
