"""The manifest of prepared data: docs/formats/prepared.md."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from tnctl.data.statistics_document import Measured
from tnctl.documents import Count, Name, RelativePath, Text, Tree, TreeByName
from tnctl.errors import quoted
from tnctl.manifest import Manifest

SplitName = Literal["train", "validation", "test"]
SPLITS: tuple[SplitName, ...] = ("train", "validation", "test")


@dataclass(frozen=True, kw_only=True)
class SplitEntry:
    """A split: its rows, the bad rows left out, its Parquet files in order, its first rows."""

    rows: Count
    skipped: Count
    parts: tuple[RelativePath, ...]
    first: RelativePath


@dataclass(frozen=True, kw_only=True)
class DecidingConf:
    """What of a conf decides the ids, numbers and labels of its rows.

    `data` has the labels, and the names of the files of each split.
    """

    slots: dict[Name, TreeByName]
    numeric: dict[Name, TreeByName]
    data: dict[str, Tree]


@dataclass(frozen=True, kw_only=True)
class PreparedManifest(Manifest):
    """The manifest of prepared data."""

    FORMAT: ClassVar[str] = "tnctl prepared"

    tnctl: Text
    splits: dict[SplitName, SplitEntry]
    statistics: Measured
    conf: DecidingConf

    def __post_init__(self) -> None:
        named = {path for entry in self.splits.values() for path in (*entry.parts, entry.first)}
        if self.files or self.sha256:  # else it is being made
            for path in self.files:
                if path not in named:
                    raise ValueError(f"key 'files' has {quoted(path)}, which no split names")
            if missing := sorted(named - self.files.keys()):
                raise ValueError(f"key 'files' has no {quoted(missing[0])}")
