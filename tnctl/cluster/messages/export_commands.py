"""Commands of rank 0 (commands.py) to workers that write an export, each the rows of its shards."""

from dataclasses import dataclass
from typing import Literal

from tnctl.documents import Count, Name, Sha256, Text
from tnctl.manifest import FileEntry
from tnctl.serving.rows.export_document import ExportManifest, FileGroup, Filter, Threshold
from tnctl.serving.rows.precision import Precision


@dataclass(frozen=True, kw_only=True)
class Manifested:
    """A folder, and the SHA-256 of its manifest."""

    folder: Text
    sha256: Sha256


@dataclass(frozen=True, kw_only=True)
class SelectRows:
    """Select the rows of a checkpoint, or those that differ from an export `since`.

    The reply is `RowsSelected`.
    """

    command: Literal["select_rows"] = "select_rows"
    checkpoint: Manifested
    since: Manifested | None
    encoding: Text
    precision: Precision
    filter: Filter


@dataclass(frozen=True, kw_only=True)
class SendTopRows:
    """Candidates for the top rows of a group, by its number among those of the selection.

    The reply is their shows, float64 [rows], then their hashes, uint64 [rows].
    """

    command: Literal["send_top_rows"] = "send_top_rows"
    group: Count
    first: Count
    rows: Count


@dataclass(frozen=True, kw_only=True)
class CountSelected:
    """Count the rows of each group; the reply is `SelectedCounts`.

    With a filter `top`, `thresholds` has the last of the top rows of each group.
    """

    command: Literal["count_selected"] = "count_selected"
    thresholds: tuple[Threshold | None, ...]


@dataclass(frozen=True, kw_only=True)
class WriteSelected:
    """Write the files of this worker's part into a folder; the reply is `SelectedWritten`."""

    command: Literal["write_selected"] = "write_selected"
    folder: Text


@dataclass(frozen=True, kw_only=True)
class OpenWritten:
    """Open what was written to a folder, over the chain of `SelectRows`, for `LookUpRows`."""

    command: Literal["open_written"] = "open_written"
    folder: Text
    content: ExportManifest


@dataclass(frozen=True, kw_only=True)
class LookUpRows:
    """Look up ids of this worker's part in a group; `ids` (uint64) are base64, little-endian.

    The reply is which are known, n bytes, 0 or 1, then their rows, float32 [n, columns].
    """

    command: Literal["look_up_rows"] = "look_up_rows"
    group: Name
    ids: str


ExportCommand = SelectRows | SendTopRows | CountSelected | WriteSelected | OpenWritten | LookUpRows


# ---- Replies -----------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class RowsSelected:
    """With a filter `top`, of each group its rows, and the candidates for the top ones."""

    top: tuple[tuple[Count, Count], ...]


@dataclass(frozen=True, kw_only=True)
class SelectedCounts:
    """The rows and removed keys of each group."""

    groups: tuple[tuple[Count, Count], ...]


@dataclass(frozen=True, kw_only=True)
class SelectedWritten:
    """The entries of the manifest of what was written."""

    groups: tuple[FileGroup, ...]
    files: dict[str, FileEntry]
