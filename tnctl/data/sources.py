"""The pieces of a split, file after file."""

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

from tnctl import files
from tnctl.data import arrivals, generated, partitions
from tnctl.data.bad_rows import SPLITS, Skipped
from tnctl.data.day_records import Fingerprint
from tnctl.data.file_pieces import EmptyError, EmptyFileError, FileReader, GroupedReader, Piece
from tnctl.data.formats.arrow_files import ArrowReader
from tnctl.data.formats.prepared_files import PreparedReader
from tnctl.data.formats.readers import reader_of
from tnctl.data.read_ahead import in_order
from tnctl.data.row_split import Cut, HashCut, LastCut, SourceFile
from tnctl.data.unit_records import WHOLE, Unit
from tnctl.errors import Failure, UserError, did_you_mean
from tnctl.masking import masked
from tnctl.progress import say
from tnctl.schema import Conf, Data

_with_empty_files: set[str] = set()
DAY = "{day}"  # the place of the day's name in data.train
# Rows that were counted, of each row group or of a file, by its reader, URL and fingerprint.
_counted: dict[tuple[str, str, str], list[int]] = {}


@dataclass
class Split:
    """What a key such as data.train names."""

    spec: Any  # a name, glob or list; for generated data a range of rows
    skip_rows: int


def split_of(data: Data, split: str) -> Split:
    """The split as the conf names it. Raises `UserError` for a key that there is not."""
    value = data.source(split)
    if isinstance(value, Mapping):
        for key in value:
            if key not in ("files", "skip_rows"):
                choice = did_you_mean(str(key), ("files", "skip_rows"))
                raise UserError(f"data.{split} has no key '{key}'. {choice}")
        skip = value.get("skip_rows", data.skip_rows)
        if not isinstance(skip, int) or skip < 0:
            raise UserError(f"data.{split}.skip_rows must be at least 0. Received: {skip}")
        return Split(value.get("files"), skip)
    return Split(value, data.skip_rows)


def files_of(conf: Conf, split: str) -> list[str]:
    """The URLs of a split's files, in the order they are read; none for generated data."""
    if conf.data.prepared is not None:
        return PreparedReader(conf).urls(split)
    if conf.data.is_generated:
        return []
    spec = split_of(conf.data, split).spec
    if not spec:
        raise UserError(f"data.{split} names no file. Give data.{split}=FILE (a file, URL or glob)")
    names = list(spec) if isinstance(spec, Sequence) and not isinstance(spec, str) else [spec]
    for name in names:
        if not isinstance(name, str):
            raise UserError(
                f"data.{split} takes a name, a glob or a list of them. Received: {name}"
            )
        if DAY in name:
            raise UserError(
                f"data.{split}={name} names the files of many days, which only train takes one by "
                f"one. Name those of one, such as data.{split}={name.replace(DAY, '2024-01-31')}"
            )
    return files.expand(names, conf.root_of(_key_of(conf.data, split)))


def files_read(conf: Conf, splits: Sequence[str] = SPLITS) -> list[str]:
    """The files and folders that splits of a conf are read from, vocabularies included.

    No output of a command may overlap them.
    """
    read = list(vocabulary_files(conf).values())
    if conf.data.prepared is not None:
        return [conf.paths.path("data.prepared", conf.data.prepared), *read]
    for split in splits:
        spec = conf.data.source(split)
        if spec is not None and DAY not in str(spec):  # days are looked up one by one
            with contextlib.suppress(Failure):  # reading reports what cannot be listed
                read += files_of(conf, split)
    return read


def vocabulary_files(conf: Conf) -> dict[str, str]:
    """The path or URL of each slot's vocabulary_file, by the names of the slots that have one."""
    return {
        name: files.join(conf.root_of(f"slots.{name}.vocabulary_file"), slot.vocabulary_file)
        for name, slot in conf.slots.items()
        if slot.vocabulary_file is not None
    }


def fingerprints(conf: Conf, split: str) -> list[Fingerprint]:
    """The files of a split in their order, each with what shows whether it was changed.

    They are for manifests, so their names have no secrets, and start from the conf's folder.
    """
    return list(
        in_order(
            lambda url: Fingerprint(
                file=masked(saved_name(conf, split, url)), **files.fingerprint(url)
            ),
            iter(files_of(conf, split)),
        )
    )


def saved_name(conf: Conf, split: str, url: str) -> str:
    """The URL of a split's file without the conf's folder, where the split starts from it.

    It stays when conf and data are moved together.
    """
    return url.removeprefix(files.join(_start(conf, split), ""))


def url_of(conf: Conf, split: str, name: str) -> str:
    """The URL of a file by what `saved_name` returns."""
    return files.join(_start(conf, split), name)


def _start(conf: Conf, split: str) -> str | None:
    if conf.data.prepared is not None:
        return conf.paths.start("data.prepared")
    return conf.paths.start("data.root" if conf.data.root else _key_of(conf.data, split))


def _key_of(data: Data, split: str) -> str:
    """The key that names the files of a split."""
    return f"data.{split}" if getattr(data, split) is not None else "data.train"


def pieces(conf: Conf, split: str, needed: list[str], unit: Unit = WHOLE) -> Iterator[Piece]:
    """All rows of a split, or of a unit of it, in file order, with the columns `needed`.

    With data.prepared they are prepared rows, whatever is needed. Raises `Failure` when a file
    cannot be read, or when the split has no row; a unit may have none.
    """
    if not unit.is_split:
        yield from _chosen_pieces(conf, split, needed, unit)
        return
    rows, skipped = 0, Skipped(split, conf.data.bad_rows)
    for piece in _chosen_pieces(conf, split, needed, unit):
        rows += piece.table.num_rows
        skipped.add(piece.skipped, piece.reason, piece.first)
        yield piece
    if rows == 0:
        raise no_rows(conf, split, skipped)


def no_rows(conf: Conf, split: str, skipped: Skipped) -> Failure:
    """What to raise for a split without a row that can be read."""
    if skipped.rows:
        return Failure(
            f"no row of data.{split} is left: {skipped.rows:,} cannot be read. The first: "
            f"{skipped.first}"
        )
    spec = split_of(conf.data, split).spec
    if conf.data.prepared is None and conf.data.is_cut(split):
        shares = f"validation={conf.data.split.validation} and test={conf.data.split.test}"
        return EmptyError(
            f"data.split leaves data.{split} no row of data.train ({spec}), with {shares} by "
            f"{conf.data.split.by}. Change the shares, or name more files"
        )
    return EmptyError(f"data.{split} has no rows ({spec}). Name other files")


def _chosen_pieces(conf: Conf, split: str, needed: list[str], unit: Unit) -> Iterator[Piece]:
    """The rows of a unit that are of the split: all, where data.split chooses none."""
    cut = _cut_of(conf, split)
    columns = needed if cut is None else list(dict.fromkeys([*needed, *cut.columns]))
    if unit.is_split:
        source = _all_pieces(conf, split, columns, cut)
    else:
        source = _of_unit(conf, split, columns, unit)
    if cut is None:
        yield from source
        return
    for piece in source:
        if cut.is_after(piece):
            return
        kept = cut.kept(piece)
        if kept.table.num_rows or kept.skipped:
            yield replace(kept, table=kept.table.select(needed))


def _cut_of(conf: Conf, split: str) -> Cut | None:
    """What chooses the rows of a split; None: the split has all rows of its files."""
    if conf.data.prepared is not None or not conf.data.is_cut(split):
        return None
    named = split_of(conf.data, split)
    if conf.data.is_generated:
        first, end = row_range(conf.data, split)
        if conf.data.split.by == "last":
            source = SourceFile(_generator(conf.data).NAME, first - 1, end - first)
            return LastCut(conf.data, split, [source])
        return HashCut(conf.data, split, 0)
    reader = reader_of(conf, named.skip_rows)
    lines = reader.lines_before
    if conf.data.split.by != "last":
        return HashCut(conf.data, split, lines)
    rows = {url: sum(_counted_rows(conf, reader, url)) for url in files_of(conf, split)}
    sources = [SourceFile(url, lines, max(count - lines, 0)) for url, count in rows.items()]
    return LastCut(conf.data, split, sources)


def _counted_rows(conf: Conf, reader: FileReader, url: str) -> list[int]:
    """The `counts` of a file, which is counted once as long as it does not change."""
    key = type(reader).__name__, url, str(files.fingerprint(url))
    if key not in _counted:
        counts = list[int]()  # of an empty file
        with empty_skipped(conf):
            counts = reader.counts(url)
        _counted[key] = counts
    return _counted[key]


def _all_pieces(conf: Conf, split: str, needed: list[str], cut: Cut | None) -> Iterator[Piece]:
    named = split_of(conf.data, split)
    if conf.data.is_generated:
        yield from _generated_rows(conf.data, split, needed, *row_range(conf.data, split))
        return
    reader = reader_of(conf, named.skip_rows)
    for url in files_of(conf, split):
        if isinstance(cut, LastCut) and not cut.reads(url):
            continue
        if isinstance(cut, LastCut) and isinstance(reader, GroupedReader):
            first, end = cut.groups(url, _counted_rows(conf, reader, url))
            yield from _of_groups(reader, url, needed, first, end)
        else:
            yield from _of_file(conf, reader, url, needed)


def _of_file(conf: Conf, reader: FileReader, url: str, needed: list[str]) -> Iterator[Piece]:
    """The rows of a file; none of one without any byte where data.skip_empty allows it."""
    with empty_skipped(conf):
        yield from partitions.pieces(reader, url, needed)


def _of_groups(
    reader: GroupedReader, url: str, needed: list[str], first: int, end: int
) -> Iterator[Piece]:
    """The rows of the groups `first` to `end` of a file."""
    yield from partitions.pieces(
        reader, url, needed, lambda columns: reader.pieces_of_groups(url, columns, first, end)
    )


@contextlib.contextmanager
def empty_skipped(conf: Conf) -> Iterator[None]:
    """The rest of the block is passed over when it reads a file without any byte, if allowed."""
    try:
        yield
    except EmptyFileError as error:
        if not conf.data.skip_empty:
            raise
        report_empty(*error.url.rpartition("/")[::2])


def report_empty(folder: str, name: str) -> None:
    """Say of the first file without any byte of each folder that such files are passed over."""
    if folder not in _with_empty_files:
        _with_empty_files.add(folder)
        say(
            f"{folder}/{name} is empty. Such files are passed over in this folder "
            "(data.skip_empty=true)"
        )


def _of_unit(conf: Conf, split: str, needed: list[str], unit: Unit) -> Iterator[Piece]:
    if unit.file is None:
        assert unit.end is not None
        yield from _generated_rows(conf.data, split, needed, unit.first, unit.end)
        return
    reader: FileReader = reader_of(conf, split_of(conf.data, split).skip_rows)
    url = url_of(conf, split, unit.file)
    if unit.end is None:
        yield from _of_file(conf, reader, url, needed)
    elif isinstance(reader, GroupedReader):
        yield from _of_groups(reader, url, needed, unit.first, unit.end)
    else:
        raise Failure(f"{url} has no row groups, and some of them are to be read")


def _generator(data: Data) -> ModuleType:
    return arrivals if data.format == "arrivals" else generated


def row_range(data: Data, split: str) -> tuple[int, int]:
    """The first row and the end of a split of generated data. Raises `UserError`."""
    return _generator(data).row_range(split, split_of(data, split).spec)


def _generated_rows(
    data: Data, split: str, needed: list[str], first: int, end: int
) -> Iterator[Piece]:
    if data.format == "arrivals":
        yield from arrivals.pieces(first, end, needed, _rows_trained(data, split))
    else:
        yield from generated.pieces(split, f"{first}:{end}", needed)


def _rows_trained(data: Data, split: str) -> int:
    """How many rows of the arrivals a model has met when it is evaluated on a split.

    These are all up to the end of data.train. Where data.train has days they are those before the
    split, because a day is evaluated before it is trained.
    """
    is_range = isinstance(data.train, str) and ":" in data.train
    return row_range(data, "train")[1] if is_range else row_range(data, split)[0]


def count_hint(conf: Conf, split: str) -> int | None:
    """The number of rows where it costs little to know, else None."""
    if conf.data.prepared is None and conf.data.is_cut(split):
        is_counted = conf.data.is_generated or isinstance(reader_of(conf), ArrowReader)
        cut = _cut_of(conf, split) if is_counted else None
        return cut.rows if isinstance(cut, LastCut) else None
    return rows_of_files(conf, split)


def rows_of_files(conf: Conf, split: str) -> int | None:
    """The rows of a split's files, of the split or not, where it costs little to know."""
    if conf.data.prepared is not None:
        return PreparedReader(conf).entry(split).rows
    if conf.data.is_generated:
        first, end = row_range(conf.data, split)
        return end - first
    reader = reader_of(conf)
    if not isinstance(reader, ArrowReader):
        return None
    rows = 0
    for url in files_of(conf, split):
        with empty_skipped(conf):
            rows += sum(reader.counts(url))
    return rows


def require(conf: Conf, splits: Iterable[str], needed: list[str]) -> None:
    """Raise as reading does for splits whose first file is not there or lacks a column `needed`.

    Only the beginning, or the footer, of a file is read. Splits that the conf has no data for, and
    files by day, are passed over.
    """
    for split in splits:
        value, cut = conf.data.source(split), conf.data.split.column
        if value is None or DAY in str(value):
            continue
        if cut is not None and cut not in needed:
            needed = [*needed, cut]
        if conf.data.is_generated:
            first, end = row_range(conf.data, split)
            next(_generated_rows(conf.data, split, needed, first, min(first + 1, end)), None)
            continue
        reader = reader_of(conf, split_of(conf.data, split).skip_rows)
        for url in files_of(conf, split):
            with empty_skipped(conf):
                if conf.data.prepared is None:
                    partitions.require(reader, url, needed)
                break


def columns_of(conf: Conf, split: str) -> list[str] | None:
    """The names of the columns of a split's first file; None where only its rows could tell.

    Columns of its folders' names are among them.
    """
    if conf.data.is_generated:
        return list(_generator(conf.data).COLUMNS)
    reader = reader_of(conf, split_of(conf.data, split).skip_rows)
    for url in files_of(conf, split):
        with empty_skipped(conf):
            return partitions.columns_of(reader, url)
    return None
