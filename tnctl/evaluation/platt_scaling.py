"""Platt scaling: the slope and intercept of a logit with which its log loss is least.

J. Platt, Probabilistic Outputs for Support Vector Machines and Comparisons to Regularized
Likelihood Methods, 1999, section 2.1. Labels stay as they are, where Platt moves them away from 0
and 1: there are many rows, and so the mean prediction on them becomes the mean label. The least log
loss is found by Newton's method with halved steps, as Lin, Lin and Weng do it (A Note on Platt's
Probabilistic Outputs for Support Vector Machines, Machine Learning 68, 2007, algorithm 1).
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tnctl.evaluation.metrics import HeadExamples, Scored, logloss, sigmoid
from tnctl.model.parameter_tables import LARGEST, Recalibration
from tnctl.progress import say
from tnctl.tables.columns import mix64

MOST_STEPS = 100
MOST_HALVINGS = 30
TOLERANCE = 1e-9  # of the last step, beside the size of the parameters
MOST_CONDITION = 1e12  # of the second derivatives, beyond which a step is rounding
ROUNDING = 1e-12  # by which a sum of losses may be wrong

Floats = NDArray[np.float64]


class NoFitError(Exception):
    """There is no slope and intercept to take; the message says why."""


def recalibrated(
    scored: Scored, data: str = "data.validation", *, halved: bool = False
) -> tuple[dict[str, Recalibration], Scored]:
    """Fit every head: what was fitted, by head, and the same examples with recalibrated logits.

    With `halved` a half of the examples, by a hash of their places, is fitted to, and the other one
    is left to judge the result. A head that cannot be fitted keeps its logits, which a line says.
    """
    fitted_to, judged = scored, None
    if halved:
        judged = mix64(np.arange(len(scored.labels), dtype=np.uint64)) % 2 == 1
        fitted_to = scored.part(~judged)
    fitted: dict[str, Recalibration] = {}
    logits = scored.logits.copy()
    for index, head in enumerate(scored.heads):
        try:
            fitted[head] = fit(fitted_to.of_head(index))
        except NoFitError as error:
            name = f"head {head} is" if len(scored.heads) > 1 else "the model is"
            say(f"{name} not recalibrated on {data}: {error}. Its logits stay as they are")
        else:
            logits[:, index] = fitted[head].of(logits[:, index])
    return fitted, replace(scored, logits=logits, judged=judged)


def fit(head: HeadExamples) -> Recalibration:
    """The slope and intercept with the least (weighted) log loss. Raises NoFitError.

    Computed in float64, then rounded to float32.
    """
    targets = head.targets
    weights = np.ones(len(targets)) if head.weights is None else head.weights.astype(np.float64)
    counted = weights > 0
    logits, targets, weights = (
        array[counted] for array in (head.logits.astype(np.float64), targets, weights)
    )
    if not np.isfinite(logits).all():
        raise NoFitError("it has logits that are infinite or NaN")
    if not (targets > 0).any() or not (targets < 1).any():
        raise NoFitError("its labels are all of one class")
    weights /= weights.sum()
    mean = float(weights @ logits)
    deviation = float(np.sqrt(weights @ (logits - mean) ** 2))
    if not deviation > np.finfo(np.float32).eps * abs(mean):
        raise NoFitError("its logits are all equal")
    # With logits of mean 0 and deviation 1 the two parameters are of one size.
    standard = (logits - mean) / deviation
    scale, shift = least_loss(standard, targets, weights)
    if scale <= 0:
        raise NoFitError(
            f"the slope would be {scale / deviation:.4g}, and only one above 0 keeps the order of "
            "predictions"
        )
    slope = float(np.float32(scale / deviation))
    intercept = float(np.float32(shift - scale / deviation * mean))
    if not (0 < slope <= LARGEST and abs(intercept) <= LARGEST):
        raise NoFitError(f"the slope would be {scale / deviation:.4g}, which is no float32")
    return Recalibration(slope=slope, intercept=intercept)


def least_loss(values: Floats, targets: Floats, weights: Floats) -> tuple[float, float]:
    """The (a, b) with the least weighted log loss of a * values + b.

    `values`, `targets` and `weights` [n], the weights with sum 1. Raises NoFitError when no step
    becomes small: there is no least loss where the values part the labels, for then every larger a
    is better.
    """
    # From the mean label for all, where the loss is curved: far away it is flat.
    base = float(weights @ targets)
    point = np.array([0.0, np.log(base) - np.log1p(-base)])
    loss = logloss(point[0] * values + point[1], targets, weights)
    for _ in range(MOST_STEPS):
        step = newton_step(values, targets, weights, point)
        if not np.isfinite(step).all():
            break
        if np.abs(step).max() <= TOLERANCE * (1 + np.abs(point).max()):
            scale, shift = (point + step).tolist()
            return scale, shift
        for _ in range(MOST_HALVINGS):
            tried = point + step
            of_tried = logloss(tried[0] * values + tried[1], targets, weights)
            if of_tried <= loss + ROUNDING * (1 + loss):
                break
            step = step / 2
        else:
            break
        point, loss = tried, of_tried
    raise NoFitError("the fit does not converge, as where the logits part the labels")


def newton_step(values: Floats, targets: Floats, weights: Floats, point: Floats) -> Floats:
    """The step of Newton's method at (a, b); NaN where the loss is flat in some direction."""
    predictions = sigmoid(point[0] * values + point[1])
    residuals = weights * (predictions - targets)
    curvature = weights * predictions * (1 - predictions)
    gradient = np.array([residuals @ values, residuals.sum()])
    mixed = curvature @ values
    hessian = np.array([[curvature @ values**2, mixed], [mixed, curvature.sum()]])
    with np.errstate(all="ignore"):
        is_curved = np.linalg.cond(hessian) < MOST_CONDITION
    return np.linalg.solve(hessian, -gradient) if is_curved else np.full(2, np.nan)
