"""The keys of the exports under one prefix of a Redis server. docs/formats/redis.md."""

import re
from dataclasses import dataclass

from tnctl import limits, manifest
from tnctl.errors import Failure, UserError, quoted
from tnctl.serving.redis.redis_document import RedisManifest
from tnctl.serving.redis.redis_session import shown

VERSION = r"[0-9]{1,19}-[0-9a-f]{8}"  # the step, and random digits
POINTER = re.compile(rf"(?P<version>{VERSION}) (?P<sequence>[0-9]{{1,19}})")


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

    @property
    def current(self) -> str:
        """The version that is read, and how many deltas are applied to it: `VERSION SEQUENCE`."""
        return f"{self.prefix}:current"

    @property
    def versions(self) -> str:
        """A hash with the VersionRecord of each version that has keys."""
        return f"{self.prefix}:versions"

    @property
    def lock(self) -> str:
        """The token of the writer."""
        return f"{self.prefix}:lock"

    def of(self, version: str, name: str) -> str:
        """A key of a version: `manifest`, `golden`, `delta`, or `GROUP:` with the bucket after."""
        return f"{self.prefix}:{version}:{name}"

    def pointer(self, text: bytes) -> tuple[str, int]:
        """The version and the deltas in a value of `current`. Raises Failure for other values."""
        match = POINTER.fullmatch(text.decode("utf-8", "replace"))
        if match is None:
            raise self.foreign(self.current)
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
