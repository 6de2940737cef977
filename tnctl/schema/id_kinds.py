"""The kinds of ids: what a conf must give for each, and which other parts of tnctl ask about it.

How values become ids is in tnctl/data/slot_encoder.py, which has one encoder for each kind.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class IdKind:
    """A value of `slots.NAME.ids`."""

    sentence: str
    """what the ids are, for the documentation of the key"""
    keys: tuple[str, ...] = ()
    """the keys of a slot that only some kinds take, this one among them"""
    needs: str | None = None
    """the one of them that must be given"""
    counted: bool = False
    """the ids are 0 .. n - 1, for kinds with the key `size` where it is given"""
    of_numbers: bool = False
    """values are numbers; else texts or integers"""
    of_times: bool = False
    """values are times, as data.times says"""
    measured: bool = False
    """its boundaries are measured on data.train"""
    of_texts: bool = False
    """ids come from the hash of a text alone, so a cross of slots can have them"""
    has_missing_id: bool = True
    """a missing value can have an id (missing=value)"""
    decided_by: tuple[str, ...] = ()
    """keys that change the ids of the same values; other keys only change which values have one"""
    served: str | None = None
    """the key of serving.json, vocabulary or boundaries, that has the list it needs"""
    served_as: str | None = None
    """the kind that serving.json has instead, which makes the same ids by that list"""


ID_KINDS: dict[str, IdKind] = {
    "hash": IdKind("of the text", keys=("seed",), of_texts=True),
    "modulo": IdKind(
        "the hash modulo size",
        keys=("seed", "size"),
        needs="size",
        counted=True,
        of_texts=True,
        decided_by=("size",),
    ),
    "integer": IdKind("as given", keys=("size",), counted=True, has_missing_id=False),
    "vocabulary": IdKind(
        "place in a list",
        keys=("seed", "vocabulary", "vocabulary_file", "oov"),
        counted=True,
        served="vocabulary",
    ),
    "boundaries": IdKind(
        "bucket of a number",
        keys=("boundaries",),
        needs="boundaries",
        counted=True,
        of_numbers=True,
        served="boundaries",
    ),
    "quantiles": IdKind(
        "of distinct values",
        keys=("buckets",),
        counted=True,
        of_numbers=True,
        measured=True,
        decided_by=("buckets",),
        served="boundaries",
    ),
    "row_quantiles": IdKind(
        "of rows",
        keys=("buckets",),
        counted=True,
        of_numbers=True,
        measured=True,
        decided_by=("buckets",),
        served="boundaries",
        served_as="boundaries",
    ),
    "hour": IdKind("0 to 23, of a time", counted=True, of_times=True),
    "weekday": IdKind("Monday 0 to Sunday 6", counted=True, of_times=True),
    "day_of_month": IdKind("1 to 31", counted=True, of_times=True),
    "day": IdKind("days since 1970-01-01", of_times=True),
}


def in_words() -> str:
    """Every kind with its sentence, for the documentation of the key."""
    *texts, last = (f"{name} ({kind.sentence})" for name, kind in ID_KINDS.items())
    return f"{', '.join(texts)}, or {last}"


def kinds_with(key: str) -> tuple[str, tuple[str, ...]]:
    """The kinds that take a key of a slot, as `only_for` of its declaration."""
    return "ids", tuple(name for name, kind in ID_KINDS.items() if key in kind.keys)
