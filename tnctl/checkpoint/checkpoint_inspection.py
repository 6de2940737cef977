"""What is in a checkpoint: counts, norms, ages, shows, lineage. Rows are streamed, once."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl import documents
from tnctl.checkpoint import dense_file, rows
from tnctl.checkpoint.chain import Checkpoint
from tnctl.checkpoint.decayed_rows import as_read, known_rows, shows_as_read, unseen_days
from tnctl.checkpoint.document import CheckpointManifest, Position
from tnctl.checkpoint.histogram import Histogram
from tnctl.checkpoint.table_document import Optimizer, Segment, Table
from tnctl.progress import Display

LARGEST = 10


@dataclass
class GroupFindings:
    """The rows of one share group."""

    name: str
    rows: int
    admitted: int  # ids that ever got a row
    waiting: int  # about how many are counted and have none yet
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
class TableFindings:
    """The rows of one table."""

    name: str
    rows: int
    record_bytes: int
    files: int
    segments: tuple[Segment, ...]
    groups: list[GroupFindings]
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
class DenseFindings:
    """The dense weights."""

    weights: int
    bytes: int
    step: int
    optimizer: Optimizer
    states: tuple[str, ...]
    variables: list[DenseVariable]
    not_finite: int  # weights, states and moving statistics that are NaN or infinite


@dataclass
class Findings:
    """All that `tnctl checkpoint inspect` tells."""

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
    tables: list[TableFindings]
    dense: DenseFindings
    metrics: dict[str, float]  # of the last evaluation

    @property
    def rows(self) -> int:
        return sum(table.rows for table in self.tables)

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


def inspect(checkpoint: Checkpoint) -> Findings:
    """Look at all of a checkpoint. Raises Failure where it is damaged."""
    content, chain = checkpoint.manifest, checkpoint.chain()
    total = sum(table.rows for table in content.tables)
    with Display("inspect", total) as display:
        tables: list[TableFindings] = []
        for table in content.tables:
            done = sum(findings.rows for findings in tables)
            tables.append(inspect_table(checkpoint, table, display, done))
    return Findings(
        folder=checkpoint.folder,
        step=checkpoint.step,
        days=list(checkpoint.clock.days),
        kind=content.kind,
        chain=[one.folder for one in chain],
        finished=content.finished,
        bytes=stored_bytes(content),
        chain_bytes=sum(stored_bytes(one.manifest) for one in chain),
        position=content.position,
        recipe=content.recipe.name,
        conf_sha256=content.files[content.conf].sha256,
        sha256=content.sha256,
        tnctl=content.tnctl,
        tables=tables,
        dense=inspect_dense(checkpoint),
        metrics=last_figures(checkpoint),
    )


def stored_bytes(content: CheckpointManifest) -> int:
    """The bytes of all files of a checkpoint, without its manifest."""
    return sum(entry.bytes for entry in content.files.values())


def inspect_table(
    checkpoint: Checkpoint, table: Table, display: Display, before: int
) -> TableFindings:
    """One pass over the rows of a table, all links of its chain merged."""
    dtype = table.record_dtype
    found = TableFindings(
        name=table.name,
        rows=0,
        record_bytes=dtype.itemsize,
        files=sum(len(link.table(table.name).files) for link in checkpoint.chain()),
        segments=table.segments,
        groups=[],
        tombstones=sum(len(some) for some in rows.tombstones(checkpoint, table.name)),
        sketch_bytes=0 if table.sketch is None else table.sketch.bytes,
    )
    sums = GroupSums(table)
    days = checkpoint.clock.days
    if days:
        found.age_days = Histogram()
    if "show" in (dtype.names or ()):
        found.shows = Histogram()
    for records in known_rows(checkpoint, table.name):
        look_at(found, sums, records, table, checkpoint.step, days)
        found.rows += len(records)
        display.update(before + found.rows, f"{before + found.rows:,} rows")
    found.groups = sums.findings()
    return found


class GroupSums:
    """Sums over the rows of each group, by the group's place in the manifest."""

    def __init__(self, table: Table) -> None:
        self._groups = table.groups
        self.names = {group.number: group.name for group in table.groups}
        most = max(self.names, default=0) + 1
        self.rows = np.zeros(most, np.int64)
        self.norm = np.zeros(most)
        self.most = np.zeros(most)
        self.shows: NDArray[np.float64] | None = None
        self.clicks = np.zeros(most)

    def add(self, numbers: NDArray[Any], norms: NDArray[np.float64]) -> None:
        self.rows += np.bincount(numbers, minlength=len(self.rows))
        self.norm += np.bincount(numbers, norms, len(self.rows))
        np.maximum.at(self.most, numbers, norms)

    def add_shows(
        self, numbers: NDArray[Any], shows: NDArray[np.float64], clicks: NDArray[np.float64]
    ) -> None:
        if self.shows is None:
            self.shows = np.zeros(len(self.rows))
        self.shows += np.bincount(numbers, shows, len(self.rows))
        self.clicks += np.bincount(numbers, clicks, len(self.rows))

    def findings(self) -> list[GroupFindings]:
        found = []
        for group in self._groups:
            at = group.number
            count = int(self.rows[at])
            found.append(
                GroupFindings(
                    group.name,
                    count,
                    group.admitted,
                    group.waiting,
                    group.evicted,
                    mean_norm=float(self.norm[at]) / max(count, 1),
                    most_norm=float(self.most[at]),
                    shows=float(self.shows[at]) if self.shows is not None else None,
                    clicks=float(self.clicks[at]) if self.shows is not None else None,
                )
            )
        return found


def look_at(
    found: TableFindings,
    sums: GroupSums,
    records: NDArray[Any],
    table: Table,
    step: int,
    days: Sequence[tuple[int, int]],
) -> None:
    """Take some rows into the findings."""
    norms = lengths(as_read(records, table, step)[main_segment(table)])
    numbers = records["group"].astype(np.int64)
    finite = all_finite(records)
    norms[~finite] = 0
    sums.add(numbers, norms)
    found.norms.add(norms)
    found.age_steps.add((step - records["changed"].astype(np.int64)).astype(np.float64))
    if found.age_days is not None:
        found.age_days.add(unseen_days(records["changed"], days).astype(np.float64))
    if found.shows is not None:
        shows, clicks = shows_as_read(records, table, days)
        found.shows.add(shows)
        sums.add_shows(numbers, shows, clicks)
    found.largest = largest(found.largest, records, norms, sums.names)
    if not finite.all():
        found.not_finite += int((~finite).sum())
        if found.not_finite_first is None:
            first = records[int(np.argmin(finite))]
            name = sums.names[int(first["group"])]
            found.not_finite_first = Large(int(first["id"]), name, float("nan"))


def main_segment(table: Table) -> str:
    """The segment that norms are of: the embedding, or else the linear weight."""
    names: dict[str, str] = {segment.output: segment.name for segment in table.segments}
    return names.get("concat") or names["sum"]


def lengths(weights: NDArray[Any]) -> NDArray[np.float64]:
    """The L2 norm of each of [n, width] weights."""
    exact = weights.astype(np.float64)
    norms: NDArray[np.float64] = np.sqrt(np.einsum("ij,ij->i", exact, exact))
    return norms


def all_finite(records: NDArray[Any]) -> NDArray[np.bool_]:
    """Whether every float of a row is finite."""
    finite = np.ones(len(records), bool)
    for name in records.dtype.names or ():
        values = records[name]
        if values.dtype.kind == "f":
            finite &= np.isfinite(values).reshape(len(records), -1).all(1)
    return finite


def largest(
    before: list[Large], records: NDArray[Any], norms: NDArray[np.float64], names: dict[int, str]
) -> list[Large]:
    """The rows of the largest norms, among those of before and some records."""
    least = before[-1].norm if len(before) == LARGEST else -1.0
    places = np.flatnonzero(norms > least)
    places = places[np.argsort(-norms[places], kind="stable")[:LARGEST]]
    more = [
        Large(int(records["id"][at]), names[int(records["group"][at])], float(norms[at]))
        for at in places
    ]
    return sorted([*before, *more], key=lambda one: -one.norm)[:LARGEST]


def inspect_dense(checkpoint: Checkpoint) -> DenseFindings:
    """The dense weights: how many, their norm by variable, and what is not finite."""
    described = checkpoint.manifest.dense
    floats = dense_file.floats(checkpoint.folder, checkpoint.manifest)
    found = []
    at = 0
    for variable in described.variables:
        weights = floats[at : at + variable.size].astype(np.float64)
        norm = float(np.sqrt(weights @ weights))
        found.append(DenseVariable(variable.name, variable.shape, norm))
        at += variable.size
    return DenseFindings(
        weights=at,
        bytes=floats.nbytes,
        step=described.step,
        optimizer=described.optimizer,
        states=described.states,
        variables=found,
        not_finite=int((~np.isfinite(floats)).sum()),
    )


def last_figures(checkpoint: Checkpoint) -> dict[str, float]:
    """The figures of the last evaluation, by dotted names."""
    evaluations = checkpoint.manifest.metrics.evaluations
    return dict(numbers(documents.plain(evaluations[-1]))) if evaluations else {}


def numbers(values: dict[str, Any], path: str = "") -> Iterator[tuple[str, float]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from numbers(value, f"{path}{key}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield path + key, value
