"""`tnctl.compose`, and what the functions of Python have in common: arguments, and their errors."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from os import PathLike, fspath
from typing import Any

from tnctl.errors import UserError, quoted
from tnctl.schema import Conf
from tnctl.system import MORE_MEMORY, OutOfMemory, is_out_of_memory

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
    if not isinstance(text, str) or not text or "\0" in text:
        raise UserError(f"{argument} is a path or URL. Received: {quoted(repr(url))}")
    return text


def compose(conf: Url, overrides: Sequence[str] = ()) -> Conf:
    """The checked conf of `tnctl train conf=NAME key=value …`.

    `conf` is the name of a shipped conf, or the path of a YAML file. Overrides are written as on
    the command line, without the shell's quotes. Raises UserError for what is no conf.
    """
    import tnctl.cli.compose as composing

    with in_one_line(), COMPOSING:
        path = composing.conf_file(text_of(conf, "conf"))
        return composing.compose_run(path, composing.overrides_of(overrides))
