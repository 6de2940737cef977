"""Values within the objects of JSON, by path: the names that lead to them with dots between.

As of nested Arrow columns: a name leads into an object, also through lists, where it is the list of
this value of each object. A key that has dots itself is meant before any path.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tnctl.data.nested_columns import DEEPEST, DOT

MOST_KEYS = 300  # of an object whose keys are columns
Row = Mapping[str, Any]
Lookup = Callable[[Row], Any]


def paths_of(rows: Sequence[Row]) -> list[str]:
    """The keys of objects; instead of objects, and lists of them, all that is in them."""
    paths = dict.fromkeys(
        path for row in rows for key in row for path in _paths(key, row[key], DEEPEST)
    )
    paths = dict.fromkeys(_of_columns(paths))
    above = {path[:at] for path in paths for at, sign in enumerate(path) if sign == DOT}
    # What has an object in some rows, and nothing in others, is no column itself.
    return [p for p in paths if p not in above or any(map(_is_value, values_of(p, rows)))]


def _of_columns(paths: Iterable[str]) -> Iterator[str]:
    """The paths, but of an object with very many keys, which is a map, its own."""
    paths = list(paths)
    counts = Counter(path[:at] for path in paths for at, sign in enumerate(path) if sign == DOT)
    for path in paths:
        ends = (at for at, sign in enumerate(path) if sign == DOT)
        yield next((path[:at] for at in ends if counts[path[:at]] > MOST_KEYS), path)


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
