"""Rows of a checkpoint, exported and read back: the registry of the formats.

The class is a FileFormat, or for rows in a server one with `write`, `current` and `open`, as
redis_export.py has. Its module is imported when it is first used, so that a command's help loads
none.
"""

from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class Registered:
    """Where a format is: module and class in tnctl.serving.rows; how the URLs of a server start."""

    module: str
    name: str
    schemes: tuple[str, ...] = ()


FORMATS = {  # the first one is the default of format=
    "parquet": Registered("row_formats", "ParquetFormat"),
    "text": Registered("row_formats", "TextFormat"),
    "dictionary": Registered("row_formats", "DictionaryFormat"),
    "redis": Registered("redis_export", "RedisFormat", ("redis://", "rediss://", "unix://")),
}


def file_formats() -> tuple[str, ...]:
    """The names of the formats whose rows are files of a folder."""
    return tuple(name for name, registered in FORMATS.items() if not registered.schemes)


def server_format(url: str) -> str | None:
    """The name of the format whose server a URL names; None for a folder."""
    return next((name for name, at in FORMATS.items() if url.startswith(at.schemes or "\0")), None)


def format_of(name: str) -> Any:
    """The format of a registered name."""
    registered = FORMATS[name]
    return getattr(import_module(f"tnctl.serving.rows.{registered.module}"), registered.name)()
