"""Files opened for writing: complete only when their block ends without an exception."""

import contextlib
import io
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Any, cast

import pyarrow as pa

from tnctl.errors import Failure, UserError
from tnctl.files.storage import CODECS, WRITE_BYTES, local_path, storage, translated
from tnctl.files.uploads import Upload

# What a crash may leave of NAME while it is replaced: .NAME.<16 hexadecimal digits>.tnctl-part
PART = ".tnctl-part"
PART_NAME = re.compile(r"\.(.+)\.[0-9a-f]{16}" + re.escape(PART))


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
