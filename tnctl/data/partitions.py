"""Columns that are in the names of folders: logs/dt=2026-11-20/country=DE/part-0.parquet.

Hive, Spark and others write tables so. The rule: a column that a file lacks, and one of its folders
names, has the folder's value in each row of the file.
"""

from collections.abc import Iterator
from dataclasses import replace
from urllib.parse import unquote

import pyarrow as pa

from tnctl.data.file_pieces import FileReader, Piece
from tnctl.errors import Failure

MISSING = "__HIVE_DEFAULT_PARTITION__"


def partitions_of(url: str) -> dict[str, str | None]:
    """The columns that the folders of a file name, and their values; None where it is missing.

    Of two folders with one column the inner one counts. Raises `Failure` for what is not UTF-8.
    """
    scheme, separator, rest = url.rpartition("://")
    if separator:
        # What comes before is a host or bucket, with it maybe a user and a password.
        rest = rest.partition("/")[2]
    if scheme.endswith(("http", "https")):
        rest = rest.partition("?")[0]
    folders = [name.partition("=") for name in rest.split("/")[:-1]]
    texts = {_decoded(key, url): _decoded(text, url) for key, sign, text in folders if sign}
    return {key: None if text == MISSING else text for key, text in texts.items() if key}


def _decoded(text: str, url: str) -> str:
    """A name or value without Hive's escapes, such as %3A for a colon."""
    try:
        decoded = unquote(text, errors="strict")
        decoded.encode()
    except UnicodeError as error:
        raise Failure(f"{url!r}: a folder's name is not UTF-8. Rename it") from error
    return decoded


def columns_of(reader: FileReader, url: str) -> list[str] | None:
    """The names of a file's columns and those of its folders; None where only rows could tell."""
    columns = reader.columns(url)
    return None if columns is None else list(dict.fromkeys([*columns, *partitions_of(url)]))


def pieces(
    reader: FileReader,
    url: str,
    needed: list[str],
    first: int = 0,
    end: int | None = None,
) -> Iterator[Piece]:
    """The rows of a file with the columns `needed`, some of which may be its folders'.

    With `end` these are the rows of row groups `first` to `end` - 1.
    """
    values, stored = partitions_of(url), stored_in(reader, url, needed)
    if end is None:
        read = reader.pieces(url, stored)
    else:
        read = reader.pieces_of_groups(url, stored, first, end)
    if stored == needed:
        yield from read
        return
    absent = set(needed) - set(stored)
    for piece in read:
        rows = piece.table.num_rows
        columns = {
            name: pa.repeat(pa.scalar(values[name], pa.string()), rows)
            if name in absent
            else piece.table.column(name)
            for name in needed
        }
        yield replace(piece, table=pa.table(columns))


def stored_in(reader: FileReader, url: str, needed: list[str]) -> list[str]:
    """The columns that are read from the file itself, at least one for the number of rows."""
    values = partitions_of(url)
    present = reader.columns(url) if values.keys() & set(needed) else None
    if present is None or not (absent := values.keys() & set(needed) - set(present)):
        return needed
    return [name for name in needed if name not in absent] or present[:1]


def require(reader: FileReader, url: str, needed: list[str]) -> None:
    """Raise as `pieces` does for a file that is not there or lacks a column of `needed`."""
    reader.require(url, stored_in(reader, url, needed))
