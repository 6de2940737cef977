"""Which files there are: globs, and the entries of folders."""

import contextlib
import glob
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tnctl.errors import Failure, refuse_if
from tnctl.files.storage import (
    AbsentError,
    in_folder,
    join,
    local_path,
    not_found,
    storage,
    translated,
)

MAGIC = frozenset("*?[")
Kind = Literal["file", "folder", "other"]
KINDS: dict[int, Kind] = {stat.S_IFDIR: "folder", stat.S_IFREG: "file"}
SPECIAL = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


@dataclass(frozen=True)
class Listed:
    """An entry of a folder: `other` is a symbolic link, a device, a pipe or a socket."""

    name: str
    kind: Kind
    bytes: int  # of a file


def expand(spec: str | Sequence[str], root: str | None = None) -> list[str]:
    """The files that `spec` names: a name, a glob, a folder with `/` at its end, or a list of them.

    A list keeps its order and the files of a glob are sorted. A file whose name is exactly as
    given wins over the meaning of `*`, `?` and `[` in it, and so does a leading folder over a
    `[` (`fixed_folder`). Of a folder, or each folder of a glob,
    they are all files within, at any depth, but those with a `.` or `_` in front of their own or a
    folder's name. Raises `Failure` when there is no file, and for one that is no regular file.
    """
    if not isinstance(spec, str):
        return [url for name in spec for url in expand(name, root)]
    url = join(root, spec)
    if spec.endswith("/"):
        return _within_folders(url, spec, root)
    with translated(url):
        system, path = storage(url)
        if system.isfile(path):
            return [_regular(url)]
        refuse_if(
            system.isdir(path),
            f"{url} is a folder. Name its files with a glob, such as {url}/*.csv, or all files in "
            f"it as {url}/",
            Failure,
        )
    _regular(url)
    refuse_if(
        not MAGIC.intersection(spec),
        not_found(url),
        AbsentError,
    )
    with translated(url, "listed"):
        system, path = storage(_pattern(url, spec, root))
        matches = system.glob(path, detail=True)
        names = sorted(name for name, info in matches.items() if _is_file(system, name, info))
        refuse_if(
            not names,
            f"{url} matches no file{in_folder(url)}. Check the glob, and data.root if it starts "
            "there",
            AbsentError,
        )
        return [_regular(system.unstrip_protocol(name) if "://" in url else name) for name in names]


def special_kind(url: str) -> str | None:
    """What a path of this machine is that may have no end, such as `a FIFO`; None for others."""
    local = local_path(url)
    if local is not None:
        with contextlib.suppress(OSError, ValueError):
            if kind := SPECIAL.get(stat.S_IFMT(local.stat().st_mode)):
                return kind
            # Files of /proc and /sys look like regular ones, and reading some never returns.
            if os.path.realpath(local).startswith(("/proc/", "/sys/")):
                return "a file of the kernel"
    return None


def _regular(url: str) -> str:
    """`url`, unchanged. Raises Failure where it is of this machine and no regular file."""
    if (kind := special_kind(url)) is not None:
        raise Failure(f"{url} is {kind}, and data is read from regular files. Copy it to one")
    return url


def fixed_folder(spec: str, root: str | None = None) -> str:
    """The folders of a name before its first wildcard, with `/` at the end; may be empty.

    A `[` is no wildcard in the name of a folder that is there.
    """
    fixed = ""
    for folder in spec.split("/")[:-1]:
        if MAGIC.intersection(folder) and not (
            "[" in folder and _is_folder(join(root, fixed + folder))
        ):
            break
        fixed += f"{folder}/"
    return fixed


def _is_folder(url: str) -> bool:
    with translated(url):
        system, path = storage(url)
        return bool(system.isdir(path))


def _pattern(url: str, spec: str, root: str | None) -> str:
    """The glob of a URL that ends with `spec`: what is before its first wildcard is letters."""
    wild = spec.removeprefix(fixed_folder(spec, root))
    return glob.escape(url.removesuffix(wild)) + wild


def prefixes(folder: str) -> list[str]:
    """What the names of files in a folder, as `expand` returns them, may begin with."""
    system, path = storage(folder or ".")
    spellings = (folder, path, system.unstrip_protocol(path))
    return [f"{spelling.rstrip('/')}/" for spelling in spellings if spelling]


def _within_folders(url: str, spec: str, root: str | None) -> list[str]:
    with translated(url, "listed"):
        system, path = storage(url)
        folders = [path]
        if MAGIC.intersection(spec) and not system.isdir(path):
            system, path = storage(_pattern(url, spec, root).rstrip("/"))
            matches = system.glob(path, detail=True)
            folders = sorted(name for name, info in matches.items() if info["type"] == "directory")
        names = [
            name
            for folder in folders
            for name, info in sorted(system.find(folder, detail=True).items())
            if not _is_hidden(name[len(folder) :]) and _is_file(system, name, info)
        ]
    refuse_if(
        not names,
        f"{url}{in_folder(url)} names no folder with files. Check the name, and data.root if it "
        "starts there",
        AbsentError,
    )
    return [_regular(system.unstrip_protocol(name) if "://" in url else name) for name in names]


def _is_file(system: Any, name: str, info: Mapping[str, Any]) -> bool:
    """Whether a path of a listing is a file, or a link to one."""
    return info.get("type", "file") == "file" or bool(info.get("islink") and system.isfile(name))


def _is_hidden(path: str) -> bool:
    """Whether a file or folder of a path is no data: _SUCCESS, _temporary, .part-0.crc."""
    return any(part[0] in "._" for part in path.split("/") if part)


def listed(url: str) -> list[Listed]:
    """The entries of a folder, sorted by name; none when there is no folder. Raises Failure."""
    local = local_path(url)
    with translated(url, "listed"):
        entries = _local_entries(local) if local is not None else _remote_entries(url)
        return sorted(entries, key=lambda entry: entry.name)


def list_folder(url: str) -> list[str]:
    """The names of the entries of a folder, sorted; none when there is no folder."""
    return [entry.name for entry in listed(url)]


def _local_entries(folder: Path) -> Iterator[Listed]:
    # Not by fsspec, to which a folder that may not be read is none.
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):  # it was removed meanwhile
                status = entry.stat(follow_symlinks=False)
                kind = KINDS.get(stat.S_IFMT(status.st_mode), "other")
                yield Listed(entry.name, kind, status.st_size)


def _remote_entries(url: str) -> Iterator[Listed]:
    system, path = storage(url)
    for entry in system.ls(path, detail=True) if system.isdir(path) else ():
        full_name = entry["name"].rstrip("/")
        if (name := full_name.rpartition("/")[2]) and full_name != path.rstrip("/"):
            kind: Kind = "folder" if entry["type"] == "directory" else "file"
            yield Listed(name, kind, int(entry.get("size") or 0))


def remote_place(url: str) -> tuple[str, tuple[str, ...]]:
    """The name of fsspec's class for a URL's storage, and the parts of its path without `..`.

    They are equal for all spellings of a URL. Servers of one kind of storage are not told apart.
    """
    with translated(url):
        system, path = storage(url)
    # Of fsspec's caches, such as filecache::, the storage behind them.
    system = getattr(system, "fs", system)
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            del parts[-1:]
        elif part not in ("", "."):
            parts.append(part)
    return type(system).__name__, tuple(parts)
