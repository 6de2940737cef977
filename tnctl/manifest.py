"""The manifest: what a folder holds, with every file's size and checksum. docs/formats/manifest.md.

Checkpoints, split graphs and exports each end with one, written last: without a manifest that
agrees with its own checksum the folder does not count.
"""

import contextlib
import hashlib
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from tnctl import files
from tnctl.errors import Failure, UserError

NAME = "manifest.json"
CHECKSUM = '  "sha256": "'


class DamagedError(Failure):
    """A manifest that does not agree with its own checksum: its folder does not count."""


class Inventory:
    """Writes files into a folder and remembers the size and checksum of each."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.files: dict[str, dict[str, Any]] = {}

    @contextmanager
    def writing(self, name: str) -> Iterator["HashingWriter"]:
        """A file of the folder, open for writing."""
        with files.open_output(files.join(self.folder, name)) as stream:
            writer = HashingWriter(stream)
            yield writer
        self.files[name] = writer.entry()

    def write(self, name: str, data: bytes) -> None:
        """A whole file of the folder."""
        with self.writing(name) as writer:
            writer.write(data)

    def commit(self, kind: str, content: dict[str, Any], name: str = NAME) -> None:
        """Write the manifest: from now on the folder counts."""
        body = {"format": kind, "version": 1, **content, "files": self.files}
        files.write_bytes(files.join(self.folder, name), sealed(body))


class HashingWriter:
    """A binary stream that counts and hashes what passes through it; pyarrow writes to it too."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._hash = hashlib.sha256()
        self._bytes = 0

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self._stream.write(view)
        self._hash.update(view)
        self._bytes += view.nbytes
        return view.nbytes

    closed = False

    def tell(self) -> int:
        return self._bytes

    def flush(self) -> None:
        """Nothing waits here."""

    def close(self) -> None:
        """Whoever opened the stream closes it."""

    def entry(self) -> dict[str, Any]:
        return {"bytes": self._bytes, "sha256": self._hash.hexdigest()}


def sealed(body: dict[str, Any]) -> bytes:
    """JSON text whose last line is the checksum of the text before it."""
    text = json.dumps(body, indent=2, ensure_ascii=False, allow_nan=False)
    text = text.removesuffix("\n}") + ",\n"
    digest = hashlib.sha256(text.encode()).hexdigest()
    return f'{text}{CHECKSUM}{digest}"\n}}\n'.encode()


def read(folder: str, kind: str, name: str = NAME) -> dict[str, Any]:
    """The manifest of a folder. Raises Failure when it is absent, damaged or of another kind."""
    url = files.join(folder, name)
    if not files.exists(url):
        raise Failure(f"{folder} has no {name}, so it is not a complete {kind}. Check the URL")
    text = files.read_bytes(url)
    start, mark, end = text.rpartition(CHECKSUM.encode())
    if not mark or hashlib.sha256(start).hexdigest().encode() + b'"\n}\n' != end:
        raise DamagedError(f"{url} is damaged: it is not what its own checksum says. Take another")
    content: dict[str, Any] = json.loads(text)
    if content.get("format") != kind:
        raise Failure(f"{url} is the manifest of a {content.get('format')}, not of a {kind}")
    if content.get("version") != 1:
        raise Failure(f"{url} has version {content.get('version')}; this tnctl reads version 1")
    return content


def make_room(folder: str, name: str, ours: Iterable[str]) -> None:
    """Remove what an earlier command wrote to a folder, its manifest first.

    `ours` are the files that will be written. Raises UserError when the folder holds others than
    those and the ones that its manifest names: they are the user's.
    """
    found = files.list_folder(folder)
    known = {name, *ours}
    if name in found:
        # Even a damaged manifest is not the user's: what it names is not trusted then.
        with contextlib.suppress(ValueError, KeyError):
            known |= set(json.loads(files.read_bytes(files.join(folder, name)))["files"])
    tops = {path.split("/")[0] for path in known}
    if foreign := [
        entry for entry in found if entry not in tops and not entry.endswith(files.PART)
    ]:
        raise UserError(
            f"{folder} holds {foreign[0]}, which tnctl did not write there and will not remove. "
            "Give an empty or new folder as to=URL"
        )
    files.remove(files.join(folder, name))
    files.remove(folder)


def check_file(folder: str, manifest: dict[str, Any], name: str, data: bytes) -> bytes:
    """`data`, if it is what the manifest says of the file `name`."""
    entry = manifest["files"][name]
    if len(data) != entry["bytes"]:
        raise Failure(
            f"{files.join(folder, name)} is cut short or too long: {len(data):,} bytes, the "
            f"manifest says {entry['bytes']:,}. Take another {manifest['format']}"
        )
    if hashlib.sha256(data).hexdigest() != entry["sha256"]:
        raise Failure(
            f"{files.join(folder, name)} is damaged: its checksum is not the manifest's. "
            f"Take another {manifest['format']}"
        )
    return data


def check_stored(folder: str, manifest: dict[str, Any], name: str) -> None:
    """Raise Failure unless a file, read in parts, is what the manifest says."""
    url, hashed, size = files.join(folder, name), hashlib.sha256(), 0
    with files.open_input(url, decompress=False) as stream:
        while data := stream.read(4 << 20):
            hashed.update(data)
            size += len(data)
    if manifest["files"][name] != {"bytes": size, "sha256": hashed.hexdigest()}:
        raise Failure(f"{url} is damaged: it is not what the manifest says. Make it again")


def read_file(folder: str, manifest: dict[str, Any], name: str) -> bytes:
    """A whole file of the folder, verified."""
    return check_file(folder, manifest, name, files.read_bytes(files.join(folder, name)))


def identity(manifest: dict[str, Any]) -> str:
    """The checksum of a manifest, which names the checkpoint it completes."""
    return str(manifest["sha256"])
