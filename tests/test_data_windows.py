"""Windows, permutations, batches, reading ahead; generated data; the shipped data confs."""

import gc
import json
import os
import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from test_columns import mix64

from tnctl.data import generated, windows
from tnctl.data.arrow_tables import raw_rows
from tnctl.data.bad_rows import Skipped
from tnctl.data.batches import batches, joined, taken
from tnctl.data.features import Features
from tnctl.data.read_ahead import ReadAhead
from tnctl.data.sources import Source, window_rows
from tnctl.data.statistics_document import Statistics
from tnctl.data.windows import count_hint, order
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
    tables = [(slots, [1] * len(slots)) for slots in (names[:1], names[1:])]
    return Features(conf, tables, Statistics(moments))


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
        out.append((*cells, *number, float(window.labels[row, 0]), float(window.reference[row])))
    return out


def test_windows_are_exact_and_do_not_change_the_rows():
    whole = shipped("generated", train="0:1000", window=1000, batch_size=1)
    (window,) = windows.windows(Source(whole, "train"), features_of(whole))
    conf = shipped("generated", train="0:1000", window=250, batch_size=64)
    assert window_rows(conf.data.window, conf.train.batch_size) == 256
    parts = list(windows.windows(Source(conf, "train"), features_of(conf)))
    assert [part.rows for part in parts] == [256, 256, 256, 232]
    assert [row for part in parts for row in rows_of(part)] == rows_of(window)
    later = list(windows.windows(Source(conf, "train"), features_of(conf), start=2))
    assert [rows_of(w) for w in later] == [rows_of(w) for w in parts[2:]]
    for limit, sizes in ((256, [256]), (300, [256, 44]), (5000, [256, 256, 256, 232])):
        cut = windows.windows(Source(conf, "train"), features_of(conf), limit=limit)
        assert [w.rows for w in cut] == sizes


def test_windows_span_pieces(monkeypatch):
    conf = shipped("generated", train="0:1000", window=250, batch_size=64)
    expected = [rows_of(w) for w in windows.windows(Source(conf, "train"), features_of(conf))]
    monkeypatch.setattr(generated, "PIECE_ROWS", 77)
    again = windows.windows(Source(conf, "train"), features_of(conf))
    assert list(map(rows_of, again)) == expected


def test_negatives_are_sampled_by_seed_and_row(monkeypatch):
    whole = shipped("generated", train="0:3000", validation="0:3000", window=5000)
    (all_rows,) = windows.windows(Source(whole, "train"), features_of(whole))
    rows = rows_of(all_rows)
    conf = shipped("generated", train="0:3000", validation="0:3000", negatives=0.3, window=512)
    conf.train.batch_size = 64
    conf.seed = 12345
    start = mix64(conf.seed ^ 0x6E65676174697665)
    kept = [
        row
        for number, row in enumerate(rows)
        if all_rows.labels[number, 0] == 1 or mix64(start ^ number) / 2**64 < 0.3
    ]
    assert 0.25 < (len(kept) - all_rows.labels.sum()) / (3000 - all_rows.labels.sum()) < 0.35
    sampled = list(windows.windows(Source(conf, "train"), features_of(conf)))
    assert [window.rows for window in sampled[:-1]] == [512] * (len(sampled) - 1)
    assert [row for window in sampled for row in rows_of(window)] == kept
    monkeypatch.setattr(generated, "PIECE_ROWS", 77)
    again = list(windows.windows(Source(conf, "train"), features_of(conf), start=1))
    assert [row for window in again for row in rows_of(window)] == kept[512:]
    (part,) = windows.windows(Source(conf, "train"), features_of(conf), limit=100)
    assert rows_of(part) == kept[:100]
    validation = Source(conf, "validation")
    assert sum(w.rows for w in windows.windows(validation, features_of(conf))) == 3000
    assert (count_hint(Source(conf, "train")), count_hint(validation)) == (None, 3000)


BAD = {3: ("a", "x"), 10: ("n", "one"), 11: ("y", 7), 20: ("y", None), 29: ("n", "inf")}


def with_bad_rows(folder, bad_rows, **data):
    """30 rows of which those of BAD cannot be used, and the conf that reads them."""
    rows = [{"a": str(k), "n": str(k), "y": k % 2} for k in range(30)]
    for number, (name, value) in BAD.items():
        rows[number][name] = value
    (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Conf(
        recipe={"name": "lr"},
        slots={"a": Slot(ids="integer")},
        numeric={"n": Numeric()},
        data=Data(
            root=str(folder), train="a.jsonl", format="jsonl", window=8, bad_rows=bad_rows,
            label=Label(column="y"), **data,
        ),
        train=Train(batch_size=4),
    )  # fmt: skip


def test_bad_rows_are_left_out_and_counted(tmp_path, capsys):
    conf = with_bad_rows(tmp_path, 5)
    features = Features(conf, [(["a"], [1])], Statistics())
    skipped = Skipped("train", conf.data.bad_rows)
    read = list(windows.windows(Source(conf, "train"), features, skipped=skipped))
    assert [window.rows for window in read] == [8, 8, 8, 1]
    good = [k for k in range(30) if k not in BAD]
    assert np.concatenate([window.ids[0] for window in read]).tolist() == good
    assert np.concatenate([window.numeric[:, 0] for window in read]).tolist() == good
    assert skipped.rows == 5
    assert "a.jsonl, line 4, column 'a': 'x' is not an integer" in skipped.first
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert said[0].startswith("data.train: 5 rows cannot be read and were left out. The first: ")
    later = list(windows.windows(Source(conf, "train"), features, start=2))
    assert [window.ids[0].tolist() for window in later] == [good[16:24], good[24:]]
    (part,) = windows.windows(Source(conf, "train"), features, limit=5)
    assert part.ids[0].tolist() == good[:5]


def test_more_bad_rows_than_allowed_are_a_failure(tmp_path):
    for allowed, words in ((0, "line 4, column 'a'"), (4, "over 4 rows that cannot be read")):
        conf = with_bad_rows(tmp_path, allowed)
        features = Features(conf, [(["a"], [1])], Statistics())
        with pytest.raises(Failure, match=words) as caught:
            list(windows.windows(Source(conf, "train"), features))
        assert "a.jsonl, line 4" in str(caught.value)


def test_bad_rows_among_sampled_negatives(tmp_path):
    conf = with_bad_rows(tmp_path, 5, negatives=0.5)
    features = Features(conf, [(["a"], [1])], Statistics())
    read = list(windows.windows(Source(conf, "train"), features))
    start = mix64(conf.seed ^ 0x6E65676174697665)
    # Numbered among the rows that can be read, so that prepared data samples the same.
    good = [k for k in range(30) if k not in BAD]
    expected = [k for n, k in enumerate(good) if k % 2 or mix64(start ^ n) / 2**64 < 0.5]
    assert np.concatenate([window.ids[0] for window in read]).tolist() == expected


@pytest.mark.parametrize(
    ("a", "negatives", "words"),
    [("1", 1e-9, "data.negatives=1e-09 keeps none"), ("x", 1.0, "3 cannot be read.*line 1")],
)
def test_no_row_left_is_a_failure(tmp_path, a, negatives, words):
    conf = with_bad_rows(tmp_path, 5, negatives=negatives)
    (tmp_path / "a.jsonl").write_text((json.dumps({"a": a, "n": 1, "y": 0}) + "\n") * 3)
    features = Features(conf, [(["a"], [1])], Statistics())
    with pytest.raises(Failure, match=rf"no row of data\.train is left: {words}"):
        list(windows.windows(Source(conf, "train"), features))


def test_batches_have_every_part_of_a_window(tmp_path):
    rows = [
        {"a": list("xyz")[: k % 4], "w": [0.5, 1.5, 2.5][: k % 4], "n": k, "y": k % 2, "g": k // 3}
        for k in range(20)
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    conf = Conf(
        recipe={"name": "lr"},
        slots={"a": Slot(weights="w"), "n": Slot(ids="integer", width=0)},
        numeric={"n2": Numeric(column="n")},
        data=Data(
            root=str(tmp_path), train="a.parquet", format="parquet", label=Label(column="y"),
            window=7, weight="n", group="g", reference="n",
        ),
        train=Train(batch_size=7),
    )  # fmt: skip
    features = Features(conf, [(["a"], [1]), (["n"], [1])], Statistics(), carry=["g", "a"])
    whole = joined(list(windows.windows(Source(conf, "train"), features)))
    assert whole.rows == 20
    chosen = np.array([19, 3, 3, 8], np.uint32)
    for window, numbers in ((whole, range(20)), (taken(whole, chosen), chosen)):
        expected = [rows[k] for k in numbers]
        assert window.weights[0].tolist() == [w for row in expected for w in row["w"]]
        assert np.diff(window.offsets[0]).tolist() == [len(row["w"]) for row in expected]
        assert window.weights[1] is None
        for column in (window.ids[1], window.weight, window.reference, window.numeric[:, 0]):
            assert column.tolist() == [row["n"] for row in expected]
        assert window.labels[:, 0].tolist() == [row["y"] for row in expected]
        names = {row["g"] for row in expected}
        assert len(
            set(zip(window.group.tolist(), [row["g"] for row in expected], strict=True))
        ) == len(names)
        assert window.carried.to_pylist() == [{"g": row["g"], "a": row["a"]} for row in expected]


def test_order_is_a_permutation_of_seed_epoch_and_window():
    orders = {(e, n): order(7, e, n, 1000, True).tolist() for e in range(3) for n in range(3)}
    assert all(sorted(permutation) == list(range(1000)) for permutation in orders.values())
    assert len({tuple(permutation) for permutation in orders.values()}) == 9
    assert order(7, 1, 2, 1000, True).tolist() == orders[1, 2]
    assert order(8, 1, 2, 1000, True).tolist() != orders[1, 2]
    plain = order(8, 1, 2, 5, False)
    assert plain.tolist() == [0, 1, 2, 3, 4]
    assert plain.dtype == np.uint32


def test_batches_are_the_rows_in_that_order():
    conf = shipped("generated", train="0:300", window=300, batch_size=1)
    (window,) = windows.windows(Source(conf, "train"), features_of(conf))
    chosen = order(conf.seed, 0, 0, window.rows, conf.data.shuffle)
    parts = list(batches(window, chosen, 64))
    assert [batch.rows for batch in parts] == [64, 64, 64, 64, 44]
    rows = rows_of(window)
    assert [row for batch in parts for row in rows_of(batch)] == [rows[k] for k in chosen]


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
    ahead = ReadAhead(iter(range(10**9)), depth=1)
    thread = ahead._finalizer.peek()[2][1]
    next(ahead)
    assert thread.is_alive()
    del ahead
    gc.collect()
    assert not thread.is_alive()


def test_the_interpreter_exits_with_a_reader_running():
    code = """
import itertools, time
from tnctl.data.read_ahead import ReadAhead
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


def test_generated_rows_are_a_function_of_their_number():
    whole = generated.rows(0, 2000)
    assert generated.rows(700, 900).equals(whole.slice(700, 200))
    assert whole.slice(0, 1).select(["user_id", "hour", "interests"]).to_pylist() == [
        {"user_id": "u0", "hour": "1", "interests": ["0", "0"]}
    ]
    conf = shipped("generated", train="5:2005")
    assert count_hint(Source(conf, "train")) == 2000
    assert count_hint(Source(conf, "validation")) == 200_000
    row = raw_rows(Source(conf, "train"), 1)[0]
    assert row["user_id"] == generated.rows(5, 6)["user_id"][0].as_py()


def test_a_collected_read_ahead_never_blocks_the_making_of_another():
    """The collector may run, and end a reading thread, at any allocation."""
    code = """
import gc
from tnctl.data.read_ahead import ReadAhead
for allocations in range(1, 300):  # from here on, until the collector runs
    gc.collect()
    gc.set_threshold(allocations, 1000, 1000)
    ahead = ReadAhead(iter(range(5)), 2)
    circle = [ahead]
    circle.append(circle)  # only the collector frees it
    del ahead, circle
    with ReadAhead(iter(range(5)), 2) as another:
        assert next(another) == 0
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", code], timeout=30, env=environment, check=True)
