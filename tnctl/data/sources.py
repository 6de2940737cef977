"""Which rows there are: a split of a conf as pieces of its files, one file after the other."""

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import PurePosixPath
from types import ModuleType
from typing import Any, NamedTuple

import pyarrow as pa

from tnctl import files
from tnctl.data import arrivals, generated, partitions
from tnctl.data.bad_rows import SPLITS, Skipped
from tnctl.data.day_records import Fingerprint
from tnctl.data.file_pieces import EmptyError, EmptyFileError, FileReader, GroupedReader, Piece
from tnctl.data.formats.arrow_files import ArrowReader
from tnctl.data.formats.prepared_files import PreparedReader
from tnctl.data.formats.readers import reader_of
from tnctl.data.read_ahead import in_order
from tnctl.data.row_split import Cut, HashCut, LastCut
from tnctl.data.unit_records import WHOLE, Unit
from tnctl.errors import Failure, UserError, did_you_mean
from tnctl.masking import masked
from tnctl.progress import say
from tnctl.schema import Conf, Data

_with_empty_files: set[str] = set()
DAY = "{day}"  # the place of the day's name in data.train
FILES_SAMPLED = 4  # for an estimate of rows
# Rows that were counted, of each row group or of a file, by its reader, URL and fingerprint.
_counted: dict[tuple[str, str, str], list[int]] = {}


class Split(NamedTuple):
    """What a key such as data.train names."""

    spec: Any  # a name, glob or list; for generated data a range of rows
    skip_rows: int


class RowCount(NamedTuple):
    """How many rows a split has: exact when `low` and `high` are the estimate."""

    estimate: float
    low: float
    high: float


def split_of(data: Data, split: str) -> Split:
    """The split as the conf names it. Raises `UserError` for a key that there is not."""
    value = data.source(split)
    if not isinstance(value, Mapping):
        return Split(value, data.skip_rows)
    for key in value:
        if key not in ("files", "skip_rows"):
            choice = did_you_mean(str(key), ("files", "skip_rows"))
            raise UserError(f"data.{split} has no key '{key}'. {choice}")
    skip = value.get("skip_rows", data.skip_rows)
    if not isinstance(skip, int) or skip < 0:
        raise UserError(f"data.{split}.skip_rows must be at least 0. Received: {skip}")
    return Split(value.get("files"), skip)


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
        if not spec:
            raise UserError(f"{key} names no file. Give {key}=FILE (a file, URL or glob)")
        names = list(spec) if isinstance(spec, Sequence) and not isinstance(spec, str) else [spec]
        for name in names:
            if not isinstance(name, str):
                raise UserError(f"{key} takes a name, a glob or a list of them. Received: {name}")
            if DAY in name:
                raise UserError(
                    f"{key}={name} names the files of many days, which only train takes one by "
                    f"one. Name those of one, such as {key}={name.replace(DAY, '2024-01-31')}"
                )
        return files.expand(names, self.conf.root_of(self._key))

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
                return partitions.columns_of(self.reader, url)
        return None

    def require(self, needed: list[str]) -> None:
        """Raise as reading does if its first file is not there or lacks a column `needed`.

        Only the beginning, or the footer, of the file is read.
        """
        column = self.data.split.column
        if column is not None and column not in needed:
            needed = [*needed, column]
        if self.data.is_generated:
            first, end = row_range(self.data, self.split)
            next(self._generated(needed, first, min(first + 1, end)), None)
            return
        for url in self.files:
            with self._empty_skipped():
                if self.data.prepared is None:
                    partitions.require(self.reader, url, needed)
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
                skipped.add(piece.skipped, piece.reason, piece.first)
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
            if kept.table.num_rows or kept.skipped:
                yield replace(kept, table=kept.table.select(needed))

    def _read(self, needed: list[str], unit: Unit) -> Iterator[Piece]:
        """The rows of the files of a unit, of the split or not."""
        if self.data.is_generated:
            first, end = unit.first, unit.end
            if end is None:
                first, end = row_range(self.data, self.split)
            yield from self._generated(needed, first, end)
            return
        for url, first, end in self._spans(unit):
            with self._empty_skipped():
                yield from partitions.pieces(self.reader, url, needed, first, end)

    def _spans(self, unit: Unit) -> Iterator[tuple[str, int, int | None]]:
        """The files of a unit, each with the row groups that are read; None: all from the first."""
        if unit.file is not None:
            yield self.url_of(unit.file), unit.first, unit.end
            return
        for url in self.files:
            if not isinstance(self._cut, LastCut):
                yield url, 0, None
            elif self._cut.reads(url):
                is_grouped = isinstance(self.reader, GroupedReader)
                yield url, *(self._cut.groups(url, self._counts(url)) if is_grouped else (0, None))

    def _generated(self, needed: list[str], first: int, end: int) -> Iterator[Piece]:
        if self.data.format != "arrivals":
            return generated.pieces(first, end, needed)
        # A model has seen all rows up to the end of data.train when it is evaluated. Where that has
        # days these are the rows before the split: a day is evaluated before it is trained.
        is_range = isinstance(self.data.train, str) and ":" in self.data.train
        seen = row_range(self.data, "train")[1] if is_range else row_range(self.data, self.split)[0]
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
            first, end = row_range(self.data, self.split)
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

    def group_rows(self) -> dict[str, list[int]] | None:
        """The rows of each row group of each file that is not empty; None: it has no row groups."""
        if not isinstance(self.reader, GroupedReader):
            return None
        groups = dict[str, list[int]]()
        for url in self.files:
            with self._empty_skipped():
                groups[url] = self.reader.group_rows(url)
        return groups

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

    def known_rows(self) -> int | None:
        """The number of rows where it costs little to know, else None."""
        if not self._is_cut:
            return self._known_rows_of_files()
        is_counted = self.data.is_generated or isinstance(self.reader, ArrowReader)
        cut = self._cut if is_counted else None
        return cut.rows if isinstance(cut, LastCut) else None

    def _known_rows_of_files(self) -> int | None:
        """The rows of its files, of the split or not, where it costs little to know."""
        if self.data.is_generated:
            first, end = row_range(self.data, self.split)
            return end - first
        if isinstance(self.reader, PreparedReader):
            return self.reader.entry(self.split).rows
        if not isinstance(self.reader, ArrowReader):
            return None
        rows = 0
        for url in self.files:
            with self._empty_skipped():
                rows += sum(self.reader.counts(url))
        return rows

    def count(self) -> RowCount | None:
        """The rows, from metadata or from the sizes of its files; None when it is unknown.

        By size: the first 4 MiB of a few files give the bytes of a row; the error is the spread of
        these files, and at least a tenth.
        """
        known = self.known_rows()
        of_files = known is None and self._is_cut
        if of_files:
            known = self._known_rows_of_files()
        whole = self._estimate() if known is None else RowCount(known, known, known)
        if whole is None or not of_files:
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


def _head(url: str, reader: FileReader) -> tuple[int, int]:
    """The rows in the beginning of a file, and the bytes, as stored, that they take."""
    codec = files.CODECS.get(PurePosixPath(url).suffix)
    with files.open_input(url, decompress=False) as raw, files.translated(url):
        # A name for the stream: when it is collected, it closes `raw`.
        stream = pa.CompressedInputStream(raw, codec) if codec else raw
        rows, read = reader.count_head(stream)
        # Compressed bytes are fewer than those that were read.
        return rows, raw.tell() if codec else read


def files_read(conf: Conf, splits: Sequence[str] = SPLITS) -> list[str]:
    """The files and folders that splits of a conf are read from, vocabularies included.

    No output of a command may overlap them.
    """
    read = list(vocabulary_files(conf).values())
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


def vocabulary_files(conf: Conf) -> dict[str, str]:
    """The path or URL of each slot's vocabulary_file, by the names of the slots that have one."""
    return {
        name: files.join(conf.root_of(f"slots.{name}.vocabulary_file"), slot.vocabulary_file)
        for name, slot in conf.slots.items()
        if slot.vocabulary_file is not None
    }


def require(conf: Conf, splits: Iterable[str], needed: list[str]) -> None:
    """`Source.require` of splits; those without data, and files by day, are passed over."""
    for split in splits:
        if _is_named(conf.data, split):
            Source(conf, split).require(needed)
