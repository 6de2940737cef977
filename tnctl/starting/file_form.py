"""The format of files, by their first bytes and lines, and how it is read."""

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from tnctl import files, limits
from tnctl.data.formats import json_paths, text_lines
from tnctl.data.formats.arrow_files import ArrowReader
from tnctl.data.formats.orc_files import OrcReader
from tnctl.data.formats.parquet_files import ParquetReader
from tnctl.data.formats.tfrecord_files import RecordReader
from tnctl.errors import Failure, did_you_mean, quoted
from tnctl.starting.delimited_lines import delimited, is_nameable
from tnctl.tables import checksums

HEAD_BYTES = 4 << 20
LINES = 1000
GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
# The first bytes of files that are no data tnctl reads, and what to do.
FOREIGN = {
    b"Obj\x01": "an Avro file. Write it as Parquet",
    b"ARROW1": "an Arrow file. Write it as Parquet",
    b"PK\x03\x04": "a ZIP archive, or a spreadsheet. Unpack it, or save it as CSV",
    b"SQLite format 3": "an SQLite database. Write the table as CSV",
    b"\x89HDF": "an HDF5 file. Write it as Parquet",
    b"\x93NUMPY": "a NumPy file. Write it as Parquet",
    b"\xff\xfe": "text in UTF-16. Save it as UTF-8",
    b"\xfe\xff": "text in UTF-16. Save it as UTF-8",
    b"BZh": "compressed by bzip2. Compress it by gzip or zstd, or decompress it",
    b"\xfd7zXZ": "compressed by xz. Compress it by gzip or zstd, or decompress it",
    b"\x80\x04": "a Python pickle, which is not read: it can run commands. Write it as Parquet",
    b"%PDF": "a PDF document. Name a file with rows",
}
NO_TEXT = re.compile(rb"[\x00-\x08]")
LABEL_AND_PAIRS = re.compile(r"[+-]?\d+(\.\d+)?([ \t]+[^\s:]+:[^\s:]+(:[^\s:]+)?)+[ \t]*")
PAIRS = re.compile(r"[^\s:]+:\S*[^\s:](\s+[^\s:]+:\S*[^\s:])*\s*")


@dataclass
class FileForm:
    """How files are read: keys of `data`, what shows each, and the names of the columns.

    `left_out` says of columns that no input can be made of, and why.
    """

    format: str
    keys: dict[str, Any] = field(default_factory=dict)
    evidence: dict[str, str] = field(default_factory=dict)
    columns: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)  # the first lines of a file of text


def form_of(url: str) -> FileForm:
    """The form of a file. Raises `Failure` for what is empty, damaged or no format of tnctl."""
    form = _recognised(url)
    unnameable = [name for name in form.columns if not is_nameable(name)]
    if unnameable:
        form.columns = [name for name in form.columns if is_nameable(name)]
        form.left_out |= dict.fromkeys(
            unnameable, "no conf can have this name, empty or with ${ in it: rename the column"
        )
    return form


def _recognised(url: str) -> FileForm:
    head, is_whole = _head(url)
    if head.startswith(b"PAR1"):
        return _of_columns(url, "parquet", ParquetReader(check_utf8=False, bad_rows=0))
    if head.startswith(b"ORC") and NO_TEXT.search(head):
        return _of_columns(url, "orc", OrcReader(check_utf8=False, bad_rows=0))
    for first, remark in FOREIGN.items():
        if head.startswith(first):
            raise Failure(f"{url} is {remark}")
    framed = checksums.records(head, 1)
    if len(framed.starts) and framed.whole[0]:
        return _records(url)
    head = head.removeprefix(text_lines.BYTE_ORDER_MARK)
    if b"\0" in head:
        raise Failure(
            f"{url} is binary and no format that tnctl reads (Parquet, ORC, TFRecord, or text: "
            "CSV, JSON lines, libsvm, Paddle's)"
        )
    lines, is_utf8 = _lines(url, head, is_whole)
    form = _of_lines(url, lines)
    form.lines = lines
    if not is_utf8:
        form.keys["check_utf8"] = False
        form.evidence["check_utf8"] = "some text is not UTF-8: its bytes are hashed as they are"
    return form


def _head(url: str) -> tuple[bytes, bool]:
    """The first bytes of a file, decompressed, and whether they are all."""
    suffix = PurePosixPath(url).suffix
    with files.open_input(url, decompress=False) as stream:
        first = files.read_most(stream, 4)
    if not first:
        raise Failure(f"{url} is empty. Name a file with rows")
    codec = "gzip" if first.startswith(GZIP) else "zstd" if first == ZSTD else None
    named = files.CODECS.get(suffix)
    if named != codec:
        if codec is None:
            raise Failure(f"{url} is not compressed, and its name says {named}. Rename it")
        ending = ".gz" if codec == "gzip" else ".zst"
        raise Failure(
            f"{url} is compressed by {codec}. Rename it so that its name ends in {ending}"
        )
    with files.open_input(url) as stream:
        head = files.read_most(stream, HEAD_BYTES + 1)
    if not head:
        raise Failure(f"{url} is empty. Name a file with rows")
    return head[:HEAD_BYTES], len(head) <= HEAD_BYTES


def _lines(url: str, head: bytes, is_whole: bool) -> tuple[list[str], bool]:
    """The first lines that are not empty, and whether they are UTF-8."""
    whole = head if is_whole else head[: head.rfind(b"\n") + 1]
    raw = [line.rstrip(b"\r") for line in whole.split(b"\n", LINES)[:LINES]]
    raw = [line for line in raw if line.strip()]
    if not raw:
        if is_whole:
            raise Failure(f"{url} has only empty lines. Name a file with rows")
        raise Failure(
            f"{url}: its first line is longer than {limits.mebibytes(HEAD_BYTES)}, so nothing can "
            "be recognised. Write one row a line"
        )
    is_utf8 = all(map(text_lines.is_utf8, raw))
    return [line.decode("utf-8" if is_utf8 else "latin-1") for line in raw], is_utf8


def _of_lines(url: str, lines: list[str]) -> FileForm:
    first = lines[0].lstrip()
    if first.startswith("{"):
        return _json(url, lines)
    if first.startswith("["):
        raise Failure(f"{url} is a JSON list. Write one object a line (JSON lines)")
    if first.startswith("<"):
        raise Failure(f"{url} is HTML or XML ({quoted(first)}). Name a file with rows")
    few = lines[:100]
    if all(LABEL_AND_PAIRS.fullmatch(line) for line in few):
        form = FileForm("libsvm", columns=[])
        form.evidence["format"] = "lines of a label and feature:value"
        return form
    if all(PAIRS.fullmatch(line) for line in few):
        return _paddle(few)
    csv = delimited(url, lines)
    return FileForm("csv", csv.keys, csv.evidence, csv.names)


def _json(url: str, lines: list[str]) -> FileForm:
    objects = [text_lines_object(line) for line in lines]
    rows = [values for values in objects if values is not None]
    if len(rows) < 0.9 * len(lines):
        wrong = lines[objects.index(None)]
        raise Failure(
            f"{url} is no JSON lines: {quoted(wrong)} is no object. Write each object on one line"
        )
    form = FileForm("jsonl")
    form.evidence["format"] = "a JSON object a line"
    for name in json_paths.paths_of(rows):
        parts = json_paths.values_of(name, rows)
        flat = [part for value in parts for part in (value if isinstance(value, list) else [value])]
        if any(isinstance(part, dict | list) for part in flat):
            form.left_out[name] = (
                "an object in some rows, or a list of lists: write one kind of value"
            )
        else:
            form.columns.append(name)
    return form


def text_lines_object(line: str) -> dict[str, Any] | None:
    """The JSON object on a line; None without one."""
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return values if isinstance(values, dict) else None


def _paddle(lines: list[str]) -> FileForm:
    """Words of slot:value or value:slot: the slots are the same in every line, values are not."""
    words = [line.split() for line in lines]
    firsts = Counter(name for line in words for name in {word.split(":", 1)[0] for word in line})
    lasts = Counter(name for line in words for name in {word.rsplit(":", 1)[1] for word in line})
    slots, pairs = (lasts, "value:slot") if len(lasts) < len(firsts) else (firsts, "slot:value")
    form = FileForm("paddle", {"pairs": pairs}, columns=list(slots))
    form.evidence["format"] = "words with a colon"
    form.evidence["pairs"] = (
        f"{len(slots):,} words stand at the side of the slot, "
        f"{len(lasts if slots is firsts else firsts):,} at the other"
    )
    return form


def _of_columns(url: str, format: str, reader: ArrowReader) -> FileForm:
    form = FileForm(format)
    form.evidence["format"] = "by the first bytes"
    for name, count in Counter(reader.paths(url)).items():
        if count > 1:
            form.left_out[name] = "two columns have this name"
        else:
            form.columns.append(name)
    return form


def _records(url: str) -> FileForm:
    form = FileForm("tfrecord")
    form.evidence["format"] = "by the first record; its rows are tf.Example"
    form.columns = RecordReader(check_utf8=False, bad_rows=0).columns(url) or []
    if not form.columns:
        raise Failure(f"{url} is TFRecord, and its records are no tf.Example. Write tf.Example")
    return form


def require_columns(form: FileForm, names: list[str], url: str) -> None:
    """Raise `Failure` unless a file has the columns."""
    for name in names:
        if form.columns and name not in form.columns:
            raise Failure(f"{url} has no column '{name}'. {did_you_mean(name, form.columns)}")
