"""Units of a split, and how far a pass over them is: plain values, as checkpoints record them.

A unit is a part of a split that one worker reads: all of it, a file, some row groups of a file, or
a range of generated rows. Nothing here reads data.
"""

import bisect
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from tnctl.documents import Count, Sha256, Text
from tnctl.masking import bare

MOST_WORKERS = 1 << 16
MOST_UNITS = 1 << 22
Place = Annotated[int, Field(ge=0, lt=2**32)]  # a window of a unit, or a row of a window
Workers = Annotated[int, Field(ge=1, lt=MOST_WORKERS)]
UnitIndex = Annotated[int, Field(ge=0, lt=MOST_UNITS)]


@dataclass(frozen=True)
class Unit:
    """A part of a split, by its place `index` among the units of the split.

    With `end`, `first` to `end` - 1 are row groups of `file` or, without a file, generated rows.
    Without `end` it is the whole file and, without a file, the whole split.
    """

    index: UnitIndex
    file: Text | None = None
    """its name (`sources.saved_name`), with the secrets of a URL if it has any"""
    first: Count = 0
    end: Count | None = None

    @property
    def is_split(self) -> bool:
        """Whether it is the whole split."""
        return self.file is None and self.end is None


WHOLE = Unit(0)  # a split that is not cut


@dataclass(frozen=True)
class Remainder:
    """What is left of a unit: from row `offset` of window `window` on, in the shuffled order."""

    unit: Unit
    window: Place = 0
    offset: Place = 0


@dataclass(frozen=True)
class Progress:
    """How far a stream of batches is after one of them.

    The next row is row `offset`, in the shuffled order, of window `window` of unit `unit`.
    `completed` has the units that the stream completed since the batch before, each with its rows
    that could not be read; `unit` may be the last of them. A unit that ends with a full window is
    completed by the next batch; after the last batch it has no row left.
    """

    unit: UnitIndex
    window: Place
    offset: Place
    completed: tuple[tuple[UnitIndex, Count], ...] = ()


@dataclass(frozen=True, kw_only=True)
class UnitsRecord:
    """How the pass under way is cut into units, and how far each unit is."""

    workers: Workers
    """how many the pass was cut for"""
    count: Annotated[int, Field(ge=1, le=MOST_UNITS)]
    """the units of the pass"""
    sha256: Sha256
    """of the list of units: `checksum`"""
    skipped: Count = 0
    """rows of the units that are done that could not be read"""
    done: tuple[tuple[UnitIndex, UnitIndex], ...] = ()
    """ranges [first, last] of units, ascending"""
    open: tuple[tuple[UnitIndex, Place, Place], ...] = ()
    """(unit, window, offset) of each unit that was begun, ascending"""


def checksum(units: Sequence[Unit]) -> str:
    """The SHA-256 of a list of units, in hexadecimal digits; secrets of URLs do not count."""
    digest = hashlib.sha256()
    for unit in units:
        digest.update(f"{bare(unit.file or '')}\t{unit.first}\t{unit.end}\n".encode())
    return digest.hexdigest()


def record_of(units: Sequence[Unit], workers: int) -> UnitsRecord:
    """The record of a pass that begins."""
    return UnitsRecord(workers=workers, count=len(units), sha256=checksum(units))


class UnitsProgress:
    """The record of a pass under way, kept up to date with the progress of its workers.

    A step of N workers costs time in proportion to N and to the ranges of units that are done.
    """

    def __init__(self, record: UnitsRecord) -> None:
        self._start, self._skipped = record, record.skipped
        self._done = [list(span) for span in record.done]
        self._open = {unit: (window, offset) for unit, window, offset in record.open}

    def add(self, progress: Progress) -> None:
        """Take in what one batch of one worker trained."""
        self._open[progress.unit] = progress.window, progress.offset
        for unit, skipped in progress.completed:
            self._open.pop(unit, None)
            self._skipped += skipped
            self._complete(unit)

    def _complete(self, unit: int) -> None:
        place = bisect.bisect_right(self._done, [unit, MOST_UNITS])
        self._done.insert(place, [unit, unit])
        for left in (place, place - 1):
            if left < 0 or left + 1 == len(self._done):
                continue
            if self._done[left][1] + 1 == self._done[left + 1][0]:
                self._done[left][1] = self._done.pop(left + 1)[1]

    def record(self) -> UnitsRecord:
        """The units of the pass as a checkpoint has them."""
        return UnitsRecord(
            workers=self._start.workers,
            count=self._start.count,
            sha256=self._start.sha256,
            skipped=self._skipped,
            done=tuple((first, last) for first, last in self._done),
            open=tuple((unit, *self._open[unit]) for unit in sorted(self._open)),
        )


def remaining(units: Sequence[Unit], record: UnitsRecord) -> list[Remainder]:
    """What is left of a pass: units that were begun, then the others, each in the order of units.

    `units` are all units of the pass.
    """
    begun = {unit for unit, _, _ in record.open}
    done = {unit for first, last in record.done for unit in range(first, last + 1)}
    opened = [Remainder(units[unit], window, offset) for unit, window, offset in record.open]
    return opened + [
        Remainder(unit) for unit in units if unit.index not in begun and unit.index not in done
    ]


def dealt(remainders: Iterable[Remainder], workers: int) -> list[list[Remainder]]:
    """The remainders of each worker: remainder i is of worker i modulo `workers`."""
    ordered = list(remainders)
    return [ordered[rank::workers] for rank in range(workers)]
