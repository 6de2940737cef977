"""What changed between two checkpoints: rows, dense weights, conf, metrics. Rows are streamed."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl.checkpoint import dense_file
from tnctl.checkpoint.chain import Checkpoint
from tnctl.checkpoint.checkpoint_inspection import validation_figures
from tnctl.checkpoint.decayed_rows import known_rows
from tnctl.checkpoint.merging import Cursor, DisorderError, Keys, ranges
from tnctl.checkpoint.rows import keys_of
from tnctl.checkpoint.table_document import Table
from tnctl.errors import Failure
from tnctl.progress import Display
from tnctl.schema import differences
from tnctl.tables import KEY_FIELDS

ABSENT = "(absent)"
# A checkpoint, and its table of a name, if it has one.
Side = tuple[Checkpoint, Table | None]


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


@dataclass(frozen=True)
class MatchedRows:
    """All rows of both tables whose hashes are in one range."""

    first: NDArray[Any]
    second: NDArray[Any]
    first_groups: NDArray[np.int64]  # of each row: its group's place in the names given
    second_groups: NDArray[np.int64]
    first_places: NDArray[np.int64]  # of the rows that both have
    second_places: NDArray[np.int64]


def compare(a: Checkpoint, b: Checkpoint) -> Comparison:
    """Compare two checkpoints, of one run or of two. Raises Failure where one is damaged."""
    findings = Comparison((a.folder, b.folder), (a.step, b.step))
    tables = [{table.name: table for table in side.manifest.tables} for side in (a, b)]
    with Display("compare", a.manifest.rows + b.manifest.rows) as display:
        for name in dict.fromkeys([*tables[0], *tables[1]]):
            sides = (a, tables[0].get(name)), (b, tables[1].get(name))
            compare_table(findings, name, sides, display)
    compare_dense(findings, a, b)
    confs = a.conf(), b.conf()
    findings.conf = {key: (at(confs[0], key), at(confs[1], key)) for key in differences(*confs)}
    figures = validation_figures(a), validation_figures(b)
    for key in dict.fromkeys([*figures[0], *figures[1]]):
        findings.metrics[key] = figures[0].get(key, ABSENT), figures[1].get(key, ABSENT)
    return findings


def compare_table(
    findings: Comparison, name: str, sides: tuple[Side, Side], display: Display
) -> None:
    """One pass over the rows that both have in tables of a name."""
    tables = [table for _, table in sides if table is not None]
    groups = list(dict.fromkeys(group.name for table in tables for group in table.groups))
    changes = [GroupChange(name, group) for group in groups]
    findings.groups += changes
    fields: set[str] = set()  # of state, weights and counts, of the same shape in both
    if len(tables) == 2:
        common = {entry.name for entry in tables[0].record if entry in tables[1].record}
        fields = common - dict(KEY_FIELDS).keys()
        if not fields:
            findings.incomparable.append(f"table {name}")
    streams = [(stream(*side), side[1]) for side in sides]
    for block in matched(*streams[0], *streams[1], groups):
        count(changes, block, unequal(block, fields))
        done = sum(g.removed + g.added + 2 * (g.changed + g.same) for g in findings.groups)
        display.update(done, f"{done:,} rows")


def stream(checkpoint: Checkpoint, table: Table | None) -> Iterator[NDArray[Any]]:
    """The rows of a table, arrays [n] of its record dtype; none of no table."""
    return iter(()) if table is None else known_rows(checkpoint, table.name)


def unequal(block: MatchedRows, fields: set[str]) -> NDArray[np.bool_]:
    """Of the n rows that both have: whether a bit of state or weights differs, bool [n]."""
    changed = np.zeros(len(block.first_places), bool)
    for name in fields:
        bits = [
            np.ascontiguousarray(records[name][places]).view(np.uint32)
            for records, places in (
                (block.first, block.first_places),
                (block.second, block.second_places),
            )
        ]
        changed |= (bits[0] != bits[1]).any(1)
    return changed


def count(changes: list[GroupChange], block: MatchedRows, moved: NDArray[np.bool_]) -> None:
    """Add a block's rows to the counts of the groups; `moved` [n] is of the rows in both."""
    many = len(changes)
    both = block.first_groups[block.first_places]
    shared, changed = np.bincount(both, minlength=many), np.bincount(both[moved], minlength=many)
    in_first = np.bincount(block.first_groups, minlength=many)
    in_second = np.bincount(block.second_groups, minlength=many)
    for number, group in enumerate(changes):
        group.removed += int(in_first[number] - shared[number])
        group.added += int(in_second[number] - shared[number])
        group.changed += int(changed[number])
        group.same += int(shared[number] - changed[number])


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


def matched(
    first: Iterator[NDArray[Any]],
    first_table: Table | None,
    second: Iterator[NDArray[Any]],
    second_table: Table | None,
    groups: list[str],
) -> Iterator[MatchedRows]:
    """Rows of two tables, paired by group name and id; `groups` has the names of both.

    The tables' numbers of a group may differ. A table that is None has no rows. Raises Failure for
    rows that are not in order.
    """
    cursors, places = [], []
    for stream, table in ((first, first_table), (second, second_table)):
        keys = Keys({}) if table is None else keys_of(table)
        cursors.append(Cursor(stream, keys, None if table is None else table.record_dtype))
        places.append(np.zeros(1 << 16, np.int64))
        for group in () if table is None else table.groups:
            places[-1][group.number] = groups.index(group.name)
    try:
        for (left, left_hashes), (right, right_hashes) in ranges(cursors):
            left_groups, right_groups = (
                of_numbers[records["group"]] if len(records) else np.zeros(0, np.int64)
                for of_numbers, records in zip(places, (left, right), strict=True)
            )
            both = pairs(left_hashes, left_groups, right_hashes, right_groups)
            yield MatchedRows(left, right, left_groups, right_groups, *both)
    except DisorderError as error:
        name = (first_table or second_table).name  # type: ignore[union-attr]
        raise Failure(f"table {name} {error}") from error


def pairs(
    first_hashes: NDArray[np.uint64],
    first_groups: NDArray[np.int64],
    second_hashes: NDArray[np.uint64],
    second_groups: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Places of the keys that both have; a key is there once in each."""
    hashes = np.concatenate([first_hashes, second_hashes])
    groups = np.concatenate([first_groups, second_groups])
    order = np.lexsort((groups, hashes))
    left, right = order[:-1], order[1:]
    same = (hashes[left] == hashes[right]) & (groups[left] == groups[right])
    # A damaged file may have a key twice; its checksum is not known yet.
    same &= (left < len(first_hashes)) & (right >= len(first_hashes))
    return left[same], right[same] - len(first_hashes)
