"""What is in a checkpoint: counts, norms, ages, shows, lineage. Rows are streamed, once."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl import documents
from tnctl.checkpoint import dense_file, rows
from tnctl.checkpoint.chain import Checkpoint
from tnctl.checkpoint.document import Clock, Optimizer, Position, Segment, Table
from tnctl.checkpoint.rows import as_read, known_rows, shows_as_read, unseen_days
from tnctl.model.recalibration import Recalibration
from tnctl.progress import Display

LARGEST = 10
EXPONENTS = 2200  # all of float64's, from -1074 on
LEAST = -1100


class Histogram:
    """Counts of numbers from 0 on: zero by itself, then [2^k, 2^(k+1)) for every k."""

    def __init__(self) -> None:
        self._zeros = 0
        self._counts = np.zeros(EXPONENTS, np.int64)

    def add(self, values: NDArray[np.float64]) -> None:
        """Count values, float64 [n]; negative ones and those that are not finite are left out."""
        above = values[np.isfinite(values) & (values > 0)]
        self._zeros += int((values == 0).sum())
        exponents = np.frexp(above)[1].astype(np.int64) - 1 - LEAST
        self._counts += np.bincount(exponents, minlength=EXPONENTS)

    def to_json(self) -> list[dict[str, Any]]:
        """The bins that have something in them, ascending; that of zero is from 0 below 0."""
        filled = np.flatnonzero(self._counts)
        edges = np.ldexp(1.0, filled + LEAST).tolist()
        zero = [{"from": 0.0, "below": 0.0, "rows": self._zeros}] if self._zeros else []
        return zero + [
            {"from": edge, "below": 2 * edge, "rows": count}
            for edge, count in zip(edges, self._counts[filled].tolist(), strict=True)
        ]


@dataclass
class GroupInspection:
    """The rows of one share group."""

    name: str
    rows: int
    admitted: int  # ids that ever got a row
    waiting: int  # about how many ids are counted and have no row yet
    evicted: int
    mean_norm: float = 0.0
    most_norm: float = 0.0
    shows: float | None = None  # decayed, of all rows
    clicks: float | None = None


@dataclass
class Large:
    """A row and its norm."""

    id: int
    group: str
    norm: float


@dataclass
class TableInspection:
    """The rows of one table."""

    name: str
    rows: int
    record_bytes: int
    files: int
    segments: tuple[Segment, ...]
    groups: list[GroupInspection]
    norms: Histogram = field(default_factory=Histogram)
    shows: Histogram | None = None
    age_steps: Histogram = field(default_factory=Histogram)
    age_days: Histogram | None = None
    largest: list[Large] = field(default_factory=list)
    not_finite: int = 0  # rows with a weight or state that is NaN or infinite
    not_finite_first: Large | None = None
    tombstones: int = 0
    sketch_bytes: int = 0


@dataclass
class DenseVariable:
    """A dense variable, and the norm of its weights."""

    name: str
    shape: tuple[int, ...]
    norm: float


@dataclass
class DenseInspection:
    """The dense weights."""

    weights: int
    bytes: int
    step: int
    optimizer: Optimizer
    states: tuple[str, ...]
    variables: list[DenseVariable]
    not_finite: int  # weights, states and moving statistics that are NaN or infinite


@dataclass
class Inspection:
    """All that `tnctl checkpoint inspect` finds."""

    folder: str
    step: int
    days: Sequence[tuple[int, int]]
    kind: str
    chain: list[str]
    finished: bool
    bytes: int
    chain_bytes: int
    position: Position
    recipe: str
    conf_sha256: str
    sha256: str
    tnctl: str
    tables: list[TableInspection]
    dense: DenseInspection
    metrics: dict[str, float]  # of these weights, empty where they were not evaluated
    steps_trained: int  # of which `step` is the best, if it is less
    recalibration: dict[str, Recalibration]  # by head

    def to_json(self) -> dict[str, Any]:
        """All of it as plain values."""
        described: dict[str, Any] = documents.plain(self)
        for table, values in zip(self.tables, described["tables"], strict=True):
            for name in ("norms", "shows", "age_steps", "age_days"):
                histogram = getattr(table, name)
                values[name] = histogram and histogram.to_json()
            if table.not_finite_first:
                values["not_finite_first"]["norm"] = None
        return described


def inspect(checkpoint: Checkpoint) -> Inspection:
    """Read all of a checkpoint. Raises Failure where it is damaged."""
    content, chain = checkpoint.manifest, checkpoint.chain()
    with Display("inspect", content.rows) as display:
        tables: list[TableInspection] = []
        for table in content.tables:
            done = sum(findings.rows for findings in tables)
            tables.append(inspect_table(checkpoint, table, display, done))
    return Inspection(
        folder=checkpoint.folder,
        step=checkpoint.step,
        days=list(checkpoint.clock.days),
        kind=content.kind,
        chain=[link.folder for link in chain],
        finished=content.finished,
        bytes=content.total_bytes,
        chain_bytes=sum(link.manifest.total_bytes for link in chain),
        position=content.position,
        recipe=content.recipe.name,
        conf_sha256=content.files[content.conf].sha256,
        sha256=content.sha256,
        tnctl=content.tnctl,
        tables=tables,
        dense=inspect_dense(checkpoint),
        metrics=validation_figures(checkpoint),
        steps_trained=content.steps_trained,
        recalibration=dict(content.recalibration or {}),
    )


def inspect_table(
    checkpoint: Checkpoint, table: Table, display: Display, done: int
) -> TableInspection:
    """One pass over the rows of a table, all links of its chain merged.

    `done` is how many rows of other tables were read before.
    """
    findings = TableInspection(
        name=table.name,
        rows=0,
        record_bytes=table.record_dtype.itemsize,
        files=sum(len(link.table(table.name).files) for link in checkpoint.chain()),
        segments=table.segments,
        groups=[
            GroupInspection(group.name, 0, group.admitted, group.waiting, group.evicted)
            for group in table.groups
        ],
        shows=Histogram() if table.life.shows else None,
        age_days=Histogram() if checkpoint.clock.days else None,
        tombstones=sum(len(removed) for removed in rows.tombstones(checkpoint, table.name)),
        sketch_bytes=table.sketch_bytes,
    )
    for records in known_rows(checkpoint, table.name):
        add_rows(findings, records, table, checkpoint.clock)
        findings.rows += len(records)
        display.update(done + findings.rows, f"{done + findings.rows:,} rows")
    for group in findings.groups:
        group.mean_norm /= max(group.rows, 1)  # it was the sum until here
    return findings


def add_rows(findings: TableInspection, records: NDArray[Any], table: Table, clock: Clock) -> None:
    """Take records [n] of the table's dtype into the findings; `mean_norm` is made a sum."""
    outputs = {segment.output: segment.name for segment in table.segments}
    # The norms are of the embedding, or else of the linear weight.
    weights = as_read(records, table, clock.step)[outputs.get("concat") or outputs["sum"]]
    norms, finite = lengths(weights), all_finite(records)
    norms[~finite] = 0
    findings.norms.add(norms)
    findings.age_steps.add((clock.step - records["changed"].astype(np.int64)).astype(np.float64))
    if findings.age_days is not None:
        findings.age_days.add(unseen_days(records["changed"], clock.days).astype(np.float64))
    groups = {
        group.number: of_group
        for group, of_group in zip(table.groups, findings.groups, strict=True)
    }
    numbers, most = records["group"], max(groups) + 1
    largest_norms = np.zeros(most)
    np.maximum.at(largest_norms, numbers, norms)
    counts, sums = np.bincount(numbers, minlength=most), np.bincount(numbers, norms, most)
    for number, group in groups.items():
        group.rows += int(counts[number])
        group.mean_norm += float(sums[number])
        group.most_norm = max(group.most_norm, float(largest_norms[number]))
    if findings.shows is not None:
        shows, clicks = shows_as_read(records, table, clock.days)
        findings.shows.add(shows)
        show_sums, click_sums = (np.bincount(numbers, v, most) for v in (shows, clicks))
        for number, group in groups.items():
            group.shows = (group.shows or 0) + float(show_sums[number])
            group.clicks = (group.clicks or 0) + float(click_sums[number])

    def large(place: int) -> Large:
        record = records[place]
        return Large(int(record["id"]), groups[int(record["group"])].name, float(norms[place]))

    least = findings.largest[-1].norm if len(findings.largest) == LARGEST else -1.0
    places = np.flatnonzero(norms > least)
    places = places[np.argsort(-norms[places], kind="stable")[:LARGEST]]
    candidates = [*findings.largest, *map(large, places.tolist())]
    findings.largest = sorted(candidates, key=lambda row: -row.norm)[:LARGEST]
    findings.not_finite += int((~finite).sum())
    if findings.not_finite_first is None and not finite.all():
        findings.not_finite_first = replace(large(int(np.argmin(finite))), norm=math.nan)


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


def inspect_dense(checkpoint: Checkpoint) -> DenseInspection:
    """The dense weights: how many, their norm by variable, and what is not finite."""
    described = checkpoint.manifest.dense
    parts = dense_file.variables(checkpoint.folder, checkpoint.manifest)
    arrays = [array for part in parts for array in part.values()]
    return DenseInspection(
        weights=sum(weights.size for weights in parts[0].values()),
        bytes=sum(array.nbytes for array in arrays),
        step=described.step,
        optimizer=described.optimizer,
        states=described.states,
        variables=[
            DenseVariable(name, weights.shape, float(np.linalg.norm(weights.astype(np.float64))))
            for name, weights in parts[0].items()
        ],
        not_finite=sum(int((~np.isfinite(array)).sum()) for array in arrays),
    )


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
