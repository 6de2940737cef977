"""Windows: the rows of a split that are read, and shuffled, together; and their batches."""

import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from tnctl.data import Bools, Int64s, Uint32s, Uint64s, numbers
from tnctl.data.bad_rows import Skipped, chosen, refuse_large_window
from tnctl.data.batches import Batch, joined, taken
from tnctl.data.column_names import label_keys
from tnctl.data.features import Features, labels_of, prepared_encoder, prepared_labels
from tnctl.data.file_pieces import Where, shifted
from tnctl.data.read_ahead import ReadAhead, in_order
from tnctl.data.sources import Source
from tnctl.data.unit_records import WHOLE, Progress, Remainder, Unit
from tnctl.errors import Failure
from tnctl.schema import Conf
from tnctl.tables import columns as c_columns

T = TypeVar("T")
Encode = Callable[[pa.Table, Where], Batch]
NEGATIVES = 0x6E65676174697665  # "negative", so that no other draw of the seed is like it
# Numbers of windows and rows have the number of the unit in front; in unit 0 they begin at 0.
WINDOW_BITS, ROW_BITS = 32, 40


def count_hint(source: Source) -> int | None:
    """The number of rows of a split's windows where it costs little to know, else None."""
    return None if source.drops_negatives else source.known_rows()


def windows(
    source: Source,
    features: Features,
    *,
    limit: int | None = None,
    start: int = 0,
    skipped: Skipped | None = None,
    unit: Unit = WHOLE,
) -> Iterator[Batch]:
    """Consecutive windows of exactly `window_rows` rows, the last one shorter, in file order.

    `limit` ends after that many rows. `start` passes over that many windows. Rows that cannot be
    read are left out, counted in `skipped` (by default a new count), and reported at the end. In
    data.train the negatives that data.negatives leaves out are no rows. Raises `Failure` when the
    files cannot be read, have no row, or too many that cannot be read.

    With a `unit` the windows are those of that part of the split, which may have no row; rows that
    cannot be read are only counted, for whoever reads all units to report.
    """
    data, size = source.data, source.window_rows
    encode = prepared_encoder(features) if data.prepared else features.encode
    skipped = skipped or Skipped(source.split, data.bad_rows)
    tables = _tables(source, features.columns, encode, skipped, unit)
    if data.bad_rows:
        encoded = _parts(tables, partial(_good, encode, skipped), size, start, limit)
    else:
        whole = _parts(tables, _unread, size, start, limit)
        encoded = in_order(lambda part: encode(*part), whole)
    parts: list[Batch] = []
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
    if not unit.is_split:
        return
    if rows == 0 and start == 0 and limit != 0:
        raise none_left(source, skipped)
    skipped.report()


def none_left(source: Source, skipped: Skipped) -> Failure:
    """What to raise for a split that has rows, and none that is used."""
    if source.drops_negatives and not skipped.rows:
        why = f"data.negatives={source.data.negatives} keeps none. Raise it"
        return Failure(f"no row of data.{source.split} is left: {why}")
    return source.no_rows(skipped)


def _unread(table: pa.Table, where: Where) -> tuple[tuple[pa.Table, Where], int]:
    return (table, where), table.num_rows


def _good(encode: Encode, skipped: Skipped, table: pa.Table, where: Where) -> tuple[Batch, int]:
    """The rows that can be read, and how many they are."""
    batch, _ = skipped.good(table, where, encode)
    return batch, batch.rows


def _parts(
    tables: Iterator[tuple[pa.Table, Where]],
    read: Callable[[pa.Table, Where], tuple[T, int]],
    size: int,
    start: int,
    limit: int | None,
) -> Iterator[T]:
    """The rows of windows from `start` on, read in parts that do not cross a window's end.

    `read` returns a part and how many rows of a window it fills: only with bad rows fewer than it
    was given.
    """
    at = 0
    for table, where in tables:
        done = 0
        while done < table.num_rows and at != limit:
            room = min(size - at % size, sys.maxsize if limit is None else limit - at)
            rows = min(room, table.num_rows - done)
            part, filled = read(table.slice(done, rows), shifted(where, done))
            if at // size >= start and filled:
                yield part
            at, done = at + filled, done + rows
        if at == limit:
            return


def _tables(
    source: Source, columns: list[str], encode: Encode, skipped: Skipped, unit: Unit
) -> Iterator[tuple[pa.Table, Where]]:
    """The rows of a unit, without the negatives that are left out.

    Those are chosen by the number of a row among the rows of the unit that can be read.
    """
    first = unit.index << ROW_BITS
    for piece in source.pieces(columns, unit):
        skipped.take(piece.bad)
        table, where = piece.table, piece.where
        if source.drops_negatives:
            if source.data.bad_rows:
                _, rows = skipped.good(table, where, encode)
                table, where = table.take(rows), chosen(where, rows)
            kept = _sampled(source.conf, table, where, first)
            first += table.num_rows
            table, where = table.take(kept), chosen(where, kept)
        yield table, where


def _sampled(conf: Conf, table: pa.Table, where: Where, first: int) -> Int64s:
    """The rows with a label above 0, and the share data.negatives of the others.

    `first` is the number of the table's first row.
    """
    [(name, label)] = conf.data.all_labels.items()
    [key] = label_keys(conf.data)
    if conf.data.prepared:
        labels = prepared_labels(table, name)
    else:
        squared = conf.train.loss.name == "mse"
        column = numbers.flat(table.column(label.column))
        labels = labels_of(column, key, label, conf.data.missing, squared, where)
    rows = np.arange(first, first + table.num_rows, dtype=np.uint64)
    return np.flatnonzero((labels > 0) | kept_negatives(conf.seed, conf.data.negatives, rows))


def count_kept(conf: Conf, most: int) -> tuple[int, int]:
    """How many of the first rows of data.train data.negatives keeps, and how many were read.

    At least `most` rows are read, if there are as many. Raises as `windows` does.
    """
    [label] = conf.data.all_labels.values()
    skipped = Skipped("train", conf.data.bad_rows)

    def read(table: pa.Table, where: Where) -> Int64s:
        return _sampled(conf, table, where, 0)

    kept = rows = 0
    for piece in Source(conf, "train").pieces([label.column]):
        chosen_rows, good = skipped.good(piece.table, piece.where, read)
        kept, rows = kept + len(chosen_rows), rows + len(good)
        if rows >= most:
            break
    return kept, rows


def kept_negatives(seed: int, share: float, rows: Uint64s) -> Bools:
    """Which rows (uint64 [n], numbers in the split) are kept when their label is 0: bool [n]."""
    start = c_columns.mix64(np.array([seed ^ NEGATIVES], np.uint64))
    return c_columns.mix64(start ^ rows) < share * 2.0**64


def order(seed: int, passes: int, number: int, rows: int, shuffle: bool, unit: int = 0) -> Uint32s:
    """The order in which a window's rows are trained: uint32 [rows].

    Without `shuffle` as they are; else a function of the seed, the passes over the data before
    this one, the window's number in its unit, the number of the unit, and its rows alone.
    """
    if not shuffle:
        return np.arange(rows, dtype=np.uint32)
    return c_columns.permutation(seed, passes, (unit << WINDOW_BITS) + number, rows)


WINDOWS_AHEAD = 1


class UnitWindow(NamedTuple):
    """A window of a unit, or the unit's end."""

    unit: int
    number: int
    """of the window, in the unit"""
    offset: int
    """the rows of the window, in its shuffled order, that were consumed before"""
    rows: Batch | None
    """None after a unit that ends with a full window, or has none"""
    skipped: int | None
    """at the end of the unit, the rows of it that could not be read; None before"""


Ordering = Callable[[UnitWindow, int], Uint32s]  # the order of a window of n rows


def unit_windows(
    source: Source,
    features: Features,
    remainders: Iterable[Remainder],
    skipped: Skipped,
    limit: int | None = None,
) -> Iterator[UnitWindow]:
    """The windows of remainders, one remainder after the other, and the end of each unit.

    `limit` is the most rows of each. Raises `Failure` as `windows` does.
    """
    for left in remainders:
        unit, number, offset, ended = left.unit, left.window, left.offset, False
        skipped_before = skipped.rows
        for rows in windows(
            source, features, limit=limit, start=number, skipped=skipped, unit=unit
        ):
            # No window of the unit follows on a short one.
            ended = rows.rows < source.window_rows
            count = skipped.rows - skipped_before if ended else None
            yield UnitWindow(unit.index, number, offset, rows, count)
            number, offset = number + 1, 0
        if not ended:
            yield UnitWindow(unit.index, number, offset, None, skipped.rows - skipped_before)


def unit_batches(
    source: Iterable[UnitWindow], ordering: Ordering, batch_size: int, window_size: int
) -> Iterator[tuple[Batch, Progress]]:
    """The batches of windows in an order, and how far each is.

    A batch is filled from the next windows and units, so only the last one may be short.
    """
    parts: list[Batch] = []
    completed: list[tuple[int, int]] = []
    waiting, unit, number, at = 0, 0, 0, 0

    def progress() -> Progress:
        ends = at == window_size
        place = (number + 1, 0) if ends else (number, at)
        return Progress(unit, *place, tuple(completed))

    for window in source:
        rows = 0
        if window.rows is not None:
            rows = window.rows.rows
            unit, number, at = window.unit, window.number, window.offset
            chosen = ordering(window, rows)
            while at < rows:
                count = min(batch_size - waiting, rows - at)
                parts.append(taken(window.rows, chosen[at : at + count]))
                waiting, at = waiting + count, at + count
                if window.skipped is not None and at == rows:
                    completed.append((unit, window.skipped))
                if waiting == batch_size:
                    yield joined(parts), progress()
                    parts, completed, waiting = [], [], 0
        if window.skipped is not None and window.offset >= rows:
            completed.append((window.unit, window.skipped))
    if parts:
        yield joined(parts), progress()


def training_batches(
    conf: Conf,
    features: Features,
    passes: int,
    remainders: Iterable[Remainder],
    skipped: Skipped,
) -> Iterator[tuple[Batch, Progress]]:
    """The batches of what is left of a pass, in their shuffled order, windows read one ahead.

    `passes` is how many passes there were before, which seeds the order. The remainders are read
    one after the other. `skipped` counts the rows that cannot be read.
    """

    def shuffled(window: UnitWindow, rows: int) -> Uint32s:
        return order(conf.seed, passes, window.number, rows, conf.data.shuffle, window.unit)

    source = Source(conf, "train")
    with ReadAhead(unit_windows(source, features, remainders, skipped), WINDOWS_AHEAD) as ahead:
        yield from unit_batches(ahead, shuffled, conf.train.batch_rows, source.window_rows)
