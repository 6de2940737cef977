"""What a conf and a sample of its data will come to, before anything is trained."""

import math
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl.data import row_estimates, statistics
from tnctl.data.bad_rows import Skipped
from tnctl.data.batches import Batch
from tnctl.data.column_names import columns_read
from tnctl.data.days import Days, conf_of_day, daily, days_of, none_there
from tnctl.data.features import Features, counted_ids
from tnctl.data.id_growth import Growth, growth
from tnctl.data.row_estimates import RowCount
from tnctl.data.sources import columns_of, files_of
from tnctl.data.windows import windows
from tnctl.evaluation.input_figures import INDEX_BYTES
from tnctl.model.building import Model, build
from tnctl.model.layout import Layout, TableLayout, most_rows
from tnctl.schema import Conf, RowLife
from tnctl.tables import SparseTable
from tnctl.training import early_stopping, eviction

ROWS = 100_000  # of the sample
ROWS_OF_OTHER_SPLITS = 1000
WINDOW_ROWS = 8192
# Each of its 64 shards takes rows in blocks of 64 KiB.
LEAST_BYTES = 64 << 16
DAYS_DIFFER = 1.25  # in rows, on the average
CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


@dataclass
class SlotFindings:
    """One slot in the sample."""

    coverage: float  # examples with an id
    mean_ids: float  # of an example
    most_ids: int
    distinct: int
    group: str


@dataclass
class TableFindings:
    """One table at the end of the data."""

    row_bytes: float  # with its part of the index
    rows: tuple[float, float, float]  # estimate, low, high
    sketch_bytes: int = 0
    overcount: float = 0.0  # what the sketch counts too much at the end, at most, of most ids

    @property
    def bytes(self) -> tuple[float, float, float]:
        """Of rows, index and sketch: estimate, low, high."""
        estimate, low, high = (
            max(rows * self.row_bytes, LEAST_BYTES) + self.sketch_bytes for rows in self.rows
        )
        return estimate, low, high


@dataclass
class LifeFindings:
    """What the life of a share group's rows comes to."""

    rules: list[str]
    ids: Growth  # distinct
    rows: Growth  # those that get a row and are within the bound
    counted: float  # occurrences that the sketch counts until the end


@dataclass
class Findings:
    """All that `tnctl check` tells."""

    sample_rows: int
    skipped_rows: int
    rows: RowCount | None  # of data.train
    slots: dict[str, SlotFindings]
    groups: dict[str, Growth]
    lives: dict[str, LifeFindings]
    tables: dict[str, TableFindings]
    labels: dict[str, float]
    unused: list[str] | None
    x: list[tuple[str, int, int]]  # name, first column, columns
    linear: list[str]
    sequences: list[tuple[str, int, int]]  # name, length, width
    heads: tuple[str, ...]
    dense_weights: int
    dense_bytes: int
    days: Days | None
    warnings: list[str]


def inspect(conf: Conf, rows: int = ROWS) -> Findings:
    """Read the first `rows` rows of data.train, and the beginning of the other splits.

    Raises `UserError` or `Failure` for whatever would keep the conf from being trained.
    """
    early_stopping.check(conf)
    eviction.check(conf)
    days: Days | None = None
    if daily(conf):
        days = days_of(conf)
        if not days.there:
            raise none_there(conf)
        # The first stands for all of them.
        conf = conf_of_day(conf, days.there[0])
    total = row_estimates.count_rows(conf, "train")
    measured = statistics.measure(conf, rows)
    model = build(conf, measured)
    skipped = Skipped("train", conf.data.bad_rows)
    sample = read_sample(conf, measured, rows, skipped)
    for split in ("validation", "test"):
        if getattr(conf.data, split) is not None:
            read_sample(conf, measured, ROWS_OF_OTHER_SPLITS, Skipped(split, conf.data.bad_rows))
    taken = sum(one.rows for one in sample)
    if taken < rows:  # the sample is all there is
        total = RowCount(taken, taken, taken)
    if days is not None and total is not None:
        number, apart = len(days.there), DAYS_DIFFER if len(days.there) > 1 else 1.0
        total = RowCount(
            total.estimate * number, total.low * number / apart, total.high * number * apart
        )
    slots = look_at_slots(conf, sample)
    labels = dict(
        zip(conf.data.all_labels, np.concatenate([w.labels for w in sample]).mean(0), strict=True)
    )
    trained = trained_rows(conf, total, labels)
    groups = look_at_groups(conf, sample, measured, trained)
    lives = look_at_lives(conf, sample, model, groups, trained)
    tables = {
        layout.name: table_findings(layout, table, groups, lives)
        for layout, table in zip(model.layout.tables, model.tables, strict=True)
    }
    layout = model.layout
    findings = Findings(
        sample_rows=taken,
        skipped_rows=skipped.rows,
        rows=total,
        slots=slots,
        groups=groups,
        lives=lives,
        tables=tables,
        labels={name: float(rate) for name, rate in labels.items()},
        unused=unused_columns(conf),
        x=[
            (name, column, width)
            for name, (column, width) in {**layout.pooled, **layout.numeric_columns}.items()
        ],
        linear=[name for table in layout.tables if table.linear for name in table.slots],
        sequences=[(name, one.length, one.width) for name, one in layout.sequences.items()],
        heads=model.heads,
        dense_weights=sum(model.dense.sizes),
        dense_bytes=dense_bytes(model),
        days=days,
        warnings=[],
    )
    findings.warnings = warnings(conf, layout, findings, sample)
    return findings


def read_sample(
    conf: Conf, measured: statistics.Statistics, rows: int, skipped: Skipped
) -> list[Batch]:
    """The first rows of a split, each slot as a table of its own; negatives are all kept."""
    data = replace(conf.data, negatives=1.0, window=WINDOW_ROWS)
    whole = replace(conf, data=data, train=replace(conf.train, batch_size=1))
    tables = [([name], [spread(conf, name)]) for name in conf.slots]
    features = Features(whole, tables, measured, carry=conf.data.carry)
    return list(windows(whole, features, skipped.split, limit=rows, skipped=skipped))


def spread(conf: Conf, name: str) -> int:
    """The cells of a slot in an example."""
    slot = conf.slots[name]
    return slot.max_length or 1 if slot.pooling == "none" else 1


def ids_per_row(window: Batch, number: int, cells: int) -> NDArray[np.int64]:
    """How many ids each row of a window has in slot `number`."""
    ends = window.offsets[number][::cells].astype(np.int64)
    return ends[1:] - ends[:-1]


def look_at_slots(conf: Conf, sample: list[Batch]) -> dict[str, SlotFindings]:
    """Coverage and ids of every slot."""
    found = {}
    for number, (name, slot) in enumerate(conf.slots.items()):
        cells = spread(conf, name)
        counts = np.concatenate([ids_per_row(one, number, cells) for one in sample])
        distinct = len(np.unique(np.concatenate([one.ids[number] for one in sample])))
        found[name] = SlotFindings(
            float((counts > 0).mean()),
            float(counts.mean()),
            int(counts.max()),
            distinct,
            slot.group or name,
        )
    return found


def look_at_groups(
    conf: Conf, sample: list[Batch], measured: statistics.Statistics, total: RowCount
) -> dict[str, Growth]:
    """The growth of the ids of every share group, over all slots of it."""
    rows = sum(one.rows for one in sample)
    found = {}
    for group, numbers in members(conf).items():
        name = list(conf.slots)[numbers[0]]
        most = counted_ids(name, conf.slots[name], measured)
        first_rows, times = first_met(*occurrences(conf, sample, numbers))
        grown = grown_to(first_rows, times, rows, total, math.inf if most is None else most)
        if most is not None and conf.optimizer.updates == "all":
            grown = replace(grown, end=most, low=most, high=most)
        found[group] = grown
    return found


def members(conf: Conf) -> dict[str, list[int]]:
    """For every share group the numbers of its slots."""
    found: dict[str, list[int]] = {}
    for number, (name, slot) in enumerate(conf.slots.items()):
        found.setdefault(slot.group or name, []).append(number)
    return found


def occurrences(
    conf: Conf, sample: list[Batch], numbers: list[int]
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """All ids of some slots, and the row that each stands in."""
    names = list(conf.slots)
    ids, owners = [], []
    for number in numbers:
        first = 0
        for window in sample:
            counts = ids_per_row(window, number, spread(conf, names[number]))
            ids.append(window.ids[number])
            owners.append(np.repeat(np.arange(first, first + window.rows), counts))
            first += window.rows
    return np.concatenate(ids), np.concatenate(owners)


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
) -> dict[str, LifeFindings]:
    """What the rules for rows come to, of every share group that has some."""
    rows = sum(one.rows for one in sample)
    numbers = members(conf)
    found = {}
    for layout, table in zip(model.layout.tables, model.tables, strict=True):
        for group, own in zip(layout.groups, layout.lives, strict=True):
            if not own.eventful:
                continue
            grown, counted = groups[group], 0.0
            if own.waits:
                first_rows, times, waited = admitted(
                    *occurrences(conf, sample, numbers[group]), own, conf.seed
                )
                grown = grown_to(first_rows, times, rows, total, groups[group].high)
                counted = waited * max(total.estimate / rows, 1)
            most = most_rows(own.eviction, table.stride) or math.inf
            grown = replace(
                grown,
                end=min(grown.end, most),
                low=min(grown.low, most),
                high=min(grown.high, most),
            )
            found[group] = LifeFindings(eviction.rules(own), groups[group], grown, counted)
    return found


def admitted(
    ids: NDArray[np.uint64], owners: NDArray[np.int64], own: RowLife, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """For every id that gets a row: where, and how often it is met from there on.

    The third is how many occurrences were counted before. Chances are drawn anew: an expectation.
    """
    order = np.lexsort((owners, ids))
    starts = np.flatnonzero(np.diff(ids[order], prepend=~ids[order[:1]]))
    times = np.diff(starts, append=len(ids))
    number = np.arange(len(ids)) - np.repeat(starts, times)
    makes = number == own.admission.after - 1
    if own.admission.probability < 1:
        makes = np.random.default_rng(seed).random(len(ids)) < own.admission.probability
        makes |= number >= eviction.MOST_COUNTED
    # An id's occurrences up to the one that makes its row, or all of them.
    at = np.where(makes, number, len(ids))
    first = np.minimum.reduceat(at, starts) if len(ids) else at
    got = first < len(ids)
    waited = int(np.where(got, first + 1, times).sum())
    return owners[order][starts[got] + first[got]], times[got] - first[got], waited


def first_met(
    ids: NDArray[np.uint64], owners: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For every distinct id the first row that has it, and how often it is met."""
    order = np.argsort(ids, kind="stable")
    starts = np.flatnonzero(np.diff(ids[order], prepend=~ids[order[:1]]))
    times = np.diff(starts, append=len(ids))
    firsts = np.minimum.reduceat(owners[order], starts) if len(ids) else owners
    return firsts, times


def trained_rows(conf: Conf, total: RowCount | None, labels: dict[str, Any]) -> RowCount:
    """The rows of data.train that are trained on; none beyond the sample when nobody knows."""
    if total is None:
        return RowCount(0.0, 0.0, 0.0)
    if conf.data.negatives == 1:
        return total
    [rate] = labels.values()
    share = float(rate + (1 - rate) * conf.data.negatives)
    return RowCount(total.estimate * share, total.low * share, total.high * share)


def table_findings(
    layout: TableLayout,
    table: SparseTable,
    groups: dict[str, Growth],
    lives: dict[str, LifeFindings],
) -> TableFindings:
    """The size of a table from the growth of its groups."""
    each = [lives[name].rows if name in lives else groups[name] for name in layout.groups]
    rows = (
        sum(one.end for one in each),
        sum(one.low for one in each),
        sum(one.high for one in each),
    )
    sketch = table.sketch.nbytes if layout.waits else 0
    counted = sum(lives[name].counted for name in layout.groups if name in lives)
    # Cormode & Muthukrishnan 2005, theorem 1: e / width * occurrences, but for e^-lines of all ids.
    overcount = math.e * eviction.SKETCH_LINES / sketch * counted if sketch else 0.0
    return TableFindings(table.stride + INDEX_BYTES, rows, sketch, overcount)


def dense_bytes(model: Model) -> int:
    """The dense weights, their optimizer's state and their gradients."""
    return 4 * sum(model.dense.sizes) * (2 + len(model.dense.states))


def unused_columns(conf: Conf) -> list[str] | None:
    """The columns of the files of data.train that nothing reads; None when they are unknown."""
    if conf.data.prepared is not None:
        return None
    present = columns_of(conf, "train")
    used = {*columns_read(conf), *conf.data.carry}
    return None if present is None else [name for name in present if name not in used]


def warnings(conf: Conf, layout: Layout, found: Findings, sample: list[Batch]) -> list[str]:
    """What can be trained and is probably not meant."""
    said = []
    for name, slot in found.slots.items():
        if not slot.coverage:
            said.append(f"slots.{name} has no id in the sample: check its column and data.missing")
    said += [
        f"numeric.{name} is the same number in every row of the sample"
        for name in constant_numbers(conf, layout, sample)
    ]
    every = np.concatenate([one.labels for one in sample])
    for name, label in zip(found.labels, every.T, strict=True):
        if (label == label[0]).all():
            said.append(f"label {name} is {label[0]:g} in every row of the sample: is it sorted?")
    if found.rows is None:
        said.append("the size of the files is unknown, so nothing is estimated beyond the sample")
    said += [
        f"life.sketch is small for table {name}: at the end it counts up to "
        f"{table.overcount:.1f} too much, so ids get rows too early"
        for name, table in found.tables.items()
        if table.overcount >= 1
    ]
    return said + same_files(conf) + memory_warnings(found)


def constant_numbers(conf: Conf, layout: Layout, sample: list[Batch]) -> list[str]:
    """The numeric inputs that do not vary."""
    numeric = np.concatenate([one.numeric for one in sample])
    found = []
    for name, (column, width) in layout.numeric_columns.items():
        values = numeric[:, column - layout.numeric_at :][:, :width]
        if name in conf.numeric and len(values) > 1 and (values == values[0]).all():
            found.append(name)
    return found


def same_files(conf: Conf) -> list[str]:
    """Splits that read a file of data.train."""
    if conf.data.format == "generated" or conf.data.prepared is not None:
        return []
    trained = set(files_of(conf, "train"))
    said = []
    for split in ("validation", "test"):
        if getattr(conf.data, split) is not None:
            both = sorted(trained & set(files_of(conf, split)))
            said += [f"data.{split} reads {url}, which is trained on" for url in both[:1]]
    return said


def memory_warnings(found: Findings) -> list[str]:
    """Whether the tables may not fit."""
    there = memory_of_machine()
    estimate = sum(table.bytes[0] for table in found.tables.values()) + found.dense_bytes
    highest = sum(table.bytes[2] for table in found.tables.values()) + found.dense_bytes
    if highest <= there:
        return []
    sure = "will" if estimate > there else "may"
    return [
        f"the tables {sure} need more than the {there / 2**30:,.1f} GiB of this machine: take a "
        "smaller embedding.width, or ids=modulo for the slots that grow most"
    ]


def memory_of_machine() -> int:
    """The bytes that this process can have."""
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(there, int(CGROUP_LIMIT.read_text()))
    except (OSError, ValueError):  # no cgroup, or one without a limit
        return there
