"""`tnctl.compose`, and what all functions of the API need: arguments, and their errors."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from os import PathLike, fspath
from typing import Any, TypeVar

from tnctl.errors import UserError, did_you_mean, quoted
from tnctl.schema import Conf
from tnctl.system import MORE_MEMORY, OutOfMemory, is_out_of_memory

Url = str | PathLike[str]
Choice = TypeVar("Choice", bound=str)
GOLDEN_ROWS = 200  # raw validation rows that are kept with a model, by default
KEPT_VERSIONS = 3  # of what is published, by default
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


def choice(argument: str, value: str, choices: Sequence[Choice]) -> Choice:
    """A value that is one of several words. Raises UserError for another."""
    for word in choices:
        if word == value:
            return word
    raise UserError(f"no {argument} {quoted(value)}. {did_you_mean(value, choices)}")


def compose(conf: Url, overrides: Sequence[str] = ()) -> Conf:
    """The checked conf of `tnctl train conf=NAME key=value …`.

    `conf` is the name of a shipped conf, or the path of a YAML file. Overrides are written as on
    the command line, without the shell's quotes. Raises UserError for what is no conf.
    """
    from tnctl.composing import compose as composing

    with in_one_line(), COMPOSING:
        path = composing.conf_file(text_of(conf, "conf"))
        return composing.compose_run(path, overrides_of(overrides), takes_cluster=True)


def overrides_of(given: Sequence[str]) -> list[str]:
    """Overrides as the command line takes them, ready for Hydra; no options. Raises UserError."""
    from tnctl.composing.overrides import quoted_for_hydra

    if isinstance(given, str) or not isinstance(given, Sequence):
        raise UserError(
            "overrides is a list of texts, such as ['train.epochs=2']. Received: "
            f"{quoted(repr(given))}"
        )
    for override in given:
        if not isinstance(override, str) or override.startswith("-"):
            shown = quoted(repr(override))
            raise UserError(f"an override is a text such as 'train.epochs=2'. Received: {shown}")
    return [quoted_for_hydra(override) for override in given]
