"""cluster.backup on real tables, and notices that are refused; more is in the simulation."""

import json
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import cluster_in_one_process
import pytest
from cluster_model import shape_of
from test_cluster import conf_of

from tnctl.cluster.messages.exchange import new_participants, new_squares, parse_participants
from tnctl.cluster.owners.barrier import Barrier
from tnctl.cluster.transport.kinds import Kind, MessageError
from tnctl.cluster.workers.share import Share


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (new_participants(1, [0, 1])[:-1], "a message has other arrays than its header"),
        (new_participants(-1, [0, 1]), "a notice of participants has other numbers or flags"),
        (new_squares(1, []), "a notice of participants has no ranks of U8"),
        (new_participants(1, [1, 2]), r"names \[1, 2\] of 3 workers"),
        (new_participants(1, [0]), r"names \[0\] of 3"),
        (new_participants(1, [0, 1, 3]), r"names \[0, 1, 3\] of 3"),
    ],
)
def test_participants_that_cannot_be_are_refused(body, words):
    with pytest.raises(MessageError, match=words):
        parse_participants(body, 3, 2)


def test_a_notice_that_is_not_expected_is_refused():
    owner = Barrier(shape_of(1), 3, SimpleNamespace(steps=0), 1, 0.0, 1)
    for rank, step in ((2, 1), (0, 2)):
        with pytest.raises(MessageError, match=f"owner {rank} names workers of step {step}"):
            owner.notice(rank, Kind.PARTICIPANTS, new_participants(step, [0, 1]))


def test_a_slow_worker_is_left_out_and_trains_all_of_its_rows(parts, monkeypatch):
    """Threads, tables and TensorFlow of the product; every row is in the pass once."""
    conf = conf_of(
        parts, monkeypatch, "data.train=part-*.csv", "train.batch_size=64", "train.epochs=2",
        "optimizer.clip_norm=5",
    )  # fmt: skip
    conf = replace(conf, cluster=replace(conf.cluster, backup=1))
    train = Share._train

    def slowly(share, rate_factor):
        if share.node.rank == 2:
            time.sleep(0.1)
        train(share, rate_factor)

    monkeypatch.setattr(Share, "_train", slowly)
    report, errors = cluster_in_one_process.train_together(conf, 3)
    assert not errors
    rows = sum(len(path.read_text().splitlines()) - 1 for path in Path("clicks").glob("part-*.csv"))
    assert [epoch.examples for epoch in report.epochs] == [rows, rows]
    left_out = [worker.left_out for worker in report.timing.workers]
    assert left_out[2] > left_out[0]
    lines = [json.loads(line) for line in Path("run/log.jsonl").read_text().splitlines()]
    logged = [line["timing"]["workers"][2]["left_out"] for line in lines if line["event"] == "step"]
    assert 0 < sum(logged) <= left_out[2]
