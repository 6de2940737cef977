"""Several workers are one worker: the same bytes, the same sums, every row once."""

import csv
import dataclasses
import json
from pathlib import Path

import cluster_in_one_process
import pytest
from cluster_in_one_process import train_together

from tnctl import schema
from tnctl.checkpoint import load as loading
from tnctl.cluster.rank_0.cluster_workers import ClusterWorkers
from tnctl.composing import compose
from tnctl.errors import Stopped
from tnctl.training.run import train


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
    train_together(conf, 1, golden=20)
    assert digest_of("alone") == digest_of("cluster")
    lines = [Path(run, "checkpoints").glob("*/golden.jsonl") for run in ("alone", "cluster")]
    alone, cluster = (sorted(paths)[-1].read_bytes() for paths in lines)
    assert alone == cluster


@pytest.mark.parametrize(("mode", "first", "then_mode", "then"), [
    ("sync", (3, 0), "sync", (1, 0)),
    pytest.param("sync", (3, 0), "sync", (5, 0), marks=pytest.mark.long),
    ("sync", (2, 2), "async", (2, 0)), ("async", (3, 0), "async", (2, 0)),
    pytest.param("sync", (2, 2), "sync", (3, 1), marks=pytest.mark.long),
    pytest.param("async", (2, 2), "async", (1, 3), marks=pytest.mark.long),
    pytest.param("async", (3, 2), "sync", (2, 2), marks=pytest.mark.long),
    pytest.param("async", (3, 0), "sync", (1, 0), marks=pytest.mark.long),
])  # fmt: skip
def test_a_pass_continues_with_others(parts, monkeypatch, mode, first, then_mode, then):
    """With other numbers of workers and servers, in another mode, or in one process."""
    conf = conf_of(parts, monkeypatch, "data.train=part-*.csv", "train.batch_size=64",
                   "train.epochs=2", "life.shows.keep=true", "save.every_steps=3")  # fmt: skip
    with monkeypatch.context() as patch:
        cluster_in_one_process.stop_at(patch, ClusterWorkers, 6)
        with pytest.raises(Stopped, match="is saved"):
            train_together(with_cluster(conf, first, mode), first[0])
    assert loading.newest("run").position.units.workers == first[0]
    if then == (1, 0):
        report = train(conf)
    else:
        report, errors = train_together(with_cluster(conf, then, then_mode), then[0])
        assert not errors
    assert [epoch.examples for epoch in report.epochs] == [3000, 3000]
    lines = [json.loads(line) for line in Path("run/log.jsonl").read_text().splitlines()]
    assert [line["examples"] for line in lines if line["event"] == "epoch"] == [3000, 3000]
    # Each row of the data was counted once, in the first pass.
    shows = cluster_in_one_process.shows_of_users("run")
    assert shows == cluster_in_one_process.expected_shows(parts)
    if then != (1, 0):
        timings = [line["timing"] for line in lines if line["event"] == "step"]
        of_servers = [each for each in timings[-1]["workers"] if each["role"] == "server"]
        assert len(of_servers) == then[1]
        assert all(server["rows"] and server["sent_bytes"] for server in of_servers)
        others = [each["rows"] for each in timings[-1]["workers"] if each["role"] == "worker"]
        assert any(others) == (not of_servers)


def with_cluster(conf, size, mode="sync", **settings):
    """A conf for so many workers and servers; asynchronous workers take no turns at first."""
    cluster = schema.Cluster(mode=mode, servers=size[1], warmup_batches=0, **settings)
    return dataclasses.replace(conf, cluster=cluster)


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
        train_together(conf, 3)
    assert "\n" not in str(failed.value)
