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

    `columns` are read as columns of their own: `numbers` of them are numbers, `ids` ids.
    `slots` are written as they are, with what shows them.
    """

    columns: list[str] = field(default_factory=list)
    numbers: set[str] = field(default_factory=set)
    ids: set[str] = field(default_factory=set)
    slots: dict[str, tuple[dict[str, Any], str]] = field(default_factory=dict)
    evidence: str = ""


Parts = list[tuple[str, str, str]]  # field (empty without), feature, value


def _parts(line: str) -> Parts:
    words = line.split()[1:]
    return [
        (
            word.rsplit(":", 2)[0] if word.count(":") == 2 else "",
            word.rsplit(":", 2)[-2] if ":" in word else word,
            word.rsplit(":", 1)[1] if ":" in word else "1",
        )
        for word in words
    ]


def line_features(lines: Sequence[str]) -> LineFeatures:
    """How the features of the first lines are read."""
    rows = [_parts(line) for line in lines]
    if any(parts and parts[0][0] for parts in rows):
        return _of_fields(rows)
    ones = all(float(value) == 1 for parts in rows for _, _, value in parts if _is_number(value))
    width = len(rows[0])
    if width <= MOST_FIELDS and all(len(parts) == width for parts in rows):
        positions = [{parts[place][1] for parts in rows} for place in range(width)]
        if sum(map(len, positions)) == len(set().union(*positions)) and ones:
            names = [str(place) for place in range(1, width + 1)]
            evidence = f"each line has {width} features, one of each field"
            return LineFeatures([LABEL, *names], set(), set(names), {}, evidence)
    features = Counter(feature for parts in rows for _, feature, _ in parts)
    density = sum(features.values()) / (len(features) * len(rows)) if features else 0.0
    if not ones and 0 < len(features) <= MOST_NUMBERS and density >= DENSITY:
        order = sorted(features, key=lambda name: (len(name), name))
        numbers = [f"{feature}:" for feature in order]
        evidence = f"{len(features)} features, numbers, in {density:.0%} of lines"
        return LineFeatures([LABEL, *numbers], set(numbers), set(), {}, evidence)
    settings: dict[str, Any] = {"column": FEATURES, "pooling": "sum"}
    shown = f"{len(features):,} features in {len(rows):,} lines"
    if not ones:
        settings["weights"] = VALUES
        shown += ", with values"
    slots = {"features": (settings, shown)}
    return LineFeatures([LABEL], set(), set(), slots, "lines of features")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _of_fields(rows: list[Parts]) -> LineFeatures:
    """libffm: a column for each field; a number where a field has one feature and many values."""
    names = sorted({name for parts in rows for name, _, _ in parts if name.isdecimal()}, key=int)
    result = LineFeatures([LABEL], evidence=f"libffm: {len(names)} fields")
    for name in names:
        parts = [part for row in rows for part in row if part[0] == name]
        features = {feature for _, feature, _ in parts}
        values = {value for _, _, value in parts}
        if len(features) == 1 and len(values) > 1:
            result.columns.append(f"{name}.{VALUES}")
            result.numbers.add(f"{name}.{VALUES}")
        elif values <= {"1", "1.0"}:
            result.columns.append(name)
            result.ids.add(name)
        else:
            settings = {"column": name, "weights": f"{name}.{VALUES}", "pooling": "sum"}
            shown = f"{len(features):,} features, with values"
            result.slots[f"field_{name}"] = (settings, shown)
    return result
