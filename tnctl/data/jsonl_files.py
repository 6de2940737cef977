"""JSON lines: one object a line, its keys the columns.

Arrow parses whole blocks; it wants the type of every column beforehand, which the first lines of
the block tell. A block that it refuses is read line by line, which finds the bad row, or takes
what differs in type from line to line.

In a column of ids a number with a point is a bad row: with it, Arrow would take the integers of the
whole block for such numbers.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.json

from tnctl import limits
from tnctl.data import lines
from tnctl.data.bad_rows import BadRowsError
from tnctl.data.parts import parts
from tnctl.data.reading import (
    BadRows,
    Piece,
    id_columns,
    numeric_columns,
    slot_columns,
    tell_absent,
)
from tnctl.errors import quoted
from tnctl.schema import Conf, Data

SAMPLE = 64  # lines of a block that tell its types
Cutter = Callable[[str | bytes], list[Any] | None]


def pieces(conf: Conf, url: str, needed: list[str], skip_rows: int) -> Iterator[Piece]:
    """The rows of one file, in order, with the columns `needed`; a missing key is null.

    Raises `Failure` naming the file and the line.
    """
    bad = BadRows(conf)
    of_ids, cuts = id_columns(conf), cutters(conf)
    for line, view in lines.blocks(url, skip_rows):
        block = bytes(view)
        rows = [
            (number, text)
            for number, text in enumerate(block.split(b"\n"), line)
            if text and not text.isspace()
        ]
        whole = len(rows)
        rows = _without_long(url, rows, bad)
        if not rows:
            continue
        heads = map(parsed, (text for _, text in rows[:SAMPLE]))
        sample = [found for found in heads if found is not None]
        if sample:
            tell_absent(
                url,
                needed,
                [any(one.get(name) is not None for one in sample) for name in needed],
                lambda found=sample: {key for one in found for key in one},  # type: ignore[misc]
            )
        table = None
        # Arrow takes the line `null` for an object without keys, and dies of one that comes first.
        if whole == len(rows) and all(text.lstrip().startswith(b"{") for _, text in rows):
            table = _by_arrow(block, len(rows), sample, needed, of_ids)
        if table is None:
            table, rows = _one_by_one(url, rows, needed, of_ids, cuts, bad)
        yield bad.piece(table, lambda row, kept=rows: (url, kept[row][0]))  # type: ignore[misc]


def _without_long(url: str, rows: list[tuple[int, bytes]], bad: BadRows) -> list[tuple[int, bytes]]:
    """The rows that have no more values than a row may have, by their commas."""
    # So many commas take at least as many bytes.
    commas = {
        number: count
        for number, text in rows
        if len(text) > limits.ROW_VALUES and (count := text.count(b",")) >= limits.ROW_VALUES
    }
    if commas:
        number, count = next(iter(commas.items()))
        bad.add(
            f"{url}, line {number}: {count + 1:,} values, by its commas, and a row has at most "
            f"{limits.ROW_VALUES:,}. Split or remove the line",
            len(commas),
        )
        return [row for row in rows if row[0] not in commas]
    return rows


def _by_arrow(
    block: bytes, n: int, sample: list[dict[str, Any]], needed: list[str], of_ids: set[str]
) -> pa.Table | None:
    """The rows of a block, or None when Arrow does not take it as the sample has its types."""
    try:
        block.decode()  # Arrow does not look
        kinds = [_kind([one.get(name) for one in sample], name in of_ids) for name in needed]
        schema = pa.schema(list(zip(needed, kinds, strict=True)))
        table = pyarrow.json.read_json(
            pa.BufferReader(block),
            pyarrow.json.ReadOptions(use_threads=False, block_size=max(len(block), 1) + 1),
            pyarrow.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
        )
    except (ValueError, OverflowError, pa.ArrowException):
        return None
    # Arrow also takes several objects on a line.
    return table.select(needed) if table.num_rows == n else None


def _kind(values: list[Any], of_ids: bool) -> pa.DataType:
    """The type of a column. Raises `ValueError` or `OverflowError` where there is none for it."""
    kind = pa.array(values).type
    value = kind.value_type if pa.types.is_list(kind) else kind
    if pa.types.is_nested(value):
        raise ValueError(kind)
    if of_ids and (pa.types.is_floating(value) or pa.types.is_boolean(value)):
        raise ValueError(kind)
    if pa.types.is_null(kind):
        return pa.string()
    if pa.types.is_list(kind) and pa.types.is_null(kind.value_type):
        return pa.list_(pa.string())
    return kind


def _one_by_one(
    url: str,
    rows: list[tuple[int, bytes]],
    needed: list[str],
    of_ids: set[str],
    cuts: Mapping[str, Cutter],
    bad: BadRows,
) -> tuple[pa.Table, list[tuple[int, bytes]]]:
    """The rows that are objects, as a table, and which they are."""
    found, kept = [], []
    for number, text in rows:
        values = parsed(text)
        if values is None:
            way = "Mend or remove the line"
            if number == 1:
                way += ", or give the format that the file has (data.format; to score format=)"
            bad.add(f"{url}, line {number}: no JSON object: {quoted(text)}. {way}")
            continue
        complaints = (
            (name, _complaint(values.get(name), name in of_ids, cuts.get(name))) for name in needed
        )
        if wrong := next((one for one in complaints if one[1]), None):
            bad.add(f"{url}, line {number}, column '{wrong[0]}': {wrong[1]}")
            continue
        found.append(values)
        kept.append((number, text))
    columns = [array([values.get(name) for values in found], cuts.get(name)) for name in needed]
    return pa.table(columns, names=needed), kept


def parsed(text: bytes) -> dict[str, Any] | None:
    """The object on a line, or None when there is none."""
    try:
        values = json.loads(text.decode())
    except (ValueError, RecursionError):
        return None
    return values if isinstance(values, dict) else None


def _complaint(value: Any, of_ids: bool, cut: Cutter | None = None) -> str | None:
    """What is wrong with a value that is none, nor a list of those, that columns are made of."""
    if isinstance(value, list):
        if any(isinstance(part, list) for part in value):
            return "a list in a list. Write one list of all values"
        return next((found for part in value if (found := _complaint(part, of_ids))), None)
    if isinstance(value, dict):
        return "an object where a value should be. Write its values as columns of their own"
    if isinstance(value, str):
        if not any("\ud800" <= character <= "\udfff" for character in value):
            # So that it does not matter whether other rows have lists.
            if cut is not None and cut(value) is None:
                return (
                    f"{quoted(value)} is not a JSON list of values. Mend it, or add it to "
                    "data.missing"
                )
            return None
        return f"{quoted(value)} has half of a surrogate pair, which is no character. Mend the text"
    if of_ids and isinstance(value, float | bool):
        return (
            f"{json.dumps(value)} is no id, which are texts and integers. Mend the line, write it "
            "as text, or read the column as numbers (ids=boundaries or quantiles, or numeric)"
        )
    # A number that is no id may be of any size: it becomes a float, as in text.
    if of_ids and isinstance(value, int) and abs(value) >= 2**64:
        return f"{quoted(str(value))} has more than 64 bits. Write it as text"
    return None


def array(values: list[Any], cut: Cutter | None = None) -> pa.Array:
    """A column; where types differ from row to row, integers become their text, or floats.

    Where some rows have lists, the texts of the others are `cut`, as they are where none has.
    """
    if cut is not None and any(isinstance(value, list) for value in values):
        values = [_cut(value, cut) for value in values]
    for convert in (_same, _as_lists, _as_texts):
        try:
            return pa.array(convert(values))
        except (ValueError, OverflowError, pa.ArrowException):
            continue
    return pa.array(_as_texts(_as_lists(values)))


def _cut(value: Any, cut: Cutter) -> Any:
    parts = cut(value) if isinstance(value, str | bytes) else None
    return value if parts is None else parts


def cutters(conf: Conf) -> dict[str, Cutter]:
    """What cuts a text at the separator of its column; None for what is no JSON list.

    Not of a column that is read with several separators, or with and without one.
    """
    found: dict[str, set[str | None]] = {}
    for name, slot in conf.slots.items():
        for column in slot_columns(conf, name, slot):
            found.setdefault(column, set()).add(slot.separator)
    for name, numeric in conf.numeric.items():
        for column in numeric_columns(name, numeric):
            found.setdefault(column, set()).add(numeric.separator)
    of_ids = id_columns(conf)
    return {
        column: partial(_parts_of, separator, conf.data, column not in of_ids)
        for column, separators in found.items()
        for separator in separators
        if separator is not None and len(separators) == 1
    }


def _parts_of(separator: str, data: Data, fractions: bool, text: str | bytes) -> list[Any] | None:
    try:
        found = parts(pa.array([text]), separator, data, "", lambda row: ("", row), fractions)
    except BadRowsError:
        return None
    return [
        one.decode("utf-8", "surrogateescape")
        if isinstance(one, bytes) and isinstance(text, str)
        else one
        for one in found.values.to_pylist()
    ]


def _same(values: list[Any]) -> list[Any]:
    return values


def _as_lists(values: list[Any]) -> list[Any]:
    if not any(isinstance(value, list) for value in values):
        return values
    return [value if isinstance(value, list | None) else [value] for value in values]


def _as_texts(values: list[Any]) -> list[Any]:
    return [_as_text(value) for value in values]


def _as_text(value: Any) -> Any:
    if isinstance(value, list):
        return [_as_text(part) for part in value]
    return value if isinstance(value, str | None) else json.dumps(value)
