"""The kinds of ids: what a conf must give for each, and which other parts of tnctl ask about it.

How values become ids is in tnctl/data/slot_encoder.py, which has one encoder for each kind.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class IdKind:
    """A value of `slots.NAME.ids`."""

    # What the ids are, for the documentation of the key.
    sentence: str
    # The keys of a slot that only some kinds take, this one among them.
    keys: tuple[str, ...] = ()
    # The one of them that must be given.
    needs: str | None = None
    # The ids are 0 .. n - 1, for kinds with the key `size` where it is given.
    counted: bool = False
    # Values are numbers; else texts or integers.
    of_numbers: bool = False
    # Values are times, as data.times says.
    of_times: bool = False
    # Its boundaries are measured on data.train.
    measured: bool = False
    # Ids come from the hash of a text alone, so a cross of slots can have them.
    of_texts: bool = False
    # A missing value can have an id (missing=value).
    has_missing_id: bool = True
    # Keys that change the ids of the same values; other keys only change which values have one.
    decided_by: tuple[str, ...] = ()
    # The key of serving.json, vocabulary or boundaries, that has the list it needs.
    served: str | None = None
    # The kind that serving.json has instead, which makes the same ids by that list.
    served_as: str | None = None


ID_KINDS: dict[str, IdKind] = {
    "hash": IdKind("of the text", keys=("seed", "vectors"), of_texts=True),
    "modulo": IdKind(
        "the hash modulo size",
        keys=("seed", "size"),
        needs="size",
        counted=True,
        of_texts=True,
        decided_by=("size",),
    ),
    "integer": IdKind("as given", keys=("size", "vectors"), counted=True, has_missing_id=False),
    "vocabulary": IdKind(
        "place in a list",
        keys=("seed", "vocabulary", "vocabulary_file", "oov", "vectors"),
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
