"""What a conf and a sample of its data will come to, before anything is trained."""

import math
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl.data import statistics, survey
from tnctl.data.bad_rows import Skipped
from tnctl.data.features import Features, Window, counted_ids
from tnctl.data.growth import Growth, growth
from tnctl.data.reading import columns_read
from tnctl.data.sources import files_of
from tnctl.data.survey import RowCount
from tnctl.data.windows import windows
from tnctl.model.building import Model, build
from tnctl.model.layout import Layout
from tnctl.schema import Conf
from tnctl.tables import SparseTable
from tnctl.training import watch

ROWS = 100_000  # of the sample
ROWS_OF_OTHER_SPLITS = 1000
WINDOW_ROWS = 8192
# An entry of the index is 8 bytes, and an index that grows by half when it is three quarters full
# has between 4/3 and 2 entries for a row.
INDEX_BYTES = 8 * (2 - 4 / 3) / math.log(1.5)
# Each of its 64 shards takes rows in blocks of 64 KiB.
LEAST_BYTES = 64 << 16
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

    @property
    def bytes(self) -> tuple[float, float, float]:
        estimate, low, high = (max(rows * self.row_bytes, LEAST_BYTES) for rows in self.rows)
        return estimate, low, high


@dataclass
class Findings:
    """All that `tnctl check` tells."""

    sample_rows: int
    skipped_rows: int
    rows: RowCount | None  # of data.train
    slots: dict[str, SlotFindings]
    groups: dict[str, Growth]
    tables: dict[str, TableFindings]
    labels: dict[str, float]
    unused: list[str] | None
    x: list[tuple[str, int, int]]  # name, first column, columns
    linear: list[str]
    sequences: list[tuple[str, int, int]]  # name, length, width
    heads: tuple[str, ...]
    dense_weights: int
    dense_bytes: int
    warnings: list[str]


def inspect(conf: Conf, rows: int = ROWS) -> Findings:
    """Read the first `rows` rows of data.train, and the beginning of the other splits.

    Raises `UserError` or `Failure` for whatever would keep the conf from being trained.
    """
    watch.check(conf)
    total = survey.count_rows(conf, "train")
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
    slots = look_at_slots(conf, sample)
    labels = dict(
        zip(conf.data.all_labels, np.concatenate([w.labels for w in sample]).mean(0), strict=True)
    )
    groups = look_at_groups(conf, sample, measured, trained_rows(conf, total, labels))
    tables = {
        layout.name: table_findings(layout.groups, table, groups)
        for layout, table in zip(model.layout.tables, model.tables, strict=True)
    }
    layout = model.layout
    findings = Findings(
        sample_rows=taken,
        skipped_rows=skipped.rows,
        rows=total,
        slots=slots,
        groups=groups,
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
        warnings=[],
    )
    findings.warnings = warnings(conf, layout, findings, sample)
    return findings


def read_sample(
    conf: Conf, measured: statistics.Statistics, rows: int, skipped: Skipped
) -> list[Window]:
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


def ids_per_row(window: Window, number: int, cells: int) -> NDArray[np.int64]:
    """How many ids each row of a window has in slot `number`."""
    ends = window.offsets[number][::cells].astype(np.int64)
    return ends[1:] - ends[:-1]


def look_at_slots(conf: Conf, sample: list[Window]) -> dict[str, SlotFindings]:
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
    conf: Conf, sample: list[Window], measured: statistics.Statistics, total: RowCount
) -> dict[str, Growth]:
    """The growth of the ids of every share group, over all slots of it."""
    members: dict[str, list[int]] = {}
    for number, (name, slot) in enumerate(conf.slots.items()):
        members.setdefault(slot.group or name, []).append(number)
    names = list(conf.slots)
    rows = sum(one.rows for one in sample)
    found = {}
    for group, numbers in members.items():
        ids, owners = [], []
        for number in numbers:
            first = 0
            for window in sample:
                counts = ids_per_row(window, number, spread(conf, names[number]))
                ids.append(window.ids[number])
                owners.append(np.repeat(np.arange(first, first + window.rows), counts))
                first += window.rows
        first_rows, times = first_met(np.concatenate(ids), np.concatenate(owners))
        name = names[numbers[0]]
        most = counted_ids(name, conf.slots[name], measured)
        limit = math.inf if most is None else most
        grown = growth(first_rows, times, rows, total.estimate, limit)
        # The number of rows is an estimate too.
        grown = replace(
            grown,
            low=growth(first_rows, times, rows, total.low, limit).low,
            high=growth(first_rows, times, rows, total.high, limit).high,
        )
        if most is not None and conf.optimizer.updates == "all":
            grown = replace(grown, end=most, low=most, high=most)
        found[group] = grown
    return found


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
    names: dict[str, int], table: SparseTable, groups: dict[str, Growth]
) -> TableFindings:
    """The size of a table from the growth of its groups."""
    each = [groups[name] for name in names]
    rows = (
        sum(one.end for one in each),
        sum(one.low for one in each),
        sum(one.high for one in each),
    )
    return TableFindings(table.stride + INDEX_BYTES, rows)


def dense_bytes(model: Model) -> int:
    """The dense weights, their optimizer's state and their gradients."""
    return 4 * sum(model.dense.sizes) * (2 + len(model.dense.states))


def unused_columns(conf: Conf) -> list[str] | None:
    """The columns of the files of data.train that nothing reads; None when they are unknown."""
    if conf.data.prepared is not None:
        return None
    present = survey.columns_of(conf, "train")
    used = {*columns_read(conf), *conf.data.carry}
    return None if present is None else [name for name in present if name not in used]


def warnings(conf: Conf, layout: Layout, found: Findings, sample: list[Window]) -> list[str]:
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
    return said + same_files(conf) + memory_warnings(found)


def constant_numbers(conf: Conf, layout: Layout, sample: list[Window]) -> list[str]:
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
