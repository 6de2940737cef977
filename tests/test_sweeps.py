"""Sweeps: `tnctl train -m` with several values of keys and groups."""

import json
import math
import re

import pytest

from tnctl.api.sweep import LONGEST_NAME, folders
from tnctl.training.report.report_document import Report, Timing
from tnctl.training.sweeping import show


def test_folders_are_named_by_the_overrides():
    jobs = [{"recipe": "lr", "seed": "1"}, {"recipe": "lr", "seed": "2"}]
    assert folders(jobs) == ["recipe=lr,seed=1", "recipe=lr,seed=2"]
    assert folders([{"train.batch_size": "8"}]) == ["train.batch_size=8"]


def test_folders_differ_whatever_the_values_are():
    jobs = [
        {"recipe.hidden": "[64,32]"},
        {"recipe.hidden": "(64,32)"},
        {"data.delimiter": "'/'"},
        {"data.columns": "[" + ",".join(f"column{i}" for i in range(60)) + ",a]"},
        {"data.columns": "[" + ",".join(f"column{i}" for i in range(60)) + ",b]"},
    ]
    names = folders(jobs)
    assert len(set(names)) == len(jobs)
    assert all("/" not in name and len(name) <= LONGEST_NAME for name in names)
    assert names == folders(jobs)


@pytest.fixture(scope="module")
def swept(tmp_path_factory, cli, _workspace):
    """A sweep of two groups and two seeds, one of whose jobs fails for its data."""
    folder = tmp_path_factory.mktemp("sweep")
    (folder / "clicks").symlink_to(_workspace / "clicks")
    (folder / "small.yaml").write_text((_workspace / "small.yaml").read_text())
    done = cli(
        "train", "conf=small.yaml", "-m", "recipe=lr,deepfm", "data.label.column=label,price",
        cwd=folder,
    )  # fmt: skip
    return folder, done


def test_every_job_has_a_folder_of_its_own(swept):
    folder, _ = swept
    runs = folder / "runs/small"
    for recipe in ("lr", "deepfm"):
        report = json.loads(
            (runs / f"recipe={recipe},data.label.column=label/report.json").read_text()
        )
        assert report["split"] == "test"
    assert {path.name for path in folder.iterdir()} == {"clicks", "small.yaml", "runs"}
    assert {path.name for path in (folder / "runs").iterdir()} == {"small"}


def test_a_job_that_fails_does_not_stop_the_others(swept):
    _, done = swept
    assert done.code == 1
    assert "Traceback" not in done.err
    lines = done.err.splitlines()
    failed = [line for line in lines if " failed: " in line]
    assert len(failed) == 2
    assert all("data.label.column=price" in line and "label" in line for line in failed)


def rows_of_table(text):
    """The columns of the table of results, each row by its heading, in the order shown."""
    lines = text.splitlines()
    start = max(n for n, line in enumerate(lines) if line.startswith("trained "))
    headings = re.split(r"\s{2,}", lines[start].strip())
    rows = [re.split(r"\s{2,}", line.strip()) for line in lines[start + 1 :]]
    return [dict(zip(headings, row, strict=True)) for row in rows]


def test_the_results_are_a_table_of_which_the_best_on_validation_is_first(swept):
    folder, done = swept
    rows = rows_of_table(done.err)
    assert [row["seconds"] == "failed" for row in rows] == [False, False, True, True]
    aucs = [float(row["auc (validation)"]) for row in rows[:2]]
    assert aucs == sorted(aucs, reverse=True)
    for row in rows[:2]:
        name = row["trained"].replace(" ", ",")
        report = json.loads((folder / f"runs/small/{name}/report.json").read_text())
        assert row["auc (validation)"] == f"{report['evaluations'][-1]['validation']['auc']:.5f}"
        assert row["auc (test)"] == f"{report['auc']:.5f}"
        assert row["logloss (test)"] == f"{report['logloss']:.5f}"
        assert row["auc (test)"] != row["auc (validation)"]
        assert row["dense"] == f"{report['dense_weights']:,}"
        [epoch], timing = report["epochs"], report["timing"]
        step = 1000 * epoch["examples"] / timing["examples_per_second"] / report["steps"]
        assert float(row["ms/step"]) == pytest.approx(step, abs=0.06)


def test_the_same_sweep_again_does_nothing_and_without_validation_nothing_is_ranked(swept, ran):
    folder, _ = swept
    # One value of a key is no part of the name, so these are other runs.
    sweep = (
        "train", "conf=small.yaml", "data.validation=null", "-m", "recipe=lr,deepfm",
        "data.label.column=label",
    )  # fmt: skip
    done = ran(*sweep, cwd=folder)
    assert (folder / "runs/small/recipe=lr/report.json").is_file()
    assert "the runs are not ranked: they have no data.validation" in done.err
    rows = rows_of_table(done.err)
    assert [row["trained"] for row in rows] == ["recipe=lr", "recipe=deepfm"]  # as they were given
    assert list(rows[0]) == [
        "trained",
        "auc (test)",
        "logloss (test)",
        "dense",
        "ms/step",
        "seconds",
    ]
    again = ran(*sweep, cwd=folder)
    assert again.err.count("nothing to do") == 2
    assert rows_of_table(again.err) == rows


def report_of(test=None, validation=None):
    """A report of a run that has these metrics on data.test and data.validation."""
    values = test if test is not None else validation if validation is not None else {}
    split = "test" if test is not None else None if validation is None else "validation"
    return Report(
        metrics=values, split=split, validation=validation, steps=1, dense_weights=0,
        checkpoint="", timing=Timing(),
    )  # fmt: skip


RANKED = [
    # By a metric of which less is better; data.test would have another order.
    (
        "logloss",
        [({"logloss": 0.1}, {"logloss": 0.5}), ({"logloss": 0.3}, {"logloss": 0.4})],
        [1, 0],
    ),
    ("auc", [({"auc": 0.9}, {"auc": 0.6}), ({"auc": 0.7}, {"auc": 0.8})], [1, 0]),
    # Equal values stay in the order of the sweep; a run without the metric is behind those with it.
    ("auc", [({}, {"auc": 0.7}), (None, {"auc": 0.7})], [0, 1]),
    ("auc", [({"auc": 0.9}, None), ({"auc": 0.1}, {"auc": 0.2})], [1, 0]),
    ("auc", [(None, {"auc": None}), (None, {"auc": 0.5})], [1, 0]),
    ("auc", [(None, {"auc": math.nan}), (None, {"auc": 0.2})], [1, 0]),
]


@pytest.mark.parametrize(("monitor", "runs", "order"), RANKED)
def test_runs_are_ranked_by_their_metrics_on_validation(monitor, runs, order, capsys):
    outcomes = [(f"run={n}", report_of(*metrics)) for n, metrics in enumerate(runs)]
    show([("run=failed", None), *outcomes], monitor)
    shown = capsys.readouterr().err
    assert "not ranked" not in shown
    rows = rows_of_table(shown)
    assert [row["trained"] for row in rows] == [f"run={n}" for n in order] + ["run=failed"]
    assert rows[-1]["seconds"] == "failed"


def test_a_run_without_validation_has_none_in_the_table(capsys):
    metrics = {"auc": 0.75, "logloss": 0.5}
    show([("run=1", report_of(metrics)), ("run=2", report_of(metrics, metrics))], "auc")
    first, second = capsys.readouterr().err.splitlines()[-2:]
    assert first.split() == ["run=2", "0.75000", "0.50000", "0.75000", "0.50000", "0", "-", "0.0"]
    assert second.split() == ["run=1", "-", "-", "0.75000", "0.50000", "0", "-", "0.0"]


MISTAKES = [
    (["-m", "seed=1,2", "recipe=lr,deepmf"], ["seed=1 recipe=deepmf", "'deepmf'", "'deepfm'"]),
    (["-m", "seed=1,2", "train.batch_size=8,0"], ["train.batch_size=0", "between"]),
    (["-m", "seed=1,2", "slots.user_id.poling=sum,mean"], ["'slots.user_id.pooling'"]),
    (["-m", "seed=1"], ["several values", "-m seed=1,2"]),
    (["-m", "seed=interval(1,4)"], ["seed=interval(1,4)", "no list of values", "choice(1,2)"]),
    (["-m", "seed=tag(log, interval(1,4))"], ["no list of values"]),
    (["-m", "seed=range(1,1000000000)"], ["-m has over 10,000 runs"]),
    (["-m", "seed=range(1,3,0)"], ["seed=range(1,3,0) has no values. Give choice(a,b) or range("]),
    (["-m", "train.epochs=range(0,nan,1)"], ["has no values"]),
    (["-m", "seed=range(1,200)", "train.epochs=range(1,200)"], ["-m has over 10,000 runs"]),
    (["-m", "seed=1,2", "--cfg", "job"], ["leave -m out"]),
    (["-m", "seed=[1"], ["cannot read the argument seed=[1"]),
]


@pytest.mark.parametrize(("arguments", "words"), MISTAKES, ids=lambda v: " ".join(v)[:40])
def test_a_mistake_is_refused_before_anything_is_trained(cli, tmp_path, arguments, words):
    refused_before_training(cli, tmp_path, arguments, words)


def refused_before_training(cli, tmp_path, arguments, words):
    done = cli("train", "conf=deepfm", *arguments, cwd=tmp_path)
    assert done.code == 2
    for word in words:
        assert word in done.line
    assert not list(tmp_path.iterdir())


def test_only_train_sweeps(cli, tmp_path):
    for command in ("evaluate", "check", "split-graph"):
        done = cli(command, "conf=deepfm", "-m", "seed=1,2", cwd=tmp_path)
        assert done.code == 2
        assert "-m is for train" in done.line


def test_every_form_of_values():
    from tnctl.composing.compose import conf_file, sweep

    jobs = sweep(conf_file("deepfm"), ["seed=range(1,4)", "recipe=glob(*f*)", "train.epochs=2"])
    values = {(job.swept["seed"], job.swept["recipe"]) for job in jobs}
    assert {("1", "deepfm"), ("3", "deepfm")} <= values
    assert all(
        "train.epochs=2" in job.overrides and "train.epochs" not in job.swept for job in jobs
    )
    for values in ("choice(1,2)", "tag(log, choice(1,2))", "range(1,2.5)", "range(1,3)"):
        jobs = sweep(conf_file("deepfm"), [f"seed={values}", "hydra.searchpath=['a,b']"])
        assert [float(job.swept["seed"]) for job in jobs] == [1, 2], values
        assert all("hydra.searchpath=['a,b']" in job.overrides for job in jobs)
    jobs = sweep(conf_file("deepfm"), ["+slots.new.pooling=sum,mean", "data.root='a,b'"])
    assert [job.overrides for job in jobs] == [
        ["+slots.new.pooling=sum", "data.root='a,b'"],
        ["+slots.new.pooling=mean", "data.root='a,b'"],
    ]
    assert jobs[0].swept == {"slots.new.pooling": "sum"}
