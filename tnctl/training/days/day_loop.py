"""Trains day after day: evaluates the model on each day, then trains the passes over it."""

import contextlib
import time
from dataclasses import replace

from tnctl.checkpoint.document import Position
from tnctl.data.day_records import DayRecord
from tnctl.data.days import conf_of_day
from tnctl.schema import Conf
from tnctl.training import events
from tnctl.training.days.daily import Daily
from tnctl.training.loop import train_passes
from tnctl.training.state import RunState
from tnctl.training.workers import Workers


def train_days(conf: Conf, state: RunState, workers: Workers, daily: Daily) -> events.Events:
    """Train every day that is left; a day that was begun before is resumed.

    Raises Failure for a day that may not be trained, and what `train_passes` raises.
    """
    while daily.left:
        if daily.under_way is None:
            started = time.perf_counter()
            record = _begin_day(state, workers, daily)
            yield events.DayLooked(record, time.perf_counter() - started)
        record = daily.record[-1]
        if record.rows:
            conf_of_record = conf_of_day(conf, record.day)
            yield events.DayStarts(conf_of_record)
            with contextlib.closing(train_passes(conf_of_record, state, workers)) as passes:
                for event in passes:
                    if isinstance(event, events.RowsEvicted):
                        daily.add_evicted(event.removed)
                    yield event
        else:
            daily.add_evicted(workers.end_of_period())
        summary = daily.end(state.steps)
        state.position = Position(passes=state.position.passes)
        yield events.DayEnds(summary, is_last=not daily.left)


def _begin_day(state: RunState, workers: Workers, daily: Daily) -> DayRecord:
    """Begin the first day that is left, on the clock of the tables too."""
    previous = state.clock_days[-1][0] if state.clock_days else 0
    record = daily.begin(daily.left[0], workers, state.steps, previous)
    # On the first day also rows of a warm start from a run without days are of this day.
    state.clock_days.append((record.number, record.first_step if state.clock_days else 1))
    workers.set_days(state.clock_days)
    state.position = replace(state.position, day=record.day)
    return record
