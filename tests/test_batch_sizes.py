"""train.batch_size=null: the batch size is chosen by the rows, once, and kept with the run."""

import dataclasses
import json

import cluster_in_one_process
import numpy as np
import pytest
from conftest import CONF, ROWS

from tnctl import schema
from tnctl.checkpoint import load as loading
from tnctl.cluster.workers.share import Share
from tnctl.composing import compose
from tnctl.data import batch_sizes, generated
from tnctl.data.sources import RowCount, Source
from tnctl.errors import Failure, Stopped
from tnctl.training.step import TrainingStep

TRAIN = ["train", "conf=small.yaml", "output=run", "recipe=lr", "train.batch_size=null",
         "evaluation.ablate=false", "data.test=null", "golden=5"]  # fmt: skip


def conf_of(data=None, cluster=None, **train):
    data = {"format": "generated", "train": "0:27000"} | (data or {})
    values = {"recipe": {"name": "lr"}, "slots": {"user_id": {}}, "data": data, "train": train}
    return schema.from_values(values | {"cluster": cluster or {}})


def size_of(**data):
    return batch_sizes.chosen(conf_of(data)).batch_size


def saved_size(folder, output="run"):
    return loading.newest(str(folder / output)).conf()["train"]["batch_size"]


@pytest.mark.parametrize("rows, batch_size", [
    (0, 32), (1, 32), (4800, 32), (10_000, 64), (27_000, 128), (300_000, 2048),
    (614_400, 4096), (1_000_000, 4096), (4_000_000_000, 4096),
])  # fmt: skip
def test_a_pass_has_some_150_steps(rows, batch_size):
    assert batch_sizes.by_rows(rows) == batch_size
    if 4800 <= rows <= 614_400:
        assert 150 / 2**0.5 - 1 <= rows / batch_size <= 150 * 2**0.5 + 1
    if rows:
        assert size_of(train=f"0:{rows}") == batch_size


def test_negatives_left_out_are_no_rows():
    labels = np.asarray(generated.rows(0, batch_sizes.ROWS_LOOKED_AT).column("label"))
    share = labels.mean() + (1 - labels.mean()) * 0.1
    choice = batch_sizes.chosen(conf_of({"train": "0:200000", "negatives": 0.1}))
    assert choice.rows == pytest.approx(200_000 * share, rel=0.02) and not choice.is_exact
    assert choice.batch_size == 512 and size_of(train="0:200000") == 1024


def test_rows_of_a_split_are_not_trained():
    split = {"validation": 0.25, "test": 0.25}
    choice = batch_sizes.chosen(conf_of({"train": "0:40000", "split": split}))
    assert choice.batch_size == 128 and size_of(train="0:40000") == 256
    assert choice.rows == pytest.approx(20_000) and not choice.is_exact
    assert choice.sentence == ("train.batch_size=128: about 20,000 rows are 157 steps in a pass")


@pytest.mark.parametrize("mode, batch_size", [("sync", 32), ("async", 128)])
def test_batches_of_workers_that_are_a_step_together(mode, batch_size):
    cluster = {"start": "local", "workers": 4, "mode": mode}
    choice = batch_sizes.chosen(conf_of(cluster=cluster))
    assert choice.batch_size == batch_size
    steps = -(-27_000 // (batch_size * choice.workers))
    assert choice.sentence.startswith(f"train.batch_size={batch_size}: 27,000 rows are {steps} ")


@pytest.mark.parametrize("broken", [True, False])
def test_without_a_number_of_rows_it_is_the_largest(monkeypatch, broken):
    def count(*_):
        if broken:
            raise Failure("cannot be read")

    monkeypatch.setattr(Source, "count", count)
    choice = batch_sizes.chosen(conf_of())
    assert (choice.batch_size, choice.rows) == (4096, None)
    assert choice.sentence == "train.batch_size=4096: the number of rows is unknown"


def train(cli, folder, *more, code=0):
    done = cli(*TRAIN, *more, cwd=folder)
    assert done.code == code, done.err
    return done


def test_check_train_and_what_they_write_agree(cli, workspace):
    checked = cli("check", *TRAIN[1:2], "train.batch_size=null", cwd=workspace)
    line = next(line for line in checked.out.splitlines() if line.startswith("train.batch_size="))
    done = train(cli, workspace)
    assert line.startswith("train.batch_size=32: about 3,0") and line in done.err.splitlines()
    assert "steps of train.batch_size" not in checked.out
    assert saved_size(workspace) == 32
    report = json.loads((workspace / "run/report.json").read_text())
    assert report["steps"] == -(-(ROWS["train"][1]) // 32)
    assert "94 steps of 32" in (workspace / "run/report.html").read_text()
    shown = json.loads(cli("check", *TRAIN[1:2], "format=json", cwd=workspace).out)
    assert shown["batch"] is None  # the conf gives one


def test_a_run_that_is_resumed_keeps_its_batch_size(cli, workspace, monkeypatch):
    """It ends as one that was not stopped, though the data would have another size now."""
    train(cli, workspace, "output=whole")
    train_step, calls = TrainingStep.__call__, iter(range(1, 1000))

    def stopping(self, *arguments):
        if next(calls) == 50:
            raise Stopped("stopped", 130)
        return train_step(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(TrainingStep, "__call__", stopping)
        train(cli, workspace, code=130)
    assert saved_size(workspace) == 32
    many = RowCount(1e9, 1e9, 1e9)
    monkeypatch.setattr(Source, "count", lambda *_: many)
    assert "rows are" not in train(cli, workspace).err
    digests = [loading.digest(loading.newest(str(workspace / run))) for run in ("run", "whole")]
    assert digests[0] == digests[1]
    # As a number by hand: the same goes on, another is the conf of another run.
    assert "finished" in train(cli, workspace, "train.batch_size=32").err
    assert "train.batch_size" in train(cli, workspace, "train.batch_size=64", code=2).line


def test_the_first_day_decides(cli, workspace):
    header, *lines = (workspace / "clicks/train.csv").read_text().splitlines(keepends=True)
    daily = CONF.replace("train: train.csv", 'train: "{day}.csv"')
    daily = daily.replace("  validation: validation.csv\n  test: test.csv\n", "")
    (workspace / "small.yaml").write_text(daily)
    first = workspace / "clicks/2024-01-01.csv"
    first.write_text("".join([header, *lines * 3]))
    (workspace / "clicks/2024-01-02.csv").write_text("".join([header, *lines[:500]]))
    done = train(cli, workspace, "data.days=2024-01-01")
    assert "train.batch_size=64: about 9,0" in done.err and saved_size(workspace) == 64
    train(cli, workspace, "data.days=2024-01-01..2024-01-02", "accept=true")
    assert saved_size(workspace) == 64
    # One command that begins with both days evaluates the second with the same size.
    train(cli, workspace, "data.days=2024-01-01..2024-01-02", "accept=true", "output=both")
    assert saved_size(workspace, "both") == 64


def test_workers_train_with_the_batch_size_of_worker_0(workspace, monkeypatch):
    monkeypatch.chdir(workspace)
    sizes, init = [], Share.__init__

    def noting(self, conf, *arguments):
        sizes.append(conf.train.batch_size)
        init(self, conf, *arguments)

    monkeypatch.setattr(Share, "__init__", noting)
    given = ["output=run", "train.batch_size=null", "evaluation.ablate=false", "data.test=null"]
    conf = compose.compose(workspace / "small.yaml", given)
    counts, by_rows = [], batch_sizes.by_rows
    monkeypatch.setattr(batch_sizes, "by_rows", lambda n: counts.append(n) or by_rows(n))
    (workspace / "clicks/more.csv").write_bytes((workspace / "clicks/train.csv").read_bytes())
    data = dataclasses.replace(conf.data, train=["train.csv", "more.csv"])
    cluster = schema.Cluster(start="local", workers=2)
    conf = dataclasses.replace(conf, data=data, cluster=cluster)
    report, errors = cluster_in_one_process.train_together(conf, 2)
    assert not errors and sizes == [32, 32] and len(counts) == 1
    assert report.steps == 94
    # Another number of workers goes on with it, and its workers have it from the checkpoint.
    more = dataclasses.replace(
        conf,
        train=dataclasses.replace(conf.train, epochs=2),
        cluster=dataclasses.replace(cluster, workers=1),
    )
    monkeypatch.setattr(Source, "count", None)
    _, errors = cluster_in_one_process.train_together(more, 2)
    assert not errors and sizes == [32] * 4
