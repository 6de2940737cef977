"""Arrow columns to times: microseconds since 1970 in UTC; missing and bad values kept apart."""

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from tnctl.data import Bools, Int64s, numbers
from tnctl.data.bad_rows import refuse
from tnctl.data.file_pieces import Where
from tnctl.errors import Failure, refuse_if
from tnctl.schema import ISO, Data, Time
from tnctl.tables import columns as c_columns

SECOND = 1_000_000
# Ticks of Arrow's timestamps in a second.
TICKS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
# From year 1 on, and before year 10000, in seconds.
LEAST, AFTER = -62_135_596_800, 253_402_300_800


class Times(NamedTuple):
    """Times int64 [n] in microseconds since 1970 in UTC, and which are missing, bool [n]."""

    values: Int64s  # any where missing
    missing: Bools


def is_temporal(kind: pa.DataType) -> bool:
    """Whether a type holds times of its own, which need no format."""
    return bool(pt.is_timestamp(kind) or pt.is_date(kind))


def times_of(
    array: pa.Array, column: str, data: Data, where: Where, several: bool = False
) -> Times:
    """The times of values [n] of a column, as data.times has its format.

    With `several` values in a row an empty text is missing too. Raises `BadRowsError` for a value
    that is no time, `Failure` for a type that has none.
    """
    time = data.time_of(column)
    missing = [*data.missing, ""] if several else data.missing
    array = numbers.plain(array)
    if is_temporal(array.type):
        refuse_if(
            time.format != ISO,
            f"{where(0)[0]}: column '{column}' is {array.type}, which needs no format. Leave "
            f"data.times.{column}.format={time.format} out",
            Failure,
        )
        return _of_arrow(array, time, column, where)
    if pt.is_null(array.type):
        return Times(np.zeros(len(array), np.int64), np.ones(len(array), bool))
    if time.is_number:
        values = numbers.parsed(array, missing, column, where, _way(column))
        absent = np.isnan(values)
        times, wrong = c_columns.times_of_numbers(values, time.format)
        refuse(
            wrong & ~absent,
            where,
            lambda row: (
                f"{values[row]:.17g} is not a time ({time.format}) from year 1 to 9999. "
                f"{_way(column)}"
            ),
            column,
        )
        return Times(times, absent)
    if not (numbers.is_text(array.type) or pt.is_integer(array.type)):
        raise Failure(
            f"{where(0)[0]}: column '{column}' is {array.type}, and times in the format "
            f"{time.format} are text. For numbers since 1970 give data.times.{column}.format, such "
            "as epoch_s"
        )
    return _of_texts(numbers.texts(array, column, where), missing, time, column, where)


def _way(column: str) -> str:
    return (
        f"Mend it, add it to data.missing, or say how the column writes times in "
        f"data.times.{column}.format"
    )


def _of_texts(array: pa.Array, missing: list[str], time: Time, column: str, where: Where) -> Times:
    array = pc.ascii_trim_whitespace(array)
    absent = pc.is_in(array, value_set=pa.array([*(t.strip() for t in missing), None], array.type))
    is_missing = numbers.as_numpy(absent)
    offsets, texts = numbers.text_buffers(array)
    offsets = np.ascontiguousarray(offsets, np.int64)
    times, wrong = c_columns.times_of_texts(texts, offsets, time.format, time.seconds_ahead)
    wrong &= ~is_missing
    if wrong.any():
        kind = f"a time in the format {time.format}"
        numbers.refuse_texts(array, wrong, kind, column, where, _way(column))
    return Times(times, is_missing)


def _of_arrow(array: pa.Array, time: Time, column: str, where: Where) -> Times:
    """Timestamps and dates. One without a zone is in data.times' offset, as a text without is."""
    times, missing, wrong = _microseconds(array)
    refuse(
        wrong,
        where,
        lambda _: f"{array.type} before year 1 or after year 9999. {numbers.MEND}",
        column,
    )
    if getattr(array.type, "tz", None) is None:
        times = times - time.seconds_ahead * SECOND
    return Times(times, missing)


def _microseconds(
    array: pa.Array,
) -> tuple[Int64s, Bools, Bools]:
    """Timestamps or dates [n] as microseconds since 1970, and which are missing or out of range."""
    missing = numbers.is_null(array)
    if pt.is_date(array.type):
        array = array.cast(pa.timestamp("s" if pt.is_date32(array.type) else "ms"))
    ticks = numbers.as_numpy(array.cast(pa.int64()).fill_null(0))
    per_second = TICKS[array.type.unit]
    wrong = (ticks < LEAST * per_second) | (ticks >= min(AFTER * per_second, 2**63 - 1))
    ticks = np.where(wrong, 0, ticks)
    if per_second > SECOND:
        return ticks // (per_second // SECOND), missing, wrong
    return ticks * (SECOND // per_second), missing, wrong


def as_texts(array: pa.Array) -> pa.Array:
    """Timestamps or dates [n] as text [n] in the format iso, the same times to the microsecond.

    One that is out of range is null.
    """
    times, missing, wrong = _microseconds(array)
    texts = np.datetime_as_string(times.astype("datetime64[us]"))
    zone = "" if getattr(array.type, "tz", None) is None else "Z"
    gone = missing | wrong
    return pa.array([None if g else f"{t}{zone}" for t, g in zip(texts, gone, strict=True)])


def since(text: str, time: Time) -> int:
    """A fixed time in the format iso, in microseconds; without a zone in the zone of a column."""
    data = text.encode()
    offsets = np.array([0, len(data)], np.int64)
    times, _ = c_columns.times_of_texts(data, offsets, ISO, time.seconds_ahead)
    return int(times[0])
