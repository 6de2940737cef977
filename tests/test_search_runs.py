"""Searches of real trials: killed with kill -9, by several commands, refitted."""

import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time

import preloaded_commands
import pytest
from conftest import copy_workspace

pytest.importorskip("optuna")

SEARCH = [
    "train", "conf=small.yaml", "-m", "recipe=lr", "train.batch_size=512", "train.epochs=2",
    "save.every_steps=2", "evaluation.ablate=false", "golden=5",
    "optimizer.linear.learning_rate=tag(log, interval(1e-3, 1))", "optimizer.linear.l2=0,1e-4",
]  # fmt: skip
KEYS = ("optimizer.linear.learning_rate", "optimizer.linear.l2")
# Kills itself before a call of a method with a given number, then runs the command.
KILLED = """
import importlib, os, signal, sys
module, kind, method, number = sys.argv[1].split(":")
kind = getattr(importlib.import_module(module), kind)
real, left = getattr(kind, method), int(number)
def killing(*arguments):
    global left
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*arguments)
setattr(kind, method, killing)
from tnctl.cli import main
main(sys.argv[2:])
"""


def killed_at(point, *arguments, cwd):
    """A command that is killed at a point of the code: `module:class:method:call`."""
    process = subprocess.run(
        [sys.executable, "-c", KILLED, point, *arguments],
        cwd=cwd, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert process.returncode == -signal.SIGKILL, process.stderr
    return process.stderr


def trials_of(output):
    """Number, state, values and result of each trial of a journal, and the steps of evaluations."""
    import optuna
    from optuna.storages.journal import JournalFileBackend

    storage = optuna.storages.JournalStorage(JournalFileBackend(str(output / "sweep.journal")))
    study = optuna.load_study(study_name="sweep", storage=storage)
    return [
        (t.number, t.state.name, t.params, t.value, t.intermediate_values)
        for t in study.get_trials()
    ]


def report(folder):
    """The report of a run without what depends on the clock."""
    values = json.loads((folder / "report.json").read_text())
    return {key: values[key] for key in values if key not in ("timing", "checkpoint")}


@pytest.fixture(scope="module")
def searched(tmp_path_factory, ran, _workspace):
    """A folder with a search of four trials and the best conf refitted, and what it printed."""
    folder = tmp_path_factory.mktemp("search")
    copy_workspace(_workspace, folder)
    done = ran(*SEARCH, "sweep.trials=4", "sweep.refit=true", "output=run", cwd=folder)
    return folder, done


def best_of(folder):
    complete = [trial for trial in trials_of(folder) if trial[1] == "COMPLETE"]
    return max(complete, key=lambda trial: (trial[3], -trial[0]))


def test_each_trial_is_a_run_that_has_not_seen_test_data(searched):
    folder, done = searched
    trials = trials_of(folder / "run")
    assert [trial[:2] for trial in trials] == [(n, "COMPLETE") for n in range(4)]
    for number, _, values, value, evaluations in trials:
        run = report(folder / f"run/trial-{number:04d}")
        assert run["split"] == "validation" and run["auc"] == value
        assert [e["validation"]["auc"] for e in run["evaluations"]] == list(evaluations.values())
        conf = next((folder / f"run/trial-{number:04d}/checkpoints").glob("*/conf.json"))
        linear = json.loads(conf.read_text())["optimizer"]["linear"]
        assert linear["learning_rate"] == values[KEYS[0]]
        assert linear["l2"] == float(values[KEYS[1]])
    table = [line.split() for line in done.err.splitlines() if line[:1].isdigit()]
    ranked = sorted(trials, key=lambda trial: (-trial[3], trial[0]))
    assert [int(row[0]) for row in table] == [trial[0] for trial in ranked]
    assert [row[3] for row in table] == [f"{trial[3]:.5f}" for trial in ranked]


def test_the_best_conf_is_printed_as_a_command_that_trains_it(searched, ran):
    folder, done = searched
    words = shlex.split(done.out)
    number, _, values, value, _ = best_of(folder / "run")
    assert words[:3] == ["tnctl", "train", "conf=small.yaml"] and len(done.out.splitlines()) == 1
    assert f"{KEYS[0]}={values[KEYS[0]]!r}" in words and f"{KEYS[1]}={values[KEYS[1]]}" in words
    ran(*words[1:], cwd=folder)
    best, trial = report(folder / "run/best"), report(folder / f"run/trial-{number:04d}")
    assert best["split"] == "test" and best["validation"]["auc"] == value
    assert best["epochs"] == trial["epochs"]


def test_the_best_conf_is_refitted_on_training_and_validation_data(searched, ran):
    folder, _ = searched
    number, _, values, _, _ = best_of(folder / "run")
    refit = report(folder / f"run/refit-{number:04d}")
    assert refit["split"] == "test" and "validation" not in refit
    assert [epoch["examples"] for epoch in refit["epochs"]] == [3900, 3900]
    ran(
        *(word for word in SEARCH if not word.startswith(("-m", *KEYS))),
        *(f"{key}={values[key]}" for key in KEYS),
        "data.train=[train.csv,validation.csv]", "data.validation=null", "output=by_hand",
        cwd=folder,
    )  # fmt: skip
    assert report(folder / "by_hand") == refit


@pytest.mark.long
def test_shares_of_one_file_are_searched_and_refitted(searched, ran):
    """No trial is evaluated on data.test; the best conf is trained on all other rows."""
    folder, _ = searched
    ran(
        *SEARCH, "sweep.trials=1", "sweep.refit=true", "output=shares", "data.validation=null",
        "data.test=null", "data.split.validation=0.2", "data.split.test=0.2", cwd=folder,
    )  # fmt: skip
    trial, refit = (report(folder / "shares" / name) for name in ("trial-0000", "refit-0000"))
    assert (trial["split"], refit["split"]) == ("validation", "test")
    trained = [run["epochs"][0]["examples"] for run in (trial, refit)]
    assert 0.7 < trained[0] / trained[1] < 0.8  # 0.6 and 0.8 of the rows


def test_the_same_command_again_trains_nothing(searched, ran):
    folder, done = searched
    again = ran(*SEARCH, "sweep.trials=4", "sweep.refit=true", "output=run", cwd=folder)
    assert again.out == done.out and "goes on" not in again.err
    assert "resuming" not in again.err and again.err.count("nothing to do") == 1  # the refit


@pytest.mark.long
def test_overwrite_refits_again_and_a_failed_trial_is_no_search_to_refit(
    searched, cli, ran, tmp_path
):
    folder = tmp_path / "copy"
    shutil.copytree(searched[0], folder)
    command = [*SEARCH, "sweep.trials=1", "sweep.refit=true", "output=run", "overwrite=true"]
    number, *_ = best_of(folder / "run")
    (folder / f"run/refit-{number:04d}").rename(folder / "run/refit-0000")
    ran(*command, "sweep.seed=3", cwd=folder)
    [refitted] = (folder / "run").glob("refit-*")
    conf = json.loads(next(refitted.glob("checkpoints/*/conf.json")).read_text())
    values = best_of(folder / "run")[2]
    assert conf["optimizer"]["linear"]["learning_rate"] == values[KEYS[0]]
    # A later trial cannot be written.
    assert not (folder / "run/trial-0001").exists()
    (folder / "run/trial-0001").write_text("a user's")
    command = [*SEARCH, "sweep.trials=2", "sweep.refit=true", "output=run", "sweep.seed=3"]
    done = cli(*command, cwd=folder)
    assert done.code, done.err
    assert "the best conf is not refitted yet" in done.err


RUN = "tnctl.training.search.search_loop:TrialPruner:see"
TRIALS = "tnctl.training.search.search_loop:Trials"


@pytest.mark.long
def test_a_search_killed_in_a_trial_resumes_it_from_its_checkpoint(searched, ran):
    folder, done = searched
    shutil.rmtree(folder / "killed", ignore_errors=True)
    # In the first pass of trial 1, after 5 of its 6 steps; trial 0 has 34 events.
    said = killed_at(f"{RUN}:46", *SEARCH, "sweep.trials=4", "output=killed", cwd=folder)
    assert "trial 1 of 4" in said
    assert not (folder / "killed/trial-0001/report.json").exists()
    again = ran(*SEARCH, "sweep.trials=4", "output=killed", cwd=folder)
    assert "trial 1 goes on" in again.err and "trial 0 of 4" not in again.err
    assert "resuming from killed/trial-0001/checkpoints" in again.err
    assert trials_of(folder / "killed") == trials_of(folder / "run")
    assert again.out == done.out.replace("run/best", "killed/best")
    for number in range(4):
        name = f"trial-{number:04d}"
        assert report(folder / "killed" / name) == report(folder / "run" / name)


def test_foreign_files_where_a_trial_writes_are_left(searched, cli, tmp_path):
    folder, _ = searched
    foreign = tmp_path / "out/trial-0000/report.json"
    foreign.parent.mkdir(parents=True)
    foreign.write_text("mine")
    for more in ([], ["overwrite=true"]):
        done = cli(*SEARCH, "sweep.trials=1", f"output={tmp_path}/out", *more, cwd=folder)
        assert done.code and "report.json" in done.err and "Traceback" not in done.err
        assert foreign.read_text() == "mine"


@pytest.mark.long
@pytest.mark.parametrize(
    "point",
    [f"{TRIALS}:_next:3", f"{TRIALS}:_is_poor:4", f"{TRIALS}:_complete:2", f"{RUN}:23"],
)
def test_a_search_killed_at_each_point_makes_the_same_trials(searched, ran, point):
    folder, _ = searched
    shutil.rmtree(folder / "killed", ignore_errors=True)
    killed_at(point, *SEARCH, "sweep.trials=4", "output=killed", cwd=folder)
    ran(*SEARCH, "sweep.trials=4", "output=killed", cwd=folder)
    assert trials_of(folder / "killed") == trials_of(folder / "run")


BEGUN = re.compile(r"trial (\d+) of 6 ")


@pytest.mark.long
def test_commands_at_the_same_time_share_the_trials_and_take_up_those_of_a_killed_one(
    searched, tmp_path
):
    """None is trained by two of them; the one that is left ends the search."""
    folder = tmp_path / "copy"
    shutil.copytree(searched[0], folder, ignore=shutil.ignore_patterns("run"))
    arguments = [
        *(word for word in SEARCH if not word.startswith("train.epochs")), "train.epochs=12",
        "sweep.prune=false", "sweep.trials=6", "output=shared",
    ]  # fmt: skip
    logs = [tmp_path / f"{name}.log" for name in "ab"]
    commands = [preloaded_commands.Command(arguments, folder, log) for log in logs]
    try:
        while not all(log.exists() and BEGUN.search(log.read_text()) for log in logs):
            assert commands[0].poll() is None and commands[1].poll() is None
            time.sleep(0.02)
        commands[0].send_signal(signal.SIGKILL)
        assert commands[1].wait(timeout=300) == 0, logs[1].read_text()
    finally:
        for command in commands:
            command.kill()
    killed, left = (log.read_text() for log in logs)
    taken_up = BEGUN.findall(killed)[-1]
    assert f"trial {taken_up} goes on" in left
    begun = sorted([*BEGUN.findall(killed)[:-1], *BEGUN.findall(left)])
    assert begun == list("012345")
    trials = trials_of(folder / "shared")
    assert [trial[1] for trial in trials] == ["COMPLETE"] * 6
    for number, *_, value, _ in trials:
        assert report(folder / f"shared/trial-{number:04d}")["auc"] == value


@pytest.mark.long
def test_a_search_that_is_stopped_goes_on(searched, process, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(searched[0], folder, ignore=shutil.ignore_patterns("run"))
    arguments = [
        *(word for word in SEARCH if not word.startswith("train.epochs")), "train.epochs=60",
        "sweep.trials=1", "output=stopped",
    ]  # fmt: skip
    command = preloaded_commands.Command(arguments, folder, tmp_path / "log")
    log = folder / "stopped/trial-0000/log.jsonl"
    while not (log.exists() and log.read_text().count("\n") > 2):
        assert command.poll() is None
        time.sleep(0.1)
    command.send_signal(signal.SIGTERM)
    assert command.wait(timeout=120) == 143
    assert "Run the same command again" in (tmp_path / "log").read_text()
    done = process(*arguments, cwd=folder)
    assert done.code == 0, done.err
    assert "trial 0 goes on" in done.err and "resuming from" in done.err
