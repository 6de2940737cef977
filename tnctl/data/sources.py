"""Which rows there are: a split of a conf as pieces of its files, and as units for workers."""

import contextlib
import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import PurePosixPath
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tnctl import files
from tnctl.data import arrivals, generated
from tnctl.data.bad_rows import SPLITS, Skipped
from tnctl.data.day_records import Fingerprint
from tnctl.data.file_pieces import EmptyError, EmptyFileError, FileReader, GroupedReader, Piece
from tnctl.data.formats import reader_of
from tnctl.data.formats.prepared_files import PreparedReader
from tnctl.data.read_ahead import in_order
from tnctl.data.row_split import Cut, HashCut, LastCut
from tnctl.data.unit_records import MOST_UNITS, WHOLE, Remainder, Unit, UnitsRecord, checksum
from tnctl.errors import Failure, UserError, did_you_mean, refuse_if
from tnctl.masking import bare, masked
from tnctl.progress import say
from tnctl.schema import Conf, Data

_with_empty_files: set[str] = set()
DAY = "{day}"  # the place of the day's name in data.train
FILES_SAMPLED = 4  # for an estimate of rows
# A split of fewer files for each worker is cut finer where its format can be.
FEWEST_PER_WORKER = 4
# Large splits are cut into few enough units that a shuffle within windows is one of many rows, and
# into enough that another number of workers can share what is left.
WINDOWS_PER_UNIT = 8
MOST_PER_WORKER = 64
FILES_OF_SLOTS = ("vocabulary_file", "vectors")
# Rows that were counted, of each row group or of a file, by its reader, URL and fingerprint.
_counted: dict[tuple[str, str, str], list[int]] = {}


class SplitFiles(NamedTuple):
    """What a key such as data.train names."""

    spec: Any  # a name, glob or list; for generated data a range of rows
    skip_rows: int


class RowCount(NamedTuple):
    """How many rows a split has: exact when `low` and `high` are the estimate."""

    estimate: float
    low: float
    high: float


def split_of(data: Data, split: str) -> SplitFiles:
    """The split as the conf names it. Raises `UserError` for a key that there is not."""
    value = data.source(split)
    if not isinstance(value, Mapping):
        return SplitFiles(value, data.skip_rows)
    for key in value:
        if key not in ("files", "skip_rows"):
            choice = did_you_mean(str(key), ("files", "skip_rows"))
            raise UserError(f"data.{split} has no key '{key}'. {choice}")
    skip = value.get("skip_rows", data.skip_rows)
    if not isinstance(skip, int) or skip < 0:
        raise UserError(f"data.{split}.skip_rows must be at least 0. Received: {skip}")
    return SplitFiles(value.get("files"), skip)


def row_range(data: Data, split: str) -> tuple[int, int]:
    """The first row and the end of a split of generated data. Raises `UserError`."""
    return _generator(data).row_range(split, split_of(data, split).spec)


def window_rows(window: int, batch_size: int) -> int:
    """Rows per window: `window` (data.window) rounded up to whole batches."""
    return -(-window // batch_size) * batch_size


def _generator(data: Data) -> ModuleType:
    return arrivals if data.format == "arrivals" else generated


class Source:
    """One split of a conf: its files, its rows, and how many there are.

    Raises `UserError` for a split that the conf does not name as it must. What is listed, opened or
    counted once stays so.
    """

    def __init__(self, conf: Conf, split: str) -> None:
        self.conf, self.data, self.split = conf, conf.data, split
        self.spec, self._skip_rows = split_of(conf.data, split)

    @cached_property
    def reader(self) -> FileReader:
        """The reader of its files."""
        return reader_of(self.conf, self._skip_rows)

    @cached_property
    def files(self) -> list[str]:
        """The URLs of its files, in the order they are read; none for generated data."""
        if self.data.is_generated:
            return []
        if isinstance(self.reader, PreparedReader):
            return self.reader.urls(self.split)
        spec, key = self.spec, f"data.{self.split}"
        refuse_if(not spec, f"{key} names no file. Give {key}=FILE (a file, URL or glob)")
        names = list(spec) if isinstance(spec, Sequence) and not isinstance(spec, str) else [spec]
        for name in names:
            if not isinstance(name, str):
                raise UserError(f"{key} takes a name, a glob or a list of them. Received: {name}")
            if DAY in name:
                raise UserError(
                    f"{key}={name} names the files of many days, which only train takes one by "
                    f"one. Name one day's files, such as {key}={name.replace(DAY, '2024-01-31')}"
                )
        return files.expand(names, self.conf.root_of(self._key))

    @cached_property
    def _range(self) -> tuple[int, int]:
        """The first row and the end of a split of generated data."""
        return row_range(self.data, self.split)

    @property
    def _key(self) -> str:
        """The key that names its files."""
        return f"data.{self.split}" if getattr(self.data, self.split) is not None else "data.train"

    @property
    def _folder(self) -> str | None:
        """The conf's folder, where its files start from it."""
        if self.data.prepared is not None:
            return self.conf.paths.start("data.prepared")
        return self.conf.paths.start("data.root" if self.data.root else self._key)

    def saved_name(self, url: str) -> str:
        """The URL of a file without the conf's folder, where the split starts from it.

        It stays when conf and data are moved together.
        """
        return url.removeprefix(files.join(self._folder, ""))

    def url_of(self, name: str) -> str:
        """The URL of a file by what `saved_name` returns."""
        return files.join(self._folder, name)

    def fingerprints(self) -> list[Fingerprint]:
        """Its files in their order, each with what shows whether it was changed.

        They are for manifests, so their names have no secrets, and start from the conf's folder.
        """

        def fingerprint(url: str) -> Fingerprint:
            return Fingerprint(file=masked(self.saved_name(url)), **files.fingerprint(url))

        return list(in_order(fingerprint, iter(self.files)))

    def columns(self) -> list[str] | None:
        """The names of the columns of its first file; None where only its rows could tell.

        Columns of its folders' names are among them.
        """
        if self.data.is_generated:
            return list(_generator(self.data).COLUMNS)
        for url in self.files:
            with self._empty_skipped():
                return self.reader.columns(url)
        return None

    def require(self, needed: list[str]) -> None:
        """Raise as reading does if its first file is not there or lacks a column `needed`.

        Only the beginning, or the footer, of the file is read.
        """
        column = self.data.split.column
        if column is not None and column not in needed:
            needed = [*needed, column]
        if self.data.is_generated:
            first, end = self._range
            next(self._generated(needed, first, min(first + 1, end)), None)
            return
        for url in self.files:
            with self._empty_skipped():
                self.reader.require(url, needed)
                return

    def pieces(self, needed: list[str], unit: Unit = WHOLE) -> Iterator[Piece]:
        """All rows, or those of a unit, in file order, with the columns `needed`.

        With data.prepared they are prepared rows, whatever is needed. Raises `Failure` when a file
        cannot be read, or when the split has no row; a unit may have none.
        """
        rows, skipped = 0, Skipped(self.split, self.data.bad_rows)
        for piece in self._chosen(needed, unit):
            if unit.is_split:
                rows += piece.table.num_rows
                skipped.take(piece.bad)
            yield piece
        if unit.is_split and rows == 0:
            raise self.no_rows(skipped)

    def no_rows(self, skipped: Skipped) -> Failure:
        """What to raise for a split without a row that can be read."""
        if skipped.rows:
            return Failure(
                f"no row of data.{self.split} is left: {skipped.rows:,} cannot be read. The first: "
                f"{skipped.first}"
            )
        if self._is_cut:
            shares = self.data.split
            return EmptyError(
                f"data.split leaves data.{self.split} no row of data.train ({self.spec}), with "
                f"validation={shares.validation} and test={shares.test} by {shares.by}. Change the "
                "shares, or name more files"
            )
        return EmptyError(f"data.{self.split} has no rows ({self.spec}). Name other files")

    def _chosen(self, needed: list[str], unit: Unit) -> Iterator[Piece]:
        """The rows of a unit that are of the split: all, where data.split chooses none."""
        cut = self._cut
        if cut is None:
            yield from self._read(needed, unit)
            return
        for piece in self._read(list(dict.fromkeys([*needed, *cut.columns])), unit):
            if cut.is_after(piece):
                return
            kept = cut.kept(piece)
            if kept.table.num_rows or kept.bad.rows:
                yield replace(kept, table=kept.table.select(needed))

    def _read(self, needed: list[str], unit: Unit) -> Iterator[Piece]:
        """The rows of the files of a unit, of the split or not."""
        if self.data.is_generated:
            span = self._range if unit.end is None else (unit.first, unit.end)
            yield from self._generated(needed, *span)
            return
        for url, first, end in self._spans(unit):
            with self._empty_skipped():
                yield from self.reader.pieces(url, needed, first, end)

    def _spans(self, unit: Unit) -> Iterator[tuple[str, int, int | None]]:
        """The files of a unit, each with the row groups that are read; None: all from the first."""
        if unit.file is not None:
            yield self.url_of(unit.file), unit.first, unit.end
            return
        for url in self.files:
            cut = self._cut
            if not isinstance(cut, LastCut):
                yield url, 0, None
            elif cut.reads(url):
                groups = cut.groups(url, self._counts(url)) if self._is_grouped else (0, None)
                yield url, *groups

    def _generated(self, needed: list[str], first: int, end: int) -> Iterator[Piece]:
        if self.data.format != "arrivals":
            return generated.pieces(first, end, needed)
        # A model has seen all rows up to the end of data.train when it is evaluated. Where that has
        # days these are the rows before the split: a day is evaluated before it is trained.
        is_range = isinstance(self.data.train, str) and ":" in self.data.train
        seen = row_range(self.data, "train")[1] if is_range else self._range[0]
        return arrivals.pieces(first, end, needed, seen)

    @property
    def drops_negatives(self) -> bool:
        """Whether data.negatives leaves out rows of it."""
        return self.split == "train" and self.data.negatives < 1

    @property
    def window_rows(self) -> int:
        """Rows per window: data.window rounded up to whole batches."""
        return window_rows(self.data.window, self.conf.train.batch_rows)

    @property
    def _is_cut(self) -> bool:
        return self.data.prepared is None and self.data.is_cut(self.split)

    @cached_property
    def _cut(self) -> Cut | None:
        """What chooses the rows of the split; None: it has all rows of its files."""
        if not self._is_cut:
            return None
        by_last = self.data.split.by == "last"
        if self.data.is_generated:
            first, end = self._range
            lines, rows = first - 1 if by_last else 0, {_generator(self.data).NAME: end - first}
        else:
            lines, urls = self.reader.lines_before, self.files if by_last else ()
            rows = {url: max(sum(self._counts(url)) - lines, 0) for url in urls}
        if by_last:
            return LastCut(self.data, self.split, lines, rows)
        return HashCut(self.data, self.split, lines)

    def _counts(self, url: str) -> list[int]:
        """The `counts` of a file, which is counted once as long as it does not change."""
        key = type(self.reader).__name__, url, str(files.fingerprint(url))
        if key not in _counted:
            counts = list[int]()  # of an empty file
            with self._empty_skipped():
                counts = self.reader.counts(url)
            _counted[key] = counts
        return _counted[key]

    def _counts_of_files(self) -> dict[str, list[int]]:
        """The `counts` of each file that is not empty."""
        counts = dict[str, list[int]]()
        for url in self.files:
            with self._empty_skipped():
                counts[url] = self.reader.counts(url)
        return counts

    @contextlib.contextmanager
    def _empty_skipped(self) -> Iterator[None]:
        """The rest of the block is passed over when it reads a file without any byte, if allowed.

        It is said of the first one of each folder.
        """
        try:
            yield
        except EmptyFileError as error:
            if not self.data.skip_empty:
                raise
            folder = error.url.rpartition("/")[0]
            if folder not in _with_empty_files:
                _with_empty_files.add(folder)
                say(
                    f"{error.url} is empty. Such files are passed over in this folder "
                    "(data.skip_empty=true)"
                )

    @property
    def _is_grouped(self) -> bool:
        """Whether its files have row groups, any of which can be read without the others."""
        return isinstance(self.reader, GroupedReader)

    def known_rows(self) -> int | None:
        """The number of rows where it costs little to know, else None."""
        if not self._is_cut:
            return self._known_rows_of_files()
        # By hash only the rows themselves tell how many there are: no footer is read for it.
        cut = self._cut if self.data.is_generated or self.reader.has_footer else None
        return cut.rows if isinstance(cut, LastCut) else None

    def _known_rows_of_files(self) -> int | None:
        """The rows of its files, of the split or not, where it costs little to know."""
        if self.data.is_generated:
            first, end = self._range
            return end - first
        if isinstance(self.reader, PreparedReader):
            return self.reader.entry(self.split).rows
        if not self.reader.has_footer:
            return None
        return sum(map(sum, self._counts_of_files().values()))

    def count(self) -> RowCount | None:
        """The rows, from metadata or from the sizes of its files; None when it is unknown.

        By size: the first 4 MiB of a few files give the bytes of a row; the error is the spread of
        these files, and at least a tenth.
        """
        if (known := self.known_rows()) is not None:
            return RowCount(known, known, known)
        rows = self._known_rows_of_files()
        whole = self._estimate() if rows is None else RowCount(rows, rows, rows)
        if whole is None or not self._is_cut:
            return whole
        # By hash, or where empty lines count, a split has about its share.
        share = self.data.share(self.split)
        return RowCount(whole.estimate * share, 0.9 * whole.low * share, whole.high * share / 0.9)

    def _estimate(self) -> RowCount | None:
        """The rows of its files by their sizes."""
        step = -(-len(self.files) // FILES_SAMPLED)
        heads = [_head(url, self.reader) for url in self.files[::step]]
        rates = [rows / stored for rows, stored in heads if stored]
        try:
            total = sum(map(files.size, self.files))
        except Failure:
            return None
        if not rates:
            return None
        rate = sum(rows for rows, _ in heads) / sum(stored for _, stored in heads)
        low, high = min(*rates, 0.9 * rate), max(*rates, rate / 0.9)
        return RowCount(total * rate, total * low, total * high)

    def units(self, workers: int) -> list[Unit]:
        """The units of the split for `workers` workers, in the order of the data; one for one.

        Together they are the split: each row is in one unit. They are a function of the conf, the
        files and the number of workers, so a pass that was interrupted is cut into the same units
        again. Files of text, of records and of ORC are never cut. Parquet and prepared data of few
        files is cut between row groups, and generated data between rows, so that workers have about
        as many rows. Raises `Failure` for files that cannot be listed, or whose row groups cannot
        be read.
        """
        if workers == 1:
            return [WHOLE]
        if self.data.is_generated:
            first, end = self._range
            count = min(workers * self._units_per_worker(end - first, workers), end - first)
            bounds = [first + (end - first) * unit // count for unit in range(count + 1)]
            return [Unit(unit, None, *span) for unit, span in enumerate(itertools.pairwise(bounds))]
        urls = self.files
        refuse_if(
            len(urls) > MOST_UNITS,
            f"data.{self.split} has {len(urls):,} files, and workers can share {MOST_UNITS:,} at "
            "most. Join files, or train with one worker",
            Failure,
        )
        if not self._is_grouped or len(urls) >= FEWEST_PER_WORKER * workers:
            return [Unit(index, self.saved_name(url)) for index, url in enumerate(urls)]
        groups = self._counts_of_files()
        rows = sum(map(sum, groups.values()))
        target = max(rows / (workers * self._units_per_worker(rows, workers)), 1)
        spans, shares = list[tuple[str, int, int]](), deque([0] * workers)
        for url, of_file in groups.items():
            # As many units for each worker, whatever the number of files.
            each = max(round(sum(of_file) / target / workers), 1)
            spans += [(self.saved_name(url), *span) for span in _cut_groups(of_file, each, shares)]
        return [Unit(index, *span) for index, span in enumerate(spans)]

    def _units_per_worker(self, rows: int, workers: int) -> int:
        by_windows = rows // (workers * WINDOWS_PER_UNIT * self.window_rows)
        return min(max(by_windows, FEWEST_PER_WORKER), MOST_PER_WORKER)

    def units_again(self, record: UnitsRecord, way: str) -> list[Unit]:
        """The units that a pass was cut into when it began.

        Raises `Failure`, with the `way` out, when the split is cut otherwise by now, or as `units`.
        """
        units = self.units(record.workers)
        # An earlier tnctl named the files of a glob by whole paths.
        whole = [unit for unit in units if unit.file is not None]
        whole = [replace(unit, file=self.url_of(str(unit.file))) for unit in whole]
        if len(units) != record.count or record.sha256 not in (checksum(units), checksum(whole)):
            is_orc = self.data.prepared is None and self.data.format == "orc"
            also = ", or an earlier tnctl cut files of ORC between stripes" if is_orc else ""
            raise Failure(
                f"data.{self.split} is cut into {len(units):,} units, and was cut into "
                f"{record.count:,} others when training stopped in the middle of it: its files or "
                f"their row groups have changed{also}. Put the earlier ones back, or {way}"
            )
        return units

    def too_few(self, workers: int, remainders: Sequence[Remainder] | None = None) -> str | None:
        """What to say where some workers have nothing to read; None where each has something.

        `remainders` are what is left of a pass that is resumed.
        """
        if remainders is None:
            remainders = list(map(Remainder, self.units(workers)))
        idle = workers - len(remainders)
        if idle <= 0:
            return None
        count = f"{len(remainders)} part{'' if len(remainders) == 1 else 's'}"
        what = f"data.{self.split} ({self._in_words()}) has {count} for {workers} workers"
        if any(left.window or left.offset for left in remainders):
            return f"{what} in the rest of this pass. Workers that wait for the next one: {idle}"
        return f"{what}. Workers without data: {idle}. {self._more_units(workers)}"

    def _in_words(self) -> str:
        if self.data.is_generated:
            return f"rows {self.spec}"
        urls = bare(self.files)
        return urls[0] if len(urls) == 1 else f"{urls[0]} and {len(urls) - 1} more"

    def _more_units(self, workers: int) -> str:
        """The way out of too few units."""
        fewer = "or train with fewer workers"
        if self.data.prepared is not None:
            return f"Prepare it again with a smaller data.window, for more row groups, {fewer}"
        if self.data.is_generated:
            return f"Name more rows, {fewer}"
        files = f"Write it as {workers} files or more"
        if self._is_grouped:
            return f"{files}, or with at least {workers} row groups, {fewer}"
        return f"{files} of about the same size, or as Parquet, {fewer}"


def _head(url: str, reader: FileReader) -> tuple[int, int]:
    """The rows in the beginning of a file, and the bytes, as stored, that they take."""
    codec = files.CODECS.get(PurePosixPath(url).suffix)
    with files.open_input(url, decompress=False) as raw, files.translated(url):
        # A name for the stream: when it is collected, it closes `raw`.
        stream = pa.CompressedInputStream(raw, codec) if codec else raw
        rows, read = reader.count_head(stream)
        # Compressed bytes are fewer than those that were read.
        return rows, raw.tell() if codec else read


def _cut_groups(rows: Sequence[int], each: int, shares: deque[int]) -> list[tuple[int, int]]:
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


def files_read(conf: Conf, splits: Sequence[str] = SPLITS) -> list[str]:
    """The files and folders that a conf is read from: of splits, vocabularies and vectors.

    No output of a command may overlap them.
    """
    read = [url for key in FILES_OF_SLOTS for url in files_of_slots(conf, key).values()]
    if conf.data.prepared is not None:
        return [conf.paths.path("data.prepared", conf.data.prepared), *read]
    for split in splits:
        if _is_named(conf.data, split):
            with contextlib.suppress(Failure):  # reading reports what cannot be listed
                read += Source(conf, split).files
    return read


def _is_named(data: Data, split: str) -> bool:
    """Whether the conf has data for a split, which is not of many days: these are looked up."""
    value = data.source(split)
    return value is not None and DAY not in str(value)


def files_of_slots(conf: Conf, key: str) -> dict[str, str]:
    """The path or URL of each slot's `key`, one of FILES_OF_SLOTS, by the slots that have one."""
    return {
        name: files.join(conf.root_of(f"slots.{name}.{key}"), file)
        for name, slot in conf.slots.items()
        if (file := getattr(slot, key)) is not None
    }


def require(conf: Conf, splits: Iterable[str], needed: list[str]) -> None:
    """`Source.require` of splits; those without data, and files by day, are passed over."""
    for split in splits:
        if _is_named(conf.data, split):
            Source(conf, split).require(needed)
