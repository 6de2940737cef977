"""A file on another storage, uploaded in parts."""

import contextlib
import tempfile
from typing import Any

from fsspec.spec import AbstractBufferedFile

from tnctl.files.storage import translated

# Of the parts of an upload but the last, at first: the least that S3 takes. It takes no more than
# 10,000, so their size doubles after so many: a file may have 300 GiB.
UPLOAD_BYTES = 5 << 20
PARTS_OF_A_SIZE = 2000
HELD_BYTES = 256 << 10  # of a part that is not complete, in memory; the rest is on the disk


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
