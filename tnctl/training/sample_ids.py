"""The ids in a sample of the data: which rows have them, and when each gets a row of a table."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl.data.bad_rows import Skipped
from tnctl.data.batches import Batch
from tnctl.data.statistics import Statistics
from tnctl.data.windows import windows
from tnctl.schema import Conf, RowLife, Slot
from tnctl.training import eviction
from tnctl.training.sample_figures import LookingFeatures, SampleFigures

WINDOW_ROWS = 8192


def read_sample(
    conf: Conf, measured: Statistics, rows: int, skipped: Skipped
) -> tuple[list[Batch], SampleFigures]:
    """The first rows of a split, each slot as a table, and their figures; negatives are kept."""
    data = replace(conf.data, negatives=1.0, window=WINDOW_ROWS)
    whole = replace(conf, data=data, train=replace(conf.train, batch_size=1))
    tables = [([name], [spread(slot)]) for name, slot in conf.slots.items()]
    features = LookingFeatures(whole, tables, measured, carry=conf.data.carry)
    sample = list(windows(whole, features, skipped.split, limit=rows, skipped=skipped))
    return sample, SampleFigures.of(features.looks)


def spread(slot: Slot) -> int:
    """The cells of a slot in an example."""
    return slot.max_length or 1 if slot.pooling == "none" else 1


def ids_per_row(window: Batch, number: int, cells: int) -> NDArray[np.int64]:
    """How many ids each row of a window has in slot `number`."""
    ends = window.offsets[number][::cells].astype(np.int64)
    return ends[1:] - ends[:-1]


def members(slots: Mapping[str, Slot]) -> dict[str, list[int]]:
    """For every share group the numbers of its slots."""
    numbers: dict[str, list[int]] = {}
    for number, (name, slot) in enumerate(slots.items()):
        numbers.setdefault(slot.group or name, []).append(number)
    return numbers


def occurrences(
    spreads: Sequence[int], sample: list[Batch], numbers: list[int]
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """All ids of the slots with these numbers, and the row of each.

    `spreads` has the cells of every slot in an example.
    """
    ids, owners = [], []
    for number in numbers:
        first = 0
        for window in sample:
            counts = ids_per_row(window, number, spreads[number])
            ids.append(window.ids[number])
            owners.append(np.repeat(np.arange(first, first + window.rows), counts))
            first += window.rows
    return np.concatenate(ids), np.concatenate(owners)


def by_id(
    ids: NDArray[np.uint64], owners: NDArray[np.int64]
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """The order of ids by value, then row; where each distinct id starts in it; how often it is."""
    order = np.lexsort((owners, ids))
    starts = np.flatnonzero(np.diff(ids[order], prepend=~ids[order[:1]]))
    return order, starts, np.diff(starts, append=len(ids))


def admitted(
    ids: NDArray[np.uint64], owners: NDArray[np.int64], life: RowLife, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """For every id that gets a row: in which row of the data, and how often it is met from it on.

    The third is a sum over all ids: the occurrences up to the one that makes the row, or all where
    none does. Chances are drawn independently of the training: an expectation.
    """
    order, starts, counts = by_id(ids, owners)
    occurrence = np.arange(len(ids)) - np.repeat(starts, counts)  # from 0, of each id
    makes_row = occurrence == life.admission.after - 1
    if life.admission.probability < 1:  # the schema allows only one of both rules
        makes_row = np.random.default_rng(seed).random(len(ids)) < life.admission.probability
        makes_row |= occurrence >= eviction.MOST_COUNTED  # more the table's counters cannot hold
    candidates = np.where(makes_row, occurrence, len(ids))
    first = np.minimum.reduceat(candidates, starts) if len(ids) else candidates
    admits = first < len(ids)
    waited = int(np.where(admits, first + 1, counts).sum())
    return owners[order][starts[admits] + first[admits]], counts[admits] - first[admits], waited


def first_met(
    ids: NDArray[np.uint64], owners: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For every distinct id the first row that has it, and how often it is met."""
    order, starts, times = by_id(ids, owners)
    return owners[order][starts], times
