"""The files of one share group of an export, written as its keys come: by ascending hash.

Parquet, text or a dictionary: docs/formats/embeddings.md, docs/formats/dictionary.md. All of them
take stored payloads, so that folding a chain of exports writes what exporting anew would.
"""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tnctl.manifest import Inventory
from tnctl.model.layout import EMBEDDING, LINEAR
from tnctl.serving.export_document import Encoding, FileFields
from tnctl.serving.precision import RowShape, decode
from tnctl.serving.selection import Group
from tnctl.tables.dictionary import DictionaryWriter

# Of Parquet's row groups, of which each share group holds one in memory on its way.
ROWS_PER_GROUP = 1 << 14
ROWS_PER_TEXT = 1 << 14
FLOATS = {"float32": pa.float32(), "float16": pa.float16(), "int8": pa.int8()}
COUNTS, SCALE = "counts", "scale"
REMOVED_SCHEMA = pa.schema([("id", pa.uint64())])


def parquet_schema(shape: RowShape) -> pa.Schema:
    """The columns of a file of such rows."""
    columns = [("id", pa.uint64())]
    if shape.linear:
        columns.append((LINEAR, pa.float32()))
    if shape.cvm and shape.precision != "float32":
        columns.append((COUNTS, pa.list_(pa.float32(), shape.counts)))
    if shape.scaled:
        columns.append((SCALE, pa.float32()))
    if shape.width:
        width = shape.width + (shape.counts if shape.precision == "float32" else 0)
        columns.append((EMBEDDING, pa.list_(FLOATS[shape.precision], width)))
    return pa.schema(columns)


class GroupWriter(Protocol):
    """Writes one group."""

    def add(
        self,
        ids: NDArray[np.uint64],
        hashes: NDArray[np.uint64],
        payload: NDArray[np.uint8],
        removed: NDArray[np.bool_] | None,
    ) -> None:
        """The next keys [n] and their payloads [n, stride]; which are removed [n], if any."""

    def finish(self) -> FileFields:
        """Write what is left; what the manifest says of the files."""


def open_writer(
    encoding: Encoding, stack: ExitStack, inventory: Inventory, group: Group, delta: bool
) -> GroupWriter:
    """The writer of the files of a group, whose counts must be right; `stack` closes them.

    Call `finish` before the stack is closed.
    """
    if encoding == "dictionary":
        return Dictionaries(stack, inventory, group, delta)
    kind = Parquet if encoding == "parquet" else Text
    return kind(stack, inventory, group)


class Buffer:
    """Arrays that are filled and given on when they are full.

    Blocks are of one size, wherever parts end: the same rows are the same bytes. And what comes is
    copied: a view of a large part would keep all of it.
    """

    def __init__(self, size: int, stride: int, full: Callable[[Any, Any], None]) -> None:
        self._ids = np.empty(size, np.uint64)
        self._payload = np.empty((size, stride), np.uint8)
        self._count, self._full = 0, full

    def add(self, ids: NDArray[np.uint64], payload: NDArray[np.uint8]) -> None:
        at, size = 0, len(self._ids)
        while at < len(ids):
            count = min(len(ids) - at, size - self._count)
            own = slice(self._count, self._count + count)
            self._ids[own], self._payload[own] = ids[at : at + count], payload[at : at + count]
            self._count, at = self._count + count, at + count
            if self._count == size:
                self.empty()

    def empty(self) -> None:
        """Give on what is there, if anything is."""
        if self._count:
            self._full(self._ids[: self._count], self._payload[: self._count])
        self._count = 0


class Columns:
    """Rows and removed ids in two files, a block of so many rows at a time."""

    SUFFIX: str
    ROWS: int

    def __init__(self, stack: ExitStack, inventory: Inventory, group: Group) -> None:
        self._shape = group.shape
        self._file = f"{group.name}.{self.SUFFIX}"
        rows = self._opened(stack, inventory, self._file, self._schema())
        size = min(self.ROWS, max(group.rows, 1))
        self._rows = Buffer(
            size, group.shape.stride, lambda *some: self._write(rows, self._table(*some))
        )
        self._removed_file: str | None = None
        if group.removed:
            self._removed_file = f"{group.name}.removed.{self.SUFFIX}"
            removed = self._opened(stack, inventory, self._removed_file, REMOVED_SCHEMA)
            self._removed = Buffer(
                self.ROWS, 0, lambda ids, _: self._write(removed, pa.table({"id": pa.array(ids)}))
            )

    def add(
        self,
        ids: NDArray[np.uint64],
        hashes: NDArray[np.uint64],  # noqa: ARG002 (of dictionaries)
        payload: NDArray[np.uint8],
        removed: NDArray[np.bool_] | None,
    ) -> None:
        if removed is not None and removed.any():
            self._removed.add(ids[removed], payload[removed, :0])
            ids, payload = ids[~removed], payload[~removed]
        self._rows.add(ids, payload)

    def finish(self) -> FileFields:
        self._rows.empty()
        if self._removed_file:
            self._removed.empty()
        return {"file": self._file, "removed_file": self._removed_file, "index": None}

    def _schema(self) -> pa.Schema:
        raise NotImplementedError

    def _table(self, ids: NDArray[np.uint64], payload: NDArray[np.uint8]) -> pa.Table:
        raise NotImplementedError

    def _opened(self, stack: ExitStack, inventory: Inventory, name: str, schema: pa.Schema) -> Any:
        raise NotImplementedError

    def _write(self, writer: Any, table: pa.Table) -> None:
        writer.write_table(table)


class Parquet(Columns):
    """Parquet files."""

    SUFFIX, ROWS = "parquet", ROWS_PER_GROUP

    def _schema(self) -> pa.Schema:
        return parquet_schema(self._shape)

    def _table(self, ids: NDArray[np.uint64], payload: NDArray[np.uint8]) -> pa.Table:
        """Columns of payloads, cut where a payload has its parts."""
        arrays, at = [pa.array(ids)], 0
        for field in list(self._schema())[1:]:
            lists = pa.types.is_fixed_size_list(field.type)
            kind = field.type.value_type if lists else field.type
            count = field.type.list_size if lists else 1
            dtype = np.dtype(kind.to_pandas_dtype())
            part = np.ascontiguousarray(payload[:, at : at + count * dtype.itemsize])
            at += count * dtype.itemsize
            flat = pa.array(part.view(dtype).reshape(-1), kind)
            arrays.append(pa.FixedSizeListArray.from_arrays(flat, count) if lists else flat)
        return pa.Table.from_arrays(arrays, schema=self._schema())

    def _opened(
        self, stack: ExitStack, inventory: Inventory, name: str, schema: pa.Schema
    ) -> pq.ParquetWriter:
        file = stack.enter_context(inventory.writing(name))
        # Ids and trained floats do not compress; dictionaries and statistics would only cost time.
        return stack.enter_context(
            pq.ParquetWriter(
                pa.PythonFile(file, mode="w"),
                schema,
                compression="none",
                use_dictionary=False,
                write_statistics=False,
            )
        )


class Text(Columns):
    """Text files, TensorNet's columns of a key and its weights."""

    SUFFIX, ROWS = "txt", ROWS_PER_TEXT

    def _schema(self) -> pa.Schema:
        columns = [("id", pa.uint64()), ("dim", pa.uint32())]
        columns += [(str(number), pa.float32()) for number in range(self._shape.columns)]
        return pa.schema(columns)

    def _table(self, ids: NDArray[np.uint64], payload: NDArray[np.uint8]) -> pa.Table:
        floats = decode(payload, self._shape)
        dims = np.full(len(ids), self._shape.columns, np.uint32)
        columns = [np.ascontiguousarray(column) for column in floats.T]
        return pa.Table.from_arrays(
            [pa.array(ids), pa.array(dims), *map(pa.array, columns)], schema=self._schema()
        )

    def _opened(
        self, stack: ExitStack, inventory: Inventory, name: str, schema: pa.Schema
    ) -> pyarrow.csv.CSVWriter:
        file = stack.enter_context(inventory.writing(name))
        options = pyarrow.csv.WriteOptions(
            include_header=False, delimiter="\t", quoting_style="none"
        )
        return stack.enter_context(
            pyarrow.csv.CSVWriter(pa.PythonFile(file, mode="w"), schema, write_options=options)
        )


class Dictionaries:
    """A dictionary, and its index."""

    def __init__(self, stack: ExitStack, inventory: Inventory, group: Group, delta: bool) -> None:
        self._inventory = inventory
        self._file, self._index = f"{group.name}.dictionary", f"{group.name}.index"
        file = stack.enter_context(inventory.writing(self._file))
        shape = group.shape
        self._writer = DictionaryWriter(
            file.write,
            salt=group.salt,
            linear=shape.linear,
            width=shape.width,
            cvm=shape.cvm,
            precision=shape.precision,
            stride=shape.stride,
            records=group.rows + group.removed,
            removed=group.removed,
            delta=delta,
        )

    def add(
        self,
        ids: NDArray[np.uint64],  # noqa: ARG002 (a hash says which)
        hashes: NDArray[np.uint64],
        payload: NDArray[np.uint8],
        removed: NDArray[np.bool_] | None,
    ) -> None:
        self._writer.add(hashes, payload, removed)

    def finish(self) -> FileFields:
        self._inventory.write(self._index, self._writer.finish())
        return {"file": self._file, "removed_file": None, "index": self._index}
