"""Exact metrics of scored examples: numpy in float64, ties counted right.

With sample weights w every mean below is a weighted one, and a pair of AUC counts as the product of
its two weights. COPC alone ignores them, as TensorNet's does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

BINS = 10
Floats = NDArray[np.float64]


def auc(scores: NDArray[Any], labels: NDArray[Any], weights: NDArray[Any] | None = None) -> float:
    """The exact area under the ROC curve, ties counting half; 0.5 without both classes.

    `scores`, `labels`, `weights` [n]. `labels` of at least 0.5 are clicks. The Mann-Whitney
    statistic over all pairs; exact as long as the sums of the weights are.
    """
    order = np.argsort(scores, kind="stable")
    area, _ = _areas(order, scores, labels, weights, np.zeros(len(scores), np.uint64))
    return float(area[0]) if len(area) else 0.5


def gauc(
    scores: NDArray[Any],
    labels: NDArray[Any],
    groups: NDArray[Any],
    weights: NDArray[Any] | None = None,
) -> float:
    """The mean of each group's AUC by its impressions, over groups with both classes.

    `groups` [n] names each example's group, such as its user. A group counts as often as it has
    examples (Zhu et al., Optimized Cost per Click in Taobao Display Advertising, 2017, eq. 7), or
    by the sum of their weights. 0.5 when no group has both classes.
    """
    order = np.lexsort((scores, groups))
    area, impressions = _areas(order, scores, labels, weights, groups)
    return float((area * impressions).sum() / impressions.sum()) if len(area) else 0.5


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
    weight = np.ones(len(order)) if weights is None else weights[order].astype(np.float64)
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


def logloss(
    logits: NDArray[Any], labels: NDArray[Any], weights: NDArray[Any] | None = None
) -> float:
    """The mean binary cross-entropy, in float64: max(z, 0) - z y + ln(1 + e^-|z|)."""
    z, y = logits.astype(np.float64), labels.astype(np.float64)
    return mean(np.maximum(z, 0) - z * y + np.log1p(np.exp(-np.abs(z))), weights)


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
    return mean(np.abs(predictions[labelled] - y) / np.abs(y), _chosen(weights, labelled))


def calibration(
    predictions: NDArray[Any],
    labels: NDArray[Any],
    weights: NDArray[Any] | None = None,
    bins: int = BINS,
) -> list[dict[str, float]]:
    """Mean prediction, mean label and count of `bins` bins of equal count, by rising prediction.

    Counts differ by at most 1. Examples of equal prediction stand with the mean of their labels, so
    that their order does not matter where a bin ends among them. Fewer examples than bins give one
    bin each.
    """
    order = np.argsort(predictions, kind="stable")
    ranked, actual = predictions[order].astype(np.float64), labels[order].astype(np.float64)
    weight = np.ones(len(order)) if weights is None else weights[order].astype(np.float64)
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


def sigmoid(logits: NDArray[Any]) -> Floats:
    """1 / (1 + e^-z) in float64, without overflow."""
    z = logits.astype(np.float64)
    small = np.exp(-np.abs(z))
    return np.where(z >= 0, 1.0, small) / (1 + small)


def _chosen(weights: NDArray[Any] | None, which: NDArray[Any]) -> NDArray[Any] | None:
    return None if weights is None else weights[which]


def of_head(
    logits: NDArray[np.float32],
    labels: NDArray[np.float32],
    *,
    weights: NDArray[np.float32] | None = None,
    groups: NDArray[np.uint64] | None = None,
    squared: bool = False,
) -> dict[str, Any]:
    """The metrics of one head: `logits`, `labels`, `weights`, `groups` [n].

    The prediction is the sigmoid of the logit; with `squared` (train.loss=mse) it is the logit
    itself, there is no logloss, and AUC, GAUC and accuracy are of labels 0 and 1 only.
    `accuracy` calls a prediction of at least 0.5 a click.
    """
    predictions = logits.astype(np.float64) if squared else sigmoid(logits)
    y = labels.astype(np.float64)
    errors = predictions - y
    figures: dict[str, Any] = {}
    classes = not squared or bool(np.isin(labels, (0, 1)).all())
    if classes:
        figures["auc"] = auc(logits, labels, weights)
        if groups is not None:
            figures["gauc"] = gauc(logits, labels, groups, weights)
    if not squared:
        figures["logloss"] = logloss(logits, labels, weights)
    predicted = float(predictions.sum())
    figures |= {
        "ctr": mean(y, weights),
        "pctr": mean(predictions, weights),
        "copc": float(y.sum()) / predicted if predicted else 0.0,
    }
    if classes:
        figures["accuracy"] = mean((predictions >= 0.5) == (y >= 0.5), weights)
    return figures | {
        "mse": mean(errors**2, weights),
        "mae": mean(np.abs(errors), weights),
        "mape": mape(predictions, labels, weights),
        "calibration": calibration(predictions, labels, weights),
    }


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

    def metrics(self) -> dict[str, Any]:
        """What a report says: the main head's figures, and under `heads` those of the others.

        `head` names the main one where there are several.
        """
        main, *others = [
            of_head(
                np.ascontiguousarray(self.logits[:, head]),
                np.ascontiguousarray(self.labels[:, head]),
                weights=self.weight,
                groups=self.group,
                squared=self.squared,
            )
            for head in range(len(self.heads))
        ]
        figures = {"examples": len(self.labels), **main}
        if self.reference is not None:
            known = ~np.isnan(self.reference)
            figures["reference_auc"] = auc(
                self.reference[known], self.labels[known, 0], _chosen(self.weight, known)
            )
        if others:
            figures["head"] = self.heads[0]
            figures["heads"] = dict(zip(self.heads[1:], others, strict=True))
        return figures


def scalars(metrics: dict[str, Any]) -> dict[str, Any]:
    """The metrics that are numbers, those of other heads under `heads`: what a history keeps."""
    kept = {name: value for name, value in metrics.items() if not isinstance(value, list | dict)}
    if "heads" in metrics:
        kept["heads"] = {name: scalars(of) for name, of in metrics["heads"].items()}
    return kept
