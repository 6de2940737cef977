"""Folders, listed and emptied file by file: no symbolic link is followed, no tree is removed.

It is also decided here where the files and folders of a path or URL are, and whether two of them
name the same place, however they are spelled.
"""

import contextlib
import ctypes
import errno
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePosixPath

from tnctl import files
from tnctl.errors import Failure

RENAME_EXCHANGE = 2  # of renameat2(2)
AT_FDCWD = -100
FOLDER = os.O_RDONLY | os.O_DIRECTORY
Identity = tuple[int, int]  # device and inode


def parents_of(names: Iterable[str]) -> set[str]:
    """The folders that files with these relative names lie in, without the outermost, `.`."""
    above = {str(folder) for name in names for folder in PurePosixPath(name).parents}
    return above - {"."}


def contents(folder: str, known: set[str]) -> Iterator[tuple[str, files.Listed]]:
    """What lies in a folder, by relative names; subfolders are entered only if they are `known`.

    Of subfolders that are not known there is one entry for the whole. Symbolic links are entries of
    their own, and not followed. Nothing when there is no folder. Raises Failure.
    """
    waiting = [""]
    while waiting:
        above = waiting.pop()
        for entry in files.listed(files.join(folder, above) if above else folder):
            name = f"{above}/{entry.name}" if above else entry.name
            if entry.kind == "folder" and name in known:
                waiting.append(name)
            else:
                yield name, entry


def identity(folder: str, follow: bool = True) -> Identity | None:
    """What no other folder of this machine has; None if there is none, and on other storages.

    Unless `follow`, a symbolic link has its own.
    """
    local = files.local_path(folder)
    with files.translated(folder), contextlib.suppress(FileNotFoundError, NotADirectoryError):
        if local is not None:
            status = local.stat(follow_symlinks=follow)
            return status.st_dev, status.st_ino
    return None


def refuse_other(folder: str, known: Identity | None) -> None:
    """Raise Failure when another folder, or a link to one, has the name of a known one now."""
    if identity(folder) not in (None, known):
        raise _other(folder)


def _other(folder: str) -> Failure:
    return Failure(
        f"{folder} is another folder now than the one that tnctl wrote or looked at, and stays. "
        "Move it away, and run the command again"
    )


@contextlib.contextmanager
def opened(folder: str, known: Identity | None) -> Iterator[int | None]:
    """The descriptor of a known folder of this machine; None if it is not there any more.

    Raises Failure when another has its name now.
    """
    local = files.local_path(folder)
    if local is None or known is None or not local.exists():
        yield None
        return
    with files.translated(folder):
        descriptor = os.open(local, FOLDER)
    try:
        status = os.fstat(descriptor)
        if (status.st_dev, status.st_ino) != known:
            raise _other(folder)
        yield descriptor
    finally:
        os.close(descriptor)


def remove(
    folder: str,
    known: Identity | None,
    names: Iterable[str],
    subfolders: Iterable[str] = (),
    last: Iterable[str] = (),
    itself: bool = True,
) -> None:
    """Remove files of a folder by their relative names, in this order, then folders left empty.

    Those are the folders of the files and `subfolders`. The files `last` are removed after them,
    and in the end the folder `itself` if it is empty, unless that is false. Raises Failure, before
    the files `last` are removed, when an empty subfolder cannot be; and before anything is, when
    another folder of this machine has the name of the `known` one now.
    """
    removed = list(names)
    with opened(folder, known) as held:
        if held is None and files.local_path(folder) is not None:
            return
        for name in removed:
            _remove(files.remove_file, folder, name, held)
        emptied = parents_of(removed) | set(subfolders)
        for subfolder in sorted(emptied, key=lambda name: -name.count("/")):
            _remove(files.remove_empty_folder, folder, subfolder, held)
            url = files.join(folder, subfolder)
            local = files.local_path(url)
            if local is not None and local.is_dir() and not any(local.iterdir()):
                raise Failure(f"the empty folder {url} could not be removed. Run the command again")
        for name in last:
            _remove(files.remove_file, folder, name, held)
        if itself:
            refuse_other(folder, known)
            files.remove_empty_folder(folder)


def _remove(
    remove_it: Callable[[str, int | None], None], folder: str, name: str, held: int | None
) -> None:
    """Remove what has a relative name in a folder, which is `held` open if it is of this machine.

    What lies behind a symbolic link stays.
    """
    url = files.join(folder, name)
    with (
        files.translated(url, "removed"),
        contextlib.suppress(FileNotFoundError, NotADirectoryError),
        contextlib.ExitStack() as way,
    ):
        for above in name.split("/")[:-1] if held is not None else ():
            held = os.open(above, FOLDER | os.O_NOFOLLOW, dir_fd=held)
            way.callback(os.close, held)
        remove_it(url, held)


def exchange(folder: Path, target: Path) -> bool:
    """Give two folders of this machine each other's name at once; whether the system can."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "renameat2"):
        return False
    code = libc.renameat2(
        AT_FDCWD, os.fsencode(folder), AT_FDCWD, os.fsencode(target), RENAME_EXCHANGE
    )
    if code == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
        return False
    raise OSError(number, os.strerror(number), str(folder))


def sync(folder: Path) -> None:
    """Bring the names in a folder of this machine, and in all below it, to the disk."""
    for above, _, _ in os.walk(folder):
        files.sync(Path(above))


def resolved(url: str, follow: bool = True) -> Path | None:
    """The path of a file or folder of this machine, without `..` and links; None on other storage.

    `a/..` is the folder above `a` also where there is no `a`. Unless `follow`, the last part is not
    resolved: the caller sees whether it is a link.
    """
    local = files.local_path(url)
    if local is None or follow:
        return None if local is None else Path(os.path.realpath(local))
    return Path(os.path.realpath(local.parent), local.name)


class Place:
    """Where a path or URL is, the same for all spellings of it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._storage = ""
        self._parts: tuple[str, ...] = ()
        self._identities: list[tuple[int, int]] = []  # of the path and the folders above it
        if (path := resolved(url)) is None:
            self._storage, self._parts = files.remote_place(url)
            return
        self._parts = path.parts
        for above in (path, *path.parents):
            with contextlib.suppress(OSError):
                status = above.stat()
                self._identities.append((status.st_dev, status.st_ino))
        with files.translated(url):
            self._exists = path.exists()

    def is_same(self, place: "Place") -> bool:
        """Whether both are one place; hard links and bind mounts are seen through."""
        if self._storage != place._storage or self._parts == place._parts:
            return self._storage == place._storage
        both_exist = not self._storage and self._exists and place._exists
        return both_exist and self._identities[0] == place._identities[0]

    def is_inside(self, place: "Place") -> bool:
        """Whether this is below another place."""
        if self._storage != place._storage:
            return False
        above = self._parts[: len(place._parts)]
        if len(self._parts) > len(place._parts) and above == place._parts:
            return True
        if self._storage or not place._exists:
            return False
        return place._identities[0] in self._identities[1 if self._exists else 0 :]
