"""Rows as Redis commands, packed with numpy: hash buckets filled in the order of the rows' hashes.

docs/formats/redis.md.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tnctl.serving.rows.precision import Payloads, RowShape, Uint64s, encode
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

    def __init__(self, key: str, shape: RowShape, buckets: int) -> None:
        self._key, self._shape, self._buckets = key.encode(), shape, buckets
        self._fields = fields_per_row(shape.stride)
        self._setting = _Words(shape.stride, self._fields, values=True)
        self._removing = _Words(shape.stride, self._fields, values=False)

    def commands(self, part: Part) -> Iterator[Packed]:
        """HDEL of the removed keys of a part, and HSET of its rows."""
        for at in range(0, len(part.ids), ROWS_AT_ONCE):
            cut = slice(at, at + ROWS_AT_ONCE)
            ids, hashes, rows = part.ids[cut], part.hashes[cut], part.rows[cut]
            if part.removed is not None and (gone := part.removed[cut]).any():
                words = self._removing.of(ids[gone], None)
                yield self._per_bucket(b"HDEL", hashes[gone], words, self._fields, -1)
                ids, hashes, rows = ids[~gone], hashes[~gone], rows[~gone]
            if len(ids):
                words = self._setting.of(ids, encode(rows, self._shape))
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
        varying: dict[str, tuple[Any, int]] = {}  # name -> dtype and offset
        payload: list[tuple[str, str]] = []
        for part in range(fields):
            words += b"$%d\r\n" % (8 if part == 0 else 9)
            varying[f"id{part}"] = np.dtype("<u8"), len(words)
            words += bytes(8) + (bytes([part]) if part else b"") + b"\r\n"
            if values:
                size = min(PART_BYTES, stride - part * PART_BYTES)
                words += b"$%d\r\n" % size
                payload.append((f"value{part}", f"V{size}"))
                varying[f"value{part}"] = np.dtype(f"V{size}"), len(words)
                words += bytes(size) + b"\r\n"
        self._template = np.frombuffer(bytes(words), np.uint8)
        formats, offsets = zip(*varying.values(), strict=True)
        self._dtype = np.dtype(
            {
                "names": list(varying),
                "formats": formats,
                "offsets": offsets,
                "itemsize": len(words),
            }
        )
        self._payload = np.dtype(payload)
        self._ids = [f"id{part}" for part in range(fields)]

    def of(self, ids: Uint64s, payload: Payloads | None) -> Payloads:
        """uint8 [n, bytes of a row's words]."""
        words = np.empty((len(ids), len(self._template)), np.uint8)
        words[:] = self._template
        rows = words.view(self._dtype)[:, 0]
        for name in self._ids:
            rows[name] = ids
        if payload is not None:
            parts = np.ascontiguousarray(payload).view(self._payload)[:, 0]
            for name in self._payload.names or ():
                rows[name] = parts[name]
        return words
