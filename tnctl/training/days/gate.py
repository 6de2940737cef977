"""The day gate: what a day's inputs look like, and whether that is what days look like.

Of every slot and numeric input, and of the labels, a few figures are taken in one pass and kept in
the checkpoint. A day is compared to the last ones: it may be as any of them was, and beyond that as
far away as the thresholds of `gate` allow. Every threshold is widened by what chance does to as few
examples as there are, so that small days pass.
"""

import itertools
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl.data.day_records import OfDay, OfInput
from tnctl.data.features import Window
from tnctl.data.windows import joined
from tnctl.model.building import Model
from tnctl.model.layout import TableLayout
from tnctl.schema import Gate
from tnctl.tables import SparseTable
from tnctl.tables.columns import mix64

BUCKETS = 64  # of the hashes of ids
DISTINCT_KEPT = 4096  # smallest hashes: a standard error of 1 / sqrt(4096), 1.6 %
REPEATS_KEPT = 131_072
SAMPLE_ROWS = 16_384  # of the numbers, for deciles
ROWS_AT_A_TIME = 65_536
LOOKED_UP = 16_384  # occurrences of them: whether they have a row
# The part of each share that is even, so that an empty bucket is not infinitely unlikely.
EVEN = 0.25
DEVIATIONS = 4.0  # of chance, that widen a threshold
GONE = 0.1  # of what was there: less is gone, whatever the thresholds say
FEWEST = 30  # examples or ids that must be expected for them to be gone
RANKS_BACKWARDS = 0.45  # an AUC below this is of labels that were turned round
LABEL = "label"  # before the name of one, where it stands among the numbers
NAMED = 4  # findings that the error tells of


class Distinct:
    """How many distinct values there are, from the smallest of their hashes (Bar-Yossef 2002)."""

    def __init__(self) -> None:
        self._smallest = np.empty(0, np.uint64)
        self._limit = np.uint64(2**64 - 1)

    def add(self, hashes: NDArray[np.uint64]) -> None:
        """Take in uint64 [n]."""
        found = np.union1d(self._smallest, hashes[hashes <= self._limit])
        if len(found) > DISTINCT_KEPT:
            found = found[:DISTINCT_KEPT]
            self._limit = found[-1]
        self._smallest = found

    def estimate(self) -> float:
        """Exact up to DISTINCT_KEPT values."""
        if len(self._smallest) < DISTINCT_KEPT:
            return float(len(self._smallest))
        return (DISTINCT_KEPT - 1) / ((float(self._limit) + 1) / 2.0**64)


class Repeats:
    """Of a day's second half, the share of occurrences whose id came in its first half.

    What of a day the day before would have known, as far as one day can tell. Of the ids a share is
    looked at, chosen by their hash, so that at most REPEATS_KEPT occurrences are kept.
    """

    def __init__(self) -> None:
        self._kept: list[NDArray[np.uint64]] = []
        self._limit = 2**64 - 1

    def add(self, hashes: NDArray[np.uint64]) -> None:
        """Take in uint64 [n], in the order of the data."""
        self._kept.append(hashes[hashes <= np.uint64(self._limit)])
        while sum(map(len, self._kept)) > REPEATS_KEPT:
            self._limit //= 2
            self._kept = [one[one <= np.uint64(self._limit)] for one in self._kept]

    def share(self) -> float | None:
        """None where too few ids are looked at."""
        whole = np.concatenate(self._kept) if self._kept else np.empty(0, np.uint64)
        half = len(whole) // 2
        if half < FEWEST:
            return None
        return float(np.isin(whole[half:], whole[:half]).mean())


class _Ids:
    """What is counted of a slot."""

    def __init__(self, new: bool) -> None:
        self.repeats = Repeats() if new else None
        self.present = self.occurrences = self.looked_up = self.known = 0
        self.histogram = np.zeros(BUCKETS, np.int64)
        self.distinct = Distinct()

    def add(self, ids: NDArray[np.uint64], present: int) -> None:
        self.present += present
        self.occurrences += len(ids)
        hashes = mix64(ids)
        self.histogram += np.bincount((hashes >> np.uint64(58)).view(np.int64), minlength=BUCKETS)
        self.distinct.add(hashes)
        if self.repeats is not None:
            self.repeats.add(hashes)


class Taking:
    """Takes the figures of a day, batch by batch, from a model that does not change meanwhile.

    `edges` has the deciles of numeric inputs, of the first day; those that it lacks are measured,
    on 16,384 rows chosen by their number.
    """

    def __init__(self, model: Model, edges: dict[str, list[float]]) -> None:
        self._model, self._edges = model, edges
        self._squared = model.conf.train.loss.name == "mse"
        layout = model.layout
        # A first day has nothing to be known from.
        self._new = not any(table.rows for table in model.tables)
        self._slots = {name: _Ids(self._new) for table in layout.tables for name in table.slots}
        self._numeric = {
            name: slice(column - layout.numeric_at, column - layout.numeric_at + width)
            for name, (column, width) in layout.numeric_columns.items()
        }
        if self._squared:
            # Labels that are no classes are looked at as numbers are.
            at = sum(layout.numeric.values())
            for number, name in enumerate(model.conf.data.all_labels):
                self._numeric[f"{LABEL} {name}"] = slice(at + number, at + number + 1)
        self._counts: dict[str, NDArray[np.int64]] = {}
        self._present = dict.fromkeys(self._numeric, 0)
        self._labels: NDArray[np.float64] = np.zeros(len(model.conf.data.all_labels))
        width = max((columns.stop for columns in self._numeric.values()), default=1)
        self._sampled = max(min(SAMPLE_ROWS, (1 << 22) // width), 1)
        self._sample = np.empty((0, width), np.float32)
        self._sample_keys = np.empty(0, np.uint64)
        self._waiting: list[Window] = []
        self.examples = 0

    def add(self, batch: Window) -> None:
        """Count one batch."""
        self._waiting.append(batch)
        if sum(one.rows for one in self._waiting) >= ROWS_AT_A_TIME:
            self._count()

    def _count(self) -> None:
        if not self._waiting:
            return
        window = joined(self._waiting)
        self._waiting = []
        parts = zip(
            self._model.layout.tables, self._model.tables, window.ids, window.offsets, strict=True
        )
        for layout, table, ids, offsets in parts:
            self._count_table(layout, table, ids, offsets, window.rows)
        if self._numeric:
            numbers = window.numeric
            if self._squared:
                numbers = np.concatenate([numbers, window.labels], axis=1)
            self._count_numbers(numbers)
        self._labels += window.labels.sum(axis=0, dtype=np.float64)
        self.examples += window.rows

    def _count_table(
        self,
        layout: TableLayout,
        table: SparseTable,
        ids: NDArray[np.uint64],
        offsets: NDArray[np.uint32],
        rows: int,
    ) -> None:
        for number, (name, of_slot, present) in enumerate(by_slot(layout, ids, offsets, rows)):
            counted = self._slots[name]
            counted.add(of_slot, present)
            if not self._new and len(of_slot):
                some = of_slot[:: -(-len(of_slot) // LOOKED_UP)]
                groups = np.full(len(some), layout.group_of[number], np.uint16)
                counted.known += int(np.count_nonzero(table.contains(groups, some)))
                counted.looked_up += len(some)

    def _count_numbers(self, numbers: NDArray[np.float32]) -> None:
        for name, columns in self._numeric.items():
            values = numbers[:, columns]
            self._present[name] += int(values.any(axis=1).sum())
            if name in self._model.layout.indicators:
                self._tally(name, _folded(values.sum(axis=0, dtype=np.float64)))
            elif name in self._edges:
                self._tally(name, _by_edges(values, self._edges[name]))
        if all(name in self._counts for name in self._numeric):
            return
        rows = np.arange(self.examples, self.examples + len(numbers), dtype=np.uint64)
        keys = np.concatenate([self._sample_keys, mix64(rows)])
        kept = np.argsort(keys, kind="stable")[: self._sampled]
        self._sample = np.concatenate([self._sample, numbers])[kept]
        self._sample_keys = keys[kept]

    def _tally(self, name: str, counts: NDArray[np.int64]) -> None:
        self._counts[name] = self._counts.get(name, 0) + counts

    def result(self) -> OfDay:
        """The figures of all batches so far."""
        self._count()
        examples = max(self.examples, 1)
        inputs = {name: self._of_slot(name, counted) for name, counted in self._slots.items()}
        for name, columns in self._numeric.items():
            inputs[name] = self._of_numbers(name, columns)
        names = self._model.conf.data.all_labels
        means = {n: float(total) / examples for n, total in zip(names, self._labels, strict=True)}
        return OfDay(self.examples, means, inputs)

    def _of_slot(self, name: str, counted: _Ids) -> OfInput:
        distinct = counted.distinct.estimate()
        known = None
        if counted.occurrences and not self._new:
            known = counted.known / counted.looked_up
        elif counted.repeats is not None and not self._waits(name):
            known = counted.repeats.share()
        return OfInput(
            coverage=counted.present / max(self.examples, 1),
            occurrences=counted.occurrences,
            length=counted.occurrences / max(counted.present, 1),
            distinct=distinct,
            known=known,
            histogram=counted.histogram.tolist(),
        )

    def _waits(self, name: str) -> bool:
        tables = self._model.layout.tables
        return next(table.waits for table in tables if name in table.slots)

    def _of_numbers(self, name: str, columns: slice) -> OfInput:
        edges = self._edges.get(name)
        counts = self._counts.get(name)
        if counts is None:
            values = self._sample[:, columns].astype(np.float64)
            deciles = np.quantile(values, np.arange(1, 10) / 10) if values.size else np.zeros(1)
            edges = np.unique(deciles).tolist()
            counts = _by_edges(values, edges)
        ids = int(counts.sum())
        return OfInput(
            coverage=self._present[name] / max(self.examples, 1),
            occurrences=ids,
            length=ids / max(self._present[name], 1) if edges is None else 1.0,
            distinct=None,
            known=None,
            histogram=counts.tolist(),
            edges=edges,
        )


def by_slot(
    layout: TableLayout, ids: NDArray[np.uint64], offsets: NDArray[np.uint32], rows: int
) -> Iterator[tuple[str, NDArray[np.uint64], int]]:
    """Each slot of a table with its ids, uint64 [n], and the number of examples that have one."""
    cells = np.diff(offsets).reshape(rows, -1)
    ends = np.cumsum(layout.spreads)
    spans = [
        slice(int(end - width), int(end))
        for end, width in zip(ends, layout.spreads, strict=True)
    ]  # fmt: skip
    if len(ids) == cells.size and (cells == 1).all():
        whole = ids.reshape(rows, -1)
        for name, span in zip(layout.slots, spans, strict=True):
            yield name, whole[:, span].ravel(), rows
        return
    owner = np.repeat(np.arange(len(spans), dtype=np.uint16), layout.spreads)
    owners = np.repeat(np.tile(owner, rows), cells.ravel())
    # A stable sort of uint16 is a radix sort.
    ordered = ids[np.argsort(owners, kind="stable")]
    limits = np.cumsum(np.bincount(owners, minlength=len(spans)))
    for name, span, of_slot in zip(
        layout.slots, spans, np.split(ordered, limits[:-1]), strict=True
    ):
        yield name, of_slot, int(np.count_nonzero(cells[:, span].any(axis=1)))


def _by_edges(values: NDArray[Any], edges: Sequence[float]) -> NDArray[np.int64]:
    places = np.searchsorted(np.asarray(edges, np.float64), values.ravel().astype(np.float64))
    return np.bincount(places, minlength=len(edges) + 1)


def _folded(counts: NDArray[np.float64]) -> NDArray[np.int64]:
    """Counts of many one-hot columns as at most BUCKETS."""
    width = min(len(counts), BUCKETS)
    return np.bincount(np.arange(len(counts)) % width, counts, width).astype(np.int64)


@dataclass(frozen=True)
class Finding:
    """Something that a day has other than the days before."""

    sentence: str
    weight: float
    """how often its threshold is passed"""


def findings(gate: Gate, day: OfDay, before: Sequence[OfDay]) -> list[Finding]:
    """What a day has beyond the thresholds, the worst first: of each input one thing, the plainest.

    `before` are the days it is compared to, the oldest first; without any there is nothing.
    """
    if not before:
        return []
    days = "day" if len(before) == 1 else f"{len(before)} days"
    examples = together(day.examples, [other.examples for other in before])
    found = []
    for name, one in day.inputs.items():
        others = [other.inputs[name] for other in before if name in other.inputs]
        if others:
            kind = "" if name.startswith(LABEL + " ") else "numeric." if one.edges else "slots."
            of_input = list(_of_input(gate, one, others, examples))
            if of_input:
                text = of_input[0][0].format(days=days)
                weight = max(weight for _, weight in of_input)
                found.append(Finding(f"{kind}{name}: {text}", weight))
    for name, rate in day.labels.items():
        if f"{LABEL} {name}" in day.inputs:
            continue
        rates = [other.labels[name] for other in before if name in other.labels]
        if rates and (label := _of_label(gate, rate, rates, examples)) is not None:
            text, weight = label
            found.append(Finding(f"{LABEL} {name}: {text.format(days=days)}", weight))
    return sorted(found, key=lambda one: -one.weight)


def together(now: float, before: Sequence[float]) -> float:
    """How many draws differ from their mean as much as two figures of so many do from each other.

    Of the days before, the one of the fewest.
    """
    return 1 / (1 / max(now, 1) + 1 / max(min(before), 1))


def turned_round(auc: float, before: Sequence[float], clicks: float, others: float) -> bool:
    """Whether labels seem inverted: a model that ranked right ranks the day backwards."""
    if min(clicks, others) < 1:
        return False
    # Hanley and McNeil's deviation of an AUC of one half.
    chance = math.sqrt((clicks + others + 1) / (12 * clicks * others))
    return auc < RANKS_BACKWARDS - DEVIATIONS * chance and all(one >= 0.5 for one in before)


def backwards(auc: float, before: Sequence[float]) -> Finding:
    """The finding of `turned_round`."""
    usual = f", {_span(before, '{:.3f}')} on the days before" if before else ""
    return Finding(
        f"label: the model of the days before has AUC {auc:.3f} on it{usual}: labels look inverted",
        math.inf,
    )


def _of_input(
    gate: Gate, now: OfInput, before: Sequence[OfInput], examples: float
) -> Iterator[tuple[str, float]]:
    """Findings of one input, the plainest first, with their weights; {days}: the days before."""
    yield from _coverage(gate, now, before, examples)
    lengths = [one.length for one in before if one.occurrences]
    if now.occurrences and lengths and now.edges is None:
        factor = _factor(now.length, min(lengths), max(lengths))
        draws = together(now.occurrences, [one.occurrences for one in before if one.occurrences])
        allowed = gate.length * (1 + DEVIATIONS / math.sqrt(draws))
        if factor > allowed:
            yield (
                f"{now.length:.3g} ids per example that has any, {_span(lengths, '{:.3g}')} on the "
                f"{{days}} before (gate.length={gate.length:g})",
                _weight(factor, allowed),
            )
    known = [one.known for one in before if one.known is not None]
    if now.known is not None and known:
        draws = together(
            now.occurrences, [one.occurrences for one in before if one.known is not None]
        )
        least = min(known) * (1 - gate.new_ids) - DEVIATIONS / 2 / math.sqrt(draws)
        if now.known < least:
            new = [1 - one for one in known]
            yield (
                f"{1 - now.known:.1%} of its occurrences are of ids without a row, "
                f"{_span(new, '{:.1%}')} on the {{days}} before (gate.new_ids={gate.new_ids:g})",
                1 + (least - now.known) / max(min(known), 1e-9),
            )
    yield from _distinct(gate, now, before)
    yield from _stability(gate, now, before)


def _coverage(
    gate: Gate, now: OfInput, before: Sequence[OfInput], examples: float
) -> Iterator[tuple[str, float]]:
    usual = [one.coverage for one in before]
    low, high = min(usual), max(usual)
    apart = max(low - now.coverage, now.coverage - high)
    allowed = gate.coverage + DEVIATIONS / 2 / math.sqrt(max(examples, 1))
    gone = now.coverage < GONE * low and low * examples >= FEWEST
    if apart > allowed or gone:
        yield (
            f"coverage {now.coverage:.1%}, {_span(usual, '{:.1%}')} on the {{days}} before "
            f"(gate.coverage={gate.coverage:g})",
            10.0 if gone else apart / max(allowed, 1e-9),
        )


def _distinct(gate: Gate, now: OfInput, before: Sequence[OfInput]) -> Iterator[tuple[str, float]]:
    """More examples may bring more ids, in proportion at the most."""
    pairs = [(one.distinct, one.occurrences) for one in before if one.distinct]
    if not now.distinct or not pairs:
        return
    most = max(ids * max(now.occurrences / all_, 1) for ids, all_ in pairs)
    least = min(ids * min(now.occurrences / all_, 1) for ids, all_ in pairs)
    factor = _factor(now.distinct, least, most)
    allowed = gate.distinct * (1 + DEVIATIONS / math.sqrt(now.distinct))
    if factor > allowed:
        counts = [ids for ids, _ in pairs]
        yield (
            f"{now.distinct:,.0f} distinct ids, {_span(counts, '{:,.0f}')} on the {{days}} before "
            f"(gate.distinct={gate.distinct:g})",
            _weight(factor, allowed),
        )


def _stability(gate: Gate, now: OfInput, before: Sequence[OfInput]) -> Iterator[tuple[str, float]]:
    """An input that moves every day may move as much again."""
    others = [one for one in before if len(one.histogram) == len(now.histogram) and
              one.occurrences]  # fmt: skip
    if not now.occurrences or not others:
        return
    index, other = min(
        ((stability_index(now.histogram, one.histogram), one) for one in others),
        key=lambda two: two[0],
    )
    steps = [
        stability_index(two.histogram, one.histogram) for one, two in itertools.pairwise(others)
    ]
    usual = statistics.median(steps) if steps else 0.0
    chance = (len(now.histogram) - 1) * (1 / now.occurrences + 1 / other.occurrences)
    allowed = gate.stability + usual + 2 * chance
    if index > allowed:
        yield (
            f"population stability index {index:.2f}, {usual:.2f} from day to day before "
            f"(gate.stability={gate.stability:g})",
            index / max(allowed, 1e-9),
        )


def stability_index(now: Sequence[int], before: Sequence[int]) -> float:
    """The population stability index of two histograms: sum of (p - q) ln(p / q).

    A quarter of each share is spread evenly.
    """
    p, q = (
        (1 - EVEN) * np.asarray(counts, np.float64) / max(sum(counts), 1) + EVEN / len(counts)
        for counts in (now, before)
    )
    return float(((p - q) * np.log(p / q)).sum())


def _of_label(
    gate: Gate, rate: float, before: Sequence[float], examples: float
) -> tuple[str, float] | None:
    """The label's mean, and its distance from 1: each may move by the factor."""
    worst = 0.0
    for turn in (False, True):
        # One more of each keeps a day without clicks from being infinitely far away.
        now, low, high = (
            ((1 - one if turn else one) * examples + 1) / (examples + 2)
            for one in (rate, *sorted((min(before), max(before)), reverse=turn))
        )
        expected = max(min(low, high) * examples, 1)
        allowed = gate.label_rate * (1 + DEVIATIONS / math.sqrt(expected))
        if (factor := _factor(now, min(low, high), max(low, high))) > allowed:
            worst = max(worst, _weight(factor, allowed))
    if not worst:
        return None
    text = f"its mean is {rate:.4g}, {_span(before, '{:.4g}')} on the {{days}} before"
    return f"{text} (gate.label_rate={gate.label_rate:g})", worst


def _factor(value: float, low: float, high: float) -> float:
    """How many times a value is above a range, or below it; 1 or less within."""
    if value > high:
        return value / high if high > 0 else math.inf
    return low / value if value > 0 else math.inf if low > 0 else 1.0


def _weight(factor: float, allowed: float) -> float:
    return math.log(factor) / math.log(max(allowed, 1.0001)) if factor < math.inf else 100.0


def _span(values: Sequence[float], form: str) -> str:
    """The smallest and the largest, in the form of one."""
    low, high = form.format(min(values)), form.format(max(values))
    return low if low == high else f"{low} to {high}"


def in_words(found: Sequence[Finding]) -> str:
    """Findings on one line, the worst first."""
    said = "; ".join(one.sentence for one in found[:NAMED])
    return said + (f"; and {len(found) - NAMED} more" if len(found) > NAMED else "")
