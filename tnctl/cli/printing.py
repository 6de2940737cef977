"""The results of a command, on the standard output: JSON for programs, else lines and tables."""

import json
from collections.abc import Container, Iterable, Sequence
from typing import Any

from tnctl.cli import arguments
from tnctl.errors import UserError, refuse_if
from tnctl.masking import masked


def urls_and_json(command: str, words: Sequence[str]) -> tuple[dict[str, str], list[str], bool]:
    """The arguments of a command without a conf, its URLs, and whether it has --json.

    Raises UserError for other options, and for `output=URL` and the like.
    """
    given = [word for word in words if word != "--json"]
    if option := next((word for word in given if word.startswith("-")), None):
        raise UserError(f"no option {option}. The options are --help and --json")
    values, urls = arguments.part(command, given)
    for url in urls:
        key, equals, value = url.partition("=")
        refuse_if(
            equals and key in ("output", "checkpoint", "conf", "folder"),
            f"give the URL by itself, without {key}=: {value.strip(chr(39))}",
        )
    return values, urls, "--json" in words


def print_json(value: Any) -> None:
    """Print plain values as one JSON value, without secrets of URLs."""
    print(json.dumps(masked(value), indent=2))


def say(*lines: str) -> None:
    """Plain lines of a result."""
    from tnctl import progress

    progress.say(*lines, on=progress.results)


def table(
    title: str,
    headings: Iterable[str],
    rows: Iterable[Iterable[Any]],
    left: Container[int] = (0,),
) -> None:
    """A table of a result."""
    from tnctl import progress

    progress.table(title, headings, rows, left, progress.results)
