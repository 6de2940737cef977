"""The versions of an export that a Redis server has, and how they go. docs/formats/redis.md."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from tnctl import documents
from tnctl.documents import DocumentError, Name
from tnctl.progress import clock, say
from tnctl.serving.export_document import MOST_BUCKETS, BucketGroup
from tnctl.serving.redis_commands import of_buckets
from tnctl.serving.redis_connection import Session
from tnctl.serving.redis_store import VERSION, Place

State = Literal["writing", "complete", "expiring"]
WRITING: State = "writing"
COMPLETE: State = "complete"
EXPIRING: State = "expiring"
BUCKETS_AT_ONCE = 1 << 12


@dataclass(frozen=True, kw_only=True)
class VersionRecord:
    """What a server's `versions` says of one: its state, and the buckets of each group."""

    state: State
    groups: dict[Name, Annotated[int, Field(ge=1, le=MOST_BUCKETS)]]


class Versions:
    """What a server has under one prefix. All keys are known by name: nothing is searched for."""

    def __init__(self, place: Place, session: Session) -> None:
        self._place, self._session = place, session

    def begin(self, version: str, groups: Sequence[BucketGroup]) -> None:
        """Record a version before it has its first key."""
        self._session.call("HSET", self._place.versions, version, recorded(WRITING, groups))

    def remove_leftovers(self, current: str | None, grace: int) -> None:
        """Remove what killed writers left, and let go of versions that are read no more."""
        words = self._session.call("HGETALL", self._place.versions)
        for name, record in zip(words[::2], words[1::2], strict=True):
            version, state = name.decode("utf-8", "replace"), self._parsed(record).state
            if not re.fullmatch(VERSION, version):
                raise self._place.foreign(self._place.versions)
            if version == current:
                continue
            if state == WRITING:
                self.remove(version)
            elif state == COMPLETE:
                self.retire(version, grace)
            elif not self._session.call("EXISTS", self._place.of(version, "manifest")):
                self._session.call("HDEL", self._place.versions, version)

    def retire(self, version: str, grace: int) -> None:
        """Let a version go, that readers may be reading still, in so many seconds."""
        if not grace:
            self.remove(version)
            return
        groups, after = self._groups(version), str(grace).encode()
        for key, buckets in self._buckets(version, groups):
            self._session.packed(of_buckets(b"EXPIRE", key, buckets, after), len(buckets))
        # The manifest last: while it is there, rows may be.
        for name in ("golden", "delta", "manifest"):
            self._session.call("EXPIRE", self._place.of(version, name), grace)
        record = json.dumps(documents.plain(VersionRecord(state=EXPIRING, groups=groups)))
        self._session.call("HSET", self._place.versions, version, record)
        say(f"{self._place}: version {version} goes in {clock(grace)}")

    def remove(self, version: str, groups: dict[str, int] | None = None) -> None:
        """Remove all keys of a version, complete or not; `groups` if they may not be recorded."""
        for key, buckets in self._buckets(version, groups or self._groups(version)):
            self._session.packed(of_buckets(b"UNLINK", key, buckets), len(buckets))
        of = self._place.of
        names = [of(version, name) for name in ("golden", "delta", "manifest")]
        self._session.calls([("UNLINK", *names), ("HDEL", self._place.versions, version)])

    def _groups(self, version: str) -> dict[str, int]:
        """The groups of a version with their buckets; none when nothing is recorded of it."""
        record = self._session.call("HGET", self._place.versions, version)
        return self._parsed(record).groups if record else {}

    def _parsed(self, record: bytes) -> VersionRecord:
        try:
            return documents.parse(VersionRecord, record)
        except DocumentError:
            raise self._place.foreign(self._place.versions) from None

    def _buckets(self, version: str, groups: dict[str, int]) -> Iterator[tuple[str, range]]:
        for group, count in groups.items():
            for buckets in portions(count):
                yield self._place.of(version, f"{group}:"), buckets


def portions(count: int) -> Iterator[range]:
    """The numbers of buckets, some thousand at a time."""
    for first in range(0, count, BUCKETS_AT_ONCE):
        yield range(first, min(first + BUCKETS_AT_ONCE, count))


def recorded(state: State, groups: Sequence[BucketGroup]) -> str:
    """What `versions` says of one: enough to find its keys."""
    record = VersionRecord(state=state, groups={entry.group: entry.buckets for entry in groups})
    return json.dumps(documents.plain(record))
