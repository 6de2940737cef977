"""Files of vectors that were trained elsewhere, one for each value of a slot."""

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt
from numpy.typing import NDArray

from tnctl import files
from tnctl.data import Float32s, numbers
from tnctl.data.formats.arrow_files import ParquetReader, translated
from tnctl.data.statistics import read_vocabulary
from tnctl.errors import Failure, quoted, refuse_if

MATRIX, LIST = ".npy", ".txt"


class Vectors(NamedTuple):
    """Values [n], texts or integers, and the vector of each, float32 [n, width], all finite."""

    values: pa.Array
    floats: Float32s


def read_vectors(url: str) -> Vectors:
    """The vectors of a Parquet file, or of NAME.npy with the values in the lines of NAME.txt.

    Raises `Failure` for files that are missing, damaged or empty, columns or a matrix of other
    types, vectors of unequal lengths, and numbers that are not finite.
    """
    values, matrix = (_of_matrix if url.endswith(MATRIX) else _of_columns)(url)
    refuse_if(not matrix.size, f"{url} has no vector. Name a file with one for each value", Failure)
    with np.errstate(over="ignore"):
        floats = matrix.astype(np.float32, copy=False)
    finite = np.isfinite(floats).all(axis=1)
    if not finite.all():
        value = quoted(str(values[int(finite.argmin())].as_py()))
        raise Failure(f"{url}: the vector of {value} has a number that is not finite. Correct it")
    return Vectors(values, floats)


def columns_of_vectors(schema: pa.Schema) -> tuple[str, str] | None:
    """The columns of values and of vectors, if a file has these two and no other."""
    lists = [
        field.name
        for field in schema
        if numbers.has_values(field.type) and pt.is_floating(field.type.value_type)
    ]
    values = [
        field.name
        for field in schema
        if numbers.is_text(field.type) or pt.is_integer(field.type) or pt.is_dictionary(field.type)
    ]
    return (*values, *lists) if len(lists) == len(values) == 1 and len(schema) == 2 else None


def _of_columns(url: str) -> tuple[pa.Array, NDArray[np.floating]]:
    with ParquetReader.opened(url) as stream:
        table = pq.read_table(stream)
    columns = columns_of_vectors(table.schema)
    if columns is None:
        names = ", ".join(f"{field.name} ({field.type})" for field in table.schema)
        raise Failure(
            f"{url} must have two columns: values (texts or integers), and lists of floats. "
            f"Received: {names or 'none'}"
        )
    values, lists = (numbers.flat(table.column(name)) for name in columns)
    flat, lengths = numbers.listed(lists)
    if len(other := np.flatnonzero(lengths != lengths[:1])):
        row = int(other[0])
        raise Failure(
            f"{url}, row {row + 1}: the vector has {lengths[row]:,} floats, and that of row 1 has "
            f"{lengths[0]:,}. Write vectors of one length"
        )
    return values, numbers.as_numpy(flat).reshape(len(values), -1 if len(flat) else 0)


def _of_matrix(url: str) -> tuple[pa.Array, NDArray[np.floating]]:
    way = "Write it with numpy.save, a matrix of floats"
    with files.open_input(url) as stream, translated(url, "NumPy", way):
        matrix = np.lib.format.read_array(stream, allow_pickle=False)
    refuse_if(
        matrix.ndim != 2 or matrix.dtype.kind != "f",
        f"{url} must be a matrix of floats, [values, width]. Received: {matrix.dtype} "
        f"{list(matrix.shape)}",
        Failure,
    )
    beside = url.removesuffix(MATRIX) + LIST
    values = read_vocabulary(beside)
    refuse_if(
        len(values) != len(matrix),
        f"{beside} has {len(values):,} values, and {url} has {len(matrix):,} rows. Write a line "
        "for each row",
        Failure,
    )
    return pa.array(values), matrix
