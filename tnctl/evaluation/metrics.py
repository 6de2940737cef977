"""Exact metrics of scored examples: numpy in float64, ties counted right.

`METRICS` has every metric. Each is computed from all examples of a split at once, which `score`
collects batch by batch: an exact AUC is no sum over batches. With sample weights w every mean below
is a weighted one, and a pair of AUC counts as the product of its two weights. COPC alone ignores
them, as TensorNet's does. A metric that these examples do not define is None.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

BINS = 10
HISTOGRAM_BINS = 40
HISTOGRAM_SHARE = 0.995  # of the examples, in the bins below the last one's upper end
Floats = NDArray[np.float64]


def auc(
    scores: NDArray[Any], labels: NDArray[Any], weights: NDArray[Any] | None = None
) -> float | None:
    """The exact area under the ROC curve, ties counting half; None without both classes.

    `scores`, `labels`, `weights` [n]. `labels` of at least 0.5 are clicks. The Mann-Whitney
    statistic over all pairs; exact as long as the sums of the weights are.
    """
    order = np.argsort(scores, kind="stable")
    area, _ = _areas(order, scores, labels, weights, np.zeros(len(scores), np.uint64))
    return float(area[0]) if len(area) else None


def gauc(
    scores: NDArray[Any],
    labels: NDArray[Any],
    groups: NDArray[Any],
    weights: NDArray[Any] | None = None,
) -> float | None:
    """The mean of each group's AUC by its impressions, over groups with both classes.

    `groups` [n] names each example's group, such as its user. A group counts as often as it has
    examples (Zhu et al., Optimized Cost per Click in Taobao Display Advertising, 2017, eq. 7), or
    by the sum of their weights. None when no group has both classes.
    """
    order = np.lexsort((scores, groups))
    area, impressions = _areas(order, scores, labels, weights, groups)
    return float((area * impressions).sum() / impressions.sum()) if len(area) else None


def _areas(
    order: NDArray[Any],
    scores: NDArray[Any],
    labels: NDArray[Any],
    weights: NDArray[Any] | None,
    groups: NDArray[Any],
) -> tuple[Floats, Floats]:
    """AUC and total weight of each group with both classes; `order` sorts by (group, score)."""
    if not len(order):
        return np.empty(0), np.empty(0)
    ranked, grouped = scores[order], groups[order]
    weight = _each(weights, len(order))[order]
    clicks = np.where(labels[order] >= 0.5, weight, 0.0)
    new_group = np.append(True, grouped[1:] != grouped[:-1])
    # Equal scores of one group are one step of its curve.
    steps = np.flatnonzero(new_group | np.append(True, ranked[1:] != ranked[:-1]))
    first = np.flatnonzero(new_group[steps])
    positive = np.add.reduceat(clicks, steps)
    negative = np.add.reduceat(weight - clicks, steps)
    below = np.cumsum(negative) - negative
    of_group = np.cumsum(new_group[steps]) - 1
    below -= below[first][of_group]
    pairs = np.add.reduceat(positive * (below + negative / 2), first)
    positives, negatives = np.add.reduceat(positive, first), np.add.reduceat(negative, first)
    both = (positives > 0) & (negatives > 0)
    possible = (positives * negatives)[both]
    return pairs[both] / possible, (positives + negatives)[both]


def _each(weights: NDArray[Any] | None, count: int) -> Floats:
    """The weight of each example; None: all 1."""
    return np.ones(count) if weights is None else weights.astype(np.float64)


def logloss(
    logits: NDArray[Any], labels: NDArray[Any], weights: NDArray[Any] | None = None
) -> float:
    """The mean binary cross-entropy, in float64: max(z, 0) - z y + ln(1 + e^-|z|)."""
    return mean(_losses(logits, labels), weights)


def _losses(logits: NDArray[Any], labels: NDArray[Any]) -> Floats:
    """The binary cross-entropy of each example, [n]."""
    z, y = logits.astype(np.float64), labels.astype(np.float64)
    return np.maximum(z, 0) - z * y + np.log1p(np.exp(-np.abs(z)))


def normalised_entropy(
    logits: NDArray[Any], labels: NDArray[Any], weights: NDArray[Any] | None = None
) -> float | None:
    """The logloss over the one of predicting the mean label p for every example; less is better.

    He et al., Practical Lessons from Predicting Clicks on Ads at Facebook, ADKDD 2014, section 2,
    equation 1. The divisor is the entropy -(p ln p + (1 - p) ln(1 - p)), so that figures of data
    with other base rates can be compared. A model that knows no more than p has 1. None where p is
    0 or 1, for the entropy is then 0.
    """
    base = mean(labels, weights)
    if not 0 < base < 1:
        return None
    return logloss(logits, labels, weights) / _entropy(base)


def _entropy(base: float) -> float:
    """The logloss of predicting the mean label for every example."""
    return -(base * math.log(base) + (1 - base) * math.log1p(-base))


def mean(values: NDArray[Any], weights: NDArray[Any] | None = None) -> float:
    """The (weighted) mean in float64; 0 where all weights are."""
    if weights is None:
        return float(np.mean(values, dtype=np.float64))
    weights = weights.astype(np.float64)
    total = weights.sum()
    return float((values * weights).sum() / total) if total else 0.0


def mape(
    predictions: NDArray[Any], labels: NDArray[Any], weights: NDArray[Any] | None = None
) -> float | None:
    """The mean of |prediction - label| / |label| over examples whose label is not 0.

    Where the label is 0 the quotient does not exist, so these are left out; None without others.
    """
    labelled = labels != 0
    if not labelled.any():
        return None
    y = labels[labelled].astype(np.float64)
    weights = None if weights is None else weights[labelled]
    return mean(np.abs(predictions[labelled] - y) / np.abs(y), weights)


def calibration(
    predictions: NDArray[Any],
    labels: NDArray[Any],
    weights: NDArray[Any] | None = None,
    bins: int = BINS,
) -> list[dict[str, float]]:
    """Mean prediction, mean label and count of `bins` bins of equal count, by rising prediction.

    Counts differ by at most 1. Each example of a group of equal predictions has the mean of the
    group's labels, so that their order does not matter where a bin ends among them. Fewer examples
    than bins give one bin each.
    """
    order = np.argsort(predictions, kind="stable")
    ranked, actual = predictions[order].astype(np.float64), labels[order].astype(np.float64)
    weight = _each(weights, len(order))[order]
    starts = np.flatnonzero(np.append(True, ranked[1:] != ranked[:-1])[: len(ranked)])
    counts = np.diff(np.append(starts, len(ranked)))
    sums = np.add.reduceat(weight, starts)
    means = np.add.reduceat(actual * weight, starts) / np.where(sums > 0, sums, 1)
    shared, shared_weight = np.repeat(means, counts), np.repeat(sums / counts, counts)
    return [
        {
            "prediction": mean(ranked[part], shared_weight[part]),
            "label": mean(shared[part], shared_weight[part]),
            "count": len(part),
        }
        for part in np.array_split(np.arange(len(ranked)), min(bins, len(ranked)))
    ]


def histogram(
    predictions: NDArray[Any], labels: NDArray[Any], weights: NDArray[Any] | None = None
) -> list[dict[str, float]]:
    """The examples without and with a click in 40 bins of equal width, by their predictions.

    The bins are from 0 to the 99.5 % quantile of the predictions (at least 1e-6), and the last one
    has all above it too: single high predictions would press all others into the first bins. With
    weights each example counts as its weight.
    """
    high = max(float(np.quantile(predictions, HISTOGRAM_SHARE)), 1e-6)
    within, clicked = np.minimum(predictions, high), labels >= 0.5
    counts = []
    for part in (~clicked, clicked):
        used = None if weights is None else weights[part].astype(np.float64)
        counts.append(np.histogram(within[part], HISTOGRAM_BINS, (0.0, high), weights=used)[0])
    ends = np.linspace(0.0, high, HISTOGRAM_BINS + 1)[1:]
    return [
        {"up_to": float(end), "negatives": float(negatives), "positives": float(positives)}
        for end, negatives, positives in zip(ends, *counts, strict=True)
    ]


def sigmoid(logits: NDArray[Any]) -> Floats:
    """1 / (1 + e^-z) in float64, without overflow."""
    z = logits.astype(np.float64)
    small = np.exp(-np.abs(z))
    return np.where(z >= 0, 1.0, small) / (1 + small)


@dataclass(frozen=True)
class HeadExamples:
    """What a metric is computed from: all examples of a split, with the logits of one head.

    `logits`, `labels` and `weights` float32 [n], `groups` uint64 [n]. `squared` says that the head
    is trained with train.loss=mse, so that its prediction is the logit itself.
    """

    logits: NDArray[np.float32]
    labels: NDArray[np.float32]
    weights: NDArray[np.float32] | None = None
    groups: Any = None
    squared: bool = False

    @cached_property
    def predictions(self) -> Floats:
        return self.logits.astype(np.float64) if self.squared else sigmoid(self.logits)

    @cached_property
    def targets(self) -> Floats:
        """The labels in float64."""
        return self.labels.astype(np.float64)

    @property
    def errors(self) -> Floats:
        return self.predictions - self.targets

    @cached_property
    def has_classes(self) -> bool:
        """Whether labels are classes: with `squared` they may be any numbers."""
        return not self.squared or bool(np.isin(self.labels, (0, 1)).all())


@dataclass(frozen=True)
class Metric:
    """A metric of a head. `name` is its key in report.json, log.jsonl and TensorBoard."""

    name: str
    value: Callable[[HeadExamples], Any]
    """the figure; None where these examples do not define it"""
    exists: Callable[[HeadExamples], bool] = lambda head: True  # noqa: ARG005
    """whether there is such a figure of these examples"""
    title: str = ""
    """its name where only the main metrics are shown; empty: it is not shown there"""
    greater_is_better: bool | None = None
    """None: it cannot be `evaluation.monitor`, which keep=best and early stopping use"""


def _copc(head: HeadExamples) -> float:
    """Clicks over predicted clicks, without weights; 0 when none are predicted."""
    predicted = float(head.predictions.sum())
    return float(head.targets.sum()) / predicted if predicted else 0.0


def intervals(head: HeadExamples) -> dict[str, Any]:
    """Bounds that hold NE and COPC with 95 % confidence, by the delta method.

    Each is [low, high], or None where the figure is undefined; `examples` is by how many.
    """
    known: dict[str, Any] = {"examples": len(head.labels), "ne": None, "copc": None}
    y, p = head.targets, head.predictions
    weights = _each(head.weights, len(y))
    ne = normalised_entropy(head.logits, head.labels, head.weights)
    if ne is not None:
        base = mean(y, head.weights)
        losses, entropy = _losses(head.logits, head.labels), _entropy(base)
        slope = math.log1p(-base) - math.log(base)  # of the entropy, by the base rate
        influence = (losses - ne * entropy - ne * slope * (y - base)) / entropy
        known["ne"] = _bounds(ne, influence, weights)
    if p.sum() > 0:
        copc = _copc(head)
        known["copc"] = _bounds(copc, (y - copc * p) / p.mean(), np.ones(len(y)))
    return known


def _bounds(value: float, influence: Floats, weights: Floats) -> list[float]:
    error = 1.96 * math.sqrt(float((weights**2) @ influence**2)) / float(weights.sum())
    return [value - error, value + error]


# In the order of their keys in a report.
METRICS = {
    metric.name: metric
    for metric in (
        Metric(
            "auc",
            lambda head: auc(head.logits, head.labels, head.weights),
            attrgetter("has_classes"),
            title="AUC",
            greater_is_better=True,
        ),
        Metric(
            "gauc",
            lambda head: gauc(head.logits, head.labels, head.groups, head.weights),
            lambda head: head.groups is not None and head.has_classes,
            title="GAUC",
            greater_is_better=True,
        ),
        Metric(
            "logloss",
            lambda head: logloss(head.logits, head.labels, head.weights),
            lambda head: not head.squared,
            title="logloss",
            greater_is_better=False,
        ),
        Metric(
            "ne",
            lambda head: normalised_entropy(head.logits, head.labels, head.weights),
            lambda head: not head.squared,
            title="normalised entropy",
            greater_is_better=False,
        ),
        Metric("ctr", lambda head: mean(head.targets, head.weights)),
        Metric("pctr", lambda head: mean(head.predictions, head.weights)),
        Metric("copc", _copc),
        Metric(  # a prediction of at least 0.5 counts as a click
            "accuracy",
            lambda head: mean((head.predictions >= 0.5) == (head.targets >= 0.5), head.weights),
            attrgetter("has_classes"),
            greater_is_better=True,
        ),
        Metric(
            "mse",
            lambda head: mean(head.errors**2, head.weights),
            title="MSE",
            greater_is_better=False,
        ),
        Metric(
            "mae", lambda head: mean(np.abs(head.errors), head.weights), greater_is_better=False
        ),
        Metric("mape", lambda head: mape(head.predictions, head.labels, head.weights)),
        Metric(
            "calibration", lambda head: calibration(head.predictions, head.labels, head.weights)
        ),
    )
}


def of_head(head: HeadExamples, names: Iterable[str] | None = None) -> dict[str, Any]:
    """All metrics, or those named, that exist of a head's examples, by name."""
    metrics = [METRICS[name] for name in names or METRICS]
    return {metric.name: metric.value(head) for metric in metrics if metric.exists(head)}


def main_metrics(metrics: Mapping[str, Any]) -> list[tuple[Metric, float | None]]:
    """The metrics with a title among computed ones; mse only where there is no logloss."""
    return [
        (metric, metrics[name])
        for name, metric in METRICS.items()
        if metric.title and name in metrics and not (name == "mse" and "logloss" in metrics)
    ]


def shown(value: float | None, digits: int) -> str:
    """A metric for the terminal with `digits` decimals; `-` where it is undefined."""
    return "-" if value is None else f"{value:.{digits}f}"


@dataclass(frozen=True)
class Scored:
    """Examples with the model's logits, in file order.

    `logits` and `labels` float32 [n, heads], of the heads that have a label, named by `heads`, the
    main one first; `weight` float32, `reference` float64 and `group` uint64 [n] if the conf has
    them.
    """

    heads: Sequence[str]
    logits: NDArray[np.float32]
    labels: NDArray[np.float32]
    weight: NDArray[np.float32] | None = None
    reference: NDArray[np.float64] | None = None
    group: NDArray[np.uint64] | None = None
    squared: bool = False
    judged: NDArray[np.bool_] | None = None
    """[n], the examples that nothing was fitted to; None: all"""

    def part(self, chosen: NDArray[np.bool_]) -> "Scored":
        """The examples that bool [n] chooses."""
        arrays = {
            name: getattr(self, name)[chosen]
            for name in ("logits", "labels", "weight", "reference", "group")
            if getattr(self, name) is not None
        }
        return replace(self, judged=None, **arrays)

    def of_head(self, index: int) -> HeadExamples:
        """The examples of one head, contiguous."""
        logits, labels = (
            np.ascontiguousarray(array[:, index]) for array in (self.logits, self.labels)
        )
        return HeadExamples(logits, labels, self.weight, self.group, self.squared)

    def metrics(self) -> dict[str, Any]:
        """The main head's metrics, and under `heads` the other heads', as a report has them.

        `head` names the main one where there are several; `histogram` is of that one alone.
        """
        heads = [self.of_head(index) for index in range(len(self.heads))]
        main, *further = [of_head(head) for head in heads]
        metrics: dict[str, Any] = {"examples": len(self.labels), **main}
        if not self.squared:
            metrics["histogram"] = histogram(heads[0].predictions, heads[0].labels, self.weight)
            judged = self if self.judged is None else self.part(self.judged)
            metrics["intervals"] = intervals(judged.of_head(0))
        if self.reference is not None:
            known = ~np.isnan(self.reference)
            weights = None if self.weight is None else self.weight[known]
            metrics["reference_auc"] = auc(self.reference[known], self.labels[known, 0], weights)
        if further:
            metrics["head"] = self.heads[0]
            metrics["heads"] = dict(zip(self.heads[1:], further, strict=True))
        return metrics


def scalars(metrics: dict[str, Any]) -> dict[str, Any]:
    """The metrics that are numbers, other heads' under `heads`: what a history keeps."""
    kept = {name: value for name, value in metrics.items() if not isinstance(value, list | dict)}
    if "heads" in metrics:
        kept["heads"] = {name: scalars(head) for name, head in metrics["heads"].items()}
    return kept
