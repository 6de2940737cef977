"""The manifest of exported embeddings: docs/formats/embeddings.md and docs/formats/redis.md."""

from dataclasses import dataclass, fields
from typing import Annotated, ClassVar, Literal, TypedDict, TypeVar

from pydantic import Field

from tnctl.checkpoint.chain import GOLDEN
from tnctl.checkpoint.document import Clock, Sessions
from tnctl.documents import Count, Finite, Name, Sha256, Uint64Text, omitted, shown
from tnctl.errors import quoted
from tnctl.file_urls import is_plain
from tnctl.manifest import Manifest
from tnctl.serving.artefact_document import CheckpointReference, Folder, RowsGolden, check_files
from tnctl.serving.precision import Precision, RowShape
from tnctl.tables.columns import group_salt
from tnctl.tables.dictionary import BLOCK, HEADER

MOST_WIDTH = 65_536  # floats of an embedding
MOST_DELTAS = 8  # that may stand on a full export
MOST_BUCKETS = 2**32 - 1
REDIS_FIELD = 64  # bytes of a part of a payload, in a field of its own
INDEX_LINE, INDEX_RECORDS = 64, 42  # bytes of a line of an index, and records per line

Encoding = Literal["parquet", "text", "dictionary"]
Pooling = Literal["sum", "mean", "sqrtn", "none"]
ENCODINGS: tuple[Encoding, ...] = ("parquet", "text", "dictionary")
# An encoding -> how the names of a group's rows, removed ids and index end, where it has them.
SUFFIXES = {
    "parquet": (".parquet", ".removed.parquet", None),
    "text": (".txt", ".removed.txt", None),
    "dictionary": (".dictionary", None, ".index"),
}
NotNegative = Annotated[Finite, Field(ge=0)]


@dataclass(frozen=True, kw_only=True)
class Base:
    """What a delta stands on: a folder beside it, or a path or URL, and its manifest's checksum."""

    folder: Folder
    sha256: Sha256

    def __post_init__(self) -> None:
        odd = "\0" in self.folder or not is_plain(self.folder)
        if odd or self.folder.strip("/") in ("", ".", ".."):
            raise ValueError(f"folder is no name, path or URL: {quoted(self.folder)}")


@dataclass(frozen=True, kw_only=True)
class Filter:
    """Which rows are wanted: of groups that these slots read, by decayed show."""

    slots: tuple[Name, ...] | None = None
    min_show: Finite | None = None
    top: Count | None = None  # rows of each group

    @property
    def counts(self) -> bool:
        """Whether it asks for shows."""
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
    """The last of the top rows of a group: those with more show pass, of equals the lower hash."""

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


def worse(one: PrecisionError | None, other: PrecisionError | None) -> PrecisionError | None:
    """Of two errors, those of rows before and of a delta, the larger figures."""
    if one is None or other is None:
        return one or other
    return PrecisionError(
        max=max(one.max, other.max), rms=max(one.rms, other.rms), bound=max(one.bound, other.bound)
    )


@dataclass(frozen=True, kw_only=True)
class GroupRows:
    """What every encoding says of a share group."""

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


class GroupFields(TypedDict):
    """The fields of GroupRows but for `error`, which is known when the rows are written."""

    group: str
    table: str
    rows: int
    removed: int
    linear: bool
    width: int
    cvm: bool
    precision: Precision
    salt: str
    threshold: Threshold | None


class FileFields(TypedDict):
    """The fields that FileGroup has beside those of GroupRows."""

    file: str
    removed_file: str | None
    index: str | None


@dataclass(frozen=True, kw_only=True)
class FileGroup(GroupRows):
    """A share group whose rows are in files."""

    file: str
    removed_file: str | None
    index: str | None = omitted()  # of a dictionary


@dataclass(frozen=True, kw_only=True)
class BucketGroup(GroupRows):
    """A share group whose rows are in hashes of a Redis server."""

    buckets: Annotated[int, Field(ge=1, le=MOST_BUCKETS)]
    fields_per_row: Annotated[int, Field(ge=1, le=256)]

    @classmethod
    def of(cls, entry: GroupRows, buckets: int, fields_per_row: int) -> "BucketGroup":
        """A group's entry, with where its rows are."""
        common = {field.name: getattr(entry, field.name) for field in fields(entry)}
        return cls(**common, buckets=buckets, fields_per_row=fields_per_row)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.fields_per_row != -(-self.shape.stride // REDIS_FIELD):
            raise ValueError(
                f"fields_per_row of group {self.group} is {self.fields_per_row}, and its rows "
                f"have {self.shape.stride} bytes"
            )


@dataclass(frozen=True, kw_only=True)
class SlotEntry:
    """A slot whose rows are there, and how they are pooled."""

    slot: Name
    group: Name
    pooling: Pooling


@dataclass(frozen=True, kw_only=True)
class RowsManifest(Manifest):
    """What the manifest of every encoding says."""

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


@dataclass(frozen=True, kw_only=True)
class ExportManifest(RowsManifest):
    """The manifest of embeddings in files."""

    encoding: Encoding
    groups: tuple[FileGroup, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        for entry in self.groups:
            expected = names_of(self.encoding, entry)
            for key, name in expected.items():
                if getattr(entry, key) != name:
                    raise ValueError(
                        f"{key} of group {entry.group} is {shown(getattr(entry, key))}, and should "
                        f"be {shown(name)}"
                    )
        if self.sha256:  # else its files are on their way
            named = {name for entry in self.groups for name in files_of(entry)}
            check_files(self.files, named | ({GOLDEN} if self.golden else set()))
            for entry in self.groups:
                self._check_sizes(entry)

    def _check_sizes(self, entry: FileGroup) -> None:
        """Raise ValueError when a file has not the size of so many rows."""
        records = entry.rows + entry.removed
        least: dict[str | None, int] = {}
        exact: dict[str | None, int] = {}
        if self.encoding == "dictionary":
            delta = self.kind == "delta"
            exact = {
                entry.file: dictionary_size(entry.shape, records, delta),
                entry.index: index_size(records),
            }
        elif self.encoding == "text":
            least = {
                entry.file: entry.rows * (4 + 2 * entry.shape.columns),
                entry.removed_file: entry.removed * 2,
            }
        # How Parquet packs rows is its own affair.
        for name in files_of(entry):
            size = self.files[name].bytes
            if size != exact.get(name, size) or size < least.get(name, 0):
                raise ValueError(
                    f"{name} has {size:,} bytes, which {entry.rows:,} rows and {entry.removed:,} "
                    "removed keys cannot have"
                )


@dataclass(frozen=True, kw_only=True)
class RedisManifest(RowsManifest):
    """The manifest of embeddings in a Redis server; `sequence`: the deltas that it has taken."""

    encoding: Literal["redis"]
    groups: tuple[BucketGroup, ...]
    sequence: Count

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kind != "full":
            raise ValueError("kind is delta, and Redis has all rows")
        if self.sha256:
            check_files(self.files, {GOLDEN} if self.golden else set())


def names_of(encoding: Encoding, entry: FileGroup) -> dict[str, str | None]:
    """The names that an encoding gives the files of a group, by the entry's keys."""
    rows, removed, index = SUFFIXES[encoding]
    return {
        "file": f"{entry.group}{rows}",
        "removed_file": f"{entry.group}{removed}" if removed and entry.removed else None,
        "index": f"{entry.group}{index}" if index else None,
    }


def files_of(entry: FileGroup) -> list[str]:
    """The files of a group."""
    return [name for name in (entry.file, entry.removed_file, entry.index) if name is not None]


def dictionary_size(shape: RowShape, records: int, delta: bool) -> int:
    """The bytes of a dictionary: docs/formats/dictionary.md."""
    content = records * (8 + 4 * delta + shape.stride)
    return HEADER.size + content + 4 * -(-content // BLOCK) + 8


def index_size(records: int) -> int:
    """The bytes of a dictionary's index."""
    return INDEX_LINE * (records // INDEX_RECORDS + 3)


def check_uint64(key: str, text: str) -> None:
    """Raise ValueError for a decimal text of more than 64 bits."""
    if int(text) >= 2**64:
        raise ValueError(f"{key} is {text}, which has more than 64 bits")
