"""The batch size of a run whose conf leaves it open (train.batch_size=null): by its rows."""

import contextlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tnctl.data import windows
from tnctl.data.sources import Source
from tnctl.errors import Failure
from tnctl.schema import MOST_BATCH, Conf, Paths

STEPS_OF_A_PASS = 150
LEAST_BATCH = 32
ROWS_LOOKED_AT = 100_000  # for the share that data.negatives keeps


@dataclass(frozen=True)
class Choice:
    """A batch size, and the rows of a pass by which it was chosen; None: nobody knows them."""

    batch_size: int
    rows: float | None
    is_exact: bool
    workers: int  # whose batches together are a step

    @property
    def sentence(self) -> str:
        """As a line of the screen says it."""
        chosen = f"train.batch_size={self.batch_size}"
        if self.rows is None:
            return f"{chosen}: the number of rows is unknown"
        steps = -(-math.ceil(self.rows) // (self.batch_size * self.workers))
        about = "" if self.is_exact else "about "
        of_workers = f" of {self.workers} workers" if self.workers > 1 else ""
        words = f"{steps:,} step{'' if steps == 1 else 's'}{of_workers}"
        return f"{chosen}: {about}{self.rows:,.0f} rows are {words} in a pass"


def by_rows(rows: float) -> int:
    """The power of two with which a pass over `rows` rows has some 150 steps."""
    exponent = round(math.log2(max(rows / STEPS_OF_A_PASS, 1)))
    return min(max(2**exponent, LEAST_BATCH), MOST_BATCH)


def chosen(conf: Conf) -> Choice:
    """The batch size for a conf, by the rows of its data.train, which has no {day}.

    They are counted where that costs little, else estimated from the beginning of files.
    """
    workers = conf.cluster.workers_of_step
    counted, share = None, 1.0
    # What cannot be read now is reported when it is read for training, with its place.
    with contextlib.suppress(Failure):
        counted = Source(conf, "train").count()
        if counted is not None and conf.data.negatives < 1:
            kept, read = windows.count_kept(conf, ROWS_LOOKED_AT)
            share = kept / max(read, 1)
    if counted is None:
        return Choice(MOST_BATCH, None, False, workers)
    rows = counted.estimate * share
    is_exact = counted.low == counted.high and conf.data.negatives == 1
    return Choice(by_rows(rows / workers), rows, is_exact, workers)


def resolved(conf: Conf) -> tuple[Conf, Choice | None]:
    """A conf with a batch size, and how that was chosen; None where the conf gives it."""
    if conf.train.batch_size is not None:
        return conf, None
    choice = chosen(conf)
    return sized(conf, choice.batch_size), choice


def sized(conf: Conf, batch_size: int | None) -> Conf:
    """A conf with the batch size, if it leaves that open."""
    if conf.train.batch_size is not None:
        return conf
    return replace(conf, train=replace(conf.train, batch_size=batch_size))


def as_saved(conf: Conf, saved: Mapping[str, Any]) -> Conf:
    """A conf with what a run keeps of its saved conf, which has all keys.

    These are the batch size, if the conf leaves it open, and paths from the working folder.
    """
    if saved["paths"]["folder"] is None:
        conf = replace(conf, paths=Paths())
    return sized(conf, saved["train"]["batch_size"])
