"""Windows of rows, their order, their batches, and reading them ahead."""

import json
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tnctl import limits
from tnctl.data import jsonl_files, numbers, prepared, prepared_files, sources
from tnctl.data.ahead import ReadAhead, in_order
from tnctl.data.bad_rows import Skipped, chosen
from tnctl.data.features import Features, Window, labels_of
from tnctl.data.reading import Where, columns_read, shifted
from tnctl.data.row_limits import refuse_large_window
from tnctl.errors import Failure
from tnctl.progress import say
from tnctl.schema import Conf
from tnctl.tables import columns as c_columns

__all__ = ["ReadAhead", "batches", "count_hint", "order", "raw_rows", "window_rows", "windows"]
T = TypeVar("T")
Encode = Callable[[pa.Table, Where], Window]
NEGATIVES = 0x6E65676174697665  # "negative", so that no other draw of the seed is like it


def window_rows(conf: Conf) -> int:
    """Rows per window: data.window rounded up to whole batches."""
    return -(-conf.data.window // conf.train.batch_size) * conf.train.batch_size


def count_hint(conf: Conf, split: str) -> int | None:
    """The number of rows of a split's windows where it costs little to know, else None."""
    if split == "train" and conf.data.negatives < 1:
        return None
    return sources.count_hint(conf, split)


def windows(
    conf: Conf,
    features: Features,
    split: str,
    *,
    limit: int | None = None,
    start: int = 0,
    skipped: Skipped | None = None,
) -> Iterator[Window]:
    """Consecutive windows of exactly `window_rows` rows, the last one shorter, in file order.

    `limit` ends after that many rows. `start` passes over that many windows. Rows that cannot be
    read are left out and counted in `skipped` (one of the pass's own, if none is given), and said
    at the end. In data.train the negatives that data.negatives leaves out are no rows. Raises
    `Failure` when the files cannot be read, have no row, or too many that cannot be read.
    """
    size = window_rows(conf)
    encode = prepared.encoder(features) if conf.data.prepared else features.encode
    skipped = skipped or Skipped(split, conf.data.bad_rows)
    tables = _tables(conf, features.columns, encode, split, skipped)
    if conf.data.bad_rows:
        encoded = _good_parts(tables, encode, size, start, limit, skipped)
    else:
        encoded = in_order(lambda part: encode(*part), _parts(tables, size, start, limit))
    parts: list[Window] = []
    rows = ids = 0
    for part in encoded:
        parts.append(part)
        rows += part.rows
        ids += sum(map(len, part.ids))
        refuse_large_window(ids)
        if rows % size == 0:
            yield joined(parts)
            parts, ids = [], 0
    if parts:
        yield joined(parts)
    if rows == 0 and start == 0 and limit != 0:
        why = f"data.negatives={conf.data.negatives} keeps none. Raise it"
        if skipped.rows:
            why = f"{skipped.rows:,} cannot be read. The first: {skipped.first}"
        raise Failure(f"no row of data.{split} is left: {why}")
    if skipped.rows:
        say(
            f"data.{split}: {skipped.rows:,} rows cannot be read and were left out. "
            f"The first: {skipped.first}"
        )


def _room(at: int, size: int, limit: int | None) -> int:
    """How many rows fit after `at` of them, before the end of a window or of all."""
    room = size - at % size
    return room if limit is None else min(room, limit - at)


def _parts(
    tables: Iterator[tuple[pa.Table, Where]], size: int, start: int, limit: int | None
) -> Iterator[tuple[pa.Table, Where]]:
    """The rows of windows from `start` on, in parts that do not cross a window's end."""
    at = 0
    for table, where in tables:
        done = 0
        while done < table.num_rows and (room := _room(at, size, limit)):
            rows = min(room, table.num_rows - done)
            if at // size >= start:
                yield table.slice(done, rows), shifted(where, done)
            at, done = at + rows, done + rows
        if at == limit:
            return


def _good_parts(
    tables: Iterator[tuple[pa.Table, Where]],
    encode: Encode,
    size: int,
    start: int,
    limit: int | None,
    skipped: Skipped,
) -> Iterator[Window]:
    """The same, encoded, where rows may be bad: only then is known how many a window takes."""
    at = 0
    for table, where in tables:
        done = 0
        while done < table.num_rows and (room := _room(at, size, limit)):
            rows = min(room, table.num_rows - done)
            part, _ = skipped.good(table.slice(done, rows), shifted(where, done), encode)
            if at // size >= start and part.rows:
                yield part
            at, done = at + part.rows, done + rows
        if at == limit:
            return


def _tables(
    conf: Conf, columns: list[str], encode: Encode, split: str, skipped: Skipped
) -> Iterator[tuple[pa.Table, Where]]:
    """The rows of a split, without the negatives that are left out.

    Those are chosen by the number of a row among the rows of the split that can be read.
    """
    first = 0
    for piece in sources.pieces(conf, split, columns):
        skipped.add(piece.skipped, piece.reason)
        table, where = piece.table, piece.where
        if split == "train" and conf.data.negatives < 1:
            if conf.data.bad_rows:
                _, rows = skipped.good(table, where, encode)
                table, where = table.take(rows), chosen(where, rows)
            kept = _sampled(conf, table, where, first)
            first += table.num_rows
            table, where = table.take(kept), chosen(where, kept)
        yield table, where


def _sampled(conf: Conf, table: pa.Table, where: Where, first: int) -> NDArray[np.int64]:
    """The rows with a label above 0, and the share data.negatives of the others.

    `first` is the number of the table's first row.
    """
    [(name, label)] = conf.data.all_labels.items()
    if conf.data.prepared:
        labels = prepared.labels_of(table, name)
    else:
        labels = labels_of(numbers.flat(table.column(label.column)), label, conf, where)
    rows = np.arange(first, first + table.num_rows, dtype=np.uint64)
    return np.flatnonzero((labels > 0) | kept_negatives(conf.seed, conf.data.negatives, rows))


def kept_negatives(seed: int, share: float, rows: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Which rows (uint64, numbers in the split) are kept when their label is 0."""
    start = c_columns.mix64(np.array([seed ^ NEGATIVES], np.uint64))
    return c_columns.mix64(start ^ rows) < share * 2.0**64


def joined(parts: list[Window]) -> Window:
    """Windows one after the other as one."""
    if len(parts) == 1:
        return parts[0]
    tables = range(len(parts[0].ids))
    return Window(
        [np.concatenate([part.ids[table] for part in parts]) for table in tables],
        [_joined_offsets([part.offsets[table] for part in parts]) for table in tables],
        [_concatenated([part.weights[table] for part in parts]) for table in tables],
        np.concatenate([part.numeric for part in parts]),
        np.concatenate([part.labels for part in parts]),
        _concatenated([part.weight for part in parts]),
        _concatenated([part.reference for part in parts]),
        _concatenated([part.group for part in parts]),
        _each([part.carried for part in parts], _one_table),
    )


def _each(parts: list[T | None], join: Callable[[list[T]], T]) -> T | None:
    """What all parts have, or none of them, as one."""
    found = [part for part in parts if part is not None]
    return join(found) if found else None


def _one_table(parts: list[pa.Table]) -> pa.Table:
    """Tables one after the other; a column may be null in one file and text in the next."""
    try:
        return pa.concat_tables(parts, promote_options="permissive")
    except pa.ArrowException as error:
        reason = str(error).split("\n")[0]
        raise Failure(
            f"the columns of data.carry have other types from file to file ({reason}). Write them "
            "alike, or carry others"
        ) from error


def _concatenated(parts: list[Any]) -> Any:
    return _each(parts, np.concatenate)


def _joined_offsets(parts: list[NDArray[np.uint32]]) -> NDArray[np.uint32]:
    out = np.zeros(sum(len(part) - 1 for part in parts) + 1, np.uint32)
    at = 0
    for part in parts:
        out[at + 1 : at + len(part)] = part[1:] + out[at]
        at += len(part) - 1
    return out


def order(conf: Conf, passes: int, number: int, rows: int) -> NDArray[np.uint32]:
    """The order in which a window's rows are trained: uint32 [rows].

    A function of conf.seed, the passes over the data before this one, the window's number and its
    rows alone.
    """
    if not conf.data.shuffle:
        return np.arange(rows, dtype=np.uint32)
    return c_columns.permutation(conf.seed, passes, number, rows)


def batches(window: Window, order: NDArray[np.uint32], batch_size: int) -> Iterator[Window]:
    """The batches of one window in an order (uint32 [rows]); the last one may be short."""
    for start in range(0, len(order), batch_size):
        yield taken(window, order[start : start + batch_size])


def taken(window: Window, chosen: NDArray[np.uint32]) -> Window:
    """The chosen rows of a window, in the order chosen."""
    cells = []
    for ids, offsets, weights in zip(window.ids, window.offsets, window.weights, strict=True):
        count = (len(offsets) - 1) // window.rows
        cells.append(c_columns.take(ids, offsets, count, chosen, weights))
    return Window(
        [ids for ids, _, _ in cells],
        [offsets for _, offsets, _ in cells],
        [weights for _, _, weights in cells],
        window.numeric.take(chosen, axis=0),
        window.labels[chosen],
        None if window.weight is None else window.weight[chosen],
        None if window.reference is None else window.reference[chosen],
        None if window.group is None else window.group[chosen],
        None if window.carried is None else window.carried.take(chosen),
    )


def raw_rows(conf: Conf, split: str, limit: int) -> list[dict[str, Any]]:
    """The first rows of a split as JSON holds them, by column: texts, numbers, lists and None.

    Bytes that are not UTF-8 come as Python's surrogate escapes. Of long rows there are fewer, but
    one at least: together they have no more bytes in Arrow's buffers than a line may have.
    """
    if conf.data.prepared:
        return prepared_files.first_rows(conf, split, limit)
    found: list[dict[str, Any]] = []
    room = limits.LINE_BYTES
    for piece in sources.pieces(conf, split, columns_read(conf)):
        rows = piece.table.slice(0, limit - len(found))
        whole = rows.num_rows
        while rows.num_rows > (0 if found else 1) and rows.nbytes > room:
            rows = rows.slice(0, rows.num_rows // 2)
        room -= rows.nbytes
        found += [{name: _json(value) for name, value in row.items()} for row in rows.to_pylist()]
        if len(found) >= limit or rows.num_rows < whole:
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


def as_table(
    conf: Conf, rows: list[dict[str, Any]], columns: Iterable[str] | None = None
) -> pa.Table:
    """Raw rows as an Arrow table again, for `Features.encode`; a missing key is null.

    `columns` are those to make, by default all that a row has.
    """
    if columns is None:
        columns = dict.fromkeys(name for row in rows for name in row)
    cuts = jsonl_files.cutters(conf)
    return pa.table(
        {name: _as_array([row.get(name) for row in rows], cuts.get(name)) for name in columns}
    )


def _as_array(values: list[Any], cut: jsonl_files.Cutter | None) -> pa.Array:
    try:
        found = jsonl_files.array(values, cut)
    except UnicodeEncodeError:
        # Text with surrogate escapes: bytes that are not UTF-8.
        found = jsonl_files.array([_as_bytes(value) for value in values], cut)
    kind = found.type
    if pa.types.is_null(kind):
        return found.cast(pa.string())
    if pa.types.is_list(kind) and pa.types.is_null(kind.value_type):
        return found.cast(pa.list_(pa.string()))
    return found


def _as_bytes(value: Any) -> Any:
    if isinstance(value, list):
        return [_as_bytes(part) for part in value]
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape")
    return None if value is None else json.dumps(value).encode()
