"""Files of exports and graphs that a library opens by a local path."""

import shutil
from pathlib import Path

from tnctl import files, manifest
from tnctl.manifest import HashingWriter, Manifest

BYTES_PER_READ = 4 << 20


def local_copy(folder: str, content: Manifest, name: str, temporary: Path) -> Path:
    """The path of a file of a folder; of a remote one the path of a copy in `temporary`.

    Raises DamagedError when a copy is not what the manifest says.
    """
    url = files.join(folder, name)
    local = files.local_path(url)
    if local is not None:
        return local
    copy = temporary / name  # a relative path inside of it: the manifest was parsed
    copy.parent.mkdir(parents=True, exist_ok=True)
    with manifest.present(folder, content, name), copy.open("wb") as writing:
        hashing = HashingWriter(writing)
        with files.open_input(url, decompress=False) as reading:
            shutil.copyfileobj(reading, hashing, BYTES_PER_READ)
    manifest.check_entry(folder, content, name, hashing.entry())
    return copy
