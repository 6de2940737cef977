"""What changed between two checkpoints: rows, dense weights, conf, metrics. Rows are streamed."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl.checkpoint import dense_file
from tnctl.checkpoint.chain import Checkpoint
from tnctl.checkpoint.checkpoint_inspection import last_figures, lengths
from tnctl.checkpoint.decayed_rows import as_read, known_rows
from tnctl.checkpoint.matching import Block, matched
from tnctl.checkpoint.table_document import KEY_FIELDS, RecordField, Table
from tnctl.progress import Display
from tnctl.schema import differences

LARGEST = 10
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
    """How far the weights of a row, or of a dense variable, moved (L2), and their norm in A."""

    name: str  # the group's, or the variable's
    id: int | None
    distance: float
    norm: float


@dataclass
class Findings:
    """All that `tnctl checkpoint diff` tells, from A to B."""

    folders: tuple[str, str]
    steps: tuple[int, int]
    groups: list[GroupChange] = field(default_factory=list)
    incomparable: list[str] = field(default_factory=list)  # tables and variables of other shapes
    largest: list[Moved] = field(default_factory=list)  # rows, by the embedding
    dense: list[Moved] = field(default_factory=list)
    conf: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    metrics: dict[str, tuple[Any, Any]] = field(default_factory=dict)


def compare(one: Checkpoint, other: Checkpoint) -> Findings:
    """Compare two checkpoints, of one run or of two. Raises Failure where one is damaged."""
    found = Findings((one.folder, other.folder), (one.step, other.step))
    tables = [{table.name: table for table in side.manifest.tables} for side in (one, other)]
    total = sum(table.rows for side in tables for table in side.values())
    with Display("compare", total) as display:
        for name in dict.fromkeys([*tables[0], *tables[1]]):
            sides = ((one, tables[0].get(name)), (other, tables[1].get(name)))
            compare_table(found, name, *sides, display)
    compare_dense(found, one, other)
    confs = one.conf(), other.conf()
    for key in differences(*confs):
        found.conf[key] = at(confs[0], key), at(confs[1], key)
    figures = last_figures(one), last_figures(other)
    for key in dict.fromkeys([*figures[0], *figures[1]]):
        found.metrics[key] = figures[0].get(key, ABSENT), figures[1].get(key, ABSENT)
    return found


def compare_table(found: Findings, name: str, one: Side, other: Side, display: Display) -> None:
    """One pass over the rows that both have in tables of a name."""
    tables = [table for _, table in (one, other) if table is not None]
    groups = list(dict.fromkeys(group.name for table in tables for group in table.groups))
    changes = [GroupChange(name, group) for group in groups]
    found.groups += changes
    fields = [field.name for field in common_fields(*tables)] if len(tables) == 2 else []
    segments = [segment for segment in tables[0].segments if segment.name in fields]
    if not fields and len(tables) == 2:
        found.incomparable.append(f"table {name}")
    # The widest segment: the embedding, where there is one.
    widest = max(segments, key=lambda segment: segment.width, default=None)
    streams = [(stream(*side), side[1]) for side in (one, other)]
    for block in matched(*streams[0], *streams[1], groups):
        moved = unequal(block, fields)
        count(changes, block, moved)
        if widest is not None and moved.any():
            weights = [
                as_read(records[places[moved]], table, checkpoint.step)
                for records, places, table, checkpoint in (
                    (block.one, block.one_places, tables[0], one[0]),
                    (block.other, block.other_places, tables[1], other[0]),
                )
            ]
            take_largest(found, weights[0], weights[1], widest.name, tables[0])
        done = sum(g.removed + g.added + 2 * (g.changed + g.same) for g in found.groups)
        display.update(done, f"{done:,} rows")


def stream(checkpoint: Checkpoint, table: Table | None) -> Iterator[NDArray[Any]]:
    return iter(()) if table is None else known_rows(checkpoint, table.name)


def common_fields(one: Table, other: Table) -> list[RecordField]:
    """The fields of state, weights and counts that records of both have, of the same shape."""
    keys = {name for name, _ in KEY_FIELDS}
    return [field for field in one.record if field in other.record and field.name not in keys]


def unequal(block: Block, fields: list[str]) -> NDArray[np.bool_]:
    """Of the rows that both have: whether a bit of state or weights differs."""
    changed = np.zeros(len(block.one_places), bool)
    for name in fields:
        bits = [
            np.ascontiguousarray(records[name][places]).view(np.uint32)
            for records, places in (
                (block.one, block.one_places),
                (block.other, block.other_places),
            )
        ]
        changed |= (bits[0] != bits[1]).any(1)
    return changed


def count(changes: list[GroupChange], block: Block, moved: NDArray[np.bool_]) -> None:
    """Add a block's rows to the counts of the groups."""
    many = len(changes)
    both = block.one_groups[block.one_places]
    shared, changed = np.bincount(both, minlength=many), np.bincount(both[moved], minlength=many)
    in_one = np.bincount(block.one_groups, minlength=many)
    in_other = np.bincount(block.other_groups, minlength=many)
    for number, group in enumerate(changes):
        group.removed += int(in_one[number] - shared[number])
        group.added += int(in_other[number] - shared[number])
        group.changed += int(changed[number])
        group.same += int(shared[number] - changed[number])


def take_largest(
    found: Findings,
    before: NDArray[Any],
    after: NDArray[Any],
    segment: str,
    table: Table,
) -> None:
    """Keep the rows whose weights moved most."""
    names = {group.number: group.name for group in table.groups}
    old = before[segment].astype(np.float64)
    distances = lengths(after[segment] - old)
    places = np.argsort(-distances, kind="stable")[:LARGEST]
    norms = lengths(old[places])
    more = [
        Moved(names[int(before["group"][i])], int(before["id"][i]), float(distances[i]), float(n))
        for i, n in zip(places, norms, strict=True)
        if distances[i] > 0
    ]
    found.largest = sorted([*found.largest, *more], key=lambda row: -row.distance)[:LARGEST]


def compare_dense(found: Findings, one: Checkpoint, other: Checkpoint) -> None:
    """The variables of a name and shape that both have; the others are named."""
    before, after = variables(one), variables(other)
    for name in dict.fromkeys([*before, *after]):
        old, new = before.get(name), after.get(name)
        if old is None or new is None or old.shape != new.shape:
            found.incomparable.append(f"dense {name}")
        else:
            difference, flat = (new - old).ravel(), old.ravel()
            found.dense.append(
                Moved(
                    name,
                    None,
                    float(np.sqrt(difference @ difference)),
                    float(np.sqrt(flat @ flat)),
                )
            )


def variables(checkpoint: Checkpoint) -> dict[str, NDArray[np.float64]]:
    """The dense weights by the names of their variables."""
    floats, at = dense_file.floats(checkpoint.folder, checkpoint.manifest), 0
    found = {}
    for variable in checkpoint.manifest.dense.variables:
        weights = floats[at : at + variable.size].astype(np.float64)
        found[variable.name] = weights.reshape(variable.shape)
        at += variable.size
    return found


def at(values: dict[str, Any], key: str) -> Any:
    """The value at a dotted key of nested mappings."""
    found: Any = values
    for name in key.split("."):
        if not isinstance(found, dict) or name not in found:
            return ABSENT
        found = found[name]
    return found
