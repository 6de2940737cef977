"""Several workers are one worker: the same bytes, the same sums, every row once."""

import csv
import dataclasses
import json
from pathlib import Path

import cluster_commands
import cluster_in_one_process
import numpy as np
import pytest

from tnctl import schema
from tnctl.checkpoint import load as loading
from tnctl.cluster.rank_0 import cluster_workers
from tnctl.composing import compose
from tnctl.errors import Stopped
from tnctl.evaluation.inference import Inference
from tnctl.evaluation.split_scoring import score
from tnctl.training.run import train


@pytest.fixture
def parts(workspace):
    """The workspace with its training data in files of different sizes."""
    cluster_commands.split_training_data(workspace)
    return workspace


def conf_of(workspace, monkeypatch, *overrides, output="run"):
    monkeypatch.chdir(workspace)
    given = [f"output={output}", "train.threads=1", "evaluation.ablate=false", *overrides]
    return compose.compose_run(workspace / "small.yaml", given, takes_cluster=True)


def digest_of(folder):
    return loading.digest(loading.newest(str(folder)))


@pytest.mark.parametrize("overrides", [
    [],
    ["optimizer.embedding.name=adam", "slots.user_id.frozen=true", "train.epochs=2",
     "optimizer.clip_norm=0.3"],
    ["life.admission.after=2", "life.shows.cvm=true", "optimizer.embedding.weight_decay=0.1",
     "slots.interests.pooling=none", "slots.interests.max_length=3",
     "recipe.dropout=0.2", "recipe.batch_norm=true", "optimizer.schedule.warmup_steps=7"],
])  # fmt: skip
def test_one_worker_ends_with_the_bytes_of_the_local_path(workspace, monkeypatch, overrides):
    train(conf_of(workspace, monkeypatch, *overrides, output="alone"), golden=20)
    conf = conf_of(workspace, monkeypatch, *overrides, output="cluster")
    cluster_in_one_process.train_together(conf, 1, golden=20)
    assert digest_of("alone") == digest_of("cluster")
    lines = [Path(run, "checkpoints").glob("*/golden.jsonl") for run in ("alone", "cluster")]
    alone, cluster = (sorted(paths)[-1].read_bytes() for paths in lines)
    assert alone == cluster


@pytest.mark.parametrize("workers, optimizer, dense, apart", [
    (2, "sgd", "sgd", 3e-5),
    pytest.param(3, "adagrad", "sgd", 3e-5, marks=pytest.mark.long),
    pytest.param(2, "adagrad", "adagrad", 3e-5, marks=pytest.mark.long),
    (3, "adagrad", "adam", 1e-3),
])  # fmt: skip
def test_workers_are_one_worker_with_a_larger_batch(
    workspace, monkeypatch, workers, optimizer, dense, apart
):
    """20 steps of batches that contain the same rows; logits differ by rounding alone.

    Adam divides by the root of squared gradients: where these are tiny, rounding shows.
    """
    batch, steps = 32, 20
    header, *lines = (workspace / "clicks/train.csv").read_text().splitlines(keepends=True)
    of_worker = [lines[rank * batch * steps :][: batch * steps] for rank in range(workers)]
    together = [header]
    for step in range(steps):
        for part in of_worker:
            together += part[step * batch : (step + 1) * batch]
    (workspace / "clicks/together.csv").write_text("".join(together))
    for rank, part in enumerate(of_worker):
        (workspace / f"clicks/worker-{rank}.csv").write_text("".join([header, *part]))
    common = [
        "data.shuffle=false", "data.test=null", f"optimizer.embedding.name={optimizer}",
        f"optimizer.linear.name={optimizer}", f"optimizer.dense.name={dense}",
        "~slots.price_range",
        "numeric.quality.mean=0", "numeric.quality.deviation=1",
    ]  # fmt: skip
    alone = conf_of(
        workspace, monkeypatch, *common, "data.train=together.csv",
        f"train.batch_size={batch * workers}", output="alone",
    )  # fmt: skip
    shared = conf_of(
        workspace, monkeypatch, *common, "data.train=worker-*.csv",
        f"train.batch_size={batch}", output="shared",
    )  # fmt: skip
    train(alone)
    report, errors = cluster_in_one_process.train_together(shared, workers)
    assert not errors and report.steps == steps
    models = [
        loading.load(checkpoint, schema.from_values(checkpoint.conf()))
        for checkpoint in map(loading.newest, ("alone", "shared"))
    ]
    # Rows that were not trained on, of ids that were and of others.
    logits = [score(Inference(model, 256), shared, "validation").logits for model in models]
    assert len(logits[0]) == 900 and np.ptp(logits[0]) > 0.01
    np.testing.assert_allclose(*logits, rtol=0, atol=apart)
    for arrays in zip(*(model.dense.weights for model in models), strict=True):
        np.testing.assert_allclose(*arrays, rtol=0, atol=apart)
    for tables in zip(*(model.tables for model in models), strict=True):
        one_worker, several = (np.concatenate(list(table.records())) for table in tables)
        np.testing.assert_array_equal(one_worker["id"], several["id"])
        for name in one_worker.dtype.names[4:]:
            np.testing.assert_allclose(one_worker[name], several[name], rtol=1e-4, atol=apart)


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.long), 5])
def test_a_pass_continues_on_another_number_of_workers(parts, monkeypatch, workers):
    overrides = ["data.train=part-*.csv", "train.batch_size=64", "train.epochs=2"]
    conf = conf_of(parts, monkeypatch, *overrides, "life.shows.keep=true")
    with monkeypatch.context() as patch:
        cluster_in_one_process.stop_at(patch, cluster_workers.ClusterWorkers, 6)
        with pytest.raises(Stopped, match="step-0000000005 is saved"):
            cluster_in_one_process.train_together(conf, 3)
    assert loading.newest("run").position.units.workers == 3
    conf = dataclasses.replace(conf)
    if workers == 1:
        report = train(conf)
    else:
        report, errors = cluster_in_one_process.train_together(conf, workers)
        assert not errors
    assert [epoch.examples for epoch in report.epochs] == [3000, 3000]
    lines = [json.loads(line) for line in Path("run/log.jsonl").read_text().splitlines()]
    assert [line["examples"] for line in lines if line["event"] == "epoch"] == [3000, 3000]
    # Each row of the data was counted once, in the first pass.
    shows = cluster_in_one_process.shows_of_users("run")
    assert shows == cluster_in_one_process.expected_shows(parts)


def test_a_bad_row_of_any_worker_ends_all_with_its_line(parts, monkeypatch):
    path = parts / "clicks/part-4.csv"
    lines = list(csv.reader(path.open()))
    lines[3][lines[0].index("price")] = "dear"
    with path.open("w", newline="") as file:
        csv.writer(file, quoting=csv.QUOTE_NONE, escapechar="\\").writerows(lines)
    conf = conf_of(
        parts, monkeypatch, "data.train=part-*.csv", "train.batch_size=64",
        "~slots.price_range",
        "numeric.quality.mean=0", "numeric.quality.deviation=1",
    )  # fmt: skip
    with pytest.raises(Exception, match=r"worker 1: .*part-4\.csv") as failed:
        cluster_in_one_process.train_together(conf, 3)
    assert "\n" not in str(failed.value)
