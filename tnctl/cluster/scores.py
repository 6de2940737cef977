"""The scores of units as bytes: an .npz of numpy for each worker, without pickles."""

import io
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tnctl.data.bad_rows import Skipped
from tnctl.errors import Failure
from tnctl.evaluation.metrics import OF_EXAMPLES, Scored
from tnctl.evaluation.split_scoring import Counts

COUNTS = "counts"


@dataclass(frozen=True)
class Scores:
    """What a worker computed on its units: the examples of each, counts, and rows not read."""

    units: list[Scored]
    examples: int
    present: dict[str, int]
    ids: dict[str, int]
    skipped: int
    reason: str
    """why the first of these rows could not be read"""


def to_bytes(units: Sequence[Scored], counts: Counts, skipped: Skipped) -> bytes:
    """The scores of units, in their order."""
    arrays: dict[str, Any] = {
        f"{number}.{name}": array
        for number, scored in enumerate(units)
        for name in OF_EXAMPLES
        if (array := getattr(scored, name)) is not None
    }
    names = list(counts.present)
    arrays["present"] = np.array([counts.present[name] for name in names], np.int64)
    arrays["ids"] = np.array([counts.ids[name] for name in names], np.int64)
    arrays["totals"] = np.array([len(units), counts.examples, skipped.rows], np.int64)
    arrays["reason"] = np.array(skipped.first)
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return stream.getvalue()


def from_bytes(body: Any, names: Sequence[str], like: Scored) -> Scores:
    """The inverse of `to_bytes`; `names` are the model's inputs, `like` has its heads.

    Raises Failure for what is something else.
    """
    try:
        with np.load(io.BytesIO(body), allow_pickle=False) as archive:
            return _scores({name: archive[name] for name in archive.files}, names, like)
    except (ValueError, KeyError, EOFError, OSError, zipfile.BadZipFile) as error:
        raise Failure(f"the scores of another worker are wrong: {error}") from error


def _scores(arrays: Mapping[str, Any], names: Sequence[str], like: Scored) -> Scores:
    count, examples, skipped = (int(value) for value in arrays["totals"])
    units = [
        Scored(
            like.heads,
            **{
                name: arrays[f"{number}.{name}"]
                for name in OF_EXAMPLES
                if f"{number}.{name}" in arrays
            },
            squared=like.squared,
        )
        for number in range(count)
    ]
    present, ids = (
        dict(zip(names, arrays[key].tolist(), strict=True)) for key in ("present", "ids")
    )
    return Scores(units, examples, present, ids, skipped, str(arrays["reason"]))
