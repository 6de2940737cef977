"""What is measured on the training data before the first step, and the vocabularies of files.

One pass, in file order, so the figures are the same on every machine.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tnctl import files, limits
from tnctl.data import Float64s, Int64s, Uint64s, numbers, sources
from tnctl.data.bad_rows import Skipped, as_rows
from tnctl.data.column_names import numeric_columns, slot_column
from tnctl.data.features import vectors
from tnctl.data.file_pieces import Where
from tnctl.data.formats.prepared_files import open_folder
from tnctl.data.numbers import row_values
from tnctl.data.slot_encoder import bucket_numbers
from tnctl.data.sources import Source
from tnctl.data.statistics_document import Statistics
from tnctl.errors import Failure, quoted
from tnctl.schema import Conf, Data, Numeric, Slot
from tnctl.tables.columns import mix64

# Up to this many distinct values are counted each; of more, ranges of neighbours are.
RANGES_KEPT = 65_536
SIGN = np.uint64(2**63)


class RowCounts:
    """How many rows have each value; with too many distinct values, how many are in each range.

    A range has the values that differ in the last bits of their float64 alone. No more bits are
    left out than are needed for the ranges of all values to fit. So the ranges and their counts
    are the same in whatever order and parts the values come, and every count is exact.
    """

    def __init__(self) -> None:
        self._keys = np.empty(0, np.uint64)  # of ranges, ascending
        self._counts = np.empty(0, np.int64)
        self._bits = np.uint64(0)  # that are left out

    @property
    def values(self) -> Float64s:
        """The lowest value of each range, ascending float64 [ranges]."""
        keys = self._keys << self._bits
        return np.where(keys & SIGN, keys ^ SIGN, ~keys).view(np.float64)

    def add(self, values: Float64s) -> None:
        """Take in float64 [n], all finite."""
        if not len(values):
            return
        # Adding 0 makes one value of 0 and -0.
        words = (values + 0.0).view(np.uint64)
        # In the order of the numbers: the words of negative ones descend.
        keys = np.where(words & SIGN, ~words, words | SIGN) >> self._bits
        keys, counts = np.unique(keys, return_counts=True)
        self._take(np.concatenate([self._keys, keys]), np.concatenate([self._counts, counts]))
        while len(self._keys) > RANGES_KEPT:
            self._bits += np.uint64(1)
            self._take(self._keys >> np.uint64(1), self._counts)

    def _take(self, keys: Uint64s, counts: Int64s) -> None:
        """Add the counts of equal keys."""
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        starts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
        self._keys, self._counts = keys[starts], np.add.reduceat(counts[order], starts)

    def boundaries(self, buckets: int) -> Float64s:
        """Ascending boundaries, float64 [1 to buckets - 1]: the lowest value of each bucket.

        The first bucket needs none, unless there is no other.
        """
        buckets_of_values = shared_out(self._counts, buckets)
        first = np.flatnonzero(np.diff(buckets_of_values)) + 1
        return self.values[first if len(first) else [0]]


def shared_out(counts: Int64s, buckets: int) -> Int64s:
    """The bucket of each value, ascending int64 [n] below `buckets`.

    `counts` int64 [n], all above 0, says how many rows have each of the ascending values. Those
    that fill a bucket have it alone; the others share the rest evenly.
    """
    alone = np.zeros(len(counts), bool)
    while True:
        shared = np.where(alone, 0, counts)
        rows, free = int(shared.sum()), buckets - int(alone.sum())
        full = shared * free > rows
        if not full.any():
            break
        alone |= full
    if not rows:
        return np.arange(len(counts))
    rows_below = np.cumsum(shared) - shared
    # Values that are alone cut the others into runs. A run has as many buckets as are nearest to
    # its rows, and a value of it the bucket in which the middle of its own rows is.
    ends = np.concatenate([[0], rows_below[alone], [rows]])
    places = (2 * ends * free + rows) // (2 * rows)
    run = np.cumsum(alone) - alone
    rows_of_run, buckets_of_run = np.diff(ends)[run], np.diff(places)[run]
    middle = 2 * (rows_below - ends[run]) + shared
    within = middle * buckets_of_run // np.maximum(2 * rows_of_run, 1)
    return np.minimum(run + places[run] + within, buckets - 1)


BYTE_ORDER_MARK = b"\xef\xbb\xbf"

# So many distinct values are kept exactly; of more, a uniform sample of this size.
DISTINCT_KEPT = 65_536


class Moments:
    """Mean and deviation of numbers that come in parts (Chan, Golub and LeVeque 1979)."""

    def __init__(self) -> None:
        self.count = 0
        self.mean = 0.0
        self.squares = 0.0

    def add(self, values: Float64s) -> None:
        """Take in float64 [n]."""
        if not len(values):
            return
        n = len(values)
        mean = float(values.mean())
        apart = mean - self.mean
        total = self.count + n
        self.squares += float(((values - mean) ** 2).sum()) + apart**2 * self.count * n / total
        self.mean += apart * n / total
        self.count = total

    def result(self) -> tuple[float, float]:
        """The mean and the population's deviation, 1 where all numbers are equal."""
        deviation = float(np.sqrt(self.squares / self.count)) if self.count else 0.0
        return self.mean, deviation or 1.0


class DistinctValues:
    """The distinct values seen, or those with the smallest hashes when there are too many."""

    def __init__(self) -> None:
        self.values = np.empty(0, np.float64)
        self.limit = np.uint64(2**64 - 1)

    def add(self, values: Float64s) -> None:
        """Take in float64 [n]."""
        # Adding 0 makes one value of 0 and -0.
        values = values + 0.0
        values = values[_hash(values) <= self.limit]
        values = np.union1d(self.values, values)
        if len(values) > DISTINCT_KEPT:
            hashed = _hash(values)
            self.limit = np.partition(hashed, DISTINCT_KEPT - 1)[DISTINCT_KEPT - 1]
            values = values[hashed <= self.limit]
        self.values = values

    def boundaries(self, buckets: int) -> Float64s:
        """Ascending boundaries, float64 [at most buckets - 1]."""
        places = np.arange(1, buckets) / buckets
        # Between two values numpy takes the difference, which may be infinite.
        with np.errstate(over="ignore"):
            scale = 1.0 if np.isfinite(self.values[-1] - self.values[0]) else 0.5
        return np.unique(np.quantile(self.values * scale, places) / scale)


def _hash(values: Float64s) -> Uint64s:
    return mix64(values.view(np.uint64))


BOUNDARIES: dict[str, type[DistinctValues | RowCounts]] = {
    "quantiles": DistinctValues,
    "row_quantiles": RowCounts,
}


def standardized(numeric: Mapping[str, Numeric]) -> dict[str, Numeric]:
    """The numeric inputs whose moments are measured."""
    return {
        name: settings
        for name, settings in numeric.items()
        if settings.transform == "standardize" and settings.mean is None
    }


def bucketed(slots: Mapping[str, Slot]) -> dict[str, Slot]:
    """The slots whose boundaries are measured."""
    return {name: slot for name, slot in slots.items() if slot.kind.measured}


def measure(conf: Conf, limit: int | None = None) -> Statistics:
    """One pass over data.train, unless nothing is to be measured; the vocabularies are read.

    `limit` ends the pass after about as many rows, for a look at the data before training.
    Rows whose own value cannot be read are left out, as many as data.bad_rows allows. Raises
    `Failure` for a value that is no finite number, and for a slot without any number.
    """
    if conf.data.prepared:
        return open_folder(conf).statistics
    statistics = given(conf)
    if standardized(conf.numeric) or bucketed(conf.slots):
        _measure(conf, statistics, limit)
    return statistics


def given(conf: Conf) -> Statistics:
    """What is known without reading the data: moments in the conf, and vocabularies of files."""
    return Statistics(
        {
            name: (numeric.mean, numeric.deviation)
            for name, numeric in conf.numeric.items()
            if numeric.mean is not None and numeric.deviation is not None
        },
        vocabularies=vocabularies(conf),
    )


def vocabularies(conf: Conf) -> dict[str, list[str]]:
    """The vocabularies that slots have in files, each file read once."""
    names = sources.files_of_slots(conf, "vocabulary_file")
    read = {url: read_vocabulary(url) for url in dict.fromkeys(names.values())}
    return {name: read[url] for name, url in names.items()}


def _measure(conf: Conf, statistics: Statistics, limit: int | None) -> None:
    """Measure moments and boundaries into `statistics`."""
    inputs, slots = standardized(conf.numeric), bucketed(conf.slots)
    moments = {name: [Moments() for _ in range(n.numbers)] for name, n in inputs.items()}
    of_slots = {name: BOUNDARIES[slot.ids]() for name, slot in slots.items()}
    columns = [column for name, n in inputs.items() for column in numeric_columns(name, n)]
    columns += [slot_column(name, slot) for name, slot in slots.items()]
    skipped = Skipped("train", conf.data.bad_rows)
    rows = 0

    def read(table: pa.Table, where: Where) -> tuple[list[Any], list[Any]]:
        whole = {name: numbers.flat(table.column(name)) for name in table.column_names}
        return (
            [vectors(whole, name, n, conf.data, where) for name, n in inputs.items()],
            [_numbers(whole, name, slot, conf.data, where) for name, slot in slots.items()],
        )

    for piece in Source(conf, "train").pieces(list(dict.fromkeys(columns))):
        skipped.take(piece.bad)
        (inputs_read, slots_read), _ = skipped.good(piece.table, piece.where, read)
        for takers, values in zip(moments.values(), inputs_read, strict=True):
            for taker, column in zip(takers, values.T, strict=True):
                taker.add(column[~np.isnan(column)])
        for numbers_seen, values in zip(of_slots.values(), slots_read, strict=True):
            numbers_seen.add(values[~np.isnan(values)])
        rows += piece.table.num_rows
        if limit is not None and rows >= limit:
            break
    for name, slot in slots.items():
        if not len(of_slots[name].values):
            column = slot_column(name, slot)
            raise Failure(f"slots.{name}: column '{column}' has no number in data.train")
        statistics.boundaries[name] = of_slots[name].boundaries(slot.buckets).tolist()
    for name, takers in moments.items():
        means, deviations = zip(*(taker.result() for taker in takers), strict=True)
        is_vector = inputs[name].numbers > 1
        statistics.standardize[name] = (
            (list(means), list(deviations)) if is_vector else (means[0], deviations[0])
        )


def _numbers(
    whole: dict[str, pa.Array], name: str, slot: Slot, data: Data, where: Where
) -> Float64s:
    """All numbers of a slot's column, NaN where missing."""
    column = slot_column(name, slot)
    values = row_values(whole[column], slot.separator, data, column, where, fractions=True)
    with as_rows(values.owners, where) as place:
        return bucket_numbers(values.values, column, data, place, values.lengths is not None)


def read_vocabulary(url: str) -> list[str]:
    """The lines of a file, without their ends.

    Raises `Failure` for a line that is empty, not UTF-8 or there twice, naming it, and for a file
    beyond limits.VOCABULARY_BYTES.
    """
    with files.open_input(url) as stream:
        data = files.read_most(stream, limits.VOCABULARY_BYTES + 1)
    if len(data) > limits.VOCABULARY_BYTES:
        raise Failure(
            f"{url} is longer than {limits.mebibytes(limits.VOCABULARY_BYTES)}, the most that a "
            "vocabulary may have. Take ids=hash, or ids=modulo, for so many values"
        )
    data = data.removeprefix(BYTE_ORDER_MARK)
    lines = data.split(b"\n")
    if lines and not lines[-1]:
        lines.pop()
    seen: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        place = f"{url}, line {number}"
        try:
            value = line.removesuffix(b"\r").decode()
        except UnicodeDecodeError as error:
            raise Failure(
                f"{place}: {quoted(line)} is not UTF-8. Write the file as UTF-8"
            ) from error
        if not value:
            raise Failure(f"{place} is empty. A vocabulary has one value per line")
        if (first := seen.setdefault(value, number)) != number:
            raise Failure(
                f"{place}: {quoted(value)} is in line {first} already. Remove one of them"
            )
    if not seen:
        raise Failure(f"{url} has no line. A vocabulary has one value per line")
    return list(seen)


# ---- How many distinct ids there will be at the end of the data, from a sample of its beginning

DOUBLINGS = 3
# Fewer rows than this at the first of the points say nothing.
FEWEST_ROWS = 8


@dataclass(frozen=True)
class Growth:
    """Distinct ids in the sample and, with bounds, at the end of the data."""

    now: int
    exponent: float  # of Heaps' law at the sample's end: 0 no new ids, 1 every value is new
    end: float
    low: float
    high: float


def growth(
    first_rows: Int64s,
    counts: Int64s,
    rows: int,
    total: float,
    most: float = math.inf,
) -> Growth:
    """The growth of ids that first came in rows `first_rows`, `counts` times each, of `rows`.

    Two laws bound it. With D distinct ids among n values of the sample, f1 of them seen once and f2
    twice, and m values to come:

    - Heaps' law D(n) = K n^b holds if new ids keep appearing as at the end of the sample. Its local
      exponent b falls as ids run out, so it is the upper bound.
    - Chao's estimate of the ids not seen yet, f0 = f1^2 / (2 f2), is a lower bound (Chao 1984), and
      D + f0 (1 - (1 - f1 / (n f0 + f1))^m) is the part of it that appears in m more values (Colwell
      et al. 2012, equation 9).

    Between them: log D as a parabola of log n, fitted to the last three doublings, until its top.

    `first_rows` int64 [ids] counts rows from 0, `counts` is int64 [ids].
    `total` is the rows of all data, `most` how many ids there can be.
    """
    now = len(first_rows)
    further = math.log(max(total / rows, 1))
    if not now or not further:
        return Growth(now, 0.0, now, now, now)
    sizes = [rows >> back for back in range(DOUBLINGS + 1)]
    if sizes[-1] < FEWEST_ROWS:
        return Growth(now, 1.0, now * total / rows, now, min(now * total / rows, most))
    seen = np.searchsorted(np.sort(first_rows), sizes)
    x, y = np.log(sizes), np.log(np.maximum(seen, 1))
    line = np.polyfit(x, y, 1)
    bend, slope = np.polyfit(x - x[0], y, 2)[:2]
    exponent = float(np.clip(max(slope, (y[0] - y[1]) / math.log(2)), 0, 1))
    # Three deviations of the exponent, whose last doubling counts `fresh` ids, and the scatter of
    # the points about Heaps' law: both grow with the distance.
    fresh = float(seen[0] - seen[1])
    scatter = float(np.std(y - np.polyval(line, x)))
    error = 3 * math.sqrt(fresh) / (now * math.log(2)) * further
    error += 2 * scatter * (1 + further / (DOUBLINGS * math.log(2)))
    high = now * math.exp(exponent * further + error)
    low = _chao(now, counts, total / rows) * math.exp(-error)
    slope = float(np.clip(slope, 0, 1))
    top = min(further, -slope / (2 * bend)) if bend < 0 else further
    middle = now * math.exp(slope * top + min(bend, 0) * top**2)
    # Every value of the rows to come can be a new id, and no more.
    high = min(high, now + counts.sum() * (total / rows - 1), most)
    low = min(max(low, now), high)
    return Growth(now, exponent, min(max(middle, low), high), low, high)


def _chao(now: int, counts: Int64s, times: float) -> float:
    """The ids when there are `times` as many values, from the lower bound of those to come."""
    once, twice = int((counts == 1).sum()), int((counts == 2).sum())
    if not once:
        return now
    values = int(counts.sum())
    unmet = once * once / (2 * twice) if twice else once * (once - 1) / 2
    if not unmet:
        return now
    share = once / (values * unmet + once)
    return now - unmet * math.expm1(values * (times - 1) * math.log1p(-share))
