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

import numpy as np

from tnctl.data.day_records import OfDay, OfInput
from tnctl.schema import Gate
from tnctl.training.days.day_figures import FEWEST, LABEL

# The part of each share that is even, so that an empty bucket is not infinitely unlikely.
EVEN = 0.25
DEVIATIONS = 4.0  # of chance, that widen a threshold
GONE = 0.1  # of what was there: less is gone, whatever the thresholds say
RANKS_BACKWARDS = 0.45  # an AUC below this is of labels that were turned round
NAMED = 4  # findings that the error tells of


@dataclass(frozen=True)
class Finding:
    """Something that a day has other than the days before."""

    sentence: str
    weight: float
    """how often its threshold is passed"""


def findings(gate: Gate, day: OfDay, recent: Sequence[OfDay]) -> list[Finding]:
    """What a day has beyond the thresholds, the worst first: of each input one thing, the plainest.

    `before` are the days it is compared to, the oldest first; without any there is nothing.
    """
    if not recent:
        return []
    days = "day" if len(recent) == 1 else f"{len(recent)} days"
    examples = together(day.examples, [other.examples for other in recent])
    deviations = []
    for name, figures in day.inputs.items():
        others = [other.inputs[name] for other in recent if name in other.inputs]
        if others:
            kind = "" if name.startswith(LABEL + " ") else "numeric." if figures.edges else "slots."
            of_input = list(_of_input(gate, figures, others, examples))
            if of_input:
                text = of_input[0][0].format(days=days)
                weight = max(weight for _, weight in of_input)
                deviations.append(Finding(f"{kind}{name}: {text}", weight))
    for name, rate in day.labels.items():
        if f"{LABEL} {name}" in day.inputs:
            continue
        rates = [other.labels[name] for other in recent if name in other.labels]
        if rates and (label := _of_label(gate, rate, rates, examples)) is not None:
            text, weight = label
            deviations.append(Finding(f"{LABEL} {name}: {text.format(days=days)}", weight))
    return sorted(deviations, key=lambda figures: -figures.weight)


def together(now: float, recent: Sequence[float]) -> float:
    """How many draws differ from their mean as much as two figures of so many do from each other.

    Of the days before, the one of the fewest.
    """
    return 1 / (1 / max(now, 1) + 1 / max(min(recent), 1))


def turned_round(auc: float, recent: Sequence[float], clicks: float, others: float) -> bool:
    """Whether labels seem inverted: a model that ranked right ranks the day backwards."""
    if min(clicks, others) < 1:
        return False
    # Hanley and McNeil's deviation of an AUC of one half.
    chance = math.sqrt((clicks + others + 1) / (12 * clicks * others))
    return auc < RANKS_BACKWARDS - DEVIATIONS * chance and all(value >= 0.5 for value in recent)


def backwards(auc: float, recent: Sequence[float]) -> Finding:
    """The finding of `turned_round`."""
    usual = f", {_span(recent, '{:.3f}')} on the days before" if recent else ""
    return Finding(
        f"label: the model of the days before has AUC {auc:.3f} on it{usual}: labels look inverted",
        math.inf,
    )


def _of_input(
    gate: Gate, now: OfInput, recent: Sequence[OfInput], examples: float
) -> Iterator[tuple[str, float]]:
    """Findings of one input, the plainest first, with their weights; {days}: the days before."""
    yield from _coverage(gate, now, recent, examples)
    lengths = [day.length for day in recent if day.occurrences]
    if now.occurrences and lengths and now.edges is None:
        factor = _factor(now.length, min(lengths), max(lengths))
        draws = together(now.occurrences, [day.occurrences for day in recent if day.occurrences])
        allowed = gate.length * (1 + DEVIATIONS / math.sqrt(draws))
        if factor > allowed:
            yield (
                f"{now.length:.3g} ids per example that has any, {_span(lengths, '{:.3g}')} on the "
                f"{{days}} before (gate.length={gate.length:g})",
                _weight(factor, allowed),
            )
    known = [day.known for day in recent if day.known is not None]
    if now.known is not None and known:
        draws = together(
            now.occurrences, [day.occurrences for day in recent if day.known is not None]
        )
        least = min(known) * (1 - gate.new_ids) - DEVIATIONS / 2 / math.sqrt(draws)
        if now.known < least:
            new = [1 - day for day in known]
            yield (
                f"{1 - now.known:.1%} of its occurrences are of ids without a row, "
                f"{_span(new, '{:.1%}')} on the {{days}} before (gate.new_ids={gate.new_ids:g})",
                1 + (least - now.known) / max(min(known), 1e-9),
            )
    yield from _distinct(gate, now, recent)
    yield from _stability(gate, now, recent)


def _coverage(
    gate: Gate, now: OfInput, recent: Sequence[OfInput], examples: float
) -> Iterator[tuple[str, float]]:
    usual = [day.coverage for day in recent]
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


def _distinct(gate: Gate, now: OfInput, recent: Sequence[OfInput]) -> Iterator[tuple[str, float]]:
    """More examples may bring more ids, in proportion at the most."""
    pairs = [(day.distinct, day.occurrences) for day in recent if day.distinct]
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


def _stability(gate: Gate, now: OfInput, recent: Sequence[OfInput]) -> Iterator[tuple[str, float]]:
    """An input that moves every day may move as much again."""
    others = [day for day in recent if len(day.histogram) == len(now.histogram) and
              day.occurrences]  # fmt: skip
    if not now.occurrences or not others:
        return
    index, other = min(
        ((stability_index(now.histogram, day.histogram), day) for day in others),
        key=lambda two: two[0],
    )
    steps = [
        stability_index(two.histogram, day.histogram) for day, two in itertools.pairwise(others)
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
    """The label's mean, and its distance from 1: each may move by the factor."""
    worst = 0.0
    for turn in (False, True):
        # One more of each keeps a day without clicks from being infinitely far away.
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
    """The smallest and the largest, in the form of one."""
    low, high = form.format(min(values)), form.format(max(values))
    return low if low == high else f"{low} to {high}"


def in_words(findings: Sequence[Finding]) -> str:
    """Findings on one line, the worst first."""
    said = "; ".join(finding.sentence for finding in findings[:NAMED])
    return said + (f"; and {len(findings) - NAMED} more" if len(findings) > NAMED else "")
