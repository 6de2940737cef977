"""The streaming AUC against the exact one."""

import numpy as np
import pytest

from tnctl.tables import StreamingAuc


def exact_auc(scores: np.ndarray, labels: np.ndarray) -> float:
    """Return the share of (click, other) pairs in the right order, ties counting half."""
    clicks, others = scores[labels >= 0.5], scores[labels < 0.5]
    above = (clicks[:, None] > others[None, :]).sum()
    ties = (clicks[:, None] == others[None, :]).sum()
    return float((above + ties / 2) / (len(clicks) * len(others)))


def streaming_auc(scores: np.ndarray, labels: np.ndarray, parts: int = 1) -> float | None:
    auc = StreamingAuc()
    for s, y in zip(np.array_split(scores, parts), np.array_split(labels, parts), strict=True):
        auc.update(s.astype(np.float32), y.astype(np.float32))
    return auc.result()


@pytest.mark.parametrize("scale", [0.01, 1.0, 30.0])
@pytest.mark.parametrize("shift", [-4.0, 0.0])
def test_close_to_exact(scale: float, shift: float) -> None:
    rng = np.random.default_rng(0)
    normal = rng.normal(size=3000)
    scores = scale * normal + shift
    labels = (rng.random(3000) < 1 / (1 + np.exp(-normal))).astype(float)
    wanted = exact_auc(scores, labels)
    assert 0.6 < wanted < 0.9
    # Scores within 0.01 of -4 share some 20 bins: pairs in one bin count half.
    tolerance = 1e-2 if (scale, shift) == (0.01, -4.0) else 2e-4
    assert abs(streaming_auc(scores, labels) - wanted) < tolerance


def test_parts_add_up() -> None:
    rng = np.random.default_rng(1)
    scores, labels = rng.normal(size=1001), rng.integers(0, 2, 1001)
    assert streaming_auc(scores, labels) == streaming_auc(scores, labels, parts=7)


def test_ties_count_half() -> None:
    rng = np.random.default_rng(2)
    scores = rng.integers(-3, 4, 2000).astype(float)
    labels = (rng.random(2000) < 0.3 + scores / 20).astype(float)
    assert abs(streaming_auc(scores, labels) - exact_auc(scores, labels)) < 1e-12
    assert streaming_auc(np.zeros(10), labels[:10]) == 0.5


def test_infinities_are_the_ends() -> None:
    scores = np.array([-np.inf, -1e38, -5, 0, 5, 1e38, np.inf])
    for clicks in range(1, 7):
        assert streaming_auc(scores, (np.arange(7) >= 7 - clicks).astype(float)) >= 1 - 0.5 / 6
    infinite = np.array([np.inf, -np.inf, 0, 0])
    assert streaming_auc(infinite, np.array([1, 0, 0, 1])) == 0.875
    assert streaming_auc(infinite, np.array([0, 1, 0, 1])) == 0.125


def test_nan_is_the_lowest() -> None:
    scores = np.array([np.nan, np.nan, -9.0, 1.0])
    assert streaming_auc(scores, np.array([0, 0, 1, 1])) == 1.0
    assert streaming_auc(scores, np.array([1, 0, 0, 1])) == (0.5 + 0 + 1 + 1) / 4


def test_of_one_class_there_is_none() -> None:
    assert StreamingAuc().result() is None
    for label in (0.0, 1.0):
        assert streaming_auc(np.arange(5.0), np.full(5, label)) is None


def test_labels_are_clicks_from_one_half_on() -> None:
    scores = np.array([1.0, 2.0, 3.0, 4.0])
    assert streaming_auc(scores, np.array([0.0, 0.49, 0.5, 1.0])) == 1.0


def test_arrays_that_do_not_fit_are_refused() -> None:
    auc = StreamingAuc()
    good = np.zeros(4, np.float32)
    with pytest.raises(ValueError, match="4 logits for 3 labels"):
        auc.update(good, good[:3])
    with pytest.raises(TypeError, match="float64"):
        auc.update(good.astype(float), good)
    with pytest.raises(ValueError, match="C-contiguous"):
        auc.update(np.zeros(8, np.float32)[::2], good)
    auc.update(good[:0], good[:0])
    assert auc.result() is None
