"""A selection of rows written to a Redis server, and switched to last. docs/formats/redis.md.

A full export is written beside the version that is read; a delta goes into its buckets in place.
"""

import json
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import fields, replace
from io import BytesIO
from typing import Protocol

import numpy as np

from tnctl import documents, manifest
from tnctl.documents import DocumentError
from tnctl.errors import Failure, UserError
from tnctl.manifest import FileEntry, HashingWriter
from tnctl.progress import Display, say
from tnctl.serving.artefact_document import CheckpointReference, RowsGolden
from tnctl.serving.export_document import (
    BucketGroup,
    GroupRows,
    RedisManifest,
    RowsManifest,
    worse,
)
from tnctl.serving.redis_commands import (
    FIELDS_PER_BUCKET,
    MOST_PARTS,
    PART_BYTES,
    Packing,
    bucket_count,
    fields_per_row,
    of_buckets,
)
from tnctl.serving.redis_connection import Lock, Session, library, translated
from tnctl.serving.redis_store import GOLDEN, PREFIX, Place, RedisEmbeddings
from tnctl.serving.redis_versions import COMPLETE, Versions, portions, recorded
from tnctl.serving.selection import Group as RowGroup
from tnctl.serving.selection import Part

GRACE = 600  # seconds that the version before stays
# Fields of the fullest bucket by chance, and what a server should allow for it and for deltas.
MOST_EXPECTED = 3 * FIELDS_PER_BUCKET
BUCKET_ENTRIES = 512

# Checks what was written, before it counts, and keeps its golden rows: the manifest's `golden`.
Check = Callable[[RedisEmbeddings, "Kept"], RowsGolden | None]


class Rows(Protocol):
    """What is written: a tnctl.serving.selection.Selection, or what is like it."""

    groups: list[RowGroup]

    def parts(self) -> Iterator[Part]:
        """The rows, and the removed keys of a delta."""


class Kept:
    """Takes files that Redis has as keys, as an Inventory takes those of a folder."""

    def __init__(self) -> None:
        self.data: dict[str, bytes] = {}
        self.files: dict[str, FileEntry] = {}

    def write(self, name: str, data: bytes) -> None:
        """A whole file."""
        writer = HashingWriter(BytesIO())
        writer.write(data)
        self.data[name], self.files[name] = data, writer.entry()


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
    """Write a selection under `prefix` and switch readers to it; the manifest that it then has.

    `content` are the keys that the manifests of all encodings have, `since` the manifest that a
    delta was selected against. Raises Failure, and UserError for a delta that does not fit.
    """
    place = Place(url, prefix)
    with (
        translated(url),
        Lock(url, place.lock) as lock,
        closing(Session(url)) as session,
    ):
        writer = Writer(place, session, lock, selection, content, check)
        return writer.full(grace) if since is None else writer.delta(since)


class Writer:
    """One export on its way. Its session has lost nothing as long as it raises nothing."""

    def __init__(
        self,
        place: Place,
        session: Session,
        lock: Lock,
        selection: Rows,
        content: RowsManifest,
        check: Check | None,
    ) -> None:
        self._place, self._session, self._lock = place, session, lock
        self._selection, self._content, self._check = selection, content, check
        self._run = session.information("server").get("run_id")
        self._told = False  # that buckets are larger than they should be
        self._switching = False

    # ---- A full export ----

    def full(self, grace: int) -> RedisManifest:
        """Write a new version, switch to it, and let the one before go."""
        before = self._pointer()[0]
        versions = Versions(self._place, self._session)
        versions.remove_leftovers(before, grace)
        self._warn_of_eviction()
        version = f"{self._content.checkpoint.step}-{uuid.uuid4().hex[:8]}"
        groups = [self._planned(entry) for entry in self._content.groups]
        versions.begin(version, groups)
        try:
            self._write(version, groups)
            content = self._switch(version, self._finished(groups, 0))
        except BaseException:
            # Else what was sent last may be done, and then this version counts.
            if not self._switching and not self._session.lost:
                self._abandon(version, groups)
            raise
        rows = sum(entry.rows for entry in content.groups)
        say(f"{rows:,} rows to {self._place}: version {version} is current")
        if before is not None:
            versions.retire(before, grace)
        return content

    def _planned(self, entry: GroupRows) -> BucketGroup:
        """A group's entry of the manifest, with where its rows are."""
        stride = entry.shape.stride
        fields = fields_per_row(stride)
        if fields > MOST_PARTS:
            raise UserError(
                f"group {entry.group} has rows of {stride:,} bytes; Redis takes up to "
                f"{MOST_PARTS * 64:,}. Export it with precision=int8, or to files"
            )
        return BucketGroup.of(entry, bucket_count(entry.rows, fields), fields)

    def _abandon(self, version: str, groups: list[BucketGroup]) -> None:
        """Remove a version that cannot be completed, as far as the server lets us."""
        # The session may have replies under way that nobody reads any more.
        with suppress(Exception), closing(Session(self._place.url)) as session:
            # A server that evicts may have lost the record of it.
            buckets = {entry.group: entry.buckets for entry in groups}
            Versions(self._place, session).remove(version, buckets)

    def _write(self, version: str, groups: list[BucketGroup]) -> None:
        """Write all rows of a new version, and count them."""
        added = self._stream(version, groups)
        counted = self._counted(version, groups)
        expected = {entry.group: entry.rows * entry.fields_per_row for entry in groups}
        if counted != expected or added != sum(expected.values()):
            raise self._lost_rows(
                f"has {sum(counted.values()):,} fields of the {sum(expected.values()):,} written"
            )

    # ---- A delta, in place ----

    def delta(self, since: RowsManifest) -> RedisManifest:
        """Write the rows of a delta into the buckets of the version that is read.

        A marker says which delta is on its way; the same one may be written again.
        """
        version, sequence, present = self._current()
        self._check_fit(since, present)
        marker = self._place.of(version, "delta")
        begun = self._session.call("GET", marker)
        if begun is not None:
            self._check_continues(self._begun(begun, marker))
        expected = {e.group: e.rows * e.fields_per_row for e in present.groups}
        before = self._counted(version, present.groups)
        if begun is None and before != expected:
            raise Failure(
                f"{self._place} has {sum(before.values()):,} fields where its manifest says "
                f"{sum(expected.values()):,}: rows were removed or evicted since. Export in full"
            )
        self._session.call("SET", marker, json.dumps(documents.plain(self._content.checkpoint)))
        balance = self._stream(version, present.groups)
        after = self._counted(version, present.groups)
        if sum(after.values()) != sum(before.values()) + balance:
            raise self._lost_rows(
                f"has {sum(after.values()):,} fields instead of "
                f"{sum(before.values()) + balance:,} after the delta"
            )
        where = {entry.group: entry for entry in present.groups}
        groups = []
        for entry in self._content.groups:
            old = where[entry.group]
            changed_entry = replace(
                entry,
                rows=after[entry.group] // old.fields_per_row,
                removed=0,
                error=worse(old.error, entry.error),
            )
            groups.append(BucketGroup.of(changed_entry, old.buckets, old.fields_per_row))
        content = self._switch(version, self._finished(groups, sequence + 1))
        changed = sum(group.rows + group.removed for group in self._selection.groups)
        say(f"{changed:,} rows changed in {self._place}: version {version}, delta {sequence + 1}")
        return content

    def _current(self) -> tuple[str, int, RedisManifest]:
        """The version that is read, how many deltas it has taken, and its manifest."""
        version, sequence = self._pointer()
        if version is None:
            raise self._place.nothing()
        name = self._place.of(version, "manifest")
        return version, sequence, self._place.parsed(self._session.call("GET", name), name)

    def _check_fit(self, since: RowsManifest, present: RedisManifest) -> None:
        """Raise UserError unless the delta was selected against what is there."""
        if since.checkpoint.sha256 != present.checkpoint.sha256:
            raise UserError(
                f"{self._place} has the rows of step {present.checkpoint.step} "
                f"({present.checkpoint.folder}); the delta is since step "
                f"{since.checkpoint.step} ({since.checkpoint.folder}), so it is out of "
                "order. Give since=current, or export in full without since="
            )
        for key in ("precision", "filter"):
            wanted, there = getattr(self._content, key), getattr(present, key)
            if not wanted == getattr(since, key) == there:
                raise UserError(
                    f"{self._place} has {key} {there}, the delta {wanted}. "
                    "Give the same, or export in full without since="
                )
        if present.shapes != {group.name: group.shape for group in self._selection.groups}:
            raise UserError(
                f"{self._place} has other groups, or rows of another kind, than the delta. "
                "Export in full without since="
            )

    def _begun(self, text: bytes, name: str) -> CheckpointReference:
        """The checkpoint of the delta that was interrupted. Raises Failure for another text."""
        try:
            return documents.parse(CheckpointReference, text)
        except DocumentError:
            raise self._place.foreign(name) from None

    def _check_continues(self, begun: CheckpointReference) -> None:
        """Raise Failure unless the delta that was interrupted is the one to be written."""
        if begun.sha256 != self._content.checkpoint.sha256:
            raise Failure(
                f"{self._place} has a part of the delta to step {begun.step}, which was "
                f"interrupted. Complete it first, with checkpoint={begun.folder}, or export in "
                "full without since="
            )

    # ---- Both ----

    def _stream(self, version: str, groups: Sequence[BucketGroup]) -> int:
        """Send all parts of the selection; how many fields there are more than before."""
        packings = {
            entry.group: Packing(
                self._place.of(version, f"{entry.group}:"), entry.shape, entry.buckets
            )
            for entry in groups
        }
        total = sum(group.rows + group.removed for group in self._selection.groups)
        balance, sign, done = 0, 1, 0
        with Display("export", total) as display:
            for part in self._selection.parts():
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
        """How many fields each group has. Says so when its fullest bucket is no listpack."""
        counted = {}
        for entry in groups:
            key = self._place.of(version, f"{entry.group}:")
            lengths: list[int] = []
            for buckets in portions(entry.buckets):
                lengths += self._session.packed(of_buckets(b"HLEN", key, buckets), len(buckets))
            counted[entry.group] = sum(lengths)
            fullest = int(np.argmax(lengths))
            self._tell_of_encoding(f"{key}{fullest}", lengths[fullest])
        return counted

    def _tell_of_encoding(self, key: str, fields: int) -> None:
        if self._told or not fields:
            return
        try:
            encoding = self._session.call("OBJECT", "ENCODING", key)
        except library().exceptions.NoPermissionError:
            return
        if encoding in (b"listpack", b"ziplist"):
            return
        self._told = True
        known = self._session.settings("hash-max-*")
        kind = "ziplist" if "hash-max-ziplist-value" in known and len(known) < 4 else "listpack"
        limits = {
            name: int(known.get(name, least))
            for name, least in (
                (f"hash-max-{kind}-entries", BUCKET_ENTRIES),
                (f"hash-max-{kind}-value", PART_BYTES),
            )
        }
        entries, value = limits.values()
        if known and entries >= MOST_EXPECTED and value >= PART_BYTES:
            way = "They have grown by deltas: export in full without since="
        else:
            least = (BUCKET_ENTRIES, PART_BYTES)
            way = "Set " + " and ".join(
                f"{name} {want}" + (f" (it is {has})" if known else "")
                for (name, has), want in zip(limits.items(), least, strict=True)
                if has < want or not known
            )
            way += " in the server, and export in full"
        say(
            f"{self._place}: buckets with up to {fields} fields are no listpacks, so rows take "
            f"twice the memory. {way}"
        )

    def _switch(self, version: str, content: RedisManifest) -> RedisManifest:
        """Check the rows, write the manifest, and have readers read them; the whole manifest."""
        kept, golden = Kept(), None
        if self._check is not None:
            embeddings = RedisEmbeddings(self._place.url, self._place.prefix, version, content)
            with closing(embeddings):
                golden = self._check(embeddings, kept)
        content = replace(content, golden=golden, files=kept.files)
        text, of = manifest.sealed(content.body()), self._place.of
        commands: list[tuple[bytes | str | int, ...]] = [
            ("SET", of(version, "manifest"), text),
            ("DEL", of(version, "golden"), of(version, "delta")),
            ("HSET", self._place.versions, version, recorded(COMPLETE, content.groups)),
            ("SET", self._place.current, f"{version} {content.sequence}"),
        ]
        if GOLDEN in kept.data:
            commands.insert(2, ("SET", of(version, "golden"), kept.data[GOLDEN]))
        if self._session.information("server").get("run_id") != self._run:
            raise self._lost_rows("is another process than at the beginning")
        if not self._lock.held(self._session):
            raise self._lock.lost()
        self._switching = True
        if not self._session.transaction(commands):
            self._switching = False
            raise self._lock.lost()
        return replace(content, sha256=manifest.checksum_in(text))

    def _finished(self, groups: Sequence[BucketGroup], sequence: int) -> RedisManifest:
        """The manifest without golden rows: whatever was written last, all rows are there."""
        common = {field.name: getattr(self._content, field.name) for field in fields(self._content)}
        of_redis = {"kind": "full", "encoding": "redis", "groups": tuple(groups)}
        return RedisManifest(**common | of_redis, sequence=sequence)

    def _pointer(self) -> tuple[str | None, int]:
        """The version that is read, None before the first, and how many deltas it has taken."""
        text = self._session.call("GET", self._place.current)
        if text is None:
            return None, 0
        return self._place.pointer(text)

    def _lost_rows(self, what: str) -> Failure:
        return Failure(
            f"{self._place} {what}: it was restarted meanwhile, or evicts keys. Run the command "
            "again"
        )

    def _warn_of_eviction(self) -> None:
        memory = self._session.information("memory")
        policy = memory.get("maxmemory_policy", "")
        if memory.get("maxmemory", "0") != "0" and policy.startswith("allkeys"):
            say(
                f"{self._place}: with maxmemory-policy {policy} it may remove rows at any time. "
                "Give it maxmemory-policy noeviction, or a server of its own"
            )
