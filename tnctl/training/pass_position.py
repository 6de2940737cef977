"""Where a pass over data.train is, and what of it is left for each worker."""

from dataclasses import replace

from tnctl.checkpoint.document import Position
from tnctl.data import units
from tnctl.data.bad_rows import Skipped
from tnctl.data.sources import Source
from tnctl.data.unit_records import (
    WHOLE,
    Progress,
    Remainder,
    Unit,
    UnitsProgress,
    UnitsRecord,
    dealt,
    remaining,
)
from tnctl.schema import Conf

FROM_SCRATCH = "overwrite=true to train from scratch"


class PassPosition:
    """The position of a pass that several workers share, or one trains alone.

    A pass that begins is cut for the workers that there are; one that is resumed keeps its units,
    whatever the number of workers. One worker does not cut it.
    """

    def __init__(self, conf: Conf, start: Position, workers: int, skipped: Skipped) -> None:
        """`start` is where the pass begins or is resumed.

        `skipped` gets the rows that could not be read in the units that are done. Raises `Failure`
        when the data is not cut into the units of `start` any more, or cannot be listed.
        """
        self._start, self._workers, self._skipped = start, workers, skipped
        self._window, self._offset = start.window, start.offset
        self._units: UnitsProgress | None = None
        self.remainders = [Remainder(WHOLE, start.window, start.offset)]
        """what is left of the pass: units that were begun, then the others"""
        record: UnitsRecord | None = start.units
        cut: list[Unit] | None = None
        if record is not None:
            cut = units.units_again(Source(conf, "train"), record, FROM_SCRATCH)
            skipped.add(record.skipped, "it was before training was resumed")
        elif workers > 1 and not start.window and not start.offset:
            cut = units.units_of(Source(conf, "train"), workers)
            record = units.record_of(cut, workers)
        if cut is not None and record is not None:
            self._units = UnitsProgress(record)
            self.remainders = remaining(cut, record)

    def dealt(self) -> list[list[Remainder]]:
        """The remainders of each worker, in the order in which it trains them."""
        return dealt(self.remainders, self._workers)

    def add(self, progress: Progress) -> None:
        """Take in what a worker trained."""
        if self._units is None:
            self._window, self._offset = progress.window, progress.offset
        else:
            self._units.add(progress)

    @property
    def is_at_start(self) -> bool:
        """Whether not one row of the pass was trained."""
        position = self.position
        units = position.units
        in_units = units is not None and (units.done or units.open)
        return not (position.window or position.offset or in_units)

    def report_skipped(self) -> None:
        """Say how many rows were left out, at the end of a pass that is cut into units.

        Of a split that is not cut its reader says it.
        """
        if self._units is not None:
            self._skipped.report()

    @property
    def position(self) -> Position:
        """The position after all that was added."""
        if self._units is None:
            return replace(self._start, window=self._window, offset=self._offset)
        return replace(self._start, units=self._units.record())
