"""The pieces of a split, file after file."""

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tnctl import files
from tnctl.data import arrivals, generated
from tnctl.data.bad_rows import Skipped
from tnctl.data.day_records import Fingerprint
from tnctl.data.file_pieces import EmptyError, EmptyFileError, Piece
from tnctl.data.formats import parquet_files
from tnctl.data.formats.file_reader import FileReader, GroupedReader
from tnctl.data.formats.prepared_document import SPLITS
from tnctl.data.formats.prepared_files import PreparedReader
from tnctl.data.formats.readers import reader_of
from tnctl.data.read_ahead import in_order
from tnctl.data.unit_records import WHOLE, Unit
from tnctl.errors import Failure, UserError, did_you_mean
from tnctl.masking import masked
from tnctl.schema import Conf, Data

DAY = "{day}"  # the place of the day's name in data.train


@dataclass
class Split:
    """What a key such as data.train names."""

    spec: Any  # a name, glob or list; for generated data a range of rows
    skip_rows: int


def split_of(data: Data, split: str) -> Split:
    """The split as the conf names it. Raises `UserError` for a key that there is not."""
    value = getattr(data, split)
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
    return files.expand(names, conf.data.root)


def files_read(conf: Conf, splits: Sequence[str] = SPLITS) -> list[str]:
    """The files and folders that splits of a conf are read from, vocabularies included.

    No output of a command may overlap them.
    """
    read = [
        files.join(conf.data.root, slot.vocabulary_file)
        for slot in conf.slots.values()
        if slot.vocabulary_file
    ]
    if conf.data.prepared is not None:
        return [conf.data.prepared, *read]
    for split in splits:
        spec = getattr(conf.data, split)
        if spec is not None and DAY not in str(spec):  # days are looked up one by one
            with contextlib.suppress(Failure):  # reading reports what cannot be listed
                read += files_of(conf, split)
    return read


def fingerprints(urls: Iterable[str]) -> list[Fingerprint]:
    """Files in their order, each with what shows whether it was changed.

    They are for manifests, so their names have no secrets.
    """
    return list(
        in_order(
            lambda url: Fingerprint(file=masked(url), **files.fingerprint(url)),
            iter(urls),
        )
    )


def pieces(conf: Conf, split: str, needed: list[str], unit: Unit = WHOLE) -> Iterator[Piece]:
    """All rows of a split, or of a unit of it, in file order, with the columns `needed`.

    With data.prepared they are prepared rows, whatever is needed. Raises `Failure` when a file
    cannot be read, or when the split has no row; a unit may have none.
    """
    if not unit.is_split:
        yield from _of_unit(conf, split, needed, unit)
        return
    rows, skipped = 0, Skipped(split, conf.data.bad_rows)
    for piece in _all_pieces(conf, split, needed):
        rows += piece.table.num_rows
        skipped.add(piece.skipped, piece.reason)
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
    return EmptyError(
        f"data.{split} has no rows ({split_of(conf.data, split).spec}). Name other files"
    )


def _all_pieces(conf: Conf, split: str, needed: list[str]) -> Iterator[Piece]:
    named = split_of(conf.data, split)
    if conf.data.is_generated:
        yield from _generated_rows(conf.data, split, needed, *row_range(conf.data, split))
        return
    reader = reader_of(conf, named.skip_rows)
    for url in files_of(conf, split):
        yield from _of_file(conf, reader, url, needed)


def _of_file(conf: Conf, reader: FileReader, url: str, needed: list[str]) -> Iterator[Piece]:
    """The rows of a file; none of one without any byte where data.skip_empty allows it."""
    with empty_skipped(conf):
        yield from reader.pieces(url, needed)


@contextlib.contextmanager
def empty_skipped(conf: Conf) -> Iterator[None]:
    """The rest of the block is passed over when it reads a file without any byte, if allowed."""
    try:
        yield
    except EmptyFileError:
        if not conf.data.skip_empty:
            raise


def _of_unit(conf: Conf, split: str, needed: list[str], unit: Unit) -> Iterator[Piece]:
    if unit.file is None:
        assert unit.end is not None
        yield from _generated_rows(conf.data, split, needed, unit.first, unit.end)
        return
    reader: FileReader = reader_of(conf, split_of(conf.data, split).skip_rows)
    if unit.end is None:
        yield from _of_file(conf, reader, unit.file, needed)
    elif isinstance(reader, GroupedReader):
        yield from reader.pieces_of_groups(unit.file, needed, unit.first, unit.end)
    else:
        raise Failure(f"{unit.file} has no row groups, and some of them are to be read")


def row_range(data: Data, split: str) -> tuple[int, int]:
    """The first row and the end of a split of generated data. Raises `UserError`."""
    module = arrivals if data.format == "arrivals" else generated
    return module.row_range(split, split_of(data, split).spec)


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
    if conf.data.prepared is not None:
        return PreparedReader(conf).entry(split).rows
    if conf.data.is_generated:
        first, end = row_range(conf.data, split)
        return end - first
    if conf.data.format == "parquet":
        rows = 0
        for url in files_of(conf, split):
            with empty_skipped(conf):
                rows += parquet_files.row_count(url)
        return rows
    return None


def columns_of(conf: Conf, split: str) -> list[str] | None:
    """The names of the columns in a split's first file; None where only its rows could tell."""
    if conf.data.is_generated:
        return list((arrivals if conf.data.format == "arrivals" else generated).COLUMNS)
    reader = reader_of(conf, split_of(conf.data, split).skip_rows)
    for url in files_of(conf, split):
        with empty_skipped(conf):
            return reader.columns(url)
    return None
