"""The versions of an export that a Redis server has, and how they go. docs/formats/redis.md."""

import json
from collections.abc import Iterator
from typing import Any

from tnctl.progress import clock, say
from tnctl.serving.redis_commands import of_buckets
from tnctl.serving.redis_connection import Session
from tnctl.serving.redis_store import Place

WRITING, COMPLETE, EXPIRING = "writing", "complete", "expiring"
BUCKETS_AT_ONCE = 1 << 12


class Versions:
    """What a server has under one prefix. All keys are known by name: nothing is searched for."""

    def __init__(self, place: Place, session: Session) -> None:
        self._place, self._session = place, session

    def begin(self, version: str, groups: list[dict[str, Any]]) -> None:
        """Record a version before it has its first key."""
        self._session.call("HSET", self._place.versions, version, recorded(WRITING, groups))

    def remove_leftovers(self, current: str | None, grace: int) -> None:
        """Remove what killed writers left, and let go of versions that are read no more."""
        words = self._session.call("HGETALL", self._place.versions)
        for name, record in zip(words[::2], words[1::2], strict=True):
            version, state = name.decode("utf-8", "replace"), self._parsed(record)["state"]
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
        record = json.dumps({"state": EXPIRING, "groups": groups})
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
        groups: dict[str, int] = self._parsed(record)["groups"] if record else {}
        return groups

    def _parsed(self, record: bytes) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads(record)
            found["state"], found["groups"].items()
        except (ValueError, KeyError, TypeError, AttributeError):
            raise self._place.foreign(self._place.versions) from None
        return found

    def _buckets(self, version: str, groups: dict[str, int]) -> Iterator[tuple[str, range]]:
        for group, count in groups.items():
            for buckets in portions(count):
                yield self._place.of(version, f"{group}:"), buckets


def portions(count: int) -> Iterator[range]:
    """The numbers of buckets, some thousand at a time."""
    for first in range(0, count, BUCKETS_AT_ONCE):
        yield range(first, min(first + BUCKETS_AT_ONCE, count))


def recorded(state: str, groups: list[dict[str, Any]]) -> str:
    """What `versions` says of one: enough to find its keys."""
    return json.dumps(
        {"state": state, "groups": {entry["group"]: entry["buckets"] for entry in groups}}
    )
