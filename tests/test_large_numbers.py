"""Numbers next to the ends of float32 and float64: used, or refused with their file and row."""

import json

import numpy as np
import pytest
from bounded import conf_of

from tnctl import documents
from tnctl.data.features import Features
from tnctl.data.sources import Source
from tnctl.data.statistics import measure
from tnctl.data.statistics_document import Statistics
from tnctl.data.windows import windows
from tnctl.errors import Failure
from tnctl.schema import Numeric, Slot


@pytest.mark.parametrize("value", ["1e308", "-1e308", "3.5e38"])
def test_numbers_too_large_to_standardize(tmp_path, value):
    """As reported: 1e308 ended in OverflowError, without file and row."""
    rows = [f"{k},{k % 2}\n" for k in range(9)]
    (tmp_path / "a").write_text("n,y\n" + "".join(rows[:4]) + f"{value},0\n" + "".join(rows[4:]))
    inputs = {"n": Numeric(transform="standardize")}
    conf = conf_of(tmp_path / "a", "csv", {}, inputs)
    with pytest.raises(Failure, match=r"a, line 6, column 'n': .* is too large for float32"):
        measure(conf)
    statistics = measure(conf_of(tmp_path / "a", "csv", {}, inputs, bad_rows=1))
    assert statistics.standardize["n"] == (4.0, pytest.approx(np.std(np.arange(9))))
    clipped = {"n": Numeric(transform="standardize", clip=[0.0, 8.0])}
    assert np.isfinite(measure(conf_of(tmp_path / "a", "csv", {}, clipped)).standardize["n"]).all()
    # Training refuses the same row, whoever measured.
    features = Features(conf, [([], [])], statistics)
    with pytest.raises(Failure, match="a, line 6, column 'n'"):
        list(windows(Source(conf, "train"), features))


def test_numbers_at_the_limit_of_float32(tmp_path):
    most = float(np.finfo(np.float32).max)
    (tmp_path / "a").write_text("n,y\n" + f"{most!r},0\n{-most!r},1\n" * 1000)
    conf = conf_of(tmp_path / "a", "csv", {}, {"n": Numeric(transform="standardize")})
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
    conf = conf_of(tmp_path / "a", "csv", slots, {"l": Numeric(column="n", transform="log1p")})
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
    conf = conf_of(tmp_path / "a", "csv", {}, inputs)
    features = Features(conf, [([], [])], measure(conf))
    with pytest.raises(Failure, match="a, line 2, column 'n'"):
        list(windows(Source(conf, "train"), features))
