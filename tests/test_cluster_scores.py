"""Scores of several workers, gathered in blocks, are those of one process."""

import cluster_in_one_process
import numpy as np
import pytest
from dataless_runs import conf_of as conf_without_data
from test_cluster import conf_of

from tnctl import schema
from tnctl.checkpoint import load as loading
from tnctl.cluster.messages import commands
from tnctl.cluster.node import Node
from tnctl.cluster.rank_0 import building, scoring
from tnctl.cluster.workers.worker import UnitsScored, Worker
from tnctl.data.file_pieces import BadRows
from tnctl.errors import Failure
from tnctl.evaluation.inference import Inference
from tnctl.evaluation.split_scoring import score

EVERY = ("logits", "labels", "weight", "reference", "group")


def examples(draws, rows, names=EVERY):
    arrays = {
        "logits": draws.normal(size=(rows, 2)).astype(np.float32),
        "labels": draws.integers(0, 2, (rows, 2)).astype(np.float32),
        "weight": draws.random(rows).astype(np.float32),
        "reference": draws.normal(size=rows),
        "group": draws.integers(0, 2**63, rows).astype(np.uint64),
    }
    return {name: arrays[name] for name in names}


def dealt(whole, rows, workers):
    """The examples of each worker, and the rows of its units."""
    ends = np.cumsum(rows)
    for rank in range(workers):
        units = range(rank, len(rows), workers)
        chosen = [np.arange(ends[unit] - rows[unit], ends[unit]) for unit in units]
        taken = np.concatenate(chosen or [np.empty(0, int)]).astype(int)
        yield {name: array[taken] for name, array in whole.items()}, [rows[unit] for unit in units]


class Sending:
    """Workers with examples; a request is answered when it is waited for."""

    def __init__(self, by_worker):
        self.by_worker, self.most = by_worker, 0

    def send(self, method, given):
        assert method is Worker.read_scores
        for rank, (name, first, rows) in given.items():
            self.most = max(self.most, rows)
            block = self.by_worker[rank][0][name][first : first + rows]
            yield lambda block=block: block


def gathered(by_worker, most=10):
    """What rank 0 puts together."""
    cluster = Sending(by_worker)
    scored = [
        UnitsScored(rows=rows, arrays=tuple(arrays), skipped=BadRows(), examples=0, present={},
                    ids={})
        for arrays, rows in by_worker
    ]  # fmt: skip
    together = scoring._gathered(cluster, scored, most, lambda: None)
    assert cluster.most <= most
    return together


@pytest.mark.parametrize("names", [EVERY, ("logits", "labels"), ("logits", "labels", "group")])
@pytest.mark.parametrize("workers", [1, 2, 3, 7])
def test_examples_are_put_together_in_the_order_of_units(workers, names):
    draws = np.random.default_rng(workers)
    for _ in range(20):
        rows = [3, *draws.integers(0, 40, draws.integers(0, 12)).tolist()]
        whole = examples(draws, sum(rows), names)
        together = gathered(list(dealt(whole, rows, workers)))
        assert tuple(together) == names
        for name, array in together.items():
            expected = whole[name]
            assert array.dtype == expected.dtype and array.shape == expected.shape
            assert array.tobytes() == expected.tobytes()


def test_workers_without_examples_have_no_say_in_their_columns():
    draws = np.random.default_rng(0)
    whole = examples(draws, 5)
    nothing = {name: np.empty((0, 2), np.float32) for name in ("logits", "labels")}
    together = gathered([(nothing, [0]), (whole, [5]), (nothing, [])])
    assert together["group"].tobytes() == whole["group"].tobytes()


def test_examples_that_do_not_fit_together_are_refused():
    draws = np.random.default_rng(0)
    first, second = examples(draws, 5), examples(draws, 4, ("logits", "labels"))
    with pytest.raises(Failure, match=r"different columns: .*group"):
        gathered([(first, [5]), (second, [4])])
    for wrong in (np.empty((3, 2), np.float32), np.empty((1, 2), np.float32)):
        with pytest.raises(ValueError, match="cannot reshape"):
            gathered([({"logits": wrong}, [4])])


def test_scores_that_were_sent_are_dropped(tmp_path):
    worker = Worker(conf_without_data(tmp_path), Node(0, 1, 1, print, print))
    worker._scores = {"labels": np.arange(5, dtype=np.float32)}
    assert worker.read_scores("labels", 0, 2).tolist() == [0, 1]
    assert worker.read_scores("labels", 2, 3).tolist() == [2, 3, 4]
    assert not worker._scores


def test_a_cluster_scores_as_one_process_does(parts, monkeypatch):
    """Blocks of 3 rows, a command for each unit, and one for each text of a vocabulary."""
    monkeypatch.setattr(scoring, "BLOCK_BYTES", 3 * 16)
    for module in (commands, building):
        monkeypatch.setattr(module, "PER_COMMAND", 1)
    for split in ("validation", "test"):
        header, *lines = (parts / f"clicks/{split}.csv").read_text().splitlines(keepends=True)
        for number in range(5):
            text = "".join([header, *lines[number::5]])
            (parts / f"clicks/{split}-{number}.csv").write_text(text)
    (parts / "clicks/users.txt").write_text("".join(f"u{user}\n" for user in range(30)))
    conf = conf_of(
        parts, monkeypatch, "data.train=part-*.csv", "data.validation=validation-*.csv",
        "data.test=test-*.csv", "data.group=user_id", "slots.user_id.ids=vocabulary",
        "evaluation.ndcg_at=3", "slots.user_id.vocabulary_file=users.txt",
    )  # fmt: skip
    report, errors = cluster_in_one_process.train_together(conf, 3)
    assert not errors
    checkpoint = loading.newest("run")
    model = loading.load(checkpoint, schema.from_values(checkpoint.conf()))
    alone = score(Inference(model, conf.train.batch_size), conf, "test").metrics()
    for name in ("examples", "auc", "gauc", "ndcg", "logloss", "reference_auc", "copc"):
        assert report.metrics[name] == pytest.approx(alone[name], abs=1e-6), name
