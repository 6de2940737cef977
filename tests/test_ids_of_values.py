"""`tnctl.ids`: of each kind of ids, what the rows of a file with these values have."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from dataless_runs import Run, conf_of
from test_before_tensorflow import REFUSING

import tnctl
from tnctl.checkpoint.chain import open_checkpoint
from tnctl.data import arrow_tables
from tnctl.data.arrow_tables import ids_of_values
from tnctl.data.features import Features
from tnctl.data.statistics_document import Statistics
from tnctl.errors import Failure, UserError
from tnctl.model import building
from tnctl.schema import ID_KINDS
from tnctl.tables.columns import hash_bytes

GOLDEN = Path(__file__).parent / "golden/checkpoint"
SLOTS = {
    "name": {},
    "seeded": {"seed": 3, "missing": "value"},
    "shared": {"group": "name"},
    "split": {"separator": "|", "max_length": 2},
    "modulo": {"ids": "modulo", "size": 7, "missing": "value", "seed": 3},
    "integer": {"ids": "integer", "size": 100},
    "list": {"ids": "vocabulary", "vocabulary": ["5", "7"]},
    "file": {"ids": "vocabulary", "vocabulary_file": "gone.txt", "oov": 2},
    "bounds": {"ids": "boundaries", "boundaries": [3.0, 6.0]},
    "quantiles": {"ids": "quantiles", "buckets": 3},
    "row_quantiles": {"ids": "row_quantiles", "buckets": 3, "missing": "value"},
    "padded": {"padding": hash_bytes(b"5", 0)},
    "cross": {"cross": ["modulo", "column"]},
    "hour": {"ids": "hour"},
    "weekday": {"ids": "weekday", "missing": "value"},
    "day_of_month": {"ids": "day_of_month"},
    "day": {"ids": "day", "missing": "value"},
}
MEASURED = Statistics(
    boundaries={"quantiles": [5.5, 6.5], "row_quantiles": [0.1 + 0.2, 7.0]},
    vocabularies={"file": ["7", "123"]},
)
NUMBERS = ["5", "7", "6", None, "", "123"]
TIMES = ["2026-01-02T03:04:05", "2026-02-28", None, "", "1969-12-31 23:59", "2026-01-02"]
TIMES_OF = ("hour", "weekday", "day_of_month", "day")
# Prints the ids of the values of slots, which are read from standard input.
PROGRAM = (
    REFUSING
    + """
import tnctl

values = json.load(sys.stdin)
print(json.dumps({slot: tnctl.ids(sys.argv[1], slot, values[slot]).tolist() for slot in values}))
"""
)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A run whose checkpoint has lost its tables, and that checkpoint."""
    conf = conf_of(tmp_path_factory.mktemp("ids") / "run", slots=SLOTS)
    folder = Path(Run(conf, model=building.build(conf, MEASURED)).save(golden=[]))
    tables = [path for path in (folder / "tables").rglob("*") if path.is_file()]
    assert tables
    for path in tables:
        path.unlink()
    return Path(conf.output), folder


def of_rows(conf, statistics, values):
    """The id of each row of a table with columns of these values; None without one."""
    features = Features(conf, [(list(conf.slots), [1] * len(SLOTS))], statistics, labelled=False)
    cells = features.read(pa.table(values), arrow_tables.where).cells
    ids = {}
    for name in conf.slots:
        left = iter(cells[name].ids.tolist())
        assert cells[name].lengths().max() == 1
        ids[name] = [next(left) if length else None for length in cells[name].lengths()]
    return ids


def test_ids_are_those_of_training(saved):
    """In a process without TensorFlow, of a checkpoint without rows and without data."""
    run, folder = saved
    conf = conf_of(run, slots=SLOTS)
    assert {slot.ids for slot in conf.slots.values()} == ID_KINDS.keys()
    columns = {name: TIMES if name in TIMES_OF else NUMBERS for name in [*SLOTS, "column"]}
    del columns["cross"]
    values = columns | {"cross": [list(pair) for pair in zip(NUMBERS, NUMBERS, strict=True)]}
    del values["column"]
    expected = of_rows(conf, MEASURED, columns)
    for place in (run, folder):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(place)],
            input=json.dumps(values), capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == expected
    assert expected["row_quantiles"] == [1, 2, 1, 3, 3, 2]
    assert expected["list"] == [0, 1, None, None, None, None]
    assert expected["shared"] == expected["name"]


def test_ids_are_those_of_the_golden_rows():
    """A checkpoint of an earlier version has raw rows with their ids."""
    checked = 0
    for line in open_checkpoint(str(GOLDEN)).golden():
        for slot, texts in line.ids.items():
            value = line.row[slot]
            values = value.split("|") if slot == "item" else [value]
            ids = tnctl.ids(GOLDEN, slot, values)
            assert list(map(str, ids.compressed())) == list(texts), (slot, value)
            checked += len(ids)
    assert checked > 20


def test_what_is_returned_goes_into_a_table(saved):
    run, folder = saved
    u1 = hash_bytes(b"u1", 0)
    for place in (run, str(folder), tnctl.open(run)):
        ids = tnctl.ids(place, "name", ["u1", None, "u1"])
        assert ids.dtype == np.uint64 and ids.shape == (3,)
        assert ids.tolist() == pa.array(ids).to_pylist() == [u1, None, u1]
    numbers = tnctl.ids(run, "integer", np.array([7, 99, 100]))
    assert numbers.tolist() == [7, 99, None]
    assert tnctl.ids(run, "name", []).shape == (0,)
    assert tnctl.ids(run, "quantiles", [5.4, 6.6, float("nan")]).tolist() == [0, 2, None]


def test_parts_and_elements_are_alone_in_their_rows():
    """Padding is nothing in a sequence, and a missing element has its place."""
    slots = {
        "history": {
            "pooling": "none",
            "max_length": 2,
            "missing": "value",
            "padding": hash_bytes(b"0", 0),
        },
        "words": {"separator": " "},
        "word": {},
    }
    data = {"train": "none.csv", "missing": ["-"], "strip": True}
    conf = conf_of("none", slots=slots, data=data)
    a, empty = hash_bytes(b"a", 0), hash_bytes(b"", 0)
    values = ["a", "0", None, "-", "", " a\t"]
    for name, expected in (
        ("history", [a, None, empty, empty, empty, a]),
        ("words", [a, hash_bytes(b"0", 0), None, None, None, a]),
        ("word", [a, hash_bytes(b"0", 0), None, None, empty, a]),
    ):
        of_values = ids_of_values(conf, Statistics(), name, values)
        masked = np.ma.MaskedArray(of_values.ids, ~of_values.has_id)
        assert masked.tolist() == expected, name


@pytest.mark.parametrize(
    ("run", "slot", "values", "words"),
    [
        (None, "nam", ["a"], "no slot 'nam'. Did you mean 'name'?"),
        (None, ["name"], ["a"], "Did you mean 'name'?"),
        (None, "column", ["a"], "no slot 'column'"),
        (None, "name", "a", "values is a list"),
        (None, "name", [["a"]], "values has lists"),
        (None, "cross", ["a"], "values, row 1: those of a cross are tuples (modulo, column)"),
        (7, "name", ["a"], "run is a path or URL. Received: '7'"),
        ("nothing", "name", ["a"], "nothing has no complete checkpoint"),
        ("nothing/checkpoints/step-0000000001", "name", ["a"], "has no manifest.json"),
    ],
)
def test_what_has_no_ids(saved, run, slot, values, words):
    with pytest.raises(UserError) as caught:
        tnctl.ids(saved[0] if run is None else run, slot, values)
    assert words in str(caught.value)


def test_a_value_that_cannot_be_an_id(saved):
    with pytest.raises(Failure, match="values, row 2, column 'bounds': 'cheap' is not a number"):
        tnctl.ids(saved[0], "bounds", ["1", "cheap"])
