"""Files opened for reading: decompressed by their suffix, within limits."""

import io
from pathlib import Path
from typing import Any, BinaryIO, cast

import pyarrow as pa

from tnctl.errors import Failure, refuse_if
from tnctl.files.storage import CODECS, STANDARD_INPUT, local_path, storage, translated

READ_BYTES = 4 << 20  # at a time, of what is read whole


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
