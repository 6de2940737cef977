"""Raw rows: the first rows of a split as JSON has them, and as an Arrow table again."""

import json
from collections.abc import Iterable, Mapping
from datetime import date
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from tnctl import limits
from tnctl.data import numbers
from tnctl.data.column_names import columns_read
from tnctl.data.formats import jsonl_files
from tnctl.data.formats.jsonl_files import Cutter
from tnctl.data.formats.prepared_files import PreparedReader
from tnctl.data.sources import Source
from tnctl.data.times import as_texts, is_temporal


def raw_rows(source: Source, limit: int) -> list[dict[str, Any]]:
    """The first rows of a split as JSON has them, by column: texts, numbers, lists and None.

    Bytes that are not UTF-8 become Python's surrogate escapes. Of long rows there are fewer, but
    one at least: together they have no more bytes in Arrow's buffers than a line may have.
    """
    if source.data.prepared is not None:
        return PreparedReader(source.conf).first_rows(source.split, limit)
    first: list[dict[str, Any]] = []
    room = limits.LINE_BYTES
    for piece in source.pieces(columns_read(source.conf)):
        rows = piece.table.slice(0, limit - len(first))
        whole = rows.num_rows
        while rows.num_rows > (0 if first else 1) and rows.nbytes > room:
            rows = rows.slice(0, rows.num_rows // 2)
        room -= rows.nbytes
        first += [
            {name: _json(value) for name, value in row.items()}
            for row in _without_temporal(rows).to_pylist()
        ]
        if len(first) >= limit or rows.num_rows < whole:
            break
    return first


def _without_temporal(rows: pa.Table) -> pa.Table:
    """Rows with timestamps and dates as text, which JSON has in their place."""
    for place, (name, column) in enumerate(zip(rows.column_names, rows.columns, strict=True)):
        if is_temporal(column.type):
            rows = rows.set_column(place, name, as_texts(numbers.flat(column)))
    return rows


def _json(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    if isinstance(value, list):
        return [_json(part) for part in value]
    if isinstance(value, float) and not np.isfinite(value):
        return None
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, date):
        return value.isoformat()
    return value


def as_table(
    rows: list[dict[str, Any]],
    cutters: Mapping[str, Cutter],
    columns: Iterable[str] | None = None,
) -> pa.Table:
    """Raw rows as an Arrow table again, for `Features.encode`; a missing key is null.

    Names of columns may be paths into objects.

    `cutters` cut the texts of columns, as `jsonl_files.cutters` makes them. `columns` are the
    columns of the table, by default all that a row has.
    """
    if columns is None:
        columns = dict.fromkeys(name for row in rows for name in row)
    return pa.table(
        {
            name: _as_array(list(map(jsonl_files.lookup(name), rows)), cutters.get(name))
            for name in columns
        }
    )


def _as_array(values: list[Any], cut: Cutter | None) -> pa.Array:
    try:
        column = jsonl_files.array(values, cut)
    except UnicodeEncodeError:
        # Text with surrogate escapes: bytes that are not UTF-8.
        column = jsonl_files.array([_as_bytes(value) for value in values], cut)
    return column.cast(jsonl_files.or_text(column.type))


def _as_bytes(value: Any) -> Any:
    if isinstance(value, list):
        return [_as_bytes(part) for part in value]
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape")
    return None if value is None else json.dumps(value).encode()
