"""Folders of this machine that a process holds: locked, and temporary ones.

The kernel releases what a process held when it ends.
"""

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

from tnctl.errors import Failure
from tnctl.files.storage import local_path, translated
from tnctl.files.stored_files import remove_empty_folder

LOCK = ".tnctl-lock"
MARK = ".tnctl-temporary"


class HeldError(Failure):
    """Another process holds a lock, until it ends at the latest."""


def take_lock(path: Path, open_it: Callable[[], int], busy: Callable[[int], str]) -> int:
    """The descriptor of a file or folder that no other process holds, and that has its name.

    `open_it` makes and opens it. Raises HeldError with what `busy` says of its descriptor when
    another process holds it.
    """
    while True:
        descriptor = open_it()
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            message = busy(descriptor)
            os.close(descriptor)
            raise HeldError(message) from None
        except OSError:
            pass  # a file system without locks
        # The process that held it may have removed or renamed it since it was opened.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), path.stat(follow_symlinks=False)):
                return descriptor
        os.close(descriptor)


@contextlib.contextmanager
def locked(folder: str, is_written: bool = False, name: str = LOCK) -> Iterator[None]:
    """Keep other processes that ask for it out of a folder while the block runs.

    Of folders of this machine only, other storages have no locks. The file `name` in it is locked.
    Raises HeldError at once when another process is in it, and with `is_written` Failure when
    nothing may be written there. What a process held that was killed, the kernel has released.
    """
    local = local_path(folder)
    if local is None:
        yield
        return
    path, created = local / name, list[Path]()
    try:
        with translated(folder, "written"):
            created += [above for above in (local, *local.parents) if not above.exists()]
            descriptor = take_lock(path, lambda: _open_lock(path), lambda lock: _busy(folder, lock))
            _write_process(path, descriptor)
    except Failure as error:
        if is_written or not isinstance(error.__cause__, PermissionError):
            for above in created:
                remove_empty_folder(str(above))
            raise
        yield  # no process writes here, and one that tries gets an error
        return
    try:
        yield
    finally:
        # While it is held: afterwards it may be another's.
        with contextlib.suppress(OSError):  # it stays, and nothing is hindered by it
            path.unlink(missing_ok=True)
        os.close(descriptor)
        for above in created:
            remove_empty_folder(str(above))


def _open_lock(path: Path) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)


def _busy(folder: str, descriptor: int) -> str:
    holder = os.pread(descriptor, 20, 0).decode("ascii", "replace")
    process = f" (process {holder})" if holder else ""
    return (
        f"another tnctl command{process} is working in {folder}. Wait for it, or choose "
        "another output"
    )


def _write_process(path: Path, descriptor: int) -> None:
    """Write the number of this process into a lock. Raises Failure for a file that is no lock."""
    if not re.fullmatch(rb"[0-9]{0,20}", os.pread(descriptor, 21, 0)):
        os.close(descriptor)
        raise Failure(f"{path} is no lock of tnctl. Move it away")
    os.truncate(descriptor, 0)
    with contextlib.suppress(OSError):  # on a full disk it names no process
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)


class TemporaryFolder:
    """A new folder of this machine, in `root` or the temporary folder, named for its `purpose`.

    It is removed with the object, and at the latest with the process. What killed processes have
    left of the same purpose is removed when the next is made: folders whose mark says that they are
    tnctl's, which no copy or other folder has. Raises Failure.
    """

    def __init__(self, purpose: str, root: Path | None = None) -> None:
        given, prefix = root or Path(tempfile.gettempdir()), f"tnctl.{purpose}."
        root = given.absolute()
        with translated(str(given), "written"):
            root.mkdir(parents=True, exist_ok=True)
            _remove_left_behind(root, prefix)
            # It gets its name only when it is held: others would take it for left behind.
            new = tempfile.mkdtemp(prefix="tnctl.new.", dir=root)
            held = os.open(new, os.O_RDONLY)
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            outer = str(root / (prefix + new.rpartition(".")[2]))
            self.name = f"{outer}/content"
            Path(new, MARK).write_text(_mark_of(new, outer))
            Path(new, "content").mkdir()
            os.rename(new, outer)
        self._end = weakref.finalize(self, _remove, outer, held)

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


def _remove(folder: str, held: int) -> None:
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
