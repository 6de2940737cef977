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
    nested_columns,
    row_split,
    statistics,
    units,
)
from tnctl.data.bad_rows import Skipped
from tnctl.data.batches import Batch
from tnctl.data.column_names import columns_read
from tnctl.data.days import Days, conf_of_day, daily, days_of, none_there
from tnctl.data.features import counted_ids
from tnctl.data.id_growth import Growth, growth
from tnctl.data.sources import RowCount, Source
from tnctl.evaluation.input_figures import INDEX_BYTES
from tnctl.model.bfloat16_advice import bfloat16_advice
from tnctl.model.building import Model, build
from tnctl.model.layout import Layout, TableLayout, most_rows
from tnctl.schema import Conf, Slot
from tnctl.tables import SparseTable
from tnctl.training import early_stopping, eviction, probable_mistakes, recalibrating
from tnctl.training.sample_ids import (
    NumberFigures,
    SampleFigures,
    admitted,
    first_met,
    ids_per_row,
    members,
    occurrences,
    read_sample,
    spread,
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

Bounds = tuple[float, float, float]  # estimate, low, high


@dataclass
class WorkerMemory:
    """The memory of each worker at the end of the data, where several train.

    `tables` are the bytes of its part of all tables, those of each server with `servers`.
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
        parts = (0.0, 0.0, 0.0) if self.servers else self.tables
        estimate, low, high = (part + self.dense_bytes + self.process_bytes for part in parts)
        return estimate, low, high

    @property
    def bytes_of_server(self) -> Bounds:
        """All of a server."""
        estimate, low, high = (part + self.dense_bytes + self.server_bytes for part in self.tables)
        return estimate, low, high

    def together(self, bound: int) -> float:
        """All workers and servers: 0 is the estimate, 1 the lower bound, 2 the upper one."""
        servers = self.servers * self.bytes_of_server[bound] if self.servers else 0.0
        return self.workers * self.bytes[bound] + servers

    @property
    def words(self) -> str:
        """How many there are, such as "3 workers and 1 servers"."""
        return f"{self.workers} workers" + (f" and {self.servers} servers" if self.servers else "")


@dataclass
class SlotFigures:
    """One slot in the sample."""

    coverage: float  # examples with an id, but that of missing values
    mean_ids: float  # of an example
    most_ids: int
    distinct: int
    group: str


@dataclass
class TableForecast:
    """One table at the end of the data."""

    row_bytes: float  # with its part of the index
    rows: tuple[float, float, float]  # estimate, low, high
    sketch_bytes: int = 0
    overcount: float = 0.0  # the most that the sketch counts too much at the end, of most ids

    @property
    def bytes(self) -> tuple[float, float, float]:
        """Of rows, index and sketch: estimate, low, high."""
        estimate, low, high = (
            max(rows * self.row_bytes, LEAST_BYTES) + self.sketch_bytes for rows in self.rows
        )
        return estimate, low, high


@dataclass
class LifeForecast:
    """The effect of the rules for the rows of a share group."""

    rules: list[str]
    ids: Growth  # distinct
    rows: Growth  # those that get a row and are within the bound
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
    row_split.check(conf.data)
    for rules in (early_stopping, recalibrating, eviction):
        rules.check(conf)
    days: Days | None = None
    if daily(conf):
        days = days_of(conf)
        if not days.there:
            raise none_there(conf)
        conf = conf_of_day(conf, days.there[0])  # in the place of every day
    conf, batch = batch_sizes.resolved(conf)
    measured = statistics.measure(conf, rows)
    model = build(conf, measured)
    skipped = Skipped("train", conf.data.bad_rows)
    sample, figures = read_sample(conf, measured, rows, skipped)
    for split in ("validation", "test"):
        if conf.data.source(split) is not None:
            read_sample(conf, measured, ROWS_OF_OTHER_SPLITS, Skipped(split, conf.data.bad_rows))
    labels = np.concatenate([batch.labels for batch in sample])
    total = total_rows(conf, len(labels), rows, days)
    means = dict(zip(conf.data.all_labels, labels.mean(0), strict=True))
    trained = trained_rows(conf.data.negatives, total, means)
    groups = look_at_groups(conf, sample, measured, trained)
    lives = look_at_lives(conf, sample, model, groups, trained)
    layout = model.layout
    findings = Forecast(
        sample_rows=len(labels),
        skipped_rows=skipped.rows,
        rows=total,
        slots=look_at_slots(conf.slots, sample, figures.empty),
        numbers=figures.numbers,
        groups=groups,
        lives=lives,
        tables={
            of_table.name: table_findings(of_table, table, groups, lives)
            for of_table, table in zip(layout.tables, model.tables, strict=True)
        },
        labels={name: float(mean) for name, mean in means.items()},
        unused=unused_columns(conf),
        x=[(name, *place) for name, place in (layout.pooled | layout.numeric_columns).items()],
        linear=[name for table in layout.tables if table.linear for name in table.slots],
        sequences=[(name, seq.length, seq.width) for name, seq in layout.sequences.items()],
        heads=model.heads,
        dense_weights=sum(model.dense.sizes),
        # Weights, the optimizer's state and gradients.
        dense_bytes=4 * sum(model.dense.sizes) * (2 + len(model.dense.states)),
        batch=batch,
        days=days,
        workers=None,
        precision=bfloat16_advice(conf.train, sum(model.dense.sizes)),
        warnings=[],
    )
    if conf.cluster.start is not None and conf.cluster.workers is not None:
        findings.workers = worker_memory(conf.cluster.workers, conf.cluster.servers, findings)
    findings.warnings = warnings(conf, layout, findings, sample, figures)
    return findings


def total_rows(conf: Conf, sampled: int, wanted: int, days: Days | None) -> RowCount | None:
    """The rows of data.train, of all days; None when nobody knows."""
    total = Source(conf, "train").count()
    if sampled < wanted:  # the sample has all rows
        total = RowCount(sampled, sampled, sampled)
    if days is None or total is None:
        return total
    number, apart = len(days.there), DAYS_DIFFER if len(days.there) > 1 else 1.0
    return RowCount(
        total.estimate * number, total.low * number / apart, total.high * number * apart
    )


def look_at_slots(
    slots: Mapping[str, Slot], sample: list[Batch], empty: Mapping[str, int]
) -> dict[str, SlotFigures]:
    """Coverage and ids of every slot; `empty` are rows that only have the id of missing values."""
    findings = {}
    for number, (name, slot) in enumerate(slots.items()):
        cells = spread(slot)
        counts = np.concatenate([ids_per_row(batch, number, cells) for batch in sample])
        findings[name] = SlotFigures(
            (int((counts > 0).sum()) - empty.get(name, 0)) / len(counts),
            float(counts.mean()),
            int(counts.max()),
            len(np.unique(np.concatenate([batch.ids[number] for batch in sample]))),
            slot.group or name,
        )
    return findings


def look_at_groups(
    conf: Conf, sample: list[Batch], measured: statistics.Statistics, total: RowCount
) -> dict[str, Growth]:
    """The growth of the ids of every share group, over all slots of it."""
    rows = sum(batch.rows for batch in sample)
    growths, names = {}, list(conf.slots)
    spreads = list(map(spread, conf.slots.values()))
    for group, numbers in members(conf.slots).items():
        name = names[numbers[0]]
        most = counted_ids(name, conf.slots[name], measured)
        first_rows, times = first_met(*occurrences(spreads, sample, numbers))
        grown = grown_to(first_rows, times, rows, total, math.inf if most is None else most)
        if most is not None and conf.optimizer.updates == "all":
            grown = replace(grown, end=most, low=most, high=most)
        growths[group] = grown
    return growths


def grown_to(
    first_rows: NDArray[np.int64],
    times: NDArray[np.int64],
    rows: int,
    total: RowCount,
    limit: float = math.inf,
) -> Growth:
    """The growth to the end of the data, whose number of rows is an estimate too."""
    return replace(
        growth(first_rows, times, rows, total.estimate, limit),
        low=growth(first_rows, times, rows, total.low, limit).low,
        high=growth(first_rows, times, rows, total.high, limit).high,
    )


def look_at_lives(
    conf: Conf, sample: list[Batch], model: Model, groups: dict[str, Growth], total: RowCount
) -> dict[str, LifeForecast]:
    """The effect of the rules for rows on every share group that has any."""
    rows = sum(batch.rows for batch in sample)
    numbers = members(conf.slots)
    spreads = list(map(spread, conf.slots.values()))
    findings = {}
    for layout, table in zip(model.layout.tables, model.tables, strict=True):
        for group, life in zip(layout.groups, layout.lives, strict=True):
            if not life.eventful:
                continue
            grown, counted = groups[group], 0.0
            if life.waits:
                first_rows, times, waited = admitted(
                    *occurrences(spreads, sample, numbers[group]), life, conf.seed
                )
                grown = grown_to(first_rows, times, rows, total, grown.high)
                counted = waited * max(total.estimate / rows, 1)
            most = most_rows(life.eviction, table.stride) or math.inf
            grown = replace(
                grown,
                end=min(grown.end, most),
                low=min(grown.low, most),
                high=min(grown.high, most),
            )
            findings[group] = LifeForecast(eviction.rules(life), groups[group], grown, counted)
    return findings


def trained_rows(negatives: float, total: RowCount | None, labels: Mapping[str, float]) -> RowCount:
    """The rows of data.train that are trained on; none beyond the sample when nobody knows."""
    if total is None:
        return RowCount(0.0, 0.0, 0.0)
    if negatives == 1:
        return total
    [rate] = labels.values()
    share = float(rate + (1 - rate) * negatives)
    return RowCount(total.estimate * share, total.low * share, total.high * share)


def table_findings(
    layout: TableLayout,
    table: SparseTable,
    groups: dict[str, Growth],
    lives: dict[str, LifeForecast],
) -> TableForecast:
    """The size of a table from the growth of its groups."""
    each = [lives[name].rows if name in lives else groups[name] for name in layout.groups]
    estimate, low, high = (sum(getattr(g, key) for g in each) for key in ("end", "low", "high"))
    sketch = table.sketch.nbytes if layout.waits else 0
    counted = sum(lives[name].counted for name in layout.groups if name in lives)
    # Cormode & Muthukrishnan 2005, theorem 1: e / width * occurrences, but for e^-lines of all ids.
    overcount = math.e * eviction.SKETCH_LINES / sketch * counted if sketch else 0.0
    return TableForecast(table.stride + INDEX_BYTES, (estimate, low, high), sketch, overcount)


def worker_memory(workers: int, servers: int, findings: Forecast) -> WorkerMemory:
    """What each of several workers needs: its part of the tables, and all dense weights."""
    estimate, low, high = (
        sum(table.bytes[bound] for table in findings.tables.values()) / (servers or workers)
        for bound in range(3)
    )
    return WorkerMemory(workers, (estimate, low, high), findings.dense_bytes, servers=servers)


def unused_columns(conf: Conf) -> list[str] | None:
    """The columns of the files of data.train that nothing reads; None when they are unknown."""
    if conf.data.prepared is not None:
        return None
    present = Source(conf, "train").columns()
    if present is None:
        return None
    used = nested_columns.columns_of([*columns_read(conf), *conf.data.carry], present)
    return [name for name in present if name not in used]


def warnings(
    conf: Conf, layout: Layout, findings: Forecast, sample: list[Batch], figures: SampleFigures
) -> list[str]:
    """What can be trained and is probably a mistake."""
    labels = np.concatenate([batch.labels for batch in sample])
    said = [
        f"slots.{name} has no id in the sample: check its column and data.missing"
        for name, slot in findings.slots.items()
        if not slot.coverage
    ]
    said += probable_mistakes.of_labels(conf, layout, sample)
    said += [
        f"numeric.{name} is the same number in every row of the sample"
        for name in probable_mistakes.constant_numbers(conf.numeric, layout, sample)
    ]
    said += probable_mistakes.of_numbers(conf.numeric, figures.numbers)
    said += probable_mistakes.of_lists(conf.data.missing, figures.texts)
    said += probable_mistakes.of_one_class(conf.data, labels, figures.labels)
    if findings.days is None:
        said += probable_mistakes.of_validation(conf.data)
        rows = trained_rows(conf.data.negatives, findings.rows, findings.labels).estimate
        said += probable_mistakes.of_steps(conf.train, rows)
    if findings.rows is None:
        said.append("the size of the files is unknown, so nothing is estimated beyond the sample")
    said += [
        f"life.sketch is small for table {name}: at the end it counts up to "
        f"{table.overcount:.1f} too much, so ids get rows too early"
        for name, table in findings.tables.items()
        if table.overcount >= 1
    ]
    if conf.cluster.start is not None and conf.cluster.workers is not None:
        said += filter(None, [units.too_few_at_start(Source(conf, "train"), conf.cluster.workers)])
    return said + probable_mistakes.same_files(conf) + memory_warnings(findings)


def memory_warnings(findings: Forecast) -> list[str]:
    """Whether the tables may not fit."""
    there, each = memory_of_machine(), findings.workers
    if each is None:
        estimate, highest = (
            sum(table.bytes[bound] for table in findings.tables.values()) + findings.dense_bytes
            for bound in (0, 2)
        )
        what = "the tables"
    else:
        estimate, highest = each.together(0), each.together(2)
        what = f"the {each.words}"
    if highest <= there:
        return []
    sure = "will" if estimate > there else "may"
    return [
        f"{what} {sure} need more than the {there / 2**30:,.1f} GiB of this machine: take a "
        "smaller embedding.width, or ids=modulo for the slots that grow most"
    ]


def memory_of_machine() -> int:
    """The bytes that this process can have."""
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(there, int(CGROUP_LIMIT.read_text()))
    except (OSError, ValueError):  # no cgroup, or one without a limit
        return there
