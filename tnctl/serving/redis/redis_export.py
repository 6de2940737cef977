"""A selection of rows written to a Redis server, and switched to last. docs/formats/redis.md.

A full export is written beside the version that is read; a delta goes into its buckets in place.
"""

import json
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace

from tnctl import documents, manifest
from tnctl.documents import DocumentError
from tnctl.errors import Failure, UserError
from tnctl.progress import Display, clock, say
from tnctl.serving.artefact_document import CheckpointReference, GoldenEntry
from tnctl.serving.redis import redis_embeddings
from tnctl.serving.redis.bucket_commands import (
    MOST_PARTS,
    PART_BYTES,
    Packing,
    bucket_count,
    fields_per_row,
)
from tnctl.serving.redis.redis_embeddings import (
    VERSION,
    BucketGroup,
    RedisEmbeddings,
    RedisKeys,
    RedisManifest,
    State,
    VersionRecord,
    entry_of,
)
from tnctl.serving.redis.redis_session import Session, Word, WriterLock, translated, writer_lock
from tnctl.serving.rows.embeddings import GRACE, PREFIX
from tnctl.serving.rows.export_document import GroupRows, RowsManifest
from tnctl.serving.rows.precision import RoundingError, encode, largest_errors
from tnctl.serving.rows.selection import Selection, count_of

NAMES = ("golden", "delta", "manifest")  # of the keys of a version beside its buckets


class Versions:
    """The versions under one prefix. All their keys are known by name: none is searched for."""

    def __init__(self, keys: RedisKeys, session: Session) -> None:
        self._keys, self._session, self._key = keys, session, keys.key("versions")

    def record(self, version: str, state: State, groups: dict[str, int]) -> None:
        """Record the state of a version, with the buckets of its groups."""
        self._session.call("HSET", self._key, version, recorded(state, groups))

    def recorded(self) -> dict[str, VersionRecord]:
        """What is recorded of each version. Raises Failure for what no version has."""
        words = self._session.call("HGETALL", self._key)
        records = {}
        for name, record in zip(words[::2], words[1::2], strict=True):
            version = name.decode("utf-8", "replace")
            try:
                records[version] = documents.parse(VersionRecord, record)
            except DocumentError:
                raise self._keys.foreign(self._key) from None
            if not re.fullmatch(VERSION, version):
                raise self._keys.foreign(self._key)
        return records

    def remove_leftovers(self, records: Mapping[str, VersionRecord], grace: int) -> None:
        """Remove the versions of killed writers, and retire complete ones."""
        for version, record in records.items():
            if record.state == "writing":
                self.remove(version, record.groups)
            elif record.state == "complete":
                self.retire(version, record.groups, grace)
            elif not self._session.call("EXISTS", self._keys.key(version, "manifest")):
                self._session.call("HDEL", self._key, version)

    def retire(self, version: str, groups: dict[str, int], grace: int) -> None:
        """Have a version expire, which readers may still be reading, in `grace` seconds."""
        if not grace:
            self.remove(version, groups)
            return
        for group, count in groups.items():
            self._session.of_buckets("EXPIRE", self._keys.buckets(version, group), count, grace)
        # The manifest last: readers conclude from it that there are rows.
        for name in NAMES:
            self._session.call("EXPIRE", self._keys.key(version, name), grace)
        self.record(version, "expiring", groups)
        say(f"{self._keys}: version {version} expires in {clock(grace)}")

    def remove(self, version: str, groups: Mapping[str, int]) -> None:
        """Remove all keys of a version, complete or not."""
        for group, count in groups.items():
            self._session.of_buckets("UNLINK", self._keys.buckets(version, group), count)
        names = [self._keys.key(version, name) for name in NAMES]
        self._session.calls([("UNLINK", *names), ("HDEL", self._key, version)])


def buckets_by_group(groups: Sequence[BucketGroup]) -> dict[str, int]:
    """The number of buckets of each group."""
    return {entry.group: entry.buckets for entry in groups}


def recorded(state: State, buckets: dict[str, int]) -> str:
    """The value that `PREFIX:versions` has of a version: enough to find its keys."""
    return json.dumps(documents.plain(VersionRecord(state=state, groups=buckets)))


# Checks the rows before they are current, and keeps the golden rows; the manifest's `golden`.
Check = Callable[[RedisEmbeddings, "KeptFiles"], GoldenEntry | None]


class KeptFiles(dict[str, bytes]):
    """Files that become keys of Redis, by name; an Inventory keeps the files of a folder."""

    write = dict.__setitem__


def write(
    selection: Selection,
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
        selection: Selection,
        content: RowsManifest,
        check: Check | None,
    ) -> None:
        self._keys, self._session, self._lock = keys, session, lock
        self._selection, self._content, self._check = selection, content, check
        self._run = session.run_id()
        self._switching = False

    # ---- A full export ----

    def full(self, grace: int) -> RedisManifest:
        """Write a new version, switch to it, and retire the previous one."""
        previous = self._pointer()[0]
        versions = Versions(self._keys, self._session)
        records = versions.recorded()
        last = records.pop(previous or "", None)
        versions.remove_leftovers(records, grace)
        version = f"{self._content.checkpoint.step}-{uuid.uuid4().hex[:8]}"
        groups = [self._planned(entry) for entry in self._content.groups]
        # Before it has its first key.
        versions.record(version, "writing", buckets_by_group(groups))
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
            versions.retire(previous, last.groups if last else {}, grace)
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
        buckets = bucket_count(entry.rows, fields)
        return BucketGroup(**vars(entry), buckets=buckets, fields_per_row=fields)

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
            was = old[entry.group]
            error = largest_errors([was.error, self._errors[entry.group].document()])
            changed = {"rows": after[entry.group] // was.fields_per_row, "error": error}
            groups.append(BucketGroup(**vars(was) | vars(entry) | changed))
        content = self._switch(version, groups, sequence + 1)
        rows = count_of(self._selection.groups)
        say(f"{rows:,} rows changed in {self._keys}: version {version}, delta {sequence + 1}")
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
            if wanted != there:
                raise UserError(
                    f"{self._keys} has {key} {there}, the delta {wanted}. "
                    "Give the same, or export in full without since="
                )
        if present.shapes != self._content.shapes:
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
                self._keys.buckets(version, entry.group), entry.shape.stride, entry.buckets
            )
            for entry in groups
        }
        self._errors = {entry.group: RoundingError(entry.shape) for entry in groups}
        balance, sign, done = 0, 1, 0
        with Display("export", count_of(self._selection.groups)) as display:
            for part in self._selection.parts():
                payload = encode(part.rows, part.group.shape)
                self._errors[part.group.name].add(part.rows, part.removed, payload)
                for packed in packings[part.group.name].commands(part, payload):
                    balance += sign * self._session.stream(packed.data, packed.commands)
                    sign = packed.sign
                    done += packed.rows
                    display.update(done, f"{done:,} rows")
            balance += sign * self._session.drain()
        if done != (total := count_of(self._selection.groups)):
            raise Failure(
                f"{self._content.checkpoint.folder} has {done:,} rows to export, its manifest says "
                f"{total:,}. Take another checkpoint"
            )
        return balance

    def _counted(self, version: str, groups: Sequence[BucketGroup]) -> dict[str, int]:
        """The number of fields of each group."""
        return {
            entry.group: self._session.of_buckets(
                "HLEN", self._keys.buckets(version, entry.group), entry.buckets
            )
            for entry in groups
        }

    def _switch(self, version: str, groups: Sequence[BucketGroup], sequence: int) -> RedisManifest:
        """Check the rows, write the manifest, and make it current; the whole manifest."""
        content = RedisManifest(
            **vars(self._content)
            | {"kind": "full", "encoding": "redis", "groups": tuple(groups), "sequence": sequence}
        )
        kept, golden = KeptFiles(), None
        if self._check is not None:
            rows = RedisEmbeddings(self._keys.url, self._keys.prefix, version, content)
            with closing(rows):
                golden = self._check(rows, kept)
        files = {name: entry_of(data) for name, data in kept.items()}
        content = replace(content, golden=golden, files=files)
        text, of = manifest.sealed(content.body()), self._keys.key
        record = recorded("complete", buckets_by_group(groups))
        commands: list[Sequence[Word]] = [
            ("SET", of(version, "manifest"), text),
            ("DEL", of(version, "golden"), of(version, "delta")),
            *(("SET", of(version, "golden"), data) for data in kept.values()),
            ("HSET", self._keys.key("versions"), version, record),
            ("SET", self._keys.key("current"), f"{version} {sequence}"),
        ]
        if self._session.run_id() != self._run:
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
