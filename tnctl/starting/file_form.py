"""The format of files, by their first bytes and lines, and how it is read."""

import csv
import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tnctl import files, limits
from tnctl.data.column_names import paths_of
from tnctl.data.formats import jsonl_files, text_lines
from tnctl.data.formats.arrow_files import OrcReader, ParquetReader
from tnctl.data.formats.tfrecord_files import RecordReader
from tnctl.data.formats.word_files import FEATURES, LABEL, VALUES
from tnctl.errors import Failure, quoted, refuse_if
from tnctl.saved_conf import INTERPOLATION, MISSING
from tnctl.tables.text import tfrecords

HEAD_BYTES = 4 << 20
LINES = 1000
AGREEING = 0.9  # the share of lines that have the same form
REMARKS = 5  # the most lines before the rows
DELIMITERS = ("\t", ",", ";", "|", "\x01", "~")
NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*")
LABEL_AND_PAIRS = re.compile(r"[+-]?\d+(\.\d+)?([ \t]+[^\s:]+:[^\s:]+(:[^\s:]+)?)+[ \t]*")
PAIRS = re.compile(r"[^\s:]+:\S*[^\s:](\s+[^\s:]+:\S*[^\s:])*\s*")
ONES = {"1", "1.0"}
MOST_NUMBERS = 300  # features that are read as a column each
DENSITY = 0.1  # the least mean share of lines that have a number
MOST_FIELDS = 200
Settings = dict[str, tuple[Any, str]]  # values by key, each with what shows it (empty: nothing)


@dataclass
class FileForm:
    """How files are read: their format, other keys of `data`, and the names of the columns.

    `left_out` says of columns that no input can be made of, and why. Of features in lines `ids`
    are columns of ids, and `bags` slots of several features in a row, with what shows them.
    """

    format: str
    evidence: str = ""
    settings: Settings = field(default_factory=dict)
    columns: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    ids: set[str] = field(default_factory=set)
    bags: Settings = field(default_factory=dict)

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
        return _of_columns("parquet", paths_of(ParquetReader.schema_of(url)))
    if head.startswith(b"ORC") and re.search(rb"[\x00-\x08]", head):
        return _of_columns("orc", paths_of(OrcReader.schema_of(url)))
    framed = tfrecords(head, 1)
    if len(framed.starts) and framed.whole[0]:
        columns = RecordReader.stored_columns(url)
        refuse_if(
            not columns,
            f"{url} is TFRecord, and its records are no tf.Example. Write tf.Example",
            Failure,
        )
        shown = "by the first record; its rows are tf.Example"
        return FileForm("tfrecord", shown, columns=columns)
    head = head.removeprefix(text_lines.BYTE_ORDER_MARK)
    signatures = text_lines.SIGNATURES
    what = "binary, or text in UTF-16. Write Parquet, ORC, TFRecord, or text in UTF-8"
    what = next((signatures[start] for start in signatures if head.startswith(start)), what)
    refuse_if(b"\0" in head or what in signatures.values(), f"{url} is {what}", Failure)
    lines, is_utf8 = _lines(url, head, is_whole)
    form = _of_lines(url, lines)
    if not is_utf8:
        shown = "some text is not UTF-8: its bytes are hashed as they are"
        form.settings["check_utf8"] = (False, shown)
    return form


def _head(url: str) -> tuple[bytes, bool]:
    """The first bytes of a file, decompressed, and whether they are all."""
    with files.open_input(url) as stream:
        head = files.read_most(stream, HEAD_BYTES + 1)
    refuse_if(not head, f"{url} is empty. Name a file with rows", Failure)
    return head[:HEAD_BYTES], len(head) <= HEAD_BYTES


def _lines(url: str, head: bytes, is_whole: bool) -> tuple[list[str], bool]:
    """The first lines that are not empty, and whether they are UTF-8."""
    whole = head if is_whole else head[: head.rfind(b"\n") + 1]
    raw = [line.rstrip(b"\r") for line in whole.split(b"\n", LINES)[:LINES] if line.strip()]
    limit = limits.mebibytes(HEAD_BYTES)
    wrong = "has only empty lines" if is_whole else f"has a first line longer than {limit}"
    refuse_if(not raw, f"{url} {wrong}. Write one row a line", Failure)
    is_utf8 = all(map(text_lines.is_utf8, raw))
    return [line.decode("utf-8" if is_utf8 else "latin-1") for line in raw], is_utf8


def _of_lines(url: str, lines: list[str]) -> FileForm:
    first, few = lines[0].lstrip(), lines[:100]
    if first.startswith("{"):
        return _json(url, lines)
    refuse_if(
        first[0] in "[<",
        f"{url} is a JSON list, HTML or XML ({quoted(first)}). Write one object a line (JSON "
        "lines), or CSV",
        Failure,
    )
    if all(map(LABEL_AND_PAIRS.fullmatch, few)):
        return _features(lines)
    if all(map(PAIRS.fullmatch, few)):
        return _paddle(few)
    return delimited(url, lines)


def _of_columns(format: str, names: Sequence[str]) -> FileForm:
    counts = Counter(names)
    left_out = {name: "two columns have this name" for name in counts if counts[name] > 1}
    columns = [name for name in counts if name not in left_out]
    return FileForm(format, "by the first bytes", columns=columns, left_out=left_out)


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
        values = jsonl_files.values_of(name, rows)
        parts = [part for v in values for part in (v if isinstance(v, list) else [v])]
        if any(isinstance(part, dict | list) for part in parts):
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


def _features(lines: Sequence[str]) -> FileForm:
    """How the features of lines are read: as columns of ids or numbers, or as bags."""
    rows = [list(map(_parts, line.split()[1:])) for line in lines]
    if any(parts and parts[0][0] for parts in rows):
        return _of_fields(rows)
    form = FileForm("libsvm", columns=[LABEL])
    are_ones = all(value in ONES for parts in rows for _, _, value in parts)
    width = len(rows[0])
    if are_ones and width <= MOST_FIELDS and all(len(parts) == width for parts in rows):
        fields = [{parts[index][1] for parts in rows} for index in range(width)]
        if sum(map(len, fields)) == len(set().union(*fields)):  # no feature in two fields
            form.columns += map(str, range(1, width + 1))
            form.ids.update(form.columns[1:])
            form.evidence = f"each line has {width} features, one of each field"
            return form
    features = Counter(feature for parts in rows for _, feature, _ in parts)
    density = features.total() / (len(features) * len(rows))
    if not are_ones and len(features) <= MOST_NUMBERS and density >= DENSITY:
        order = sorted(features, key=lambda name: (len(name), name))
        form.columns += [f"{name}:" for name in order]
        form.evidence = f"{len(features)} features, numbers, in {density:.0%} of lines"
        return form
    form.evidence = "lines of features"
    weights = {} if are_ones else {"weights": VALUES}
    shown = f"{len(features):,} features in {len(rows):,} lines"
    form.bags["features"] = ({"column": FEATURES, **weights, "pooling": "sum"}, shown)
    return form


def _parts(word: str) -> tuple[str, str, str]:
    """The field (empty without one), the feature and the value of a word."""
    *fields, feature, value = word.split(":", 2) if ":" in word else (word, "1")
    return "".join(fields), feature, value


def _of_fields(rows: list[list[tuple[str, str, str]]]) -> FileForm:
    """libffm: a column for each field; a number where a field has one feature and many values."""
    by_field: dict[str, list[list[str]]] = {}
    for name, *part in (parts for row in rows for parts in row):
        if name.isdecimal():
            by_field.setdefault(name, []).append(part)
    form = FileForm("libsvm", f"libffm: {len(by_field)} fields", columns=[LABEL])
    for name in sorted(by_field, key=int):
        features, values = map(set, zip(*by_field[name], strict=True))
        weights = f"{name}.{VALUES}"
        if len(features) == 1 and len(values) > 1:
            form.columns.append(weights)
        elif values <= ONES:
            form.columns.append(name)
            form.ids.add(name)
        else:
            settings = {"column": name, "weights": weights, "pooling": "sum"}
            form.bags[f"field_{name}"] = (settings, f"{len(features):,} features, with values")
    return form


# ---- CSV and its kin ----------------------------------------------------------------------


def delimited(url: str, lines: list[str]) -> FileForm:
    """How lines of values are read. Raises `Failure` when they are no table."""
    delimiter, width, rows = _delimiter(url, lines)
    refuse_if(
        width > limits.ROW_VALUES, f"{url} has {width:,} columns, too many for a row", Failure
    )
    form = FileForm("csv")
    form.settings["delimiter"] = (delimiter, f"{width:,} values in nearly every line")
    table = [row for row in rows if len(row) == width]
    skipped = rows.index(table[0])
    if 0 < skipped <= REMARKS:
        form.settings["skip_rows"] = (skipped, f"the first line is {quoted(lines[0])}")
    if padded := _padded_value(table):
        form.settings["strip"] = (True, f"blanks around values, such as {quoted(padded)}")
        table = [[value.strip(" \t") for value in row] for row in table]
    _name_columns(form, table)
    return form


def _delimiter(url: str, lines: list[str]) -> tuple[str, int, list[list[str]]]:
    """The delimiter, the number of values that most lines have, and the lines cut by it."""
    least = AGREEING * len(lines)
    colons = [":"] if sum("::" in line for line in lines) > least else []
    for signs in (DELIMITERS, (*colons, " ")):
        agreeing = []
        for index, sign in enumerate(signs):
            rows = [_split_line(line, sign) for line in lines]
            [(width, number)] = Counter(map(len, rows)).most_common(1)
            if width > 1 and number >= least:
                # A separator inside of values is in no header.
                agreeing.append((len(rows[0]) == width, width, -index, sign, rows))
        if agreeing:
            _, width, _, sign, rows = max(agreeing, key=lambda candidate: candidate[:3])
            return sign, width, rows
    raise Failure(
        f"{url} is no table that tnctl recognises: its lines have no delimiter in common (the "
        f"first is {quoted(lines[0])}). One column is not enough: a row has a label and inputs"
    )


def _split_line(line: str, delimiter: str) -> list[str]:
    """The values of a line, as the reader of CSV takes them; none where quotes are open."""
    if delimiter == "\t":
        return line.split("\t")
    try:
        csv.field_size_limit(max(csv.field_size_limit(), len(line)))
        return next(csv.reader([line], delimiter=delimiter, strict=True))
    except csv.Error:
        return []


def _padded_value(table: list[list[str]]) -> str | None:
    """A value with blanks around it, where most values of a column have some."""
    for column in zip(*(table[1:] or table), strict=True):
        padded = [value for value in column if value != value.strip(" \t")]
        if len(padded) > 0.5 * len(column):
            return padded[0]
    return None


def _name_columns(form: FileForm, table: list[list[str]]) -> None:
    first = table[0]
    rest = [row for row in table if row != first]  # joined files have several headers
    if not _is_header(first, rest):
        form.columns = [f"c{index}" for index in range(1, len(first) + 1)]
        form.settings |= {
            "header": (False, f"the first line is a row: {quoted(','.join(first))}"),
            "columns": (form.columns, "names of tnctl's making: write your own"),
        }
        return
    form.columns = [
        name if _is_nameable(name) and first.index(name) == index else f"column_{index + 1}"
        for index, name in enumerate(first)
    ]
    if form.columns != first:  # the header cannot name the columns; names in the conf can
        shown = "the header has names twice, or ones that no conf can have"
        form.settings |= {
            "header": (False, ""),
            "columns": (form.columns, shown),
            "skip_rows": (form.keys.get("skip_rows", 0) + 1, "the header"),
        }


def _is_header(first: list[str], rest: list[list[str]]) -> bool:
    """Whether a line names columns: no number, and few values of the rows under it."""
    # Tables of pandas have one empty name.
    if any(map(NUMBER.fullmatch, first)) or first.count("") > 1:
        return False
    columns = zip(first, zip(*rest, strict=True), strict=False)
    return 4 * sum(name in column for name, column in columns) < len(first)


def _is_nameable(column: str) -> bool:
    """Whether a conf can name a column: a text with ${ names another value of the conf."""
    return bool(column) and column != MISSING and INTERPOLATION not in column
