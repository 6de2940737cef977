"""Rows as Redis commands, packed with numpy: hash buckets filled in the order of the rows' hashes.

docs/formats/redis.md.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tnctl.serving.rows.precision import Payloads, Uint64s
from tnctl.serving.rows.selection import Part

# A server stores a hash in one piece of memory while it has few fields, none longer than this.
PART_BYTES = 64
FIELDS_PER_BUCKET = 64
MOST_PARTS = 256  # the number of a part is one byte
ROWS_AT_ONCE = 1 << 14


@dataclass(frozen=True)
class Packed:
    """Commands as they go over the wire."""

    data: bytes
    commands: int  # each has one reply, a number
    rows: int
    sign: int  # 1: a reply counts fields that were added, -1: that were removed


def fields_per_row(stride: int) -> int:
    """How many fields a payload of `stride` bytes is split into."""
    return -(-stride // PART_BYTES)


def bucket_count(rows: int, fields: int) -> int:
    """The buckets of a group: about FIELDS_PER_BUCKET fields in each."""
    return max(1, round(rows * fields / FIELDS_PER_BUCKET))


def buckets_of(hashes: Uint64s, count: int) -> Uint64s:
    """floor(hash * count / 2^64), exactly; uint64 [n]. `count` is below 2^32."""
    shift, n = np.uint64(32), np.uint64(count)
    high, low = hashes >> shift, hashes & np.uint64(0xFFFFFFFF)
    return (high * n + (low * n >> shift)) >> shift


def field_names(ids: Uint64s, fields: int) -> list[list[bytes]]:
    """The names of the fields of each id (uint64 [n]), `fields` for each.

    The first is the id, 8 bytes, little-endian; the others add a byte, the number of the part.
    """
    plain = ids.astype("<u8").tobytes()
    rows = [plain[at : at + 8] for at in range(0, len(plain), 8)]
    return [[row, *(row + bytes([part]) for part in range(1, fields))] for row in rows]


class Packing:
    """The commands that write and remove rows of one group.

    `key` is what the name of a bucket's key begins with; its number follows.
    """

    def __init__(self, key: str, stride: int, buckets: int) -> None:
        self._key, self._buckets = key.encode(), buckets
        self._fields = fields_per_row(stride)
        self._setting = _Words(stride, self._fields, values=True)
        self._removing = _Words(stride, self._fields, values=False)

    def commands(self, part: Part, payload: Payloads) -> Iterator[Packed]:
        """HDEL of the removed keys of a part, and HSET of its rows, stored as `payload`."""
        for at in range(0, len(part.ids), ROWS_AT_ONCE):
            cut = slice(at, at + ROWS_AT_ONCE)
            ids, hashes, stored = part.ids[cut], part.hashes[cut], payload[cut]
            if part.removed is not None and (gone := part.removed[cut]).any():
                words = self._removing.of(ids[gone], stored[gone])
                yield self._per_bucket(b"HDEL", hashes[gone], words, self._fields, -1)
                ids, hashes, stored = ids[~gone], hashes[~gone], stored[~gone]
            if len(ids):
                words = self._setting.of(ids, stored)
                yield self._per_bucket(b"HSET", hashes, words, 2 * self._fields, 1)

    def _per_bucket(
        self,
        command: bytes,
        hashes: Uint64s,
        words: Payloads,
        count: int,
        sign: int,
    ) -> Packed:
        """One command for the rows of each bucket; `words` [n, bytes] are a row's `count` words."""
        buckets = buckets_of(hashes, self._buckets)
        starts = np.flatnonzero(np.diff(buckets, prepend=buckets[0] + np.uint64(1)))
        lengths = np.diff(starts, append=len(buckets))
        size = words.shape[1]
        data = words.reshape(-1).data
        pieces: list[Any] = []
        for start, rows, bucket in zip(
            starts.tolist(), lengths.tolist(), buckets[starts].tolist(), strict=True
        ):
            key = b"%s%d" % (self._key, bucket)
            pieces.append(
                b"*%d\r\n$4\r\n%s\r\n$%d\r\n%s\r\n" % (2 + rows * count, command, len(key), key)
            )
            pieces.append(data[start * size : (start + rows) * size])
        return Packed(b"".join(pieces), len(starts), len(words), sign)


class _Words:
    """The words of a row after the key, whose bytes are alike for all rows but in a few places."""

    def __init__(self, stride: int, fields: int, values: bool) -> None:
        words = bytearray()
        self._ids: list[int] = []  # where they begin
        self._values: list[tuple[int, int, int]] = []  # where they begin, there and in a payload
        for part in range(fields):
            words += b"$%d\r\n" % (9 if part else 8)
            self._ids.append(len(words))
            words += bytes(8) + (bytes([part]) if part else b"") + b"\r\n"
            if values:
                start = part * PART_BYTES
                size = min(PART_BYTES, stride - start)
                words += b"$%d\r\n" % size
                self._values.append((len(words), start, size))
                words += bytes(size) + b"\r\n"
        self._template = np.frombuffer(bytes(words), np.uint8)

    def of(self, ids: Uint64s, payload: Payloads) -> Payloads:
        """uint8 [n, bytes of a row's words]."""
        words = np.tile(self._template, (len(ids), 1))
        id_bytes = ids.astype("<u8").view(np.uint8).reshape(-1, 8)
        for at in self._ids:
            words[:, at : at + 8] = id_bytes
        for at, start, size in self._values:
            words[:, at : at + size] = payload[:, start : start + size]
        return words
