"""Exact metrics of scored examples."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


def auc(scores: NDArray[Any], labels: NDArray[Any]) -> float:
    """The exact area under the ROC curve, ties counting half; 0.5 without both classes.

    `labels` of at least 0.5 are clicks. The Mann-Whitney statistic over all pairs.
    """
    order = np.argsort(scores, kind="stable")
    ranked, clicks = scores[order], labels[order] >= 0.5
    # Equal scores share the mean of their ranks.
    starts = np.flatnonzero(np.append(True, ranked[1:] != ranked[:-1])[: len(ranked)])
    counts = np.diff(np.append(starts, len(ranked)))
    ranks = np.repeat(starts + (counts + 1) / 2, counts)
    positive = int(clicks.sum())
    negative = len(clicks) - positive
    if not positive or not negative:
        return 0.5
    return float((ranks[clicks].sum() - positive * (positive + 1) / 2) / (positive * negative))


def logloss(logits: NDArray[Any], labels: NDArray[Any]) -> float:
    """The mean binary cross-entropy, in float64: max(z, 0) - z y + ln(1 + e^-|z|)."""
    z, y = logits.astype(np.float64), labels.astype(np.float64)
    return float(np.mean(np.maximum(z, 0) - z * y + np.log1p(np.exp(-np.abs(z)))))


@dataclass(frozen=True)
class Scored:
    """Examples with the model's logits: float32 [n] each; `reference` float64 [n] if asked for."""

    logits: NDArray[np.float32]
    labels: NDArray[np.float32]
    reference: NDArray[np.float64] | None

    def metrics(self) -> dict[str, Any]:
        """What a report says of them: all exact, all floats in float64."""
        predictions = 1 / (1 + np.exp(-self.logits.astype(np.float64)))
        ctr, pctr = float(np.mean(self.labels, dtype=np.float64)), float(predictions.mean())
        figures: dict[str, Any] = {
            "examples": len(self.labels),
            "auc": auc(self.logits, self.labels),
            "logloss": logloss(self.logits, self.labels),
            "ctr": ctr,
            "pctr": pctr,
            "copc": ctr / pctr if pctr else 0.0,
        }
        if self.reference is not None:
            known = ~np.isnan(self.reference)
            figures["reference_auc"] = auc(self.reference[known], self.labels[known])
        return figures
