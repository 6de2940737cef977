"""The measuring pass: moments, distinct values, quantile boundaries, and their JSON."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tnctl import documents
from tnctl.data import sources
from tnctl.data.features import Features
from tnctl.data.statistics import DISTINCT_KEPT, DistinctValues, Moments, measure
from tnctl.data.statistics_document import Statistics
from tnctl.errors import Failure
from tnctl.schema import Conf, Data, Label, Numeric, Slot


@pytest.mark.parametrize("parts", [1, 7, 1000])
def test_moments_are_numpys(parts):
    values = np.random.default_rng(parts).normal(1e6, 0.5, 10_000)
    moments = Moments()
    for part in np.array_split(values, parts):
        moments.add(part)
        moments.add(part[:0])
    mean, deviation = moments.result()
    assert mean == pytest.approx(values.mean(), rel=1e-12)
    assert deviation == pytest.approx(values.std(), rel=1e-6)


def test_moments_of_equal_numbers_and_of_none():
    moments = Moments()
    assert moments.result() == (0.0, 1.0)
    moments.add(np.full(10, 3.5))
    assert moments.result() == (3.5, 1.0)


def test_distinct_values_are_exact_while_they_fit():
    values = np.random.default_rng(0).integers(-500, 500, 20_000) / 8
    distinct = DistinctValues()
    for part in np.array_split(values, 30):
        distinct.add(part)
    distinct.add(np.array([-0.0, 0.0]))
    np.testing.assert_array_equal(distinct.values, np.unique(values))
    expected = np.unique(np.quantile(np.unique(values), np.arange(1, 10) / 10))
    np.testing.assert_array_equal(distinct.boundaries(10), expected)


def test_a_sample_of_many_distinct_values_is_uniform_and_the_same_in_any_parts():
    values = np.random.default_rng(0).permutation(400_000) / 400_000
    samples = []
    for parts in (1, 13):
        distinct = DistinctValues()
        # Frequency must not count: the smallest tenth comes ten times.
        for part in np.array_split(np.concatenate([values, *[values[values < 0.1]] * 9]), parts):
            distinct.add(part)
        samples.append(distinct.values)
    np.testing.assert_array_equal(*samples)
    assert len(samples[0]) == DISTINCT_KEPT
    np.testing.assert_allclose(distinct.boundaries(10), np.arange(1, 10) / 10, atol=0.01)


def conf_of(root, **more):
    return Conf(
        recipe={"name": "lr"},
        slots={"q": Slot(ids="quantiles", buckets=4, **more), "h": Slot(column="q2")},
        numeric={"s": Numeric(transform="standardize"), "q2": Numeric()},
        data=Data(root=str(root), train="a.parquet", format="parquet", label=Label(column="y")),
    )


def test_measure_and_encode(tmp_path):
    rng = np.random.default_rng(3)
    n = 1000
    q = [None if k % 9 == 0 else float(k % 37) for k in range(n)]
    s = rng.normal(4, 3, n)
    table = pa.table({"q": q, "q2": np.arange(n), "s": s, "y": np.zeros(n)})
    pq.write_table(table, tmp_path / "a.parquet")
    conf = conf_of(tmp_path, missing="value")
    statistics = measure(conf)
    assert list(statistics.standardize) == ["s"]
    np.testing.assert_allclose(statistics.standardize["s"], [s.mean(), s.std()], rtol=1e-12)
    np.testing.assert_array_equal(
        statistics.boundaries["q"], np.quantile(np.arange(37), [0.25, 0.5, 0.75])
    )
    window = Features(conf, [(["q"], [1])], statistics).encode(table, lambda row: ("x", row))
    bounds = np.array(statistics.boundaries["q"])
    expected = [4 if v is None else int((bounds <= v).sum()) for v in q]
    assert window.ids[0].tolist() == expected
    conf = conf_of(tmp_path)
    window = Features(conf, [(["q"], [1])], statistics).encode(table, lambda row: ("x", row))
    assert window.ids[0].tolist() == [k for k, v in zip(expected, q, strict=True) if v is not None]


def test_json_is_exact():
    rng = np.random.default_rng(0)
    statistics = Statistics(
        {"a": (0.1 + 0.2, 1 / 3), "v": ([0.1, 0.7], [1 / 3, 2 / 3])},
        {"b": np.sort(rng.normal(size=50) ** 9).tolist()},
        {"c": ["ü", 'a"b', " x"]},
    )
    text = json.dumps(documents.plain(statistics))
    assert documents.parse(Statistics, text.encode()) == statistics


def test_nothing_to_measure_reads_nothing(monkeypatch):
    given = Numeric(transform="standardize", mean=1.0, deviation=2.0)
    conf = Conf(recipe={"name": "lr"}, slots={"a": Slot()}, numeric={"n": Numeric(), "g": given})
    monkeypatch.setattr(sources.Source, "pieces", None)
    assert measure(conf) == Statistics({"g": (1.0, 2.0)})


def test_vectors_are_measured_number_by_number(tmp_path):
    rng = np.random.default_rng(4)
    values = rng.normal([1, -20], [3, 0.5], (700, 2))
    rows = [[None if k % 5 == 0 else a, b] for k, (a, b) in enumerate(values.tolist())]
    rows[9] = None
    table = pa.table({"v": rows, "p": values[:, 0], "q": values[:, 1]})
    pq.write_table(table, tmp_path / "a.parquet")
    conf = Conf(
        recipe={"name": "lr"},
        numeric={
            "v": Numeric(width=2, transform="standardize"),
            "c": Numeric(columns=["q", "p"], transform="standardize"),
        },
        data=Data(root=str(tmp_path), train="a.parquet", format="parquet"),
    )
    moments = measure(conf).standardize
    shown = np.array([[np.nan] * 2 if row is None else row for row in rows], float)
    np.testing.assert_allclose(moments["v"], [np.nanmean(shown, 0), np.nanstd(shown, 0)])
    np.testing.assert_allclose(moments["c"], [values[:, ::-1].mean(0), values[:, ::-1].std(0)])


def test_bad_numbers_are_left_out_up_to_the_limit(tmp_path):
    (tmp_path / "a.jsonl").write_text(
        "".join(json.dumps({"n": n, "y": 0}) + "\n" for n in ["1", "x", "3", "inf", "5"]) + "{\n"
    )
    conf = Conf(
        recipe={"name": "lr"},
        numeric={"n": Numeric(transform="standardize")},
        data=Data(root=str(tmp_path), train="a.jsonl", format="jsonl", bad_rows=3),
    )
    assert measure(conf).standardize["n"] == (3.0, pytest.approx(np.std([1, 3, 5])))
    conf.data.bad_rows = 2
    with pytest.raises(Failure, match=r"over 2 rows .*a\.jsonl, line"):
        measure(conf)
    conf.data.bad_rows = 0
    with pytest.raises(Failure, match=r"a\.jsonl, line (2, column 'n': 'x' is not a number|6)"):
        measure(conf)
