"""Windows, permutations, batches, reading ahead; generated data; the shipped data confs."""

import gc
import os
import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import yaml

from tnctl.data import generated, windows
from tnctl.data.features import Features
from tnctl.data.statistics import Statistics, measure
from tnctl.data.windows import ReadAhead, batches, count_hint, order, raw_rows
from tnctl.errors import Failure
from tnctl.schema import Conf, Data, Label, Numeric, Slot, Train

ROOT = Path(__file__).parents[1]


def shipped(name, window=262_144, batch_size=4096, **data):
    """A conf made of conf/data/`name`.yaml, as Hydra composes it."""
    values = yaml.safe_load((ROOT / "conf" / "data" / f"{name}.yaml").read_text())
    given = values["data"] | data
    given["label"] = Label(**given["label"])
    return Conf(
        recipe={"name": "lr"},
        slots={key: Slot(**slot) for key, slot in values["slots"].items()},
        numeric={key: Numeric(**numeric) for key, numeric in values["numeric"].items()},
        data=Data(**given, window=window),
        train=Train(batch_size=batch_size),
    )


def features_of(conf):
    moments = dict.fromkeys(conf.numeric, (0.0, 1.0))
    names = list(conf.slots)
    return Features(conf, [names[:1], names[1:]], Statistics(moments))


def rows_of(window):
    """Each example as one tuple of all it has."""
    out = []
    for row in range(window.rows):
        cells = []
        for ids, offsets in zip(window.ids, window.offsets, strict=True):
            slots = (len(offsets) - 1) // window.rows
            at = offsets[row * slots : (row + 1) * slots + 1].astype(int)
            cells += [tuple(ids[a:b].tolist()) for a, b in pairwise(at)]
        number = window.numeric[row].tolist()
        out.append((*cells, *number, float(window.labels[row]), float(window.reference[row])))
    return out


def test_windows_are_exact_and_do_not_change_the_rows():
    whole = shipped("generated", train="0:1000", window=1000, batch_size=1)
    (one,) = windows.windows(whole, features_of(whole), "train")
    conf = shipped("generated", train="0:1000", window=250, batch_size=64)
    assert windows.window_rows(conf) == 256
    parts = list(windows.windows(conf, features_of(conf), "train"))
    assert [part.rows for part in parts] == [256, 256, 256, 232]
    assert [row for part in parts for row in rows_of(part)] == rows_of(one)
    later = list(windows.windows(conf, features_of(conf), "train", start=2))
    assert [rows_of(w) for w in later] == [rows_of(w) for w in parts[2:]]
    for limit, sizes in ((256, [256]), (300, [256, 44]), (5000, [256, 256, 256, 232])):
        found = windows.windows(conf, features_of(conf), "train", limit=limit)
        assert [w.rows for w in found] == sizes


def test_windows_span_pieces(monkeypatch):
    conf = shipped("generated", train="0:1000", window=250, batch_size=64)
    expected = [rows_of(w) for w in windows.windows(conf, features_of(conf), "train")]
    monkeypatch.setattr(generated, "PIECE_ROWS", 77)
    assert [rows_of(w) for w in windows.windows(conf, features_of(conf), "train")] == expected


def test_order_is_a_permutation_of_seed_epoch_and_window():
    conf = shipped("generated")
    found = {(e, n): order(conf, e, n, 1000).tolist() for e in range(3) for n in range(3)}
    assert all(sorted(one) == list(range(1000)) for one in found.values())
    assert len({tuple(one) for one in found.values()}) == 9
    assert order(conf, 1, 2, 1000).tolist() == found[1, 2]
    conf.seed += 1
    assert order(conf, 1, 2, 1000).tolist() != found[1, 2]
    conf.data.shuffle = False
    plain = order(conf, 1, 2, 5)
    assert plain.tolist() == [0, 1, 2, 3, 4]
    assert plain.dtype == np.uint32


def test_batches_are_the_rows_in_that_order():
    conf = shipped("generated", train="0:300", window=300, batch_size=1)
    (window,) = windows.windows(conf, features_of(conf), "train")
    chosen = order(conf, 0, 0, window.rows)
    found = list(batches(window, chosen, 64))
    assert [batch.rows for batch in found] == [64, 64, 64, 64, 44]
    rows = rows_of(window)
    assert [row for batch in found for row in rows_of(batch)] == [rows[k] for k in chosen]


def test_read_ahead_gives_everything_in_order():
    with ReadAhead(iter(range(100)), depth=3) as ahead:
        assert list(ahead) == list(range(100))
        assert list(ahead) == []
        assert ahead.seconds_waited >= 0


def test_read_ahead_raises_what_the_iterator_raised_after_the_items_before():
    def failing():
        yield 1
        yield 2
        raise Failure("the file ended")

    with ReadAhead(failing(), depth=5) as ahead:
        assert [next(ahead), next(ahead)] == [1, 2]
        with pytest.raises(Failure, match="the file ended"):
            next(ahead)
        assert list(ahead) == []


def test_read_ahead_stays_within_its_depth_and_closes_the_iterator():
    made, closed = [], threading.Event()

    def endless():
        try:
            while True:
                made.append(len(made))
                yield made[-1]
        finally:
            closed.set()

    with ReadAhead(endless(), depth=2) as ahead:
        assert next(ahead) == 0
        time.sleep(0.05)
        # One taken, two ready, one in the thread's hand.
        assert len(made) <= 4
    assert closed.is_set()
    assert list(ahead) == []
    ahead.close()


def test_a_forgotten_read_ahead_ends_its_thread():
    before = threading.active_count()
    ahead = ReadAhead(iter(range(10**9)), depth=1)
    next(ahead)
    del ahead
    gc.collect()
    assert threading.active_count() == before


def test_the_interpreter_exits_with_a_reader_running():
    code = """
import itertools, time
from tnctl.data.ahead import ReadAhead
def slow():
    for k in itertools.count():
        time.sleep(0.02)
        yield k
ahead = ReadAhead(slow(), depth=2)
print(next(ahead))
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=20, env=environment
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")


def auc(scores, labels):
    ranks = np.empty(len(scores))
    ranks[np.argsort(scores, kind="stable")] = np.arange(1, len(scores) + 1)
    clicks = labels.sum()
    return (ranks[labels == 1].sum() - clicks * (clicks + 1) / 2) / clicks / (len(labels) - clicks)


def test_generated_rows_are_a_function_of_their_number():
    whole = generated.rows(0, 2000)
    assert generated.rows(700, 900).equals(whole.slice(700, 200))
    assert whole.slice(0, 1).select(["user_id", "hour", "interests"]).to_pylist() == [
        {"user_id": "u0", "hour": "1", "interests": ["0", "0"]}
    ]
    conf = shipped("generated", train="5:2005")
    assert count_hint(conf, "train") == 2000
    assert count_hint(conf, "validation") == 200_000
    row = raw_rows(conf, "train", 1)[0]
    assert row["user_id"] == generated.rows(5, 6)["user_id"][0].as_py()


def test_generated_clicks_have_the_planted_truth():
    table = generated.rows(0, 300_000)
    labels = table["label"].to_numpy()
    planted, additive = table["planted"].to_numpy(), table["planted_additive"].to_numpy()
    assert 0.24 < labels.mean() < 0.27
    assert auc(planted, labels) == pytest.approx(0.864, abs=0.005)
    assert auc(additive, labels) == pytest.approx(0.740, abs=0.008)
    # Calibrated, and the interactions have no main effect.
    assert (1 / (1 + np.exp(-planted))).mean() == pytest.approx(labels.mean(), abs=0.003)
    for name in generated.INTERACTING[:-1]:
        texts = table[name].to_numpy(zero_copy_only=False)
        _, places = np.unique(texts, return_inverse=True)
        counts = np.bincount(places)
        means = np.bincount(places, planted - additive) / counts
        assert np.abs(means[counts > 1000]).max() < 0.15, name


def test_generated_slots_have_their_cardinalities():
    table = generated.rows(0, 400_000)
    for name, cardinality in generated.SLOTS.items():
        column = table[name].combine_chunks()
        values = column.flatten() if name == generated.INTERESTS else column
        assert 0.97 * cardinality <= len(values.unique()) <= cardinality
    lengths = np.diff(table["interests"].combine_chunks().offsets.to_numpy())
    assert sorted(np.unique(lengths)) == [0, 1, 2, 3, 4]


def test_criteo_conf_reads_a_line_of_criteo(tmp_path):
    line = ["1", "1", "", "-2", *["3"] * 10, "68fd1e64", '"odd', *["80e26c9b"] * 23, ""]
    (tmp_path / "train.txt").write_text("\t".join(line) + "\n")
    conf = shipped("criteo", root=str(tmp_path))
    (window,) = windows.windows(conf, features_of(conf), "train")
    assert len(window.ids[0]) + len(window.ids[1]) == 26
    expected = np.array([np.log1p(1), 0, -np.log1p(2), *[np.log1p(3)] * 10], np.float32)
    np.testing.assert_array_equal(window.numeric[0], expected)
    assert window.labels.tolist() == [1]


DATA = os.environ.get("TNCTL_TEST_DATA")


@pytest.mark.skipif(not DATA, reason="TNCTL_TEST_DATA is not set: no Adult data")
def test_adult_is_learned_by_logistic_regression():
    conf = shipped("adult", root=f"{DATA}/adult")
    names = list(conf.slots)
    features = Features(conf, [names], measure(conf))
    (train,) = windows.windows(conf, features, "train")
    (test,) = windows.windows(conf, features, "test")
    assert (train.rows, train.labels.sum()) == (32_561, 7841)
    assert (test.rows, test.labels.sum()) == (16_281, 3846)
    known = [np.unique(train.ids[0][slot :: len(names)]) for slot in range(len(names))]
    assert [len(ids) for ids in known[:8]] == [9, 16, 7, 15, 6, 5, 2, 42]
    assert auc(_scores(train, test, known), test.labels) > 0.917


def _scores(train, test, known):
    """Logits of `test` after AdaGrad on `train`, in numpy; an unknown id weighs nothing."""
    slots = len(known)
    starts = np.cumsum([0] + [len(ids) for ids in known])

    def places(window):
        cells = window.ids[0].reshape(-1, slots)
        at = np.stack([np.searchsorted(k, c) for k, c in zip(known, cells.T, strict=True)], 1)
        at = np.minimum(at, np.diff(starts) - 1)
        found = np.stack([k[a] for k, a in zip(known, at.T, strict=True)], 1) == cells
        return np.where(found, at + starts[:-1], starts[-1])

    x, weights, squares = places(train), np.zeros(starts[-1] + 1), np.full(starts[-1] + 1, 0.1)
    rng = np.random.default_rng(0)
    for _ in range(40):
        for rows in np.array_split(rng.permutation(len(x)), 64):
            error = 1 / (1 + np.exp(-weights[x[rows]].sum(1))) - train.labels[rows]
            gradient = np.bincount(x[rows].ravel(), np.repeat(error / 512, slots), len(weights))
            squares += gradient**2
            weights -= 1.0 * gradient / np.sqrt(squares)
    weights[-1] = 0
    return weights[places(test)].sum(1)
