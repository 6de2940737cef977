"""CSV and its kin, by the first lines: delimiter, header, names, lines before them, blanks."""

import csv
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tnctl import limits
from tnctl.errors import Failure, quoted, refuse_if
from tnctl.saved_conf import INTERPOLATION, MISSING

DELIMITERS = ("\t", ",", ";", "|", "\x01", "~")
SHOWN = {"\t": "a tab", ",": "a comma", ";": "a semicolon", "|": "|", " ": "a blank", "\x01": "^A"}
AGREEING = 0.9  # the share of lines that have the same number of values
REMARKS = 5  # the most lines before the rows
NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*")
HEXADECIMAL = re.compile(r"[0-9a-f]{8}")


@dataclass
class Delimited:
    """Keys of `data` for CSV, what shows each, and the names of the columns."""

    keys: dict[str, Any] = field(default_factory=dict)
    evidence: dict[str, str] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)


def split_line(line: str, delimiter: str) -> list[str] | None:
    """The values of a line, as the reader of CSV takes them; None where quotes are open."""
    if delimiter == "\t":
        return line.split("\t")
    try:
        csv.field_size_limit(max(csv.field_size_limit(), len(line)))
        return next(csv.reader([line], delimiter=delimiter, strict=True))
    except csv.Error:
        return None


def delimited(url: str, lines: list[str]) -> Delimited:
    """How the lines of a file are read. Raises `Failure` when they are no table."""
    delimiter, width, rows = _delimiter(url, lines)
    refuse_if(
        width > limits.ROW_VALUES, f"{url} has {width:,} columns, too many for a row", Failure
    )
    form = Delimited({"delimiter": delimiter})
    shown = SHOWN.get(delimiter, delimiter)
    form.evidence["delimiter"] = f"{shown}: {width:,} values in nearly every line"
    skipped = next((at for at, row in enumerate(rows) if row is not None and len(row) == width), 0)
    skipped = skipped if skipped <= REMARKS else 0
    if skipped:
        form.keys["skip_rows"] = skipped
        form.evidence["skip_rows"] = f"the first line is {quoted(lines[0])}"
    table = [row for row in rows[skipped:] if row is not None and len(row) == width]
    if blanks := _has_blanks(table):
        form.keys["strip"] = True
        form.evidence["strip"] = f"blanks around values, such as {quoted(blanks)}"
        table = [[value.strip(" \t") for value in row] for row in table]
    # Files that were joined have their header again and again.
    others = [row for row in table[1:] if row != table[0]]
    _name_columns(form, [table[0], *others] if others else table)
    return form


def _delimiter(url: str, lines: list[str]) -> tuple[str, int, list[list[str] | None]]:
    """The delimiter, the number of values that most lines have, and the lines cut by it."""
    candidates = list(DELIMITERS)
    fallbacks = [":"] if sum("::" in line for line in lines) > AGREEING * len(lines) else []
    for signs in (candidates, [*fallbacks, " "]):
        agreeing = []
        for sign in signs:
            rows = [split_line(line, sign) for line in lines]
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


def _has_blanks(table: list[list[str]]) -> str | None:
    """A value with blanks around it, where most values of a column have some."""
    rows = table[1:] or table
    for column in zip(*rows, strict=True):
        padded = [value for value in column if value != value.strip(" \t")]
        if len(padded) > 0.5 * len(rows):
            return padded[0]
    return None


def is_nameable(column: str) -> bool:
    """Whether a conf can name a column: a text with ${ names another value of the conf."""
    return bool(column) and column != MISSING and INTERPOLATION not in column


def _name_columns(form: Delimited, table: list[list[str]]) -> None:
    first, rest = table[0], table[1:]
    if not _is_header(first, rest):
        form.keys["header"] = False
        form.evidence["header"] = f"the first line is a row: {quoted(','.join(first))}"
        form.keys["columns"] = form.names = _layout_of(table) or [
            f"c{number + 1}" for number in range(len(first))
        ]
        form.evidence["columns"] = "names of tnctl's making: write your own"
        if "I1" in form.names:
            form.evidence["columns"] = "the layout of Criteo's logs"
        return
    form.names = first
    if len(set(first)) < len(first) or not all(map(is_nameable, first)):
        # The header cannot name the columns; names in the conf can.
        form.names = _distinct(first)
        form.keys["header"] = False
        form.keys["columns"] = form.names
        form.keys["skip_rows"] = form.keys.get("skip_rows", 0) + 1
        form.evidence["columns"] = "the header has names twice, or ones that no conf can have"
        form.evidence["skip_rows"] = "the header"


def _is_header(first: list[str], rest: list[list[str]]) -> bool:
    """Whether a line names columns: no number in it, and no value of the rows under it."""
    filled = [value for value in first if value]
    if not filled or any(NUMBER.fullmatch(value) for value in filled):
        return False
    if len(filled) < len(first) - 1:  # tables of pandas have one empty name
        return False
    signs = [_sign_of_header(name, [row[at] for row in rest]) for at, name in enumerate(first)]
    return signs.count(-1) * 4 < len(first) and sum(signs) * 2 >= len(first)


def _sign_of_header(name: str, column: list[str]) -> int:
    """What a column says of a name above it: 1 for a header, -1 against it, 0 nothing."""
    if name in column:
        return -1
    if not column or sum(bool(NUMBER.fullmatch(value)) for value in column) > 0.5 * len(column):
        return 1
    # A value that is new among few, or of another form than all of them.
    return int(len(set(column)) * 5 < len(column) or _shape(name) not in map(_shape, column))


def _shape(value: str) -> str:
    return re.sub(r"[^\W\d_]+", "a", re.sub(r"\d+", "9", value))


def _layout_of(table: list[list[str]]) -> list[str] | None:
    """The names of Criteo's columns, for lines that look like its own."""
    row_width = 40
    categories = [value for row in table[:100] for value in row[14:] if value]
    if (
        len(table[0]) == row_width
        and all(HEXADECIMAL.fullmatch(value) for value in categories)
        and all(row[0] in ("0", "1") for row in table)
    ):
        return ["label", *(f"I{k}" for k in range(1, 14)), *(f"C{k}" for k in range(1, 27))]
    return None


def _distinct(names: list[str]) -> list[str]:
    """Names, each once: those no conf can have by their place, repeated ones with a number."""
    taken: set[str] = set()
    result = []
    for place, name in enumerate(names, 1):
        base = name if is_nameable(name) else f"column_{place}"
        free, number = base, 1
        while free in taken:
            number += 1
            free = f"{base}_{number}"
        taken.add(free)
        result.append(free)
    return result
