"""The columns of a Parquet file's row groups, as its footer describes them.

Arrow ends the process where the description of a column contradicts itself, so what is needed of it
before the file is read is read here: numbers of the footer, which is Thrift's compact protocol
(apache/parquet-format, parquet.thrift; apache/thrift, thrift-compact-protocol.md).
"""

import struct
from typing import Any, BinaryIO, NamedTuple

DEEPEST = 32  # structs within structs
# Numbers of fields in parquet.thrift.
ROW_GROUPS, ROW_GROUP_ROWS, COLUMNS, COLUMN_METADATA = 4, 3, 1, 3
VALUES, UNCOMPRESSED_BYTES, COMPRESSED_BYTES = 5, 6, 7


class Column(NamedTuple):
    """A column of a row group: how many values it has, and the bytes they take."""

    values: int
    uncompressed_bytes: int
    compressed_bytes: int


class Group(NamedTuple):
    """A row group."""

    rows: int
    columns: list[Column]


def groups(stream: BinaryIO) -> list[Group]:
    """The row groups of a seekable file, whose footer Arrow could read. Raises ValueError."""
    stream.seek(-8, 2)
    length = int.from_bytes(stream.read(4), "little")
    stream.seek(-8 - length, 2)
    try:
        footer = _Compact(stream.read(length)).struct()
        return [_group(group) for group in footer[ROW_GROUPS]]
    except (IndexError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise ValueError("its footer cannot be read") from error


def _group(fields: dict[int, Any]) -> Group:
    columns = []
    for chunk in fields[COLUMNS]:
        metadata = chunk[COLUMN_METADATA]
        column = Column(metadata[VALUES], metadata[UNCOMPRESSED_BYTES], metadata[COMPRESSED_BYTES])
        if min(column) < 0:
            raise ValueError("its footer has a column of less than no values")
        columns.append(column)
    return Group(int(fields[ROW_GROUP_ROWS]), columns)


class _Compact:
    """A reader of Thrift's compact protocol: structs become dicts by the numbers of fields."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at, self._depth = data, 0, 0

    def struct(self) -> dict[int, Any]:
        self._depth += 1
        if self._depth > DEEPEST:
            raise ValueError("its footer is nested too deep")
        fields: dict[int, Any] = {}
        number = 0
        while head := self._byte():
            step, kind = head >> 4, head & 15
            number = number + step if step else self._integer()
            # A truth value is in the kind itself.
            fields[number] = kind == 1 if kind in (1, 2) else self._value(kind)
        self._depth -= 1
        return fields

    def _value(self, kind: int) -> Any:
        match kind:
            case 1 | 2 | 3:  # in lists and maps truth values are bytes
                return self._byte()
            case 4 | 5 | 6:
                return self._integer()
            case 7:
                return struct.unpack("<d", self._bytes(8))[0]
            case 8:
                return self._bytes(self._varint())
            case 9 | 10:
                return self._list()
            case 11:
                return self._map()
            case 12:
                return self.struct()
        raise ValueError(f"its footer has a value of unknown kind {kind}")

    def _list(self) -> list[Any]:
        head = self._byte()
        size = head >> 4 if head >> 4 < 15 else self._varint()
        self._expect(size)
        return [self._value(head & 15) for _ in range(size)]

    def _map(self) -> None:
        """No map is needed; it is passed over."""
        size = self._varint()
        self._expect(size)
        kinds = self._byte() if size else 0
        for _ in range(size):
            self._value(kinds >> 4)
            self._value(kinds & 15)

    def _expect(self, size: int) -> None:
        if size > len(self._data) - self._at:  # each value takes a byte at least
            raise ValueError("its footer is cut short")

    def _bytes(self, size: int) -> bytes:
        self._expect(size)
        self._at += size
        return self._data[self._at - size : self._at]

    def _byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1]

    def _varint(self) -> int:
        value = shift = 0
        while (byte := self._byte()) & 128:
            value |= (byte & 127) << shift
            shift += 7
            if shift > 63:
                raise ValueError("its footer has a number of over 64 bits")
        return value | byte << shift

    def _integer(self) -> int:
        zigzag = self._varint()
        return zigzag >> 1 ^ -(zigzag & 1)
