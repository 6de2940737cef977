"""The format of files, by their first bytes and lines, and how it is read."""

import csv
import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from tnctl import files, limits
from tnctl.data.column_names import paths_of
from tnctl.data.formats import jsonl_files, text_lines
from tnctl.data.formats.arrow_files import ArrowReader, OrcReader, ParquetReader
from tnctl.data.formats.tfrecord_files import RecordReader
from tnctl.data.formats.word_files import FEATURES, LABEL, VALUES
from tnctl.errors import Failure, quoted, refuse_if
from tnctl.saved_conf import INTERPOLATION, MISSING
from tnctl.starting.conf_text import Settings
from tnctl.tables.text import tfrecords

HEAD_BYTES = 4 << 20
LINES = 1000
AGREEING = 0.9  # the share of lines that have the same form
REMARKS = 5  # the most lines before the rows
CODECS = {b"\x1f\x8b": "gzip", b"\x28\xb5": "zstd"}  # by the first bytes
DELIMITERS = ("\t", ",", ";", "|", "\x01", "~")
NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*")
LABEL_AND_PAIRS = re.compile(r"[+-]?\d+(\.\d+)?([ \t]+[^\s:]+:[^\s:]+(:[^\s:]+)?)+[ \t]*")
PAIRS = re.compile(r"[^\s:]+:\S*[^\s:](\s+[^\s:]+:\S*[^\s:])*\s*")
MOST_NUMBERS = 300  # features that are read as a column each
DENSITY = 0.1  # the least mean share of lines that have a number
MOST_FIELDS = 200


@dataclass
class FileForm:
    """How files are read: their format, other keys of `data`, and the names of the columns.

    `left_out` says of columns that no input can be made of, and why.
    """

    format: str
    evidence: str = ""
    settings: Settings = field(default_factory=dict)
    columns: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)  # the first lines of a file of text

    @property
    def keys(self) -> dict[str, Any]:
        """The values of `settings`."""
        return {key: value for key, (value, _) in self.settings.items()}


def form_of(url: str) -> FileForm:
    """The form of a file. Raises `Failure` for what is empty, damaged or no format of tnctl."""
    form = _recognised(url)
    for name in [name for name in form.columns if not _is_nameable(name)]:
        form.columns.remove(name)
        form.left_out[name] = "no conf can have this name, empty or with ${ in it: rename it"
    return form


def _recognised(url: str) -> FileForm:
    head, is_whole = _head(url)
    if head.startswith(b"PAR1"):
        return _of_columns(url, "parquet", ParquetReader)
    if head.startswith(b"ORC") and re.search(rb"[\x00-\x08]", head):
        return _of_columns(url, "orc", OrcReader)
    framed = tfrecords(head, 1)
    if len(framed.starts) and framed.whole[0]:
        return _records(url)
    head = head.removeprefix(text_lines.BYTE_ORDER_MARK)
    if b"\0" in head:
        raise Failure(
            f"{url} is binary, or text in UTF-16, and no format that tnctl reads. Write it as "
            "Parquet, ORC, TFRecord, or text in UTF-8: CSV, JSON lines, libsvm, Paddle's"
        )
    lines, is_utf8 = _lines(url, head, is_whole)
    form = _of_lines(url, lines)
    form.lines = lines
    if not is_utf8:
        shown = "some text is not UTF-8: its bytes are hashed as they are"
        form.settings["check_utf8"] = (False, shown)
    return form


def _head(url: str) -> tuple[bytes, bool]:
    """The first bytes of a file, decompressed, and whether they are all."""
    with files.open_input(url, decompress=False) as stream:
        codec = CODECS.get(files.read_most(stream, 2))
    named = files.CODECS.get(PurePosixPath(url).suffix)
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
        return FileForm("libsvm", "lines of a label and feature:value")
    if all(PAIRS.fullmatch(line) for line in few):
        return _paddle(few)
    return delimited(url, lines)


def _of_columns(url: str, format: str, reader: type[ArrowReader]) -> FileForm:
    form = FileForm(format, "by the first bytes")
    for name, count in Counter(paths_of(reader.schema_of(url))).items():
        if count > 1:
            form.left_out[name] = "two columns have this name"
        else:
            form.columns.append(name)
    return form


def _records(url: str) -> FileForm:
    columns = RecordReader.stored_columns(url)
    if not columns:
        raise Failure(f"{url} is TFRecord, and its records are no tf.Example. Write tf.Example")
    shown = "by the first record; its rows are tf.Example"
    return FileForm("tfrecord", shown, columns=columns)


# ---- Lines of JSON, and of Paddle's words -----------------------------------------------


def _json(url: str, lines: list[str]) -> FileForm:
    objects = [_object_of(line) for line in lines]
    rows = [values for values in objects if values is not None]
    if len(rows) < AGREEING * len(lines):
        wrong = lines[objects.index(None)]
        raise Failure(
            f"{url} is no JSON lines: {quoted(wrong)} is no object. Write each object on one line"
        )
    form = FileForm("jsonl", "a JSON object a line")
    for name in jsonl_files.paths_of(rows):
        parts = jsonl_files.values_of(name, rows)
        flat = [part for value in parts for part in (value if isinstance(value, list) else [value])]
        if any(isinstance(part, dict | list) for part in flat):
            form.left_out[name] = (
                "an object in some rows, or a list of lists: write one kind of value"
            )
        else:
            form.columns.append(name)
    return form


def _object_of(line: str) -> dict[str, Any] | None:
    """The JSON object on a line; None without one."""
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return values if isinstance(values, dict) else None


def _paddle(lines: list[str]) -> FileForm:
    """Words of slot:value or value:slot: the slots are the same in every line, values are not."""
    words = " ".join(lines).split()
    firsts = dict.fromkeys(word.split(":", 1)[0] for word in words)
    lasts = dict.fromkeys(word.rsplit(":", 1)[1] for word in words)
    slots, pairs = (lasts, "value:slot") if len(lasts) < len(firsts) else (firsts, "slot:value")
    settings = {"pairs": (pairs, f"{len(slots):,} words are of a slot")}
    return FileForm("paddle", "words with a colon", settings, list(slots))


# ---- Lines of libsvm, libfm and libffm: fields, numbers of features, or a bag -----------


@dataclass
class LineFeatures:
    """How the features of lines are read.

    `columns` are read as columns of their own, of which `ids` are ids for certain. `slots` are
    written as they are, with what shows them.
    """

    columns: list[str] = field(default_factory=lambda: [LABEL])
    ids: set[str] = field(default_factory=set)
    slots: dict[str, tuple[dict[str, Any], str]] = field(default_factory=dict)
    evidence: str = "lines of features"

    def add_ids(self, columns: Sequence[str]) -> None:
        """Add columns of ids."""
        self.columns += columns
        self.ids.update(columns)

    def add_bag(self, slot: str, column: str, values: str | None, shown: str) -> None:
        """Add a slot of several features in a row; `values` is the column of their values."""
        weights = {} if values is None else {"weights": values}
        shown = shown if values is None else f"{shown}, with values"
        self.slots[slot] = ({"column": column, **weights, "pooling": "sum"}, shown)


def line_features(lines: Sequence[str]) -> LineFeatures:
    """How the features of the first lines are read."""
    rows = [[_parts(word) for word in line.split()[1:]] for line in lines]
    if any(parts and parts[0][0] for parts in rows):
        return _of_fields(rows)
    result = LineFeatures()
    ones = all(value in ("1", "1.0") for parts in rows for _, _, value in parts)
    width = len(rows[0])
    if ones and width <= MOST_FIELDS and all(len(parts) == width for parts in rows):
        fields = [{parts[index][1] for parts in rows} for index in range(width)]
        if sum(map(len, fields)) == len(set().union(*fields)):  # no feature in two fields
            result.add_ids([*map(str, range(1, width + 1))])
            result.evidence = f"each line has {width} features, one of each field"
            return result
    features = Counter(feature for parts in rows for _, feature, _ in parts)
    density = sum(features.values()) / max(len(features) * len(rows), 1)
    if not ones and len(features) <= MOST_NUMBERS and density >= DENSITY:
        order = sorted(features, key=lambda name: (len(name), name))
        result.columns += [f"{feature}:" for feature in order]
        result.evidence = f"{len(features)} features, numbers, in {density:.0%} of lines"
        return result
    shown = f"{len(features):,} features in {len(rows):,} lines"
    result.add_bag("features", FEATURES, None if ones else VALUES, shown)
    return result


def _parts(word: str) -> tuple[str, str, str]:
    """The field (empty without one), the feature and the value of a word."""
    *fields, feature, value = word.split(":", 2) if ":" in word else (word, "1")
    return fields[0] if fields else "", feature, value


def _of_fields(rows: list[list[tuple[str, str, str]]]) -> LineFeatures:
    """libffm: a column for each field; a number where a field has one feature and many values."""
    names = sorted({name for parts in rows for name, _, _ in parts if name.isdecimal()}, key=int)
    result = LineFeatures(evidence=f"libffm: {len(names)} fields")
    for name in names:
        parts = [part for row in rows for part in row if part[0] == name]
        features = {feature for _, feature, _ in parts}
        values = {value for _, _, value in parts}
        if len(features) == 1 and len(values) > 1:
            result.columns.append(f"{name}.{VALUES}")
        elif values <= {"1", "1.0"}:
            result.add_ids([name])
        else:
            result.add_bag(f"field_{name}", name, f"{name}.{VALUES}", f"{len(features):,} features")
    return result


# ---- CSV and its kin ----------------------------------------------------------------------


def delimited(url: str, lines: list[str]) -> FileForm:
    """How lines of values are read. Raises `Failure` when they are no table."""
    delimiter, width, rows = _delimiter(url, lines)
    refuse_if(
        width > limits.ROW_VALUES, f"{url} has {width:,} columns, too many for a row", Failure
    )
    form = FileForm("csv")
    form.settings["delimiter"] = (delimiter, f"{width:,} values in nearly every line")
    skipped = next((at for at, row in enumerate(rows) if row is not None and len(row) == width), 0)
    if 0 < skipped <= REMARKS:
        form.settings["skip_rows"] = (skipped, f"the first line is {quoted(lines[0])}")
    table = [row for row in rows if row is not None and len(row) == width]
    if padded := _padded_value(table):
        form.settings["strip"] = (True, f"blanks around values, such as {quoted(padded)}")
        table = [[value.strip(" \t") for value in row] for row in table]
    _name_columns(form, table)
    return form


def _delimiter(url: str, lines: list[str]) -> tuple[str, int, list[list[str] | None]]:
    """The delimiter, the number of values that most lines have, and the lines cut by it."""
    colons = [":"] if sum("::" in line for line in lines) > AGREEING * len(lines) else []
    for signs in (DELIMITERS, (*colons, " ")):
        agreeing = []
        for sign in signs:
            rows = [_split_line(line, sign) for line in lines]
            counts = Counter(len(row) for row in rows if row is not None)
            width, number = counts.most_common(1)[0] if counts else (0, 0)
            if width > 1 and number >= AGREEING * len(lines):
                # A separator inside of values is in no header.
                in_first = rows[0] is not None and len(rows[0]) == width
                agreeing.append((in_first, width, -signs.index(sign), sign, rows))
        if agreeing:
            _, width, _, sign, cut = max(agreeing, key=lambda candidate: candidate[:3])
            return sign, width, cut
    raise Failure(
        f"{url} is no table that tnctl recognises: its lines have no delimiter in common (the "
        f"first is {quoted(lines[0])}). One column is not enough: a row has a label and inputs"
    )


def _split_line(line: str, delimiter: str) -> list[str] | None:
    """The values of a line, as the reader of CSV takes them; None where quotes are open."""
    if delimiter == "\t":
        return line.split("\t")
    try:
        csv.field_size_limit(max(csv.field_size_limit(), len(line)))
        return next(csv.reader([line], delimiter=delimiter, strict=True))
    except csv.Error:
        return None


def _padded_value(table: list[list[str]]) -> str | None:
    """A value with blanks around it, where most values of a column have some."""
    rows = table[1:] or table
    for column in zip(*rows, strict=True):
        padded = [value for value in column if value != value.strip(" \t")]
        if len(padded) > 0.5 * len(rows):
            return padded[0]
    return None


def _name_columns(form: FileForm, table: list[list[str]]) -> None:
    first = table[0]
    rest = [row for row in table if row != first]  # joined files have several headers
    if not _is_header(first, rest):
        form.columns = [f"c{position}" for position in range(1, len(first) + 1)]
        form.settings |= {
            "header": (False, f"the first line is a row: {quoted(','.join(first))}"),
            "columns": (form.columns, "names of tnctl's making: write your own"),
        }
        return
    form.columns = first
    if len(set(first)) < len(first) or not all(map(_is_nameable, first)):
        # The header cannot name the columns; names in the conf can.
        form.columns = [
            name if _is_nameable(name) and first.index(name) == index else f"column_{index + 1}"
            for index, name in enumerate(first)
        ]
        shown = "the header has names twice, or ones that no conf can have"
        form.settings |= {
            "header": (False, ""),
            "columns": (form.columns, shown),
            "skip_rows": (form.keys.get("skip_rows", 0) + 1, "the header"),
        }


def _is_header(first: list[str], rest: list[list[str]]) -> bool:
    """Whether a line names columns: no number, and few values of the rows under it."""
    if any(NUMBER.fullmatch(value) for value in first):
        return False
    if first.count("") > 1:  # tables of pandas have one empty name
        return False
    columns = zip(first, zip(*rest, strict=True), strict=False)
    return 4 * sum(name in column for name, column in columns) < len(first)


def _is_nameable(column: str) -> bool:
    """Whether a conf can name a column: a text with ${ names another value of the conf."""
    return bool(column) and column != MISSING and INTERPOLATION not in column
