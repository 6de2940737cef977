"""The day gate on examples that come in sessions: design effects, and weeks that are ordinary."""

from dataclasses import replace

import numpy as np
import pytest
from test_gate import looked, model_of

from tnctl.data.day_records import OfDay
from tnctl.schema import Gate
from tnctl.training.days.day_figures import MOST_BLOCKS, Clusters, histogram_effect
from tnctl.training.days.gate import findings, label_effect, turned_round

SESSIONS, LENGTH = 40, 50  # of a day: sessions, examples of each
DAY = OfDay(100, {"label": 0.1}, {})
SLOTS = {"slots": {"user": {}, "item": {}}, "numeric": {}}


def effect_of(values, groups=None, window=700):
    """The design effect of a mean, of examples that come in windows."""
    clusters = Clusters()
    for at in range(0, len(values), window):
        part = slice(at, at + window)
        clusters.begin(len(values[part]), None if groups is None else groups[part])
        clusters.add("label", values[part], ~values[part])
    return clusters.effect("label")


def labels_of(random, sessions, length):
    """Labels of sessions one after the other, each with a rate of its own."""
    rates = random.beta(0.3, 5.7, sessions)
    return (random.random((sessions, length)) < rates[:, None]).ravel()


@pytest.mark.parametrize("shuffled", [False, True])
def test_a_design_effect_is_by_how_much_a_mean_varies_more(shuffled):
    """By blocks where sessions stand together, by data.group wherever they stand."""
    random = np.random.default_rng(1)
    means = [labels_of(random, 300, 40).mean() for _ in range(400)]
    wanted = np.var(means) / (0.05 * 0.95 / 12_000)
    assert wanted > 5
    effects = []
    for _ in range(30):
        labels, groups = labels_of(random, 300, 40), None
        if shuffled:
            order = random.permutation(len(labels))
            groups = np.repeat(random.integers(0, 2**62, 300).astype(np.uint64), 40)[order]
            labels = labels[order]
            assert effect_of(labels) < 2.5  # nothing stands together
        effects.append(effect_of(labels, groups))
    assert np.median(effects) == pytest.approx(wanted, rel=0.25)


@pytest.mark.parametrize("examples", [1, 15, 60, 1000, 20_000])
def test_independent_examples_have_nearly_no_effect(examples):
    random = np.random.default_rng(2)
    effects = [effect_of(random.random(examples) < 0.2) for _ in range(40)]
    assert 1 <= np.median(effects) < 1.3 and max(effects) < 2.5


def test_examples_without_a_group_are_not_one_group():
    random = np.random.default_rng(9)
    labels = np.concatenate([random.random(6000) < 0.01, random.random(6000) < 0.2])
    groups = np.where(np.arange(12_000) < 6000, 7, random.integers(0, 2**62, 12_000))
    order = random.permutation(12_000)
    assert effect_of(labels[order], groups[order].astype(np.uint64)) < 2.5


def test_windows_do_not_matter():
    random = np.random.default_rng(3)
    labels = labels_of(random, 90, 37)
    assert len(labels) > 8 * MOST_BLOCKS
    groups = random.integers(0, 2**62, len(labels)).astype(np.uint64)
    effects = {effect_of(labels, groups, window) for window in (37, 100, 5000)}
    assert max(effects) == pytest.approx(min(effects), rel=1e-9)


def test_a_histogram_has_the_mean_of_its_places():
    """Rao and Scott: of k shares, the sum of n var(p) / p over k - 1."""
    random = np.random.default_rng(4)
    sums = random.poisson(random.gamma(2, 3, (30, 5))).astype(float)
    sums[:, 3] = 0  # a place without any
    n, total = sums.sum(), 0.0
    for place in (0, 1, 2, 4):
        share = sums[:, place].sum() / n
        residuals = [row[place] - share * row.sum() for row in sums]
        total += 30 / 29 * sum(value**2 for value in residuals) / n**2 * n / share
    assert histogram_effect(sums) == pytest.approx(total / 3)
    assert histogram_effect(sums[:10]) == histogram_effect(sums[:, :1]) == 0


def day_of(random, clicking=0.08, sessions=SESSIONS):
    """Each session has one user and a few items; few sessions click, and these often."""
    topics = np.repeat(random.integers(0, 60, sessions), LENGTH)
    rates = np.repeat(np.where(random.random(sessions) < clicking, 0.25, 0.002), LENGTH)
    return {
        "user": [f"u{user}" for user in np.repeat(random.integers(0, 400, sessions), LENGTH)],
        "item": [f"i{topic}.{random.integers(0, 4)}" for topic in topics],
        "label": (random.random(len(topics)) < rates).astype(float),
    }


def as_independent(day):
    """The figures of a day without its design effects: as if no example depended on another."""
    ones = dict.fromkeys(("coverage_effect", "length_effect", "design_effect"), 1.0)
    inputs = {name: replace(of, **ones) for name, of in day.inputs.items()}
    return replace(day, inputs=inputs, label_effects={})


def test_ordinary_weeks_pass():
    """Without design effects more than half of the weeks had a day refused."""
    random, weeks = np.random.default_rng(5), 25
    refused = {"independent": 0, "sessions": 0}
    for _ in range(weeks):
        model, days, kinds = model_of(**SLOTS), [], set()
        for _ in range(7):
            day = looked(model, day_of(random))
            plain = [as_independent(earlier) for earlier in days]
            if findings(Gate(), as_independent(day), plain):
                kinds.add("independent")
            if findings(Gate(), day, days):
                kinds.add("sessions")
            days.append(day)
        for kind in kinds:
            refused[kind] += 1
    assert refused["independent"] > weeks / 2
    assert refused["sessions"] <= 1


LOST = {
    "half of a column": ("item", lambda v: [None] * (len(v) // 2) + v[len(v) // 2 :]),
    "hashed again": ("user", lambda v: [f"{text}x" for text in v]),
    "items hashed again": ("item", lambda v: [f"{text}x" for text in v]),
    "clicks": ("label", lambda v: v * 0),
    "labels inverted": ("label", lambda v: 1 - v),
}


@pytest.fixture(scope="module")
def large_week():
    """A model that has seen seven days of ten times as many sessions, and these days."""
    random, model, days = np.random.default_rng(6), model_of(**SLOTS), []
    for _ in range(7):
        day = looked(model, day_of(random, sessions=10 * SESSIONS))
        assert not findings(Gate(), day, days)
        days.append(day)
    return model, days


@pytest.mark.parametrize("loss", LOST)
def test_a_loss_is_found_among_sessions(large_week, loss):
    model, days = large_week
    name, change = LOST[loss]
    columns = day_of(np.random.default_rng(7), sessions=10 * SESSIONS)
    assert not findings(Gate(), looked(model, columns, insert=False), days)
    columns[name] = change(columns[name])
    reasons = findings(Gate(), looked(model, columns, insert=False), days)
    assert reasons and f" {name}:" in f" {reasons[0].sentence.replace('.', ' ')}"


def test_an_auc_of_few_sessions_is_no_inversion():
    looks = [replace(day, label_effects={"label": effect}) for day, effect in ((DAY, 30.0),) * 3]
    assert label_effect("label", looks) == 30
    assert label_effect("other", looks) == label_effect("label", []) == 1
    assert turned_round(0.36, [0.7], 300, 1700)
    assert not turned_round(0.36, [0.7], 300 / 30, 1700 / 30)
    assert turned_round(0.36, [0.7], 30_000 / 30, 170_000 / 30)
