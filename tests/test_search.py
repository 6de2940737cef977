"""Searches whose trials take no time: killed at any moment, failing, with hostile records."""

import dataclasses
import os
import random
import re
from pathlib import Path

import pytest

pytest.importorskip("optuna")

from tnctl.errors import UserError
from tnctl.training.search import search_loop
from tnctl.training.search.search_loop import Settings, Space, search
from tnctl.training.search.search_parameters import Parameter
from tnctl.training.search.trial_run import Outcome

PARAMETERS = (
    Parameter(key="rate", kind="float", low=1e-4, high=1.0, log=True),
    Parameter(key="width", kind="int", low=1, high=64, step=1),
    Parameter(key="kind", kind="choice", choices=("a", "b", "c")),
)


class KilledError(BaseException):
    """In the place of kill -9: nothing may catch it."""


@pytest.fixture(scope="module")
def conf(_workspace):
    from tnctl.cli.compose import compose

    return compose(_workspace / "small.yaml", [])


class World:
    """A search whose trials take no time: three evaluations of a function of the values.

    It is killed at the moment with a given number: each look at the world is a moment.
    """

    def __init__(self, conf, output, parameters=PARAMETERS, **settings):
        self.conf = dataclasses.replace(conf, output=str(output))
        self.parameters, self.settings = parameters, Settings(**{"trials": 30, **settings})
        self.moment, self.kill_at, self.trained = 0, None, []
        self.broken = set()

    def tick(self):
        self.moment += 1
        if self.moment == self.kill_at:
            raise KilledError

    def conf_of(self, texts):
        self.tick()
        recipe = {**self.conf.recipe, **texts}
        return dataclasses.replace(self.conf, recipe=recipe)

    def run_trial(self, conf, golden, judge):
        self.tick()
        assert conf.data.test is None and not conf.evaluation.test and golden == 200
        number = int(Path(conf.output).name.removeprefix("trial-"))
        if number in self.broken:
            return Outcome("failed", message="broken", exit_code=1)
        values = conf.recipe
        rate, width = float(values["rate"]), int(values["width"])
        goal = 1 / (1 + abs(rate - 0.01) * 9 + abs(width - 40) / 40) + (values["kind"] == "b")
        course = [goal * done / 3 for done in (1, 2, 3)]
        for place in (1, 2, 3):
            self.tick()
            poor = judge(course[:place])
            self.tick()
            if poor and place < 3:
                return Outcome("pruned")
        self.trained.append(number)
        return Outcome("complete", course[-1], tuple(course))

    def search(self, monkeypatch):
        monkeypatch.setattr(search_loop, "run_trial", self.run_trial)
        monkeypatch.setattr(os, "fsync", lambda _: None)  # no power fails here
        return search(Space(self.parameters, self.conf_of), self.settings)


def shape(result):
    return [(t.number, t.state, t.values, t.value) for t in result.trials]


@pytest.fixture(scope="module")
def unkilled(conf, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        world = World(conf, tmp_path_factory.mktemp("unkilled"))
        result, code = world.search(patch)
    assert code == 0
    return result, world


def test_a_search_finds_better_values_than_chance_and_stops_poor_trials(unkilled):
    result, world = unkilled
    assert [trial.number for trial in result.trials] == list(range(30))
    states = [trial.state for trial in result.trials]
    assert states[:5] == ["complete"] * 5 and states.count("pruned") >= 3
    assert sorted(world.trained) == [t.number for t in result.trials if t.state == "complete"]
    assert result.best.values["kind"] == "b"
    assert result.best.value == max(t.value for t in result.trials if t.state == "complete")
    late = [trial.values["kind"] for trial in result.trials[20:]]
    assert late.count("b") >= 6


@pytest.mark.parametrize("seed", range(3))
def test_a_search_killed_at_any_moment_makes_the_same_trials(
    conf, tmp_path, unkilled, monkeypatch, seed
):
    result, whole = unkilled
    chosen = random.Random(seed)
    world = World(conf, tmp_path / "killed")
    for _ in range(20):
        world.moment, world.kill_at = 0, chosen.randint(1, whole.moment // 8)
        try:
            again, _ = world.search(monkeypatch)
        except KilledError:
            continue
    world.kill_at = None
    again, code = world.search(monkeypatch)
    assert code == 0
    assert shape(again) == shape(result)
    assert again.best == result.best
    trained = world.trained
    assert len(set(trained)) == len(trained) == len(whole.trained)  # none was trained twice


def test_a_kill_between_two_values_of_a_trial_changes_no_value(
    conf, tmp_path, unkilled, monkeypatch
):
    from tnctl.training.search import record

    result, _ = unkilled
    real, calls = record.suggested, []

    def suggested(trial, parameter):
        calls.append(parameter.key)
        if len(calls) % 4 == 0:
            raise KilledError
        return real(trial, parameter)

    monkeypatch.setattr(record, "suggested", suggested)
    world = World(conf, tmp_path / "killed", trials=12)
    for _ in range(60):
        try:
            again, _ = world.search(monkeypatch)
            break
        except KilledError:
            pass
    assert len(calls) > 40
    assert shape(again) == shape(result)[:12]


def test_more_trials_go_on_where_fewer_ended_and_none_is_left_to_do(
    conf, tmp_path, unkilled, monkeypatch
):
    result, _ = unkilled
    for trials in (7, 30, 30, 9):
        world = World(conf, tmp_path / "more", trials=trials)
        again, _ = world.search(monkeypatch)
    assert shape(again) == shape(result) and world.trained == []
    other = World(conf, tmp_path / "seed", trials=7, seed=2)
    assert shape(other.search(monkeypatch)[0]) != shape(result)[:7]


def test_a_trial_that_fails_is_tried_again_with_its_values(conf, tmp_path, monkeypatch, capsys):
    world = World(conf, tmp_path / "failing", trials=8)
    world.broken = {2, 5}
    first, code = world.search(monkeypatch)
    assert code == 1 and first.failed == {2, 5}
    assert "trial 2 failed: broken" in capsys.readouterr().err
    assert [t.number for t in first.trials if t.state == "running"] == [2, 5]
    world.broken, world.trained = set(), []
    again, code = world.search(monkeypatch)
    assert code == 0 and not again.failed and world.trained == [2, 5]
    assert [t.values for t in again.trials] == [t.values for t in first.trials]


def test_a_lost_journal_is_made_again_from_the_trials(conf, tmp_path, unkilled, monkeypatch):
    result, _ = unkilled
    world = World(conf, tmp_path / "lost", trials=12)
    world.search(monkeypatch)
    (tmp_path / "lost/sweep.journal").unlink()
    again, _ = world.search(monkeypatch)
    assert shape(again) == shape(result)[:12]


@pytest.mark.long
def test_a_database_has_the_same_trials(conf, tmp_path, unkilled, monkeypatch):
    result, _ = unkilled
    url = f"sqlite:///{tmp_path}/sweeps.db"
    for output in ("one", "two"):
        world = World(conf, tmp_path / output, trials=8, storage=url)
        assert shape(world.search(monkeypatch)[0]) == shape(result)[:8]
    world = World(conf, tmp_path / "one", trials=8, storage=url)
    world.search(monkeypatch)
    assert world.trained == []
    assert not (tmp_path / "one").exists()


def test_less_is_better_for_some_metrics(conf, tmp_path, monkeypatch):
    evaluation = dataclasses.replace(conf.evaluation, monitor="logloss")
    less = dataclasses.replace(conf, evaluation=evaluation)
    result, _ = World(less, tmp_path / "less", trials=9).search(monkeypatch)
    assert result.best.value == min(t.value for t in result.trials if t.state == "complete")


def test_an_undefined_result_is_none(conf, tmp_path, monkeypatch):
    world = World(conf, tmp_path / "undefined", trials=3, prune=False)
    monkeypatch.setattr(world, "run_trial", lambda *_: Outcome("complete", None, (None,)))
    result, code = world.search(monkeypatch)
    assert code == 0 and result.best is None
    assert [trial.state for trial in result.trials] == ["failed"] * 3


OTHERS = [
    ({"parameters": PARAMETERS[:2]}, "these differ: kind"),
    (
        {"parameters": (dataclasses.replace(PARAMETERS[0], high=2.0), *PARAMETERS[1:])},
        "these differ: rate",
    ),
    ({"seed": 9}, "these differ: sweep.seed"),
]


@pytest.mark.parametrize(("other", "words"), OTHERS, ids=lambda v: str(v)[-20:])
def test_another_search_in_the_same_output_is_refused(conf, tmp_path, monkeypatch, other, words):
    World(conf, tmp_path / "out", trials=2).search(monkeypatch)
    earlier = (tmp_path / "out/sweep.journal").read_bytes()
    with pytest.raises(UserError, match=words) as refused:
        World(conf, tmp_path / "out", **other).search(monkeypatch)
    assert refused.value.exit_code == 2 and "overwrite=true" in str(refused.value)
    assert (tmp_path / "out/sweep.journal").read_bytes() == earlier


def test_another_conf_in_the_same_output_is_refused(conf, tmp_path, monkeypatch):
    World(conf, tmp_path / "out", trials=2).search(monkeypatch)
    rows = dataclasses.replace(conf, seed=5, train=dataclasses.replace(conf.train, epochs=3))
    with pytest.raises(UserError, match=r"these differ: seed, train\.epochs"):
        World(rows, tmp_path / "out").search(monkeypatch)
    # Neither how it is saved nor data that no trial reads is of the search.
    same = dataclasses.replace(
        conf,
        save=dataclasses.replace(conf.save, every_steps=5),
        data=dataclasses.replace(conf.data, test="other.csv"),
    )
    assert World(same, tmp_path / "out", trials=2).search(monkeypatch)[1] == 0


def test_overwrite_begins_again(conf, tmp_path, monkeypatch):
    world = World(conf, tmp_path / "out", trials=3)
    world.search(monkeypatch)
    world = World(conf, tmp_path / "out", trials=2, parameters=PARAMETERS[::-1], overwrite=True)
    result, _ = world.search(monkeypatch)
    assert len(result.trials) == 2 and world.trained == [0, 1]


def journal_of(conf, tmp_path, monkeypatch):
    World(conf, tmp_path / "out", trials=2).search(monkeypatch)
    return tmp_path / "out/sweep.journal"


DAMAGES = [
    (lambda text: text.replace(b'"op_code":', b'"op":', 1), "is no journal of a search"),
    (lambda _: b"a user's notes\n", "is no journal of a search"),
    (lambda _: b"a user's notes", "is no journal of a search"),
    (lambda _: b"\0" * 99, "is no journal of a search"),
    (lambda _: b"[]\n", "is no journal of a search"),
    (lambda text: text[: len(text) // 2] + b"\n" + text[len(text) // 2 :], "damaged: line"),
    (lambda text: text.replace(b'"op_code":4', b'"op_code":400'), "is damaged"),
    (lambda text: text.replace(b"CategoricalDistribution", b"Categorical"), "is damaged"),
    (lambda text: text.replace(b'"param_name":"width"', b'"param_name":"depth"'), "cannot draw"),
    (
        lambda text: re.sub(rb'("width","param_value_internal":)\d+', rb"\g<1>999", text),
        "cannot draw",
    ),
    (lambda text: text.replace(b'"monitor":"auc"', b'"monitor":7'), "description is damaged"),
    (lambda text: text.replace(b'"version":1', b'"version":9'), "newer tnctl"),
]


@pytest.mark.parametrize(("damage", "words"), DAMAGES, ids=lambda v: v if type(v) is str else "")
def test_a_damaged_journal_is_refused_in_a_line_and_left(
    conf, tmp_path, monkeypatch, damage, words
):
    journal = journal_of(conf, tmp_path, monkeypatch)
    text = damage(journal.read_bytes())
    assert text != journal.read_bytes()
    journal.write_bytes(text)
    with pytest.raises(UserError, match=words) as refused:
        World(conf, tmp_path / "out", trials=3).search(monkeypatch)
    assert "\n" not in str(refused.value)
    assert journal.read_bytes() == text


def test_a_journal_cut_in_its_last_line_goes_on(conf, tmp_path, monkeypatch, unkilled):
    journal = journal_of(conf, tmp_path, monkeypatch)
    text = journal.read_bytes()
    for cut in (1, 2, 40):
        journal.write_bytes(text[:-cut])
        again, _ = World(conf, tmp_path / "out", trials=2).search(monkeypatch)
        assert shape(again) == shape(unkilled[0])[:2]


@pytest.mark.parametrize("kind", ["folder", "link"])
def test_what_is_no_file_is_no_journal(conf, tmp_path, monkeypatch, kind):
    output = tmp_path / "out"
    output.mkdir()
    target = tmp_path / "target"
    target.write_text("")
    if kind == "folder":
        (output / "sweep.journal").mkdir()
    else:
        (output / "sweep.journal").symlink_to(target)
    with pytest.raises(UserError, match="is no journal"):
        World(conf, output, trials=2).search(monkeypatch)
    assert target.read_text() == ""


def test_a_journal_needs_a_local_file_and_a_database_its_driver(conf, tmp_path, monkeypatch):
    with pytest.raises(UserError, match="a file of this machine"):
        World(conf, "memory://a/b", trials=2).search(monkeypatch)
    for url in ("nonsense://a/b", f"sqlite:///{tmp_path}/none/a.db", "mysql+none://u:secret@h/b"):
        with pytest.raises(UserError) as refused:
            World(conf, tmp_path / "out", trials=2, storage=url).search(monkeypatch)
        assert "\n" not in str(refused.value) and "secret" not in str(refused.value)
