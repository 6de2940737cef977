"""What is wrong with a trained model, judged by rows that nothing was fitted to: lines of a report.

A figure counts as wrong only where the 95 % interval of it says so.
"""

import math
from collections.abc import Iterator

from tnctl.checkpoint.document import number_of
from tnctl.evaluation.metrics import METRICS
from tnctl.schema import Conf, Life
from tnctl.training import recalibrating
from tnctl.training.report.report_document import Baseline, Report

SMALL_BIAS = 0.02  # of COPC, that nobody would mend
SMALL_LOSS = 0.02  # of AUC, from the rows that were trained on to others


def weak_points(conf: Conf, report: Report) -> tuple[str, ...]:
    """A sentence for each, with what to try; none without the metrics of a split."""
    lines = [*of_calibration(conf, report), *of_memorising(conf.life, report)]
    if report.baseline is not None:
        lines += of_baseline(report, report.baseline)
    return tuple(lines)


def bounds(report: Report, name: str) -> tuple[float, float] | None:
    """The interval of a metric; None where it is undefined."""
    intervals = report.metrics.get("intervals")
    bounds = intervals.get(name) if isinstance(intervals, dict) else None
    return (float(bounds[0]), float(bounds[1])) if isinstance(bounds, list) else None  # type: ignore[arg-type]


def of_calibration(conf: Conf, report: Report) -> Iterator[str]:
    """Predictions no better than the mean label, or too high or too low in all."""
    way = "more rows, or a lower optimizer.embedding.learning_rate"
    if not recalibrating.is_wanted(conf):
        way = "evaluation.recalibrate=auto"
    ne, copc = bounds(report, "ne"), bounds(report, "copc")
    if ne is not None and ne[0] >= 1:
        yield (
            f"NE {_in_words(report, 'ne', ne)}: predicting the mean label for every row would be "
            f"better. Try {way}"
        )
    if copc is None or copc[0] <= 1 <= copc[1]:
        return
    if abs((report.figure("copc") or 1) - 1) >= SMALL_BIAS:
        low = copc[0] > 1
        yield (
            f"COPC {_in_words(report, 'copc', copc)}: there are "
            f"{'more' if low else 'fewer'} clicks than predicted. Try {way}; if clicks "
            f"became {'more' if low else 'fewer'} frequent with time, train to a later day"
        )


def of_memorising(life: Life, report: Report) -> Iterator[str]:
    """The rows of the last pass much better ordered than others, after several passes."""
    kept = [epoch for epoch in report.epochs if epoch.step <= _kept_step(report)]
    auc, metrics = report.figure("auc"), report.metrics
    if report.days or len(kept) < 2 or auc is None or kept[-1].running_auc is None:
        return
    gap = kept[-1].running_auc - auc
    if gap > SMALL_LOSS + 1.96 * error_of_auc(auc, *_classes(metrics)):
        way = "a greater optimizer.embedding.lazy_l2"
        if life.admission.after < 2:
            way = "life.admission.after=5"
        yield (
            f"AUC {kept[-1].running_auc:.4f} on the rows of pass {kept[-1].epoch} while they were "
            f"trained, and {auc:.4f} on data.{report.split}: rows are memorised. Try {way}"
        )


def of_baseline(report: Report, baseline: Baseline) -> Iterator[str]:
    """Boosted trees that are better in the main metric."""
    others = baseline.of_split(report.split)
    for name in ("auc", "logloss"):
        value, other = report.figure(name), number_of(others, name)
        if value is None or other is None or baseline.head is not None:
            continue
        sign = 1 if METRICS[name].greater_is_better else -1
        noise = (
            1.96 * error_of_auc(value, *_classes(report.metrics)) if name == "auc" else 0.01 * value
        )
        if sign * (other - value) > noise:
            yield (
                f"{baseline.library} is better: {METRICS[name].title} {other:.4f} beside "
                f"{value:.4f} on data.{report.split}. Try a search: -m sweep.trials=20"
            )
            return


def error_of_auc(auc: float, positives: float, negatives: float) -> float:
    """The standard error of an AUC (Hanley and McNeil, Radiology 143, 1982, equation 1)."""
    if positives < 1 or negatives < 1:
        return math.inf
    first, second = auc / (2 - auc), 2 * auc**2 / (1 + auc)
    variance = auc * (1 - auc)
    variance += (positives - 1) * (first - auc**2) + (negatives - 1) * (second - auc**2)
    return math.sqrt(max(variance, 0.0) / (positives * negatives))


def _classes(metrics: dict) -> tuple[float, float]:
    """How many examples are clicks, and how many are not."""
    examples, rate = (number_of(metrics, name) or 0.0 for name in ("examples", "ctr"))
    return examples * rate, examples * (1 - rate)


def _kept_step(report: Report) -> int:
    return report.best.step if report.best is not None and report.best.kept else report.steps


def _in_words(report: Report, name: str, interval: tuple[float, float]) -> str:
    """A figure with its interval and the split."""
    value = report.figure(name) or 0.0
    low, high = interval
    return f"{value:.3f} ({low:.3f} to {high:.3f}) on data.{report.split}"
