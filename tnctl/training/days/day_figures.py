"""What a day's inputs look like: a few figures of each, counted in one pass over its data.

Checkpoints keep them, and the gate compares the figures of a day with earlier days.

Each figure has a design effect: how much more it varies than with as many independent examples.
Examples of a session have one user, similar items and similar labels. Of n examples in such
clusters, a share varies as one of n / d independent examples does: d is its design effect (Kish,
"Survey Sampling", 1965). It is estimated from the sums of clusters that are nearly independent of
each other, in two ways, of which the larger is taken:

- Contiguous blocks of the file's order, of several lengths: the estimate grows with the length
  until a block is longer than what is correlated (Flyvbjerg & Petersen, "Error estimates on
  averages of correlated data", 1989).
- With data.group, all examples of a group together, and groups at random in 64 clusters: random
  groups (Wolter, "Introduction to Variance Estimation", 2007, chapter 2). They find what is
  correlated wherever it stands in the file.

Of a histogram it is the mean of the generalised design effects, by which a chi-square statistic of
clustered data is too large (Rao & Scott, "The analysis of categorical data from complex sample
surveys", 1981).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl.data.batches import Batch, joined
from tnctl.data.day_records import OfDay, OfInput
from tnctl.evaluation.split_scoring import features_of
from tnctl.model.building import Model
from tnctl.model.layout import TableLayout
from tnctl.tables.columns import mix64

BUCKETS = 64  # of the hashes of ids
DISTINCT_KEPT = 4096  # smallest hashes: a standard error of 1 / sqrt(4096), 1.6 %
REPEATS_KEPT = 131_072
SAMPLE_ROWS = 16_384  # of the numbers, for deciles
ROWS_AT_A_TIME = 65_536
LOOKED_UP = 16_384  # occurrences of a slot at a time: whether their ids have a row
FEWEST = 30  # examples or ids that must be expected before their absence is a finding
LABEL = "label"  # prefix of the name of a label that is counted as a number
COVERAGE, LENGTH = "coverage of", "length of"  # prefixes of the name of an input in the clusters
MOST_BLOCKS = 256
FEWEST_BLOCKS = 16
GROUP_BITS = 6  # 64 random groups

Ids = NDArray[np.uint64]  # or their hashes
Integers = NDArray[np.int64]
Sums = NDArray[np.float64]  # [clusters, buckets]
# Which of n keys (groups uint16 [n], ids uint64 [n]) of a table, by its index, have a row: bool.
Contains = Callable[[int, NDArray[np.uint16], Ids], NDArray[np.bool_]]


class DistinctEstimate:
    """How many distinct values there are, from the smallest of their hashes (Bar-Yossef 2002)."""

    def __init__(self) -> None:
        self._smallest, self._limit = np.empty(0, np.uint64), np.uint64(2**64 - 1)

    def add(self, hashes: Ids) -> None:
        """Add hashes, uint64 [n]."""
        smallest = np.union1d(self._smallest, hashes[hashes <= self._limit])
        if len(smallest) > DISTINCT_KEPT:
            self._limit = smallest[DISTINCT_KEPT - 1]
        self._smallest = smallest[:DISTINCT_KEPT]

    def estimate(self) -> float:
        """Exact up to DISTINCT_KEPT values."""
        if len(self._smallest) < DISTINCT_KEPT:
            return float(len(self._smallest))
        return (DISTINCT_KEPT - 1) / ((float(self._limit) + 1) / 2.0**64)


class Repeats:
    """Of a day's second half, the share of occurrences whose id came in its first half.

    An estimate, from one day alone, of the share of known ids in a day when the day before is
    trained. Only a share of the ids is considered, chosen by their hash, so that at most
    REPEATS_KEPT occurrences are kept.
    """

    def __init__(self) -> None:
        self._kept, self._limit = np.empty(0, np.uint64), np.uint64(2**64 - 1)

    def add(self, hashes: Ids) -> None:
        """Add hashes, uint64 [n], in the order of the data."""
        self._kept = np.concatenate([self._kept, hashes[hashes <= self._limit]])
        while len(self._kept) > REPEATS_KEPT:
            self._limit //= np.uint64(2)
            self._kept = self._kept[self._kept <= self._limit]

    def share(self) -> float | None:
        """The share; None where too few ids are considered."""
        first, second = np.split(self._kept, [len(self._kept) // 2])
        return float(np.isin(second, first).mean()) if len(first) >= FEWEST else None


class SlotCounts:
    """The counts of a slot."""

    present = occurrences = looked_up = known = 0
    has_values = False
    """whether there is any id but the id of missing values"""

    def __init__(self, repeats: Repeats | None, missing: np.uint64 | None) -> None:
        """`missing` is the id of missing values, if the slot has one."""
        self.repeats, self.missing = repeats, missing
        self.histogram, self.distinct = np.zeros(BUCKETS, np.int64), DistinctEstimate()

    def add(self, ids: Ids, present: int) -> Integers:
        """Count ids; returns the bucket of each."""
        self.present += present
        self.occurrences += len(ids)
        values = ids if self.missing is None else ids[ids != self.missing]
        self.has_values = self.has_values or values.size > 0
        hashes = mix64(ids)
        buckets = (hashes >> np.uint64(58)).view(np.int64)
        self.histogram += np.bincount(buckets, minlength=BUCKETS)
        self.distinct.add(hashes)
        if self.repeats is not None:
            self.repeats.add(hashes)
        return buckets


class DayFigures:
    """Integers the figures of a day, batch by batch; the model must not change meanwhile.

    `edges` has the deciles of numeric inputs, of the first day; those that it lacks are measured,
    on 16,384 rows chosen by the hash of their row number.
    """

    def __init__(
        self, model: Model, edges: dict[str, list[float]], contains: Contains | None
    ) -> None:
        """`contains` is None on a first day, when no id has a row."""
        self._edges, self._contains = edges, contains
        data = model.conf.data
        # Labels that are not known yet are not compared.
        self._layout, self._labels = model.layout, data.prompt_labels
        columns = [n for n, name in enumerate(data.all_labels) if name in self._labels]
        self._known: Any = columns if data.late_labels else slice(None)
        self._squared = model.conf.train.loss.name == "mse"
        missing = features_of(model.conf, model).missing_ids
        self._slots = {
            name: SlotCounts(
                # Ids that wait for admission have no row on the next day either.
                Repeats() if contains is None and not table.waits else None,
                missing.get(name),
            )
            for table in model.layout.tables
            for name in table.slots
        }
        self._numeric = {
            name: slice(column - model.layout.numeric_at, column - model.layout.numeric_at + width)
            for name, (column, width) in model.layout.numeric_columns.items()
        }
        width = sum(model.layout.numeric.values())
        if self._squared:
            # Labels that are no classes are counted as numeric inputs are.
            for column, name in enumerate(self._labels, width):
                self._numeric[f"{LABEL} {name}"] = slice(column, column + 1)
            width += len(self._labels)
        self._counts: dict[str, Integers] = {}
        self._present = dict.fromkeys(self._numeric, 0)
        self._totals = np.zeros(len(self._labels))
        self._sampled = max(min(SAMPLE_ROWS, (1 << 22) // max(width, 1)), 1)
        self._sample = np.empty((0, width), np.float32)
        self._sample_keys = np.empty(0, np.uint64)
        self._waiting: list[Batch] = []
        self._clusters = Clusters()
        self.examples = 0

    def add(self, batch: Batch) -> None:
        """Count one batch."""
        self._waiting.append(batch)
        if sum(batch.rows for batch in self._waiting) >= ROWS_AT_A_TIME:
            self._count()

    def _count(self) -> None:
        if not self._waiting:
            return
        window = joined(self._waiting)
        self._waiting = []
        self._clusters.begin(window.rows, window.group)
        parts = zip(self._layout.tables, window.ids, window.offsets, strict=True)
        for index, (layout, ids, offsets) in enumerate(parts):
            self._count_table(index, layout, by_slot(layout, ids, offsets, window.rows))
        numbers, known = window.numeric, window.labels[:, self._known]
        if self._squared:
            numbers = np.concatenate([numbers, known], axis=1)
        else:
            for name, labels in zip(self._labels, known.T, strict=True):
                rates = np.clip(labels, 0, 1).astype(np.float64)
                self._clusters.add(f"{LABEL} {name}", rates, 1 - rates)
        if self._numeric:
            self._count_numbers(numbers)
        self._totals += known.sum(axis=0, dtype=np.float64)
        self.examples += window.rows

    def _count_table(
        self, index: int, layout: TableLayout, slots: Iterable[tuple[str, Ids, Integers]]
    ) -> None:
        samples = []
        for name, ids, lengths in slots:
            buckets = self._slots[name].add(ids, int(np.count_nonzero(lengths)))
            self._clusters.add(f"{COVERAGE} {name}", lengths > 0, lengths == 0)
            self._clusters.add(f"{LENGTH} {name}", lengths, lengths > 0)
            self._clusters.add_counts(name, BUCKETS, lengths, buckets)
            samples.append(ids[:: max(-(-len(ids) // LOOKED_UP), 1)])
        if self._contains is None:
            return
        sizes = [len(sample) for sample in samples]
        groups = np.repeat(np.array(layout.group_of, np.uint16), sizes)
        has_row = self._contains(index, groups, np.concatenate(samples))
        of_slots = np.split(has_row, np.cumsum(sizes)[:-1])
        for name, of_sample in zip(layout.slots, of_slots, strict=True):
            self._slots[name].known += int(np.count_nonzero(of_sample))
            self._slots[name].looked_up += len(of_sample)

    def _count_numbers(self, numbers: NDArray[np.float32]) -> None:
        for name, columns in self._numeric.items():
            values = numbers[:, columns]
            is_there = np.asarray(values.any(axis=1))
            self._present[name] += int(is_there.sum())
            self._clusters.add(f"{COVERAGE} {name}", is_there, ~is_there)
            if name in self._layout.indicators:
                # At most BUCKETS counts, of many one-hot columns too.
                ids = values.sum(axis=0, dtype=np.float64)
                width = min(len(ids), BUCKETS)
                counts = np.bincount(np.arange(len(ids)) % width, ids, width).astype(np.int64)
                buckets = np.nonzero(values)[1] % width
                lengths = np.count_nonzero(values, axis=1)
            elif name in self._edges:
                buckets = _deciles(values, self._edges[name])
                counts = np.bincount(buckets, minlength=len(self._edges[name]) + 1)
                lengths = np.full(len(values), values.shape[1])
            else:
                continue
            self._clusters.add_counts(name, len(counts), lengths, buckets)
            self._counts[name] = self._counts.get(name, 0) + counts
        if len(self._counts) == len(self._numeric):
            return
        rows = np.arange(self.examples, self.examples + len(numbers), dtype=np.uint64)
        keys = np.concatenate([self._sample_keys, mix64(rows)])
        kept = np.argsort(keys, kind="stable")[: self._sampled]
        self._sample = np.concatenate([self._sample, numbers])[kept]
        self._sample_keys = keys[kept]

    def result(self) -> OfDay:
        """The figures of all batches so far."""
        self._count()
        inputs = {name: self._of_slot(name, counted) for name, counted in self._slots.items()}
        inputs |= {name: self._of_numbers(name, columns) for name, columns in self._numeric.items()}
        means = dict(
            zip(self._labels, (self._totals / max(self.examples, 1)).tolist(), strict=True)
        )
        labels = [] if self._squared else self._labels
        effects = {name: self._clusters.effect(f"{LABEL} {name}") for name in labels}
        return OfDay(self.examples, means, inputs, effects)

    def _of_slot(self, name: str, counted: SlotCounts) -> OfInput:
        known = None if counted.repeats is None else counted.repeats.share()
        if counted.looked_up:
            known = counted.known / counted.looked_up
        return OfInput(
            coverage=counted.present / max(self.examples, 1),
            occurrences=counted.occurrences,
            length=counted.occurrences / max(counted.present, 1) if counted.has_values else 0.0,
            distinct=counted.distinct.estimate(),
            known=known,
            histogram=counted.histogram.tolist(),
            coverage_effect=self._clusters.effect(f"{COVERAGE} {name}"),
            length_effect=self._clusters.effect(f"{LENGTH} {name}", length_effect),
            design_effect=self._clusters.effect(name),
        )

    def _of_numbers(self, name: str, columns: slice) -> OfInput:
        edges, counts = self._edges.get(name), self._counts.get(name)
        if counts is None:
            values = self._sample[:, columns].astype(np.float64)
            deciles = np.quantile(values, np.arange(1, 10) / 10) if values.size else np.zeros(1)
            edges = np.unique(deciles).tolist()
            counts = np.bincount(_deciles(values, edges), minlength=len(edges) + 1)
        occurrences, present = int(counts.sum()), self._present[name]
        return OfInput(
            coverage=present / max(self.examples, 1),
            occurrences=occurrences,
            length=occurrences / max(present, 1) if edges is None else 1.0,
            distinct=None,
            known=None,
            histogram=counts.tolist(),
            edges=edges,
            coverage_effect=self._clusters.effect(f"{COVERAGE} {name}"),
            design_effect=self._clusters.effect(name),
        )


def by_slot(
    layout: TableLayout, ids: Ids, offsets: NDArray[np.uint32], rows: int
) -> Iterator[tuple[str, Ids, Integers]]:
    """Each slot of a table with its ids, uint64 [n], and how many each example has, [rows]."""
    cells = np.diff(offsets).reshape(rows, -1)
    ends = np.cumsum(layout.spreads)[:-1]
    lengths = [of_slot.sum(axis=1, dtype=np.int64) for of_slot in np.split(cells, ends, axis=1)]
    if len(ids) == cells.size and (cells == 1).all():
        whole = np.split(ids.reshape(rows, -1), ends, axis=1)
        parts: Iterable[Ids] = (of_slot.ravel() for of_slot in whole)
    else:
        slots = np.repeat(np.arange(len(lengths), dtype=np.uint16), layout.spreads)
        # A stable sort of uint16 is a radix sort.
        order = np.argsort(np.repeat(np.tile(slots, rows), cells.ravel()), kind="stable")
        sizes = [of_slot.sum() for of_slot in lengths]
        parts = np.split(ids[order], np.cumsum(sizes)[:-1])
    yield from zip(layout.slots, parts, lengths, strict=True)


def _deciles(values: NDArray[Any], edges: Sequence[float]) -> Integers:
    return np.searchsorted(np.asarray(edges, np.float64), values.ravel().astype(np.float64))


def in_pairs(sums: Sums) -> Sums:
    """The sums of each two clusters that follow each other, of an even number."""
    return sums[0::2] + sums[1::2]


def histogram_effect(sums: Sums) -> float:
    """The mean generalised design effect of a histogram, from the counts of its clusters.

    With k buckets of the shares p it is the mean over k - 1 of n var(p_i) / p_i. 0 when fewer than
    FEWEST_BLOCKS clusters or 2 buckets have any.
    """
    sums = sums[:, sums.any(axis=0)]
    sums = sums[sums.any(axis=1)]
    clusters, buckets = sums.shape
    if clusters < FEWEST_BLOCKS or buckets < 2:
        return 0.0
    totals = sums.sum(axis=0)
    expected = sums.sum(axis=1, keepdims=True) * (totals / totals.sum())
    squares = ((sums - expected) ** 2).sum(axis=0) * clusters / (clusters - 1)
    return float((squares / totals).sum() / (buckets - 1))


def length_effect(sums: Sums) -> float:
    """The design effect of a mean length, from the ids and the examples with any of each cluster.

    It is n var(length) / length^2 of n ids, which vary in number as independent ones do when
    it is 1. 0 when fewer than FEWEST_BLOCKS clusters have any.
    """
    sums = sums[sums.any(axis=1)]
    clusters = len(sums)
    if clusters < FEWEST_BLOCKS:
        return 0.0
    ids, examples = sums.sum(axis=0)
    residuals = sums[:, 0] - ids / examples * sums[:, 1]
    return float((residuals**2).sum() * clusters / (clusters - 1) / ids)


class Clusters:
    """Sums of clusters of a day's examples, by name, added up window by window.

    Memory is bounded: blocks double in length as the day grows.
    """

    def __init__(self) -> None:
        self._examples = 0
        self._length = 1  # of a block, in examples
        self._window: list[Integers] = []  # of its examples: the block, the random group
        self._sums: dict[str, tuple[Sums, Sums]] = {}  # of blocks, of random groups

    def begin(self, rows: int, groups: Ids | None) -> None:
        """Begin a window of `rows` examples; `groups` [rows] are the hashes of data.group.

        A group of more than a quarter of the window is none (of missing values, all are one).
        """
        while self._examples + rows > MOST_BLOCKS * self._length:
            self._length *= 2
            for blocks, _ in self._sums.values():
                blocks[: MOST_BLOCKS // 2] = in_pairs(blocks)
                blocks[MOST_BLOCKS // 2 :] = 0
        numbers = np.arange(self._examples, self._examples + rows)
        self._window = [numbers // self._length]
        if groups is not None:
            _, group_of, sizes = np.unique(groups, return_inverse=True, return_counts=True)
            keys = np.where(4 * sizes[group_of] > rows, numbers.astype(np.uint64), groups)
            self._window.append((mix64(keys) >> np.uint64(64 - GROUP_BITS)).astype(np.int64))
        self._examples += rows

    def add(self, name: str, first: NDArray[Any], second: NDArray[Any]) -> None:
        """Add two values for each example of the window, [rows] each.

        They are a share and the rest, or how many ids an example has and whether it has any.
        """
        for sums, clusters in self._of(name, 2):
            sums[:, 0] += np.bincount(clusters, first, len(sums))
            sums[:, 1] += np.bincount(clusters, second, len(sums))

    def add_counts(self, name: str, width: int, counts: Integers, buckets: Integers) -> None:
        """Count occurrences in a histogram of `width` buckets.

        `counts` [rows] is how many each example of the window has, `buckets` [their sum] where each
        of them belongs, example after example.
        """
        for sums, clusters in self._of(name, width):
            keys = np.repeat(clusters, counts) * width + buckets
            sums += np.bincount(keys, minlength=sums.size).reshape(sums.shape)

    def effect(self, name: str, of: Callable[[Sums], float] = histogram_effect) -> float:
        """The design effect of a histogram or share, 1 or more; 1 where nothing was added.

        With `length_effect`, of the mean length of examples that have any id.
        """
        if name not in self._sums:
            return 1.0
        blocks, groups = self._sums[name]
        effects = [1.0, of(groups)]
        while len(blocks) >= FEWEST_BLOCKS:
            effects.append(of(blocks))
            blocks = in_pairs(blocks)
        return round(max(effects), 3)

    def _of(self, name: str, width: int) -> Iterator[tuple[Sums, Integers]]:
        if name not in self._sums:
            groups = np.zeros((1 << GROUP_BITS, width))
            self._sums[name] = np.zeros((MOST_BLOCKS, width)), groups
        return zip(self._sums[name], self._window, strict=False)
