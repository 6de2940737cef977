"""What the manifests of exported embeddings and of split graphs both have.

The checkpoint that they were made from, their golden rows, and files that are opened by a path.
docs/formats/manifest.md and docs/formats/golden.md.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from tnctl import files, manifest
from tnctl.checkpoint.chain import Checkpoint
from tnctl.documents import Count, Finite, Sha256
from tnctl.errors import quoted
from tnctl.manifest import FileEntry, HashingWriter, Manifest
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


BYTES_PER_READ = 4 << 20


def local_copy(folder: str, content: Manifest, name: str, temporary: Path) -> Path:
    """The path of a file of a folder; of a remote one the path of a copy in `temporary`.

    Raises DamagedError when a copy is not what the manifest says.
    """
    url = files.join(folder, name)
    local = files.local_path(url)
    if local is not None:
        return local
    copy = temporary / name  # a relative path inside of it: the manifest was parsed
    copy.parent.mkdir(parents=True, exist_ok=True)
    with manifest.present(folder, content, name), copy.open("wb") as writing:
        hashing = HashingWriter(writing)
        with files.open_input(url, decompress=False) as reading:
            shutil.copyfileobj(reading, hashing, BYTES_PER_READ)
    manifest.check_entry(folder, content, name, hashing.entry())
    return copy
