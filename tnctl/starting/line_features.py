"""The features of libsvm, libfm and libffm lines: fields, numbers of features, or a bag."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tnctl.data.formats.libsvm_files import FEATURES, LABEL, VALUES

MOST_NUMBERS = 300  # features that are read as a column each
DENSITY = 0.1  # the least mean share of lines that have a number
MOST_FIELDS = 200


@dataclass
class LineFeatures:
    """How the features of lines are read.

    `columns` are read as columns of their own, of which `ids` are ids for certain. `slots` are
    written as they are, with what shows them.
    """

    columns: list[str] = field(default_factory=lambda: [LABEL])
    ids: set[str] = field(default_factory=set)
    slots: dict[str, tuple[dict[str, Any], str]] = field(default_factory=dict)
    evidence: str = "lines of features"

    def add_ids(self, columns: Sequence[str]) -> None:
        """Add columns of ids."""
        self.columns += columns
        self.ids.update(columns)

    def add_bag(self, slot: str, column: str, values: str | None, shown: str) -> None:
        """Add a slot of several features in a row; `values` is the column of their values."""
        weights = {} if values is None else {"weights": values}
        shown = shown if values is None else f"{shown}, with values"
        self.slots[slot] = ({"column": column, **weights, "pooling": "sum"}, shown)


def line_features(lines: Sequence[str]) -> LineFeatures:
    """How the features of the first lines are read."""
    rows = [[_parts(word) for word in line.split()[1:]] for line in lines]
    if any(parts and parts[0][0] for parts in rows):
        return _of_fields(rows)
    result = LineFeatures()
    ones = all(value in ("1", "1.0") for parts in rows for _, _, value in parts)
    width = len(rows[0])
    if ones and width <= MOST_FIELDS and all(len(parts) == width for parts in rows):
        places = [{parts[place][1] for parts in rows} for place in range(width)]
        if sum(map(len, places)) == len(set().union(*places)):  # no feature in two places
            result.add_ids([str(place) for place in range(1, width + 1)])
            result.evidence = f"each line has {width} features, one of each field"
            return result
    features = Counter(feature for parts in rows for _, feature, _ in parts)
    density = sum(features.values()) / max(len(features) * len(rows), 1)
    if not ones and len(features) <= MOST_NUMBERS and density >= DENSITY:
        order = sorted(features, key=lambda name: (len(name), name))
        result.columns += [f"{feature}:" for feature in order]
        result.evidence = f"{len(features)} features, numbers, in {density:.0%} of lines"
        return result
    shown = f"{len(features):,} features in {len(rows):,} lines"
    result.add_bag("features", FEATURES, None if ones else VALUES, shown)
    return result


def _parts(word: str) -> tuple[str, str, str]:
    """The field (empty without one), the feature and the value of a word."""
    *fields, feature, value = word.split(":", 2) if ":" in word else (word, "1")
    return fields[0] if fields else "", feature, value


def _of_fields(rows: list[list[tuple[str, str, str]]]) -> LineFeatures:
    """libffm: a column for each field; a number where a field has one feature and many values."""
    names = sorted({name for parts in rows for name, _, _ in parts if name.isdecimal()}, key=int)
    result = LineFeatures(evidence=f"libffm: {len(names)} fields")
    for name in names:
        parts = [part for row in rows for part in row if part[0] == name]
        features = {feature for _, feature, _ in parts}
        values = {value for _, _, value in parts}
        if len(features) == 1 and len(values) > 1:
            result.columns.append(f"{name}.{VALUES}")
        elif values <= {"1", "1.0"}:
            result.add_ids([name])
        else:
            result.add_bag(f"field_{name}", name, f"{name}.{VALUES}", f"{len(features):,} features")
    return result
