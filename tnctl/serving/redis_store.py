"""Embeddings in a Redis server, and how they are read. docs/formats/redis.md."""

import hashlib
import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tnctl import limits, manifest
from tnctl.errors import Failure, UserError, quoted
from tnctl.manifest import DamagedError, FileEntry
from tnctl.serving.export_document import BucketGroup, RedisManifest
from tnctl.serving.precision import decode
from tnctl.serving.redis_commands import buckets_of, field_names
from tnctl.serving.redis_connection import client_of, shown, translated
from tnctl.serving.stored import hashes_of

PREFIX = "tnctl"
GOLDEN = "golden.jsonl"
IDS_AT_ONCE = 1 << 14
TRIES = 10  # switches in the middle of one reading
VERSION = r"[0-9]{1,19}-[0-9a-f]{8}"  # the step, and random digits
POINTER = re.compile(rf"(?P<version>{VERSION}) (?P<sequence>[0-9]{{1,19}})")


@dataclass(frozen=True)
class Place:
    """The keys of the exports under one prefix of one server."""

    url: str
    prefix: str

    def __post_init__(self) -> None:
        if not self.prefix.isprintable() or " " in self.prefix:
            raise UserError(
                f"prefix must be without blanks and control signs. Received: {quoted(self.prefix)}"
            )

    def __str__(self) -> str:
        return f"{shown(self.url)} ({self.prefix}:)"

    @property
    def current(self) -> str:
        """The version that is read, and how many deltas it has taken: `VERSION SEQUENCE`."""
        return f"{self.prefix}:current"

    @property
    def versions(self) -> str:
        """A hash: of each version that has keys, what they are."""
        return f"{self.prefix}:versions"

    @property
    def lock(self) -> str:
        return f"{self.prefix}:lock"

    def of(self, version: str, name: str) -> str:
        """A key of a version: `manifest`, `golden`, `delta`, or a group's with the bucket after."""
        return f"{self.prefix}:{version}:{name}"

    def pointer(self, text: bytes) -> tuple[str, int]:
        """What `current` says: a version and its deltas. Raises Failure when it is another's."""
        found = POINTER.fullmatch(text.decode("utf-8", "replace"))
        if found is None:
            raise self.foreign(self.current)
        return found["version"], int(found["sequence"])

    def foreign(self, key: str) -> Failure:
        return Failure(
            f"{shown(self.url)} has something else under the key {key}. Choose another prefix="
        )

    def parsed(self, text: bytes | None, name: str) -> RedisManifest:
        """A manifest from Redis. Raises Failure when it is not one."""
        url = f"{shown(self.url)} key {name}"
        if len(text or b"") > limits.MANIFEST_BYTES:
            raise Failure(f"{url} has over {limits.MANIFEST_BYTES:,} bytes. Choose another prefix=")
        return manifest.unsealed(text or b"", str(self), url, RedisManifest)

    def nothing(self) -> Failure:
        return Failure(
            f"{shown(self.url)} has no complete export under prefix {self.prefix}. Export with "
            "to=URL, or name the prefix= that it was exported with"
        )


class RedisEmbeddings:
    """The rows of an export in Redis: Embeddings as those of files are.

    It follows when another version is switched to, and `manifest` changes then. With a `version`
    and its `content` it reads that one, which need not be complete. Raises Failure.
    """

    def __init__(
        self,
        url: str,
        prefix: str = PREFIX,
        version: str | None = None,
        content: RedisManifest | None = None,
    ) -> None:
        self._place = Place(url, prefix)
        self._client = client_of(url)
        self._following = version is None
        if version is None or content is None:
            self._follow()
        else:
            self._take(f"{version} 0".encode(), content)

    def lookup(
        self, group: str, ids: NDArray[np.uint64]
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """As in Embeddings. All rows are of one version; a delta may be on its way meanwhile."""
        wanted, inverse = np.unique(ids, return_inverse=True)
        for _ in range(TRIES):
            found = self._found(group, wanted)
            if found is not None:
                rows, known = found
                return rows[inverse], known[inverse]
            self._follow()
        raise Failure(
            f"{self._place} was switched {TRIES} times while it was read. Export less often"
        )

    def golden(self) -> bytes | None:
        """golden.jsonl, the golden rows, or None when the export has none."""
        if GOLDEN not in self.manifest.files:
            return None
        key = self._place.of(self._version, "golden")
        with translated(self._place.url):
            data: bytes = self._client.get(key) or b""
        entry = FileEntry(bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
        if entry != self.manifest.files[GOLDEN]:
            raise DamagedError(
                str(self._place), f"{self._place} key {key} is damaged", "Export again"
            )
        return data

    def close(self) -> None:
        self._client.close()

    def _take(self, pointer: bytes, content: RedisManifest) -> None:
        self._pointer = pointer
        self._version = self._place.pointer(pointer)[0]
        self.manifest, self.groups = content, content.shapes
        self._groups = {entry.group: entry for entry in content.groups}

    def _follow(self) -> None:
        """Take the version that is current, and its manifest."""
        with translated(self._place.url):
            for _ in range(TRIES):
                pointer = self._client.get(self._place.current)
                if pointer is None:
                    raise self._place.nothing()
                name = self._place.of(self._place.pointer(pointer)[0], "manifest")
                with self._client.pipeline(transaction=False) as pipeline:
                    text, now = pipeline.get(name).get(self._place.current).execute()
                if now == pointer:
                    self._take(pointer, self._place.parsed(text, name))
                    return
        raise self._place.nothing()

    def _found(
        self, name: str, ids: NDArray[np.uint64]
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_]] | None:
        """The rows of ids, each once, and which are known; None when there was a switch."""
        if name not in self._groups:
            raise Failure(f"{self._place} has no group {name}. Export with the slots that read it")
        group = self._groups[name]
        known = np.zeros(len(ids), np.bool_)
        payload = bytearray()
        for at in range(0, len(ids), IDS_AT_ONCE):
            values = self._values(group, ids[at : at + IDS_AT_ONCE])
            if values is None:
                return None
            for number, value in enumerate(values, at):
                if value is not None:
                    known[number] = True
                    payload += value
        rows = np.zeros((len(ids), group.shape.columns), np.float32)
        stored = np.frombuffer(payload, np.uint8).reshape(-1, group.shape.stride)
        rows[known] = decode(stored, group.shape)
        return rows, known

    def _values(self, group: BucketGroup, ids: NDArray[np.uint64]) -> list[bytes | None] | None:
        """The payload of each id, one pipeline with the pointer read at its end."""
        prefix = self._place.of(self._version, f"{group.group}:")
        buckets = buckets_of(hashes_of(group.group, ids), group.buckets).tolist()
        with translated(self._place.url), self._client.pipeline(transaction=False) as pipeline:
            for bucket, names in zip(buckets, field_names(ids, group.fields_per_row), strict=True):
                pipeline.hmget(f"{prefix}{bucket}", names)
            *replies, now = pipeline.get(self._place.current).execute()
        if self._following and now != self._pointer:
            return None
        values = []
        for id_, parts in zip(ids, replies, strict=True):
            there = [part for part in parts if part is not None]
            value = b"".join(there)
            if there and (len(there), len(value)) != (group.fields_per_row, group.shape.stride):
                raise Failure(
                    f"{self._place} has a damaged row, id {id_} of group {group.group}. Export in "
                    "full again"
                )
            values.append(value if there else None)
        return values


def current(url: str, prefix: str = PREFIX) -> RedisManifest:
    """The manifest of the export that is read now. Raises Failure when there is none."""
    embeddings = RedisEmbeddings(url, prefix)
    embeddings.close()
    return embeddings.manifest
