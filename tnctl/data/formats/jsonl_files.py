"""JSON lines: one object a line, its keys the columns, and within objects by path.

Arrow parses whole blocks; it wants the type of every column beforehand, which the first lines of
the block tell. A block that it refuses is read line by line, which finds the bad row, or takes
what differs in type from line to line.

In a column of ids a number with a point is a bad row: with it, Arrow would take the integers of the
whole block for such numbers.

A path is the names that lead to a value, with dots between, as of nested Arrow columns: a name
leads into an object, also through lists, where it is the list of this value of each object. A key
that has dots itself is meant before any path.
"""

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from tnctl import limits
from tnctl.data.bad_rows import BadRowsError
from tnctl.data.column_names import DEEPEST, DOT, id_columns, separators
from tnctl.data.file_pieces import FileFaults, Line, Tables, TextReader, at_lines, report_absent
from tnctl.data.formats import text_lines
from tnctl.data.numbers import row_values
from tnctl.errors import quoted
from tnctl.schema import Conf, Data

MOST_KEYS = 300  # of an object whose keys are columns
Row = Mapping[str, Any]
Lookup = Callable[[Row], Any]


def paths_of(rows: Sequence[Row]) -> list[str]:
    """The keys of objects; instead of objects, and lists of them, all that is in them."""
    paths = dict.fromkeys(
        path for row in rows for key in row for path in _paths(key, row[key], DEEPEST)
    )
    paths = dict.fromkeys(_of_columns(paths))
    above = {start for path in paths for start in _starts(path)}
    # What has an object in some rows, and nothing in others, is no column itself.
    return [p for p in paths if p not in above or any(map(_is_value, values_of(p, rows)))]


def _starts(path: str) -> list[str]:
    """The paths of the objects that a path leads through."""
    return [path[:at] for at, sign in enumerate(path) if sign == DOT]


def _of_columns(paths: Collection[str]) -> Iterator[str]:
    """The paths, but of an object with very many keys, which is a map, its own."""
    counts = Counter(start for path in paths for start in _starts(path))
    for path in paths:
        yield next((start for start in _starts(path) if counts[start] > MOST_KEYS), path)


def _is_value(value: Any) -> bool:
    return value is not None and value != [] and not _objects(value)


def _paths(path: str, value: Any, depth: int) -> Iterator[str]:
    objects = _objects(value)
    if depth and objects:
        keys = dict.fromkeys(key for inner in objects for key in inner)
        for key in (key for key in keys if DOT not in key):  # no path leads to another
            for inner in objects:
                if key in inner:
                    yield from _paths(f"{path}{DOT}{key}", inner[key], depth - 1)
    else:
        yield path


def _objects(value: Any) -> list[Row]:
    """The value if it is an object; those in it if it is a list of objects."""
    values = [v for v in (value if isinstance(value, list) else [value]) if v is not None]
    return values if values and all(isinstance(part, dict) for part in values) else []


def lookup(path: str) -> Lookup:
    """What finds the value of a path in an object: None where the path does not lead to one."""
    parts = path.split(DOT)
    if len(parts) == 1 or len(parts) > DEEPEST:
        return lambda row: row.get(path)
    starts = [(DOT.join(parts[:count]), parts[count:]) for count in range(len(parts), 0, -1)]

    def value(row: Row) -> Any:
        for start, fields in starts:
            if start in row:
                return _within(row[start], fields)
        return None

    return value


def values_of(path: str, rows: Sequence[Row]) -> list[Any]:
    """The value of a path in each row."""
    return list(map(lookup(path), rows))


def _within(value: Any, fields: Sequence[str]) -> Any:
    if not fields:
        return value
    if isinstance(value, list):
        # A list in a list stays one, which is refused.
        within = [part if isinstance(part, list) else _within(part, fields) for part in value]
        return [
            v
            for part, inner in zip(value, within, strict=True)
            for v in (inner if isinstance(inner, list) and inner is not part else [inner])
        ]
    return _within(value.get(fields[0]), fields[1:]) if isinstance(value, dict) else None


def schema_of(kinds: Mapping[str, pa.DataType], sample: Sequence[Row], text: bytes) -> pa.Schema:
    """The schema by which Arrow reads the paths from `text`, whose first rows are a `sample`.

    Raises ValueError where it cannot: through lists, and where a key may have dots itself.
    """
    fields: dict[str, Any] = {}
    for path, kind in kinds.items():
        parts = path.split(DOT)
        starts = [DOT.join(parts[:count]) for count in range(2, len(parts) + 1)]
        # A key may be written with escapes.
        if starts and (b"\\" in text or any(f'"{start}"'.encode() in text for start in starts)):
            raise ValueError(path)
        for row in sample if starts else ():
            value: Any = row
            for part in parts[:-1]:
                value = value.get(part) if isinstance(value, dict) else value
                if isinstance(value, list):
                    raise ValueError(path)
        inner = fields
        for part in parts[:-1]:
            inner = inner.setdefault(part, {})
            if not isinstance(inner, dict):  # the object itself is a column, too
                raise ValueError(path)
        if parts[-1] in inner:
            raise ValueError(path)
        inner[parts[-1]] = kind
    return pa.schema(list(_struct(fields)))


def _struct(fields: Mapping[str, Any]) -> pa.DataType:
    return pa.struct(
        [
            (name, _struct(inner) if isinstance(inner, dict) else inner)
            for name, inner in fields.items()
        ]
    )


def selected(table: pa.Table, paths: Sequence[str]) -> pa.Table:
    """The columns of `paths` of a table that `schema_of` describes."""
    columns = []
    for path in paths:
        name, *fields = path.split(DOT)
        column = table.column(name)
        columns.append(pc.struct_field(column, fields) if fields else column)
    return pa.table(columns, names=list(paths))


SAMPLE = 64  # lines of a block from which the types of all its lines are taken
Cutter = Callable[[str | bytes], list[Any] | None]
Rows = list[tuple[int, bytes]]  # numbers of lines, and their text


class JsonReader(TextReader):
    """Reads JSON lines; a missing key is null."""

    def __init__(self, conf: Conf, skip_rows: int = 0) -> None:
        super().__init__(conf, skip_rows)
        self.of_ids, self.cuts = id_columns(conf), cutters(conf)

    def tables(self, url: str, needed: list[str], faults: FileFaults) -> Tables:
        lookups = {name: lookup(name) for name in needed}
        for line, view in text_lines.blocks(url, self.skip_rows):
            block = bytes(view)
            texts = enumerate(block.split(b"\n"), line)
            rows = [(number, text) for number, text in texts if text and not text.isspace()]
            kept = _without_long(url, rows, faults)
            if not kept:
                continue
            heads = (parsed(text) for _, text in kept[:SAMPLE])
            sample = [values for values in heads if values is not None]
            if sample:
                filled = [any(lookups[name](row) is not None for row in sample) for name in needed]
                report_absent(url, needed, filled, partial(paths_of, sample))
            table = None
            # Arrow takes the line `null` for an object without keys, and ends the process at one
            # that is the first.
            if len(kept) == len(rows) and all(text.lstrip().startswith(b"{") for _, text in kept):
                table = _by_arrow(block, len(kept), sample, lookups, self.of_ids)
            if table is None:
                table, kept = self._one_by_one(url, kept, lookups, faults)
            yield table, at_lines(url, [number for number, _ in kept])

    def _one_by_one(
        self, url: str, rows: Rows, lookups: Mapping[str, Lookup], faults: FileFaults
    ) -> tuple[pa.Table, Rows]:
        """The rows that are objects, as a table, and which they are."""
        columns: dict[str, list[Any]] = {name: [] for name in lookups}
        kept: Rows = []
        for number, text in rows:
            values = parsed(text)
            if values is None:
                way = "Mend or remove the line"
                if number == 1:
                    way += ", or give the format that the file has (data.format; to score format=)"
                faults.add(Line(url, number), f"no JSON object: {quoted(text)}. {way}")
                continue
            row = {name: value_of(values) for name, value_of in lookups.items()}
            complaints = (
                (name, _complaint(value, name in self.of_ids, self.cuts.get(name)))
                for name, value in row.items()
            )
            if wrong := next(((fault, name) for name, fault in complaints if fault), None):
                faults.add(Line(url, number), *wrong)
                continue
            kept.append((number, text))
            for name, value in row.items():
                columns[name].append(value)
        arrays = {name: array(values, self.cuts.get(name)) for name, values in columns.items()}
        return pa.table(arrays), kept

    def stored_columns(self, url: str) -> list[str] | None:
        return paths_of([parsed(line) or {} for line in text_lines.head_lines(url)])


def _without_long(url: str, rows: Rows, faults: FileFaults) -> Rows:
    """The rows that have no more values than a row may have, by their commas."""
    # A line has at least as many bytes as commas.
    commas = {
        number: count
        for number, text in rows
        if len(text) > limits.ROW_VALUES and (count := text.count(b",")) >= limits.ROW_VALUES
    }
    if commas:
        number, count = next(iter(commas.items()))
        faults.add(
            Line(url, number),
            f"{count + 1:,} values, by its commas, and a row has at most {limits.ROW_VALUES:,}. "
            "Split or remove the line",
            rows=len(commas),
        )
        return [row for row in rows if row[0] not in commas]
    return rows


def _by_arrow(
    block: bytes,
    n: int,
    sample: list[dict[str, Any]],
    lookups: Mapping[str, Lookup],
    of_ids: set[str],
) -> pa.Table | None:
    """The rows of a block, or None when Arrow does not take it as the sample has its types."""
    try:
        block.decode()  # Arrow does not look
        kinds = {
            name: _kind([value_of(row) for row in sample], name in of_ids)
            for name, value_of in lookups.items()
        }
        schema = schema_of(kinds, sample, block)
        table = pyarrow.json.read_json(
            pa.BufferReader(block),
            pyarrow.json.ReadOptions(use_threads=False, block_size=max(len(block), 1) + 1),
            pyarrow.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
        )
    except (ValueError, OverflowError, pa.ArrowException):
        return None
    # Arrow also takes several objects on a line.
    return selected(table, list(lookups)) if table.num_rows == n else None


def _kind(values: list[Any], of_ids: bool) -> pa.DataType:
    """The type of a column. Raises `ValueError` or `OverflowError` where there is none for it."""
    kind = pa.array(values).type
    value = kind.value_type if pa.types.is_list(kind) else kind
    if pa.types.is_nested(value):
        raise ValueError(kind)
    if of_ids and (pa.types.is_floating(value) or pa.types.is_boolean(value)):
        raise ValueError(kind)
    return or_text(kind)


def or_text(kind: pa.DataType) -> pa.DataType:
    """A type, or string (lists: list of string) where a column has only nulls."""
    if pa.types.is_null(kind):
        return pa.string()
    if pa.types.is_list(kind) and pa.types.is_null(kind.value_type):
        return pa.list_(pa.string())
    return kind


def parsed(text: bytes) -> dict[str, Any] | None:
    """The object on a line, or None when there is none."""
    try:
        values = json.loads(text.decode())
    except (ValueError, RecursionError):
        return None
    return values if isinstance(values, dict) else None


def _complaint(value: Any, of_ids: bool, cut: Cutter | None = None) -> str | None:
    """What is wrong with a value of a column, or with one in its list; None: nothing."""
    if isinstance(value, list):
        if any(isinstance(part, list) for part in value):
            return "a list in a list. Write one list of all values"
        return next(filter(None, (_complaint(part, of_ids) for part in value)), None)
    if isinstance(value, dict):
        return "an object where a value should be. Name a value in it by its path: user.country"
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
            "as text, or read the column as numbers (ids=boundaries or row_quantiles, or numeric)"
        )
    # A number that is no id may be of any size: it becomes a float, as in text.
    if of_ids and isinstance(value, int) and abs(value) >= 2**64:
        return f"{quoted(str(value))} has more than 64 bits. Write it as text"
    return None


def array(values: list[Any], cut: Cutter | None = None) -> pa.Array:
    """A column [len(values)]; where types differ by row, integers become their text, or floats.

    Where some rows have lists, the texts of the others are `cut`, as they are where no row has.
    """
    if cut is not None and any(isinstance(value, list) for value in values):
        values = [_cut(value, cut) for value in values]
    for convert in (list, _as_lists, _as_texts):
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
    of_ids = id_columns(conf)
    return {
        column: partial(_parts_of, separator, conf.data, column not in of_ids)
        for column, by in separators(conf.slots, conf.numeric).items()
        for separator in by
        if separator is not None and len(by) == 1
    }


def _parts_of(separator: str, data: Data, fractions: bool, text: str | bytes) -> list[Any] | None:
    try:
        column = pa.array([text])
        split = row_values(column, separator, data, "", lambda row: ("", row), fractions)
    except BadRowsError:
        return None
    return [
        part.decode("utf-8", "surrogateescape")
        if isinstance(part, bytes) and isinstance(text, str)
        else part
        for part in split.values.to_pylist()
    ]


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
