"""Folders of this machine that are removed with the object, or after a kill by the next."""

import contextlib
import fcntl
import os
import shutil
import tempfile
import weakref
from pathlib import Path

from tnctl.files.storage import translated

MARK = ".tnctl-temporary"


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
