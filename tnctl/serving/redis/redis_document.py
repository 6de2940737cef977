"""The documents that an export has in Redis, and the keys that it uses. docs/formats/redis.md."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

from pydantic import Field

from tnctl import limits, manifest
from tnctl.documents import Count, Name
from tnctl.errors import Failure, UserError, quoted
from tnctl.serving.redis.redis_session import shown
from tnctl.serving.rows.export_document import GroupRows, RowsManifest

MOST_BUCKETS = 2**32 - 1
VERSION = r"[0-9]{1,19}-[0-9a-f]{8}"  # the step, and random digits
POINTER = re.compile(rf"(?P<version>{VERSION}) (?P<sequence>[0-9]{{1,19}})")

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


@dataclass(frozen=True, kw_only=True)
class VersionRecord:
    """What `PREFIX:versions` has of a version: its state, and the buckets of each group."""

    state: State
    groups: dict[Name, Annotated[int, Field(ge=1, le=MOST_BUCKETS)]]


def values_of(document: GroupRows | RowsManifest) -> dict[str, Any]:
    """The attributes of a document by their names."""
    return {field.name: getattr(document, field.name) for field in fields(document)}


@dataclass(frozen=True)
class RedisKeys:
    """The names of the keys, and the checks of what is read from them."""

    url: str
    prefix: str

    def __post_init__(self) -> None:
        if not self.prefix.isprintable() or " " in self.prefix:
            raise UserError(
                f"prefix must be without blanks and control signs. Received: {quoted(self.prefix)}"
            )

    def __str__(self) -> str:
        return f"{shown(self.url)} ({self.prefix}:)"

    def key(self, *parts: str) -> str:
        """The name of a key.

        `current`: the version that is read, and how many deltas are applied to it. `versions`: a
        hash with the VersionRecord of each version that has keys. `lock`: the token of the writer.
        (VERSION, NAME): `manifest`, `golden`, `delta`, or `GROUP:` with the bucket after.
        """
        return ":".join((self.prefix, *parts))

    def pointer(self, text: bytes) -> tuple[str, int]:
        """The version and the deltas in a value of `current`. Raises Failure for other values."""
        match = POINTER.fullmatch(text.decode("utf-8", "replace"))
        if match is None:
            raise self.foreign(self.key("current"))
        return match["version"], int(match["sequence"])

    def foreign(self, key: str) -> Failure:
        """The error for a key that tnctl did not write."""
        return Failure(
            f"{shown(self.url)} has something else under the key {key}. Choose another prefix="
        )

    def parsed(self, text: bytes | None, name: str) -> RedisManifest:
        """The manifest that was read from a key. Raises Failure when it is not one."""
        url = f"{shown(self.url)} key {name}"
        if len(text or b"") > limits.MANIFEST_BYTES:
            raise Failure(f"{url} has over {limits.MANIFEST_BYTES:,} bytes. Choose another prefix=")
        return manifest.unsealed(text or b"", str(self), url, RedisManifest)

    def nothing(self) -> Failure:
        """The error for a prefix without a version to read."""
        return Failure(
            f"{shown(self.url)} has no complete export under prefix {self.prefix}. Export with "
            "to=URL, or name the prefix= that it was exported with"
        )
