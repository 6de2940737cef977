"""Files opened for reading, decompressed by their suffix and within limits, and for writing.

A file that is written is complete only when its block ends without an exception.
"""

import contextlib
import io
import os
import re
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

import pyarrow as pa
from fsspec.spec import AbstractBufferedFile

from tnctl.errors import Failure, UserError, refuse_if
from tnctl.files.storage import (
    CODECS,
    STANDARD_INPUT,
    WRITE_BYTES,
    local_path,
    storage,
    translated,
)

READ_BYTES = 4 << 20  # at a time, of what is read whole
# Of the parts of an upload but the last, at first: the least that S3 takes. It takes no more than
# 10,000, so their size doubles after PARTS_OF_A_SIZE: a file may have 300 GiB.
UPLOAD_BYTES = 5 << 20
PARTS_OF_A_SIZE = 2000
HELD_BYTES = 256 << 10  # of a part that is not complete, in memory; the rest is on the disk

# What a crash may leave of NAME while it is replaced: .NAME.<16 hexadecimal digits>.tnctl-part
PART = ".tnctl-part"
PART_NAME = re.compile(r"\.(.+)\.[0-9a-f]{16}" + re.escape(PART))


# ---- Reading ------------------------------------------------------------------


class InputFile(io.RawIOBase):
    """A binary file whose every read reports what failed, naming the URL."""

    def __init__(self, url: str, stream: Any, seekable: bool = False) -> None:
        self._url = url
        self._stream = stream
        self._seekable = seekable

    def read(self, size: int | None = -1, /) -> bytes:
        with translated(self._url):
            # Of pyarrow's streams a size below 0 is none.
            is_whole = size is None or size < 0
            return cast(bytes, self._stream.read() if is_whole else self._stream.read(size))

    def readinto(self, buffer: Any, /) -> int:
        with translated(self._url):
            return int(self._stream.readinto(buffer))

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


def open_input(url: str, decompress: bool = True) -> BinaryIO:
    """A binary file opened for reading; .gz, .zst and .zstd are decompressed as they are read.

    Without a compressing suffix (or with `decompress` false) it is seekable where its storage is.
    Raises `Failure` here and at every read.
    """
    if url == STANDARD_INPUT:
        return cast(BinaryIO, InputFile(url, open(0, "rb", closefd=False)))
    with translated(url):
        system, path = storage(url)
        if system.isdir(path):
            raise IsADirectoryError(url)
        stream = InputFile(url, *_opened(system, path))
        if decompress and (codec := CODECS.get(Path(path).suffix)):
            stream = InputFile(url, pa.CompressedInputStream(stream, codec))
        return cast(BinaryIO, stream)


def _opened(system: Any, path: str) -> tuple[Any, bool]:
    """A stored file, and whether it can be read from any offset."""
    stream = system.open(path, "rb")
    if "http" not in system.protocol:
        return stream, bool(stream.seekable())
    if stream.size is None:
        return io.BufferedReader(stream), False
    # Only a read that is not at the start shows whether a server has ranges.
    try:
        stream.seek(stream.size - 1)
        stream.read(1)
        stream.seek(0)
    except ValueError:
        stream.close()
        return io.BufferedReader(system.open(path, "rb", block_size=0)), False
    return stream, True


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
    refuse_if(
        len(content) > most,
        f"{url} has over {most:,} bytes, more than such a file has. Check the URL",
        Failure,
    )
    return content


def read_most(stream: BinaryIO, most: int) -> bytes:
    """The next `most` bytes of a stream; fewer only at its end."""
    parts = []
    while most > 0 and (part := stream.read(min(most, READ_BYTES))):
        parts.append(part)
        most -= len(part)
    return b"".join(parts)


# ---- Writing ------------------------------------------------------------------


class Upload:
    """A file on another storage, written in parts that wait on the disk of this machine.

    In memory they would be too much where many files are written side by side. The parts of a file
    are of one size as long as can be, and only the last is smaller: not every storage takes others.
    A file of less than one part is uploaded by one request.
    """

    def __init__(self, system: Any, path: str) -> None:
        self._system, self._path = system, path
        self._stream: Any = None
        self._part = tempfile.SpooledTemporaryFile(HELD_BYTES)  # noqa: SIM115 (closed by close or discard)
        self._sent = self._parts = 0
        self._bytes = UPLOAD_BYTES  # of the next part

    def write(self, data: memoryview) -> None:
        while data:
            count = self._bytes - self._part.tell()
            with translated(tempfile.gettempdir(), "written"):
                self._part.write(data[:count])
            data = data[count:]
            if self._part.tell() == self._bytes:
                self._send()

    def tell(self) -> int:
        return self._sent + self._part.tell()

    def close(self) -> None:
        """Complete the file."""
        if self._stream is None:
            self._part.seek(0)
            self._system.pipe_file(self._path, self._part.read())
        else:
            self._send()
            self._stream.close()
            if hasattr(self._stream, "commit"):
                self._stream.commit()
        self._part.close()

    def discard(self) -> None:
        """Abort the upload; where the storage completes every file, remove it."""
        self._part.close()
        if self._stream is None:
            return
        with contextlib.suppress(Exception):
            self._stream.discard()
        # Its destructor would close it too, and could print that nothing is left to upload.
        with contextlib.suppress(Exception):
            self._stream.close()
        if getattr(type(self._stream), "commit", None) in (None, AbstractBufferedFile.commit):
            self._system.rm_file(self._path)

    def _send(self) -> None:
        if self._stream is None:
            # Without autocommit neither close nor a destructor makes half of a file a whole one.
            self._stream = self._system.open(
                self._path, "wb", block_size=UPLOAD_BYTES, autocommit=False
            )
            # Else it would be kept for a transaction of all files, of which there is none.
            self._system.transaction.files.clear()
        self._sent += self._part.tell()
        self._part.seek(0)
        # By one write, for a storage uploads what it has as soon as that is a block or more.
        self._stream.write(self._part.read())
        self._part.seek(0)
        self._part.truncate()
        self._parts += 1
        if self._parts % PARTS_OF_A_SIZE == 0:
            self._bytes *= 2


class OutputFile(io.RawIOBase):
    """A binary file whose every write reports what failed, naming the URL. Its opener closes it."""

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


@contextlib.contextmanager
def open_output(url: str, durable: bool = True) -> Iterator[IO[bytes]]:
    """A binary file opened for writing, complete only when the block ends without an exception.

    Parent folders of a local file are made, and it is on the disk when the block has ended, unless
    `durable` is false. After an exception a local file is removed and an upload aborted. What is
    written to a name that ends in .zst is not compressed here.
    """
    local = local_path(url)
    with translated(url, "written"):
        if local is not None:
            local.parent.mkdir(parents=True, exist_ok=True)
            stream: Any = open(local, "wb")  # noqa: SIM115 (closed below)
            status = os.fstat(stream.fileno())
        else:
            stream = Upload(*storage(url))
    try:
        yield cast(IO[bytes], OutputFile(url, stream))
        with translated(url, "written"):
            if durable and local is not None and local.is_file():
                stream.flush()
                os.fsync(stream.fileno())
            stream.close()
    except BaseException:
        # What went wrong is already on its way to the user; cleaning up must not hide it.
        with contextlib.suppress(Exception):
            if local is None:
                stream.discard()
            else:
                # It may be a device, such as /dev/null, or another file by now.
                if local.is_file() and os.path.samestat(status, local.lstat()):
                    local.unlink(missing_ok=True)
                stream.close()
        raise


def compressing(stream: Any, name: str) -> AbstractContextManager[Any]:
    """A binary stream that compresses what is written to it, by the suffix of `name`, or not."""
    codec = CODECS.get(Path(name).suffix)
    if codec is None:
        return contextlib.nullcontext(stream)
    return pa.CompressedOutputStream(pa.PythonFile(stream, mode="w"), codec)


def sync(path: Path) -> None:
    """Bring a file, or the names in a folder, of this machine to the disk."""
    with translated(str(path), "written"):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


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
