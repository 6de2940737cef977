"""The manifest of exported embeddings, with what all formats have. docs/formats/embeddings.md."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from tnctl.checkpoint.chain import GOLDEN
from tnctl.checkpoint.document import Clock, Sessions
from tnctl.documents import Count, Finite, Name, Sha256, Uint64Text, omitted, shown
from tnctl.errors import quoted
from tnctl.file_urls import is_plain
from tnctl.manifest import Manifest
from tnctl.serving.artefact_document import CheckpointReference, Folder, RowsGolden, check_files
from tnctl.serving.rows.export_formats import file_formats, format_of
from tnctl.serving.rows.precision import Precision, RowShape
from tnctl.tables.columns import group_salt

MOST_WIDTH = 65_536  # floats of an embedding
MOST_DELTAS = 8  # on top of a full export

Pooling = Literal["sum", "mean", "sqrtn", "none"]
NotNegative = Annotated[Finite, Field(ge=0)]


@dataclass(frozen=True, kw_only=True)
class Base:
    """The export that a delta continues: a folder beside it, or a path or URL, and its checksum."""

    folder: Folder
    sha256: Sha256

    def __post_init__(self) -> None:
        odd = "\0" in self.folder or not is_plain(self.folder)
        if odd or self.folder.strip("/") in ("", ".", ".."):
            raise ValueError(f"folder is no name, path or URL: {quoted(self.folder)}")


@dataclass(frozen=True, kw_only=True)
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


@dataclass(frozen=True, kw_only=True)
class Threshold:
    """The last of a group's top rows: more show passes, and at equal show a lower hash."""

    show: Finite
    hash: Uint64Text  # JSON readers that count in doubles would round a number

    def __post_init__(self) -> None:
        check_uint64("hash", self.hash)


@dataclass(frozen=True, kw_only=True)
class PrecisionError:
    """How far the stored embeddings of a group are from the trained ones.

    The largest deviation, the root of the mean square, and what no deviation can exceed.
    """

    max: NotNegative
    rms: NotNegative
    bound: NotNegative


@dataclass(frozen=True, kw_only=True)
class GroupRows:
    """What the document of every format has of a share group."""

    group: Name
    table: Name
    rows: Count
    removed: Count
    linear: bool
    width: Annotated[int, Field(ge=0, le=MOST_WIDTH)]
    cvm: bool
    precision: Precision
    salt: Uint64Text
    threshold: Threshold | None = None
    error: PrecisionError | None = None

    def __post_init__(self) -> None:
        if self.salt != str(group_salt(self.group)):
            raise ValueError(
                f"salt of group {self.group} is {self.salt}, and its name gives "
                f"{group_salt(self.group)}"
            )
        if self.shape.columns == 0:
            raise ValueError(f"rows of group {self.group} have no floats")
        if self.error is not None and (self.precision == "float32" or not self.width):
            raise ValueError(f"rows of group {self.group} are exact, and have an error")

    @property
    def shape(self) -> RowShape:
        """What its rows are."""
        return RowShape(self.linear, self.width, self.cvm, self.precision)


@dataclass(frozen=True, kw_only=True)
class FileGroup(GroupRows):
    """A share group whose rows are in files."""

    file: str
    removed_file: str | None
    index: str | None = omitted()  # of a dictionary

    @property
    def names(self) -> list[str]:
        """The files of the group."""
        return [name for name in (self.file, self.removed_file, self.index) if name is not None]


@dataclass(frozen=True, kw_only=True)
class SlotEntry:
    """A slot whose rows are exported, and how they are pooled."""

    slot: Name
    group: Name
    pooling: Pooling


@dataclass(frozen=True, kw_only=True)
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
    golden: RowsGolden | None

    def __post_init__(self) -> None:
        delta = self.kind == "delta"
        if delta != (self.base is not None) or delta != (self.number > 0):
            raise ValueError("a delta has a base and a number, and a full export has neither")
        self._check_groups()

    def _check_groups(self) -> None:
        """Raise ValueError unless groups and slots fit together."""
        names = [entry.group for entry in self.groups]
        if len(set(names)) < len(names):
            raise ValueError("a group is there twice")
        if len({entry.slot for entry in self.slots}) < len(self.slots):
            raise ValueError("a slot is there twice")
        for slot in self.slots:
            if slot.group not in names:
                raise ValueError(f"slot {slot.slot} reads from a group that is not there")
        for entry in self.groups:
            if entry.precision != self.precision:
                raise ValueError(f"group {entry.group} has another precision than the manifest")
            if entry.removed and self.kind == "full":
                raise ValueError(f"group {entry.group} of a full export has removed keys")

    @property
    def exact(self) -> bool:
        """Whether it has all rows, and all bits of them."""
        return self.precision == "float32" and not self.filter.given

    @property
    def shapes(self) -> dict[str, RowShape]:
        """The rows of every group, by its name."""
        return {entry.group: entry.shape for entry in self.groups}


AnyRows = TypeVar("AnyRows", bound=RowsManifest)


def _file_format(name: str) -> str:
    *names, last = map(repr, file_formats())
    if repr(name) not in (*names, last):
        raise PydanticCustomError("encoding", f"should be {', '.join(names)} or {last}")
    return name


@dataclass(frozen=True, kw_only=True)
class ExportManifest(RowsManifest):
    """The manifest of embeddings in files; `encoding` is the name of their format."""

    encoding: Annotated[str, AfterValidator(_file_format)]
    groups: tuple[FileGroup, ...]

    @property
    def file_format(self) -> Any:
        """The FileFormat that writes and reads the files."""
        return format_of(self.encoding)

    def __post_init__(self) -> None:
        super().__post_init__()
        for entry in self.groups:
            for key, name in self.file_format.names(entry.group, entry.removed).items():
                if getattr(entry, key) != name:
                    raise ValueError(
                        f"{key} of group {entry.group} is {shown(getattr(entry, key))}, and should "
                        f"be {shown(name)}"
                    )
        if self.sha256:  # else its files are still being written
            self._check_files()

    def _check_files(self) -> None:
        """Raise ValueError for other files, or a file that cannot have so many rows."""
        names = {name for entry in self.groups for name in entry.names}
        check_files(self.files, names | ({GOLDEN} if self.golden else set()))
        for entry in self.groups:
            for name in entry.names:
                size, delta = self.files[name].bytes, self.kind == "delta"
                if not self.file_format.can_have_size(entry, name, size, delta):
                    raise ValueError(
                        f"{name} has {size:,} bytes, which {entry.rows:,} rows and "
                        f"{entry.removed:,} removed keys cannot have"
                    )


def check_uint64(key: str, text: str) -> None:
    """Raise ValueError for a decimal text of more than 64 bits."""
    if int(text) >= 2**64:
        raise ValueError(f"{key} is {text}, which has more than 64 bits")
