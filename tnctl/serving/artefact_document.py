"""What the manifests of exported embeddings and of split graphs both have.

The checkpoint that they were made from, their golden rows, and files that are opened by a path.
docs/formats/manifest.md and docs/formats/golden.md.
"""

import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeVar, dataclass_transform

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from tnctl import files, manifest
from tnctl.checkpoint.chain import Checkpoint
from tnctl.documents import Count, Finite, Sha256, omitted
from tnctl.errors import quoted
from tnctl.manifest import FileEntry, HashingWriter, Manifest
from tnctl.masking import masked

Kind = TypeVar("Kind")
Folder = Annotated[str, Field(min_length=1, max_length=4096)]  # a path or URL
Deviation = Annotated[Finite, Field(ge=0)]
BYTES_PER_READ = 4 << 20


@dataclass_transform(frozen_default=True, kw_only_default=True)
def document(kind: type[Kind]) -> type[Kind]:
    """The class of a document: a frozen dataclass whose fields are given by name."""
    return dataclass(frozen=True, kw_only=True)(kind)


@document
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


@document
class GoldenDeviation:
    """How far a graph or exported rows are from the checkpoint, at most.

    `x` of any input, which a graph does not change; `logit` as a multiple of 1 + |logit|.
    """

    x: Deviation | None = omitted()
    logit: Deviation


@document
class GoldenEntry:
    """What a manifest says of golden.jsonl; `exact`: its lines are the checkpoint's."""

    file: Literal["golden.jsonl"] = "golden.jsonl"
    rows: Annotated[int, Field(ge=1, lt=2**31)]
    exact: bool
    deviation: GoldenDeviation


def named(choices: Callable[[], Iterable[str]]) -> AfterValidator:
    """The validator of a text that is one of `choices`, which are read when it is checked."""

    def check(name: str) -> str:
        *names, last = map(repr, choices())
        if repr(name) not in (*names, last):
            raise PydanticCustomError("named", f"should be {', '.join(names)} or {last}")
        return name

    return AfterValidator(check)


def check_files(
    files: dict[str, FileEntry], expected: set[str], possible: frozenset[str] = frozenset()
) -> None:
    """Raise ValueError unless `files` are the expected ones, and maybe some that are possible."""
    if absent := sorted(expected - files.keys()):
        raise ValueError(f"file {quoted(absent[0])} is not among its files")
    if foreign := sorted(files.keys() - expected - possible):
        raise ValueError(f"{quoted(foreign[0])} is among its files, and is no file of this format")


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
