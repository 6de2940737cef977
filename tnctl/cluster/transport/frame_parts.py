"""Frames in parts, so that a large frame does not hold up a small one on the same stream.

A part is a header of 16 bytes (lane u8, 7 reserved, bytes of the whole frame u64, little-endian)
and at most 1 MiB of the frame. Parts of one lane are in order, those of the two lanes are mixed:
the next part of an urgent frame is sent before the next one of any other.
"""

import struct
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

PART_BYTES = 1 << 20
HEADER = struct.Struct("<B7xQ")
URGENT, BULK = 0, 1  # the lanes


class PartError(ValueError):
    """Bytes that are no part of a frame."""


def cut(buffers: Sequence[bytes | memoryview], lane: int) -> Iterator[bytes]:
    """The parts of the frame that the buffers hold one after the other, as copies."""
    views = [memoryview(buffer).cast("B") for buffer in buffers]
    header = HEADER.pack(lane, sum(len(view) for view in views))
    pieces, room = [header], PART_BYTES
    for view in views:
        while len(view) > room:
            yield b"".join((*pieces, view[:room]))
            view, pieces, room = view[room:], [header], PART_BYTES
        pieces.append(view)  # type: ignore[arg-type]
        room -= len(view)
    yield b"".join(pieces)


class Joiner:
    """Makes frames of the parts that one stream brings; none larger than `limit` bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._begun: dict[int, tuple[memoryview, int]] = {}  # by lane: the frame, and bytes so far

    def add(self, part: bytes) -> memoryview | None:
        """The frame that a part completes, None before its last part. Raises PartError.

        A frame of one part is not copied.
        """
        if not HEADER.size <= len(part) <= HEADER.size + PART_BYTES:
            raise PartError(f"a part of {len(part):,} bytes")
        lane, total = HEADER.unpack_from(part)
        if lane not in (URGENT, BULK) or part[1:8] != bytes(7):
            raise PartError("a part of no lane")
        if total > self._limit:
            raise PartError(f"a frame of {total:,} bytes, and the limit is {self._limit:,}")
        content = memoryview(part)[HEADER.size :]
        if lane not in self._begun:
            if len(content) == total:
                return content
            # A part that is not the last one is full, which bounds the number of parts.
            if len(content) != PART_BYTES or len(content) > total:
                raise PartError("a first part that is not of its frame's size")
            self._begun[lane] = np.empty(total, np.uint8).data, 0
        frame, filled = self._begun[lane]
        end = filled + len(content)
        if len(frame) != total or end > total or (end < total and len(content) != PART_BYTES):
            raise PartError("a part that is not of the frame before it")
        frame[filled:end] = content
        self._begun[lane] = frame, end
        if end < total:
            return None
        del self._begun[lane]
        return frame


class Outgoing:
    """The parts that wait to be sent on one stream: an iterator that ends after `end`."""

    def __init__(self, room: int) -> None:
        """`room`: how many bytes may wait before a sender has to, beside one part."""
        self._changed = threading.Condition()
        self._lanes: tuple[deque[bytes], deque[bytes]] = (deque(), deque())
        self._sending = threading.Lock()  # whoever adds the parts of a frame that is not urgent
        self._room, self._waiting = room, 0
        self.ended = False

    def put(self, parts: Iterable[bytes], lane: int) -> bool:
        """Add the parts of a frame; False when the stream has ended.

        Waits until there is room for each part, but for an urgent one.
        """
        if lane == URGENT:
            return self._add(list(parts), lane)
        with self._sending:
            return all(self._add([part], lane) for part in parts)

    def _add(self, parts: Sequence[bytes], lane: int) -> bool:
        with self._changed:
            while lane != URGENT and self._waiting > self._room and not self.ended:
                self._changed.wait()
            if self.ended:
                return False
            self._lanes[lane].extend(parts)
            self._waiting += sum(map(len, parts))
            self._changed.notify_all()
        return True

    @property
    def is_sending(self) -> bool:
        """Whether a frame that is not urgent waits, or a part of it."""
        return self._sending.locked() or bool(self._lanes[BULK])

    def end(self) -> None:
        """Drop what waits, and let the iterator end."""
        with self._changed:
            self.ended = True
            self._lanes[URGENT].clear()
            self._lanes[BULK].clear()
            self._changed.notify_all()

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        with self._changed:
            while not self.ended:
                for lane in self._lanes:
                    if lane:
                        part = lane.popleft()
                        was_full, self._waiting = (
                            self._waiting > self._room,
                            self._waiting - len(part),
                        )
                        if was_full:
                            self._changed.notify_all()
                        return part
                self._changed.wait()
        raise StopIteration
