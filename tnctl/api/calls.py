"""What the functions of Python have in common: their arguments, and errors in one line."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from os import PathLike, fspath
from typing import Any

from tnctl.errors import UserError, quoted
from tnctl.out_of_memory import MORE_MEMORY, OutOfMemory, is_out_of_memory

Url = str | PathLike[str]
# Hydra, which composes confs, has one state for the whole process.
COMPOSING = threading.RLock()


@contextmanager
def in_one_line() -> Iterator[None]:
    """A lack of memory becomes the Failure that commands show."""
    try:
        yield
    except Exception as error:
        if is_out_of_memory(error):
            raise OutOfMemory(error, MORE_MEMORY) from error
        raise


def text_of(url: Url, argument: str) -> str:
    """A path or URL as text. Raises UserError for anything else."""
    text: Any = fspath(url) if isinstance(url, PathLike) else url
    if not isinstance(text, str) or "\0" in text:
        raise UserError(f"{argument} is a path or URL. Received: {quoted(repr(url))}")
    return text


def overrides_of(given: Sequence[str]) -> list[str]:
    """Overrides of a conf, as the command line takes them, ready for Hydra. Raises UserError.

    Options, and arguments of commands such as to=, are refused: functions have their own.
    """
    from tnctl.cli import arguments

    if isinstance(given, str) or not isinstance(given, Sequence):
        raise UserError(
            "overrides is a list of texts, such as ['train.epochs=2']. Received: "
            f"{quoted(repr(given))}"
        )
    for override in given:
        key = str(override).partition("=")[0]
        if not isinstance(override, str) or override.startswith("-"):
            shown = quoted(repr(override))
            raise UserError(f"an override is a text such as 'train.epochs=2'. Received: {shown}")
        if key in arguments.ARGUMENTS:
            raise UserError(f"{key}= is an argument of commands, and no key of a conf")
    return [arguments.quoted_for_hydra(override) for override in given]
