"""The results of a command, on the standard output: JSON for programs, else lines and tables."""

import json
from collections.abc import Container, Iterable
from typing import Any

from tnctl.masking import masked


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
