"""Columns of times: texts and numbers to microseconds since 1970, and these to ids.

docs/formats/ids.md has the formats and the ids.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl._tables import ffi, lib
from tnctl.tables.memory import pointer

PARTS = {
    "hour": lib.TN_TIME_HOUR,
    "weekday": lib.TN_TIME_WEEKDAY,
    "day_of_month": lib.TN_TIME_DAY_OF_MONTH,
    "day": lib.TN_TIME_DAY,
}


def of_texts(
    data: Any, offsets: NDArray[np.int64], format: str, offset: int
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The times of n texts, int64 [n] in microseconds, and which are none, bool [n].

    Text i is data[offsets[i]:offsets[i + 1]], int64 [n + 1] of any buffer of bytes. Texts without a
    zone are in the one that is `offset` seconds ahead of UTC. Raises ValueError for a format that
    is none of texts.
    """
    n = len(offsets) - 1
    memory = ffi.from_buffer("char[]", data)
    if n and (offsets[0] < 0 or offsets[-1] > len(memory) or (offsets[1:] < offsets[:-1]).any()):
        raise ValueError(f"offsets must ascend inside 0 to {len(memory)}, the bytes of the data")
    times, wrong = np.zeros(n, np.int64), np.zeros(n, np.uint8)
    done = lib.tn_times_of_texts(
        memory,
        pointer(offsets, np.int64),
        n,
        format.encode(),
        offset,
        pointer(times, np.int64, True),
        pointer(wrong, np.uint8, True),
    )
    if not done:
        raise ValueError(f"{format!r} is no format of times as text")
    return times, wrong.astype(bool)


def of_numbers(
    values: NDArray[np.float64], format: str
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The times of numbers, float64 [n], as `of_texts` returns them.

    Raises ValueError for a format that is not of numbers.
    """
    times, wrong = np.zeros(len(values), np.int64), np.zeros(len(values), np.uint8)
    done = lib.tn_times_of_numbers(
        pointer(values, np.float64),
        len(values),
        format.encode(),
        pointer(times, np.int64, True),
        pointer(wrong, np.uint8, True),
    )
    if not done:
        raise ValueError(f"{format!r} is no format of times as numbers")
    return times, wrong.astype(bool)


def parts(times: NDArray[np.int64], part: str, offset: int) -> NDArray[np.uint64]:
    """A part of each time, uint64 [n], in the zone that is `offset` seconds ahead of UTC.

    `part` is a key of PARTS; negative days are modulo 2^64.
    """
    ids = np.empty(len(times), np.uint64)
    lib.tn_time_parts(
        pointer(times, np.int64), len(times), PARTS[part], offset, pointer(ids, np.uint64, True)
    )
    return ids
