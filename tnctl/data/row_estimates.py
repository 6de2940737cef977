"""About how many rows a split has, by the beginning of its files."""

from dataclasses import dataclass
from pathlib import PurePosixPath

import pyarrow as pa

from tnctl import files
from tnctl.data import sources
from tnctl.data.file_pieces import FileReader
from tnctl.data.formats.readers import reader_of
from tnctl.errors import Failure
from tnctl.schema import Conf

FILES_SAMPLED = 4


@dataclass(frozen=True)
class RowCount:
    """How many rows a split has: exact when `low` and `high` are the estimate."""

    estimate: float
    low: float
    high: float


def count_rows(conf: Conf, split: str) -> RowCount | None:
    """The rows of a split, from metadata or from the sizes of its files; None when it is unknown.

    By size: the first 4 MiB of a few files give the bytes of a row; the error is the spread of
    these files, and at least a tenth.
    """
    if (known := sources.count_hint(conf, split)) is not None:
        return RowCount(known, known, known)
    whole = _rows_of_files(conf, split)
    if whole is None or conf.data.prepared is not None or not conf.data.is_cut(split):
        return whole
    # By hash, or where empty lines count, a split has about its share.
    share = conf.data.share(split)
    return RowCount(whole.estimate * share, 0.9 * whole.low * share, whole.high * share / 0.9)


def _rows_of_files(conf: Conf, split: str) -> RowCount | None:
    """The rows of a split's files, of the split or not."""
    if (known := sources.rows_of_files(conf, split)) is not None:
        return RowCount(known, known, known)
    urls = sources.files_of(conf, split)
    step = -(-len(urls) // FILES_SAMPLED)
    heads = [_head(url, reader_of(conf)) for url in urls[::step]]
    rates = [rows / stored for rows, stored in heads if stored]
    try:
        total = sum(files.size(url) for url in urls)
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
