"""Files on any fsspec URL, opened, listed, written and removed; errors said in one line.

The one module that knows fsspec. Every public function takes a URL or a plain path and raises
`Failure`, naming it and the way out, when the storage refuses.
"""

import contextlib
import errno
import fcntl
import glob
import io
import os
import re
import secrets
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO, Literal, cast

import fsspec
import pyarrow as pa

from tnctl import limits
from tnctl.errors import Failure, UserError
from tnctl.file_urls import protocols_of
from tnctl.masking import is_masked, is_unquoted

# What a crash may leave of NAME while it is replaced: .NAME.<16 hexadecimal digits>.tnctl-part
PART = ".tnctl-part"
PART_NAME = re.compile(r"\.(.+)\.[0-9a-f]{16}" + re.escape(PART))
LOCK = ".tnctl-lock"
MARK = ".tnctl-temporary"
STANDARD_INPUT = "standard input"  # stands for a URL to read
CODECS = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd"}
MAGIC = frozenset("*?[")
# More at once makes the kernel look for memory in large pieces: up to eight times the time.
WRITE_BYTES = 128 << 10
# Of the parts of an upload but the last, at first: the least that S3 takes. It takes no more than
# 10,000, so their size doubles after so many: a file may have 300 GiB.
UPLOAD_BYTES = 5 << 20
PARTS_OF_A_SIZE = 2000
INFLATED_BYTES = 4 << 20  # at a time, of a compressed file that is read whole
HELD_BYTES = 256 << 10  # what of a part is in memory, until it is uploaded


class AbsentError(Failure):
    """What was named is not there: no file of the name, or none that matches."""


class MissingError(Failure):
    """A file that is not there."""


@contextlib.contextmanager
def translated(url: str, done: str = "read") -> Iterator[None]:
    """Turn whatever a storage backend raises inside the block into a `Failure` that names `url`.

    `done` completes "could not be ...": read, written, listed or removed.
    """
    try:
        yield
    except (UserError, MemoryError):
        raise
    except Exception as error:
        missing = done == "read" and isinstance(error, FileNotFoundError)
        kind = MissingError if missing else Failure
        raise kind(_sentence(url, done, error)) from error


def _sentence(url: str, done: str, error: Exception) -> str:
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    if isinstance(error, FileNotFoundError) and done == "written":
        return f"{url} could not be written: its folder cannot be made there. Choose another"
    if isinstance(error, FileNotFoundError):
        return f"{url} was not found. Check the name, and data.root if it starts from there"
    if isinstance(error, PermissionError):
        return f"{url} could not be {done}: permission denied. Give this user access to it"
    if isinstance(error, IsADirectoryError):
        return f"{url} is a folder, not a file. Name a file in it"
    if isinstance(error, NotADirectoryError | FileExistsError):
        return f"{url} could not be {done}: a part of its path is a file. Choose another folder"
    if isinstance(error, ImportError):
        return f"{url} needs a package that is not installed: {error}"
    if full:
        return f"{url} could not be {done}: no space is left there. Free some, or choose another"
    if isinstance(error, OSError) and error.errno == errno.EROFS:
        return f"{url} could not be {done}: its file system is read-only. Choose another folder"
    reason = str(error).strip().split("\n")[0] or type(error).__name__
    # Decompression fails without an error number, the network and the disk fail with one.
    broken = isinstance(error, OSError | pa.ArrowException) and not getattr(error, "errno", None)
    if done == "read" and broken and Path(url).suffix in CODECS:
        return f"{url} is damaged or cut short ({reason}). Fetch or write the file again"
    return f"{url} could not be {done} ({reason}). Check the URL and that its storage answers"


def _storage(url: str) -> tuple[Any, str]:
    """The fsspec file system of `url`, without any memory of old listings, and the path in it."""
    if is_masked(url):
        raise UserError(
            f"{url} stands in what was saved, where passwords and tokens are masked. Give the key "
            "with the whole URL again, or keep them out of URLs (docs/data.md#passwords)"
        )
    if is_unquoted(url):  # libraries would show a part of it as a host or port that is wrong
        raise UserError(
            f"{url} has a password with a sign that ends it. Write / ? # and spaces in it as %2F "
            "%3F %23 %20, or keep it out of the URL (docs/data.md#passwords)"
        )
    if "reference" in protocols_of(url):
        raise UserError(
            f"{url} is of fsspec's protocol reference, which renders templates of a file: they can "
            "run commands, or never end. Name the files themselves"
        )
    system, path = fsspec.core.url_to_fs(url, use_listings_cache=False)
    system.invalidate_cache()
    return system, path


def join(root: str | None, name: str) -> str:
    """`name` started from the folder or URL `root`; absolute paths and URLs stay as they are."""
    if not root or "://" in name or os.path.isabs(name):
        return name
    return (root if root.endswith("/") else root + "/") + name


def local_path(url: str) -> Path | None:
    """The path of a file on this machine, or None when `url` is elsewhere."""
    for scheme in ("file://", "file:", "local://", "local:"):  # as fsspec has it
        if url.startswith(scheme):
            return Path(url.removeprefix(scheme))
    return None if "://" in url else Path(url)


def expand(spec: str | Sequence[str], root: str | None = None) -> list[str]:
    """The files that `spec` names: a name, a glob, or a list of them.

    A list keeps its order and the files of a glob are sorted. A file whose name is exactly as
    given wins over the meaning of `*`, `?` and `[` in it. Raises `Failure` when there is no file.
    """
    if not isinstance(spec, str):
        return [url for name in spec for url in expand(name, root)]
    url = join(root, spec)
    with translated(url):
        system, path = _storage(url)
        if system.isfile(path):
            return [url]
        if system.isdir(path):
            raise Failure(f"{url} is a folder. Name its files with a glob, such as {url}/*.csv")
    if not MAGIC.intersection(spec):
        raise AbsentError(
            f"{url} was not found. Check the name, and data.root if it starts from there"
        )
    return _matches(url, glob.escape(url.removesuffix(spec)) + spec)


def _matches(url: str, pattern: str) -> list[str]:
    with translated(url, "listed"):
        system, path = _storage(pattern)
        found = system.glob(path, detail=True)
        names = sorted(name for name, info in found.items() if info["type"] == "file")
        if not names:
            raise AbsentError(
                f"{url} matches no file. Check the glob, and data.root if it starts there"
            )
        return [system.unstrip_protocol(name) if "://" in url else name for name in names]


class _Input(io.RawIOBase):
    """A binary file whose every read says what failed, naming the URL."""

    def __init__(self, url: str, stream: Any, seekable: bool = False) -> None:
        self._url = url
        self._stream = stream
        self._seekable = seekable
        self.bytes_read = 0

    def read(self, size: int | None = -1, /) -> bytes:
        with translated(self._url):
            whole = size is None or size < 0
            data = cast(bytes, self._stream.read() if whole else self._stream.read(size))
        self.bytes_read += len(data)
        return data

    def readinto(self, buffer: Any, /) -> int:
        with translated(self._url):
            count = int(self._stream.readinto(buffer))
        self.bytes_read += count
        return count

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._seekable

    def seek(self, offset: int, whence: int = 0, /) -> int:
        with translated(self._url):
            self._stream.seek(offset, whence)
            return int(self._stream.tell())

    def tell(self) -> int:
        return int(self._stream.tell())

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
            super().close()


class _Decompressed(_Input):
    """A compressed file, decompressed as it is read; `Failure` when it gives far too much."""

    def __init__(self, url: str, stored: _Input, codec: str) -> None:
        super().__init__(url, pa.CompressedInputStream(stored, codec))
        self._stored = stored

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or size < 0:
            return b"".join(iter(lambda: self.read(INFLATED_BYTES), b""))
        data = super().read(size)
        self._refuse_bomb()
        return data

    def readinto(self, buffer: Any, /) -> int:
        count = super().readinto(buffer)
        self._refuse_bomb()
        return count

    def _refuse_bomb(self) -> None:
        stored = self._stored.bytes_read
        if self.bytes_read > max(limits.INFLATION_FREE, limits.INFLATION * stored):
            raise Failure(
                f"{self._url} gives {limits.mebibytes(self.bytes_read)} of its first {stored:,} "
                f"bytes, over {limits.INFLATION} times as many: too much for data. If it is whole, "
                "decompress it and name the result"
            )


def open_input(url: str, decompress: bool = True) -> BinaryIO:
    """A binary file opened for reading; .gz, .zst and .zstd are decompressed as they are read.

    Without a compressing suffix (or with `decompress` false) it is seekable where its storage is.
    Raises `Failure` here and at every read, also when it gives over limits.INFLATION times its
    bytes.
    """
    if url == STANDARD_INPUT:
        return cast(BinaryIO, _Input(url, open(0, "rb", closefd=False)))
    with translated(url):
        system, path = _storage(url)
        if system.isdir(path):
            raise IsADirectoryError(url)
        stream = _Input(url, *_opened(system, path))
        codec = CODECS.get(Path(path).suffix) if decompress else None
        if codec:
            return cast(BinaryIO, _Decompressed(url, stream, codec))
        return cast(BinaryIO, stream)


def _opened(system: Any, path: str) -> tuple[Any, bool]:
    """A stored file, and whether it can be read from any place."""
    stream = system.open(path, "rb")
    if "http" not in system.protocol:
        return stream, bool(stream.seekable())
    if stream.size is None:
        return io.BufferedReader(stream), False
    # A server without ranges is found out at the first read that is not at the start.
    try:
        stream.seek(stream.size - 1)
        stream.read(1)
        stream.seek(0)
    except ValueError:
        stream.close()
        return io.BufferedReader(system.open(path, "rb", block_size=0)), False
    return stream, True


class _Output(io.RawIOBase):
    """A binary file whose every write says what failed, naming the URL. Its opener closes it."""

    def __init__(self, url: str, stream: Any) -> None:
        self._url = url
        self._stream = stream

    def write(self, data: Any, /) -> int:
        view = memoryview(data).cast("B")
        with translated(self._url, "written"):
            for at in range(0, view.nbytes, WRITE_BYTES):
                self._stream.write(view[at : at + WRITE_BYTES])
        return view.nbytes

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return int(self._stream.tell())

    def begin_write_back(self, first: int, end: int) -> None:
        """Have the disk of this machine begin with the bytes from `first` to `end`."""
        # It drops from memory what is on the disk, and starts writing what is not.
        os.posix_fadvise(self._stream.fileno(), first, end - first, os.POSIX_FADV_DONTNEED)


class _Upload:
    """A file on another storage, written in parts that wait on the disk of this machine.

    In memory they would be too much where many files are written side by side. The parts of a file
    are of one size as long as can be, and only the last is smaller: not every storage takes others.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._part = tempfile.SpooledTemporaryFile(HELD_BYTES)  # noqa: SIM115 (closed by close or discard)
        self._sent = self._parts = 0
        self._bytes = UPLOAD_BYTES  # of the next part

    def write(self, data: memoryview) -> None:
        at = 0
        while at < len(data):
            count = min(len(data) - at, self._bytes - self._part.tell())
            with translated(tempfile.gettempdir(), "written"):
                self._part.write(data[at : at + count])
            at += count
            if self._part.tell() == self._bytes:
                self._send()

    def tell(self) -> int:
        return self._sent + self._part.tell()

    def close(self) -> None:
        """Complete the file."""
        self._send()
        self._part.close()
        self._stream.close()

    def discard(self) -> None:
        """Forget the file, where the storage can."""
        self._part.close()
        # Else closing, or its destructor, would complete the upload.
        with contextlib.suppress(AttributeError):
            self._stream.closed = True
        if hasattr(self._stream, "discard"):
            self._stream.discard()

    def _send(self) -> None:
        self._sent += self._part.tell()
        self._part.seek(0)
        shutil.copyfileobj(self._part, self._stream, WRITE_BYTES)
        self._part.seek(0)
        self._part.truncate()
        self._parts += 1
        if self._parts % PARTS_OF_A_SIZE == 0:
            self._bytes *= 2
            self._stream.blocksize = self._bytes


@contextlib.contextmanager
def open_output(url: str, durable: bool = True) -> Iterator[IO[bytes]]:
    """A binary file opened for writing, complete only when the block ends without an exception.

    Parent folders of a local file are made, and it is on the disk when the block has ended, unless
    `durable` is false. After an exception a local file is removed and an upload discarded, where
    the storage can. What is written to a name that ends in .zst is not compressed here.
    """
    local = local_path(url)
    with translated(url, "written"):
        if local is not None:
            local.parent.mkdir(parents=True, exist_ok=True)
            stream: Any = open(local, "wb")  # noqa: SIM115 (closed by _finish or _abandon)
        else:
            system, path = _storage(url)
            stream = _Upload(system.open(path, "wb", block_size=UPLOAD_BYTES))
    output = _Output(url, stream)
    try:
        yield cast(IO[bytes], output)
        with translated(url, "written"):
            _finish(stream, durable and local is not None and local.is_file())
    except BaseException:
        _abandon(stream, local)
        raise


def _finish(stream: Any, durable: bool) -> None:
    if durable:
        stream.flush()
        os.fsync(stream.fileno())
    stream.close()


def _abandon(stream: Any, local: Path | None) -> None:
    # What went wrong is already on its way to the user; cleaning up must not hide it.
    with contextlib.suppress(Exception):
        if local is not None:
            if local.is_file():  # and not a device, such as /dev/null
                local.unlink(missing_ok=True)
            stream.close()
        else:
            stream.discard()


@contextlib.contextmanager
def compressing(stream: Any, name: str) -> Iterator[Any]:
    """A binary stream that compresses what is written to it, by the suffix of `name`, or not."""
    codec = CODECS.get(Path(name).suffix)
    if codec is None:
        yield stream
        return
    with pa.CompressedOutputStream(pa.PythonFile(stream, mode="w"), codec) as compressed:
        yield compressed


def sync(path: Path) -> None:
    """Bring a file, or the names in a folder, of this machine to the disk."""
    with translated(str(path), "written"):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def locked(folder: str) -> Iterator[None]:
    """Keep other processes that ask for it out of a folder while the block runs.

    Of folders of this machine only, other storages have no locks. Raises Failure at once when
    another process is in it. What a process held that was killed, the kernel has released.
    """
    local = local_path(folder)
    if local is None:
        yield
        return
    path = local / LOCK
    try:
        with translated(folder, "written"):
            made = [one for one in (local, *local.parents) if not one.exists()]
            descriptor = _lock(folder, path)
    except Failure as error:
        if not isinstance(error.__cause__, PermissionError):
            for above in made:
                remove_empty_folder(str(above))
            raise
        yield  # nobody writes here, and whoever tries will be told
        return
    try:
        yield
    finally:
        # Before it is released: afterwards it may be another's.
        with contextlib.suppress(OSError):  # it stays, and stands in nobody's way
            path.unlink(missing_ok=True)
        os.close(descriptor)
        with contextlib.suppress(OSError):  # it is not empty
            for one in made:
                one.rmdir()


def _lock(folder: str, path: Path) -> int:
    """The open file of a lock that is held now."""
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 20, 0).decode("ascii", "replace")
            os.close(descriptor)
            process = f" (process {holder})" if holder else ""
            raise Failure(
                f"another `tnctl train`{process} is working in {folder}. Wait for it, or choose "
                "another output"
            ) from None
        except OSError:
            pass  # a file system without locks
        # Whoever held it may have removed it since it was opened.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                if not re.fullmatch(rb"[0-9]{0,20}", os.pread(descriptor, 21, 0)):
                    os.close(descriptor)
                    raise Failure(f"{path} is no lock of tnctl. Move it away")
                os.truncate(descriptor, 0)
                with contextlib.suppress(OSError):  # on a full disk it names nobody
                    os.pwrite(descriptor, str(os.getpid()).encode(), 0)
                return descriptor
        os.close(descriptor)


class TemporaryFolder:
    """A new folder of this machine, in `root` or the temporary folder, named for its `purpose`.

    It goes with the object, and at the latest with the process. What killed processes have left
    of the same purpose goes when one is made: folders that a mark in them says are tnctl's, which
    no copy or other folder has. Raises Failure.
    """

    def __init__(self, purpose: str, root: Path | None = None) -> None:
        given, prefix = root or Path(tempfile.gettempdir()), f"tnctl.{purpose}."
        root = given.absolute()
        with translated(str(given), "written"):
            root.mkdir(parents=True, exist_ok=True)
            _remove_left_behind(root, prefix)
            # It has its name only when it is held: others would take it for left behind.
            new = tempfile.mkdtemp(prefix="tnctl.new.", dir=root)
            held = os.open(new, os.O_RDONLY)
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            outer = str(root / (prefix + new.rpartition(".")[2]))
            self.name = f"{outer}/content"
            Path(new, MARK).write_text(_mark_of(new, outer))
            Path(new, "content").mkdir()
            os.rename(new, outer)
        self._end = weakref.finalize(self, _give_up, outer, held)

    def cleanup(self) -> None:
        """Remove it, if it is there."""
        self._end()

    def __enter__(self) -> str:
        return self.name

    def __exit__(self, *_: object) -> None:
        self.cleanup()


def _mark_of(folder: str | Path, name: str | Path) -> str:
    """What the mark of a temporary folder says: no other folder has its name and number."""
    return f"{Path(name).name} {os.stat(folder).st_ino}\n"


def _give_up(folder: str, held: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    os.close(held)


def _remove_left_behind(root: Path, prefix: str) -> None:
    """Remove this user's folders of a prefix that no process holds."""
    for folder in root.glob(f"{prefix}*"):
        with contextlib.suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                ours = os.fstat(descriptor).st_uid == os.geteuid()
                if ours and (folder / MARK).read_text() == _mark_of(folder, folder):
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(descriptor)


def free_bytes(folder: str | Path) -> int:
    """The bytes that are free for this user where a folder of this machine is, or will be."""
    place = Path(folder).absolute()
    with translated(str(folder)):
        while not place.exists():
            place = place.parent
        return shutil.disk_usage(place).free


def exists(url: str) -> bool:
    """Whether there is a file or folder at `url`."""
    local = local_path(url)
    with translated(url):
        if local is not None:
            return local.exists()
        system, path = _storage(url)
        return bool(system.exists(path))


def lies_at(url: str) -> bool:
    """Whether something has the name `url`, also a symbolic link to nothing."""
    local = local_path(url)
    return exists(url) if local is None else os.path.lexists(local)


def is_link(url: str) -> bool:
    """Whether a name is that of a symbolic link of this machine."""
    local = local_path(url)
    return local is not None and local.is_symlink()


def size(url: str) -> int:
    """The bytes of a file, as stored (compressed)."""
    with translated(url):
        system, path = _storage(url)
        found = system.size(path)
    if found is None:
        raise Failure(f"{url} does not tell its size. Copy it to a storage that does")
    return int(found)


def fingerprint(url: str) -> dict[str, Any]:
    """What tells whether a file was changed: its `bytes`, and its `etag` or when it was `modified`.

    `modified` is in nanoseconds on this machine, a time as text elsewhere, and absent where the
    storage does not tell.
    """
    local = local_path(url)
    with translated(url):
        if local is not None:
            found = local.stat()
            return {"bytes": found.st_size, "modified": found.st_mtime_ns}
        system, path = _storage(url)
        info = system.info(path)
        if etag := info.get("ETag") or info.get("etag"):
            return {"bytes": info["size"], "etag": str(etag)}
        try:
            return {"bytes": info["size"], "modified": system.modified(path).isoformat()}
        except NotImplementedError:
            return {"bytes": info["size"]}


def read_bytes(url: str, most: int | None = None) -> bytes:
    """The whole content of a file, as stored. Raises Failure when it has over `most` bytes."""
    local = local_path(url)
    with (
        translated(url),
        open(local, "rb") if local is not None else open_input(url, decompress=False) as stream,
    ):
        if most is None:
            return stream.read()
        content = read_most(stream, most + 1)
    if len(content) > most:
        raise Failure(f"{url} has over {most:,} bytes, more than such a file has. Check the URL")
    return content


def read_most(stream: BinaryIO, most: int) -> bytes:
    """Up to `most` bytes from where a stream stands; fewer only at its end."""
    parts = []
    while most > 0 and (part := stream.read(min(most, INFLATED_BYTES))):
        parts.append(part)
        most -= len(part)
    return b"".join(parts)


def write_bytes(url: str, data: bytes, durable: bool = True) -> None:
    """Make `data` the whole content of a file, at once: a reader sees the old or the new one.

    It is on the disk of this machine afterwards, unless `durable` is false.
    """
    local = local_path(url)
    if local is None:
        with open_output(url) as stream:
            stream.write(data)
        return
    part = local.with_name(f".{local.name}.{secrets.token_hex(8)}{PART}")
    with translated(url, "written"):
        try:
            with open_output(str(part), durable) as stream:
                stream.write(data)
            os.replace(part, local)
            if durable:
                sync(local.parent)
        except UserError as error:
            raise Failure(str(error).replace(str(part), url)) from error
        except BaseException:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
            raise


def remove_file(url: str) -> None:
    """Remove one file; of a symbolic link the link. Nothing happens when there is none."""
    local = local_path(url)
    with translated(url, "removed"):
        if local is not None:
            local.unlink(missing_ok=True)
            return
        system, path = _storage(url)
        with contextlib.suppress(FileNotFoundError):
            # Not rm, which takes * and ? in a name for a pattern.
            system.rm_file(path)


def remove_empty_folder(url: str) -> None:
    """Remove a folder that nothing is in; any other stays. Object stores have no folders."""
    local = local_path(url)
    if local is not None:
        with contextlib.suppress(OSError):
            local.rmdir()
        return
    with translated(url, "removed"):
        system, path = _storage(url)
        with contextlib.suppress(OSError, NotImplementedError):
            if system.isdir(path) and not system.ls(path, detail=False):
                system.rmdir(path)


@dataclass(frozen=True)
class Listed:
    """An entry of a folder: `other` is a symbolic link, a device, a pipe or a socket."""

    name: str
    kind: Literal["file", "folder", "other"]
    bytes: int


def listed(url: str) -> list[Listed]:
    """What lies directly in a folder, by names; nothing when there is no folder. Raises Failure."""
    local = local_path(url)
    with translated(url, "listed"):
        if local is not None:
            return _listed_here(local)
        system, path = _storage(url)
        if not system.isdir(path):
            return []
        entries = [
            Listed(
                entry["name"].rstrip("/").rsplit("/", 1)[-1],
                "folder" if entry["type"] == "directory" else "file",
                int(entry.get("size") or 0),
            )
            for entry in system.ls(path, detail=True)
            if entry["name"].rstrip("/") != path.rstrip("/")
        ]
    return sorted((entry for entry in entries if entry.name), key=lambda entry: entry.name)


def _listed_here(folder: Path) -> list[Listed]:
    entries = []
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as scanned:
        for entry in scanned:
            kind: Literal["file", "folder", "other"] = "other"
            size = 0
            if entry.is_dir(follow_symlinks=False):
                kind = "folder"
            elif entry.is_file(follow_symlinks=False):
                kind, size = "file", entry.stat(follow_symlinks=False).st_size
            entries.append(Listed(entry.name, kind, size))
    return sorted(entries, key=lambda entry: entry.name)


def remote_place(url: str) -> tuple[str, tuple[str, ...]]:
    """The storage of a URL, and the names of its path, the same for all spellings of it."""
    with translated(url):
        system, path = _storage(url)
    system = getattr(system, "fs", system)  # behind a cache
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            del parts[-1:]
        elif part not in ("", "."):
            parts.append(part)
    return type(system).__name__, tuple(parts)


def move_file(url: str, to: str) -> None:
    """Give a file another name on its storage, in the place of a file that has it."""
    source, target = local_path(url), local_path(to)
    with translated(to, "written"):
        if source is not None and target is not None:
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(source, target)
            return
        system, path = _storage(url)
        _, path_to = _storage(to)
        system.cp_file(path, path_to)
        system.rm_file(path)


def list_folder(url: str) -> list[str]:
    """The names of files and folders directly in a folder, sorted; none when there is no folder."""
    local = local_path(url)
    with translated(url, "listed"):
        if local is not None:
            # Not by fsspec, to which a folder that may not be looked into is none.
            try:
                return sorted(os.listdir(local))
            except (FileNotFoundError, NotADirectoryError):
                return []
        system, path = _storage(url)
        if not system.isdir(path):
            return []
        found = system.ls(path, detail=False)
    names = {name.rstrip("/").rsplit("/", 1)[-1] for name in found if name.rstrip("/") != path}
    return sorted(names - {""})


def upload_folder(local: str | Path, url: str) -> None:
    """Copy every file under a local folder to the same names under `url`."""
    root = Path(local)
    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        _copy(str(path), join(url, path.relative_to(root).as_posix()))


def download_folder(url: str, local: str | Path) -> None:
    """Copy every file under `url` to the same names under a local folder."""
    with translated(url, "listed"):
        system, path = _storage(url)
        found = system.find(path)
    if not found:
        raise Failure(f"{url} is no folder, or an empty one. Check the name")
    for name in found:
        source = system.unstrip_protocol(name)
        _copy(source, str(Path(local) / os.path.relpath(name, path)))


def _copy(source: str, target: str) -> None:
    with open_input(source, decompress=False) as reading, open_output(target) as writing:
        shutil.copyfileobj(reading, writing, 4 << 20)
