"""Embeddings in a Redis server, read back. docs/formats/redis.md."""

import hashlib

import numpy as np
from numpy.typing import NDArray

from tnctl.checkpoint.chain import GOLDEN
from tnctl.errors import Failure
from tnctl.manifest import DamagedError, FileEntry
from tnctl.serving.redis.bucket_commands import buckets_of, field_names
from tnctl.serving.redis.redis_document import RedisKeys, RedisManifest
from tnctl.serving.redis.redis_session import client_of, translated
from tnctl.serving.rows.file_format import hashes_of
from tnctl.serving.rows.precision import decode

PREFIX = "tnctl"
IDS_AT_ONCE = 1 << 14
TRIES = 10  # switches in the middle of one reading


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

    def lookup(
        self, group: str, ids: NDArray[np.uint64]
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
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
        entry = FileEntry(bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
        if entry != self.manifest.files[GOLDEN]:
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

    def _values(self, group: str, ids: NDArray[np.uint64]) -> list[bytes | None] | None:
        """The payload of each id; None when another version became current meanwhile."""
        entry, prefix = self._entries[group], self._keys.key(self._version, f"{group}:")
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
            for id_, fields in zip(part, replies, strict=True):
                present = [field for field in fields if field is not None]
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
