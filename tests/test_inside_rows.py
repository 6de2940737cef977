"""A split graph with the rows inside: it gives from ids what the trainer gives."""

import dataclasses
import json
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from test_split_graph import (
    CONF,
    ROWS,
    STRANGER,
    described,
    document,
    golden_of,
    near,
    train_every_input,
)

from tnctl.data.slot_encoder import Cells, Encoder
from tnctl.schema import Data, Slot
from tnctl.serving import golden_checks, graph_inputs
from tnctl.serving.golden_checks import encoded_rows
from tnctl.serving.graph import graph_cells, inside_rows
from tnctl.serving.graph.graph_cells import Cell
from tnctl.serving.graph.inside_rows import GroupRows
from tnctl.serving.graph.loaded_graph import open_graph
from tnctl.serving.graph_inputs import id_arrays
from tnctl.serving.rows.precision import PRECISIONS, RowShape, encode
from tnctl.serving.rows.row_formats import ids_of
from tnctl.tables.columns import group_salt, hash_bytes, mix64, time_parts
from tnctl.tables.dictionary import Dictionary, DictionaryWriter

LARGEST = 2**64 - 1


@pytest.fixture(scope="module")
def trained_clicks(ran, tmp_path_factory):
    """A folder with the run of a model of every kind of input, and of pooling."""
    folder = tmp_path_factory.mktemp("inside")
    conf = CONF.replace("pooling: mean", "pooling: sqrtn").replace(
        "oov: 2,", "oov: 2, pooling: mean,"
    )
    train_every_input(ran, folder, conf)
    return folder


@pytest.fixture(scope="module")
def split(ran, trained_clicks, tmp_path_factory):
    def splitting(*arguments):
        to = tmp_path_factory.mktemp("split") / "graph"
        done = ran("split-graph", "output=run", f"to={to}", "rows=inside", *arguments,
                   cwd=trained_clicks)  # fmt: skip
        return to, done.err

    return splitting


@pytest.fixture(scope="module")
def whole(split):
    """The whole graph with float32 rows; nobody writes to it."""
    return split()


def ids_of_golden(folder):
    content = document(folder)
    return id_arrays(content, encoded_rows(golden_of(folder), content))


def test_ids_give_the_trainers_scores(whole, cli, tmp_path):
    folder, said = whole
    content, golden = described(folder), golden_of(folder)
    assert content["version"] == 3
    assert content["golden"]["exact"] is True
    assert content["rows"]["groups"]["item"] > 20
    assert "rows inside take" in said and "Deltas do not apply" in said
    inputs = ids_of_golden(folder)
    by_name = {given["name"]: given for given in content["signatures"]["by_id"]}
    assert by_name["tags_weights"] == {
        "name": "tags_weights", "dtype": "float32", "shape": [None], "of": "tags",
        "holds": "weights",
    }  # fmt: skip
    assert by_name.keys() == inputs.keys()
    assert {"weekday", "user_x_city", "history_length", "vector"} < by_name.keys()
    assert "kind" not in by_name  # only a part of a cross
    outputs = open_graph(str(folder)).run("by_id", inputs)
    for head in ("ctr", "buy"):
        near(outputs[f"logits_{head}"], golden.outputs("logits", head))
        near(outputs[f"predictions_{head}"], golden.outputs("predictions", head))
    done = cli("verify-serving", f"graph={folder}", cwd=tmp_path)
    assert done.code == 0, done.err
    assert "golden rows: logits of by_id" in done.err


def test_more_padding_and_one_row_change_nothing(whole):
    folder, _ = whole
    graph, inputs = open_graph(str(folder)), ids_of_golden(folder)
    expected = graph.run("by_id", inputs)["logits"]
    wider = {
        name: np.pad(array, ((0, 0), (0, 2)), constant_values=7) if array.dtype == np.int64 else
        np.pad(array, ((0, 0), (0, 2)), constant_values=np.nan) if name == "tags_weights" else array
        for name, array in inputs.items()
    }  # fmt: skip
    near(graph.run("by_id", wider)["logits"], expected)
    for row in (0, 3):
        alone = {name: array[row : row + 1] for name, array in inputs.items()}
        near(graph.run("by_id", alone)["logits"], expected[row : row + 1])
    nothing = {name: array[:0] for name, array in inputs.items()}
    assert graph.run("by_id", nothing)["logits"].shape == (0,)


@pytest.mark.parametrize("precision", [pytest.param("float16", marks=pytest.mark.long), "int8"])
def test_lower_precision_has_golden_rows_of_its_own(split, trained_clicks, cli, precision):
    folder, _ = split(f"precision={precision}")
    content = described(folder)
    assert content["golden"]["exact"] is False
    assert content["golden"]["deviation"]["logit"] > 0
    done = cli(
        "verify-serving", "conf=conf.yaml", "output=run", f"graph={folder}", cwd=trained_clicks
    )
    assert done.code == 0, done.err
    golden = golden_of(folder)
    outputs = open_graph(str(folder)).run("by_id", ids_of_golden(folder))
    near(outputs["logits_buy"], golden.outputs("logits", "buy"))


@pytest.mark.parametrize(
    "arguments",
    [
        ["head=buy"],
        pytest.param(["linear=inputs"], marks=pytest.mark.long),
        pytest.param(["frozen=true", "golden=0"], marks=pytest.mark.long),
    ],
)
def test_parts_of_a_graph_with_rows(split, whole, trained_clicks, cli, arguments):
    folder, _ = split(*arguments)
    content = document(folder)
    names = {given.name for given in content.signatures.by_id}
    inputs = {name: array for name, array in ids_of_golden(whole[0]).items() if name in names}
    outputs = open_graph(str(folder)).run("by_id", inputs)
    head = "buy" if "head=buy" in arguments else "ctr"
    near(outputs["logits"], golden_of(whole[0]).outputs("logits", head))
    if head == "buy":
        assert "user" not in names and "tags" in names
    if "golden=0" in arguments:
        done = cli("verify-serving", "conf=conf.yaml", "output=run", f"graph={folder}",
                   cwd=trained_clicks)  # fmt: skip
        assert done.code == 1 and done.last.endswith("(golden=0). Split with golden=200")


def test_raw_rows_are_scored_without_embeddings(whole, trained_clicks, ran, cli, tmp_path):
    folder, _ = whole
    ran("score", f"graph={folder}", "input=rows.jsonl", f"to={tmp_path / 's.jsonl'}",
        cwd=trained_clicks)  # fmt: skip
    ran("predict", "conf=conf.yaml", "output=run", "data.test=rows.jsonl",
        f"to={tmp_path / 'p.jsonl'}", cwd=trained_clicks)  # fmt: skip
    scores, predicted = (
        [json.loads(line)["logit_ctr"] for line in (tmp_path / name).read_text().splitlines()]
        for name in ("s.jsonl", "p.jsonl")
    )
    assert len(scores) == ROWS
    near(scores, predicted)
    ran("split-graph", "output=run", f"to={tmp_path / 'dense'}", cwd=trained_clicks)
    done = cli("score", f"graph={tmp_path / 'dense'}", "input=rows.jsonl", cwd=trained_clicks)
    assert done.code == 2 and "score needs embeddings=URL" in done.last


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["rows=outside"], "no rows 'outside'"),
        (["rows=inside", "precision=int4"], "no precision 'int4'. Did you mean 'int8'?"),
        (["precision=int8"], "precision= is of rows: give rows=inside too"),
        (["rows=inside", "aot=[1]"], "Leave out aot= or rows=inside"),
        (["rows=inside", "since=graph"], "this command takes no since="),
    ],
)
def test_what_cannot_be_inside(cli, trained_clicks, arguments, said):
    done = cli("split-graph", "output=run", "to=no", *arguments, cwd=trained_clicks)
    assert done.code == 2
    assert said in done.last
    assert not (trained_clicks / "no").exists()


def test_rows_without_room_are_refused(cli, trained_clicks, monkeypatch):
    from tnctl import system

    monkeypatch.setattr(system, "LEAST_BYTES", 0)
    limit = system.Limit("the memory of this machine", 2000, 1000)
    monkeypatch.setattr(system, "tightest", lambda: limit)
    done = cli("split-graph", "output=run", "to=no", "rows=inside", cwd=trained_clicks)
    assert done.code == 1
    assert "a graph with the rows inside takes" in done.last
    assert not (trained_clicks / "no").exists()


@pytest.mark.long
def test_the_graph_with_rows_serves_strangers(whole, tmp_path):
    """Without tnctl and Keras: no custom op, no table."""
    folder, _ = whole
    content, golden = document(folder), golden_of(folder)
    packed = golden.inputs(content)
    given = {f"by_id/{name}": array for name, array in ids_of_golden(folder).items()}
    values = golden_checks.row_inputs("by_value", golden, content)
    given |= {
        f"by_value/{name}": array.astype("S") if array.dtype == object else array
        for name, array in values.items()
    }
    given |= graph_inputs_of(content, packed) | packed
    np.savez(tmp_path / "in.npz", **given)
    done = subprocess.run(
        [sys.executable, "-c", STRANGER, folder, "in.npz", "out.npz"],
        cwd=tmp_path, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["foreign"] == []
    assert not [op for op in report["ops"] if "Table" in op]
    got = np.load(tmp_path / "out.npz")
    for signature in ("by_id", "by_value", "by_slot", "packed"):
        near(got[f"{signature}/logits_buy"], golden.outputs("logits", "buy"))
    assert "towers/user" in got


def graph_inputs_of(content, packed):
    from tnctl.serving.graph.loaded_graph import inputs_of

    return inputs_of(content.signatures.by_slot, packed)


# ---- The parts of it, beside numpy ------------------------------------------


def stored_group(folder, random, ids, shape):
    """A dictionary of random rows of ids."""
    ids = np.unique(np.array(ids, np.uint64))
    salt = group_salt("user")
    hashes = np.sort(mix64(ids ^ np.uint64(salt)))
    rows = random.normal(size=(len(ids), shape.columns)).astype(np.float32)
    path = folder / f"{len(ids)}.dictionary"
    with path.open("wb") as file:
        writer = DictionaryWriter(
            file.write, salt=salt, **dataclasses.asdict(shape), stride=shape.stride,
            records=len(ids), removed=0, delta=False,
        )  # fmt: skip
        writer.add(hashes, encode(rows, shape))
        writer.finish()
    return Dictionary(str(path))


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("form", [(True, 5, True), (False, 3, False), (True, 0, False)], ids=str)
def test_rows_of_ids(tmp_path, precision, form):
    """The hash that is the largest of all included, which has a row or not."""
    random, salt = np.random.default_rng(1), group_salt("user")
    [id_of_last] = ids_of(np.array([LARGEST], np.uint64), salt)
    known = [0, 1, 7, 2**63, 2**63 - 1, LARGEST, *random.integers(0, 2**63, 200)]
    looked_up = np.array([*known, 5, 2**63 + 5, LARGEST - 1, id_of_last], np.uint64)
    for ids in (known, [*known, int(id_of_last)], []):
        stored = stored_group(tmp_path, random, ids, RowShape(*form, precision))
        expected, there, _ = stored.lookup(looked_up)
        np.testing.assert_array_equal(there, np.isin(looked_up, np.array(ids, np.uint64)))
        assert not expected[~there].any()
        assert not len(ids) or expected[there].any()
        keys = graph_cells.mix64(graph_cells.int64(looked_up ^ np.uint64(salt)))
        rows = GroupRows("user", stored).find(keys[None] ^ graph_cells.TOP_BIT).numpy()
        np.testing.assert_array_equal(rows[0], expected)


def kept_of(slot, ids):
    """The ids of a row that count, as docs/formats/ids.md has the steps."""
    ids = [id_ for id_ in ids if id_ != slot.padding]
    if slot.max_length is not None:
        last = slot.keep == "last"
        ids = ids[-slot.max_length :] if last else ids[: slot.max_length]
    absent = slot.missing == "value" and slot.pooling != "none" and not ids
    return [LARGEST] if absent else ids


@pytest.mark.parametrize("pooling", ["sum", "none"])
@pytest.mark.parametrize(
    ("keep", "most"),
    [("first", None), *((keep, most) for keep in ("first", "last") for most in (1, 3))],
)
@pytest.mark.parametrize("missing", ["none", "value"])
def test_which_ids_count(pooling, keep, most, missing):
    if pooling == "none" and most is None:
        most = 6
    slot = Slot(pooling=pooling, keep=keep, max_length=most, missing=missing, padding=2**63 + 1)
    encoder = Encoder("s", slot, Data())
    encoder.missing_id = np.uint64(LARGEST)
    random = np.random.default_rng(2)
    rows = [
        random.choice([2**63 + 1, 3, 4, 2**63 + 2], count).tolist() for count in (0, 5, 1, 4, 2)
    ]
    rows.append([2**63 + 1] * 3)
    ids = np.zeros((len(rows), 6), np.uint64)
    for at, row in enumerate(rows):
        ids[at, : len(row)] = row
    lengths = tf.constant([len(row) for row in rows])
    given = graph_cells.given_cell(encoder, {"s": graph_cells.int64(ids), "s_length": lengths})
    cell = graph_cells.kept_ids(encoder, given)
    received = [
        row[kept].tolist()
        for row, kept in zip(cell.ids.numpy().view(np.uint64), cell.kept.numpy(), strict=True)
    ]
    assert received == [kept_of(slot, row) for row in rows]
    if pooling == "none":
        assert cell.ids.shape == (len(rows), most)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("pooling", ["sum", "mean", "sqrtn"])
def test_pooling_is_the_scorers(pooling, weighted):
    random = np.random.default_rng(4)
    lengths = np.array([0, 1, 4, 2, 2])
    rows = random.normal(size=(lengths.sum(), 3)).astype(np.float32)
    weights = random.uniform(0.1, 2, lengths.sum()).astype(np.float32) if weighted else None
    if weighted:
        weights[-2:] = (-1, 1)  # no divisor of mean
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    cells = Cells(np.arange(lengths.sum(), dtype=np.uint64), offsets, weights)
    kept = np.arange(5) < lengths[:, None]
    cell = Cell(
        None, tf.constant(kept),
        tf.constant(np.where(kept, graph_inputs.padded(weights, cells, 5), np.nan))
        if weighted else None,
    )  # fmt: skip
    factors = inside_rows.factors(cell)
    padded = graph_inputs.padded(rows, cells, 5) * factors[:, :, None]
    received = inside_rows.pooled(padded, factors, pooling).numpy()
    near(received, graph_inputs.pooled(rows, cells, pooling))
    assert received[2].any() and not received[0].any()


# ---- Ids of raw values ------------------------------------------------------


def texts_of(values):
    return tf.constant(np.array(values, object).reshape(1, -1))


def test_hashes_of_texts():
    golden = {
        ("", 0): 0, ("", 3): 815575690806614222, ("u1", 0): 15058935941266491048,
        ("ü", 0): 3536754164102203736, ("12345678", 0): 9030464333758180503,
        ("123456789", 0): 5400515790574483871,
    }  # fmt: skip
    long = "".join(map(chr, range(1, 200)))
    golden |= {(long, seed): hash_bytes(long.encode(), seed) for seed in (0, 2**53 - 1)}
    for seed in {seed for _, seed in golden}:
        texts = [text for text, of in golden if of == seed]
        hashed = graph_cells.hash_texts(texts_of([text.encode() for text in texts]), seed)
        expected = [golden[text, seed] for text in texts]
        assert hashed.numpy()[0].view(np.uint64).tolist() == expected
    assert graph_cells.hash_texts(tf.zeros([0, 0], tf.string), 0).shape == (0, 0)
    assert graph_cells.hash_texts(tf.zeros([2, 0], tf.string), 0).shape == (2, 0)


@pytest.mark.parametrize("size", [1, 1000, 2**53 + 1, 2**63, 2**64 - 1])
def test_modulo_is_unsigned(size):
    words = np.array([[0, 1, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1]], np.uint64)
    received = graph_cells.modulo(tf.constant(words.view(np.int64)), size).numpy().view(np.uint64)
    assert received[0].tolist() == [int(word) % size for word in words[0]]


@pytest.mark.parametrize("part", ["hour", "weekday", "day_of_month", "day"])
def test_parts_of_times(part):
    random = np.random.default_rng(5)
    times = random.integers(-62_135_596_800, 253_402_300_800, 500) * 10**6 + 999_999
    received = graph_cells.time_part(tf.constant(times + 3600 * 10**6), part).numpy()
    np.testing.assert_array_equal(received.view(np.uint64), time_parts(times, part, 3600))


def test_raw_values_give_the_trainers_scores(whole):
    """Of all kinds of ids but times, crosses with a column, sequences and weights."""
    folder, _ = whole
    content, golden = document(folder), golden_of(folder)
    dtypes = {given.name: given.dtype for given in content.signatures.by_value}
    assert (dtypes["user"], dtypes["number"], dtypes["age"]) == ("string", "int64", "float64")
    assert {"city", "kind", "history_length"} < dtypes.keys()
    inputs = golden_checks.row_inputs("by_value", golden, content)
    assert inputs.keys() == dtypes.keys()
    outputs = open_graph(str(folder)).run("by_value", inputs)
    for head in ("ctr", "buy"):
        near(outputs[f"logits_{head}"], golden.outputs("logits", head))
    # Other values than those that were trained on have other scores.
    inputs["user"][:, 0] = b"nobody"
    changed = open_graph(str(folder)).run("by_value", inputs)["logits_ctr"]
    assert not np.allclose(changed, golden.outputs("logits", "ctr"), atol=1e-4)


def test_times_and_ages_of_raw_values(ran, tmp_path):
    """Of numbers since 1970; of texts there is no by_value, and the line names the slot."""
    random = np.random.default_rng(6)
    with (tmp_path / "rows.jsonl").open("w") as file:
        for at in range(120):
            row = {"at": float(random.integers(0, 2 * 10**9)) if at % 7 else None,
                   "born": float(random.integers(0, 10**9)), "clicked": at % 2, "x": at % 5 or None,
                   "text": "2026-11-20T13:45:09Z"}  # fmt: skip
            file.write(f"{json.dumps(row)}\n")
    conf = """\
defaults: [schema, _self_]
recipe: {name: lr}
slots:
  hour: {column: at, ids: hour, missing: value}
  day: {column: at, ids: day}
  born: {ids: day_of_month}
  weekday: {column: born, ids: weekday, indicator: true}
  few: {column: x, ids: integer, size: 4}
numeric:
  age: {column: born, since: 2026-11-20, unit: day, clip: [null, 15000]}
  scaled: {column: x, transform: standardize, clip: [1, 3], default: 2}
data:
  format: jsonl
  train: rows.jsonl
  label: {column: clicked}
  times: {at: {format: epoch_s, offset: "+05:30"}, born: {format: epoch_s}}
train: {batch_size: 32}
"""
    (tmp_path / "numbers.yaml").write_text(conf)
    (tmp_path / "texts.yaml").write_text(conf.replace("  few: {", "  text: {ids: hour}\n  few: {"))
    for name in ("numbers", "texts"):
        ran("train", f"conf={name}.yaml", f"output={name}", cwd=tmp_path)
        done = ran("split-graph", f"output={name}", "rows=inside", cwd=tmp_path)
        by_value = described(tmp_path / name / "graph")["signatures"].get("by_value")
        if name == "texts":
            assert by_value is None
            assert "no signature by_value: the times of slot text are not numbers" in done.err
            continue
        assert {"hour", "hour_length", "age", "scaled"} < {given["name"] for given in by_value}
        done = ran("verify-serving", f"graph={name}/graph", cwd=tmp_path)
        assert "golden rows: logits of by_value" in done.err
