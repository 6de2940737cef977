"""Dictionaries of exported embeddings, written and memory-mapped (docs/formats/dictionary.md)."""

import os
import struct
import threading
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl._tables import ffi, lib
from tnctl.tables.memory import output, pointer

MAGIC, VERSION = b"tnctldic", 1
HEADER = struct.Struct("<8sIIQQQI4B4I")
BLOCK = 1 << 20  # bytes that have a checksum
PRECISIONS = ("float32", "float16", "int8")  # in the order of their numbers in the header
MOST_DELTAS = lib.TN_DICTIONARY_LAYERS - 1
PART = 1 << 16  # records that are encoded at once


class DictionaryWriter:
    """A dictionary, handed to `write` from its first byte to its last.

    The numbers of records, and of removed ones among them, come first in the file, so they must be
    known. ValueError when hashes do not ascend, when what was added is not what was announced, and
    for a stride that does not fit the shape.
    """

    def __init__(
        self,
        write: Callable[[Any], Any],
        *,
        salt: int,
        linear: bool,
        width: int,
        cvm: bool,
        precision: str,
        stride: int,
        records: int,
        removed: int,
        delta: bool,
    ) -> None:
        if stride != payload_stride(linear, width, cvm, precision):
            raise ValueError(f"payloads of this shape do not have {stride} bytes")
        if not 0 <= removed <= (records if delta else 0) or records >= 2**32:
            raise ValueError(
                f"there is no dictionary of {records} records, {removed} of them removed"
            )
        self._write, self._stride, self._delta = write, stride, delta
        self._records, self._removed, self._added = records, removed, 0
        self._record = np.dtype(
            [("hash", "<u8"), *[("removed", "<u4")] * delta, ("payload", "u1", (stride,))]
        )
        self._index = np.zeros(lib.tn_dictionary_index_size(records), np.uint8)
        self._last = 0
        self._sums: list[int] = []
        self._sum, self._of_block = 0, 0  # of the block under way: its checksum, its bytes
        fields = HEADER.pack(
            *(MAGIC, VERSION, HEADER.size, records, removed, salt, width),
            *(linear, cvm, PRECISIONS.index(precision), delta),
            *(stride, self._record.itemsize, BLOCK, 0),
        )[:-4]
        self._header_sum = zlib.crc32(fields)
        write(fields + struct.pack("<I", self._header_sum))

    def add(
        self,
        hashes: NDArray[np.uint64],
        payload: NDArray[np.uint8],
        removed: NDArray[np.bool_] | None = None,
    ) -> None:
        """The next n records: ascending hashes [n], payloads [n, stride], which are removed [n].

        The payload of a removed record is ignored, and written as zeros.
        """
        if payload.shape != (len(hashes), self._stride):
            raise ValueError(f"expected payloads of [{len(hashes)}, {self._stride}] bytes")
        if removed is not None and not self._delta and removed.any():
            raise ValueError("only a delta has removed records")
        for start in range(0, len(hashes), PART):
            part = slice(start, start + PART)
            self._add(hashes[part], payload[part], None if removed is None else removed[part])

    def _add(
        self,
        hashes: NDArray[np.uint64],
        payload: NDArray[np.uint8],
        removed: NDArray[np.bool_] | None,
    ) -> None:
        n = len(hashes)
        if n > self._records - self._added:
            raise ValueError(f"more than the {self._records} records that were announced")
        hashes = np.ascontiguousarray(hashes)
        _check(
            lib.tn_dictionary_index_add(
                ffi.from_buffer(self._index, require_writable=True),
                self._records,
                self._added,
                self._last,
                pointer(hashes, np.uint64),
                n,
            )
        )
        block = np.empty(n, self._record)
        block["hash"] = hashes
        block["payload"] = payload
        if self._delta:
            block["removed"] = 0 if removed is None else removed
            block["payload"][block["removed"] != 0] = 0
            self._removed -= int(block["removed"].sum())
        self._added += n
        self._last = int(hashes[-1])
        written = block.view(np.uint8).data
        self._count(written)
        self._write(written)

    def _count(self, written: memoryview) -> None:
        """Take the checksum of each block of the records."""
        while written:
            part = written[: BLOCK - self._of_block]
            self._sum = zlib.crc32(part, self._sum)
            self._of_block += len(part)
            written = written[len(part) :]
            if self._of_block == BLOCK:
                self._end_block()

    def _end_block(self) -> None:
        self._sums.append(self._sum)
        self._sum, self._of_block = 0, 0

    def finish(self) -> bytes:
        """Write what follows the records; returns the bytes of the index, a separate file."""
        if self._added != self._records or self._removed:
            missing = f"{self._records - self._added} records, {self._removed} removed ones"
            raise ValueError(f"not all that was announced was added; missing: {missing}")
        if self._of_block:
            self._end_block()
        trailer = struct.pack(f"<{len(self._sums) + 1}I", *self._sums, self._header_sum)
        self._write(trailer + struct.pack("<I", zlib.crc32(trailer)))
        memory = ffi.from_buffer(self._index, require_writable=True)
        _check(
            lib.tn_dictionary_index_finish(
                memory, self._records, self._last, self._header_sum, zlib.crc32(trailer)
            )
        )
        return self._index.tobytes()


class Dictionary:
    """A memory-mapped dictionary. Any number of threads may read it.

    Without an index, or when the file of that name is not there, one is made in memory at the first
    lookup, which reads the whole file. OSError when the dictionary cannot be opened; ValueError
    when it or its index is damaged or of an unknown version, or the index is another dictionary's.
    The bytes of the records are checked by `verify` alone.

    rows: all records, of which `removed` say that a key is no longer known; salt; columns: floats
    of a decoded row; linear, cvm, delta: bool; width; precision; stride: bytes of a payload.
    After `close` all methods raise ValueError.
    """

    def __init__(self, path: str, index: str | None = None) -> None:
        self.path = path
        if index is not None and not os.path.exists(index):
            index = None
        out = ffi.new("tn_dictionary **")
        code = lib.tn_dictionary_open(
            os.fsencode(path), ffi.NULL if index is None else os.fsencode(index), out
        )
        if code in (lib.TN_DICTIONARY_NO_FILE, lib.TN_DICTIONARY_NO_INDEX):
            name = path if code == lib.TN_DICTIONARY_NO_FILE else index
            raise OSError(ffi.errno, os.strerror(ffi.errno), name)
        _check(code, f"{index if code == lib.TN_DICTIONARY_BAD_INDEX else path}: ")
        self._handle = ffi.gc(out[0], lib.tn_dictionary_close)
        facts = ffi.new("tn_dictionary_facts *")
        lib.tn_dictionary_about(self._handle, facts)
        self.rows = int(facts.records)
        self.removed = int(facts.removed)
        self.salt = int(facts.salt)
        self.columns = int(facts.columns)
        self.linear = bool(facts.linear)
        self.width = int(facts.width)
        self.cvm = bool(facts.cvm)
        self.precision = PRECISIONS[facts.precision]
        self.stride = int(facts.stride)
        self.delta = bool(facts.delta)
        self._indexing = threading.Lock()
        self._indexed = bool(facts.indexed)

    def lookup(
        self, ids: NDArray[np.uint64]
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_], NDArray[np.bool_]]:
        """Decoded rows of n ids, float32 [n, columns], zeros where unknown; known [n]; removed [n].

        Ids that a delta says are removed are not known.
        """
        rows, states = _lookup(self.handle(), self.columns, ids)
        return rows, states == lib.TN_DICTIONARY_KNOWN, states == lib.TN_DICTIONARY_REMOVED

    def handle(self) -> Any:
        """The open dictionary for C, with its index."""
        opened = self._open()
        with self._indexing:
            if not self._indexed:
                _check(lib.tn_dictionary_make_index(opened), f"{self.path}: ")
                self._indexed = True
        return opened

    def _open(self) -> Any:
        if self._handle is None:
            raise ValueError(f"{self.path}: the dictionary is closed")
        return self._handle

    def records(
        self, first: int, n: int
    ) -> tuple[NDArray[np.uint64], NDArray[np.bool_], NDArray[np.uint8]]:
        """Records `first` to `first + n`: hashes [n], which are removed [n], payloads [n, stride].

        ValueError for more than there are (`rows`).
        """
        opened = self._open()
        if not 0 <= first <= first + n <= self.rows:
            raise ValueError(f"records {first} to {first + n} of {self.rows}")
        hashes, removed = np.empty(n, np.uint64), np.empty(n, np.uint8)
        payloads = np.empty((n, self.stride), np.uint8)
        _check(
            lib.tn_dictionary_records(
                opened,
                first,
                n,
                output(hashes),
                output(removed),
                output(payloads),
            )
        )
        return hashes, removed.view(np.bool_), payloads

    def verify(self) -> None:
        """Check every byte of the file, and of the index if there is one. ValueError says where."""
        place = ffi.new("uint64_t *")
        code = lib.tn_dictionary_verify(self._open(), place)
        _check(code, f"{self.path}: at byte {int(place[0]):,}: " if place[0] else f"{self.path}: ")

    def close(self) -> None:
        """Unmap the files. No lookup may be running, and no stack of it be used later."""
        if self._handle is not None:
            ffi.release(self._handle)
            self._handle = None


class DictionaryStack:
    """Deltas over a full dictionary, read as one: the newest delta first, the full one last.

    It holds references to them and does not close them. A dictionary without an index gets one
    now, which reads its whole file. ValueError for none, for more than MOST_DELTAS deltas, and when
    salt, shape or precision differ.
    """

    def __init__(self, dictionaries: Sequence[Dictionary]) -> None:
        self.dictionaries = list(dictionaries)
        if not 1 <= len(self.dictionaries) <= MOST_DELTAS + 1:
            raise ValueError(
                f"a full dictionary and at most {MOST_DELTAS} deltas can be stacked. "
                f"Received: {len(self.dictionaries)} dictionaries"
            )
        out = ffi.new("tn_dictionary **")
        layers = ffi.new("const tn_dictionary *[]", [each.handle() for each in self.dictionaries])
        _check(lib.tn_dictionary_stack(layers, len(self.dictionaries), out))
        self._handle = ffi.gc(out[0], lib.tn_dictionary_close)
        self.columns = self.dictionaries[0].columns

    def lookup(self, ids: NDArray[np.uint64]) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Decoded rows of ids [n]: float32 [n, columns], zeros where not known; known [n]."""
        for dictionary in self.dictionaries:
            dictionary.handle()  # raises when it was closed
        rows, states = _lookup(self._handle, self.columns, ids)
        return rows, states == lib.TN_DICTIONARY_KNOWN


def payload_stride(linear: bool, width: int, cvm: bool, precision: str) -> int:
    """Bytes of a row's payload; ValueError for an unknown precision."""
    floats = int(linear) + 2 * int(cvm)
    if precision == "float32":
        return 4 * (floats + width)
    if precision == "float16":
        return 4 * floats + -(-2 * width // 4) * 4
    if precision == "int8":
        return 4 * (floats + (width > 0)) + -(-width // 4) * 4
    raise ValueError(f"expected a precision of {', '.join(PRECISIONS)}. Received: {precision}")


def _lookup(
    handle: Any, columns: int, ids: NDArray[np.uint64]
) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """Decoded rows [n, columns], and for each of n ids TN_DICTIONARY_KNOWN, _REMOVED or neither."""
    rows, states = np.empty((len(ids), columns), np.float32), np.empty(len(ids), np.uint8)
    lib.tn_dictionary_lookup(
        handle,
        pointer(ids, np.uint64),
        len(ids),
        output(rows),
        output(states),
    )
    return rows, states


def _check(code: int, prefix: str = "") -> None:
    """Raise the Python exception for a code."""
    if code == lib.TN_DICTIONARY_OK:
        return
    message = prefix + ffi.string(lib.tn_dictionary_message(code)).decode()
    if code == lib.TN_DICTIONARY_NO_MEMORY:
        raise MemoryError(message)
    raise ValueError(message)
