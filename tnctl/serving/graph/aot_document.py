"""The key `aot` of serving.json: what a graph was compiled to. docs/aot.md.

Its texts are written into C++ and makefiles, so each has a pattern that is harmless there.
"""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from tnctl.documents import Name, RelativePath, Sha256

MOST_ROWS = 65_536  # examples of a batch

Word = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+-]{0,99}$")]
Rows = Annotated[int, Field(ge=1, le=MOST_ROWS)]


@dataclass(frozen=True, kw_only=True)
class CompiledSize:
    """The graph for batches of so many rows.

    `feeds` and `fetches` are the inputs and outputs of signature packed, with their names in the
    compiled graph.
    """

    rows: Rows
    class_: Annotated[Word, Field(alias="class")]
    header: RelativePath
    objects: tuple[RelativePath, ...]
    feeds: dict[Name, Name]
    fetches: dict[Name, Name]

    @property
    def paths(self) -> tuple[str, ...]:
        """Its files."""
        return (self.header, *self.objects)


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """A graph that was compiled ahead of time; `identity` is a checksum of all its files."""

    identity: Sha256
    tensorflow: Word
    target_triple: Word
    target_cpu: Word
    runtime: tuple[RelativePath, ...]
    sizes: Annotated[tuple[CompiledSize, ...], Field(min_length=1)]

    @property
    def paths(self) -> list[str]:
        """The files of all sizes."""
        return [path for size in self.sizes for path in size.paths]
