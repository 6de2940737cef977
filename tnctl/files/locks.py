"""Locks of folders of this machine, which the kernel releases when their process ends."""

import contextlib
import fcntl
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from tnctl.errors import Failure
from tnctl.files.storage import local_path, translated
from tnctl.files.stored_files import remove_empty_folder

LOCK = ".tnctl-lock"


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

    Of folders of this machine only, other storages have no locks. `name` is that of the file that
    is locked in it. Raises HeldError at once when another process is in it, and with `is_written`
    Failure when nothing may be written there. What a process held that was killed, the kernel has
    released.
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
        f"another `tnctl train`{process} is working in {folder}. Wait for it, or choose "
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
