"""What changed between two checkpoints: rows, dense weights, conf, metrics. Rows are streamed."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl.checkpoint import dense_file, rows
from tnctl.checkpoint.chain import Checkpoint
from tnctl.checkpoint.checkpoint_inspection import validation_figures
from tnctl.checkpoint.document import Table
from tnctl.checkpoint.merging import Cursor, DisorderError, ranges
from tnctl.errors import Failure
from tnctl.progress import Display
from tnctl.schema import differences
from tnctl.tables import KEY_FIELDS

ABSENT = "(absent)"
NO_GROUP = 1 << 16  # the number that no group has


@dataclass
class GroupChange:
    """The rows of a share group of a table: only in A, only in B, in both."""

    table: str
    group: str
    removed: int = 0
    added: int = 0
    changed: int = 0
    same: int = 0


@dataclass
class Moved:
    """How far the weights of a dense variable moved (L2), and their norm in A."""

    name: str
    distance: float
    norm: float


@dataclass
class Comparison:
    """All that `tnctl checkpoint diff` shows, from A to B."""

    folders: tuple[str, str]
    steps: tuple[int, int]
    groups: list[GroupChange] = field(default_factory=list)
    incomparable: list[str] = field(default_factory=list)  # tables and variables of other shapes
    dense: list[Moved] = field(default_factory=list)
    conf: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    metrics: dict[str, tuple[Any, Any]] = field(default_factory=dict)


def compare(a: Checkpoint, b: Checkpoint) -> Comparison:
    """Compare two checkpoints, of one run or of two. Raises Failure where one is damaged."""
    findings = Comparison((a.folder, b.folder), (a.step, b.step))
    tables = [{table.name: table for table in side.manifest.tables} for side in (a, b)]
    with Display("compare", a.manifest.rows + b.manifest.rows) as display:
        for name in dict.fromkeys([*tables[0], *tables[1]]):
            sides = [(a, tables[0].get(name)), (b, tables[1].get(name))]
            compare_table(findings, name, sides, display)
    compare_dense(findings, a, b)
    confs = a.conf(), b.conf()
    findings.conf = {key: (at(confs[0], key), at(confs[1], key)) for key in differences(*confs)}
    figures = validation_figures(a), validation_figures(b)
    for key in dict.fromkeys([*figures[0], *figures[1]]):
        findings.metrics[key] = figures[0].get(key, ABSENT), figures[1].get(key, ABSENT)
    return findings


def compare_table(
    findings: Comparison,
    name: str,
    sides: Sequence[tuple[Checkpoint, Table | None]],
    display: Display,
) -> None:
    """One pass over the rows of the tables of a name; one that is None has no rows.

    Rows are paired by group name and id: the tables' numbers of a group may differ.
    """
    tables = [table for _, table in sides if table is not None]
    groups = dict.fromkeys(group.name for table in tables for group in table.groups)
    changes = [GroupChange(name, group) for group in groups]
    findings.groups += changes
    fields: set[str] = set()  # of state, weights and counts, of the same shape in both
    if len(tables) == 2:
        common = {entry.name for entry in tables[0].record if entry in tables[1].record}
        fields = common - dict(KEY_FIELDS).keys()
        if not fields:
            findings.incomparable.append(f"table {name}")
    cursors, numbers = [], []
    for checkpoint, table in sides:
        stream = iter(()) if table is None else rows.stream(checkpoint, name)
        shape = table or tables[0]
        cursors.append(Cursor(stream, rows.keys_of(shape), shape.record_dtype))
        numbers.append({group.name: group.number for group in shape.groups})
    done = 0
    try:
        for taken in ranges(cursors):
            for change in changes:
                count(change, taken, [of.get(change.group, NO_GROUP) for of in numbers], fields)
            done += sum(len(records) for records, _ in taken)
            display.update(done, f"{done:,} rows")
    except DisorderError as error:
        raise Failure(f"table {name} {error}") from error


def count(
    change: GroupChange,
    taken: Sequence[tuple[NDArray[Any], NDArray[np.uint64]]],
    numbers: Sequence[int],
    fields: set[str],
) -> None:
    """Add the rows of one group to its counts.

    `taken` are the records of both sides in one range of hashes, and their hashes; `numbers` the
    numbers of the group. A row changed where a bit of one of the `fields` differs.
    """
    places = [
        np.flatnonzero(records["group"] == number)
        for (records, _), number in zip(taken, numbers, strict=True)
    ]
    old, new = (of[chosen] for (_, of), chosen in zip(taken, places, strict=True))
    # In a group an id and its hash determine each other.
    common, *both = np.intersect1d(old, new, return_indices=True)
    changed = np.zeros(len(common), bool)
    for name in fields:
        before, after = (
            np.ascontiguousarray(records[name][chosen[pairs]]).view(np.uint32)
            for (records, _), chosen, pairs in zip(taken, places, both, strict=True)
        )
        changed |= (before != after).any(1)
    change.removed += len(places[0]) - len(common)
    change.added += len(places[1]) - len(common)
    change.changed += int(changed.sum())
    change.same += int((~changed).sum())


def compare_dense(findings: Comparison, a: Checkpoint, b: Checkpoint) -> None:
    """The variables of a name and shape that both have; the others are listed by name."""
    old, new = (dense_file.variables(side.folder, side.manifest)[0] for side in (a, b))
    for name in dict.fromkeys([*old, *new]):
        if name not in old or name not in new or old[name].shape != new[name].shape:
            findings.incomparable.append(f"dense {name}")
        else:
            weights = old[name].astype(np.float64)
            distance, norm = np.linalg.norm(new[name] - weights), np.linalg.norm(weights)
            findings.dense.append(Moved(name, float(distance), float(norm)))


def at(values: dict[str, Any], key: str) -> Any:
    """The value at a dotted key of nested mappings."""
    value: Any = values
    for name in key.split("."):
        if not isinstance(value, dict) or name not in value:
            return ABSENT
        value = value[name]
    return value
