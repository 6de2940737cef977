"""`tnctl check`: ids, memory and probable mistakes, estimated from a sample before training."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tnctl.data import (
    batch_sizes,
    column_names,
    statistics,
)
from tnctl.data.bad_rows import Skipped
from tnctl.data.column_names import columns_read
from tnctl.data.days import Days, conf_of_day, daily, days_of, none_there
from tnctl.data.features import counted_ids
from tnctl.data.sources import RowCount, Source
from tnctl.data.statistics import Growth, growth
from tnctl.evaluation.importance import INDEX_BYTES
from tnctl.model.building import Model, bfloat16_advice, build
from tnctl.model.layout import Layout, TableLayout, most_rows
from tnctl.schema import Cluster, Conf, Slot
from tnctl.tables import SparseTable
from tnctl.training import plan, row_life, row_vectors
from tnctl.training.check import mistakes
from tnctl.training.check.sample import (
    EncodedSample,
    NumberFigures,
    admitted,
    first_rows,
    read_sample,
)

ROWS = 100_000  # of the sample
ROWS_OF_OTHER_SPLITS = 1000
# Each of its 64 shards takes rows in blocks of 64 KiB.
LEAST_BYTES = 64 << 16
DAYS_DIFFER = 1.25  # in rows, on the average
CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


# Of a process beside its model: 605 MiB after its imports (TensorFlow 2.21), and data on its way.
PROCESS_BYTES = 700 << 20
SERVER_BYTES = 200 << 20  # of a dedicated server, which does not import TensorFlow

Bounds = NDArray[np.float64]  # [3]: estimate, low, high
Occurrences = tuple[NDArray[np.int64], NDArray[np.int64]]  # the first row and count of each id


@dataclass
class WorkerMemory:
    """The memory of each worker at the end of the data, where several train.

    `tables` are the bytes of its part of all tables, with `servers` of each server's part.
    """

    workers: int
    tables: Bounds
    dense_bytes: int
    process_bytes: int = PROCESS_BYTES
    servers: int = 0
    server_bytes: int = SERVER_BYTES

    @property
    def bytes(self) -> Bounds:
        """All of a worker."""
        return self.tables * (not self.servers) + self.dense_bytes + self.process_bytes

    @property
    def bytes_of_server(self) -> Bounds:
        """All of a server."""
        return self.tables + self.dense_bytes + self.server_bytes

    @property
    def together(self) -> Bounds:
        """All workers and servers."""
        return self.workers * self.bytes + self.servers * self.bytes_of_server

    @property
    def words(self) -> str:
        """How many there are, such as "3 workers and 1 servers"."""
        return f"{self.workers} workers" + (f" and {self.servers} servers" if self.servers else "")


@dataclass
class SlotFigures:
    """One slot in the sample."""

    coverage: float  # examples with an id other than the one of missing values
    mean_ids: float  # of an example
    most_ids: int
    distinct: int
    group: str


@dataclass
class TableForecast:
    """One table at the end of the data."""

    row_bytes: float  # with its part of the index
    rows: Bounds
    sketch_bytes: int = 0
    overcount: float = 0.0  # the most that the sketch counts too much at the end, of most ids

    @property
    def bytes(self) -> Bounds:
        """Of rows, index and sketch."""
        return np.maximum(self.rows * self.row_bytes, LEAST_BYTES) + self.sketch_bytes


@dataclass
class LifeForecast:
    """The effect of the rules for the rows of a share group."""

    rules: list[str]
    ids: Bounds  # distinct
    rows: Bounds  # those that get a row and are within the bound
    counted: float  # occurrences that the sketch counts until the end


@dataclass
class Forecast:
    """All that `tnctl check` reports."""

    sample_rows: int
    skipped_rows: int
    rows: RowCount | None  # of data.train
    slots: dict[str, SlotFigures]
    numbers: dict[str, NumberFigures]
    groups: dict[str, Growth]
    lives: dict[str, LifeForecast]
    tables: dict[str, TableForecast]
    labels: dict[str, float]
    unused: list[str] | None
    x: list[tuple[str, int, int]]  # name, first column, columns
    linear: list[str]
    sequences: list[tuple[str, int, int]]  # name, length, width
    heads: tuple[str, ...]
    dense_weights: int
    dense_bytes: int
    batch: batch_sizes.Choice | None  # None when the conf gives train.batch_size
    days: Days | None
    workers: WorkerMemory | None  # None without a cluster
    precision: str | None  # a line, where bfloat16 would be faster
    warnings: list[str]


def inspect(conf: Conf, rows: int = ROWS) -> Forecast:
    """Read the first `rows` rows of data.train, and the beginning of the other splits.

    Raises `UserError` or `Failure` for whatever would keep the conf from being trained.
    """
    plan.check_rules(conf)
    days: Days | None = None
    if daily(conf):
        days = days_of(conf)
        if not days.there:
            raise none_there(conf)
        conf = conf_of_day(conf, days.there[0])  # which stands for every day
    conf, batch = batch_sizes.resolved(conf)
    measured = statistics.measure(conf, rows)
    model = build(conf, measured)
    row_vectors.insert(model)
    skipped = Skipped("train", conf.data.bad_rows)
    sample = read_sample(conf, measured, rows, skipped)
    for split in ("validation", "test"):
        if conf.data.source(split) is not None:
            read_sample(conf, measured, ROWS_OF_OTHER_SPLITS, Skipped(split, conf.data.bad_rows))
    total = total_rows(conf, sample.batch.rows, rows, days)
    labels = dict(zip(conf.data.all_labels, sample.batch.labels.mean(0).tolist(), strict=True))
    trained = trained_rows(conf.data.negatives, total, labels)
    groups = growth_of_groups(conf, sample, measured, trained)
    lives = lives_of_groups(conf, sample, model, groups, trained)
    layout, dense = model.layout, model.dense
    weights = sum(dense.sizes)
    dense_bytes = 4 * weights * (2 + len(dense.states))  # the optimizer's state, and gradients
    tables = {
        of_table.name: table_forecast(of_table, table, groups, lives)
        for of_table, table in zip(layout.tables, model.tables, strict=True)
    }
    findings = Forecast(
        sample_rows=sample.batch.rows,
        skipped_rows=skipped.rows,
        rows=total,
        slots={name: slot_figures(name, slot, sample) for name, slot in conf.slots.items()},
        numbers=sample.numbers,
        groups=groups,
        lives=lives,
        tables=tables,
        labels=labels,
        unused=unused_columns(conf),
        x=[(name, *columns) for name, columns in (layout.pooled | layout.numeric_columns).items()],
        linear=[name for table in layout.tables if table.linear for name in table.slots],
        sequences=[(name, seq.length, seq.width) for name, seq in layout.sequences.items()],
        heads=model.heads,
        dense_weights=weights,
        dense_bytes=dense_bytes,
        batch=batch,
        days=days,
        workers=memory_of_workers(conf.cluster, tables, dense_bytes),
        precision=bfloat16_advice(conf.train, weights),
        warnings=[],
    )
    findings.warnings = warnings(conf, layout, findings, sample, trained)
    findings.warnings += mistakes.of_vectors(model, sample)
    return findings


def total_rows(conf: Conf, sampled: int, wanted: int, days: Days | None) -> RowCount | None:
    """The rows of data.train, of all days; None when nobody knows."""
    total = Source(conf, "train").count()
    if sampled < wanted:  # the sample has all rows
        total = RowCount(sampled, sampled, sampled)
    if days is None or total is None:
        return total
    return scaled(total, len(days.there), DAYS_DIFFER if len(days.there) > 1 else 1.0)


def scaled(rows: RowCount, factor: float, apart: float = 1.0) -> RowCount:
    """A multiple of the rows, with bounds that are further apart."""
    return RowCount(rows.estimate * factor, rows.low * factor / apart, rows.high * factor * apart)


def slot_figures(name: str, slot: Slot, sample: EncodedSample) -> SlotFigures:
    """Coverage and ids of a slot."""
    counts = sample.ids_per_row(name)
    return SlotFigures(
        (int((counts > 0).sum()) - sample.empty.get(name, 0)) / len(counts),
        float(counts.mean()),
        int(counts.max()),
        len(np.unique(sample.occurrences([name])[0])),
        slot.group or name,
    )


def members(slots: Mapping[str, Slot]) -> dict[str, list[str]]:
    """For every share group its slots."""
    names: dict[str, list[str]] = {}
    for name, slot in slots.items():
        names.setdefault(slot.group or name, []).append(name)
    return names


def growth_of_groups(
    conf: Conf, sample: EncodedSample, measured: statistics.Statistics, total: RowCount
) -> dict[str, Growth]:
    """The growth of the ids of every share group, over all slots of it."""
    growths = {}
    for group, names in members(conf.slots).items():
        most = counted_ids(names[0], conf.slots[names[0]], measured)
        ids = first_rows(*sample.occurrences(names))
        grown = grown_to(ids, sample.batch.rows, total, math.inf if most is None else most)
        if most is not None and conf.optimizer.updates == "all":
            grown = replace(grown, end=most, low=most, high=most)
        growths[group] = grown
    return growths


def grown_to(ids: Occurrences, rows: int, total: RowCount, limit: float = math.inf) -> Growth:
    """The growth to the end of the data, whose number of rows is an estimate too."""
    at_end, low, high = (growth(*ids, rows, count, limit) for count in total)
    return replace(at_end, low=low.low, high=high.high)


def at_end(grown: Growth) -> Bounds:
    """The distinct ids at the end of the data."""
    return np.array([grown.end, grown.low, grown.high])


def lives_of_groups(
    conf: Conf, sample: EncodedSample, model: Model, groups: dict[str, Growth], total: RowCount
) -> dict[str, LifeForecast]:
    """The effect of the rules for rows on every share group that has any."""
    rows, slots = sample.batch.rows, members(conf.slots)
    findings = {}
    for layout, table in zip(model.layout.tables, model.tables, strict=True):
        for group, life in zip(layout.groups, layout.lives, strict=True):
            if not life.eventful:
                continue
            grown, counted = groups[group], 0.0
            if life.waits:
                *ids, waited = admitted(*sample.occurrences(slots[group]), life, conf.seed)
                grown = grown_to((ids[0], ids[1]), rows, total, grown.high)
                counted = waited * max(total.estimate / rows, 1)
            within = most_rows(life.eviction, table.stride) or math.inf
            findings[group] = LifeForecast(
                row_life.rules(life),
                at_end(groups[group]),
                np.minimum(at_end(grown), within),
                counted,
            )
    return findings


def trained_rows(negatives: float, total: RowCount | None, labels: Mapping[str, float]) -> RowCount:
    """The rows of data.train that are trained on; none beyond the sample when nobody knows."""
    if total is None:
        return RowCount(0.0, 0.0, 0.0)
    if negatives == 1:
        return total
    [rate] = labels.values()
    return scaled(total, rate + (1 - rate) * negatives)


def table_forecast(
    layout: TableLayout,
    table: SparseTable,
    groups: dict[str, Growth],
    lives: dict[str, LifeForecast],
) -> TableForecast:
    """The size of a table from the growth of its groups."""
    rows = np.zeros(3)
    for name, number in layout.groups.items():
        trained = lives[name].rows if name in lives else at_end(groups[name])
        rows += np.maximum(trained, table.group_rows(number))  # that has those with vectors
    sketch = table.sketch.nbytes if layout.waits else 0
    counted = sum(lives[name].counted for name in layout.groups if name in lives)
    # Cormode & Muthukrishnan 2005, theorem 1: e / width * occurrences, but for e^-lines of all ids.
    overcount = math.e * row_life.SKETCH_LINES / sketch * counted if sketch else 0.0
    return TableForecast(table.stride + INDEX_BYTES, rows, sketch, overcount)


def bytes_of_tables(tables: Mapping[str, TableForecast]) -> Bounds:
    """The memory of all tables."""
    return sum((table.bytes for table in tables.values()), np.zeros(3))


def memory_of_workers(
    cluster: Cluster, tables: Mapping[str, TableForecast], dense_bytes: int
) -> WorkerMemory | None:
    """The memory of each of several workers; None of one process."""
    if cluster.start is None or cluster.workers is None:
        return None
    part = bytes_of_tables(tables) / (cluster.servers or cluster.workers)
    return WorkerMemory(cluster.workers, part, dense_bytes, servers=cluster.servers)


def unused_columns(conf: Conf) -> list[str] | None:
    """The columns of the files of data.train that nothing reads; None when they are unknown."""
    present = None if conf.data.prepared is not None else Source(conf, "train").columns()
    if present is None:
        return None
    used = column_names.columns_of([*columns_read(conf), *conf.data.carry], present)
    return [name for name in present if name not in used]


def warnings(
    conf: Conf, layout: Layout, findings: Forecast, sample: EncodedSample, trained: RowCount
) -> list[str]:
    """What can be trained and is probably a mistake."""
    said = [
        f"slots.{name} has no id in the sample: check its column and data.missing"
        for name, slot in findings.slots.items()
        if not slot.coverage
    ]
    said += mistakes.of_labels(conf, layout, sample)
    said += mistakes.of_numbers(conf.numeric, layout, sample)
    said += mistakes.of_lists(conf.data.missing, sample.texts)
    said += mistakes.of_one_class(conf.data, sample)
    if findings.days is None:
        said += mistakes.of_validation(conf.data)
        said += mistakes.of_steps(conf.train, trained.estimate)
    if findings.rows is None:
        said.append("the size of the files is unknown, so nothing is estimated beyond the sample")
    said += [
        f"life.sketch is small for table {name}: at the end it counts up to "
        f"{table.overcount:.1f} too much, so ids get rows too early"
        for name, table in findings.tables.items()
        if table.overcount >= 1
    ]
    what, needed = "the tables", bytes_of_tables(findings.tables) + findings.dense_bytes
    if (each := findings.workers) is not None:
        what, needed = f"the {each.words}", each.together
        said += filter(None, [Source(conf, "train").too_few(each.workers)])
    said += mistakes.same_files(conf)
    estimate, _, highest = needed
    if highest > (there := memory_of_machine()):
        said.append(
            f"{what} {'will' if estimate > there else 'may'} need more than the "
            f"{there / 2**30:,.1f} GiB of this machine: take a smaller embedding.width, or "
            "ids=modulo for the slots that grow most"
        )
    return said


def memory_of_machine() -> int:
    """The bytes that this process can have."""
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(there, int(CGROUP_LIMIT.read_text()))
    except (OSError, ValueError):  # no cgroup, or one without a limit
        return there
