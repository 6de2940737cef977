"""ORC files, stripe by stripe."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO, ClassVar

import pyarrow as pa
import pyarrow.orc

from tnctl import limits
from tnctl.data.formats import orc_tail
from tnctl.data.formats.arrow_files import ArrowReader
from tnctl.errors import Failure


@dataclass(frozen=True)
class OrcReader(ArrowReader):
    """Reads ORC, with columns in the types of the file."""

    format: ClassVar[str] = "ORC"
    group: ClassVar[str] = "stripe"

    def opened(self, url: str, stream: BinaryIO) -> "OrcFile":
        return OrcFile(url, stream)


class OrcFile:
    """An open ORC file. Its stripes are decoded as a whole, which a writer keeps it small for."""

    def __init__(self, url: str, stream: BinaryIO) -> None:
        self._url, self._file = url, pa.orc.ORCFile(stream)
        self.schema = self._file.schema
        self.group_rows = orc_tail.stripe_rows(
            self._file.reader.serialized_file_tail(), self._file.file_length
        )

    def batches(self, needed: list[str], groups: Sequence[int]) -> Iterator[pa.RecordBatch]:
        """The rows of some stripes, one batch for each.

        Raises `Failure` for a stripe with more values than are read at once.
        """
        for group in groups:
            values = self.group_rows[group] * len(needed)
            if values > limits.GROUP_VALUES:
                raise Failure(
                    f"{self._url}, stripe {group + 1}: {values:,} values in {len(needed)} columns, "
                    f"and a stripe has at most {limits.GROUP_VALUES:,}. Write smaller stripes"
                )
            yield self._file.read_stripe(group, columns=needed)
