"""CRC-32C, and the framing of TFRecord files that it guards."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tnctl._tables import ffi, lib
from tnctl.tables.memory import pointer

RECORD_BYTES = int(lib.TN_TFRECORD_LIMIT)  # of the longest payload that is read


class Records(NamedTuple):
    """The n records that a buffer holds."""

    starts: NDArray[np.uint64]  # [n], where each payload starts in the buffer
    lengths: NDArray[np.uint64]  # [n], in bytes
    whole: NDArray[np.uint8]  # [n], 1 where the payload agrees with its checksum
    consumed: int  # the bytes of these records; after them comes no whole record yet
    lost: bool  # the length that follows is damaged, so nothing after it can be read
    too_long: bool  # the record that follows is longer than RECORD_BYTES


def crc32c(data: Any, crc: int = 0) -> int:
    """CRC-32C of a buffer; with `crc`, the checksum of earlier bytes, of these and the buffer."""
    memory = ffi.from_buffer("char[]", data)
    return int(lib.tn_crc32c(memory, len(memory), crc))


def records(data: Any, capacity: int) -> Records:
    """Up to `capacity` records of a TFRecord file from the start of a buffer of bytes."""
    memory = ffi.from_buffer("char[]", data)
    starts, lengths = np.empty(capacity, np.uint64), np.empty(capacity, np.uint64)
    whole = np.empty(capacity, np.uint8)
    count, consumed = ffi.new("uint64_t *"), ffi.new("uint64_t *")
    code = lib.tn_tfrecord_walk(
        memory,
        len(memory),
        capacity,
        pointer(starts, np.uint64, True),
        pointer(lengths, np.uint64, True),
        pointer(whole, np.uint8, True),
        count,
        consumed,
    )
    n = int(count[0])
    return Records(
        starts[:n],
        lengths[:n],
        whole[:n],
        int(consumed[0]),
        code == lib.TN_BAD_VALUE,
        code == lib.TN_TOO_LONG,
    )
