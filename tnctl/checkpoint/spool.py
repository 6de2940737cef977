"""Files that are staged on this machine while training pauses, and finished by threads."""

import contextlib
import queue
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from tnctl import files, ownership
from tnctl.errors import Failure, UserError
from tnctl.manifest import NAME, FileEntry, HashingWriter, Inventory, Kind
from tnctl.ownership import CHECKPOINT

T = TypeVar("T")

FINISHERS = 2
TRIES = 3
SECONDS_BEFORE_RETRY = 2.0  # then twice that
COPY_BYTES = 1 << 20
BYTES_BEGUN = 16 << 20


class StagedFiles(Inventory):
    """An inventory whose files are staged on this machine, and finished by threads.

    A local folder is staged in place, and a file is finished when it is on the disk. For another
    storage files are staged in a folder of `root`, and then uploaded. Files whose name ends in .zst
    are compressed when they are finished. `finish` waits for all of it.
    """

    def __init__(self, folder: str, root: Path) -> None:
        super().__init__(folder)
        self._local = files.local_path(folder)
        self._temporary: files.TemporaryFolder | None = None
        if self._local is not None:
            self._staging = self._local
        else:
            self._temporary = files.TemporaryFolder("spool", root)
            self._staging = Path(self._temporary.name)
        self._staged_names: list[str] = []
        self._hashing, self._beginning = ThreadPoolExecutor(1), ThreadPoolExecutor(1)

    @property
    def bytes(self) -> int:
        """The bytes of the files that are finished."""
        return sum(entry.bytes for entry in self.files.values())

    @contextmanager
    def writing(self, name: str) -> Iterator[Any]:
        """A file of the folder, open for writing; `finish` finishes it."""
        staged = str(self._staged(name))
        if files.is_link(staged):
            raise ownership.foreign_file(self.folder, name)
        with files.open_output(staged, durable=False) as stream:
            if self._finished_in_place(name):
                writer = _StagedWriter(stream, self._hashing, self._beginning)
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
        """Bring a staged file to its place: sync it there, or copy it, compressed or uploaded."""
        staged = self._staged(name)
        if self._finished_in_place(name):
            files.sync(staged)
            return
        self._retrying(lambda: self._copy(staged, name))
        with files.translated(str(staged), "removed"):
            staged.unlink()

    def _copy(self, staged: Path, name: str) -> None:
        # Inventory.writing, not this class's: it compresses and writes to the storage.
        with files.open_input(str(staged)) as source, super().writing(name) as target:
            shutil.copyfileobj(source, target, COPY_BYTES)

    def finish(self) -> dict[str, FileEntry]:
        """Finish all files; returns them in the order in which they were staged.

        Raises what goes wrong with any of them.
        """
        self._stop_staging()
        self._finish_all()
        self.files = {name: self.files[name] for name in self._staged_names}
        if self._local is not None:
            # The names must be on the disk before the manifest says that they are there.
            folders = {folder for path in self.files for folder in (self._local / path).parents}
            for folder in sorted(folders):
                if folder.is_relative_to(self._local.parent.parent):
                    files.sync(folder)
        self._remove_staging()
        return self.files

    def discard(self) -> None:
        """Stop, and remove what was staged elsewhere than in its place."""
        self._stop_staging()
        self._remove_staging()

    def _stop_staging(self) -> None:
        self._hashing.shutdown()
        self._beginning.shutdown()

    def _finish_all(self) -> None:
        # Not while files are staged: writing to a disk waits for syncs by others. And not by an
        # executor: the end of the process would wait for its threads.
        waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
        for name in self._staged_names:
            waiting.put(name)
        errors: list[BaseException] = []

        def run() -> None:
            try:
                while not errors:
                    self._finish(waiting.get_nowait())
            except queue.Empty:
                pass
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
        """What `action` returns; on another storage it is tried three times, as networks fail."""
        for number in range(TRIES - 1):
            try:
                return action()
            except UserError:
                if self._local is not None:
                    raise
            time.sleep(SECONDS_BEFORE_RETRY * 2**number)
        return action()

    def _remove_staging(self) -> None:
        if self._temporary is not None:
            self._temporary.cleanup()


class Spool(StagedFiles):
    """The staged files of the process that writes the manifest, and that makes a local folder."""

    def __init__(self, folder: str, root: Path) -> None:
        super().__init__(folder, root)
        self._included: dict[str, FileEntry] = {}
        if self._local is not None:
            with files.translated(folder, "written"):
                self._local.mkdir(parents=True)

    def include(self, entries: Mapping[str, FileEntry]) -> None:
        """Take files into the manifest that owners have finished; they come first."""
        self._included = dict(entries)

    def complete(self, document: Kind, name: str = NAME) -> Kind:
        """Finish all files and write the manifest. Raises what goes wrong with any of them."""
        finished = self.finish()
        self.files = {**self._included, **finished}
        return self._retrying(lambda: super(Spool, self).complete(document, name))

    def abandon(self) -> None:
        """Remove what was staged; of a local folder all files of a checkpoint, and the folder.

        Files that were uploaded stay: they do not count without a manifest.
        """
        self.discard()
        if self._local is not None:
            with contextlib.suppress(Failure):  # the caller raises what went wrong first
                ownership.remove_known(self.folder, CHECKPOINT)


class _StagedWriter(HashingWriter):
    """Hashes in a thread what it writes at the same time, and starts writing it to disk early."""

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
        # On a slow disk the call that starts the writing blocks, so a thread makes it.
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
