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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from tnctl.data.day_records import Changes, DayRecord, OfDay, OfInput
from tnctl.schema import Gate
from tnctl.training.days.day_figures import FEWEST, LABEL

# The part of each share that is spread evenly, so that an empty bucket is not infinitely unlikely.
EVEN = 0.25
DEVIATIONS = 4.0  # standard deviations by which a threshold is widened
GONE = 0.1  # an input with less than this share of its coverage is missing, whatever the thresholds
RANKS_BACKWARDS = 0.45  # an AUC below this means inverted labels
LIKE_ACCEPTED = 1.25  # how many times an accepted change another one may be, and be ordinary
NAMED = 4  # findings that the error lists


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
    deviations = []
    for name, figures in day.inputs.items():
        usual = [earlier.inputs[name] for earlier in recent if name in earlier.inputs]
        if not usual or name in gate.exempt:
            continue
        known = (accepted or {}).get(name, {})
        if changes := list(_of_input(gate, figures, usual, examples, known)):
            is_label = name.startswith(LABEL + " ")
            kind = "" if is_label else "numeric." if figures.edges else "slots."
            text, worst = changes[0].sentence.format(days=days), max(c.weight for c in changes)
            sizes = {} if is_label else {c.threshold: round(c.size, 4) for c in changes}
            deviations.append(Anomaly(f"{kind}{name}: {text}", worst, name, sizes))
    for name, rate in day.labels.items():
        rates = [earlier.labels[name] for earlier in recent if name in earlier.labels]
        if f"{LABEL} {name}" in day.inputs or not rates:
            continue
        independent = examples / label_effect(name, recent)
        if (label := _of_label(gate, rate, rates, independent)) is not None:
            text, weight = label
            deviations.append(Anomaly(f"{LABEL} {name}: {text.format(days=days)}", weight))
    return sorted(deviations, key=lambda finding: -finding.weight)


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


def _of_input(
    gate: Gate, now: OfInput, recent: Sequence[OfInput], examples: float, accepted: Changes
) -> Iterator[Change]:
    """What of one input is beyond the thresholds, and beyond what was accepted; simplest first."""
    effect = statistics.median(day.design_effect for day in recent)
    independent = examples / statistics.median(day.coverage_effect for day in recent)
    yield from _coverage(gate, now, recent, independent, accepted.get("coverage", 0.0))
    yield from _length(gate, now, recent, accepted.get("length", 0.0))
    known = [day.known for day in recent if day.known is not None]
    if now.known is not None and known:
        draws = (
            effective_size(
                now.occurrences, [day.occurrences for day in recent if day.known is not None]
            )
            / effect
        )
        most = max(gate.new_ids, accepted.get("new_ids", 0.0))
        least = min(known) * (1 - most) - DEVIATIONS / 2 / math.sqrt(draws)
        if now.known < least:
            new = [1 - day for day in known]
            yield Change(
                "new_ids",
                1 - now.known / min(known),
                f"{1 - now.known:.1%} of its occurrences are of ids without a row, "
                f"{_span(new, '{:.1%}')} on the {{days}} before (gate.new_ids={gate.new_ids:g})",
                1 + (least - now.known) / max(min(known), 1e-9),
            )
    yield from _distinct(gate, now, recent, accepted.get("distinct", 0.0))
    yield from _stability(gate, now, recent, effect, accepted.get("stability", 0.0))


def _coverage(
    gate: Gate, now: OfInput, recent: Sequence[OfInput], examples: float, accepted: float
) -> Iterator[Change]:
    usual = [day.coverage for day in recent]
    low, high = min(usual), max(usual)
    apart = max(low - now.coverage, now.coverage - high)
    allowed = max(gate.coverage, accepted) + DEVIATIONS / 2 / math.sqrt(max(examples, 1))
    gone = now.coverage < GONE * low and low * examples >= FEWEST and apart > accepted
    if apart > allowed or gone:
        yield Change(
            "coverage",
            apart,
            f"coverage {now.coverage:.1%}, {_span(usual, '{:.1%}')} on the {{days}} before "
            f"(gate.coverage={gate.coverage:g})",
            10.0 if gone else apart / max(allowed, 1e-9),
        )


def _length(
    gate: Gate, now: OfInput, recent: Sequence[OfInput], accepted: float
) -> Iterator[Change]:
    days = [day for day in recent if day.occurrences]
    if not now.occurrences or not days or now.edges is not None:
        return
    lengths = [day.length for day in days]
    # Below 1 are only days whose ids are all that of missing values, which is one of an example.
    factor = _factor(max(now.length, 1), max(min(lengths), 1), max(*lengths, 1))
    draws = effective_size(now.occurrences, [day.occurrences for day in days])
    draws /= statistics.median(day.length_effect for day in recent)
    allowed = max(gate.length, accepted) * (1 + DEVIATIONS / math.sqrt(draws))
    if factor > allowed:
        yield Change(
            "length",
            factor,
            f"{now.length:.3g} ids per example that has any, {_span(lengths, '{:.3g}')} on the "
            f"{{days}} before (gate.length={gate.length:g})",
            _weight(factor, allowed),
        )


def _distinct(
    gate: Gate, now: OfInput, recent: Sequence[OfInput], accepted: float
) -> Iterator[Change]:
    """More examples may have more distinct ids, at most in proportion."""
    pairs = [(day.distinct, day.occurrences) for day in recent if day.distinct]
    if not now.distinct or not pairs:
        return
    most = max(ids * max(now.occurrences / all_, 1) for ids, all_ in pairs)
    least = min(ids * min(now.occurrences / all_, 1) for ids, all_ in pairs)
    factor = _factor(now.distinct, least, most)
    allowed = max(gate.distinct, accepted) * (1 + DEVIATIONS / math.sqrt(now.distinct))
    if factor > allowed:
        counts = [ids for ids, _ in pairs]
        yield Change(
            "distinct",
            factor,
            f"{now.distinct:,.0f} distinct ids, {_span(counts, '{:,.0f}')} on the {{days}} before "
            f"(gate.distinct={gate.distinct:g})",
            _weight(factor, allowed),
        )


def _stability(
    gate: Gate, now: OfInput, recent: Sequence[OfInput], effect: float, accepted: float
) -> Iterator[Change]:
    """An input that changes every day may change as much again."""
    size = len(now.histogram)
    days = [day for day in recent if len(day.histogram) == size and day.occurrences]
    if not now.occurrences or not days:
        return
    nearest = min(days, key=lambda day: stability_index(now.histogram, day.histogram))
    index = stability_index(now.histogram, nearest.histogram)
    pairs = itertools.pairwise(day.histogram for day in days)
    steps = [stability_index(following, previous) for previous, following in pairs]
    usual = statistics.median(steps) if steps else 0.0
    chance = effect * (size - 1) * (1 / now.occurrences + 1 / nearest.occurrences)
    allowed = max(gate.stability + usual, accepted) + 2 * chance
    if index > allowed:
        yield Change(
            "stability",
            index,
            f"population stability index {index:.2f}, {usual:.2f} from day to day before "
            f"(gate.stability={gate.stability:g})",
            index / max(allowed, 1e-9),
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
) -> tuple[str, float] | None:
    """A label's mean, and 1 minus its mean: each may change by the factor gate.label_rate."""
    worst = 0.0
    for turn in (False, True):
        # One more of each, so that a day without clicks is not infinitely far away.
        now, low, high = (
            ((1 - value if turn else value) * examples + 1) / (examples + 2)
            for value in (rate, *sorted((min(recent), max(recent)), reverse=turn))
        )
        expected = max(min(low, high) * examples, 1)
        allowed = gate.label_rate * (1 + DEVIATIONS / math.sqrt(expected))
        if (factor := _factor(now, min(low, high), max(low, high))) > allowed:
            worst = max(worst, _weight(factor, allowed))
    if not worst:
        return None
    text = f"its mean is {rate:.4g}, {_span(recent, '{:.4g}')} on the {{days}} before"
    return f"{text} (gate.label_rate={gate.label_rate:g})", worst


def _factor(value: float, low: float, high: float) -> float:
    """How many times a value is above a range, or below it; 1 or less within."""
    if value > high:
        return value / high if high > 0 else math.inf
    return low / value if value > 0 else math.inf if low > 0 else 1.0


def _weight(factor: float, allowed: float) -> float:
    return math.log(factor) / math.log(max(allowed, 1.0001)) if factor < math.inf else 100.0


def _span(values: Sequence[float], form: str) -> str:
    """The smallest and the largest, both in the same number format."""
    low, high = form.format(min(values)), form.format(max(values))
    return low if low == high else f"{low} to {high}"


def in_words(findings: Sequence[Anomaly]) -> str:
    """Findings on one line, the worst first."""
    sentences = [finding.sentence for finding in findings[:NAMED]]
    more = len(findings) - NAMED
    return "; ".join([*sentences, f"and {more} more"] if more > 0 else sentences)
