"""The documents that an export has in Redis. docs/formats/redis.md."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

from pydantic import Field

from tnctl.checkpoint.chain import GOLDEN
from tnctl.documents import Count, Name
from tnctl.serving.redis.bucket_commands import fields_per_row
from tnctl.serving.references import check_files
from tnctl.serving.rows.export_document import GroupRows, RowsManifest

MOST_BUCKETS = 2**32 - 1

State = Literal["writing", "complete", "expiring"]


@dataclass(frozen=True, kw_only=True)
class BucketGroup(GroupRows):
    """A share group whose rows are in hashes of a Redis server."""

    buckets: Annotated[int, Field(ge=1, le=MOST_BUCKETS)]
    fields_per_row: Annotated[int, Field(ge=1, le=256)]

    @classmethod
    def of(cls, entry: GroupRows, buckets: int, fields_per_row: int) -> "BucketGroup":
        """A group's entry, with where its rows are."""
        return cls(**values_of(entry), buckets=buckets, fields_per_row=fields_per_row)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.fields_per_row != fields_per_row(self.shape.stride):
            raise ValueError(
                f"fields_per_row of group {self.group} is {self.fields_per_row}, and its rows "
                f"have {self.shape.stride} bytes"
            )


@dataclass(frozen=True, kw_only=True)
class RedisManifest(RowsManifest):
    """The manifest of embeddings in Redis; `sequence` is the number of deltas applied to it."""

    encoding: Literal["redis"]
    groups: tuple[BucketGroup, ...]
    sequence: Count

    @classmethod
    def of(
        cls, content: RowsManifest, groups: Sequence[BucketGroup], sequence: int
    ) -> "RedisManifest":
        """The manifest of a full export or a delta, when its rows are in Redis."""
        common = values_of(content) | {"kind": "full", "encoding": "redis", "groups": tuple(groups)}
        return cls(**common, sequence=sequence)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kind != "full":
            raise ValueError("kind is delta, and Redis has all rows")
        if self.sha256:
            check_files(self.files, {GOLDEN} if self.golden else set())


@dataclass(frozen=True, kw_only=True)
class VersionRecord:
    """What `PREFIX:versions` has of a version: its state, and the buckets of each group."""

    state: State
    groups: dict[Name, Annotated[int, Field(ge=1, le=MOST_BUCKETS)]]


def values_of(document: GroupRows | RowsManifest) -> dict[str, Any]:
    """The attributes of a document by their names."""
    return {field.name: getattr(document, field.name) for field in fields(document)}
