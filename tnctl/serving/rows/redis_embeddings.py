"""Embeddings in a Redis server, read back: the keys, their documents and the rows.

docs/formats/redis.md.
"""

import hashlib
import re
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from tnctl import limits, manifest
from tnctl.checkpoint.chain import GOLDEN
from tnctl.documents import Count, Name, Uint32
from tnctl.errors import Failure, UserError, quoted
from tnctl.manifest import DamagedError, FileEntry
from tnctl.serving.artefact_document import document
from tnctl.serving.rows.embeddings import PREFIX
from tnctl.serving.rows.export_document import GroupRows, RowsManifest
from tnctl.serving.rows.precision import LookedUp, Uint64s, decode
from tnctl.serving.rows.redis_session import client_of, shown, translated
from tnctl.serving.rows.row_formats import hashes_of

Buckets = Annotated[Uint32, Field(ge=1)]
VERSION = r"[0-9]{1,19}-[0-9a-f]{8}"  # the step, and random digits
POINTER = re.compile(rf"(?P<version>{VERSION}) (?P<sequence>[0-9]{{1,19}})")

State = Literal["writing", "complete", "expiring"]
IDS_AT_ONCE = 1 << 14
TRIES = 10  # switches in the middle of one reading


@document
class BucketGroup(GroupRows):
    """A share group whose rows are in hashes of a Redis server."""

    buckets: Buckets
    fields_per_row: Annotated[int, Field(ge=1, le=256)]


@document
class RedisManifest(RowsManifest):
    """The manifest of embeddings in Redis; `sequence` is the number of deltas applied to it."""

    encoding: Literal["redis"]
    groups: tuple[BucketGroup, ...]
    sequence: Count


@document
class VersionRecord:
    """What `PREFIX:versions` has of a version: its state, and the buckets of each group."""

    state: State
    groups: dict[Name, Buckets]


def buckets_of(hashes: Uint64s, count: int) -> Uint64s:
    """floor(hash * count / 2^64), exactly; uint64 [n]. `count` is below 2^32."""
    shift, n = np.uint64(32), np.uint64(count)
    high, low = hashes >> shift, hashes & np.uint64(0xFFFFFFFF)
    return (high * n + (low * n >> shift)) >> shift


def field_names(ids: Uint64s, fields: int) -> list[list[bytes]]:
    """The names of the fields of each id (uint64 [n]), `fields` for each.

    The first is the id, 8 bytes, little-endian; the others add a byte, the number of the part.
    """
    names = [id_.to_bytes(8, "little") for id_ in ids.tolist()]
    return [[name, *(name + bytes([part]) for part in range(1, fields))] for name in names]


def entry_of(data: bytes) -> FileEntry:
    """The size and checksum of a file that is a key."""
    return FileEntry(bytes=len(data), sha256=hashlib.sha256(data).hexdigest())


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

    def buckets(self, version: str, group: str) -> str:
        """What the names of the keys of a group's buckets begin with; their numbers follow."""
        return self.key(version, f"{group}:")

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


class RedisEmbeddings:
    """The rows of an export in Redis, looked up as Embeddings of files are.

    When another version becomes current, it is read, and `manifest` changes. With a `version` and
    its `content` that one is read, which need not be complete. Raises Failure.
    """

    def __init__(
        self,
        url: str,
        prefix: str = PREFIX,
        version: str | None = None,
        content: RedisManifest | None = None,
    ) -> None:
        self._keys = RedisKeys(url, prefix)
        self._client = client_of(url)
        self._following = version is None
        if version is None or content is None:
            self._follow()
        else:
            self._take(f"{version} 0".encode(), content)

    def lookup(self, group: str, ids: Uint64s) -> LookedUp:
        """As in Embeddings: float32 [n, columns] and bool [n] for ids [n].

        All rows are of one version, which a delta may be changing.
        """
        wanted, inverse = np.unique(ids, return_inverse=True)
        for _ in range(TRIES):
            if group not in self.groups:
                raise Failure(
                    f"{self._keys} has no group {group}. Export with the slots that read it"
                )
            values = self._values(group, wanted)
            if values is None:  # the current version has changed
                self._follow()
                continue
            known = np.array([value is not None for value in values], np.bool_)
            rows = np.zeros((len(wanted), self.groups[group].columns), np.float32)
            stored = np.frombuffer(b"".join(filter(None, values)), np.uint8)
            rows[known] = decode(stored.reshape(-1, self.groups[group].stride), self.groups[group])
            return rows[inverse], known[inverse]
        raise Failure(
            f"{self._keys} was switched {TRIES} times while it was read. Export less often"
        )

    def golden(self) -> bytes | None:
        """The golden rows, golden.jsonl, or None when the export has none."""
        if GOLDEN not in self.manifest.files:
            return None
        key = self._keys.key(self._version, "golden")
        with translated(self._keys.url):
            data: bytes = self._client.get(key) or b""
        if entry_of(data) != self.manifest.files[GOLDEN]:
            raise DamagedError(
                str(self._keys), f"{self._keys} key {key} is damaged", "Export again"
            )
        return data

    def close(self) -> None:
        self._client.close()

    def _take(self, pointer: bytes, content: RedisManifest) -> None:
        self._pointer = pointer
        self._version = self._keys.pointer(pointer)[0]
        self.manifest, self.groups = content, content.shapes
        self._entries = {entry.group: entry for entry in content.groups}

    def _follow(self) -> None:
        """Take the version that is current, and its manifest."""
        with translated(self._keys.url):
            for _ in range(TRIES):
                pointer = self._client.get(self._keys.key("current"))
                if pointer is None:
                    break
                name = self._keys.key(self._keys.pointer(pointer)[0], "manifest")
                with self._client.pipeline(transaction=False) as pipeline:
                    text, now = pipeline.get(name).get(self._keys.key("current")).execute()
                if now == pointer:
                    self._take(pointer, self._keys.parsed(text, name))
                    return
        raise self._keys.nothing()

    def _values(self, group: str, ids: Uint64s) -> list[bytes | None] | None:
        """The payload of each id; None when another version became current meanwhile."""
        entry, prefix = self._entries[group], self._keys.buckets(self._version, group)
        complete = entry.fields_per_row, entry.shape.stride
        values: list[bytes | None] = []
        for at in range(0, len(ids), IDS_AT_ONCE):
            part = ids[at : at + IDS_AT_ONCE]
            buckets = buckets_of(hashes_of(group, part), entry.buckets).tolist()
            with translated(self._keys.url), self._client.pipeline(transaction=False) as pipeline:
                for bucket, names in zip(buckets, field_names(part, complete[0]), strict=True):
                    pipeline.hmget(f"{prefix}{bucket}", names)
                # The pointer is read last, so that all rows are of the version that it names.
                *replies, now = pipeline.get(self._keys.key("current")).execute()
            if self._following and now != self._pointer:
                return None
            for id_, parts in zip(part, replies, strict=True):
                present = [field for field in parts if field is not None]
                value = b"".join(present)
                if present and (len(present), len(value)) != complete:
                    raise Failure(
                        f"{self._keys} has a damaged row, id {id_} of group {group}. Export in "
                        "full again"
                    )
                values.append(value if present else None)
        return values


def current(url: str, prefix: str = PREFIX) -> RedisManifest:
    """The manifest of the current version. Raises Failure when there is none."""
    embeddings = RedisEmbeddings(url, prefix)
    embeddings.close()
    return embeddings.manifest
