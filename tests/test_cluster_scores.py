"""Scores of several workers, gathered in blocks, are those of one process."""

from concurrent.futures import Future

import cluster_in_one_process
import numpy as np
import pytest
from test_cluster import conf_of, parts  # noqa: F401 - a fixture

from tnctl import schema
from tnctl.checkpoint import load as loading
from tnctl.cluster.messages import commands, scores
from tnctl.errors import Failure
from tnctl.evaluation.inference import Inference
from tnctl.evaluation.metrics import Scored
from tnctl.evaluation.split_scoring import score

HEADS = ["a", "b"]
EVERY = tuple(scores.TYPES)


def examples(draws, rows, names=EVERY):
    arrays = {
        "logits": draws.normal(size=(rows, 2)).astype(np.float32),
        "labels": draws.integers(0, 2, (rows, 2)).astype(np.float32),
        "weight": draws.random(rows).astype(np.float32),
        "reference": draws.normal(size=rows),
        "group": draws.integers(0, 2**63, rows).astype(np.uint64),
    }
    return Scored(HEADS, **{name: arrays[name] for name in names})


def dealt(whole, rows, workers):
    """The examples of each worker, and the rows of its units."""
    ends = np.cumsum(rows)
    for rank in range(workers):
        units = range(rank, len(rows), workers)
        chosen = [np.arange(ends[unit] - rows[unit], ends[unit]) for unit in units]
        taken = np.concatenate(chosen or [np.empty(0, int)]).astype(int)
        arrays = {name: getattr(whole, name)[taken] for name in scores.arrays_of(whole)}
        yield Scored(HEADS, **arrays), [rows[unit] for unit in units]


def gathered(by_worker, requested=None):
    """What rank 0 puts together; a request is answered at once."""

    def request(rank, first, rows):
        reply = Future()
        reply.set_result(scores.block_of(by_worker[rank][0], first, rows))
        if requested is not None:
            requested.append((rank, len(reply.result())))
        return reply

    return scores.gathered(
        by_worker[0][0],
        [rows for _, rows in by_worker],
        [scores.arrays_of(scored) for scored, _ in by_worker],
        request,
        lambda: None,
    )


@pytest.mark.parametrize("names", [EVERY, ("logits", "labels"), ("logits", "labels", "group")])
@pytest.mark.parametrize("workers", [1, 2, 3, 7])
def test_examples_are_put_together_in_the_order_of_units(monkeypatch, workers, names):
    draws = np.random.default_rng(workers)
    monkeypatch.setattr(scores, "BLOCK_BYTES", 600)
    for _ in range(20):
        rows = (draws.integers(0, 40, draws.integers(1, 12)) * draws.integers(0, 2)).tolist()
        whole, requested = examples(draws, sum(rows), names), []
        by_worker = list(dealt(whole, rows, workers))
        together = gathered(by_worker, requested)
        assert scores.arrays_of(together) == names and together.heads == HEADS
        for name in names:
            array, expected = getattr(together, name), getattr(whole, name)
            assert array.dtype == expected.dtype and array.shape == expected.shape
            assert array.tobytes() == expected.tobytes()
        assert all(size <= 600 for _, size in requested)


def test_workers_without_examples_have_no_say_in_their_columns():
    draws = np.random.default_rng(0)
    whole = examples(draws, 5)
    nothing = Scored(HEADS, np.empty((0, 2), np.float32), np.empty((0, 2), np.float32))
    together = gathered([(nothing, [0]), (whole, [5]), (nothing, [])])
    assert together.group.tobytes() == whole.group.tobytes()
    assert len(gathered([(nothing, [0]), (nothing, [0])]).labels) == 0


def test_examples_that_do_not_fit_together_are_refused():
    draws = np.random.default_rng(0)
    first, second = examples(draws, 5), examples(draws, 4, ("logits", "labels"))
    with pytest.raises(Failure, match=r"different columns: .*group"):
        gathered([(first, [5]), (second, [4])])
    with pytest.raises(Failure, match="2 scores from 4 on were requested, there are 5"):
        scores.block_of(first, 4, 2)
    reply = Future()
    reply.set_result(bytes(7))
    names = scores.arrays_of(second)
    with pytest.raises(Failure, match="worker 1 sent 7 bytes of scores, instead of 64"):
        scores.gathered(second, [[4], [4]], [names] * 2, lambda *_: reply, lambda: None)


def test_a_cluster_scores_as_one_process_does(parts, monkeypatch):  # noqa: F811
    """Blocks of 3 rows, a command for each unit, and one for each text of a vocabulary."""
    monkeypatch.setattr(scores, "BLOCK_BYTES", 3 * 16)
    monkeypatch.setattr(commands, "PER_COMMAND", 1)
    for split in ("validation", "test"):
        header, *lines = (parts / f"clicks/{split}.csv").read_text().splitlines(keepends=True)
        for number in range(5):
            text = "".join([header, *lines[number::5]])
            (parts / f"clicks/{split}-{number}.csv").write_text(text)
    (parts / "clicks/users.txt").write_text("".join(f"u{user}\n" for user in range(30)))
    conf = conf_of(
        parts, monkeypatch, "data.train=part-*.csv", "data.validation=validation-*.csv",
        "data.test=test-*.csv", "data.group=user_id", "slots.user_id.ids=vocabulary",
        "slots.user_id.vocabulary_file=users.txt",
    )  # fmt: skip
    report, errors = cluster_in_one_process.train_together(conf, 3)
    assert not errors
    checkpoint = loading.newest("run")
    model = loading.load(checkpoint, schema.from_values(checkpoint.conf()))
    alone = score(Inference(model, conf.train.batch_size), conf, "test").metrics()
    for name in ("examples", "auc", "gauc", "logloss", "reference_auc", "copc"):
        assert report.metrics[name] == pytest.approx(alone[name], abs=1e-6), name
