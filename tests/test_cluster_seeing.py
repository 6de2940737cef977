"""What is seen of each worker of a cluster: log.jsonl, the report, lines, memory and sketches."""

import json
import re
from pathlib import Path

import cluster_in_one_process
import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from test_cluster import conf_of

from tnctl.checkpoint import load as loading
from tnctl.errors import Failure
from tnctl.training import row_life

SECONDS = (
    "compute_seconds", "input_wait_seconds", "worker_wait_seconds", "exchange_seconds",
    "idle_seconds", "owner_seconds",
)  # fmt: skip


def lines_of(run, event):
    lines = [json.loads(line) for line in Path(run, "log.jsonl").read_text().splitlines()]
    return [line for line in lines if line["event"] == event]


def test_each_worker_is_in_the_log_the_report_and_the_lines(parts, monkeypatch, capsys):
    conf = conf_of(parts, monkeypatch, "data.train=part-*.csv", "train.batch_size=64",
                   "train.tensorboard=true")  # fmt: skip
    report, errors = cluster_in_one_process.train_together(conf, 2)
    assert not errors
    lines = lines_of("run", "step")
    assert len(lines) > 1
    for line in lines:
        assert "workers" not in line
        workers = line["timing"]["workers"]
        assert len(workers) == 2
        for worker in workers:
            assert all(worker[name] >= 0 for name in SECONDS)
            assert worker["compute_seconds"] > 0 and worker["owner_seconds"] > 0
            assert worker["rows"] > 0 and worker["bytes"] > 0
        # Owners have the rows after the last exchange.
        assert sum(worker["rows"] for worker in workers) == line["rows"]
        # What one sends the other receives, but for what is on its way when a step is counted.
        (first, second), apart = workers, 100_000
        assert first["sent_bytes"] > 10_000
        assert abs(first["sent_bytes"] - second["received_bytes"]) < apart
        assert abs(second["sent_bytes"] - first["received_bytes"]) < apart
    of_report = report.timing.workers
    assert len(of_report) == 2
    assert sum(worker.rows for worker in of_report) == sum(
        table.rows for table in report.tables.values()
    )
    logged = sum(line["timing"]["workers"][1]["compute_seconds"] for line in lines)
    assert of_report[1].compute_seconds >= logged - 0.01
    timing = json.loads(Path("run/report.json").read_text())["timing"]
    assert timing["workers"][1]["rows"] > 0
    # For whom workers waited, and what is shown of it.
    [epoch] = lines_of("run", "epoch")
    assert epoch["timing"]["exchange"] == timing["exchange"]
    assert set(timing["exchange"]) == {"awaited"}
    waited = sum(worker.worker_wait_seconds for worker in of_report)
    assert 0 < sum(report.timing.exchange.awaited) <= waited + 0.01
    assert all(len(line["timing"]["exchange"]["awaited"]) == 2 for line in lines)
    shares = r"data \d+% \| \d+%, compute .*, peers .*, network .*"
    assert re.search(rf"\n  workers: {shares}", capsys.readouterr().err)
    [events] = Path("run/tensorboard").glob("events*")
    tags = set(EventAccumulator(str(events)).Reload().Tags()["tensors"])
    assert {"cluster_exchange_share/worker_1", "cluster_awaited_seconds/worker_0"} <= tags


def test_one_worker_is_as_one_machine(workspace, trained, monkeypatch):
    conf = conf_of(workspace, monkeypatch, "train.batch_size=256")
    cluster_in_one_process.train_together(conf, 1)
    for run in (Path("run"), trained / "run"):
        [line] = lines_of(run, "step")
        assert set(line["timing"]) == {"seconds", "examples_per_second", "input_wait_share"}
        assert "workers" not in json.loads((run / "report.json").read_text())["timing"]


def test_sketches_of_all_workers_are_one(parts, monkeypatch):
    overrides = [
        "data.train=part-*.csv", "train.batch_size=64", "life.admission.after=3",
        "life.sketch=65536",
    ]  # fmt: skip
    seen = []
    monkeypatch.setattr(row_life, "warn_of_sketches", lambda shares: seen.append(dict(shares)))
    conf = conf_of(parts, monkeypatch, *overrides)
    _, errors = cluster_in_one_process.train_together(conf, 2)
    assert not errors
    [together] = seen
    alone = row_life.miscounted_by_table(loading.load(loading.newest("run"), conf))
    assert any(alone.values()) and together == pytest.approx(alone, rel=1e-9)


def test_sketches_that_are_too_small_are_reported(capsys):
    counters = np.zeros((64, 4, 4), np.uint8)
    counters[:32] = 1
    first = row_life.miscounted(counters.reshape(-1))
    assert first == 0.5 and row_life.miscounted(1 - counters.reshape(-1)) == 0.5
    row_life.warn_of_sketches({"embedding4": 0.04, "embedding8": 0.06})
    said = capsys.readouterr().err
    assert "life.sketch is small for table embedding8: for 6% of new ids" in said
    assert "embedding4" not in said


OF_HEADS = [
    "recipe=esmm", "recipe.hidden=[4]", "+data.labels.ctr.column=label",
    "+data.labels.ctcvr.column=never",
]  # fmt: skip


@pytest.mark.parametrize("of_a_head", [False, True])
def test_a_label_that_never_varies_on_any_worker(parts, monkeypatch, capsys, of_a_head):
    """It ends the training; that of a further head is reported only."""
    overrides = OF_HEADS if of_a_head else ["data.label.column=never"]
    conf = conf_of(parts, monkeypatch, "data.train=part-*.csv", *overrides,
                   "data.validation=null", "data.test=null")  # fmt: skip
    for part in Path(parts).rglob("part-*.csv"):
        head, *lines = part.read_text().splitlines()
        part.write_text("\n".join([f"{head},never", *(f"{line},0" for line in lines), ""]))
    if of_a_head:
        _, errors = cluster_in_one_process.train_together(conf, 2)
        said = capsys.readouterr().err
        assert not errors and "data.labels.ctcvr.column=never the label is 0 in all " in said
        assert said.count("the label is") == 1, said
    else:
        with pytest.raises(Failure, match="never the label is 0 in all 3,000 rows of"):
            cluster_in_one_process.train_together(conf, 2)
