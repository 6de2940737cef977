"""Rows as Parquet files. docs/formats/embeddings.md."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tnctl.serving.rows.file_format import Block, BlockFormat, WriteBlock
from tnctl.serving.rows.precision import Payloads, RowShape, Uint64s


class ParquetFormat(BlockFormat):
    """A column for each part of a payload, a row group for each block."""

    name, suffix, removed_suffix = "parquet", ".parquet", ".removed.parquet"

    def open_blocks(self, stack: ExitStack, file: Any, shape: RowShape | None) -> WriteBlock:
        schema = schema_of(shape)
        # Ids and trained floats do not compress; dictionaries and statistics would only cost time.
        settings = {"compression": "none", "use_dictionary": False, "write_statistics": False}
        writer = stack.enter_context(
            pq.ParquetWriter(pa.PythonFile(file, mode="w"), schema, **settings)
        )
        return lambda ids, payload: writer.write_table(table_of(ids, payload, schema, shape))

    def read_blocks(self, file: Any, shape: RowShape | None, size: int) -> Iterator[Block]:
        opened = pq.ParquetFile(file)
        if not opened.schema_arrow.equals(schema_of(shape)):
            raise ValueError("its columns are not those that its manifest says")
        for batch in opened.iter_batches(max(1, size // ((shape.stride if shape else 0) + 8))):
            payload = None if shape is None else payload_of(batch, shape)
            yield batch.column("id").to_numpy(), payload


def fields_of(shape: RowShape | None) -> list[tuple[str, np.dtype[Any]]]:
    """The fields of a payload that are columns; none in a file of removed ids."""
    return [(name, shape.payload[name]) for name in shape.payload.names or ()] if shape else []


def schema_of(shape: RowShape | None) -> pa.Schema:
    """The columns of a file of rows, or of removed ids."""
    columns = [("id", pa.uint64())]
    for name, field in fields_of(shape):
        kind = pa.from_numpy_dtype(field.base)
        columns.append((name, pa.list_(kind, *field.shape) if field.shape else kind))
    return pa.schema(columns)


def table_of(
    ids: Uint64s, payload: Payloads, schema: pa.Schema, shape: RowShape | None
) -> pa.Table:
    """A column for each field of the payloads [n, stride]."""
    arrays = [pa.array(ids)]
    stored: NDArray[Any] = payload.view(shape.payload) if shape else payload
    for name, field in fields_of(shape):
        values = pa.array(stored[name].reshape(-1))
        arrays.append(
            pa.FixedSizeListArray.from_arrays(values, *field.shape) if field.shape else values
        )
    return pa.Table.from_arrays(arrays, schema=schema)


def payload_of(batch: pa.RecordBatch, shape: RowShape) -> Payloads:
    """The payloads uint8 [n, stride] of a record batch."""
    stored = np.zeros(len(batch), shape.payload)
    for name, field in fields_of(shape):
        column = batch.column(name)
        values = column.flatten() if field.shape else column
        stored[name] = values.to_numpy().reshape(stored[name].shape)
    return stored.view(np.uint8).reshape(len(batch), shape.stride)


FORMAT = ParquetFormat()
