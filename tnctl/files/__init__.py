"""Files on any fsspec URL, opened, listed, written and removed.

The one part of tnctl that knows fsspec. Every public function takes a URL or a plain path and
raises `Failure`, naming it and the way out in one line, when the storage refuses.
"""

from tnctl.files.listings import (
    Listed,
    expand,
    fixed_folder,
    list_folder,
    listed,
    prefixes,
    remote_place,
    special_kind,
)
from tnctl.files.locks import HeldError, TemporaryFolder, locked, take_lock
from tnctl.files.storage import (
    CODECS,
    STANDARD_INPUT,
    AbsentError,
    MissingError,
    in_folder,
    join,
    local_path,
    translated,
)
from tnctl.files.stored_files import (
    download_folder,
    exists,
    fingerprint,
    free_bytes,
    is_link,
    lies_at,
    move_file,
    remove_empty_folder,
    remove_file,
    size,
    upload_folder,
)
from tnctl.files.streams import (
    PART_NAME,
    InputFile,
    OutputFile,
    compressing,
    open_input,
    open_output,
    read_bytes,
    read_most,
    sync,
    write_bytes,
)

__all__ = [
    "CODECS", "PART_NAME", "STANDARD_INPUT", "AbsentError", "HeldError", "InputFile", "Listed",
    "MissingError", "OutputFile", "TemporaryFolder", "compressing", "download_folder", "exists",
    "expand", "fingerprint", "fixed_folder", "free_bytes", "in_folder", "is_link", "join",
    "lies_at", "list_folder", "listed", "local_path", "locked", "move_file", "open_input",
    "open_output",
    "prefixes", "read_bytes", "read_most", "remote_place", "remove_empty_folder", "remove_file",
    "size", "special_kind", "sync", "take_lock", "translated", "upload_folder", "write_bytes",
]  # fmt: skip
