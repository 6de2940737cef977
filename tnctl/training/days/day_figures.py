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

from collections.abc import Callable, Iterator, Sequence
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

Sums = NDArray[np.float64]  # [clusters, places]
# Which of n keys (groups uint16 [n], ids uint64 [n]) of a table, by its position, have a row: bool.
Contains = Callable[[int, NDArray[np.uint16], NDArray[np.uint64]], NDArray[np.bool_]]


class Distinct:
    """How many distinct values there are, from the smallest of their hashes (Bar-Yossef 2002)."""

    def __init__(self) -> None:
        self._smallest = np.empty(0, np.uint64)
        self._limit = np.uint64(2**64 - 1)

    def add(self, hashes: NDArray[np.uint64]) -> None:
        """Add hashes, uint64 [n]."""
        smallest = np.union1d(self._smallest, hashes[hashes <= self._limit])
        if len(smallest) > DISTINCT_KEPT:
            smallest = smallest[:DISTINCT_KEPT]
            self._limit = smallest[-1]
        self._smallest = smallest

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
        self._kept: list[NDArray[np.uint64]] = []
        self._limit = 2**64 - 1

    def add(self, hashes: NDArray[np.uint64]) -> None:
        """Add hashes, uint64 [n], in the order of the data."""
        self._kept.append(hashes[hashes <= np.uint64(self._limit)])
        while sum(map(len, self._kept)) > REPEATS_KEPT:
            self._limit //= 2
            self._kept = [
                hashes_kept[hashes_kept <= np.uint64(self._limit)] for hashes_kept in self._kept
            ]

    def share(self) -> float | None:
        """The share; None where too few ids are considered."""
        whole = np.concatenate(self._kept) if self._kept else np.empty(0, np.uint64)
        half = len(whole) // 2
        if half < FEWEST:
            return None
        return float(np.isin(whole[half:], whole[:half]).mean())


class _Ids:
    """The counts of a slot."""

    def __init__(self, new: bool, missing: np.uint64 | None) -> None:
        """`missing` is the id of missing values, if the slot has one."""
        self.repeats = Repeats() if new else None
        self.missing = missing
        self.present = self.occurrences = self.values = self.looked_up = self.known = 0
        self.histogram = np.zeros(BUCKETS, np.int64)
        self.distinct = Distinct()

    def add(self, ids: NDArray[np.uint64], present: int) -> NDArray[np.int64]:
        """Count ids; their places in the histogram."""
        self.present += present
        self.occurrences += len(ids)
        self.values += len(ids)
        if self.missing is not None:
            self.values -= int(np.count_nonzero(ids == self.missing))
        hashes = mix64(ids)
        places = (hashes >> np.uint64(58)).view(np.int64)
        self.histogram += np.bincount(places, minlength=BUCKETS)
        self.distinct.add(hashes)
        if self.repeats is not None:
            self.repeats.add(hashes)
        return places


class DayFigures:
    """Counts the figures of a day, batch by batch; the model must not change meanwhile.

    `edges` has the deciles of numeric inputs, of the first day; those that it lacks are measured,
    on 16,384 rows chosen by the hash of their position.
    """

    def __init__(
        self, model: Model, edges: dict[str, list[float]], contains: Contains | None
    ) -> None:
        """`contains` is None on a first day, when no id has a row."""
        self._model, self._edges, self._contains = model, edges, contains
        self._squared = model.conf.train.loss.name == "mse"
        layout = model.layout
        is_new = contains is None
        missing = features_of(model.conf, model).missing_ids
        names = [name for table in layout.tables for name in table.slots]
        self._slots = {name: _Ids(is_new, missing.get(name)) for name in names}
        self._numeric = {
            name: slice(column - layout.numeric_at, column - layout.numeric_at + width)
            for name, (column, width) in layout.numeric_columns.items()
        }
        if self._squared:
            # Labels that are no classes are counted as numeric inputs are.
            for column, name in enumerate(model.conf.data.all_labels, sum(layout.numeric.values())):
                self._numeric[f"{LABEL} {name}"] = slice(column, column + 1)
        self._counts: dict[str, NDArray[np.int64]] = {}
        self._present = dict.fromkeys(self._numeric, 0)
        self._labels: NDArray[np.float64] = np.zeros(len(model.conf.data.all_labels))
        width = max((columns.stop for columns in self._numeric.values()), default=1)
        self._sampled = max(min(SAMPLE_ROWS, (1 << 22) // width), 1)
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
        parts = zip(self._model.layout.tables, window.ids, window.offsets, strict=True)
        for table, (layout, ids, offsets) in enumerate(parts):
            self._count_table(table, layout, ids, offsets, window.rows)
        if self._numeric:
            numbers = window.numeric
            if self._squared:
                numbers = np.concatenate([numbers, window.labels], axis=1)
            self._count_numbers(numbers)
        if not self._squared:
            for column, name in enumerate(self._model.conf.data.all_labels):
                rates = np.clip(window.labels[:, column], 0, 1).astype(np.float64)
                self._clusters.add_share(f"{LABEL} {name}", rates)
        self._labels += window.labels.sum(axis=0, dtype=np.float64)
        self.examples += window.rows

    def _count_table(
        self,
        table: int,
        layout: TableLayout,
        ids: NDArray[np.uint64],
        offsets: NDArray[np.uint32],
        rows: int,
    ) -> None:
        samples = []
        for name, of_slot, lengths in by_slot(layout, ids, offsets, rows):
            places = self._slots[name].add(of_slot, int(np.count_nonzero(lengths)))
            self._clusters.add_share(f"{COVERAGE} {name}", (lengths > 0).astype(np.float64))
            self._clusters.add_lengths(f"{LENGTH} {name}", lengths)
            self._clusters.add_counts(name, BUCKETS, lengths, places)
            samples.append(of_slot[:: max(-(-len(of_slot) // LOOKED_UP), 1)])
        if self._contains is None:
            return
        sizes = [len(sample) for sample in samples]
        groups = np.repeat(np.array(layout.group_of, np.uint16), sizes)
        has_row = self._contains(table, groups, np.concatenate(samples))
        of_slots = np.split(has_row, np.cumsum(sizes)[:-1])
        for name, of_sample in zip(layout.slots, of_slots, strict=True):
            self._slots[name].known += int(np.count_nonzero(of_sample))
            self._slots[name].looked_up += len(of_sample)

    def _count_numbers(self, numbers: NDArray[np.float32]) -> None:
        for name, columns in self._numeric.items():
            values = numbers[:, columns]
            is_there = values.any(axis=1)
            self._present[name] += int(is_there.sum())
            self._clusters.add_share(f"{COVERAGE} {name}", np.asarray(is_there, np.float64))
            if name in self._model.layout.indicators:
                # At most BUCKETS counts, of many one-hot columns too.
                ids = values.sum(axis=0, dtype=np.float64)
                width = min(len(ids), BUCKETS)
                counts = np.bincount(np.arange(len(ids)) % width, ids, width).astype(np.int64)
                places = np.nonzero(values)[1] % width
                self._clusters.add_counts(name, width, np.count_nonzero(values, axis=1), places)
            elif name in self._edges:
                places = _places(values, self._edges[name])
                counts = np.bincount(places, minlength=len(self._edges[name]) + 1)
                lengths = np.full(len(values), values.shape[1])
                self._clusters.add_counts(name, len(counts), lengths, places)
            else:
                continue
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
        examples = max(self.examples, 1)
        inputs = {name: self._of_slot(name, counted) for name, counted in self._slots.items()}
        for name, columns in self._numeric.items():
            inputs[name] = self._of_numbers(name, columns)
        names = self._model.conf.data.all_labels
        means = {n: float(total) / examples for n, total in zip(names, self._labels, strict=True)}
        effects = {} if self._squared else {n: self._effect(f"{LABEL} {n}") for n in names}
        return OfDay(self.examples, means, inputs, effects)

    def _effect(self, name: str) -> float:
        return round(self._clusters.effect(name), 3)

    def _of_slot(self, name: str, counted: _Ids) -> OfInput:
        distinct = counted.distinct.estimate()
        known = None
        if counted.occurrences and self._contains is not None:
            known = counted.known / max(counted.looked_up, 1)
        elif counted.repeats is not None and not any(
            table.waits for table in self._model.layout.tables if name in table.slots
        ):
            known = counted.repeats.share()
        return OfInput(
            coverage=counted.present / max(self.examples, 1),
            occurrences=counted.occurrences,
            length=counted.occurrences / max(counted.present, 1) if counted.values else 0.0,
            distinct=distinct,
            known=known,
            histogram=counted.histogram.tolist(),
            coverage_effect=self._effect(f"{COVERAGE} {name}"),
            length_effect=round(self._clusters.length_effect(f"{LENGTH} {name}"), 3),
            design_effect=self._effect(name),
        )

    def _of_numbers(self, name: str, columns: slice) -> OfInput:
        edges = self._edges.get(name)
        counts = self._counts.get(name)
        if counts is None:
            values = self._sample[:, columns].astype(np.float64)
            deciles = np.quantile(values, np.arange(1, 10) / 10) if values.size else np.zeros(1)
            edges = np.unique(deciles).tolist()
            counts = np.bincount(_places(values, edges), minlength=len(edges) + 1)
        ids = int(counts.sum())
        return OfInput(
            coverage=self._present[name] / max(self.examples, 1),
            occurrences=ids,
            length=ids / max(self._present[name], 1) if edges is None else 1.0,
            distinct=None,
            known=None,
            histogram=counts.tolist(),
            edges=edges,
            coverage_effect=self._effect(f"{COVERAGE} {name}"),
            design_effect=self._effect(name),
        )


def by_slot(
    layout: TableLayout, ids: NDArray[np.uint64], offsets: NDArray[np.uint32], rows: int
) -> Iterator[tuple[str, NDArray[np.uint64], NDArray[np.int64]]]:
    """Each slot of a table with its ids, uint64 [n], and how many each example has, [rows]."""
    cells = np.diff(offsets).reshape(rows, -1)
    ends = np.cumsum(layout.spreads)
    spans = [
        slice(int(end - width), int(end))
        for end, width in zip(ends, layout.spreads, strict=True)
    ]  # fmt: skip
    if len(ids) == cells.size and (cells == 1).all():
        whole = ids.reshape(rows, -1)
        for name, span in zip(layout.slots, spans, strict=True):
            yield name, whole[:, span].ravel(), np.full(rows, span.stop - span.start)
        return
    owner = np.repeat(np.arange(len(spans), dtype=np.uint16), layout.spreads)
    owners = np.repeat(np.tile(owner, rows), cells.ravel())
    # A stable sort of uint16 is a radix sort.
    ordered = ids[np.argsort(owners, kind="stable")]
    limits = np.cumsum(np.bincount(owners, minlength=len(spans)))
    for name, span, of_slot in zip(
        layout.slots, spans, np.split(ordered, limits[:-1]), strict=True
    ):
        yield name, of_slot, cells[:, span].sum(axis=1, dtype=np.int64)


def _places(values: NDArray[Any], edges: Sequence[float]) -> NDArray[np.int64]:
    return np.searchsorted(np.asarray(edges, np.float64), values.ravel().astype(np.float64))


class Clusters:
    """Sums of clusters of a day's examples, by name, added up window by window.

    Memory is bounded: blocks double in length as the day grows.
    """

    def __init__(self) -> None:
        self._examples = 0
        self._length = 1  # of a block, in examples
        self._window: list[NDArray[np.int64]] = []  # of its examples: the block, the random group
        self._sums: dict[str, tuple[Sums, Sums]] = {}  # of blocks, of random groups

    def begin(self, rows: int, groups: NDArray[np.uint64] | None) -> None:
        """Begin a window of `rows` examples; `groups` [rows] are the hashes of data.group.

        A group of more than a quarter of the window is none (of missing values, all are one).
        """
        while self._examples + rows > MOST_BLOCKS * self._length:
            self._length *= 2
            for blocks, _ in self._sums.values():
                joined = in_pairs(blocks)
                blocks[:] = 0
                blocks[: len(joined)] = joined
        numbers = np.arange(self._examples, self._examples + rows)
        self._window = [numbers // self._length]
        if groups is not None:
            _, places, sizes = np.unique(groups, return_inverse=True, return_counts=True)
            keys = np.where(4 * sizes[places] > rows, numbers.astype(np.uint64), groups)
            self._window.append((mix64(keys) >> np.uint64(64 - GROUP_BITS)).astype(np.int64))
        self._examples += rows

    def add_share(self, name: str, values: NDArray[np.float64]) -> None:
        """Add a value from 0 to 1 for each example of the window, [rows]: two places."""
        self._add_pairs(name, values, 1 - values)

    def add_lengths(self, name: str, lengths: NDArray[np.int64]) -> None:
        """Add how many ids each example of the window has, [rows]."""
        self._add_pairs(name, lengths, lengths > 0)

    def _add_pairs(self, name: str, first: NDArray[Any], second: NDArray[Any]) -> None:
        for sums, clusters in self._of(name, 2):
            sums[:, 0] += np.bincount(clusters, first, len(sums))
            sums[:, 1] += np.bincount(clusters, second, len(sums))

    def add_counts(
        self, name: str, places: int, counts: NDArray[np.int64], place: NDArray[np.int64]
    ) -> None:
        """Count occurrences in a histogram of `places`.

        `counts` [rows] is how many each example of the window has, `place` [their sum] where each
        of them belongs, example after example.
        """
        for sums, clusters in self._of(name, places):
            keys = np.repeat(clusters, counts) * places + place
            sums += np.bincount(keys, minlength=sums.size).reshape(sums.shape)

    def effect(self, name: str) -> float:
        """The design effect of a histogram or share, 1 or more; 1 where nothing was added."""
        return self._largest(name, histogram_effect)

    def length_effect(self, name: str) -> float:
        """The design effect of the mean length of examples that have any id."""
        return self._largest(name, length_effect)

    def _largest(self, name: str, effect: Callable[[Sums], float]) -> float:
        if name not in self._sums:
            return 1.0
        blocks, groups = self._sums[name]
        effects = [1.0, effect(groups)]
        while len(blocks) >= FEWEST_BLOCKS:
            effects.append(effect(blocks))
            blocks = in_pairs(blocks)
        return max(effects)

    def _of(self, name: str, places: int) -> Iterator[tuple[Sums, NDArray[np.int64]]]:
        if name not in self._sums:
            of_groups = np.zeros((1 << GROUP_BITS, places))
            self._sums[name] = np.zeros((MOST_BLOCKS, places)), of_groups
        return zip(self._sums[name], self._window, strict=False)


def in_pairs(sums: Sums) -> Sums:
    """The sums of each two clusters that follow each other, of an even number."""
    return sums[0::2] + sums[1::2]


def histogram_effect(sums: Sums) -> float:
    """The mean generalised design effect of a histogram, from the counts of its clusters.

    With k places of the shares p it is the mean over k - 1 of n var(p_i) / p_i. 0 when fewer than
    FEWEST_BLOCKS clusters or 2 places have any.
    """
    sums = sums[:, sums.any(axis=0)]
    sums = sums[sums.any(axis=1)]
    clusters, places = sums.shape
    if clusters < FEWEST_BLOCKS or places < 2:
        return 0.0
    totals = sums.sum(axis=0)
    expected = sums.sum(axis=1, keepdims=True) * (totals / totals.sum())
    squares = ((sums - expected) ** 2).sum(axis=0) * clusters / (clusters - 1)
    return float((squares / totals).sum() / (places - 1))


def length_effect(sums: Sums) -> float:
    """The design effect of a mean length, from the ids and the examples with any of each cluster.

    It is n var(length) / length^2 of n ids, whose number varies as that of independent ones does
    when it is 1. 0 when fewer than FEWEST_BLOCKS clusters have any.
    """
    sums = sums[sums.any(axis=1)]
    clusters = len(sums)
    if clusters < FEWEST_BLOCKS:
        return 0.0
    ids, examples = sums.sum(axis=0)
    residuals = sums[:, 0] - ids / examples * sums[:, 1]
    return float((residuals**2).sum() * clusters / (clusters - 1) / ids)
