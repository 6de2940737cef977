"""Columns that belong together: lists of the ids of another column, and weights of values."""

from collections.abc import Mapping

import numpy as np

from tnctl.starting.column import Column, tokens_of
from tnctl.starting.conf_text import input_names

FEWEST = 20  # distinct values, below which equal ones mean little
OVERLAP = 0.5
COMMON = {"id", "ids", "list", "hist", "history", "last", "seq", "clicked", "viewed", "past"}


def share_rows(columns: Mapping[str, Column]) -> None:
    """Give lists and the column whose ids they have one group; give lists their weights."""
    for name, column in columns.items():
        if column.kind == "numbers":
            _add_weights(name, column, columns)
    for name, column in columns.items():
        if column.kind == "several" and column.figures.distinct >= FEWEST:
            _add_group(name, column, columns)


def _add_group(name: str, column: Column, columns: Mapping[str, Column]) -> None:
    parts = set(column.figures.texts())
    best: tuple[float, str] = (OVERLAP, "")
    for other, candidate in columns.items():
        slot = candidate.inputs[0] if candidate.inputs else None
        if candidate.kind != "id" or slot is None or candidate.figures.distinct < FEWEST:
            continue
        if slot.settings.get("ids", "hash") != column.inputs[0].settings.get("ids", "hash"):
            continue
        are_integers = column.figures.number_share == 1
        if are_integers and not _alike(name, other):
            continue
        share = len(parts.intersection(candidate.figures.texts())) / max(len(parts), 1)
        best = max(best, (share, other))
    if best[1]:
        entry, slot = column.inputs[0], columns[best[1]].inputs[0]
        group = slot.settings.setdefault("group", input_names([best[1]])[0])
        entry.settings["group"] = group
        entry.evidence = f"{best[0]:.0%} of its values are in {best[1]}; {entry.evidence}"


def _alike(name: str, other: str) -> bool:
    """Whether two names share a word that says what they are."""
    words = [
        {token.removesuffix("s") for token in tokens_of(text)} - COMMON for text in (name, other)
    ]
    return bool(words[0] & words[1])


def _add_weights(name: str, column: Column, columns: Mapping[str, Column]) -> None:
    for other, candidate in columns.items():
        lengths, own_lengths = candidate.figures.lengths, column.figures.lengths
        if candidate.kind != "several" or lengths is None or own_lengths is None:
            continue
        entry = candidate.inputs[0]
        if (
            np.array_equal(lengths, own_lengths)
            and entry.settings.get("separator") == column.separator
            and "weights" not in entry.settings
            and entry.settings.get("pooling") != "none"
        ):
            entry.settings["weights"] = name
            entry.evidence += f"; {name} has a number for each"
            column.kind = "weights"
            column.remark = f"the weights of {other}"
            return
