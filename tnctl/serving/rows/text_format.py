"""Rows as lines of text: TensorNet's columns. docs/formats/embeddings.md."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc

from tnctl.serving.rows.file_format import Block, BlockFormat, WriteBlock
from tnctl.serving.rows.precision import Payloads, RowShape, Uint64s, decode, encode


class TextFormat(BlockFormat):
    """A line for each row: its id, the number of its floats, and the floats."""

    name, suffix, removed_suffix = "text", ".txt", ".removed.txt"
    precisions = ("float32",)

    def open_blocks(self, stack: ExitStack, file: Any, shape: RowShape | None) -> WriteBlock:
        schema = pa.schema(columns_of(shape, pa.uint32()))
        options = pc.WriteOptions(include_header=False, delimiter="\t", quoting_style="none")
        writer = stack.enter_context(
            pc.CSVWriter(pa.PythonFile(file, mode="w"), schema, write_options=options)
        )

        def write(ids: Uint64s, payload: Payloads) -> None:
            columns: list[Any] = [ids]
            if shape is not None:
                columns.append(np.full(len(ids), shape.columns, np.uint32))
                columns += map(np.ascontiguousarray, decode(payload, shape).T)
            writer.write_table(pa.Table.from_arrays([*map(pa.array, columns)], schema=schema))

        return write

    def read_blocks(self, file: Any, shape: RowShape | None, size: int) -> Iterator[Block]:
        if not file.read(1):
            return
        file.seek(0)
        types = dict(columns_of(shape, pa.int64()))
        for batch in pc.open_csv(
            file,
            pc.ReadOptions(column_names=list(types), block_size=max(size, 1 << 16)),
            pc.ParseOptions(delimiter="\t", quote_char=False),
            pc.ConvertOptions(column_types=types, null_values=[]),
        ):
            ids, *columns = (column.to_numpy() for column in batch.columns)
            yield ids, None if shape is None else encode(np.stack(columns[1:], axis=1), shape)


def columns_of(shape: RowShape | None, dim: pa.DataType) -> list[tuple[str, pa.DataType]]:
    """The columns of a file of rows, or of removed ids; `dim` is the type of the second."""
    columns = [("id", pa.uint64())]
    if shape is not None:
        columns += [("dim", dim), *((str(at), pa.float32()) for at in range(shape.columns))]
    return columns


FORMAT = TextFormat()
