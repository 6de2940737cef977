"""Stored files as a whole: looked up, removed, moved and copied."""

import contextlib
import os
import shutil
from pathlib import Path
from typing import Any

from tnctl.errors import Failure, refuse_if
from tnctl.files.storage import join, local_path, storage, translated
from tnctl.files.streams import open_input, open_output

COPIED_BYTES = 4 << 20


def exists(url: str) -> bool:
    """Whether there is a file or folder at `url`."""
    local = local_path(url)
    with translated(url):
        if local is not None:
            return local.exists()
        system, path = storage(url)
        return bool(system.exists(path))


def lies_at(url: str) -> bool:
    """Whether something has the name `url`, also a symbolic link to nothing."""
    local = local_path(url)
    return exists(url) if local is None else os.path.lexists(local)


def is_link(url: str) -> bool:
    """Whether a name is a symbolic link of this machine."""
    local = local_path(url)
    return local is not None and local.is_symlink()


def size(url: str) -> int:
    """The bytes of a file, as stored (compressed)."""
    with translated(url):
        system, path = storage(url)
        count = system.size(path)
    refuse_if(
        count is None, f"{url} does not report its size. Copy it to a storage that does", Failure
    )
    return int(count)


def fingerprint(url: str) -> dict[str, Any]:
    """What differs when a file was changed: its `bytes`, and its `etag` or when it was `modified`.

    `modified` is in nanoseconds on this machine, a time as text elsewhere, and absent where the
    storage does not report it.
    """
    local = local_path(url)
    with translated(url):
        if local is not None:
            status = local.stat()
            return {"bytes": status.st_size, "modified": status.st_mtime_ns}
        system, path = storage(url)
        info = system.info(path)
        if etag := info.get("ETag") or info.get("etag"):
            return {"bytes": info["size"], "etag": str(etag)}
        try:
            return {"bytes": info["size"], "modified": system.modified(path).isoformat()}
        except NotImplementedError:
            return {"bytes": info["size"]}


def free_bytes(folder: str | Path) -> int:
    """The bytes that are free for this user where a folder of this machine is, or will be."""
    place = Path(folder).absolute()
    with translated(str(folder)):
        while not place.exists():
            place = place.parent
        return shutil.disk_usage(place).free


def remove_file(url: str, above: int | None = None) -> None:
    """Remove one file; of a symbolic link the link. Nothing happens when there is none.

    On this machine from the folder with the descriptor `above`, if that is given.
    """
    local = local_path(url)
    with translated(url, "removed"), contextlib.suppress(FileNotFoundError):
        if local is not None:
            os.unlink(local if above is None else local.name, dir_fd=above)
            return
        system, path = storage(url)
        # Not rm, which takes * and ? in a name for a pattern.
        system.rm_file(path)


def remove_empty_folder(url: str, above: int | None = None) -> None:
    """Remove a folder that nothing is in; any other stays. Object stores have no folders.

    On this machine from the folder with the descriptor `above`, if that is given.
    """
    local = local_path(url)
    with translated(url, "removed"), contextlib.suppress(OSError, NotImplementedError):
        if local is not None:
            os.rmdir(local if above is None else local.name, dir_fd=above)
            return
        system, path = storage(url)
        if system.isdir(path) and not system.ls(path, detail=False):
            system.rmdir(path)


def move_file(url: str, to: str) -> None:
    """Give a file another name on its storage, in the place of a file that has it."""
    source, target = local_path(url), local_path(to)
    with translated(to, "written"):
        if source is not None and target is not None:
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(source, target)
            return
        system, path = storage(url)
        _, path_to = storage(to)
        system.cp_file(path, path_to)
        system.rm_file(path)


def upload_folder(local: str | Path, url: str) -> None:
    """Copy every file under a local folder to the same names under `url`."""
    root = Path(local)
    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        _copy(str(path), join(url, path.relative_to(root).as_posix()))


def download_folder(url: str, local: str | Path) -> None:
    """Copy every file under `url` to the same names under a local folder."""
    with translated(url, "listed"):
        system, path = storage(url)
        names = system.find(path)
    refuse_if(not names, f"{url} is no folder, or an empty one. Check the name", Failure)
    for name in names:
        _copy(system.unstrip_protocol(name), str(Path(local) / os.path.relpath(name, path)))


def _copy(source: str, target: str) -> None:
    with open_input(source, decompress=False) as reading, open_output(target) as writing:
        shutil.copyfileobj(reading, writing, COPIED_BYTES)
