"""Searches whose trials take no time: killed, failing, several at once, with hostile records."""

import dataclasses
import os
import random
import threading
import time
from pathlib import Path

import pytest

pytest.importorskip("optuna")

import optuna

from tnctl.checkpoint.document import EvaluationEntry
from tnctl.errors import Failure, UserError
from tnctl.training.report.report_document import Report, Timing
from tnctl.training.search import search_loop
from tnctl.training.search.search_confs import Parameter, Space
from tnctl.training.search.search_loop import ATTRIBUTE, Settings, Trials, search, storage_at

PARAMETERS = (
    Parameter(key="rate", kind="float", low=1e-4, high=1.0, log=True),
    Parameter(key="width", kind="int", low=1, high=64, step=1),
    Parameter(key="kind", kind="choice", choices=("a", "b", "c")),
)


class KilledError(BaseException):
    """In the place of kill -9: nothing may catch it."""


@pytest.fixture(scope="module")
def conf(_workspace):
    from tnctl.composing.compose import compose

    return compose(_workspace / "small.yaml", [])


def report_of(course, monitor):
    """The report of a run with an evaluation of data.validation after each pass."""
    evaluations = tuple(
        EvaluationEntry(step=n, epoch=n, validation={monitor: value})
        for n, value in enumerate(course, 1)
    )
    return Report(
        metrics=evaluations[-1].validation, split="validation", evaluations=evaluations,
        steps=len(course), dense_weights=0, checkpoint="", timing=Timing(),
    )  # fmt: skip


class World:
    """A search whose trials take no time: three evaluations of a function of the values.

    It is killed at the moment with a given number: each look at the world is a moment.
    """

    def __init__(self, conf, output, parameters=PARAMETERS, **settings):
        self.conf = dataclasses.replace(conf, output=str(output))
        self.parameters, self.settings = parameters, Settings(**{"trials": 30, **settings})
        self.moment, self.kill_at, self.trained = 0, None, []
        self.broken, self.by_thread, self.seconds = set(), {}, 0.0

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
        time.sleep(self.seconds)
        assert conf.data.test is None and not conf.evaluation.test and golden == 200
        number = int(Path(conf.output).name.removeprefix("trial-"))
        self.by_thread.setdefault(threading.get_ident(), []).append(number)
        if number in self.broken:
            raise Failure("broken")
        values = conf.recipe
        rate, width = float(values["rate"]), int(values["width"])
        goal = 1 / (1 + abs(rate - 0.01) * 9 + abs(width - 40) / 40) + (values["kind"] == "b")
        course = [goal * done / 3 for done in (1, 2, 3)]
        for place in (1, 2, 3):
            self.tick()
            poor = judge(course[:place])
            self.tick()
            if poor and place < 3:
                return None
        self.trained.append(number)
        return report_of(course, conf.evaluation.monitor)

    def search(self, monkeypatch):
        monkeypatch.setattr(search_loop, "run_trial", self.run_trial)
        monkeypatch.setattr(os, "fsync", lambda _: None)  # no power fails here
        return search(Space(self.parameters, self.conf_of), self.settings)


def shape(result):
    return [(t.number, t.state.name, t.params, t.value) for t in result.trials]


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
    states = [trial.state.name for trial in result.trials]
    assert states[:5] == ["COMPLETE"] * 5 and states.count("PRUNED") >= 3
    complete = [trial for trial in result.trials if trial.state.name == "COMPLETE"]
    assert sorted(world.trained) == [trial.number for trial in complete]
    assert result.best.params["kind"] == "b"
    assert result.best.value == max(trial.value for trial in complete)
    late = [trial.params["kind"] for trial in result.trials[20:]]
    assert late.count("b") >= 6


@pytest.mark.parametrize("seed", range(3))
def test_a_search_killed_at_any_moment_goes_on(conf, tmp_path, unkilled, monkeypatch, seed):
    chosen = random.Random(seed)
    world, ended = World(conf, tmp_path / "killed"), {}
    for _ in range(20):
        world.moment, world.kill_at = 0, chosen.randint(1, unkilled[1].moment // 8)
        try:
            world.search(monkeypatch)
        except KilledError:
            study = optuna.load_study(
                study_name="sweep", storage=storage_at(None, world.conf.output)
            )
            now = {
                t.number: (t.params, t.value) for t in study.get_trials() if t.state.is_finished()
            }
            assert ended.items() <= now.items()
            ended = now
    world.kill_at = None
    again, code = world.search(monkeypatch)
    assert code == 0 and len(again.trials) == 30 and not again.under_way
    assert {t.number: (t.params, t.value) for t in again.trials if t.number in ended} == ended
    assert len(set(world.trained)) == len(world.trained)  # none was trained twice
    assert again.best.params["kind"] == "b"
    assert not list((tmp_path / "killed").glob(".*"))  # its locks


def test_several_commands_share_the_trials_of_a_search(conf, tmp_path, monkeypatch):
    world = World(conf, tmp_path / "shared", trials=16, prune=False)
    world.seconds, begun, run_trial = 0.02, threading.Barrier(3), world.run_trial

    def run_together(*arguments):
        if threading.get_ident() not in world.by_thread:
            begun.wait(60)  # until each command has a trial
        return run_trial(*arguments)

    world.run_trial = run_together
    commands = [threading.Thread(target=world.search, args=[monkeypatch]) for _ in range(3)]
    for command in commands:
        command.start()
    for command in commands:
        command.join()
    assert sorted(world.trained) == list(range(16))
    assert len(world.by_thread) == 3 and all(world.by_thread.values())
    result, code = world.search(monkeypatch)
    assert code == 0 and not result.under_way and result.best is not None
    drawn = [tuple(trial.params.values()) for trial in result.trials]
    assert len(set(drawn)) == 16  # no command draws the values of another


def test_a_trial_of_another_command_is_left_to_it(conf, tmp_path, monkeypatch):
    world = World(conf, tmp_path / "out", trials=2)
    space = Space(PARAMETERS, world.conf_of)
    with Trials(space, world.settings, space.first()).chosen() as trial:
        assert trial.number == 0
        result, code = world.search(monkeypatch)
        assert code == 0 and world.trained == [1] and result.under_way == 1
        again = World(conf, tmp_path / "out", trials=2, overwrite=True)
        with pytest.raises(UserError, match=r"process [0-9]+\) is working in"):
            again.search(monkeypatch)
    result, _ = world.search(monkeypatch)
    assert world.trained == [1, 0] and not result.under_way


def test_more_trials_go_on_where_fewer_ended_and_none_is_left_to_do(
    conf, tmp_path, unkilled, monkeypatch
):
    for trials in (7, 30, 30, 9):
        world = World(conf, tmp_path / "more", trials=trials)
        again, _ = world.search(monkeypatch)
    assert shape(again) == shape(unkilled[0]) and world.trained == []
    other = World(conf, tmp_path / "seed", trials=7, seed=2)
    assert shape(other.search(monkeypatch)[0]) != shape(unkilled[0])[:7]


def test_a_trial_that_fails_is_tried_again_with_its_values(conf, tmp_path, monkeypatch, capsys):
    world = World(conf, tmp_path / "failing", trials=8, prune=False)
    world.broken = {2, 5}
    first, code = world.search(monkeypatch)
    assert code == 1 and first.failed == {2, 5}
    assert "trial 2 failed: broken" in capsys.readouterr().err
    assert [t.number for t in first.trials if t.state.name == "RUNNING"] == [2, 5]
    world.broken, world.trained = set(), []
    again, code = world.search(monkeypatch)
    assert code == 0 and not again.failed and world.trained == [2, 5]
    assert [t.params for t in again.trials] == [t.params for t in first.trials]


def test_a_search_of_an_earlier_version_goes_on(conf, tmp_path, monkeypatch):
    World(conf, tmp_path / "old", trials=2).search(monkeypatch)
    study = optuna.load_study(study_name="sweep", storage=storage_at(None, str(tmp_path / "old")))
    study.set_user_attr(ATTRIBUTE, {**study.user_attrs[ATTRIBUTE], "greater_is_better": True})
    world = World(conf, tmp_path / "old", trials=3)
    world.search(monkeypatch)
    assert world.trained == [2]
    study.set_user_attr(ATTRIBUTE, {**study.user_attrs[ATTRIBUTE], "version": 9})
    with pytest.raises(UserError, match="another version of tnctl"):
        world.search(monkeypatch)


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
    assert not list((tmp_path / "one").iterdir())


def test_less_is_better_for_some_metrics(conf, tmp_path, monkeypatch):
    evaluation = dataclasses.replace(conf.evaluation, monitor="logloss")
    less = dataclasses.replace(conf, evaluation=evaluation)
    result, _ = World(less, tmp_path / "less", trials=9).search(monkeypatch)
    assert result.best.value == min(t.value for t in result.trials if t.state.name == "COMPLETE")


def test_an_undefined_result_is_none(conf, tmp_path, monkeypatch):
    world = World(conf, tmp_path / "undefined", trials=3, prune=False)
    monkeypatch.setattr(world, "run_trial", lambda *_: report_of([None], "auc"))
    result, code = world.search(monkeypatch)
    assert code == 0 and result.best is None
    assert [trial.state.name for trial in result.trials] == ["FAIL"] * 3


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
    (lambda _: b"a user's notes\n", "is no journal of a search"),
    (lambda _: b"\0" * 99, "is no journal of a search"),
    (lambda text: text[: len(text) // 2] + b"\n" + text[len(text) // 2 :], "is damaged"),
    (lambda text: text.replace(b'"op_code":4', b'"op_code":400'), "is damaged"),
    (lambda text: text.replace(b"CategoricalDistribution", b"Categorical"), "is damaged"),
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


@pytest.mark.parametrize("cut", [1, 2, 40])
def test_a_journal_cut_in_its_last_line_goes_on(conf, tmp_path, monkeypatch, unkilled, cut):
    journal = journal_of(conf, tmp_path, monkeypatch)
    journal.write_bytes(journal.read_bytes()[:-cut])
    again, _ = World(conf, tmp_path / "out", trials=3).search(monkeypatch)
    assert shape(again) == shape(unkilled[0])[:3]


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
