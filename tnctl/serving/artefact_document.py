"""What the manifests of exported embeddings and of split graphs both have.

The checkpoint that they were made from, and their golden rows.

docs/formats/manifest.md and docs/formats/golden.md.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from tnctl.checkpoint.chain import Checkpoint
from tnctl.documents import Count, Finite, Sha256
from tnctl.errors import quoted
from tnctl.manifest import FileEntry
from tnctl.masking import masked

MOST_FOLDER = 4096  # characters of a folder's path or URL

Folder = Annotated[str, Field(min_length=1, max_length=MOST_FOLDER)]
Deviation = Annotated[Finite, Field(ge=0)]


@dataclass(frozen=True, kw_only=True)
class CheckpointReference:
    """The checkpoint that something was made from; `folder`, where it was then, is only shown."""

    folder: Folder
    sha256: Sha256
    step: Count

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> "CheckpointReference":
        """The reference to a checkpoint that was read."""
        return cls(
            folder=masked(checkpoint.folder),
            sha256=checkpoint.manifest.sha256,
            step=checkpoint.step,
        )


@dataclass(frozen=True, kw_only=True)
class GraphDeviation:
    """How far a graph is from the checkpoint's logits, as a multiple of 1 + |logit|."""

    logit: Deviation


@dataclass(frozen=True, kw_only=True)
class RowsDeviation:
    """How far exported rows are from the checkpoint's: the largest of any input, and of logits."""

    x: Deviation
    logit: Deviation


@dataclass(frozen=True, kw_only=True)
class GoldenEntry:
    """What a manifest says of golden.jsonl; `exact`: its lines are the checkpoint's."""

    file: Literal["golden.jsonl"] = "golden.jsonl"
    rows: Annotated[int, Field(ge=1, lt=2**31)]
    exact: bool


@dataclass(frozen=True, kw_only=True)
class GraphGolden(GoldenEntry):
    """The golden rows of a split graph."""

    deviation: GraphDeviation


@dataclass(frozen=True, kw_only=True)
class RowsGolden(GoldenEntry):
    """The golden rows of exported embeddings."""

    deviation: RowsDeviation


def check_files(
    files: dict[str, FileEntry], expected: set[str], possible: frozenset[str] = frozenset()
) -> None:
    """Raise ValueError unless `files` are the expected ones, and maybe some that are possible."""
    if absent := sorted(expected - files.keys()):
        raise ValueError(f"file {quoted(absent[0])} is not among its files")
    if foreign := sorted(files.keys() - expected - possible):
        raise ValueError(f"{quoted(foreign[0])} is among its files, and is no file of this format")
