"""The manifest of exported embeddings, with what all formats have. docs/formats/embeddings.md."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from tnctl.checkpoint.chain import GOLDEN
from tnctl.checkpoint.document import Clock, Sessions
from tnctl.documents import Count, Finite, Hash, Name, Sha256, Uint64Text, omitted
from tnctl.errors import quoted
from tnctl.limits import is_plain
from tnctl.manifest import Manifest
from tnctl.serving.artefact_document import (
    CheckpointReference,
    Folder,
    GoldenEntry,
    check_files,
    document,
    named,
)
from tnctl.serving.rows import file_formats, format_of
from tnctl.serving.rows.precision import Precision, PrecisionError, RowShape

Width = Annotated[int, Field(ge=0, le=65_536)]  # floats of an embedding
HashRange = tuple[int, int]  # the first and the last, both inclusive
ALL_HASHES: HashRange = (0, 2**64 - 1)
MOST_DELTAS = 8  # on top of a full export
OF_A_PART = ("rows", "removed", "file", "removed_file", "index")  # else as of the group

Pooling = Literal["sum", "mean", "sqrtn", "none"]


@document
class Base:
    """The export that a delta continues: a folder beside it, or a path or URL, and its checksum."""

    folder: Folder
    sha256: Sha256

    def __post_init__(self) -> None:
        odd = "\0" in self.folder or not is_plain(self.folder)
        if odd or self.folder.strip("/") in ("", ".", ".."):
            raise ValueError(f"folder is no name, path or URL: {quoted(self.folder)}")


@document
class Filter:
    """Which rows are exported: of the groups that these slots read, by decayed show."""

    slots: tuple[Name, ...] | None = None
    min_show: Finite | None = None
    top: Count | None = None  # rows of each group

    @property
    def counts(self) -> bool:
        """Whether shows decide."""
        return self.min_show is not None or self.top is not None

    @property
    def given(self) -> bool:
        """Whether rows may have been left out."""
        return self.slots is not None or self.counts

    def __str__(self) -> str:
        parts = [] if self.slots is None else [f"only={','.join(self.slots)}"]
        parts += [] if self.min_show is None else [f"min_show={self.min_show:g}"]
        parts += [] if self.top is None else [f"top={self.top}"]
        return " ".join(parts) or "none"


@document
class Threshold:
    """The last of a group's top rows: more show passes, and at equal show a lower hash."""

    show: Finite
    hash: Uint64Text  # JSON readers that count in doubles would round a number


@document
class GroupRows:
    """What the document of every format has of a share group."""

    group: Name
    table: Name
    rows: Count
    removed: Count
    linear: bool
    width: Width
    cvm: bool
    precision: Precision
    salt: Uint64Text
    threshold: Threshold | None = None
    error: PrecisionError | None = None

    @property
    def shape(self) -> RowShape:
        """What its rows are."""
        return RowShape(self.linear, self.width, self.cvm, self.precision)


@document
class FilePart:
    """The files of a share group's rows whose hashes are from `first` to `last`."""

    first: Hash
    last: Hash
    rows: Count
    removed: Count
    file: str
    removed_file: str | None
    index: str | None = omitted()  # of a dictionary


@document
class FileGroup(GroupRows):
    """A share group whose rows are in files: of all rows, or with `parts` of ranges of hashes."""

    file: str | None
    removed_file: str | None
    index: str | None = omitted()  # of a dictionary
    parts: tuple[FilePart, ...] | None = omitted()

    @property
    def rows_file(self) -> str:
        """The file of the rows, of a group without parts."""
        assert self.file is not None
        return self.file

    @property
    def stored(self) -> "list[tuple[HashRange, FileGroup]]":
        """The parts as groups of their own with their hashes; without parts the group with all."""
        if self.parts is None:
            return [(ALL_HASHES, self)]
        return [
            (
                (int(part.first, 16), int(part.last, 16)),
                replace(self, parts=None, **{name: getattr(part, name) for name in OF_A_PART}),
            )
            for part in self.parts
        ]

    @property
    def names(self) -> list[str]:
        """The files of the group."""
        files = ((part.file, part.removed_file, part.index) for part in self.parts or (self,))
        return [name for of_part in files for name in of_part if name is not None]


def stem_of(group: str, part: int | None) -> str:
    """How the names of the files of a group begin, or of its part of that number."""
    return group if part is None else f"{group}-{part:05d}"


@document
class SlotEntry:
    """A slot whose rows are exported, and how they are pooled."""

    slot: Name
    group: Name
    pooling: Pooling


@document
class ValuesEntry:
    """A slot whose ids are named by values, in a file that earlier versions of tnctl wrote.

    `values` is how many there are, `ids` how many ids they name.
    """

    slot: Name
    file: str
    values: Count
    ids: Count


@document
class RowsManifest(Manifest):
    """What the document of every format has."""

    FORMAT: ClassVar[str] = "tnctl embeddings"

    checkpoint: CheckpointReference
    kind: Literal["full", "delta"]
    base: Base | None
    number: Annotated[int, Field(ge=0, le=MOST_DELTAS)]
    encoding: str
    precision: Precision
    filter: Filter
    clock: Clock
    sessions: Sessions
    groups: tuple[GroupRows, ...]
    slots: tuple[SlotEntry, ...]
    golden: GoldenEntry | None

    @property
    def exact(self) -> bool:
        """Whether it has all rows, and all bits of them."""
        return self.precision == "float32" and not self.filter.given

    @property
    def shapes(self) -> dict[str, RowShape]:
        """The rows of every group, by its name."""
        return {entry.group: entry.shape for entry in self.groups}


@document
class ExportManifest(RowsManifest):
    """The manifest of embeddings in files; `encoding` is the name of their format.

    Version 2 has groups whose files are parts, version 1 has none. Version 3 has values of slots;
    it is read, and not written any more.
    """

    VERSION: ClassVar[int] = 3

    encoding: Annotated[str, named(file_formats)]
    groups: tuple[FileGroup, ...]
    values: tuple[ValuesEntry, ...] | None = omitted()

    @classmethod
    def version_of(cls, groups: Sequence[FileGroup]) -> int:
        """The lowest version that has such groups."""
        return 2 if any(group.parts for group in groups) else 1

    @property
    def file_format(self) -> Any:
        """The FileFormat that writes and reads the files."""
        return format_of(self.encoding)

    def __post_init__(self) -> None:
        if self.sha256:  # else its files are still being written
            names = {name for entry in self.groups for name in entry.names}
            names |= {entry.file for entry in self.values or ()}
            check_files(self.files, names | ({GOLDEN} if self.golden else set()))
