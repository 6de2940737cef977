"""The manifest: what a folder holds, with every file's size and checksum. docs/formats/manifest.md.

Checkpoints, split graphs and exports each end with one, written last: without a manifest that
agrees with its own checksum the folder does not count.
"""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from tnctl import documents, files, limits
from tnctl.documents import Count, DocumentError, RelativePath, Sha256
from tnctl.errors import Failure, quoted

NAME = "manifest.json"
PUBLICATION = "current.json"  # what `tnctl publish` puts in force
CHECKSUM = '  "sha256": "'
READ_BYTES = 4 << 20

# Opens a file of a folder, by its name, for writing, as Inventory.writing does.
Opening = Callable[[str], AbstractContextManager[Any]]


@dataclass(frozen=True, kw_only=True)
class FileEntry:
    """A file of a manifest: its size and checksum, as it is stored."""

    bytes: Count
    sha256: Sha256


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The keys that every manifest has; each kind of folder has a subclass with its own.

    `FORMAT` is the text of the key `format`; `VERSION` is the version that is written, and the
    newest one that is read. `sha256` is the checksum of the manifest itself; it is empty before the
    manifest is sealed.
    """

    FORMAT: ClassVar[str]
    VERSION: ClassVar[int] = 1

    format: str
    version: Count
    files: dict[RelativePath, FileEntry] = dataclasses.field(default_factory=dict)
    sha256: str = ""

    @property
    def total_bytes(self) -> int:
        """The bytes of all files together, without the manifest."""
        return sum(entry.bytes for entry in self.files.values())

    def body(self) -> dict[str, Any]:
        """The JSON object that is sealed: `format`, `version`, the keys of the kind, `files`."""
        content: dict[str, Any] = documents.plain(self)
        del content["sha256"]
        entries = content.pop("files")
        return {**content, "files": entries}


@dataclass(frozen=True, kw_only=True)
class _Header:
    """The keys that decide which class a manifest is parsed as."""

    format: str
    version: Count


Kind = TypeVar("Kind", bound=Manifest)


class DamagedError(Failure):
    """A manifest or a file that does not have its checksum or format: `folder` does not count.

    `what` says what is wrong, `way` the way out; together they are the error's line.
    """

    def __init__(self, folder: str, what: str, way: str) -> None:
        super().__init__(f"{what}. {way}")
        self.folder, self.what, self.way = folder, what, way


class Inventory:
    """Writes files into a folder and keeps the size and checksum of each, as it is stored.

    A file whose name ends in .zst is compressed.
    """

    def __init__(self, folder: str, to: str | None = None) -> None:
        """`to` is where the folder will be moved to, if it is written elsewhere."""
        self.folder, self.to = folder, to or folder
        self.files: dict[str, FileEntry] = {}

    @contextmanager
    def writing(self, name: str) -> Iterator[Any]:
        """A file of the folder, open for writing; pyarrow can write to it."""
        with files.open_output(files.join(self.folder, name)) as stream:
            writer = HashingWriter(stream)
            with files.compressing(writer, name) as target:
                yield target
        self.files[name] = writer.entry()

    def write(self, name: str, data: bytes) -> None:
        """A whole file of the folder."""
        with self.writing(name) as writer:
            writer.write(data)

    def complete(self, document: Kind, name: str = NAME) -> Kind:
        """Write the manifest, which makes the folder complete.

        `document` is the manifest without `files` and `sha256`; returns it with both.
        """
        document = dataclasses.replace(document, files=dict(self.files))
        text = sealed(document.body())
        files.write_bytes(files.join(self.folder, name), text)
        return dataclasses.replace(document, sha256=checksum_in(text))


class _Hashed:
    """A binary stream that counts and hashes what passes through it."""

    closed = False

    def __init__(self, stream: Any) -> None:
        self._stream, self._hash, self._bytes = stream, hashlib.sha256(), 0

    def _add(self, data: Any) -> None:
        self._hash.update(data)
        self._bytes += len(data)

    def close(self) -> None:
        """Whoever opened the stream closes it."""

    def entry(self) -> FileEntry:
        """The size and checksum of all that has passed through it."""
        return FileEntry(bytes=self._bytes, sha256=self._hash.hexdigest())


class HashingWriter(_Hashed):
    """A stream to write to; pyarrow writes to it too."""

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self._stream.write(view)
        self._add(view)
        return view.nbytes

    def tell(self) -> int:
        return self._bytes

    def flush(self) -> None:
        """Nothing is buffered."""


class HashedInput(_Hashed):
    """A stream to read from; pyarrow reads from it too."""

    def read(self, size: int) -> bytes:
        data: bytes = self._stream.read(size)
        self._add(data)
        return data

    def read_rest(self) -> None:
        """Read up to the end, for the checksum."""
        while self.read(READ_BYTES):
            pass

    def readable(self) -> bool:
        return True


def sealed(body: dict[str, Any]) -> bytes:
    """JSON text whose last line is the checksum of the text before it."""
    text = json.dumps(body, indent=2, ensure_ascii=False, allow_nan=False)
    text = text.removesuffix("\n}") + ",\n"
    digest = hashlib.sha256(text.encode()).hexdigest()
    return f'{text}{CHECKSUM}{digest}"\n}}\n'.encode()


def checksum_in(text: bytes) -> str:
    """The checksum that a sealed text ends with."""
    return text.rpartition(CHECKSUM.encode())[2].removesuffix(b'"\n}\n').decode()


def read(folder: str, kind: type[Kind], name: str = NAME) -> Kind:
    """The manifest of a folder, parsed and checked.

    Raises Failure when it is absent or of another kind or version, DamagedError when it is not what
    its checksum or its format says.
    """
    url = files.join(folder, name)
    if not files.exists(url):
        published = files.exists(files.join(folder, PUBLICATION))
        way = f"Take a folder that its {PUBLICATION} names" if published else "Check the URL"
        raise Failure(
            f"{folder} has no {name}{files.in_folder(folder)}, so it holds no complete "
            f"{kind.FORMAT}. {way}"
        )
    return unsealed(files.read_bytes(url, most=limits.MANIFEST_BYTES), folder, url, kind)


def unsealed(text: bytes, folder: str, url: str, kind: type[Kind]) -> Kind:
    """The manifest in a text that was read from `url`: the inverse of `sealed`.

    Raises as `read` does.
    """
    noun = kind.FORMAT
    intact(text, folder, url, noun)
    try:
        header = documents.parse(_Header, text)
        if header.format != noun:
            raise Failure(f"{url} is the manifest of a {quoted(header.format)}, not of a {noun}")
        if not 1 <= header.version <= kind.VERSION:
            newest = kind.VERSION
            raise Failure(f"{url} has version {header.version}; this tnctl reads up to {newest}")
        return documents.parse(kind, text)
    except DocumentError as error:
        what = f"{url} is no manifest of a {noun}: {error}"
        raise DamagedError(folder, what, f"Take another {noun}") from error


def intact(text: bytes, folder: str, url: str, noun: str) -> bytes:
    """`text`, unchanged. Raises DamagedError unless it has the checksum that it ends with."""
    start, mark, end = text.rpartition(CHECKSUM.encode())
    if not mark or hashlib.sha256(start).hexdigest().encode() + b'"\n}\n' != end:
        what = f"{url} is damaged: it is not what its own checksum says"
        raise DamagedError(folder, what, f"Take another {noun}")
    return text


def check_entry(folder: str, manifest: Manifest, name: str, stored: FileEntry) -> None:
    """Raise DamagedError unless the file `name` is stored as the manifest says."""
    entry, url = manifest.files[name], files.join(folder, name)
    if stored.bytes != entry.bytes:
        what = f"cut short or too long: {stored.bytes:,} bytes, the manifest says {entry.bytes:,}"
    elif stored.sha256 != entry.sha256:
        what = "damaged: its checksum is not the manifest's"
    else:
        return
    raise DamagedError(folder, f"{url} is {what}", f"Take another {manifest.format}")


def entry_of(url: str) -> FileEntry:
    """The size and checksum of a file, read in parts. Raises Failure."""
    with files.open_input(url, decompress=False) as stream:
        stored = HashedInput(stream)
        stored.read_rest()
    return stored.entry()


def check_stored(folder: str, manifest: Manifest, name: str, way: str = "Make it again") -> None:
    """Raise DamagedError unless a file, read in parts, is stored as the manifest says."""
    url = files.join(folder, name)
    if entry_of(url) != manifest.files[name]:
        raise DamagedError(folder, f"{url} is damaged: it is not what the manifest says", way)


def read_file(folder: str, manifest: Manifest, name: str, most: int | None = None) -> bytes:
    """A whole file of the folder, verified. Raises DamagedError when it has over `most` bytes."""
    size, url = manifest.files[name].bytes, files.join(folder, name)
    if most is not None and size > most:
        what = f"{url} has {size:,} bytes, more than such a file has"
        raise DamagedError(folder, what, f"Take another {manifest.format}")
    with present(folder, manifest, name), files.open_input(url, decompress=False) as stream:
        data = files.read_most(stream, size + 1)
    stored = FileEntry(bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
    check_entry(folder, manifest, name, stored)
    return data


@contextmanager
def present(folder: str, manifest: Manifest, name: str) -> Iterator[None]:
    """Turns the absence of a file that the manifest names into a DamagedError."""
    try:
        yield
    except files.MissingError as error:
        what = f"{files.join(folder, name)} is missing, though the manifest names it"
        way = f"Take another {manifest.format}"
        if not files.exists(files.join(folder, NAME)):
            what = f"{folder} was removed while it was read (by save.keep of a run, or by hand)"
            way = "Run the command again"
        raise DamagedError(folder, what, way) from error
