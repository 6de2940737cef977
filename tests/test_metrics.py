"""Every metric against a slow obvious model of it."""

import itertools
import json
import math
import re

import numpy as np
import pytest

from tnctl.evaluation import metrics
from tnctl.evaluation.metrics import HeadExamples, Scored
from tnctl.evaluation.split_scoring import metrics_line


def slow_auc(scores, labels, weights):
    pairs = [
        (wi * wj, 1.0 if si > sj else 0.5 if si == sj else 0.0)
        for si, yi, wi in zip(scores, labels, weights, strict=True)
        if yi >= 0.5
        for sj, yj, wj in zip(scores, labels, weights, strict=True)
        if yj < 0.5
    ]
    total = sum(weight for weight, _ in pairs)
    return sum(weight * won for weight, won in pairs) / total if total else None


def slow_gauc(scores, labels, groups, weights):
    total = won = 0.0
    for group in np.unique(groups):
        of = groups == group
        if len({label >= 0.5 for label in labels[of]}) == 2:
            total += weights[of].sum()
            won += weights[of].sum() * slow_auc(scores[of], labels[of], weights[of])
    return won / total if total else None


def slow_ndcg(scores, labels, groups, weights, at):
    """Each group's mean DCG over all orders of its ties, over the best of all its orders."""

    def dcg(order, gains):
        return sum(gains[i] / math.log2(1 + rank) for rank, i in enumerate(order[:at], 1))

    total = won = 0.0
    for group in np.unique(groups):
        of = (groups == group) & (weights > 0)
        gains = weights[of] * (2 ** labels[of].astype(float) - 1)
        if gains.sum() > 0:
            orders = list(itertools.permutations(range(of.sum())))
            best = max(dcg(order, gains) for order in orders)
            falls = [order for order in orders if (np.diff(scores[of][list(order)]) <= 0).all()]
            total += weights[of].sum()
            won += weights[of].sum() * np.mean([dcg(order, gains) for order in falls]) / best
    return won / total if total else None


def slow_logloss(logits, labels, weights):
    losses = []
    for z, y in zip(logits.astype(float), labels.astype(float), strict=True):
        p = 1 / (1 + math.exp(-z))
        losses.append(-(y * math.log(p) + (1 - y) * math.log(1 - p)))
    return float(np.average(losses, weights=weights))


def slow_ne(logits, labels, weights):
    """The logloss over that of a model that predicts the mean label, computed as for any model."""
    base = float(np.average(labels, weights=weights))
    constant = np.full(len(labels), math.log(base / (1 - base)))
    return slow_logloss(logits, labels, weights) / slow_logloss(constant, labels, weights)


def examples(n=120, seed=0, distinct=9):
    """Scores with many ties, labels, weights and groups, some of one class only."""
    rng = np.random.default_rng(seed)
    logits = (rng.integers(0, distinct, n) - 4).astype(np.float32) / 3
    labels = (rng.random(n) < 1 / (1 + np.exp(-logits))).astype(np.float32)
    weights = rng.random(n).astype(np.float32)
    groups = rng.integers(0, 25, n).astype(np.uint64) * np.uint64(2**59)
    return logits, labels, weights, groups


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("distinct", [2, 9, 10**6])
def test_auc_and_gauc(seed, distinct):
    logits, labels, weights, groups = examples(seed=seed, distinct=distinct)
    ones = np.ones(len(logits))
    assert metrics.auc(logits, labels) == pytest.approx(slow_auc(logits, labels, ones), abs=1e-15)
    assert metrics.gauc(logits, labels, groups) == pytest.approx(
        slow_gauc(logits, labels, groups, ones), abs=1e-14
    )
    assert metrics.auc(logits, labels, weights) == pytest.approx(
        slow_auc(logits, labels, weights.astype(float)), abs=1e-12
    )
    assert metrics.gauc(logits, labels, groups, weights) == pytest.approx(
        slow_gauc(logits, labels, groups, weights.astype(float)), abs=1e-12
    )


@pytest.mark.parametrize("at", [1, 2, 3, 10])
@pytest.mark.parametrize("distinct", [1, 2, 10**6])
def test_ndcg(at, distinct):
    logits, labels, weights, _ = examples(24, seed=at, distinct=distinct)
    groups = np.arange(24, dtype=np.uint64) % 6
    groups[0] = 99  # alone in its group
    weights[::6] = 0
    graded = np.where(labels > 0, weights, labels)
    for y, w in ((labels, None), (labels, weights), (graded, weights)):
        each = np.ones(len(y)) if w is None else w.astype(float)
        expected = slow_ndcg(logits, y, groups, each, at)
        assert metrics.ndcg(logits, y, groups, at, w) == pytest.approx(expected, abs=1e-13)
    # No order of the examples matters, nor do other names of the groups.
    shuffled = np.random.default_rng(at).permutation(len(logits))
    again = metrics.ndcg(logits[shuffled], labels[shuffled], ~groups[shuffled], at)
    assert metrics.ndcg(logits, labels, groups, at) == pytest.approx(again, abs=1e-13)


def test_ndcg_of_small_groups():
    y, groups = np.array([0, 1, 1, 0.0]), np.array([7, 7, 9, 9])
    # The positive is second of group 7, and first of group 9.
    assert metrics.ndcg(np.array([2, 1, 2, 1.0]), y, groups, 2) == pytest.approx(
        (1 / math.log2(3) + 1) / 2
    )
    assert metrics.ndcg(np.array([2, 1, 2, 1.0]), y, groups, 1) == 0.5
    # Of equal scores each order counts.
    assert metrics.ndcg(np.zeros(4), y, groups, 1) == 0.5
    # A group without a positive is left out; one of positives only has 1.
    assert metrics.ndcg(np.arange(4.0), np.array([1, 1, 0, 0]), groups, 3) == 1
    assert metrics.ndcg(np.arange(4.0), 0 * y, groups, 3) is None
    assert metrics.ndcg(np.arange(4.0), y, groups, 3, np.zeros(4)) is None
    assert metrics.ndcg(np.empty(0), np.empty(0), np.empty(0), 3) is None


def test_ndcg_is_there_with_its_rank_groups_and_classes():
    logits, labels, _, groups = examples(60)
    for changes, is_there in (
        ({}, True), ({"ndcg_at": None}, False), ({"group": None}, False),
        ({"squared": True, "labels": np.stack([labels * 2, labels], axis=1)}, False),
    ):  # fmt: skip
        figures = scored(**{"ndcg_at": 3, "weight": None, **changes}).metrics()
        assert ("ndcg" in figures) == is_there, changes
    figures = scored(ndcg_at=3, weight=None).metrics()
    assert figures["ndcg"] == metrics.ndcg(logits, labels, groups, 3)
    assert figures["heads"]["ctcvr"]["ndcg"] == metrics.ndcg(logits * 2, 1 - labels, groups, 3)
    assert f"ndcg {figures['ndcg']:.4f}" in metrics_line(figures)


def test_auc_at_the_edges():
    none = np.empty(0, np.float32)
    assert metrics.auc(none, none) is None
    assert metrics.gauc(none, none, none) is None
    ones = np.ones(1, np.float32)
    assert metrics.auc(ones, ones) is None
    assert metrics.auc(ones, 0 * ones) is None
    assert metrics.auc(np.arange(4.0), np.ones(4)) is None
    assert metrics.auc(np.zeros(4), np.array([0, 1, 0, 1.0])) == 0.5
    assert metrics.auc(np.arange(4.0), np.array([0, 0, 0.5, 1])) == 1.0
    assert metrics.auc(np.arange(4.0)[::-1], np.array([0, 0, 0.49, 1])) == 0.0
    # Every group has one class: nothing can be ordered.
    assert metrics.gauc(np.arange(4.0), np.array([0, 0, 1, 1]), np.array([1, 1, 2, 2])) is None
    # Examples of weight 0 are as if they were not there.
    weights = np.array([1, 1, 0, 0.0])
    assert metrics.auc(np.arange(4.0), np.array([0, 1, 1, 0]), weights) == 1.0
    assert metrics.auc(np.arange(4.0), np.array([0, 1, 1, 0]), np.zeros(4)) is None


@pytest.mark.parametrize("label", [0.0, 1.0])
@pytest.mark.parametrize("n", [1, 5])
def test_of_one_class_there_is_no_auc(label, n):
    """None in the figures, `-` where they are shown; what needs no second class is there."""
    logits, labels = np.linspace(-1, 1, n).astype(np.float32), np.full(n, label, np.float32)
    groups = np.zeros(n, np.uint64)
    figures = metrics.of_head(HeadExamples(logits, labels, groups=groups))
    assert figures["auc"] is None and figures["gauc"] is None and figures["ne"] is None
    assert figures["logloss"] == pytest.approx(slow_logloss(logits, labels, None))
    assert json.loads(json.dumps(figures)) == figures
    whole = Scored(("click",), logits[:, None], labels[:, None], reference=logits.astype(float))
    line = metrics_line(whole.metrics())
    assert re.fullmatch(r"auc -  reference -  (gauc -  )?logloss \d\.\d{4}  ne -", line)
    assert metrics.scalars(whole.metrics())["auc"] is None


def test_auc_is_exact_for_many():
    rng = np.random.default_rng(0)
    scores = rng.normal(size=300_001).astype(np.float32)
    labels = (rng.random(300_001) < 0.3).astype(np.float32)
    # Integers count the pairs without a rounding.
    order = np.argsort(scores)
    clicks = labels[order].astype(np.int64)
    assert len(np.unique(scores)) < len(scores)
    pairs = 0
    below = 0
    starts = np.append(np.flatnonzero(np.diff(scores[order], prepend=-np.inf)), len(scores))
    for start, end in itertools.pairwise(starts):
        positive = int(clicks[start:end].sum())
        negative = int(end - start) - positive
        pairs += positive * (2 * below + negative)
        below += negative
    assert metrics.auc(scores, labels) == pairs / 2 / (int(clicks.sum()) * below)


def test_a_group_counts_as_often_as_it_has_examples():
    scores = np.array([1, 2, 1, 2, 3, 4.0])
    labels = np.array([0, 1, 1, 0, 0, 0.0])
    groups = np.array([7, 7, 9, 9, 9, 9])
    assert metrics.gauc(scores, labels, groups) == (2 * 1 + 4 * 0) / 6


def test_logloss_of_extreme_logits():
    extreme = np.array([1000, -1000, 0], np.float32)
    assert metrics.logloss(extreme, np.array([0, 1, 1.0])) == pytest.approx(
        (2000 + math.log(2)) / 3
    )
    assert metrics.sigmoid(extreme).tolist() == [1.0, 0.0, 0.5]


def test_normalised_entropy():
    # To predict the base rate is worth 1, whatever it is, and to know all is worth 0.
    for clicks in (1, 3, 40, 99):
        labels = (np.arange(100) < clicks).astype(np.float32)
        base = np.full(100, math.log(clicks / (100 - clicks)))
        assert metrics.normalised_entropy(base, labels) == pytest.approx(1, rel=1e-12)
        assert metrics.normalised_entropy(200 * labels - 100, labels) < 1e-40
    rare = np.zeros(10**6, np.float32)
    rare[0] = 1
    assert metrics.normalised_entropy(np.full(10**6, -math.log(10**6 - 1)), rare) == pytest.approx(
        1
    )
    # Without both classes the base rate has no entropy; so it is where no example counts.
    for none in (np.zeros(4), np.ones(4), np.ones(1)):
        assert metrics.normalised_entropy(np.zeros(len(none)), none) is None
    assert metrics.normalised_entropy(np.zeros(2), np.array([0, 1.0]), np.zeros(2)) is None
    assert metrics.normalised_entropy(np.zeros(2), np.array([0, 1.0]), np.array([0, 1.0])) is None


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("squared", [False, True])
def test_all_figures_of_a_head(weighted, squared):
    logits, labels, weights, groups = examples()
    weight = weights if weighted else None
    figures = metrics.of_head(HeadExamples(logits, labels, weight, groups, squared))
    w = weights.astype(float) if weighted else np.ones(len(logits))
    z, y = logits.astype(float), labels.astype(float)
    p = z if squared else 1 / (1 + np.exp(-z))
    not_zero = y != 0
    expected = {
        "auc": slow_auc(logits, labels, w),
        "gauc": slow_gauc(logits, labels, groups, w),
        "logloss": slow_logloss(logits, labels, w),
        "ne": slow_ne(logits, labels, w),
        "ctr": np.average(y, weights=w),
        "pctr": np.average(p, weights=w),
        "copc": y.sum() / p.sum(),  # TensorNet's: never weighted
        "accuracy": np.average((p >= 0.5) == (y >= 0.5), weights=w),
        "mse": np.average((p - y) ** 2, weights=w),
        "mae": np.average(np.abs(p - y), weights=w),
        "mape": np.average(np.abs(p - y)[not_zero] / y[not_zero], weights=w[not_zero]),
    }
    if squared:
        del expected["logloss"], expected["ne"]
    del figures["calibration"]
    assert figures == pytest.approx(expected, rel=1e-11)
    assert all(type(value) is float for value in figures.values())


def test_labels_that_are_numbers():
    logits = np.array([2.5, 3.0, 4.0], np.float32)
    labels = np.array([2.0, 4.0, 0.0], np.float32)
    figures = metrics.of_head(HeadExamples(logits, labels, squared=True))
    assert not {"auc", "accuracy", "logloss", "ne"} & figures.keys()
    assert figures["mse"] == pytest.approx((0.25 + 1 + 16) / 3)
    assert figures["mae"] == pytest.approx((0.5 + 1 + 4) / 3)
    assert figures["mape"] == pytest.approx((0.25 + 0.25) / 2)  # the label 0 is left out
    assert metrics.of_head(HeadExamples(logits, 0 * labels))["mape"] is None


@pytest.mark.parametrize("weighted", [False, True])
def test_the_histogram_counts_each_example_once(weighted):
    logits, labels, weights, _ = examples(1000)
    p = metrics.sigmoid(logits)
    p[17] = 1.0  # far from the others
    weight = weights if weighted else None
    w = weights.astype(float) if weighted else np.ones(len(p))
    bins = metrics.histogram(p, labels, weight)
    assert len(bins) == 40 and bins[-1]["up_to"] == pytest.approx(np.quantile(p, 0.995))
    width = bins[-1]["up_to"] / 40
    places = np.minimum((p / width).astype(int), 39)
    for place, entry in enumerate(bins):
        assert entry["up_to"] == pytest.approx((place + 1) * width)
        inside = places == place
        assert entry["negatives"] == pytest.approx(w[inside & (labels < 0.5)].sum())
        assert entry["positives"] == pytest.approx(w[inside & (labels >= 0.5)].sum())


def test_the_histogram_of_equal_predictions():
    for value in (0.0, 0.25, 1.0):
        bins = metrics.histogram(np.full(9, value), np.ones(9))
        assert sum(entry["positives"] for entry in bins) == 9
        assert all(entry["up_to"] > 0 and entry["negatives"] == 0 for entry in bins)


def slow_calibration(predictions, labels, weights, bins):
    shared = [
        np.average(labels[predictions == p], weights=weights[predictions == p]) for p in predictions
    ]
    means = [weights[predictions == p].mean() for p in predictions]
    order = sorted(range(len(predictions)), key=lambda i: predictions[i])
    buckets, at = [], 0
    for number in range(bins):
        size = len(order) // bins + (number < len(order) % bins)
        part, at = order[at : at + size], at + size
        buckets.append(
            {
                "prediction": np.average([predictions[i] for i in part],
                                         weights=[means[i] for i in part]),
                "label": np.average([shared[i] for i in part], weights=[means[i] for i in part]),
                "count": size,
            }
        )  # fmt: skip
    return buckets


@pytest.mark.parametrize("n", [10, 37, 120])
@pytest.mark.parametrize("distinct", [3, 10**6])
def test_calibration(n, distinct):
    logits, labels, weights, _ = examples(n, distinct=distinct)
    p, w = logits.astype(float), weights.astype(float)
    for given, used in ((None, np.ones(n)), (weights, w)):
        buckets = metrics.calibration(p, labels, given)
        expected = slow_calibration(p, labels, used, 10)
        assert len(buckets) == 10
        for bucket, other in zip(buckets, expected, strict=True):
            assert bucket == pytest.approx(other)
    # The order of the examples does not matter.
    shuffled = np.random.default_rng(1).permutation(n)
    again = metrics.calibration(p[shuffled], labels[shuffled])
    for bucket, other in zip(metrics.calibration(p, labels), again, strict=True):
        assert bucket == pytest.approx(other)


def test_calibration_of_few():
    few = metrics.calibration(np.array([0.5, 0.25]), np.array([1, 0.0]))
    assert few == [
        {"prediction": 0.25, "label": 0.0, "count": 1},
        {"prediction": 0.5, "label": 1.0, "count": 1},
    ]


def scored(**changes):
    logits, labels, weights, groups = examples(60)
    given = {
        "heads": ("ctr", "ctcvr"),
        "logits": np.stack([logits, logits * 2], axis=1),
        "labels": np.stack([labels, 1 - labels], axis=1),
        "weight": weights,
        "group": groups,
    }
    return Scored(**{**given, **changes})


def test_several_heads():
    logits, labels, weights, groups = examples(60)
    assert "head" not in scored(heads=("ctr",)).metrics()
    figures = scored(reference=np.where(labels > 0, 2.0, np.nan)).metrics()
    main = metrics.of_head(HeadExamples(logits, labels, weights, groups))
    other = metrics.of_head(HeadExamples(logits * 2, 1 - labels, weights, groups))
    assert (figures["head"], figures["heads"]) == ("ctr", {"ctcvr": other})
    assert {**figures, **main} == figures
    assert figures["examples"] == 60
    assert figures["reference_auc"] is None  # it is known of clicks only
    predictions = metrics.sigmoid(logits)
    assert figures["histogram"] == metrics.histogram(predictions, labels, weights)
    assert "histogram" not in other and "histogram" not in scored(squared=True).metrics()
    kept = metrics.scalars(figures)
    assert "calibration" not in kept and "histogram" not in kept
    assert "calibration" not in kept["heads"]["ctcvr"]
    assert kept["heads"]["ctcvr"]["auc"] == other["auc"]


def test_the_reference_where_it_is_known():
    logits, labels, _, _ = examples(60)
    reference = logits.astype(np.float64)
    reference[::3] = np.nan
    figures = scored(reference=reference, weight=None).metrics()
    known = ~np.isnan(reference)
    assert figures["reference_auc"] == metrics.auc(logits[known], labels[known])


@pytest.mark.parametrize("weighted", [False, True])
def test_intervals_are_those_of_a_bootstrap(weighted):
    random = np.random.default_rng(9)
    logits = random.normal(-2, 1, 3000).astype(np.float32)
    labels = (random.random(3000) < 1 / (1 + np.exp(-(0.6 * logits - 0.4)))).astype(np.float32)
    weights = random.integers(1, 4, 3000).astype(np.float32) if weighted else None
    known = metrics.intervals(HeadExamples(logits, labels, weights))
    drawn = []
    for _ in range(1000):
        rows = random.integers(0, 3000, 3000)
        weight = None if weights is None else weights[rows]
        head = metrics.of_head(HeadExamples(logits[rows], labels[rows], weight))
        drawn.append((head["ne"], head["copc"]))
    for number, name in enumerate(("ne", "copc")):
        low, high = known[name]
        deviation = np.std([values[number] for values in drawn])
        assert high - low == pytest.approx(2 * 1.96 * deviation, rel=0.15)
        assert (low + high) / 2 == pytest.approx(np.mean([v[number] for v in drawn]), rel=0.02)


def test_intervals_of_what_is_undefined():
    zeros = np.zeros(5, np.float32)
    known = metrics.intervals(HeadExamples(zeros, zeros))
    assert known["ne"] is None and known["copc"] == [0, 0] and known["examples"] == 5
