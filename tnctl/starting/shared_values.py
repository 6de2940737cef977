"""Columns that belong together: lists of the ids of another column, sequences, and weights."""

from collections.abc import Mapping

import numpy as np

from tnctl.starting.column import Column, tokens_of
from tnctl.starting.conf_text import input_names

FEWEST = 20  # distinct values, below which equal ones mean little
OVERLAP = 0.5
COMMON = {"id", "ids", "list", "hist", "history", "last", "seq", "clicked", "viewed", "past"}


HISTORY = {
    "hist", "history", "seq", "sequence", "clicked", "viewed", "visited", "watched", "bought",
    "past", "last", "recent", "previous", "behavior", "behaviors", "behaviour", "session",
}  # fmt: skip
LEAST_LONGEST = 3  # values of the longest list of a column of sequences


def share_rows(columns: Mapping[str, Column]) -> list[tuple[str, str]]:
    """Give lists and the column whose ids they have one group; give lists their weights.

    Returns the columns of sequences, each with that of the candidate, whose values it has.
    """
    candidates: dict[str, str] = {}
    for name, column in columns.items():
        if column.kind == "numbers":
            _add_weights(name, column, columns)
    for name, column in columns.items():
        if column.kind == "several" and column.figures.distinct >= FEWEST:
            candidates[name] = _add_group(name, column, columns)
    sequences = [
        name
        for name, column in columns.items()
        if column.kind == "several" and _is_sequence(name, column, candidates.get(name, ""))
    ]
    return [(name, candidates[name]) for name in sequences if candidates.get(name)]


def _is_sequence(name: str, column: Column, candidate: str) -> bool:
    """Whether lists are histories, of several lengths; then the column's kind and evidence say so.

    The values are those of a candidate, or the name says it.
    """
    lengths, settings = column.figures.lengths, column.inputs[0].settings
    is_named = bool(HISTORY & set(tokens_of(name)))
    assert lengths is not None
    varies = "padding" in settings or len(set(lengths[lengths > 0].tolist())) > 1
    if not varies or lengths.max() < LEAST_LONGEST or "weights" in settings:
        return False
    if not candidate and not is_named:
        return False
    column.kind = "sequence"
    column.inputs[0].evidence = f"a sequence; {column.inputs[0].evidence}"
    return True


def _add_group(name: str, column: Column, columns: Mapping[str, Column]) -> str:
    """Give a list the group of the column that has its values; its name, empty without one."""
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
    elif other := _of_floats(name, column, columns):
        column.warning = column.warning or (
            f"{name} cannot share rows with {other}, which has its ids as floats "
            f"({columns[other].figures.examples().split(', ')[0]}): write {other} as integers "
            '(in pandas astype("Int64")), so that the same id is the same value'
        )
    return best[1]


def _of_floats(name: str, column: Column, columns: Mapping[str, Column]) -> str:
    """The column that has the numbers of a list, but as floats: 12.0, not 12; else empty."""
    ids, texts = column.figures.numbers, set(column.figures.texts())
    for other, candidate in columns.items():
        held = candidate.figures
        if candidate.kind != "id" or held.lengths is not None or not _alike(name, other):
            continue
        are_in = np.isin(ids, held.numbers[np.isfinite(held.numbers)])
        if are_in.mean() > OVERLAP and texts.isdisjoint(held.texts()):
            return other
    return ""


def _alike(name: str, other: str) -> bool:
    """Whether two names share a word that says what they are."""
    words = [
        {token.removesuffix("s") for token in tokens_of(text)} - COMMON for text in (name, other)
    ]
    return bool((words[0] & words[1]) - {""})  # what is left of an s


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
