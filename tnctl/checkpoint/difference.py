"""What changed between two checkpoints: rows, dense weights, conf, metrics. Rows are streamed."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl.checkpoint import dense, rows
from tnctl.checkpoint.chain import Checkpoint
from tnctl.checkpoint.inspection import last_figures, lengths
from tnctl.checkpoint.matching import Block, matched
from tnctl.checkpoint.reading import as_read, known_rows
from tnctl.progress import Display
from tnctl.schema import differences

LARGEST = 10
ABSENT = "(absent)"


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
    parts = [{part["name"]: part for part in side.manifest["tables"]} for side in (one, other)]
    total = sum(part["rows"] for side in parts for part in side.values())
    with Display("compare", total) as display:
        for name in dict.fromkeys([*parts[0], *parts[1]]):
            compare_table(found, name, one, other, display)
    compare_dense(found, one, other)
    confs = one.conf(), other.conf()
    for key in differences(*confs):
        found.conf[key] = at(confs[0], key), at(confs[1], key)
    figures = last_figures(one), last_figures(other)
    for key in dict.fromkeys([*figures[0], *figures[1]]):
        found.metrics[key] = figures[0].get(key, ABSENT), figures[1].get(key, ABSENT)
    return found


def compare_table(
    found: Findings, name: str, one: Checkpoint, other: Checkpoint, display: Display
) -> None:
    """One pass over the rows that both have in tables of a name."""
    parts = table_of(one, name), table_of(other, name)
    groups = list(dict.fromkeys(g["name"] for part in parts for g in part["groups"]))
    changes = [GroupChange(name, group) for group in groups]
    found.groups += changes
    fields = common_fields(*parts)
    segments = [segment["name"] for segment in parts[0]["segments"] if segment["name"] in fields]
    if not fields and parts[0]["record"] and parts[1]["record"]:
        found.incomparable.append(f"table {name}")
    # The widest segment: the embedding, where there is one.
    segment = max(segments, key=lambda key: rows.width_of(parts[0], key), default=None)
    for block in matched(
        stream(one, parts[0]), parts[0], stream(other, parts[1]), parts[1], groups
    ):
        moved = unequal(block, fields)
        count(changes, block, moved)
        if segment and moved.any():
            weights = [
                as_read(records[places[moved]], part, checkpoint.step)
                for records, places, part, checkpoint in (
                    (block.one, block.one_places, parts[0], one),
                    (block.other, block.other_places, parts[1], other),
                )
            ]
            take_largest(found, weights[0], weights[1], segment, parts[0])
        done = sum(g.removed + g.added + 2 * (g.changed + g.same) for g in found.groups)
        display.update(done, f"{done:,} rows")


def table_of(checkpoint: Checkpoint, name: str) -> dict[str, Any]:
    """The manifest's entry of a table; one without rows or fields where there is none."""
    nothing: dict[str, Any] = {"name": name, "groups": [], "segments": [], "record": []}
    return next((one for one in checkpoint.manifest["tables"] if one["name"] == name), nothing)


def stream(checkpoint: Checkpoint, part: dict[str, Any]) -> Iterator[NDArray[Any]]:
    return known_rows(checkpoint, part["name"]) if part["record"] else iter(())


def common_fields(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """The fields of state and weights that records of both have, of the same shape."""
    there = [tuple(entry.values()) for entry in other["record"]]
    return [
        entry["name"]
        for entry in one["record"]
        if tuple(entry.values()) in there and entry["name"] not in rows.KEY
    ]


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
    part: dict[str, Any],
) -> None:
    """Keep the rows whose weights moved most."""
    names = {group["number"]: group["name"] for group in part["groups"]}
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
    floats, at = dense.floats(checkpoint.folder, checkpoint.manifest), 0
    found = {}
    for variable in checkpoint.manifest["dense"]["variables"]:
        size = dense.sizes([variable])
        weights = floats[at : at + size].astype(np.float64)
        found[variable["name"]] = weights.reshape(variable["shape"])
        at += size
    return found


def at(values: dict[str, Any], key: str) -> Any:
    """The value at a dotted key of nested mappings."""
    found: Any = values
    for name in key.split("."):
        if not isinstance(found, dict) or name not in found:
            return ABSENT
        found = found[name]
    return found
