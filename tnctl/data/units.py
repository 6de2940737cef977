"""A split is cut into units, so that several workers share a pass over it.

Units are in the order of the data, and together they are the split: each row is in one unit. How a
split is cut is a function of the conf, the files and the number of workers, so a pass that was
interrupted is cut into the same units again.
"""

import hashlib
import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tnctl.data.file_pieces import GroupedReader
from tnctl.data.sources import Source, row_range
from tnctl.data.unit_records import MOST_UNITS, WHOLE, Remainder, Unit, UnitsRecord
from tnctl.errors import Failure
from tnctl.masking import bare

# A split of fewer files for each worker is cut finer where its format can be.
FEWEST_PER_WORKER = 4
# Large splits are cut into few enough units that a shuffle within windows is one of many rows, and
# into enough that another number of workers can share what is left.
WINDOWS_PER_UNIT = 8
MOST_PER_WORKER = 64


def units_of(source: Source, workers: int) -> list[Unit]:
    """The units of a split for `workers` workers, in the order of the data; one for one worker.

    Files of text, of records and of ORC are never cut. Parquet and prepared data of few files is
    cut between row groups, and generated data between rows, so that workers have about as many
    rows. Raises `Failure` for files that cannot be listed, or whose row groups cannot be read.
    """
    if workers == 1:
        return [WHOLE]
    if source.data.is_generated:
        first, end = row_range(source.data, source.split)
        count = min(workers * _units_per_worker(source, end - first, workers), end - first)
        bounds = [first + (end - first) * unit // count for unit in range(count + 1)]
        return [Unit(unit, None, *span) for unit, span in enumerate(itertools.pairwise(bounds))]
    urls = source.files
    if len(urls) > MOST_UNITS:
        raise Failure(
            f"data.{source.split} has {len(urls):,} files, and workers can share {MOST_UNITS:,} at "
            "most. Join files, or train with one worker"
        )
    groups = source.group_rows() if len(urls) < FEWEST_PER_WORKER * workers else None
    if groups is None:
        return [Unit(index, source.saved_name(url)) for index, url in enumerate(urls)]
    rows = sum(map(sum, groups.values()))
    target = max(rows / (workers * _units_per_worker(source, rows, workers)), 1)
    spans, shares = list[tuple[str, int, int]](), deque([0] * workers)
    for url, of_file in groups.items():
        # As many units for each worker, whatever the number of files.
        each = max(round(sum(of_file) / target / workers), 1)
        spans += [(source.saved_name(url), *span) for span in _spans(of_file, each, shares)]
    return [Unit(index, *span) for index, span in enumerate(spans)]


def _units_per_worker(source: Source, rows: int, workers: int) -> int:
    by_windows = rows // (workers * WINDOWS_PER_UNIT * source.window_rows)
    return min(max(by_windows, FEWEST_PER_WORKER), MOST_PER_WORKER)


def _spans(rows: Sequence[int], each: int, shares: deque[int]) -> list[tuple[int, int]]:
    """Ranges of a file's row groups, at most `each` for every worker; one where there is no group.

    `shares` are the rows of every worker so far, beginning with the one that reads the next unit;
    they are updated. After each round of units, one for every worker, they are about equal.
    """
    workers, rows_shared = len(shares), sum(shares)
    ends = np.append(0, np.cumsum(rows, dtype=np.int64))
    count = min(each, len(rows) // workers) * workers or max(len(rows), 1)
    bounds = [0]
    for unit in range(count):
        finished, in_round = divmod(unit, workers)
        rest = list(shares)[: workers - in_round]  # of workers without a unit in this round
        goal = rows_shared + int(ends[-1]) * min((finished + 1) * workers / count, 1)
        mean = (sum(rest) + goal - sum(shares)) / len(rest)
        least, most = min(bounds[-1] + 1, len(rows)), len(rows) - (count - 1 - unit)
        wanted = ends[bounds[-1]] + mean - rest[0]
        bounds.append(least + int(np.abs(ends[least : most + 1] - wanted).argmin()))
        shares[0] += int(ends[bounds[-1]] - ends[bounds[-2]])
        shares.rotate(-1)
    return list(itertools.pairwise(bounds))


def checksum(units: Sequence[Unit]) -> str:
    """The SHA-256 of a list of units, in hexadecimal digits; secrets of URLs do not count."""
    digest = hashlib.sha256()
    for unit in units:
        digest.update(f"{bare(unit.file or '')}\t{unit.first}\t{unit.end}\n".encode())
    return digest.hexdigest()


def record_of(units: Sequence[Unit], workers: int) -> UnitsRecord:
    """The record of a pass that begins."""
    return UnitsRecord(workers=workers, count=len(units), sha256=checksum(units))


def units_again(source: Source, record: UnitsRecord, way: str) -> list[Unit]:
    """The units that a pass was cut into when it began.

    Raises `Failure`, with the `way` out, when the split is cut otherwise by now, or as `units_of`.
    """
    units = units_of(source, record.workers)
    # An earlier tnctl named the files of a glob by whole paths.
    whole = [unit for unit in units if unit.file is not None]
    whole = [replace(unit, file=source.url_of(str(unit.file))) for unit in whole]
    if len(units) != record.count or record.sha256 not in (checksum(units), checksum(whole)):
        is_orc = source.data.prepared is None and source.data.format == "orc"
        also = ", or an earlier tnctl cut files of ORC between stripes" if is_orc else ""
        raise Failure(
            f"data.{source.split} is cut into {len(units):,} units, and was cut into "
            f"{record.count:,} others when training stopped in the middle of it: its files or "
            f"their row groups have changed{also}. Put the earlier ones back, or {way}"
        )
    return units


def too_few(source: Source, remainders: Sequence[Remainder], workers: int) -> str | None:
    """What to say where some workers have nothing to read; None where each has something.

    `remainders` are what is left of a pass that begins or is resumed.
    """
    idle = workers - len(remainders)
    if idle <= 0:
        return None
    count = f"{len(remainders)} part{'' if len(remainders) == 1 else 's'}"
    what = f"data.{source.split} ({_files_in_words(source)}) has {count} for {workers} workers"
    if any(left.window or left.offset for left in remainders):
        return f"{what} in the rest of this pass. Workers that wait for the next one: {idle}"
    return f"{what}. Workers without data: {idle}. {_way_out(source, workers)}"


def too_few_at_start(source: Source, workers: int) -> str | None:
    """As `too_few`, of a pass that begins."""
    return too_few(source, list(map(Remainder, units_of(source, workers))), workers)


def _files_in_words(source: Source) -> str:
    if source.data.is_generated:
        return f"rows {source.spec}"
    urls = bare(source.files)
    return urls[0] if len(urls) == 1 else f"{urls[0]} and {len(urls) - 1} more"


def _way_out(source: Source, workers: int) -> str:
    fewer = "or train with fewer workers"
    if source.data.prepared is not None:
        return f"Prepare it again with a smaller data.window, for more row groups, {fewer}"
    if source.data.is_generated:
        return f"Name more rows, {fewer}"
    files = f"Write it as {workers} files or more"
    if isinstance(source.reader, GroupedReader):
        return f"{files}, or with at least {workers} row groups, {fewer}"
    return f"{files} of about the same size, or as Parquet, {fewer}"
