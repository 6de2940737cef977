"""ids=row_quantiles: buckets with about equal numbers of rows, against slow models."""

import json
from fractions import Fraction

import numpy as np
import pytest

from tnctl.data import statistics
from tnctl.data.features import Features
from tnctl.data.sources import Source
from tnctl.data.statistics import RANGES_KEPT, RowCounts, measure, shared_out
from tnctl.data.windows import windows
from tnctl.errors import Failure
from tnctl.schema import from_values


def boundaries_of(values, buckets, parts=1):
    rows = RowCounts()
    for part in np.array_split(np.asarray(values, np.float64), parts):
        rows.add(part)
    return rows.boundaries(buckets)


def rows_of_buckets(values, boundaries):
    return np.bincount(np.searchsorted(boundaries, values, side="right")).tolist()


def slow_buckets(counts, buckets):
    """docs/formats/ids.md, value by value."""
    alone = set()
    while True:
        rows = sum(count for i, count in enumerate(counts) if i not in alone)
        free = buckets - len(alone)
        full = {i for i, n in enumerate(counts) if i not in alone and Fraction(rows, free) < n}
        if not full:
            break
        alone |= full
        if len(alone) == len(counts):
            return list(range(len(counts)))
    # Buckets of the others, and which values they have.
    runs, run = [], []
    for i in range(len(counts)):
        if i in alone:
            runs += [run, [i]]
            run = []
        else:
            run.append(i)
    runs.append(run)
    result, rows_below, begun, above = {}, 0, 0, 0
    for run in runs:
        if run and run[0] in alone:
            result[run[0]] = begun + above
            above += 1
            continue
        rows_of_run = sum(counts[i] for i in run)
        end = int(Fraction((rows_below + rows_of_run) * free, rows) + Fraction(1, 2))
        inside = 0
        for i in run:
            middle = Fraction(2 * inside + counts[i], 2 * rows_of_run)
            result[i] = min(begun + above + int(middle * (end - begun)), buckets - 1)
            inside += counts[i]
        rows_below, begun = rows_below + rows_of_run, end
    return [result[i] for i in range(len(counts))]


def test_buckets_are_those_of_a_slow_model():
    random = np.random.default_rng(0)
    for _ in range(300):
        counts = np.ceil(random.pareto(random.uniform(0.3, 3), random.integers(1, 30)) + 0.01)
        counts = counts.clip(max=10**6).astype(np.int64)
        buckets = int(random.integers(2, 20))
        numbers = shared_out(counts, buckets)
        assert numbers.tolist() == slow_buckets(counts.tolist(), buckets), (counts, buckets)
        assert (np.diff(numbers) >= 0).all() and numbers[0] >= 0 and numbers[-1] < buckets
        if len(counts) <= buckets:
            assert len(set(numbers.tolist())) == len(counts)


@pytest.mark.parametrize(
    ("values", "buckets", "expected"),
    [
        ([5, 5, 5], 4, [5]),
        ([1, 2, 3, 3, 3, 3, 3, 3], 4, [2, 3]),
        ([-0.0, 0.0, 1], 2, [1]),
        ([2**53, 2**53 + 2, 2**62, 2**63], 64, [2**53 + 2, 2**62, 2**63]),
        ([-1.7e308, -5e-324, 0, 5e-324, 1.7e308], 64, [-5e-324, 0, 5e-324, 1.7e308]),
    ],
)
def test_fewer_values_than_buckets_have_one_each(values, buckets, expected):
    assert boundaries_of(values, buckets).tolist() == expected


def test_ranges_of_many_values_are_the_same_in_any_order(monkeypatch):
    monkeypatch.setattr(statistics, "RANGES_KEPT", 256)
    random = np.random.default_rng(2)
    values = np.concatenate([random.lognormal(3, 1, 20_000), -random.uniform(0, 9, 5000),
                             np.zeros(25_000), [1.7e308, -1.7e308, 5e-324]])  # fmt: skip
    expected = boundaries_of(values, 16)
    for parts in (1, 7, 400):
        random.shuffle(values)
        np.testing.assert_array_equal(boundaries_of(values, 16, parts), expected)
    rows = rows_of_buckets(values, expected)
    assert len(rows) == 16 and rows.count(25_001) == 1  # with 5e-324, the next number above 0
    others = [count for count in rows if count != 25_001]
    assert max(others) < 25_000 / 15 + 500


def test_many_values_take_bounded_memory():
    rows = RowCounts()
    values = 1.7e9 + np.random.default_rng(3).permutation(400_000) / 100  # times of an hour
    for part in np.array_split(values, 5):
        rows.add(part)
        assert len(rows.values) <= RANGES_KEPT
    assert len(rows.values) > RANGES_KEPT / 2 - 2
    np.testing.assert_allclose(np.diff(rows.boundaries(10)), 400, atol=1)


def conf_of(folder, kind="csv", **slots):
    data = {"root": str(folder), "train": f"*.{kind}", "format": kind, "label": {"column": "y"}}
    return from_values({"recipe": {"name": "lr"}, "slots": slots, "data": data})


def test_files_are_measured_alike_in_any_parts(tmp_path):
    random = np.random.default_rng(4)
    prices = np.round(random.lognormal(2, 1, 3000), 2)
    lines = ["" if k % 9 == 0 else repr(float(price)) for k, price in enumerate(prices)]
    present = np.array([float(line) for line in lines if line])
    slot = {"ids": "row_quantiles", "buckets": 8, "missing": "value"}
    measured = []
    for parts in (1, 3):
        folder = tmp_path / str(parts)
        folder.mkdir()
        for number, part in enumerate(np.array_split(lines[:: 1 if parts == 1 else -1], parts)):
            text = "".join(f"{line},0\n" for line in part.tolist())
            (folder / f"{number}.csv").write_text("n,y\n" + text)
        conf = conf_of(folder, n=slot)
        statistics = measure(conf)
        measured.append(statistics.boundaries["n"])
    assert measured[0] == measured[1] == boundaries_of(present, 8).tolist()
    features = Features(conf, [(["n"], [1])], statistics)
    ids = np.concatenate([window.ids[0] for window in windows(Source(conf, "train"), features)])
    counts = np.bincount(ids.astype(np.int64))
    assert counts[8] == len(lines) - len(present)
    assert max(counts[:8]) - min(counts[:8]) < 10


def test_lists_count_each_value_and_no_number_is_refused(tmp_path):
    (tmp_path / "a.jsonl").write_text(
        "".join(json.dumps({"n": [k, 7, None], "e": None, "y": 0}) + "\n" for k in range(7))
    )
    conf = conf_of(tmp_path, "jsonl", n={"ids": "row_quantiles", "buckets": 4})
    assert measure(conf).boundaries["n"] == [2, 5, 7]
    conf = conf_of(tmp_path, "jsonl", e={"ids": "row_quantiles"})
    with pytest.raises(Failure, match=r"column 'e' has no number in data\.train"):
        measure(conf)
    (tmp_path / "a.jsonl").write_text('{"n": "inf", "y": 0}\n')
    with pytest.raises(Failure, match="line 1, column 'n': inf is infinite"):
        measure(conf_of(tmp_path, "jsonl", n={"ids": "row_quantiles"}))
