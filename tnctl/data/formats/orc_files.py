"""ORC files, stripe by stripe."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, ClassVar

import pyarrow as pa
import pyarrow.orc

from tnctl import limits
from tnctl.data.file_pieces import Piece
from tnctl.data.formats.arrow_files import ArrowReader
from tnctl.data.nested_columns import require_paths, stored_columns
from tnctl.errors import Failure, refuse_if


@dataclass(frozen=True)
class OrcReader(ArrowReader):
    """Reads ORC, with columns in the types of the file.

    A file is read as a whole, since pyarrow does not say the rows of a stripe before it is decoded.
    Stripes are decoded one at a time, which a writer keeps them small for.
    """

    format: ClassVar[str] = "ORC"

    def schema(self, stream: BinaryIO) -> pa.Schema:
        return pa.orc.ORCFile(stream).schema

    def counts(self, url: str) -> list[int]:
        with self.opened(url) as stream:
            return [pa.orc.ORCFile(stream).nrows]

    def pieces(self, url: str, needed: list[str]) -> Iterator[Piece]:
        """As in FileReader. Raises `Failure` too where stripes have too many values on average."""
        with self.opened(url) as stream:
            file = pa.orc.ORCFile(stream)
            require_paths(url, needed, file.schema)
            columns = stored_columns(needed, file.schema)
            refuse_large_stripes(url, file, len(columns))
            batches = (file.read_stripe(at, columns=columns) for at in range(file.nstripes))
            yield from self.pieces_of_batches(url, needed, batches)


def refuse_large_stripes(url: str, file: Any, columns: int) -> None:
    """Raise `Failure` where so many columns of a file have too many values in a stripe."""
    values = file.nrows * columns // max(file.nstripes, 1)
    refuse_if(
        values > limits.GROUP_VALUES,
        f"{url}: {values:,} values in a stripe ({columns} columns), and a stripe has at most "
        f"{limits.GROUP_VALUES:,}. Write smaller stripes",
        Failure,
    )
