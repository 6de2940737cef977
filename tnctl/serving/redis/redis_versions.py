"""The versions of an export in a Redis server, and their removal. docs/formats/redis.md."""

import json
import re
from collections.abc import Sequence

from tnctl import documents
from tnctl.documents import DocumentError
from tnctl.progress import clock, say
from tnctl.serving.redis.bucket_commands import of_buckets
from tnctl.serving.redis.redis_document import VERSION, BucketGroup, RedisKeys, State, VersionRecord
from tnctl.serving.redis.redis_session import Session

BUCKETS_AT_ONCE = 1 << 12
NAMES = ("golden", "delta", "manifest")  # of the keys of a version beside its buckets


class Versions:
    """The versions under one prefix. All their keys are known by name: none is searched for."""

    def __init__(self, keys: RedisKeys, session: Session) -> None:
        self._keys, self._session = keys, session

    def begin(self, version: str, groups: Sequence[BucketGroup]) -> None:
        """Record a version before it has its first key."""
        record = recorded("writing", buckets_by_group(groups))
        self._session.call("HSET", self._keys.key("versions"), version, record)

    def remove_leftovers(self, current: str | None, grace: int) -> None:
        """Remove the versions of killed writers, and retire complete ones that are not current."""
        words = self._session.call("HGETALL", self._keys.key("versions"))
        for name, record in zip(words[::2], words[1::2], strict=True):
            version, state = name.decode("utf-8", "replace"), self._parsed(record).state
            if not re.fullmatch(VERSION, version):
                raise self._keys.foreign(self._keys.key("versions"))
            if version == current:
                continue
            if state == "writing":
                self.remove(version)
            elif state == "complete":
                self.retire(version, grace)
            elif not self._session.call("EXISTS", self._keys.key(version, "manifest")):
                self._session.call("HDEL", self._keys.key("versions"), version)

    def retire(self, version: str, grace: int) -> None:
        """Have a version expire, which readers may still be reading, in `grace` seconds."""
        if not grace:
            self.remove(version)
            return
        groups, after = self._groups(version), str(grace).encode()
        for group, count in groups.items():
            key = self._keys.key(version, f"{group}:")
            each_bucket(self._session, b"EXPIRE", key, count, after)
        # The manifest last: readers conclude from it that there are rows.
        for name in NAMES:
            self._session.call("EXPIRE", self._keys.key(version, name), grace)
        self._session.call(
            "HSET", self._keys.key("versions"), version, recorded("expiring", groups)
        )
        say(f"{self._keys}: version {version} expires in {clock(grace)}")

    def remove(self, version: str, groups: dict[str, int] | None = None) -> None:
        """Remove all keys of a version, complete or not; `groups` if they may not be recorded."""
        for group, count in (groups or self._groups(version)).items():
            each_bucket(self._session, b"UNLINK", self._keys.key(version, f"{group}:"), count)
        names = [self._keys.key(version, name) for name in NAMES]
        self._session.calls([("UNLINK", *names), ("HDEL", self._keys.key("versions"), version)])

    def _groups(self, version: str) -> dict[str, int]:
        """The groups of a version with their buckets; none when nothing is recorded of it."""
        record = self._session.call("HGET", self._keys.key("versions"), version)
        return self._parsed(record).groups if record else {}

    def _parsed(self, record: bytes) -> VersionRecord:
        try:
            return documents.parse(VersionRecord, record)
        except DocumentError:
            raise self._keys.foreign(self._keys.key("versions")) from None


def each_bucket(
    session: Session, command: bytes, key: str, count: int, after: bytes = b""
) -> list[int]:
    """The replies to one command for each of a group's buckets, some thousand at a time.

    `key` is what the names of their keys begin with; `after` is the command's last word.
    """
    replies: list[int] = []
    for first in range(0, count, BUCKETS_AT_ONCE):
        buckets = range(first, min(first + BUCKETS_AT_ONCE, count))
        replies += session.packed([of_buckets(command, key, buckets, after)], len(buckets))
    return replies


def buckets_by_group(groups: Sequence[BucketGroup]) -> dict[str, int]:
    """The number of buckets of each group."""
    return {entry.group: entry.buckets for entry in groups}


def recorded(state: State, buckets: dict[str, int]) -> str:
    """The value that `PREFIX:versions` has of a version: enough to find its keys."""
    return json.dumps(documents.plain(VersionRecord(state=state, groups=buckets)))
