"""The registry of export formats: a name, and the module that writes it and reads it back.

A format is one module with a constant `FORMAT`: a FileFormat, or for rows in a server an object
with `write`, `current` and `open`, as redis_export.py has. It is imported when it is first used,
so that a command's help loads none.
"""

from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class Registered:
    """Where a format is: a module of tnctl.serving, and for a server how its URLs start."""

    module: str
    schemes: tuple[str, ...] = ()


FORMATS = {  # the first one is the default of format=
    "parquet": Registered("rows.parquet_format"),
    "text": Registered("rows.text_format"),
    "dictionary": Registered("rows.dictionary_format"),
    "redis": Registered("redis.redis_export", ("redis://", "rediss://", "unix://")),
}


def file_formats() -> tuple[str, ...]:
    """The names of the formats whose rows are files of a folder."""
    return tuple(name for name, registered in FORMATS.items() if not registered.schemes)


def server_format(url: str) -> str | None:
    """The name of the format whose server a URL names; None for a folder."""
    return next((name for name, at in FORMATS.items() if url.startswith(at.schemes or "\0")), None)


def format_of(name: str) -> Any:
    """The format of a registered name."""
    return import_module(f"tnctl.serving.{FORMATS[name].module}").FORMAT
