"""Schedules against Keras' where they coincide; what evaluations do to the rate and the end."""

import keras
import numpy as np
import pytest

from tnctl.checkpoint.document import WatchState
from tnctl.schema import Conf, Evaluation, Optimizers, Schedule, Train
from tnctl.training.schedule import EarlyStopping, factor, matters

schedules = keras.optimizers.schedules
STEPS = [0, 1, 2, 9, 10, 11, 49, 50, 51, 99, 100, 101, 150, 1000, 12_345]


def agrees(schedule, of_keras):
    for step in STEPS:
        expected = float(np.asarray(of_keras(step)))
        assert factor(schedule, step) == pytest.approx(expected, rel=1e-5, abs=1e-7), step


def test_constant():
    assert [factor(Schedule(), step) for step in STEPS] == [1.0] * len(STEPS)


@pytest.mark.parametrize("decay_steps", [1, 7, 1000])
def test_exponential(decay_steps):
    schedule = Schedule("exponential", decay_steps=decay_steps, decay_rate=0.9)
    agrees(schedule, schedules.ExponentialDecay(1.0, decay_steps, 0.9))
    floored = Schedule("exponential", decay_steps=decay_steps, decay_rate=0.9, end=0.25)
    assert [factor(floored, s) for s in STEPS] == [max(factor(schedule, s), 0.25) for s in STEPS]
    assert factor(Schedule("exponential", decay_rate=0.0, decay_steps=5), 5) == 0


def test_step():
    schedule = Schedule("step", boundaries=[10, 50, 100], factors=[0.5, 0.1, 2.0])
    agrees(schedule, schedules.PiecewiseConstantDecay([10, 50, 100], [1.0, 0.5, 0.1, 2.0]))


def test_day():
    """It goes by the rows of a day, and a day that is longer than it was keeps the last rate."""
    schedule = Schedule("day", end=0.2)
    assert factor(schedule, 7) == 1
    assert factor(schedule, 7, share_of_day=0.25) == pytest.approx(0.8)
    assert factor(schedule, 7, share_of_day=1.5) == pytest.approx(0.2)


@pytest.mark.parametrize("warmup", [0, 1, 10, 60])
@pytest.mark.parametrize("end", [0.0, 0.3])
def test_cosine(warmup, end):
    schedule = Schedule("cosine", warmup_steps=warmup, decay_steps=90, end=end)
    if warmup:
        given = {"initial_learning_rate": 0.0, "warmup_target": 1.0, "warmup_steps": warmup}
    else:
        given = {"initial_learning_rate": 1.0}
    agrees(schedule, schedules.CosineDecay(decay_steps=90, alpha=end, **given))


def test_warm_up_comes_before_every_schedule():
    for name in ("constant", "exponential", "step", "cosine", "plateau", "day"):
        given = {"boundaries": [2], "factors": [0.5]} if name == "step" else {}
        given |= {"decay_steps": 10} if name in ("exponential", "cosine") else {}
        schedule = Schedule(name, warmup_steps=4, **given)
        assert [factor(schedule, s) for s in range(4)] == [0, 0.25, 0.5, 0.75]
        assert factor(schedule, 4) == (0.5 if name == "step" else 1)
        if name == "exponential":
            assert factor(schedule, 14) == pytest.approx(0.96)


def test_plateau_is_what_it_is_told():
    schedule = Schedule("plateau", warmup_steps=2)
    assert [factor(schedule, s, 0.1) for s in (0, 1, 2, 3)] == [0, 0.5, 0.1, 0.1]
    assert factor(Schedule(), 5, 0.1) == 1  # the others know none


def conf_of(schedule=None, **evaluation):
    """As far as EarlyStopping looks."""
    conf = object.__new__(Conf)
    conf.evaluation = Evaluation(**evaluation)
    conf.optimizer = Optimizers(schedule=schedule or Schedule())
    conf.train = Train()
    return conf


def judge(watch, conf, value, step):
    return watch.judge(conf.evaluation, conf.optimizer.schedule, value, step)


def judged(conf, values):
    watch = EarlyStopping()
    return watch, [judge(watch, conf, value, step) for step, value in enumerate(values, 1)]


def test_better_is_by_min_delta():
    nan = float("nan")
    conf = conf_of(min_delta=0.01)
    watch, better = judged(conf, [0.5, 0.509, 0.511, 0.5, nan, 0.5205, 0.522])
    assert better == [True, False, True, False, False, False, True]
    assert (watch.best, watch.best_step, watch.without) == (0.522, 7, 0)
    watch, better = judged(conf_of(monitor="logloss", min_delta=0.0), [0.5, 0.5, 0.49, 0.6])
    assert better == [True, False, True, False]
    watch, better = judged(conf_of(), [nan, nan, 0.1])
    assert better == [False, False, True]


def test_stopping():
    values = [0.6, 0.5, 0.7, 0.6, 0.6, 0.6]
    watch, stops = EarlyStopping(), []
    for step, value in enumerate(values):
        judge(watch, conf_of(), value, step)
        stops.append(watch.stops(2))
    assert stops == [False, False, False, False, True, True]
    watch, _ = judged(conf_of(), values)
    assert not watch.stops(None)


def test_plateau_reduces_after_its_patience():
    schedule = Schedule("plateau", reduce=0.1, patience=2, end=0.005)
    watch, factors = EarlyStopping(), []
    conf = conf_of(schedule)
    for value in [0.5, 0.5, 0.5, 0.5, 0.6, 0.5, 0.5, 0.5, 0.5]:
        judge(watch, conf, value, 0)
        factors.append(watch.plateau)
    assert factors == pytest.approx([1, 1, 0.1, 0.1, 0.1, 0.1, 0.01, 0.01, 0.005])
    assert watch.without == 4


def test_the_state_is_all_of_it():
    """Resuming from the saved state at any place changes nothing."""
    rng = np.random.default_rng(0)
    conf = conf_of(Schedule("plateau", patience=2))
    whole = EarlyStopping()
    parts = EarlyStopping()
    for step, value in enumerate(rng.random(40)):
        parts = EarlyStopping(**vars(WatchState(**vars(parts))))
        assert judge(whole, conf, value, step) == judge(parts, conf, value, step)
        assert whole == parts
        assert whole.stops(5) == parts.stops(5)


def test_what_follows_from_evaluations():
    assert not matters(conf_of())
    assert matters(conf_of(keep="best"))
    assert matters(conf_of(patience=1))
    assert matters(conf_of(Schedule("plateau")))
