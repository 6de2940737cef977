"""The folders of TensorNet's checkpoints: its tables, their ranks and blocks, and its day."""

import json
import re
from dataclasses import dataclass

from tnctl import files
from tnctl.documents import LONGEST_PATH
from tnctl.errors import Failure, UserError, quoted

SPARSE, DENSE, LAST_DAY = "sparse_table", "dense_table", "_checkpoint"
BLOCKS = 8  # of a rank: one for each of the lowest 3 bits of sign / 2^32
RANK = re.compile(r"rank_(0|[1-9]\d{0,4})")
BLOCK = re.compile(r"(sparse_)?block_([0-7])(_txt|_bin)?(\.gz)?")
HANDLE = re.compile(r"0|[1-9]\d{0,8}")
MOST_TABLES = 1000
LAST_DAY_BYTES = 1 << 16


@dataclass(frozen=True)
class SourceTable:
    """The files of a sparse table, rank by rank, and the bytes that they take."""

    name: str
    files: tuple[str, ...]
    ranks: int
    bytes: int


@dataclass(frozen=True)
class Source:
    """A checkpoint of TensorNet: `day` is the name of its folder, or None."""

    folder: str
    day: str | None
    tables: tuple[SourceTable, ...]
    dense: tuple[str, ...]
    """the files of the dense table, rank by rank"""


def source_at(url: str) -> Source:
    """The checkpoint in a folder, or the last one of a folder with _checkpoint.

    Raises UserError when it is no such folder, Failure when a file of it is missing.
    """
    folder = url.rstrip("/") or url
    names = {entry.name for entry in files.listed(folder)}
    day = None
    if SPARSE not in names and LAST_DAY in names:
        day = last_day(files.join(folder, LAST_DAY))
        folder = files.join(folder, day)
        names = {entry.name for entry in files.listed(folder)}
    elif SPARSE in names:
        day = folder.rpartition("/")[2] or None
    if SPARSE not in names:
        raise UserError(
            f"tensornet={url}: {folder} has no folder {SPARSE}. Give what TensorNet saved its "
            f"weights to: a folder with {LAST_DAY}, or the folder of a day in it"
        )
    above = files.join(folder, SPARSE)
    listed = files.listed(above)
    if len(listed) > MOST_TABLES:
        raise Failure(f"{above} has over {MOST_TABLES:,} entries. Give a checkpoint of TensorNet")
    listed = [entry for entry in listed if entry.name[0] not in "._"]
    for entry in listed:
        if entry.kind != "folder":
            raise Failure(f"{files.join(above, entry.name)} is no folder of a table")
    tables = tuple(source_table(files.join(above, entry.name), entry.name) for entry in listed)
    if not tables:
        raise Failure(f"{above} has no table. Copy it again")
    dense = dense_files(files.join(folder, DENSE)) if DENSE in names else ()
    return Source(folder, day, tables, dense)


def last_day(url: str) -> str:
    """The folder that _checkpoint names. Raises Failure when it names none."""
    try:
        content = json.loads(files.read_bytes(url, most=LAST_DAY_BYTES))
        day = content["dt"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Failure(f'{url} is not {{"dt": DAY}}, as TensorNet writes it') from error
    is_name = isinstance(day, str) and re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.=-]*", day)
    if not is_name or len(day) > LONGEST_PATH:
        raise Failure(f"{url} names no folder: {quoted(str(day))}. Name the folder of a day itself")
    return str(day)


def source_table(folder: str, name: str) -> SourceTable:
    """A sparse table. Raises Failure unless it has all blocks of all ranks, each once."""
    urls: list[str] = []
    size = 0
    for rank, rank_folder in enumerate(rank_folders(folder)):
        blocks: dict[int, str] = {}
        for entry in files.listed(rank_folder):
            match = BLOCK.fullmatch(entry.name)
            if match is None or entry.kind != "file":
                if entry.name[0] in "._":
                    continue
                raise Failure(f"{files.join(rank_folder, entry.name)} is no block of a table")
            if int(match[2]) in blocks:
                raise Failure(f"{rank_folder} has block {match[2]} twice. Take the newer one away")
            blocks[int(match[2])] = files.join(rank_folder, entry.name)
            size += entry.bytes
        if missing := sorted(set(range(BLOCKS)) - blocks.keys()):
            raise Failure(
                f"{rank_folder} has no block_{missing[0]}.gz, and TensorNet writes {BLOCKS} blocks "
                f"for each rank. Copy rank {rank} again"
            )
        urls += [blocks[number] for number in range(BLOCKS)]
    return SourceTable(name, tuple(urls), len(urls) // BLOCKS, size)


def rank_folders(folder: str) -> list[str]:
    """The folders of a table's ranks in their order. Raises Failure when one is missing."""
    numbers = []
    for entry in files.listed(folder):
        match = RANK.fullmatch(entry.name)
        if match is None or entry.kind != "folder":
            if entry.name[0] in "._":
                continue
            raise Failure(f"{files.join(folder, entry.name)} is no folder of a rank")
        numbers.append(int(match[1]))
    if sorted(numbers) != list(range(len(numbers))) or not numbers:
        missing = next(number for number in range(len(numbers) + 1) if number not in numbers)
        raise Failure(f"{folder} has no rank_{missing}. Copy the table again")
    return [files.join(folder, f"rank_{number}") for number in range(len(numbers))]


def dense_files(folder: str) -> tuple[str, ...]:
    """The files of the only dense table, rank by rank.

    Raises Failure when there are several tables, and when the file of a rank is missing.
    """
    handles = [e for e in files.listed(folder) if e.kind == "folder" and HANDLE.fullmatch(e.name)]
    if len(handles) != 1:
        if not handles:
            return ()
        raise Failure(
            f"{folder} has {len(handles)} tables, of several optimizers of dense weights; a conf "
            "has one. Move it away to import the rows alone"
        )
    above = files.join(folder, handles[0].name)
    ranks = sorted(
        int(entry.name)
        for entry in files.listed(above)
        if entry.kind == "file" and HANDLE.fullmatch(entry.name)
    )
    if ranks != list(range(len(ranks))):
        raise Failure(f"{above} has the files of ranks {ranks[:8]}, and not of all. Copy it again")
    return tuple(files.join(above, str(rank)) for rank in ranks)
