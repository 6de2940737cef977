"""Slurm's lists of nodes."""

import itertools
import re
from collections.abc import Iterator

from tnctl.errors import quoted

LONGEST_LIST = 1 << 20  # characters of a list of nodes
_RANGE = r"[0-9]{1,9}(?:-[0-9]{1,9})?"
_NODES = re.compile(rf"(?:[A-Za-z0-9._-]|\[{_RANGE}(?:,{_RANGE})*\])+")
_BRACKETS = re.compile(r"\[([^\]]*)\]")


def nodes(text: str) -> Iterator[str]:
    """The names in Slurm's list of nodes, such as `a[1-3,5],b`. Raises ValueError."""
    if len(text) > LONGEST_LIST:
        raise ValueError(f"it has {len(text):,} characters")
    parts = re.split(r",(?![^\[]*\])", text)
    for part in parts:
        if not _NODES.fullmatch(part):
            raise ValueError(f"{quoted(part)} is no name of nodes")
        for first, last in re.findall(r"([0-9]+)-([0-9]+)", " ".join(_BRACKETS.findall(part))):
            if int(last) < int(first):
                raise ValueError(f"{first}-{last} ends before it begins")
    return itertools.chain.from_iterable(map(_names, parts))


def _names(part: str) -> Iterator[str]:
    match = _BRACKETS.search(part)
    if match is None:
        yield part
        return
    for text in match[1].split(","):
        first, _, last = text.partition("-")
        for number in range(int(first), int(last or first) + 1):
            for rest in _names(part[match.end() :]):
                # Numbers keep the zeros that they begin with.
                yield f"{part[: match.start()]}{number:0{len(first)}d}{rest}"
