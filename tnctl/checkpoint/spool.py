"""Files that are staged on this machine while training stands still, and finished by threads."""

import contextlib
import queue
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from tnctl import files
from tnctl.errors import UserError
from tnctl.manifest import NAME, FileEntry, HashingWriter, Inventory, Kind

T = TypeVar("T")

FINISHERS = 2
TRIES = 3
SECONDS_BEFORE_RETRY = 2.0  # then twice that
COPY_BYTES = 1 << 20
BYTES_BEGUN = 16 << 20


class Spool(Inventory):
    """An inventory whose files wait on this machine until threads have finished them.

    A local folder is staged in place, and a file is finished when it is on the disk. For another
    storage files are staged in a folder of `root`, and then uploaded. Those whose name ends in .zst
    are compressed when they are finished. `complete` waits for all of it.
    """

    def __init__(self, folder: str, root: Path) -> None:
        super().__init__(folder)
        self._local = files.local_path(folder)
        self._own: files.TemporaryFolder | None = None
        if self._local is not None:
            self._staging = self._local
        else:
            self._own = files.TemporaryFolder("spool", root)
            self._staging = Path(self._own.name)
        self._staged_names: list[str] = []
        self._hashing, self._beginning = ThreadPoolExecutor(1), ThreadPoolExecutor(1)

    @property
    def bytes(self) -> int:
        """The bytes of the files that are finished."""
        return sum(entry.bytes for entry in self.files.values())

    @contextmanager
    def writing(self, name: str) -> Iterator[Any]:
        """A file of the folder, open for writing; `complete` finishes it."""
        with files.open_output(str(self._staged(name)), durable=False) as stream:
            if self._finished_in_place(name):
                writer = _Writer(stream, self._hashing, self._beginning)
                yield writer
                self.files[name] = writer.ended()
            else:
                yield stream
        self._staged_names.append(name)

    def _finished_in_place(self, name: str) -> bool:
        return self._local is not None and not name.endswith(".zst")

    def _staged(self, name: str) -> Path:
        # Compressed, a local file takes the place of what was staged beside it.
        return self._staging / name.removesuffix(".zst")

    def _finish(self, name: str) -> None:
        staged = self._staged(name)
        if self._finished_in_place(name):
            files.sync(staged)
            return
        self._retrying(lambda: self._copy(staged, name))
        with files.translated(str(staged), "removed"):
            staged.unlink()

    def _copy(self, staged: Path, name: str) -> None:
        with files.open_input(str(staged)) as source, super().writing(name) as target:
            shutil.copyfileobj(source, target, COPY_BYTES)

    def complete(self, document: Kind, name: str = NAME) -> Kind:
        """Finish all files and write the manifest. Raises what goes wrong with any of them."""
        self._stop_staging()
        self._finish_all()
        self.files = {one: self.files[one] for one in self._staged_names}
        if self._local is not None:
            # The names must be on the disk before the manifest says that they are there.
            folders = {self._local / one for one in self.files}
            for folder in sorted({parent for path in folders for parent in path.parents}):
                if folder.is_relative_to(self._local.parent.parent):
                    files.sync(folder)
        whole = self._retrying(lambda: super(Spool, self).complete(document, name))
        self._remove_staging()
        return whole

    def abandon(self) -> None:
        """Remove what was staged; what was uploaded is without a manifest and does not count."""
        self._stop_staging()
        self._remove_staging()
        if self._local is not None:
            shutil.rmtree(self._local, ignore_errors=True)

    def _stop_staging(self) -> None:
        self._hashing.shutdown()
        self._beginning.shutdown()

    def _finish_all(self) -> None:
        # Not while it is staged: whoever writes to a disk waits for others' syncs. And not with an
        # executor, whose threads the end of a process would wait for.
        waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
        for name in self._staged_names:
            waiting.put(name)
        errors: list[BaseException] = []

        def run() -> None:
            with contextlib.suppress(queue.Empty):
                while not errors:
                    name = waiting.get_nowait()
                    try:
                        self._finish(name)
                    except BaseException as error:
                        errors.append(error)

        threads = [threading.Thread(target=run, daemon=True) for _ in range(FINISHERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]

    def _retrying(self, action: Callable[[], T]) -> T:
        """What `action` returns; of another storage tried three times, for networks fail."""
        for number in range(TRIES - 1):
            try:
                return action()
            except UserError:
                if self._local is not None:
                    raise
            time.sleep(SECONDS_BEFORE_RETRY * 2**number)
        return action()

    def _remove_staging(self) -> None:
        if self._own is not None:
            self._own.cleanup()


class _Writer(HashingWriter):
    """Hashes what it writes in a thread, at the same time, and has the disk begin with it early."""

    def __init__(
        self, stream: Any, hashing: ThreadPoolExecutor, beginning: ThreadPoolExecutor
    ) -> None:
        super().__init__(stream)
        self._hashing, self._beginning = hashing, beginning
        self._begun = 0
        self._begins: Future[None] | None = None

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        hashed = self._hashing.submit(self._hash.update, view)
        self._stream.write(view)
        hashed.result()
        self._bytes += view.nbytes
        # A disk that is slow makes whoever tells it to begin wait, so a thread does.
        idle = self._begins is None or self._begins.done()
        if idle and self._bytes - self._begun >= BYTES_BEGUN:
            self._begins = self._beginning.submit(
                self._stream.begin_write_back, self._begun, self._bytes
            )
            self._begun = self._bytes
        return view.nbytes

    def ended(self) -> FileEntry:
        """The size and checksum of all that was written."""
        if self._begins is not None:
            self._begins.result()
        return self.entry()
