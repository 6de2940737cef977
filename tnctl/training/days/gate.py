"""The day gate: whether the inputs and labels of a day look like the days before.

The figures of every slot, numeric input and label (day_figures.py) are compared with the
last days: they must lie within the range of these days, widened by the thresholds of `gate`. Every
threshold is widened further by the random variation of so few examples, so that small days pass.
Examples come in sessions: n of them vary as n / d independent ones do, where d is the design effect
that was measured on the days before (day_figures.py). The effect of the day itself is not used: a
day that breaks off in the middle varies from block to block, and would excuse itself.
"""

import itertools
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from tnctl.data.day_records import Changes, DayRecord, OfDay, OfInput
from tnctl.errors import Failure
from tnctl.schema import Gate
from tnctl.training.days.day_figures import FEWEST, LABEL

# The part of each share that is spread evenly, so that an empty bucket is not infinitely unlikely.
EVEN = 0.25
DEVIATIONS = 4.0  # standard deviations by which a threshold is widened
GONE = 0.1  # an input with less than this share of its coverage is missing, whatever the thresholds
RANKS_BACKWARDS = 0.45  # an AUC below this means inverted labels
LIKE_ACCEPTED = 1.25  # how many times an accepted change another one may be, and be ordinary
NAMED = 4  # findings that the error lists
Recent = Sequence[OfInput]  # an input on the days before


class DayRefused(Failure):
    """A day is empty or not as the days before, and nothing is trained on it."""


@dataclass(frozen=True)
class Anomaly:
    """A difference between a day and the days before."""

    sentence: str
    weight: float
    """how many times its threshold it is"""
    name: str = ""
    """the input, empty of labels"""
    changes: Changes = field(default_factory=dict)
    """all changes of the input that are beyond their thresholds"""


class Change(NamedTuple):
    """A change of an input beyond a threshold of `gate`, which `threshold` names."""

    threshold: str
    size: float  # in the unit of the threshold
    sentence: str  # in which `{days}` is to be filled in
    weight: float


# A check of an input: what of it is beyond a threshold, and beyond what was accepted. It takes the
# figures of the day and of those before, what was accepted, and the effective sample size.


def _coverage(
    gate: Gate, now: OfInput, recent: Recent, accepted: Changes, examples: float
) -> Iterator[Change]:
    examples /= statistics.median(day.coverage_effect for day in recent)
    usual = [day.coverage for day in recent]
    low, high = min(usual), max(usual)
    apart = max(low - now.coverage, now.coverage - high)
    most = max(gate.coverage, accepted["coverage"])
    allowed = most + DEVIATIONS / 2 / math.sqrt(max(examples, 1))
    is_gone = now.coverage < GONE * low and low * examples >= FEWEST
    is_gone = is_gone and apart > accepted["coverage"]
    if apart > allowed or is_gone:
        text = f"coverage {now.coverage:.1%}, {_span(usual, '{:.1%}')} on the {{days}} before"
        weight = 10.0 if is_gone else apart / max(allowed, 1e-9)
        yield Change("coverage", apart, text, weight)


def _length(
    gate: Gate, now: OfInput, recent: Recent, accepted: Changes, _: float
) -> Iterator[Change]:
    days = [day for day in recent if day.occurrences]
    if not now.occurrences or not days or now.edges is not None:
        return
    lengths = [day.length for day in days]
    # Below 1 are only days on which each example has one id, the one of missing values.
    factor = _factor(max(now.length, 1), max(min(lengths), 1), max(*lengths, 1))
    draws = effective_size(now.occurrences, [day.occurrences for day in days])
    draws /= statistics.median(day.length_effect for day in recent)
    text = f"{now.length:.3g} ids per example that has any, {_span(lengths, '{:.3g}')} on the "
    most = max(gate.length, accepted["length"])
    yield from _multiple("length", factor, most, draws, text + "{days} before")


def _new_ids(
    gate: Gate, now: OfInput, recent: Recent, accepted: Changes, _: float
) -> Iterator[Change]:
    days = [(day.known, day.occurrences) for day in recent if day.known is not None]
    if now.known is None or not days:
        return
    effect = statistics.median(day.design_effect for day in recent)
    draws = effective_size(now.occurrences, [ids for _, ids in days]) / effect
    usual = min(known for known, _ in days)
    least = usual * (1 - max(gate.new_ids, accepted["new_ids"]))
    least -= DEVIATIONS / 2 / math.sqrt(draws)
    if now.known < least:
        new = _span([1 - known for known, _ in days], "{:.1%}")
        yield Change(
            "new_ids",
            1 - now.known / usual,
            f"{1 - now.known:.1%} of its occurrences are of ids without a row, {new} on the "
            "{days} before",
            1 + (least - now.known) / max(usual, 1e-9),
        )


def _distinct(
    gate: Gate, now: OfInput, recent: Recent, accepted: Changes, _: float
) -> Iterator[Change]:
    """More examples may have more distinct ids, at most in proportion."""
    pairs = [(day.distinct, day.occurrences) for day in recent if day.distinct]
    if not now.distinct or not pairs:
        return
    high = max(ids * max(now.occurrences / all_, 1) for ids, all_ in pairs)
    low = min(ids * min(now.occurrences / all_, 1) for ids, all_ in pairs)
    counts = _span([ids for ids, _ in pairs], "{:,.0f}")
    text = f"{now.distinct:,.0f} distinct ids, {counts} on the {{days}} before"
    most = max(gate.distinct, accepted["distinct"])
    factor = _factor(now.distinct, low, high)
    yield from _multiple("distinct", factor, most, now.distinct, text)


def _stability(
    gate: Gate, now: OfInput, recent: Recent, accepted: Changes, _: float
) -> Iterator[Change]:
    """An input that changes every day may change as much again."""
    size = len(now.histogram)
    days = [day for day in recent if len(day.histogram) == size and day.occurrences]
    if not now.occurrences or not days:
        return
    indices = [stability_index(now.histogram, day.histogram) for day in days]
    index, nearest = min(zip(indices, days, strict=True), key=itemgetter(0))
    steps = [
        stability_index(following.histogram, previous.histogram)
        for previous, following in itertools.pairwise(days)
    ]
    usual = statistics.median(steps or [0.0])
    effect = statistics.median(day.design_effect for day in recent)
    chance = effect * (size - 1) * (1 / now.occurrences + 1 / nearest.occurrences)
    allowed = max(gate.stability + usual, accepted["stability"]) + 2 * chance
    if index > allowed:
        text = f"population stability index {index:.2f}, {usual:.2f} from day to day before"
        yield Change("stability", index, text, index / max(allowed, 1e-9))


CHECKS = (_coverage, _length, _new_ids, _distinct, _stability)  # the simplest first


def ordinary(record: Iterable[DayRecord]) -> dict[str, Changes]:
    """By input, the largest changes that are ordinary because like ones were accepted."""
    largest: dict[str, Changes] = {}
    for entry in record:
        for name, changes in (entry.changes or {}).items():
            of_input = largest.setdefault(name, {})
            for threshold, size in changes.items():
                of_input[threshold] = max(of_input.get(threshold, 0.0), size * LIKE_ACCEPTED)
    return largest


def findings(
    gate: Gate,
    day: OfDay,
    recent: Sequence[OfDay],
    accepted: Mapping[str, Changes] | None = None,
) -> list[Anomaly]:
    """The differences beyond the thresholds, the worst first: of each input only the simplest.

    `recent` are the days to compare to, the oldest first; without any there are no findings.
    `accepted` is what `ordinary` gives.
    """
    if not recent:
        return []
    days = "day" if len(recent) == 1 else f"{len(recent)} days"
    examples = effective_size(day.examples, [earlier.examples for earlier in recent])
    changed: list[tuple[str, str, list[Change]]] = []
    for name, figures in day.inputs.items():
        usual = [earlier.inputs[name] for earlier in recent if name in earlier.inputs]
        if not usual or name in gate.exempt:
            continue
        known = defaultdict(float, (accepted or {}).get(name, {}))
        changes = [c for check in CHECKS for c in check(gate, figures, usual, known, examples)]
        kind = "numeric" if figures.edges else "slots"
        is_label = name.startswith(LABEL + " ")
        changed.append((name, "", changes) if is_label else (f"{kind}.{name}", name, changes))
    for name, rate in day.labels.items():
        rates = [earlier.labels[name] for earlier in recent if name in earlier.labels]
        if f"{LABEL} {name}" not in day.inputs and rates:
            independent = examples / label_effect(name, recent)
            changed.append((f"{LABEL} {name}", "", list(_of_label(gate, rate, rates, independent))))
    anomalies = []
    for title, name, changes in changed:
        if not changes:
            continue
        simplest = changes[0].threshold
        text = changes[0].sentence.format(days=days)
        sizes = {change.threshold: round(change.size, 4) for change in changes} if name else {}
        anomalies.append(
            Anomaly(
                f"{title}: {text} (gate.{simplest}={getattr(gate, simplest):g})",
                max(change.weight for change in changes),
                name,
                sizes,
            )
        )
    return sorted(anomalies, key=lambda anomaly: -anomaly.weight)


def effective_size(now: float, recent: Sequence[float]) -> float:
    """The effective sample size for comparing a day to the smallest of the days before.

    The difference of two means, of n and of m examples, varies as the mean of 1 / (1/n + 1/m) does.
    """
    return 1 / (1 / max(now, 1) + 1 / max(min(recent), 1))


def label_effect(name: str, recent: Sequence[OfDay]) -> float:
    """The usual design effect of a label's mean; 1 without days before."""
    return statistics.median([day.label_effects.get(name, 1.0) for day in recent] or [1.0])


def turned_round(auc: float, recent: Sequence[float], clicks: float, others: float) -> bool:
    """Whether labels seem inverted: a model that ranked well so far ranks this day backwards.

    `clicks` and `others` are how many independent examples of each label the day is worth.
    """
    if min(clicks, others) < 1:
        return False
    # Hanley and McNeil's deviation of an AUC of one half.
    chance = math.sqrt((clicks + others + 1) / (12 * clicks * others))
    return auc < RANKS_BACKWARDS - DEVIATIONS * chance and all(value >= 0.5 for value in recent)


def backwards(auc: float, recent: Sequence[float]) -> Anomaly:
    """The finding of `turned_round`."""
    usual = f", {_span(recent, '{:.3f}')} on the days before" if recent else ""
    return Anomaly(
        f"label: the model of the days before has AUC {auc:.3f} on it{usual}: labels look inverted",
        math.inf,
    )


def stability_index(now: Sequence[int], recent: Sequence[int]) -> float:
    """The population stability index of two histograms: sum of (p - q) ln(p / q).

    A quarter of each share is spread evenly.
    """
    p, q = (
        (1 - EVEN) * np.asarray(counts, np.float64) / max(sum(counts), 1) + EVEN / len(counts)
        for counts in (now, recent)
    )
    return float(((p - q) * np.log(p / q)).sum())


def _of_label(
    gate: Gate, rate: float, recent: Sequence[float], examples: float
) -> Iterator[Change]:
    """A label's mean, and 1 minus its mean: each may change by the factor gate.label_rate."""
    text = f"its mean is {rate:.4g}, {_span(recent, '{:.4g}')} on the {{days}} before"
    for turn in (False, True):
        # One more of each, so that a day without clicks is not infinitely far away.
        now, *ends = (
            ((1 - value if turn else value) * examples + 1) / (examples + 2)
            for value in (rate, min(recent), max(recent))
        )
        draws = max(min(ends) * examples, 1)
        factor = _factor(now, min(ends), max(ends))
        yield from _multiple("label_rate", factor, gate.label_rate, draws, text)


def _multiple(
    threshold: str, factor: float, most: float, draws: float, text: str
) -> Iterator[Change]:
    """The change by a factor of what was counted `draws` times, if it is more than `most`."""
    allowed = most * (1 + DEVIATIONS / math.sqrt(draws))
    if factor > allowed:
        weight = math.log(factor) / math.log(max(allowed, 1.0001)) if factor < math.inf else 100.0
        yield Change(threshold, factor, text, weight)


def _factor(value: float, low: float, high: float) -> float:
    """How many times a value is above a range, or below it; 1 or less within."""
    if value > high:
        return value / high if high > 0 else math.inf
    return low / value if value > 0 else math.inf if low > 0 else 1.0


def _span(values: Sequence[float], form: str) -> str:
    """The smallest and the largest, both in the same number format."""
    low, high = form.format(min(values)), form.format(max(values))
    return low if low == high else f"{low} to {high}"


def in_words(findings: Sequence[Anomaly]) -> str:
    """Findings on one line, the worst first."""
    sentences = [finding.sentence for finding in findings[:NAMED]]
    more = len(findings) - NAMED
    return "; ".join([*sentences, f"and {more} more"] if more > 0 else sentences)
