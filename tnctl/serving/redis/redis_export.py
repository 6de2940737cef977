"""A selection of rows written to a Redis server, and switched to last. docs/formats/redis.md.

A full export is written beside the version that is read; a delta goes into its buckets in place.
"""

import hashlib
import json
import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from typing import Protocol

from tnctl import documents, manifest
from tnctl.documents import DocumentError
from tnctl.errors import Failure, UserError
from tnctl.manifest import FileEntry
from tnctl.progress import Display, clock, say
from tnctl.serving.artefact_document import CheckpointReference, RowsGolden
from tnctl.serving.redis import redis_embeddings
from tnctl.serving.redis.bucket_commands import (
    MOST_PARTS,
    PART_BYTES,
    Packing,
    bucket_count,
    fields_per_row,
    of_buckets,
)
from tnctl.serving.redis.redis_embeddings import (
    PREFIX,
    VERSION,
    BucketGroup,
    RedisEmbeddings,
    RedisKeys,
    RedisManifest,
    State,
    VersionRecord,
)
from tnctl.serving.redis.redis_session import Session, Word, WriterLock, translated, writer_lock
from tnctl.serving.rows.export_document import GroupRows, RowsManifest
from tnctl.serving.rows.precision import RoundingError, encode, largest_errors
from tnctl.serving.rows.selection import Group, Part, count_of

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


GRACE = 600  # seconds that readers keep the previous version

# Checks the rows before they are current, and keeps the golden rows; the manifest's `golden`.
Check = Callable[[RedisEmbeddings, "KeptFiles"], RowsGolden | None]


class Rows(Protocol):
    """What is written: a tnctl.serving.rows.selection.Selection, or an object like it."""

    groups: list[Group]

    def parts(self) -> Iterator[Part]:
        """The rows, and the removed keys of a delta."""


class KeptFiles:
    """Records files that become keys of Redis, as an Inventory records the files of a folder."""

    def __init__(self) -> None:
        self.data: dict[str, bytes] = {}
        self.files: dict[str, FileEntry] = {}

    def write(self, name: str, data: bytes) -> None:
        """A whole file."""
        self.data[name] = data
        self.files[name] = FileEntry(bytes=len(data), sha256=hashlib.sha256(data).hexdigest())


def write(
    selection: Rows,
    content: RowsManifest,
    url: str,
    *,
    prefix: str = PREFIX,
    grace: int = GRACE,
    since: RowsManifest | None = None,
    check: Check | None = None,
) -> RedisManifest:
    """Write a selection under `prefix`, and make it current; its manifest.

    `content` has the keys that the manifests of all formats have, `since` is the manifest that a
    delta was selected against. Raises Failure, and UserError for a delta that does not fit.
    """
    keys = RedisKeys(url, prefix)
    with (
        translated(url),
        writer_lock(url, keys.key("lock")) as lock,
        closing(Session(url)) as session,
    ):
        writer = RedisWriter(keys, session, lock, selection, content, check)
        return writer.full(grace) if since is None else writer.delta(since)


class RedisWriter:
    """Writes one export. The server has lost nothing as long as the session raises nothing."""

    def __init__(
        self,
        keys: RedisKeys,
        session: Session,
        lock: WriterLock,
        selection: Rows,
        content: RowsManifest,
        check: Check | None,
    ) -> None:
        self._keys, self._session, self._lock = keys, session, lock
        self._selection, self._content, self._check = selection, content, check
        self._run = session.information("server").get("run_id")
        self._switching = False

    # ---- A full export ----

    def full(self, grace: int) -> RedisManifest:
        """Write a new version, switch to it, and retire the previous one."""
        previous = self._pointer()[0]
        versions = Versions(self._keys, self._session)
        versions.remove_leftovers(previous, grace)
        version = f"{self._content.checkpoint.step}-{uuid.uuid4().hex[:8]}"
        groups = [self._planned(entry) for entry in self._content.groups]
        versions.begin(version, groups)
        try:
            content = self._switch(version, self._write(version, groups), 0)
        except BaseException:
            # Unless the last commands may have been executed: then this version is current.
            if not self._switching and not self._session.lost:
                self._abandon(version, groups)
            raise
        rows = sum(entry.rows for entry in groups)
        say(f"{rows:,} rows to {self._keys}: version {version} is current")
        if previous is not None:
            versions.retire(previous, grace)
        return content

    def _planned(self, entry: GroupRows) -> BucketGroup:
        """A group's entry of the manifest, with where its rows are."""
        stride = entry.shape.stride
        fields = fields_per_row(stride)
        if fields > MOST_PARTS:
            raise UserError(
                f"group {entry.group} has rows of {stride:,} bytes; Redis takes up to "
                f"{MOST_PARTS * PART_BYTES:,}. Export it with precision=int8, or to files"
            )
        return BucketGroup.of(entry, bucket_count(entry.rows, fields), fields)

    def _abandon(self, version: str, groups: list[BucketGroup]) -> None:
        """Remove a version that cannot be completed, if the server still answers."""
        # The first session may have replies that nobody has read.
        with suppress(Exception), closing(Session(self._keys.url)) as session:
            # A server that evicts keys may have lost the record of the version.
            Versions(self._keys, session).remove(version, buckets_by_group(groups))

    def _write(self, version: str, groups: list[BucketGroup]) -> list[BucketGroup]:
        """Write all rows of a new version, and count them; the groups with their errors."""
        added = self._stream(version, groups)
        counted, expected = self._counted(version, groups), expected_fields(groups)
        if counted != expected or added != sum(expected.values()):
            raise self._lost_rows(
                f"has {sum(counted.values()):,} fields of the {sum(expected.values()):,} written"
            )
        return [replace(e, error=self._errors[e.group].document()) for e in groups]

    # ---- A delta, in place ----

    def delta(self, since: RowsManifest) -> RedisManifest:
        """Write the rows of a delta into the buckets of the current version.

        A marker names the delta that is being written: it may be written again.
        """
        version, sequence = self._pointer()
        if version is None:
            raise self._keys.nothing()
        name, marker = (self._keys.key(version, name) for name in ("manifest", "delta"))
        present = self._keys.parsed(self._session.call("GET", name), name)
        self._check_fit(since, present)
        begun = self._session.call("GET", marker)
        if begun is not None:
            self._check_continues(begun, marker)
        counted, expected = self._counted(version, present.groups), expected_fields(present.groups)
        if begun is None and counted != expected:
            raise Failure(
                f"{self._keys} has {sum(counted.values()):,} fields where its manifest says "
                f"{sum(expected.values()):,}: rows were removed or evicted since. Export in full"
            )
        self._session.call("SET", marker, json.dumps(documents.plain(self._content.checkpoint)))
        balance = self._stream(version, present.groups)
        after = self._counted(version, present.groups)
        if sum(after.values()) != sum(counted.values()) + balance:
            raise self._lost_rows(
                f"has {sum(after.values()):,} fields instead of "
                f"{sum(counted.values()) + balance:,} after the delta"
            )
        old = {entry.group: entry for entry in present.groups}
        groups = []
        for entry in self._content.groups:
            buckets, fields = old[entry.group].buckets, old[entry.group].fields_per_row
            error = largest_errors([old[entry.group].error, self._errors[entry.group].document()])
            rows = after[entry.group] // fields
            groups.append(BucketGroup.of(replace(entry, rows=rows, error=error), buckets, fields))
        content = self._switch(version, groups, sequence + 1)
        changed = count_of(self._selection.groups)
        say(f"{changed:,} rows changed in {self._keys}: version {version}, delta {sequence + 1}")
        return content

    def _check_fit(self, since: RowsManifest, present: RedisManifest) -> None:
        """Raise UserError unless the delta was selected against what is now in Redis (`present`).

        `since` is the manifest that the delta was selected against.
        """
        if since.checkpoint.sha256 != present.checkpoint.sha256:
            raise UserError(
                f"{self._keys} has the rows of step {present.checkpoint.step} "
                f"({present.checkpoint.folder}); the delta is since step "
                f"{since.checkpoint.step} ({since.checkpoint.folder}), so it is out of "
                "order. Give since=current, or export in full without since="
            )
        for key in ("precision", "filter"):
            wanted, there = getattr(self._content, key), getattr(present, key)
            if not wanted == getattr(since, key) == there:
                raise UserError(
                    f"{self._keys} has {key} {there}, the delta {wanted}. "
                    "Give the same, or export in full without since="
                )
        if present.shapes != {group.name: group.shape for group in self._selection.groups}:
            raise UserError(
                f"{self._keys} has other groups, or rows of another kind, than the delta. "
                "Export in full without since="
            )

    def _check_continues(self, text: bytes, marker: str) -> None:
        """Raise Failure unless the delta that was interrupted is the one to be written."""
        try:
            begun = documents.parse(CheckpointReference, text)
        except DocumentError:
            raise self._keys.foreign(marker) from None
        if begun.sha256 != self._content.checkpoint.sha256:
            raise Failure(
                f"{self._keys} has a part of the delta to step {begun.step}, which was "
                f"interrupted. Complete it first, with checkpoint={begun.folder}, or export in "
                "full without since="
            )

    # ---- Both ----

    def _stream(self, version: str, groups: Sequence[BucketGroup]) -> int:
        """Send all parts of the selection; returns by how many the number of fields grows."""
        packings = {
            entry.group: Packing(
                self._keys.key(version, f"{entry.group}:"), entry.shape, entry.buckets
            )
            for entry in groups
        }
        self._errors = {entry.group: RoundingError(entry.shape) for entry in groups}
        total = count_of(self._selection.groups)
        balance, sign, done = 0, 1, 0
        with Display("export", total) as display:
            for part in self._selection.parts():
                error = self._errors[part.group.name]
                if not error.exact:
                    payload = encode(part.rows, part.group.shape)
                    error.add(part.rows, part.removed, payload)
                for packed in packings[part.group.name].commands(part):
                    balance += sign * self._session.stream(packed.data, packed.commands)
                    sign = packed.sign
                    done += packed.rows
                    display.update(done, f"{done:,} rows")
            balance += sign * self._session.drain()
        if done != total:
            raise Failure(
                f"{self._content.checkpoint.folder} has {done:,} rows to export, its "
                f"manifest says {total:,}. Take another checkpoint"
            )
        return balance

    def _counted(self, version: str, groups: Sequence[BucketGroup]) -> dict[str, int]:
        """The number of fields of each group."""
        counted = {}
        for entry in groups:
            key = self._keys.key(version, f"{entry.group}:")
            counted[entry.group] = sum(each_bucket(self._session, b"HLEN", key, entry.buckets))
        return counted

    def _switch(self, version: str, groups: Sequence[BucketGroup], sequence: int) -> RedisManifest:
        """Check the rows, write the manifest, and make it current; the whole manifest."""
        content = RedisManifest.of(self._content, groups, sequence)
        kept, golden = KeptFiles(), None
        if self._check is not None:
            rows = RedisEmbeddings(self._keys.url, self._keys.prefix, version, content)
            with closing(rows):
                golden = self._check(rows, kept)
        content = replace(content, golden=golden, files=kept.files)
        text, of = manifest.sealed(content.body()), self._keys.key
        record = recorded("complete", buckets_by_group(groups))
        commands: list[Sequence[Word]] = [
            ("SET", of(version, "manifest"), text),
            ("DEL", of(version, "golden"), of(version, "delta")),
            *(("SET", of(version, "golden"), data) for data in kept.data.values()),
            ("HSET", self._keys.key("versions"), version, record),
            ("SET", self._keys.key("current"), f"{version} {sequence}"),
        ]
        if self._session.information("server").get("run_id") != self._run:
            raise self._lost_rows("is another process than at the beginning")
        while self._lock.held(self._session):
            self._switching = True
            if self._session.transaction(commands):
                return replace(content, sha256=manifest.checksum_in(text))
            self._switching = False  # the lock was refreshed in between, or lost
        raise self._lock.lost()

    def _pointer(self) -> tuple[str | None, int]:
        """The current version, None before the first, and how many deltas are applied to it."""
        text = self._session.call("GET", self._keys.key("current"))
        return (None, 0) if text is None else self._keys.pointer(text)

    def _lost_rows(self, what: str) -> Failure:
        return Failure(
            f"{self._keys} {what}: it was restarted meanwhile, or evicts keys. Run the command "
            "again"
        )


def expected_fields(groups: Sequence[BucketGroup]) -> dict[str, int]:
    """How many fields each group has by the manifest."""
    return {entry.group: entry.rows * entry.fields_per_row for entry in groups}


class RedisFormat:
    """The export format `redis`."""

    name = "redis"
    write = staticmethod(write)
    current = staticmethod(redis_embeddings.current)
    open = staticmethod(RedisEmbeddings)


FORMAT = RedisFormat()
