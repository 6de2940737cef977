"""The manifest of tables that are written for TensorNet: docs/formats/tensornet.md."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from tnctl.documents import Count, Name
from tnctl.manifest import Manifest
from tnctl.ownership import TENSORNET
from tnctl.serving.artefact_document import CheckpointReference, check_files
from tnctl.tensornet.row_forms import WIDEST
from tnctl.tensornet.table_folders import BLOCKS, SPARSE

MOST_RANKS = 64
TableName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_]{1,128}$")]


@dataclass(frozen=True, kw_only=True)
class WrittenTable:
    """A table: the share group and the segment whose weights it has, and its rows."""

    name: TableName
    group: Name
    segment: Name
    optimizer: str
    dim: Annotated[int, Field(ge=1, le=WIDEST)]
    rows: Count


def block_name(table: str, rank: int, block: int) -> str:
    """The file of a block."""
    return f"{SPARSE}/{table}/rank_{rank}/block_{block}.gz"


@dataclass(frozen=True, kw_only=True)
class TablesManifest(Manifest):
    """The manifest of the folder, which TensorNet ignores."""

    FORMAT: ClassVar[str] = TENSORNET.text

    checkpoint: CheckpointReference
    ranks: Annotated[int, Field(ge=1, le=MOST_RANKS)]
    tables: tuple[WrittenTable, ...]

    def __post_init__(self) -> None:
        if len({table.name for table in self.tables}) < len(self.tables):
            raise ValueError("two tables have the same name")
        if self.sha256:  # else its files are still being written
            names = {
                block_name(table.name, rank, block)
                for table in self.tables
                for rank in range(self.ranks)
                for block in range(BLOCKS)
            }
            check_files(self.files, names)
