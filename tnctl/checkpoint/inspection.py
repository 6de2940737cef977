"""What is in a checkpoint, whether it is as it was written, and what changed between two.

Rows are streamed, once.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl import files, manifest
from tnctl.checkpoint import dense_file, rows
from tnctl.checkpoint.chain import CONF, GOLDEN, Checkpoint, offering, open_checkpoint
from tnctl.checkpoint.document import RowsFile, Table
from tnctl.checkpoint.listing import NAME
from tnctl.checkpoint.merging import Cursor, DisorderError, ranges
from tnctl.documents import plain
from tnctl.errors import Failure
from tnctl.manifest import DamagedError
from tnctl.progress import Display
from tnctl.schema import differences
from tnctl.tables import KEY_FIELDS

LARGEST = 10
EXPONENTS = 2200  # all of float64's, from -1074 on
LEAST = -1100
ABSENT = "(absent)"
NO_GROUP = 1 << 16  # the number that no group has


# ---- tnctl checkpoint inspect --------------------------------------------------


def inspect(checkpoint: Checkpoint) -> dict[str, Any]:
    """All that `tnctl checkpoint inspect` shows, as JSON. Raises Failure where it is damaged."""
    content, chain = checkpoint.manifest, checkpoint.chain()
    tables: list[dict[str, Any]] = []
    with Display("inspect", content.rows) as display:
        for table in content.tables:
            tables.append(inspect_table(checkpoint, table, display, tables))
    report: dict[str, Any] = plain(
        {
            "folder": checkpoint.folder,
            "step": checkpoint.step,
            "days": checkpoint.clock.days,
            "kind": content.kind,
            "chain": [link.folder for link in chain],
            "finished": content.finished,
            "bytes": content.total_bytes,
            "chain_bytes": sum(link.manifest.total_bytes for link in chain),
            "position": content.position,
            "recipe": content.recipe.name,
            "conf_sha256": content.files[content.conf].sha256,
            "sha256": content.sha256,
            "tnctl": content.tnctl,
            "tables": tables,
            "dense": inspect_dense(checkpoint),
            # Of these weights, empty where they were not evaluated.
            "metrics": validation_figures(checkpoint),
            # `step` is the best of them, if it is less.
            "steps_trained": content.steps_trained,
            "recalibration": content.recalibration or {},
        }
    )
    return report


def inspect_table(
    checkpoint: Checkpoint, table: Table, display: Display, earlier: list[dict[str, Any]]
) -> dict[str, Any]:
    """One pass over the rows of a table, all links of its chain merged.

    `earlier` are the tables that were read before.
    """
    done = sum(of_table["rows"] for of_table in earlier)
    removed = sum(len(removed) for removed in rows.tombstones(checkpoint, table.name))
    findings = RowFigures(checkpoint, table)
    for records in rows.stream(checkpoint, table.name):
        findings.add(records)
        read = done + int(findings.counts.sum())
        display.update(read, f"{read:,} rows")
    return {
        "name": table.name,
        "rows": int(findings.counts.sum()),
        "record_bytes": table.record_dtype.itemsize,
        "files": sum(len(link.table(table.name).files) for link in checkpoint.chain()),
        "segments": table.segments,
        "groups": findings.groups(),
        **findings.histograms(),
        "largest": findings.largest,
        "not_finite": findings.not_finite,  # rows with a weight or state that is NaN or infinite
        "not_finite_first": findings.not_finite_first,
        "tombstones": removed,
        "sketch_bytes": table.sketch_bytes,
    }


class RowFigures:
    """Sums over the rows of a table, by the groups' numbers."""

    def __init__(self, checkpoint: Checkpoint, table: Table) -> None:
        self._table, self._clock = table, checkpoint.clock
        self._names = {group.number: group.name for group in table.groups}
        self._most = max(self._names) + 1
        self.counts = np.zeros(self._most, np.int64)
        self._norms, self._most_norms, self._shows, self._clicks = np.zeros((4, self._most))
        self._histograms: dict[str, NDArray[np.int64]] = {}
        self.largest: list[dict[str, Any]] = []
        self.not_finite = 0
        self.not_finite_first: dict[str, Any] | None = None

    def add(self, records: NDArray[Any]) -> None:
        """Take records [n] of the table's dtype into the sums."""
        table, clock, numbers = self._table, self._clock, records["group"]
        outputs = {segment.output: segment.name for segment in table.segments}
        # The norms are of the embedding, or else of the linear weight.
        weights = rows.as_read(records, table, clock.step)[outputs.get("concat") or outputs["sum"]]
        norms, finite = lengths(weights), all_finite(records)
        norms[~finite] = 0
        self._count("norms", norms)
        self._count("age_steps", clock.step - records["changed"].astype(np.float64))
        if clock.days:
            self._count("age_days", rows.unseen_days(records["changed"], clock.days))
        self.counts += np.bincount(numbers, minlength=self._most)
        self._norms += np.bincount(numbers, norms, self._most)
        np.maximum.at(self._most_norms, numbers, norms)
        if table.life.shows:
            shows, clicks = rows.shows_as_read(records, table, clock.days)
            self._count("shows", shows)
            self._shows += np.bincount(numbers, shows, self._most)
            self._clicks += np.bincount(numbers, clicks, self._most)
        first = np.argsort(-norms, kind="stable")[:LARGEST].tolist()
        candidates = [*self.largest, *(self._large(records[at], float(norms[at])) for at in first)]
        self.largest = sorted(candidates, key=lambda row: -row["norm"])[:LARGEST]
        self.not_finite += int((~finite).sum())
        if self.not_finite_first is None and not finite.all():
            self.not_finite_first = self._large(records[np.argmin(finite)], None)

    def _large(self, record: Any, norm: float | None) -> dict[str, Any]:
        """A row and its norm."""
        return {"id": int(record["id"]), "group": self._names[int(record["group"])], "norm": norm}

    def _count(self, name: str, values: NDArray[Any]) -> None:
        """Count numbers [n] from 0 on: zeros, then those in [2^k, 2^(k + 1)) for every k."""
        values = values[np.isfinite(values) & (values >= 0)].astype(np.float64)
        bins = np.where(values > 0, np.frexp(values)[1] - LEAST, 0)
        counts = np.bincount(bins, minlength=EXPONENTS + 1)
        self._histograms[name] = self._histograms.get(name, 0) + counts

    def groups(self) -> list[dict[str, Any]]:
        """The figures of each share group; shows and clicks are decayed, of all its rows."""
        has_shows = self._table.life.shows and self.counts.any()
        return [
            {
                "name": group.name,
                "rows": int(self.counts[group.number]),
                "admitted": group.admitted,  # ids that ever got a row
                "waiting": group.waiting,  # about how many ids are counted and have no row yet
                "evicted": group.evicted,
                "mean_norm": self._norms[group.number] / max(self.counts[group.number], 1),
                "most_norm": float(self._most_norms[group.number]),
                "shows": float(self._shows[group.number]) if has_shows else None,
                "clicks": float(self._clicks[group.number]) if has_shows else None,
            }
            for group in self._table.groups
        ]

    def histograms(self) -> dict[str, Any]:
        """The bins that have something in them, ascending; the bin of zero is from 0 below 0."""
        life, days = self._table.life, self._clock.days
        known = {"norms": True, "shows": life.shows, "age_steps": True, "age_days": bool(days)}
        histograms: dict[str, Any] = {}
        for name, is_known in known.items():
            counts = self._histograms.get(name, np.zeros(0, np.int64))
            bins = np.flatnonzero(counts).tolist()
            edges = [math.ldexp(1.0, k + LEAST - 1) if k else 0.0 for k in bins]
            histograms[name] = None
            if is_known:
                histograms[name] = [
                    {"from": edge, "below": 2 * edge, "rows": int(counts[k])}
                    for edge, k in zip(edges, bins, strict=True)
                ]
        return histograms


def lengths(weights: NDArray[Any]) -> NDArray[np.float64]:
    """The L2 norm of each row of weights [n, width], float64 [n]."""
    exact = weights.astype(np.float64)
    norms: NDArray[np.float64] = np.sqrt(np.einsum("ij,ij->i", exact, exact))
    return norms


def all_finite(records: NDArray[Any]) -> NDArray[np.bool_]:
    """Whether every float of each of n records is finite, bool [n]."""
    finite = np.ones(len(records), bool)
    for name in records.dtype.names or ():
        values = records[name]
        if values.dtype.kind == "f":
            finite &= np.isfinite(values).reshape(len(records), -1).all(1)
    return finite


def inspect_dense(checkpoint: Checkpoint) -> dict[str, Any]:
    """The dense weights: how many, their norm by variable, and what is not finite."""
    described = checkpoint.manifest.dense
    parts = dense_file.variables(checkpoint.folder, checkpoint.manifest)
    arrays = [array for part in parts for array in part.values()]
    return {
        "weights": sum(weights.size for weights in parts[0].values()),
        "bytes": sum(array.nbytes for array in arrays),
        "step": described.step,
        "optimizer": described.optimizer,
        "states": described.states,
        "variables": [
            {
                "name": name,
                "shape": weights.shape,
                "norm": float(np.linalg.norm(weights.astype(np.float64))),
            }
            for name, weights in parts[0].items()
        ],
        # Weights, states and moving statistics that are NaN or infinite.
        "not_finite": sum(int((~np.isfinite(array)).sum()) for array in arrays),
    }


def validation_figures(checkpoint: Checkpoint) -> dict[str, float]:
    """The metrics of the checkpoint's weights on data.validation, by dotted names."""
    return dict(numbers_in(checkpoint.manifest.validation or {}, "validation."))


def numbers_in(values: dict[str, Any], path: str = "") -> Iterator[tuple[str, float]]:
    """The numbers in nested mappings, by dotted keys."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield from numbers_in(value, f"{path}{key}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield path + key, value


# ---- tnctl checkpoint verify ---------------------------------------------------


@dataclass
class Verification:
    """What was read, and one line for everything that is wrong."""

    chain: list[str] = field(default_factory=list)
    files: int = 0
    rows: int = 0
    findings: list[str] = field(default_factory=list)

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note an error of the block, without its advice."""
        try:
            yield
        except Failure as error:
            self.findings.append(error.what if isinstance(error, DamagedError) else str(error))


def verify(folder: str) -> Verification:
    """Read every byte of a checkpoint and of its chain, and compare it with the manifests."""
    findings = Verification()
    chain: list[Checkpoint] = []
    with findings.noted():
        chain = open_checkpoint(folder).chain()
    findings.chain = [link.folder for link in chain]
    with Display("verify", sum(link.manifest.total_bytes for link in chain)) as display:
        done = 0
        for link in chain:
            verify_link(findings, link)
            done += link.manifest.total_bytes
            display.update(done, f"{findings.rows:,} rows")
    return findings


def verify_link(findings: Verification, link: Checkpoint) -> None:
    """Check the files of one checkpoint."""
    match = NAME.fullmatch(link.name)
    # With evaluation.keep=best the last one is named after the run's steps, not after its model's.
    step = link.manifest.steps_trained
    if match and int(match[1]) != step:
        findings.findings.append(f"{link.folder} is of step {step:,}")
    streamed = set()
    for table in link.manifest.tables:
        for entry in table.entries:
            streamed.add(entry.file)
            with findings.noted():
                for records in rows.verified(link, table, entry):
                    findings.rows += len(records) if isinstance(entry, RowsFile) else 0
    findings.files += len(link.manifest.files)
    for path in link.manifest.files:
        if path in streamed:
            continue
        with findings.noted(), offering(link):
            manifest.check_stored(link.folder, link.manifest, path, "Take another")
            verify_content(link, path)


def verify_content(checkpoint: Checkpoint, path: str) -> None:
    """Raise Failure when an undamaged file is not what a file of its name must be."""
    if path == dense_file.NAME:
        dense_file.floats(checkpoint.folder, checkpoint.manifest)
    if path == CONF:
        checkpoint.conf()
    if path == GOLDEN:
        url = files.join(checkpoint.folder, path)
        lines, expected = checkpoint.golden(), checkpoint.manifest.golden.rows
        if len(lines) != expected:
            raise Failure(f"{url} has {len(lines):,} rows, the manifest says {expected:,}")
        heads = set(checkpoint.manifest.heads)
        for number, line in enumerate(lines, 1):
            if heads != line.logits.keys():
                raise Failure(f"{url}, line {number} has not the outputs of the model's heads")


# ---- tnctl checkpoint diff -----------------------------------------------------


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
class Difference:
    """All that `tnctl checkpoint diff` shows, from A to B."""

    folders: tuple[str, str]
    steps: tuple[int, int]
    groups: list[GroupChange] = field(default_factory=list)
    incomparable: list[str] = field(default_factory=list)  # tables and variables of other shapes
    dense: list[Moved] = field(default_factory=list)
    conf: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    metrics: dict[str, tuple[Any, Any]] = field(default_factory=dict)


def compare(a: Checkpoint, b: Checkpoint) -> Difference:
    """Compare two checkpoints, of one run or of two. Raises Failure where one is damaged."""
    findings = Difference((a.folder, b.folder), (a.step, b.step))
    tables = [{table.name: table for table in side.manifest.tables} for side in (a, b)]
    with Display("compare", a.manifest.rows + b.manifest.rows) as display:
        for name in dict.fromkeys([*tables[0], *tables[1]]):
            sides = [(a, tables[0].get(name)), (b, tables[1].get(name))]
            compare_table(findings, name, sides, display)
    compare_dense(findings, a, b)
    confs = a.conf(), b.conf()
    findings.conf = {
        key: (value_at(confs[0], key), value_at(confs[1], key)) for key in differences(*confs)
    }
    figures = validation_figures(a), validation_figures(b)
    for key in dict.fromkeys([*figures[0], *figures[1]]):
        findings.metrics[key] = figures[0].get(key, ABSENT), figures[1].get(key, ABSENT)
    return findings


def compare_table(
    findings: Difference,
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
                count_changes(
                    change, taken, [of.get(change.group, NO_GROUP) for of in numbers], fields
                )
            done += sum(len(records) for records, _ in taken)
            display.update(done, f"{done:,} rows")
    except DisorderError as error:
        raise Failure(f"table {name} {error}") from error


def count_changes(
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


def compare_dense(findings: Difference, a: Checkpoint, b: Checkpoint) -> None:
    """The variables of a name and shape that both have; the others are listed by name."""
    old, new = (dense_file.variables(side.folder, side.manifest)[0] for side in (a, b))
    for name in dict.fromkeys([*old, *new]):
        if name not in old or name not in new or old[name].shape != new[name].shape:
            findings.incomparable.append(f"dense {name}")
        else:
            weights = old[name].astype(np.float64)
            distance, norm = np.linalg.norm(new[name] - weights), np.linalg.norm(weights)
            findings.dense.append(Moved(name, float(distance), float(norm)))


def value_at(values: dict[str, Any], key: str) -> Any:
    """The value at a dotted key of nested mappings."""
    value: Any = values
    for name in key.split("."):
        if not isinstance(value, dict) or name not in value:
            return ABSENT
        value = value[name]
    return value
