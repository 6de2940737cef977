"""The storage that a URL names, and what it raises as one line."""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa

from tnctl.errors import Failure, UserError, refuse_if
from tnctl.limits import protocols_of
from tnctl.masking import is_masked, is_unquoted

STANDARD_INPUT = "standard input"  # given in place of a URL to read
CODECS = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd"}
LOCAL_SCHEMES = ("file://", "file:", "local://", "local:")  # as fsspec has them
# Bytes of one write. More at once makes the kernel search for contiguous memory: up to eight times
# the time.
WRITE_BYTES = 128 << 10


class AbsentError(Failure):
    """No file has the given name, or none matches the given glob."""


class MissingError(Failure):
    """A file that does not exist."""


@contextlib.contextmanager
def translated(url: str, done: str = "read") -> Iterator[None]:
    """Turn whatever a storage backend raises inside the block into a `Failure` that names `url`.

    `done` completes "could not be ...": read, written, listed or removed.
    """
    try:
        yield
    except (UserError, MemoryError):
        raise
    except Exception as error:
        missing = done == "read" and isinstance(error, FileNotFoundError)
        kind = MissingError if missing else Failure
        raise kind(_sentence(url, done, error)) from error


def _sentence(url: str, done: str, error: Exception) -> str:
    refused = f"{url} could not be {done}"
    number = getattr(error, "errno", None)
    reason = str(error).strip().split("\n")[0] or type(error).__name__
    # Decompression fails without an error number, the network and the disk fail with one.
    broken = isinstance(error, OSError | pa.ArrowException) and not number
    absent = isinstance(error, FileNotFoundError)
    cases = (
        (
            absent and done == "written",
            f"{refused}: its folder cannot be made there. Choose another",
        ),
        (absent, not_found(url)),
        (
            isinstance(error, PermissionError),
            f"{refused}: permission denied. Give this user access to it",
        ),
        (
            isinstance(error, IsADirectoryError),
            f"{url} is a folder, not a file. Name a file in it",
        ),
        (
            isinstance(error, NotADirectoryError | FileExistsError),
            f"{refused}: a part of its path is a file. Choose another folder",
        ),
        (
            isinstance(error, ImportError),
            f"{url} needs a package that is not installed: {error}",
        ),
        (
            number in (errno.ENOSPC, errno.EDQUOT),
            f"{refused}: no space is left there. Free some, or choose another",
        ),
        (
            number == errno.EROFS,
            f"{refused}: its file system is read-only. Choose another folder",
        ),
        (
            done == "read" and broken and Path(url).suffix in CODECS,
            f"{url} is damaged or cut short, or is not {CODECS.get(Path(url).suffix)} as its name "
            f"says ({reason}). Fetch or write the file again, or rename it",
        ),
        (True, f"{refused} ({reason}). Check the URL and that its storage answers"),
    )
    return next(text for applies, text in cases if applies)


def storage(url: str) -> tuple[Any, str]:
    """The fsspec file system of `url`, without any memory of old listings, and the path in it."""
    refuse_if(
        is_masked(url),
        f"{url} is from a saved file, in which passwords and tokens are masked. Give the key "
        "with the whole URL again, or keep them out of URLs (docs/data.md#passwords)",
    )
    refuse_if(
        is_unquoted(url),  # libraries would show a part of it as a host or port that is wrong
        f"{url} has a password with a sign that ends it. Write / ? # in it as %2F %3F %23, "
        "or keep it out of the URL (docs/data.md#passwords)",
    )
    refuse_if(
        "reference" in protocols_of(url),
        f"{url} is of fsspec's protocol reference, which renders templates of a file: they can "
        "run commands, or never end. Name the files themselves",
    )
    system, path = fsspec.core.url_to_fs(url, use_listings_cache=False)
    system.invalidate_cache()
    return system, path


def not_found(url: str) -> str:
    """The sentence about a file that is not there."""
    return (
        f"{url} was not found{in_folder(url)}. Check the name, and data.root if it starts from "
        "there"
    )


def in_folder(url: str) -> str:
    """` in FOLDER` for a relative path, the working folder; nothing for what says where it is."""
    path = local_path(url)
    is_whole = path is None or path.is_absolute() or url[:1] == "~"
    return "" if is_whole else f" in {Path.cwd()}"


def join(root: str | None, name: str) -> str:
    """`name` in the folder or URL `root`; absolute paths and URLs are returned unchanged."""
    if not root or "://" in name or os.path.isabs(name):
        return name
    return (root if root.endswith("/") else root + "/") + name


def local_path(url: str) -> Path | None:
    """The path of a file on this machine, or None when `url` is elsewhere."""
    scheme = next(filter(url.startswith, LOCAL_SCHEMES), "")
    return None if "://" in url and not scheme else Path(url.removeprefix(scheme))
