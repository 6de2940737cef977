"""Sweeps: `tnctl train -m` with several values of keys and groups."""

import json

import pytest

from tnctl.cli.sweep import LONGEST_NAME, folders


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
        "train", "conf=small.yaml", "data.validation=null", "-m", "recipe=lr,deepfm",
        "data.label.column=label,price", cwd=folder,
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


def test_the_results_are_a_table_of_which_the_best_is_first(swept):
    folder, done = swept
    table = done.err[done.err.index("logloss  ") :] if "logloss  " in done.err else done.err
    rows = [line for line in table.splitlines() if line.startswith("recipe=")][-4:]
    assert [line.split()[-1] == "failed" for line in rows] == [False, False, True, True]
    aucs = [float(line.split()[2]) for line in rows[:2]]
    assert aucs == sorted(aucs, reverse=True)
    reports = [
        json.loads(path.read_text()) for path in (folder / "runs/small").glob("*/report.json")
    ]
    assert aucs == sorted((round(report["auc"], 5) for report in reports), reverse=True)


def test_the_same_sweep_again_does_nothing(swept, cli):
    folder, _ = swept
    done = cli(
        "train", "conf=small.yaml", "data.validation=null", "--multirun", "recipe=lr,deepfm",
        "data.label.column=label", cwd=folder,
    )  # fmt: skip
    # One value of a key is no part of the name, so these are other runs.
    assert done.code == 0, done.err
    assert (folder / "runs/small/recipe=lr/report.json").is_file()
    again = cli(
        "train", "conf=small.yaml", "data.validation=null", "-m", "recipe=lr,deepfm",
        "data.label.column=label", cwd=folder,
    )  # fmt: skip
    assert again.code == 0
    assert again.err.count("nothing to do") == 2


def test_a_swept_run_equals_a_single_one(swept, cli, tmp_path):
    folder, _ = swept
    done = cli(
        "train", "conf=small.yaml", "data.validation=null", "recipe=deepfm",
        f"output={tmp_path}/alone", cwd=folder,
    )  # fmt: skip
    assert done.code == 0, done.err
    alone = json.loads((tmp_path / "alone/report.json").read_text())
    job = folder / "runs/small/recipe=deepfm,data.label.column=label/report.json"
    assert {**json.loads(job.read_text()), "timing": 0} == {**alone, "timing": 0}


MISTAKES = [
    (["-m", "seed=1,2", "recipe=lr,deepmf"], ["seed=1 recipe=deepmf", "'deepmf'", "'deepfm'"]),
    (["-m", "seed=1,2", "train.batch_size=8,0"], ["train.batch_size=0", "between"]),
    (["-m", "seed=1,2", "slots.user_id.poling=sum,mean"], ["'slots.user_id.pooling'"]),
    (["-m", "seed=1"], ["several values", "-m seed=1,2"]),
    (["-m", "seed=interval(1,4)"], ["seed=interval(1,4)", "no list of values", "choice(1,2)"]),
    (["-m", "seed=tag(log, interval(1,4))"], ["no list of values"]),
    (["-m", "seed=range(1,1000000000)"], ["-m has over 10,000 runs"]),
    (["-m", "seed=range(1,200)", "train.epochs=range(1,200)"], ["-m has over 10,000 runs"]),
    (["-m", "seed=1,2", "--cfg", "job"], ["leave -m out"]),
    (["-m", "seed=[1"], ["cannot read the argument seed=[1"]),
]


@pytest.mark.parametrize(("arguments", "words"), MISTAKES, ids=lambda v: " ".join(v)[:40])
def test_a_mistake_is_told_before_anything_is_trained(cli, tmp_path, arguments, words):
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
    from tnctl.cli.compose import conf_file, sweep

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
