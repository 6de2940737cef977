"""Windows of rows, their order, their batches, and reading them ahead."""

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from tnctl.data import sources
from tnctl.data.ahead import ReadAhead
from tnctl.data.features import Features, Window
from tnctl.data.reading import columns_read, shifted
from tnctl.data.sources import count_hint
from tnctl.errors import UserError
from tnctl.schema import Conf
from tnctl.tables import columns as c_columns

__all__ = ["ReadAhead", "batches", "count_hint", "order", "raw_rows", "window_rows", "windows"]


def window_rows(conf: Conf) -> int:
    """Rows per window: data.window rounded up to whole batches."""
    return -(-conf.data.window // conf.train.batch_size) * conf.train.batch_size


def windows(
    conf: Conf, features: Features, split: str, *, limit: int | None = None, start: int = 0
) -> Iterator[Window]:
    """Consecutive windows of exactly `window_rows` rows, the last one shorter, in file order.

    `limit` ends after that many rows. `start` passes over that many windows, reading them and
    making no ids of them. Raises `Failure` when the files cannot be read or have no row.
    """
    size = window_rows(conf)
    parts: list[Window] = []
    at = 0
    for piece in sources.pieces(conf, split, features.columns):
        table = piece.table if limit is None else piece.table.slice(0, limit - at)
        done = 0
        while done < table.num_rows:
            rows = min(size - at % size, table.num_rows - done)
            if at // size >= start:
                part = table.slice(done, rows)
                parts.append(features.encode(part, shifted(piece.where, done)))
            at, done = at + rows, done + rows
            if at % size == 0 and parts:
                yield joined(parts)
                parts = []
        if at == limit:
            break
    if parts:
        yield joined(parts)


def joined(parts: list[Window]) -> Window:
    """Windows one after the other as one."""
    if len(parts) == 1:
        return parts[0]
    tables = range(len(parts[0].ids))
    if any(sum(len(part.ids[table]) for part in parts) >= 2**32 for table in tables):
        raise UserError("a window holds over 2^32 ids. Take a smaller data.window")
    reference = None
    if parts[0].reference is not None:
        reference = np.concatenate([part.reference for part in parts if part.reference is not None])
    return Window(
        [np.concatenate([part.ids[table] for part in parts]) for table in tables],
        [_joined_offsets([part.offsets[table] for part in parts]) for table in tables],
        np.concatenate([part.numeric for part in parts]),
        np.concatenate([part.labels for part in parts]),
        reference,
    )


def _joined_offsets(parts: list[np.ndarray]) -> np.ndarray:
    out = np.zeros(sum(len(part) - 1 for part in parts) + 1, np.uint32)
    at = 0
    for part in parts:
        out[at + 1 : at + len(part)] = part[1:] + out[at]
        at += len(part) - 1
    return out


def order(conf: Conf, epoch: int, number: int, rows: int) -> np.ndarray:
    """The order in which a window's rows are trained: uint32 [rows].

    A function of conf.seed, the epoch, the window's number and its rows alone.
    """
    if not conf.data.shuffle:
        return np.arange(rows, dtype=np.uint32)
    return c_columns.permutation(conf.seed, epoch, number, rows)


def batches(window: Window, order: np.ndarray, batch_size: int) -> Iterator[Window]:
    """The batches of one window in an order (uint32 [rows]); the last one may be short."""
    for start in range(0, len(order), batch_size):
        yield taken(window, order[start : start + batch_size])


def taken(window: Window, chosen: np.ndarray) -> Window:
    """The chosen rows of a window, in the order chosen."""
    cells = []
    for ids, offsets in zip(window.ids, window.offsets, strict=True):
        slots = (len(offsets) - 1) // window.rows
        cells.append(c_columns.take(ids, offsets, slots, chosen))
    return Window(
        [ids for ids, _ in cells],
        [offsets for _, offsets in cells],
        window.numeric[chosen],
        window.labels[chosen],
        None if window.reference is None else window.reference[chosen],
    )


def raw_rows(conf: Conf, split: str, limit: int) -> list[dict[str, Any]]:
    """The first rows of a split as JSON holds them, by column: texts, numbers, lists and None.

    Bytes that are not UTF-8 come as Python's surrogate escapes.
    """
    found: list[dict[str, Any]] = []
    for piece in sources.pieces(conf, split, columns_read(conf)):
        rows = piece.table.slice(0, limit - len(found)).to_pylist()
        found += [{name: _json(value) for name, value in row.items()} for row in rows]
        if len(found) >= limit:
            break
    return found


def _json(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    if isinstance(value, list):
        return [_json(part) for part in value]
    if isinstance(value, float) and not np.isfinite(value):
        return None
    if isinstance(value, Decimal):
        return str(value)
    return value


def as_table(rows: list[dict[str, Any]]) -> pa.Table:
    """Raw rows as an Arrow table again, for `Features.encode`."""
    return pa.Table.from_pylist(rows)
