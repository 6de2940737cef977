"""A selection of rows written to a Redis server, and switched to last. docs/formats/redis.md.

A full export is written beside the version that is read; a delta goes into its buckets in place.
"""

import json
import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tnctl import documents, manifest
from tnctl.documents import DocumentError
from tnctl.errors import Failure, UserError
from tnctl.progress import Display, clock, say
from tnctl.serving.artefact_document import CheckpointReference, GoldenEntry
from tnctl.serving.rows import redis_embeddings
from tnctl.serving.rows.embeddings import GRACE, PREFIX
from tnctl.serving.rows.export_document import GroupRows, RowsManifest
from tnctl.serving.rows.precision import (
    Payloads,
    RoundingError,
    Uint64s,
    encode,
    error_bound_of,
)
from tnctl.serving.rows.redis_embeddings import (
    VERSION,
    BucketGroup,
    RedisEmbeddings,
    RedisKeys,
    RedisManifest,
    State,
    VersionRecord,
    buckets_of,
    entry_of,
)
from tnctl.serving.rows.redis_session import Session, Word, WriterLock, translated
from tnctl.serving.rows.selection import SelectedRows, Selection, count_of

# A server stores a hash in one piece of memory while it has few fields, none longer than this.
PART_BYTES = 64
FIELDS_PER_BUCKET = 64
MOST_PARTS = 256  # the number of a part is one byte
ROWS_AT_ONCE = 1 << 14
NAMES = ("golden", "delta", "manifest")  # of the keys of a version beside its buckets

# Checks the rows before they are current, and keeps the golden rows; the manifest's `golden`.
Check = Callable[[RedisEmbeddings, "KeptFiles"], GoldenEntry | None]


# ---- Rows as commands ----


@dataclass(frozen=True)
class Packed:
    """Commands as they go over the wire."""

    data: bytes
    commands: int  # each has one reply, a number
    rows: int
    sign: int  # 1: a reply counts fields that were added, -1: that were removed


def fields_per_row(stride: int) -> int:
    """How many fields a payload of `stride` bytes is split into."""
    return -(-stride // PART_BYTES)


def bucket_count(rows: int, fields: int) -> int:
    """The buckets of a group: about FIELDS_PER_BUCKET fields in each."""
    return max(1, round(rows * fields / FIELDS_PER_BUCKET))


def commands_of(part: SelectedRows, payload: Payloads, key: str, buckets: int) -> Iterator[Packed]:
    """HDEL of the removed keys of a part, and HSET of its rows, stored as `payload`.

    `key` is what the names of the keys of the group's `buckets` begin with; their numbers follow.
    """
    gone = np.zeros(len(part.ids), bool) if part.removed is None else part.removed
    for at in range(0, len(gone), ROWS_AT_ONCE):
        for command, sign, chosen in ((b"HDEL", -1, gone), (b"HSET", 1, ~gone)):
            rows = at + np.flatnonzero(chosen[at : at + ROWS_AT_ONCE])
            if len(rows):
                words = words_of(part.ids[rows], payload[rows], sign > 0)
                numbers = buckets_of(part.hashes[rows], buckets)
                yield Packed(*per_bucket(command, key.encode(), numbers, words), len(rows), sign)


def words_of(ids: Uint64s, payload: Payloads, values: bool) -> list[Payloads]:
    """The words of rows after the key, each uint8 [n, bytes]: fields, and their `values` or none.

    The field of a row's first part is its id; other parts have their index after it.
    """
    names = ids.astype("<u8").view(np.uint8).reshape(-1, 8)
    words = []
    for part in range(fields_per_row(payload.shape[1])):
        number = np.full((len(ids), 1 if part else 0), part, np.uint8)
        words.append(np.hstack([names, number]))
        if values:
            words.append(payload[:, part * PART_BYTES : (part + 1) * PART_BYTES])
    return words


def per_bucket(
    command: bytes, key: bytes, buckets: Uint64s, words: Sequence[Payloads]
) -> tuple[bytes, int]:
    """One command for the rows of each bucket, `buckets` [n] ascending; and how many they are."""

    def constant(text: bytes) -> Payloads:
        return np.broadcast_to(np.frombuffer(text, np.uint8), (len(buckets), len(text)))

    end_of_line = constant(b"\r\n")
    lines = [(constant(b"$%d\r\n" % word.shape[1]), word, end_of_line) for word in words]
    rows = np.hstack([part for line in lines for part in line])
    starts = np.flatnonzero(np.diff(buckets, prepend=buckets[0] + np.uint64(1)))
    ends = [*starts[1:].tolist(), len(buckets)]
    data, size = rows.reshape(-1).data, rows.shape[1]
    pieces: list[Any] = []
    for start, end, bucket in zip(starts.tolist(), ends, buckets[starts].tolist(), strict=True):
        name = b"%s%d" % (key, bucket)
        count = 2 + (end - start) * len(words)
        pieces.append(b"*%d\r\n$4\r\n%s\r\n$%d\r\n%s\r\n" % (count, command, len(name), name))
        pieces.append(data[start * size : end * size])
    return b"".join(pieces), len(starts)


# ---- Versions ----


class KeptFiles(dict[str, bytes]):
    """Files that become keys of Redis, by name; an Inventory keeps the files of a folder."""

    write = dict.__setitem__


def buckets_by_group(groups: Sequence[BucketGroup]) -> dict[str, int]:
    """The number of buckets of each group."""
    return {entry.group: entry.buckets for entry in groups}


def expected_fields(groups: Sequence[BucketGroup]) -> dict[str, int]:
    """How many fields each group has by the manifest."""
    return {entry.group: entry.rows * entry.fields_per_row for entry in groups}


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
        self._errors = {entry.group: RoundingError(entry.shape) for entry in content.groups}
        self._run = session.run_id()
        self._switching = False

    def full(self, grace: int) -> RedisManifest:
        """Write a new version, switch to it, and retire the previous one."""
        previous = self._pointer()[0]
        records = self._recorded()
        last = records.pop(previous or "", None)
        for old, record in records.items():
            # A killed writer's version has no manifest, nor has one that has expired.
            if not self._session.call("EXISTS", self._keys.key(old, "manifest")):
                self._remove(self._session, old, record.groups)
            elif record.state == "complete":
                self._retire(old, record.groups, grace)
        version = f"{self._content.checkpoint.step}-{uuid.uuid4().hex[:8]}"
        groups = [self._planned(entry) for entry in self._content.groups]
        # Before it has its first key.
        self._record(version, "writing", buckets_by_group(groups))
        try:
            content = self._switch(version, self._write(version, groups), 0)
        except BaseException:
            # Unless the last commands may have been executed: then this version is current.
            if not self._switching and not self._session.lost:
                # The first session may have replies that nobody has read.
                with suppress(Exception), closing(Session(self._keys.url)) as session:
                    self._remove(session, version, buckets_by_group(groups))
            raise
        rows = count_of(self._selection.groups)
        say(f"{rows:,} rows to {self._keys}: version {version} is current")
        if previous is not None:
            self._retire(previous, last.groups if last else {}, grace)
        return content

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
        fields = sum(counted.values()) + self._stream(version, present.groups)
        after = self._counted(version, present.groups)
        if sum(after.values()) != fields:
            raise self._lost_rows(
                f"has {sum(after.values()):,} fields instead of {fields:,} after the delta"
            )
        old = {entry.group: entry for entry in present.groups}
        groups = []
        for entry in self._content.groups:
            was = old[entry.group]
            error = error_bound_of([was.error, self._errors[entry.group].document()])
            changed = {"rows": after[entry.group] // was.fields_per_row, "error": error}
            groups.append(BucketGroup(**vars(was) | vars(entry) | changed))
        content = self._switch(version, groups, sequence + 1)
        rows = count_of(self._selection.groups)
        say(f"{rows:,} rows changed in {self._keys}: version {version}, delta {sequence + 1}")
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

    def _write(self, version: str, groups: list[BucketGroup]) -> list[BucketGroup]:
        """Write all rows of a new version, and count them; the groups with their errors."""
        added = self._stream(version, groups)
        counted, expected = self._counted(version, groups), expected_fields(groups)
        if counted != expected or added != sum(expected.values()):
            raise self._lost_rows(
                f"has {sum(counted.values()):,} fields of the {sum(expected.values()):,} written"
            )
        return [replace(e, error=self._errors[e.group].document()) for e in groups]

    def _check_fit(self, since: RowsManifest, present: RedisManifest) -> None:
        """Raise UserError unless the delta was selected against what is now in Redis (`present`).

        `since` is the manifest that the delta was selected against.
        """
        there, base = present.checkpoint, since.checkpoint
        if base.sha256 != there.sha256:
            raise UserError(
                f"{self._keys} has the rows of step {there.step} ({there.folder}); the delta is "
                f"since step {base.step} ({base.folder}). Give since=current, or export in full"
            )
        for key in ("precision", "filter", "shapes"):
            if (wanted := getattr(self._content, key)) != (has := getattr(present, key)):
                raise UserError(
                    f"{self._keys} has {key} {has}, the delta {wanted}. Give the same, or export "
                    "in full without since="
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

    def _stream(self, version: str, groups: Sequence[BucketGroup]) -> int:
        """Send all parts of the selection; returns by how many the number of fields grows."""
        buckets, done, total = buckets_by_group(groups), 0, count_of(self._selection.groups)
        balance, sign = 0, 1
        with Display("export", total) as display:
            for part in self._selection.parts():
                name, payload = part.group.name, encode(part.rows, part.group.shape)
                self._errors[name].add(part.rows, part.removed, payload)
                key = self._keys.buckets(version, name)
                for packed in commands_of(part, payload, key, buckets[name]):
                    balance += sign * self._session.stream(packed.data, packed.commands)
                    sign = packed.sign
                    done += packed.rows
                    display.update(done, f"{done:,} rows")
            balance += sign * self._session.drain()
        if done != total:
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
        commands: list[Sequence[Word]] = [
            ("SET", of(version, "manifest"), text),
            ("DEL", of(version, "golden"), of(version, "delta")),
            *(("SET", of(version, "golden"), data) for data in kept.values()),
            self._recording(version, "complete", buckets_by_group(groups)),
            ("SET", of("current"), f"{version} {sequence}"),
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

    # ---- The versions under the prefix. Their keys are known by name: none is searched for. ----

    def _recording(self, version: str, state: State, buckets: dict[str, int]) -> Sequence[Word]:
        """The command that records a version: enough to find its keys."""
        record = json.dumps(documents.plain(VersionRecord(state=state, groups=buckets)))
        return "HSET", self._keys.key("versions"), version, record

    def _record(self, version: str, state: State, buckets: dict[str, int]) -> None:
        self._session.call(*self._recording(version, state, buckets))

    def _recorded(self) -> dict[str, VersionRecord]:
        """What is recorded of each version. Raises Failure for what no version has."""
        key = self._keys.key("versions")
        words = self._session.call("HGETALL", key)
        records = {}
        for name, record in zip(words[::2], words[1::2], strict=True):
            version = name.decode("utf-8", "replace")
            try:
                records[version] = documents.parse(VersionRecord, record)
            except DocumentError:
                raise self._keys.foreign(key) from None
            if not re.fullmatch(VERSION, version):
                raise self._keys.foreign(key)
        return records

    def _retire(self, version: str, groups: dict[str, int], grace: int) -> None:
        """Have a version expire, which readers may still be reading, in `grace` seconds."""
        if not grace:
            self._remove(self._session, version, groups)
            return
        for group, count in groups.items():
            self._session.of_buckets("EXPIRE", self._keys.buckets(version, group), count, grace)
        # The manifest last: readers conclude from it that there are rows.
        for name in NAMES:
            self._session.call("EXPIRE", self._keys.key(version, name), grace)
        self._record(version, "expiring", groups)
        say(f"{self._keys}: version {version} expires in {clock(grace)}")

    def _remove(self, session: Session, version: str, groups: Mapping[str, int]) -> None:
        """Remove all keys of a version, complete or not."""
        for group, count in groups.items():
            session.of_buckets("UNLINK", self._keys.buckets(version, group), count)
        names = [self._keys.key(version, name) for name in NAMES]
        session.calls([("UNLINK", *names), ("HDEL", self._keys.key("versions"), version)])


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

    `content` has the keys that the manifests of all formats have, `since` is the manifest that
    a delta was selected against. Raises Failure, and UserError for a delta that does not fit.
    """
    keys = RedisKeys(url, prefix)
    with (
        translated(url),
        WriterLock(url, keys.key("lock")) as lock,
        closing(Session(url)) as session,
    ):
        writer = RedisWriter(keys, session, lock, selection, content, check)
        return writer.full(grace) if since is None else writer.delta(since)


class RedisFormat:
    """The export format `redis`."""

    name = "redis"
    write = staticmethod(write)
    current = staticmethod(redis_embeddings.current)
    open = staticmethod(RedisEmbeddings)
