"""What can be known of files without reading them whole: their columns, and about how many rows."""

import itertools
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import BinaryIO

import pyarrow as pa
import pyarrow.csv as pv
import pyarrow.parquet as pq

from tnctl import files
from tnctl.data import generated, jsonl_files, sources, tfrecord_files
from tnctl.data.lines import BYTE_ORDER_MARK
from tnctl.data.parquet_files import seekable
from tnctl.errors import Failure
from tnctl.schema import Conf

HEAD_BYTES = 4 << 20
HEAD_LINES = 1000
FILES_LOOKED_AT = 4


@dataclass(frozen=True)
class RowCount:
    """How many rows a split has: exact when `low` and `high` are the estimate."""

    estimate: float
    low: float
    high: float


def count_rows(conf: Conf, split: str) -> RowCount | None:
    """The rows of a split, from metadata or from the sizes of its files; None when it is unknown.

    By size: the rows of the first 4 MiB of a few files tell the bytes of a row; the spread of
    these files is the error, and a tenth at least.
    """
    if (known := sources.count_hint(conf, split)) is not None:
        return RowCount(known, known, known)
    urls = sources.files_of(conf, split)
    step = -(-len(urls) // FILES_LOOKED_AT)
    heads = [_head(url, conf.data.format) for url in urls[::step]]
    rates = [rows / stored for rows, stored in heads if stored]
    try:
        total = sum(files.size(url) for url in urls)
    except Failure:
        return None
    if not rates or not sum(stored for _, stored in heads):
        return None
    rate = sum(rows for rows, _ in heads) / sum(stored for _, stored in heads)
    low, high = min(*rates, 0.9 * rate), max(*rates, rate / 0.9)
    return RowCount(total * rate, total * low, total * high)


def _head(url: str, kind: str) -> tuple[int, int]:
    """The rows in the beginning of a file, and the bytes, as stored, that they take."""
    codec = files.CODECS.get(PurePosixPath(url).suffix)
    with files.open_input(url, decompress=False) as raw, files.translated(url):
        stream = pa.CompressedInputStream(raw, codec) if codec else raw
        if kind == "tfrecord":
            rows, read = _records(stream)
        else:
            text = files.read_most(stream, HEAD_BYTES)
            rows, read = text.count(b"\n"), text.rfind(b"\n") + 1
        # What was decompressed is fewer bytes in storage.
        return rows, raw.tell() if codec else read


def _records(stream: BinaryIO) -> tuple[int, int]:
    ends = [end for _, end in _frames(files.read_most(stream, HEAD_BYTES))]
    return len(ends), ends[-1] if ends else 0


def _frames(data: bytes) -> Iterator[tuple[bytes, int]]:
    """The records that lie whole in `data`, and where each ends; checksums are not looked at."""
    at = 0
    while at + 12 <= len(data):
        end = at + 16 + struct.unpack_from("<Q", data, at)[0]
        if end > len(data):
            return
        yield data[at + 12 : end - 4], end
        at = end


def columns_of(conf: Conf, split: str) -> list[str] | None:
    """The names of the columns in a split's first file; None where only its rows could tell."""
    data = conf.data
    if data.prepared is not None:
        return None
    if data.format == "generated":
        return list(generated.COLUMNS)
    url = sources.files_of(conf, split)[0]
    if data.format == "parquet":
        with seekable(url) as stream, files.translated(url):
            return list(pq.read_schema(stream).names)
    if data.format == "jsonl":
        return _names_in_lines(url)
    if data.format == "csv":
        return _header(conf, url, split) if data.header else list(data.columns or ())
    if data.format == "tfrecord":
        return _names_in_records(url)
    if data.format == "paddle":
        return data.columns or _slots_in_lines(url, data.pairs)
    return None


def _header(conf: Conf, url: str, split: str) -> list[str]:
    skip = sources.split_of(conf, split).skip_rows
    with files.open_input(url) as stream, files.translated(url):
        head = files.read_most(stream, HEAD_BYTES)
        line = next((one for one in head.split(b"\n")[skip:] if one.strip()), b"")
        line = line.removeprefix(b"\xef\xbb\xbf").rstrip(b"\r") + b"\n"
        options = pv.ParseOptions(
            delimiter=conf.data.delimiter, quote_char=False if conf.data.delimiter == "\t" else '"'
        )
        names = pv.read_csv(pa.BufferReader(line), parse_options=options).column_names
    return [name.strip() for name in names] if conf.data.strip else list(names)


def _names_in_lines(url: str) -> list[str]:
    names: dict[str, None] = {}
    with files.open_input(url) as stream:
        for line in _lines(stream):
            names |= dict.fromkeys(jsonl_files.parsed(line) or ())
    return list(names)


def _names_in_records(url: str) -> list[str]:
    names: dict[str, None] = {}
    with files.open_input(url) as stream:
        data = files.read_most(stream, HEAD_BYTES)
    for record, _ in itertools.islice(_frames(data), HEAD_LINES):
        names |= dict.fromkeys(tfrecord_files.names(record))
    return sorted(names)


def _slots_in_lines(url: str, pairs: str) -> list[str]:
    names: dict[bytes, None] = {}
    with files.open_input(url) as stream:
        for line in _lines(stream):
            for word in line.split():
                names[
                    word.rpartition(b":")[2] if pairs == "value:slot" else word.split(b":")[0]
                ] = None
    return [str(name, "utf-8", "replace") for name in names]


def _lines(stream: BinaryIO) -> Iterator[bytes]:
    text = files.read_most(stream, HEAD_BYTES).removeprefix(BYTE_ORDER_MARK)
    yield from text.split(b"\n")[:HEAD_LINES]
