"""Numeric inputs, labels, weights and groups of examples, against slow models."""

import json
import math

import bounded
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_slots import cells_of, conf_of, encoded, tables_of, value_id, where

from tnctl import documents
from tnctl.data.features import Features
from tnctl.data.sources import Source
from tnctl.data.statistics import measure
from tnctl.data.statistics_document import Statistics
from tnctl.data.windows import windows
from tnctl.errors import Failure, UserError
from tnctl.schema import (
    Label,
    Numeric,
    Slot,
)

# ---- Numeric inputs --------------------------------------------------------------------------


def model_number(value, numeric, moments):
    if value is None or math.isnan(value):
        if numeric.default is None:
            return 0.0
        value = numeric.default
    if numeric.clip is not None:
        low, high = numeric.clip
        value = value if low is None else max(value, low)
        value = value if high is None else min(value, high)
    if numeric.transform == "log1p":
        return math.copysign(math.log1p(abs(value)), value)
    if numeric.transform == "standardize":
        return (value - moments[0]) / moments[1]
    return value


@pytest.mark.parametrize("transform", ["none", "log1p", "standardize"])
@pytest.mark.parametrize("default", [None, 1.5])
@pytest.mark.parametrize("clip", [None, [-2.0, 2.0], [0.5, None]])
@pytest.mark.parametrize("form", ["list", "fixed", "text", "json", "columns"])
def test_vectors_are_their_model(transform, default, clip, form):
    rng = np.random.default_rng(3)
    rows = [
        [None if rng.random() < 0.2 else float(rng.normal(0, 3)) for _ in range(3)]
        for _ in range(30)
    ]
    rows[4] = [None] * 3
    shape = {"columns": ["p", "q", "r"]} if form == "columns" else {"width": 3}
    numeric = Numeric(
        transform=transform,
        default=default,
        clip=clip,
        separator={"text": ";", "json": "json"}.get(form),
        **shape,
    )
    moments = ([0.5, -1.0, 2.0], [1.0, 2.0, 0.25])
    texts = [
        None if k == 4 else [None if v is None else repr(v) for v in row]
        for k, row in enumerate(rows)
    ]
    columns = {
        "list": lambda: {"v": pa.array([None if k == 4 else row for k, row in enumerate(rows)])},
        "fixed": lambda: {
            "v": pa.array(
                [None if k == 4 else r for k, r in enumerate(rows)], pa.list_(pa.float64(), 3)
            )
        },
        "text": lambda: {"v": [None if t is None else ";".join(p or "" for p in t) for t in texts]},
        "json": lambda: {"v": [None if k == 4 else json.dumps(row) for k, row in enumerate(rows)]},
        "columns": lambda: {n: [row[k] for row in rows] for k, n in enumerate("pqr")},
    }[form]()
    conf = conf_of({}, {"v": numeric, "one": Numeric(column="y")})
    window = encoded(conf, columns | {"y": np.arange(30) % 2}, Statistics({"v": moments}))
    expected = [
        [model_number(v, numeric, (moments[0][k], moments[1][k])) for k, v in enumerate(row)]
        for row in rows
    ]
    np.testing.assert_allclose(window.numeric[:, :3], np.array(expected, np.float32), rtol=1e-6)
    np.testing.assert_array_equal(window.numeric[:, 3], np.arange(30) % 2)


def test_vectors_of_another_length():
    conf = conf_of({}, {"v": Numeric(width=2, separator=",")})
    for bad in ("1", "1,2,3"):
        with pytest.raises(Failure, match=r"file\.csv, row 2, column 'v'.*numeric\.v\.width=2"):
            encoded(conf, {"v": ["1,2", bad]})
    with pytest.raises(Failure, match=r"row 2, column 'v': 'x' is not a number"):
        encoded(conf, {"v": ["1,2", "1,x"]})
    with pytest.raises(Failure, match=r"row 2, column 'v': inf is infinite"):
        encoded(conf, {"v": ["1,2", "1,inf"]})
    with pytest.raises(Failure, match=r"column 'v' has one value per row.*numeric\.v\.separator"):
        encoded(conf_of({}, {"v": Numeric(width=2)}), {"v": ["1,2"]})
    # Nothing at all is missing, not wrong.
    window = encoded(conf, {"v": ["", None]})
    np.testing.assert_array_equal(window.numeric, np.zeros((2, 2)))


def test_clipped_numbers_are_measured(tmp_path):
    table = pa.table({"n": [0.0, 1.0, 2.0, 1e9, None], "y": [0] * 5})
    pq.write_table(table, tmp_path / "a.parquet")
    numeric = {"n": Numeric(transform="standardize", clip=[0.0, 3.0], default=1.0)}
    conf = conf_of({}, numeric, root=str(tmp_path), train="a.parquet", format="parquet")
    statistics = measure(conf)
    assert statistics.standardize["n"] == (1.5, pytest.approx(np.std([0, 1, 2, 3])))


# ---- Labels, weights, groups, what is carried ------------------------------------------------


def test_several_labels():
    labels = {
        "click": Label(column="c"),
        "bought": Label(column="b", positive=["yes"]),
        "liked": Label(column="r", above=3),
    }
    conf = conf_of(labels=labels)
    table = {"a": ["x"] * 3, "c": [0, 1, 0], "b": ["no", "yes", "no"], "r": [3.0, 3.5, -1]}
    window = encoded(conf, table)
    assert window.labels.tolist() == [[0, 0, 0], [1, 1, 1], [0, 0, 0]]
    assert window.labels.dtype == np.float32
    assert Features(conf, [], Statistics()).columns == ["a", "c", "b", "r"]
    with pytest.raises(Failure, match=r"row 3: the label in column 'r' must be a number"):
        encoded(conf, table | {"r": [1, 2, None]})


def test_labels_of_mse_are_any_finite_number():
    conf = conf_of(loss="mse")
    assert encoded(conf, {"a": ["x"] * 2, "y": [-7.5, 1e6]}).labels.tolist() == [[-7.5], [1e6]]
    for bad in (None, math.inf, 1e300):
        with pytest.raises(Failure, match=r"row 2: the label in column 'y' must be a finite"):
            encoded(conf, {"a": ["x"] * 2, "y": [0.5, bad]})


def test_lists_of_one_are_values():
    """As TFRecord has them: every feature is a list."""
    conf = conf_of({"a": Slot()}, {"n": Numeric()}, weight="w", group="g")
    columns = {
        "a": [["x"], []],
        "n": [[2.5], None],
        "y": [[1], [0]],
        "w": [[2], [1]],
        "g": [[7], []],
    }
    window = encoded(conf, columns)
    assert cells_of(window) == [[value_id("x")], []]
    np.testing.assert_array_equal(window.numeric, [[2.5], [0]])
    assert window.labels.tolist() == [[1], [0]]
    assert window.weight.tolist() == [2, 1]
    assert window.group.tolist() == [value_id("7"), value_id("")]
    with pytest.raises(Failure, match=r"row 2: column 'y' must have one value"):
        encoded(conf, columns | {"y": [[1], [0, 1]]})


def test_weights_of_examples():
    conf = conf_of(weight="w")
    window = encoded(conf, {"a": ["x"] * 3, "w": ["0", "2.5", "1e3"]})
    assert window.weight.tolist() == [0, 2.5, 1000]
    assert window.weight.dtype == np.float32
    for bad in ("-1", "", "inf", "nan"):
        with pytest.raises(Failure, match=r"row 2: the weight in column 'w' must be a finite"):
            encoded(conf, {"a": ["x"] * 2, "w": ["1", bad]})


def test_groups_are_hashes_of_any_column():
    conf = conf_of(group="g")
    expected = [value_id("7"), value_id("-8"), value_id("")]
    for array in (
        pa.array(["7", "-8", None]),
        pa.array([7, -8, None]),
        pa.array(["7", "-8", ""]).dictionary_encode(),
    ):
        window = encoded(conf, {"a": ["x"] * 3, "g": array})
        assert window.group.tolist() == expected
        assert window.group.dtype == np.uint64
    with pytest.raises(UserError, match="column 'g' is double"):
        encoded(conf, {"a": ["x"], "g": [0.5]})


def test_without_labels_and_with_carried_columns():
    conf = conf_of(weight="w", group="g", reference="r", carry=["id"])
    features = Features(conf, tables_of(conf), Statistics(), labelled=False, carry=["id", "a"])
    assert features.columns == ["a", "id"]
    window = features.encode(pa.table({"a": ["x", "y"], "id": [3, 4], "other": [0, 0]}), where)
    assert window.rows == 2
    np.testing.assert_array_equal(window.labels, np.zeros((2, 1)))
    assert (window.weight, window.reference, window.group) == (None, None, None)
    assert window.carried.to_pydict() == {"id": [3, 4], "a": ["x", "y"]}


# ---- Next to the ends of float32 and float64: used, or refused with their file and row ---------


@pytest.mark.parametrize("value", ["1e308", "-1e308", "3.5e38"])
def test_numbers_too_large_to_standardize(tmp_path, value):
    """As reported: 1e308 ended in OverflowError, without file and row."""
    rows = [f"{k},{k % 2}\n" for k in range(9)]
    (tmp_path / "a").write_text("n,y\n" + "".join(rows[:4]) + f"{value},0\n" + "".join(rows[4:]))
    inputs = {"n": Numeric(transform="standardize")}
    conf = bounded.conf_of(tmp_path / "a", "csv", {}, inputs)
    with pytest.raises(Failure, match=r"a, line 6, column 'n': .* is too large for float32"):
        measure(conf)
    statistics = measure(bounded.conf_of(tmp_path / "a", "csv", {}, inputs, bad_rows=1))
    assert statistics.standardize["n"] == (4.0, pytest.approx(np.std(np.arange(9))))
    clipped = {"n": Numeric(transform="standardize", clip=[0.0, 8.0])}
    assert np.isfinite(
        measure(bounded.conf_of(tmp_path / "a", "csv", {}, clipped)).standardize["n"]
    ).all()
    # Training refuses the same row, whoever measured.
    features = Features(conf, [([], [])], statistics)
    with pytest.raises(Failure, match="a, line 6, column 'n'"):
        list(windows(Source(conf, "train"), features))


def test_numbers_at_the_limit_of_float32(tmp_path):
    most = float(np.finfo(np.float32).max)
    (tmp_path / "a").write_text("n,y\n" + f"{most!r},0\n{-most!r},1\n" * 1000)
    conf = bounded.conf_of(tmp_path / "a", "csv", {}, {"n": Numeric(transform="standardize")})
    statistics = measure(conf)
    assert statistics.standardize["n"] == (0.0, pytest.approx(most))
    numbers = [
        window.numeric
        for window in windows(Source(conf, "train"), Features(conf, [([], [])], statistics))
    ]
    assert np.concatenate(numbers).tolist() == [[1.0], [-1.0]] * 1000


@pytest.mark.filterwarnings("error")
def test_quantiles_and_logarithms_of_any_number(tmp_path):
    """The difference of 1e308 and -1e308 is infinite: boundaries were, and no JSON holds them."""
    values = [-1.7e308, -1e300, -1.0, 0.0, 2.0, 1e300, 1.7e308]
    (tmp_path / "a").write_text("n,y\n" + "".join(f"{value!r},0\n" for value in values))
    slots = {"n": Slot(ids="quantiles", buckets=4)}
    conf = bounded.conf_of(
        tmp_path / "a", "csv", slots, {"l": Numeric(column="n", transform="log1p")}
    )
    statistics = measure(conf)
    boundaries = statistics.boundaries["n"]
    assert np.isfinite(boundaries).all() and (np.diff(boundaries) > 0).all()
    assert boundaries == [-5e299, 0.0, 5e299]
    text = json.dumps(documents.plain(statistics), allow_nan=False)
    assert documents.parse(Statistics, text.encode()) == statistics
    [window] = windows(Source(conf, "train"), Features(conf, [(["n"], [1])], statistics))
    assert window.ids[0].tolist() == [0, 0, 1, 2, 2, 3, 3]
    expected = np.sign(values) * np.log1p(np.abs(values))
    assert window.numeric[:, 0].tolist() == expected.astype(np.float32).tolist()


@pytest.mark.filterwarnings("error")
def test_scales_of_the_conf_may_be_too_small(tmp_path):
    (tmp_path / "a").write_text("n,y\n1,0\n1e30,0\n")
    inputs = {"n": Numeric(transform="standardize", mean=0.0, deviation=1e-300)}
    conf = bounded.conf_of(tmp_path / "a", "csv", {}, inputs)
    features = Features(conf, [([], [])], measure(conf))
    with pytest.raises(Failure, match="a, line 2, column 'n'"):
        list(windows(Source(conf, "train"), features))
