"""Rows that start from vectors that were trained elsewhere: `slots.NAME.vectors`."""

import csv
import dataclasses
import json
import shutil

import cluster_in_one_process
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cluster_commands import split_training_data
from conftest import CONF
from test_cluster import conf_of as composed
from test_cluster import digest_of
from test_columns import hash_bytes
from test_init import conf_of as checked
from test_init import recognised
from test_resume import TRAIN, Killed, kill, stop_at

from tnctl import schema
from tnctl.checkpoint import chain, dense_file, rows
from tnctl.data.batches import Batch
from tnctl.data.statistics_document import Statistics
from tnctl.data.vectors import read_vectors
from tnctl.errors import Failure, UserError
from tnctl.model import building
from tnctl.tables import InitialWeights as TableInitial
from tnctl.tables import Pool, RowOptimizer, Segment, SparseTable
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
    return Batch(ids, offsets, [None] * len(ids), numeric, labels)


def test_ftrl_begins_with_the_vectors():
    """Its first update would otherwise make the weights of n and z alone."""
    optimizer = RowOptimizer("ftrl", 0.1, beta=1.0)
    table = SparseTable([Segment("embedding", 2, "concat", optimizer)], 1, Pool(1))
    table.add_group(0, "item", [TableInitial("zeros", 0.0)])
    row_vectors.insert_rows(table, 0, np.array([7], np.uint64), np.array([[0.5, -2]], np.float32))
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
        column = values if isinstance(values, pa.Array) else pa.array(values)
        table = {"item_id": column, "vector": pa.array(floats, pa.list_(pa.float64()))}
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
    (parquet(pa.array([], pa.string()), []), ".parquet", "items.parquet has no vector"),
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
    (parquet(pa.array([None], pa.string()), [[1, 2]]), ".parquet", "no value of .* has an id"),
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


# ---- Runs ------------------------------------------------------------------------------------

SLOTS = """slots:
  item: {column: item_id, vectors: items.parquet, width: 6, linear: false, frozen: true,
         initial: zeros}
  interest: {column: interests, separator: "|", vectors: interests.npy, width: 5, pooling: mean}
"""


def column(folder, name):
    with (folder / "clicks/train.csv").open() as file:
        return [row[name] for row in csv.DictReader(file)]


def with_vectors(folder):
    """A folder with small.yaml gets vectors of two thirds of its items, and of interests."""
    (folder / "small.yaml").write_text(CONF.replace("slots:\n", SLOTS))
    items = sorted({*column(folder, "item_id")} - {""})
    generator = np.random.default_rng(5)
    floats = generator.normal(size=(len(items), WIDTH))
    there = np.arange(len(items)) % 3 > 0
    write(folder / "clicks/items.parquet", np.array(items)[there], floats[there])
    interests = sorted({part for text in column(folder, "interests") for part in text.split("|")})
    (folder / "clicks/interests.txt").write_text("\n".join(filter(None, interests)) + "\nmore\n")
    count = len([*filter(None, interests), "more"])
    np.save(folder / "clicks/interests.npy", generator.normal(size=(count, 5)))


@pytest.fixture(scope="module")
def _run(_workspace, tmp_path_factory, ran):
    folder = tmp_path_factory.mktemp("vectors") / "folder"
    folder.mkdir()
    shutil.copytree(_workspace / "clicks", folder / "clicks")
    with_vectors(folder)
    ran(*TRAIN, cwd=folder)
    return folder


@pytest.fixture
def run(_run, tmp_path):
    """A folder of one's own with a finished run/ of two slots with vectors."""
    return shutil.copytree(_run, tmp_path / "copy")


def saved_rows(folder, group, output="run"):
    """The embeddings of a group in the newest checkpoint, by id."""
    checkpoint = chain.newest(str(folder / output))
    for table in checkpoint.manifest.tables:
        for entry in table.groups:
            if entry.name == group:
                stored = np.concatenate(list(rows.stream(checkpoint, table.name)))
                stored = stored[stored["group"] == entry.number]
                return dict(zip(stored["id"].tolist(), stored["embedding"], strict=True))
    raise AssertionError(group)


def vectors_of(folder, name):
    read = read_vectors(str(folder / "clicks" / name))
    return dict(zip(map(id_of, read.values.to_pylist()), read.floats, strict=True))


def differing(rows_there, vectors):
    """The ids whose row is not their vector, bit for bit."""
    return {id_ for id_, vector in vectors.items() if rows_there[id_].tolist() != vector.tolist()}


def test_frozen_rows_are_the_vectors_and_others_are_trained(_run):
    items, vectors = saved_rows(_run, "item"), vectors_of(_run, "items.parquet")
    assert not differing(items, vectors)
    others = items.keys() - vectors.keys()
    assert others == {*map(id_of, {*column(_run, "item_id")} - {""})} - vectors.keys()
    assert not any(items[id_].any() for id_ in others)
    vectors = vectors_of(_run, "interests.npy")
    interests = saved_rows(_run, "interest")
    assert interests.keys() == vectors.keys()
    assert differing(interests, vectors) == vectors.keys() - {id_of("more")}


def test_a_run_is_resumed_without_the_files(run, cli, ran, monkeypatch):
    with monkeypatch.context() as patch:
        stop_at(patch, 9, kill)
        with pytest.raises(Killed):
            cli(*TRAIN, "save.every_steps=3", "save.full_every=2", "output=again", cwd=run)
    for name in ("items.parquet", "interests.npy", "interests.txt"):
        (run / "clicks" / name).unlink()
    ran(*TRAIN, "save.every_steps=3", "save.full_every=2", "output=again", cwd=run)
    assert digest_of(run / "again") == digest_of(run / "run")


def test_a_run_is_not_begun_without_the_files(run, cli):
    (run / "clicks/interests.txt").unlink()
    done = cli(*TRAIN, "overwrite=true", cwd=run)
    assert done.code == 1 and "clicks/interests.txt was not found" in done.last
    assert (run / "run/report.json").exists()


def test_graph_and_exported_rows_score_as_the_model(run, ran):
    ran("split-graph", "output=run", cwd=run)
    ran("export-embeddings", "output=run", "format=dictionary", cwd=run)
    assert "serving equals training" in ran("verify-serving", "output=run", cwd=run).err
    described = json.loads((run / "run/graph/serving.json").read_text())
    assert described["slots"]["item"]["width"] == WIDTH
    ran("predict", "output=run", "to=expected.jsonl", cwd=run)
    ran(
        "score", "graph=run/graph", "embeddings=run/embeddings", "input=clicks/test.csv",
        "to=scores.jsonl", cwd=run,
    )  # fmt: skip
    expected, scores = (
        [json.loads(line)["prediction"] for line in (run / name).read_text().splitlines()]
        for name in ("expected.jsonl", "scores.jsonl")
    )
    np.testing.assert_allclose(scores, expected, rtol=1e-5)


TOWERS = """
from keras import ops

from tnctl.model.layers import Dense

def build(inputs):
    user = inputs.tower("of_user", Dense(3, name="user")(inputs.slot("user_id")))
    item = inputs.tower("of_item", Dense(3, name="deep_item")(inputs.slot("item")))
    return ops.sum(user * item, axis=1, keepdims=True)
"""


def test_a_tower_reads_its_own_vectors_alone(run, ran):
    (run / "towers.py").write_text(TOWERS)
    ran(*TRAIN[:2], "output=towers", "~recipe.hidden", "recipe.name=towers.py", "train.epochs=1",
        "evaluation.ablate=false", cwd=run)  # fmt: skip
    ran("split-graph", "output=towers", "recipe.name=towers.py", "head=of_item", cwd=run)
    described = json.loads((run / "towers/graph/serving.json").read_text())
    assert [part["name"] for part in described["signatures"]["by_slot"]] == ["item"]


@pytest.mark.parametrize("servers", [0, 1])
def test_workers_begin_with_the_vectors(workspace, monkeypatch, servers):
    """Each owner has the rows of its shards, and together they equal one process."""
    with_vectors(workspace)
    split_training_data(workspace)
    conf = composed(workspace, monkeypatch, "data.train=part-*.csv")
    conf = dataclasses.replace(conf, cluster=schema.Cluster(servers=servers))
    _, errors = cluster_in_one_process.train_together(conf, 2)
    assert not errors
    items, vectors = saved_rows(workspace, "item"), vectors_of(workspace, "items.parquet")
    assert not differing(items, vectors) and len(items) > len(vectors)
    vectors = vectors_of(workspace, "interests.npy")
    interests = saved_rows(workspace, "interest")
    assert interests.keys() == vectors.keys()
    assert differing(interests, vectors) == vectors.keys() - {id_of("more")}
    files = [len(table.files) for table in chain.newest("run").manifest.tables]
    assert max(files) == (servers or 2)


def test_one_worker_is_one_process(run, monkeypatch):
    conf = composed(run, monkeypatch, output="cluster")
    cluster_in_one_process.train_together(conf, 1, golden=20)
    assert digest_of("cluster") == digest_of("run")


def test_a_warm_start_takes_trained_rows_and_new_vectors(run, ran):
    """Frozen vectors come from the file; trained ones go on, and ids without a row get theirs."""
    trained, matrix = saved_rows(run, "interest"), dense_of(run, "run")
    items = sorted({*column(run, "item_id")} - {""})
    write(run / "clicks/items.parquet", items, np.full((len(items), WIDTH), 2.0))
    lines = (run / "clicks/interests.txt").read_text().splitlines()
    (run / "clicks/interests.txt").write_text("\n".join([*lines, "later"]) + "\n")
    np.save(run / "clicks/interests.npy", np.full((len(lines) + 1, 5), 3.0))
    rate = "optimizer.embedding.learning_rate=0"
    ran(*TRAIN[:2], "output=warm", "warm.start=run", rate, "optimizer.dense.learning_rate=0",
        "train.epochs=1", "evaluation.ablate=false", cwd=run)  # fmt: skip
    assert not differing(saved_rows(run, "item", "warm"), vectors_of(run, "items.parquet"))
    after = saved_rows(run, "interest", "warm")
    assert after.pop(id_of("later")).tolist() == [3.0] * 5
    assert not differing(after, trained) and after.keys() == trained.keys()
    for name, array in matrix.items():
        np.testing.assert_array_equal(dense_of(run, "warm")[name], array)
    report = json.loads((run / "warm/report.json").read_text())["warm"]
    assert not report["dense"]["new"] and not report["dense"]["dropped"]
    outcomes = {entry["input"]: entry["rows"] for entry in report["inputs"]}
    assert outcomes["interest"] == len(trained) and outcomes["item"] is None


def dense_of(folder, output):
    """The matrices of a run, by name."""
    checkpoint = chain.newest(str(folder / output))
    weights, *_ = dense_file.variables(checkpoint.folder, checkpoint.manifest)
    return {name: array for name, array in weights.items() if name.startswith("vectors_of_")}


def test_a_warm_start_with_another_input_keeps_the_matrices(run, ran):
    """Weights over the columns after a matrix belong to its slot."""
    text = (run / "small.yaml").read_text()
    (run / "small.yaml").write_text(
        text.replace("  device:", "  more: {column: region}\n  device:")
    )
    ran(*TRAIN[:2], "output=warm", "warm.start=run", "warm.new=[more]", "train.epochs=1",
        "evaluation.ablate=false", cwd=run)  # fmt: skip
    dense = json.loads((run / "warm/report.json").read_text())["warm"]["dense"]
    assert {"vectors_of_item/kernel", "vectors_of_interest/kernel"} <= {*dense["matched"]}
    assert "deep/dense/kernel" in dense["partly"]


def test_rows_without_vectors_are_no_vectors(run, cli):
    text = (run / "small.yaml").read_text().replace(", vectors: interests.npy", "")
    (run / "small.yaml").write_text(text)
    done = cli(*TRAIN[:2], "output=warm", "warm.start=run", cwd=run)
    assert done.code == 2
    assert "slots.interest: vectors is None here and was interests.npy" in done.last


def test_check_reads_vectors_and_counts_their_rows(run, cli, ran):
    values = vectors_of(run, "items.parquet")
    forecast = json.loads(ran("check", "conf=small.yaml", "rows=20", "format=json", cwd=run).out)
    assert not [line for line in forecast["warnings"] if "vector" in line]
    assert forecast["tables"]["embedding6_frozen"]["rows"]["low"] >= len(values)
    write(run / "clicks/items.parquet", ["x", "y"], np.ones((2, WIDTH)))
    forecast = json.loads(ran("check", "conf=small.yaml", "rows=20", "format=json", cwd=run).out)
    [line] = [line for line in forecast["warnings"] if "vector" in line]
    assert line.startswith("slots.item: 0.0% of its values in the sample have a vector. Check")
    (run / "clicks/items.parquet").unlink()
    done = cli("check", "conf=small.yaml", "rows=20", cwd=run)
    assert done.code == 1 and "items.parquet was not found" in done.last


# ---- tnctl init ------------------------------------------------------------------------------


def test_init_writes_a_slot_for_a_file_of_vectors(tmp_path):
    data = {"user": [f"u{k % 50}" for k in range(900)], "item": [f"i{k % 40}" for k in range(900)]}
    data |= {"clicked": [k % 2 for k in range(900)]}
    pq.write_table(pa.table(data), tmp_path / "clicks.parquet")
    names = {"items": "item", "others": "nothing", "broken": "user"}
    for name, of_column in names.items():
        write(tmp_path / f"{name}.parquet", ["i1", "i2"], [[1, 2, 3], [4, 5, 6]])
        table = pq.read_table(tmp_path / f"{name}.parquet").rename_columns([of_column, "v"])
        pq.write_table(table, tmp_path / f"{name}.parquet")
    table = pa.table({"user": ["u1", "u2"], "v": [[1.0], [1.0, 2.0]]})
    pq.write_table(table, tmp_path / "broken.parquet")
    result, conf, _ = recognised(tmp_path, label="clicked")
    assert conf["data"]["train"] == "clicks.parquet"
    assert conf["slots"]["item_vectors"] == {
        "column": "item", "vectors": "items.parquet", "width": 3, "frozen": True, "linear": False,
        "initial": "zeros",
    }  # fmt: skip
    assert [*conf["slots"]] == ["user", "item", "item_vectors"]
    doubts = " ".join(result.doubts)
    assert "others.parquet: vectors of nothing, which is no slot" in doubts
    assert "broken.parquet is left out" in doubts and "row 2: the vector has 2 floats" in doubts
    model = building.build(of_init(result.text, tmp_path), Statistics())
    row_vectors.insert(model)
    assert sum(table.rows for table in model.tables) == 2


def of_init(text, folder):
    values = checked(text)
    return dataclasses.replace(values, data=dataclasses.replace(values.data, root=str(folder)))


def test_parts_of_data_are_no_vectors(tmp_path):
    for part in range(3):
        write(tmp_path / f"part-{part}.parquet", ["0", "1"], [[1, 2], [3, 4]])
    result, conf, _ = recognised(tmp_path)
    assert conf["numeric"]["vector"]["width"] == 2 and not result.named.vectors
