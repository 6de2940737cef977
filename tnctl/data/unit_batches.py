"""Windows and batches of what a worker reads of a split: all of it, or some of its units."""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tnctl.data.bad_rows import Skipped
from tnctl.data.batches import Batch, joined, taken
from tnctl.data.features import Features
from tnctl.data.read_ahead import ReadAhead
from tnctl.data.unit_records import Progress, Remainder
from tnctl.data.windows import order, window_rows, windows
from tnctl.schema import Conf

WINDOWS_AHEAD = 1


class UnitWindow(NamedTuple):
    """A window of a unit, or the unit's end."""

    unit: int
    number: int
    """of the window, in the unit"""
    offset: int
    """the rows of the window, in its shuffled order, that were consumed before"""
    rows: Batch | None
    """None after a unit that ends with a full window, or has none"""
    skipped: int | None
    """at the end of the unit, the rows of it that could not be read; None before"""


Ordering = Callable[[UnitWindow, int], NDArray[np.uint32]]  # the order of a window of so many rows


def unit_windows(
    conf: Conf,
    features: Features,
    split: str,
    remainders: Iterable[Remainder],
    skipped: Skipped,
    limit: int | None = None,
) -> Iterator[UnitWindow]:
    """The windows of remainders, one remainder after the other, and the end of each unit.

    `limit` is the most rows of each. Raises `Failure` as `windows` does.
    """
    size = window_rows(conf.data.window, conf.train.batch_rows)
    for left in remainders:
        unit, number, offset, ended = left.unit, left.window, left.offset, False
        skipped_before = skipped.rows
        for rows in windows(
            conf, features, split, limit=limit, start=number, skipped=skipped, unit=unit
        ):
            # No window of the unit follows on a short one.
            ended = rows.rows < size
            count = skipped.rows - skipped_before if ended else None
            yield UnitWindow(unit.index, number, offset, rows, count)
            number, offset = number + 1, 0
        if not ended:
            yield UnitWindow(unit.index, number, offset, None, skipped.rows - skipped_before)


def unit_batches(
    source: Iterable[UnitWindow], ordering: Ordering, batch_size: int, window_size: int
) -> Iterator[tuple[Batch, Progress]]:
    """The batches of windows in an order, and how far each is.

    A batch is filled from the next windows and units, so only the last one may be short.
    """
    parts: list[Batch] = []
    completed: list[tuple[int, int]] = []
    waiting, unit, number, at = 0, 0, 0, 0

    def progress() -> Progress:
        ends = at == window_size
        place = (number + 1, 0) if ends else (number, at)
        return Progress(unit, *place, tuple(completed))

    for window in source:
        rows = 0
        if window.rows is not None:
            rows = window.rows.rows
            unit, number, at = window.unit, window.number, window.offset
            chosen = ordering(window, rows)
            while at < rows:
                count = min(batch_size - waiting, rows - at)
                parts.append(taken(window.rows, chosen[at : at + count]))
                waiting, at = waiting + count, at + count
                if window.skipped is not None and at == rows:
                    completed.append((unit, window.skipped))
                if waiting == batch_size:
                    yield joined(parts), progress()
                    parts, completed, waiting = [], [], 0
        if window.skipped is not None and window.offset >= rows:
            completed.append((window.unit, window.skipped))
    if parts:
        yield joined(parts), progress()


def training_batches(
    conf: Conf,
    features: Features,
    passes: int,
    remainders: Iterable[Remainder],
    skipped: Skipped,
) -> Iterator[tuple[Batch, Progress]]:
    """The batches of what is left of a pass, in their shuffled order, windows read one ahead.

    `passes` is how many passes there were before, which seeds the order. The remainders are read
    one after the other. `skipped` counts the rows that cannot be read.
    """

    def shuffled(window: UnitWindow, rows: int) -> NDArray[np.uint32]:
        return order(conf.seed, passes, window.number, rows, conf.data.shuffle, window.unit)

    source = unit_windows(conf, features, "train", remainders, skipped)
    with ReadAhead(source, WINDOWS_AHEAD) as ahead:
        yield from unit_batches(
            ahead,
            shuffled,
            conf.train.batch_rows,
            window_rows(conf.data.window, conf.train.batch_rows),
        )
