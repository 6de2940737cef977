"""Rows that start from vectors that were trained elsewhere: `slots.NAME.vectors`."""

import csv
import json
import shutil

import cluster_in_one_process
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from conftest import CONF
from test_cluster import conf_of as composed
from test_columns import hash_bytes
from test_init import recognised

from tnctl import schema
from tnctl.checkpoint import chain, rows
from tnctl.checkpoint import load as loading
from tnctl.data.batches import Batch
from tnctl.data.statistics_document import Statistics
from tnctl.data.vectors import read_vectors
from tnctl.errors import Failure, UserError
from tnctl.model import building
from tnctl.tables import Pool, RowOptimizer, Segment, SparseTable
from tnctl.tables import InitialWeights as TableInitial
from tnctl.training import row_vectors
from tnctl.training.step import TrainingStep

WIDTH = 6
RATE = 0.5
SGD = {"name": "sgd", "learning_rate": RATE}


def id_of(value, seed=0):
    return hash_bytes(value.encode(), seed)


def write(path, values, floats, kind=pa.float32):
    lists = pa.array([list(map(float, vector)) for vector in floats], pa.list_(kind()))
    pq.write_table(pa.table({"item_id": pa.array(values), "vector": lists}), path)


# ---- Against numpy ---------------------------------------------------------------------------

SUMS = """
from keras import ops

def build(inputs):
    values, _ = inputs.sequence("history")
    total = ops.sum(inputs.slot("item") + ops.sum(values, axis=1), axis=1, keepdims=True)
    return total + ops.sum(inputs.embeddings, axis=[1, 2])[:, None] + inputs.numeric
"""
# How often the recipe adds up what is read of each slot.
TIMES = {"item": 2, "history": 1, "user": 1}
ITEMS = {"a": [1, 0, 2], "b": [0.5, -1, 0], "c": [0, 0.25, 1]}


@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize("life", [{}, {"shows": {"keep": True, "cvm": True}}])
def test_a_forward_pass_and_a_step_are_those_of_numpy(tmp_path, frozen, life):
    """sum(v W) for each id, with one W for the slots of a share group."""
    (tmp_path / "sums.py").write_text(SUMS)
    write(tmp_path / "items.parquet", list(ITEMS), ITEMS.values())
    of_item = {"group": "items", "width": 3, "vectors": "items.parquet", "frozen": frozen}
    model = building.build(
        schema.from_values(
            {
                "recipe": {"name": str(tmp_path / "sums.py")},
                "slots": {
                    "user": {},
                    "item": of_item,
                    "history": {**of_item, "pooling": "none", "max_length": 2},
                },
                "numeric": {"price": {}},
                "embedding": {"width": 2, "linear": False},
                "optimizer": {"linear": SGD, "embedding": SGD, "dense": SGD},
                "data": {"root": str(tmp_path)},
                "train": {"batch_size": 2, "threads": 1},
                "life": life,
            }
        ),
        Statistics(),
    )
    row_vectors.insert(model)
    row_vectors.insert(model)  # rows that are there stay
    tables = {name: n for n, table in enumerate(model.layout.tables) for name in table.slots}
    users, items = (model.tables[tables[name]] for name in ("user", "item"))
    assert items.rows == len(ITEMS)
    for value, vector in ITEMS.items():
        np.testing.assert_array_equal(items.lookup(0, id_of(value))[:3], vector)
    # Of two examples the users, then the items and the histories: one is without a vector.
    cells = {"user": [["u"], ["u"]], "item": [["a"], ["new"]], "history": [["b", "a"], ["c"]]}
    step, batch = TrainingStep(model, 2), batch_of(model, cells)
    step(batch)
    was = {value: items.lookup(0, id_of(value))[:3].astype(float) for value in [*ITEMS, "new"]}
    user = users.lookup(0, id_of("u"))[:2].astype(float)
    [kernel] = (array.reshape(3, 2).astype(float) for array in model.dense.weights)
    assert model.variable_names == ["vectors_of_items/kernel"]
    logits = np.array([user.sum()] * 2) + batch.numeric[:, 0]
    for name in ("item", "history"):
        logits += [TIMES[name] * sum((was[v] @ kernel).sum() for v in cell) for cell in cells[name]]
    result = step(batch)
    np.testing.assert_allclose(result.logits[:, 0], logits, rtol=1e-5)
    errors = (1 / (1 + np.exp(-logits)) - batch.labels[:, 0]) / 2
    of_kernel, of_rows = np.zeros((3, 2)), dict.fromkeys(was, 0.0)
    for name in ("item", "history"):
        for example, cell in enumerate(cells[name]):
            for value in cell:
                of_kernel += errors[example] * TIMES[name] * was[value][:, None]
                of_rows[value] += errors[example] * TIMES[name]
    moved = model.dense.weights[0].reshape(3, 2)
    np.testing.assert_allclose(moved, kernel - RATE * of_kernel, rtol=1e-4, atol=1e-6)
    for value, gradient in of_rows.items():
        expected = was[value] - (0 if frozen else RATE * gradient * kernel.sum(axis=1))
        after = items.lookup(0, id_of(value))[:3]
        np.testing.assert_allclose(after, expected, rtol=1e-4, atol=1e-6)


def batch_of(model, cells):
    """A batch of two examples, from the values of each slot."""
    ids, offsets = [], []
    for table in model.layout.tables:
        in_cells = []
        for example in range(2):
            for name, spread in zip(table.slots, table.spreads, strict=True):
                values = [[id_of(value)] for value in cells[name][example]]
                in_cells += values + [[]] * (spread - len(values))
        ids.append(np.array([id_ for cell in in_cells for id_ in cell], np.uint64))
        offsets.append(np.cumsum([0, *map(len, in_cells)]).astype(np.uint32))
    numeric = np.array([[0.5], [-0.25]], np.float32)
    labels = np.array([[1], [0]], np.float32)
    return Batch(2, ids, offsets, [None] * len(ids), numeric, labels)


def test_ftrl_begins_with_the_vectors():
    """Its first update would otherwise make the weights of n and z alone."""
    optimizer = RowOptimizer("ftrl", 0.1, beta=1.0)
    table = SparseTable([Segment("embedding", 2, "concat", optimizer)], 1, Pool(1))
    table.add_group(0, "item", [TableInitial("zeros", 0.0)])
    row_vectors.insert_rows(
        table, 0, np.array([7], np.uint64), np.array([[0.5, -2]], np.float32)
    )
    [record] = np.concatenate(list(table.records()))
    slope = (1 + np.sqrt(record["embedding.n"])) / 0.1
    np.testing.assert_allclose(-record["embedding.z"] / slope, [0.5, -2], rtol=1e-6)


# ---- Files -----------------------------------------------------------------------------------


def test_both_forms_of_files_are_the_same(tmp_path):
    floats = np.random.default_rng(1).normal(size=(3, 4))
    names = ["a", "b", "c"]
    for kind, name in ((pa.float64, "list"), (pa.float32, "float")):
        write(tmp_path / f"{name}.parquet", names, floats, kind)
    fixed = pa.FixedSizeListArray.from_arrays(pa.array(floats.ravel()), 4)
    table = pa.table({"vector": fixed, "item": pa.array(names).dictionary_encode()})
    pq.write_table(table, tmp_path / "fixed.parquet", row_group_size=2)
    for order in "CF":
        np.save(tmp_path / f"{order}.npy", np.asarray(floats, order=order))
        (tmp_path / f"{order}.txt").write_text("a\nb\nc\n")
    for name in ("list.parquet", "float.parquet", "fixed.parquet", "C.npy", "F.npy"):
        read = read_vectors(str(tmp_path / name))
        assert read.values.to_pylist() == names
        assert read.floats.dtype == np.float32
        np.testing.assert_array_equal(read.floats, floats.astype(np.float32))


def no_file(_):
    pass


def parquet(values, floats, **more):
    def write_file(path):
        table = {"item_id": pa.array(values), "vector": pa.array(floats, pa.list_(pa.float64()))}
        pq.write_table(pa.table({**table, **more}), path)

    return write_file


def numpy_file(array, lines="a\nb\n"):
    def write_file(path):
        np.save(path.with_suffix(".npy"), array)
        path.with_suffix(".txt").write_text(lines)

    return write_file


WRONG = [
    (no_file, ".parquet", "items.parquet was not found"),
    (no_file, ".npy", "items.npy was not found"),
    (lambda path: path.write_bytes(b""), ".parquet", "items.parquet is empty"),
    (lambda path: path.write_bytes(b"PAR1"), ".parquet", "is not a whole Parquet file"),
    (lambda path: path.write_bytes(b""), ".npy", r"is not a whole NumPy file \(.*\)\. Write it"),
    (parquet([], []), ".parquet", "items.parquet has no vector"),
    (parquet(["a"], [[]]), ".parquet", "items.parquet has no vector"),
    (parquet(["a", "b"], [[1, 2], [1]]), ".parquet", "row 2: the vector has 1 floats, .* 1 has 2"),
    (parquet(["a", "b"], [[1, 2], None]), ".parquet", "row 2: the vector has 0 floats"),
    (parquet(["a", "b"], [[1, 2], [1, None]]), ".parquet", "vector of 'b' has a number that is"),
    (parquet(["a", "b"], [[1, np.inf], [1, 2]]), ".parquet", "vector of 'a' has a number that is"),
    (parquet(["a"], [[1, 1e300]]), ".parquet", "vector of 'a' has a number that is not finite"),
    (parquet(["a"], [[1, 2]], more=pa.array([1])), ".parquet", r"two columns.*more \(int64\)"),
    (parquet([0.5], [[1, 2]]), ".parquet", r"two columns.*item_id \(double\), vector"),
    (parquet(["a", "b", "a"], [[1, 2]] * 3), ".parquet", "row 3: 'a' is the value of row 1 too"),
    (parquet(["a"], [[1, 2, 3]]), ".parquet", r"are 3 wide. Received: width=2"),
    (parquet([None], [[1, 2]]), ".parquet", "no value of .* has an id"),
    (numpy_file(np.zeros((2, 2), int)), ".npy", r"matrix of floats.*Received: int64 \[2, 2\]"),
    (numpy_file(np.zeros(2)), ".npy", r"matrix of floats.*Received: float64 \[2\]"),
    (numpy_file(np.array([[{}]])), ".npy", "NumPy file .*Object arrays"),
    (numpy_file(np.zeros((3, 2))), ".npy", "items.txt has 2 values, and .*items.npy has 3 rows"),
    (numpy_file(np.zeros((2, 2)), "a\na\n"), ".npy", r"items.txt, line 2: 'a' is in line 1"),
    (numpy_file(np.full((2, 2), np.nan)), ".npy", "vector of 'a' has a number that is not finite"),
]  # fmt: skip


@pytest.mark.parametrize(("write_file", "suffix", "words"), WRONG)
def test_wrong_files_are_refused(tmp_path, write_file, suffix, words):
    path = tmp_path / f"items{suffix}"
    write_file(path)
    conf = schema.from_values(
        {
            "recipe": {"name": "fm"},
            "slots": {"item": {"vectors": path.name, "width": 2}},
            "data": {"root": str(tmp_path)},
        }
    )
    model = building.build(conf, Statistics())
    with pytest.raises((Failure, UserError), match=words) as raised:
        row_vectors.insert(model)
    assert "\n" not in str(raised.value)


def test_a_text_that_is_no_integer_is_named_with_its_file(tmp_path):
    write(tmp_path / "items.parquet", ["7", "x"], [[1, 2]] * 2)
    slot = {"vectors": "items.parquet", "width": 2, "ids": "integer"}
    conf = schema.from_values(
        {"recipe": {"name": "fm"}, "slots": {"item": slot}, "data": {"root": str(tmp_path)}}
    )
    with pytest.raises(Failure, match=r"slots\.item\.vectors=.*items\.parquet: .*row 2.*'x'"):
        row_vectors.insert(building.build(conf, Statistics()))


@pytest.mark.parametrize(
    ("slots", "words"),
    [
        ({"a": {"vectors": "f"}}, "need width: the floats"),
        ({"a": {"vectors": "f", "width": 0}}, "need width: the floats"),
        ({"a": {"vectors": "f", "width": 2, "ids": "modulo", "size": 9}}, "vectors is for ids="),
        ({"a": {}, "b": {"vectors": "f", "width": 2, "cross": ["a", "c"]}}, "not of a cross"),
        ({"a": {"vectors": "f", "width": 2, "group": "g"}, "b": {"width": 2, "group": "g"}},
         "vectors must be the same. Received: vectors=f and vectors=the default"),
        ({"a": {"vectors": "f", "width": 2, "indicator": True, "ids": "integer", "size": 3}},
         "indicator makes no rows: leave (width|vectors) out"),
    ],
)  # fmt: skip
def test_settings_that_do_not_fit_are_refused(slots, words):
    with pytest.raises(UserError, match=words):
        schema.from_values({"recipe": {"name": "fm"}, "slots": slots})


def test_vectors_are_read_with_a_width():
    values = {"recipe": {"name": "lr"}, "slots": {"a": {"vectors": "f", "width": 2}}}
    with pytest.raises(UserError, match=r"slots\.a: vectors are read embedding.width wide"):
        schema.from_values({**values, "embedding": {"width": 0}})
