"""Signature rank of split graphs: one user and N items have the scores of the whole graph."""

import json
import shutil
from functools import cache

import numpy as np
import pytest
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2
from test_split_graph import document

from tnctl import manifest
from tnctl.serving.golden_checks import rank_deviation
from tnctl.serving.graph.loaded_graph import LoadedGraph, load_graph, open_graph, rank_inputs_of

SLOTS = """\
defaults: [schema, _self_]
recipe: {name: RECIPE}
embedding: {width: 4}
slots:
  user: {side: user}
  city: {side: user}
  history: {side: user, group: item, separator: "|", POOLING}
  item: {}
  Kind: {}
  home_x_city: {cross: [user, city]}
  user_x_item: {cross: [user, item]}
numeric: {Age: {side: user}, price: {}}
data: {format: jsonl, train: rows.jsonl, label: {column: clicked}}
train: {batch_size: 32}
"""
# Two towers: the user's is computed once, and what is left of each item is a product.
TOWERS = """\
from keras import ops

from tnctl.model import layers


def build(inputs):
    user = layers.concatenated(inputs.slot("user"), inputs.slot("city"), inputs.number("Age"))
    item = layers.concatenated(inputs.slot("item"), inputs.number("price"))
    user, item = (layers.Mlp([6, 5])(side) for side in (user, item))
    return ops.sum(user * item, axis=1, keepdims=True) + inputs.linear
"""
RECIPES = {
    "towers": "mine.py",
    "deepfm": "deepfm, hidden: [16, 8]",
    "dcn": "dcn, hidden: [16, 8]",
    "dlrm": "dlrm, bottom: [8], hidden: [16, 8]",
    "din": "din, behavior: history, target: item, attention: [8, 4], hidden: [16, 8]",
}
# The numbers of a user's rows, of whom signature rank has one.
NUMBERING = """\
import keras
from keras import ops

from tnctl.model import layers


class Numbered(keras.layers.Layer):
    def call(self, user, item):
        return ops.take(item, ops.arange(ops.shape(user)[0]), axis=0)


def build(inputs):
    item = Numbered()(inputs.slot("user"), inputs.slot("item"))
    return layers.Logit()(layers.concatenated(inputs.deep, item)) + inputs.linear
"""
ROWS = 120
USERS = {"user", "city", "history", "home_x_city", "Age"}


@pytest.fixture(scope="module")
def trained(ran, tmp_path_factory):
    """Trains a recipe and splits it, into a folder of its own that it returns."""

    @cache
    def training(recipe):
        folder = tmp_path_factory.mktemp(recipe)
        with (folder / "rows.jsonl").open("w") as file:
            file.writelines(f"{json.dumps(row)}\n" for row in rows_of(ROWS))
        pooling = "pooling: none, max_length: 3" if recipe == "din" else "pooling: mean"
        text = SLOTS.replace("RECIPE", RECIPES[recipe]).replace("POOLING", pooling)
        (folder / "mine.py").write_text(TOWERS)
        (folder / "conf.yaml").write_text(text)
        ran("train", "conf=conf.yaml", "output=run", cwd=folder)
        assert "signature rank: " in ran("split-graph", "output=run", cwd=folder).err
        return folder

    return training


def rows_of(count):
    random = np.random.default_rng(3)
    for at in range(count):
        yield {
            "user": f"u{at % 9}", "city": f"c{at % 3}", "item": f"i{at % 11}",
            "history": "|".join(f"i{k}" for k in range(at % 4)), "Kind": f"k{at % 2}",
            "Age": at % 50, "price": random.random(), "clicked": at % 2,
        }  # fmt: skip


def random_inputs(packed, rows, most=3):
    random = np.random.default_rng(4)
    return {
        given.name: random.integers(0, most + 1, (rows, given.columns)).astype(np.int32)
        if given.dtype == "int32"
        else random.normal(size=(rows, given.columns)).astype(np.float32)
        for given in packed
    }


def products_of(folder, signature):
    """Of each product of a matrix the rows (None: N) and columns of its first factor."""
    graph = load_graph(str(folder))
    function = convert_variables_to_constants_v2(
        graph.signatures[signature], lower_control_flow=False
    )
    shapes = [op.inputs[0].shape for op in function.graph.get_operations() if op.type == "MatMul"]
    return [tuple(shape) for shape in shapes]


@pytest.mark.parametrize(
    "recipe",
    [
        "deepfm",
        "din",
        *(pytest.param(recipe, marks=pytest.mark.long) for recipe in ("dcn", "dlrm")),
    ],
)
def test_one_user_and_items(trained, cli, recipe):
    folder = trained(recipe) / "run" / "graph"
    content, graph = document(folder), open_graph(str(folder))
    lengths = {"history_length"} if recipe == "din" else set()
    assert set(content.signatures.rank) == USERS | lengths
    for rows in (1, 7):
        inputs = random_inputs(content.signatures.packed, rows)
        assert rank_deviation(graph.run, inputs, rank_inputs_of(content)) <= 1e-6
    widths = {given.name: given.columns for given in content.signatures.by_slot}
    of_user = sum(widths[name] for name in USERS - {"history"})
    of_user += 0 if recipe == "din" else widths["history"]
    products = products_of(folder, "rank")
    if recipe == "towers":
        assert sorted(products, key=str) == [(1, 6), (1, 9), (None, 5), (None, 6)]
    if recipe in ("deepfm", "dcn"):
        assert (1, of_user) in products
        assert (None, sum(widths.values()) - of_user - 1) in products
    done = cli("verify-serving", f"graph={folder}", cwd=folder)
    assert done.code == 0, done.err
    assert "golden rows: logits of rank" in done.err


def test_signature_rank_of_older_versions_is_not_used(trained, ran, tmp_path):
    """It took the inputs of by_slot."""
    shutil.copytree(trained("deepfm") / "run" / "graph", tmp_path / "graph")
    path = tmp_path / "graph" / "serving.json"
    content = json.loads(path.read_text())
    assert content["version"] == 4
    del content["sha256"]
    path.write_bytes(manifest.sealed(content | {"version": 2}))
    done = ran("verify-serving", "graph=graph", cwd=tmp_path)
    assert "logits of packed" in done.err and "logits of rank" not in done.err


def test_rows_of_a_user_are_scored_by_rank(trained, ran, monkeypatch):
    folder = trained("deepfm")
    ran("export-embeddings", "output=run", "format=dictionary", cwd=folder)
    first, second, *others = rows_of(100)
    users = [first] * 20 + [second] * 40
    with (folder / "some.jsonl").open("w") as file:
        for row, user in zip(others, users, strict=False):
            of_user = {name: user[name] for name in ("user", "city", "history", "Age")}
            file.write(f"{json.dumps(row | of_user)}\n")
    ran("predict", "output=run", "data.test=some.jsonl", "to=predicted.csv", cwd=folder)
    calls = []
    run = LoadedGraph.run
    monkeypatch.setattr(
        LoadedGraph, "run", lambda self, name, given: calls.append(name) or run(self, name, given)
    )
    artefacts = "graph=run/graph", "embeddings=run/embeddings"
    for rows, expected in ((60, ["rank", "rank"]), (15, ["packed"])):
        lines = (folder / "some.jsonl").read_text().splitlines(keepends=True)[:rows]
        (folder / "part.jsonl").write_text("".join(lines))
        calls.clear()
        ran("score", *artefacts, "input=part.jsonl", "to=s.csv", "overwrite=true", cwd=folder)
        assert calls == expected
        scores, predicted = (
            np.loadtxt(folder / name, delimiter=",", skiprows=1)[:rows]
            for name in ("s.csv", "predicted.csv")
        )
        np.testing.assert_allclose(scores, predicted, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"item: {}": "item: {side: mine}"}, "side"),
        ({"cross: [user, item]": "side: user, cross: [user, item]"}, "slots.item is of items"),
    ],
)
def test_what_a_side_cannot_be(trained, cli, change, said):
    folder = trained("deepfm")
    text = (folder / "conf.yaml").read_text()
    for old, new in change.items():
        assert old in text
        text = text.replace(old, new)
    (folder / "wrong.yaml").write_text(text)
    done = cli("train", "conf=wrong.yaml", "output=wrong", cwd=folder)
    assert done.code == 2 and said in done.last


def test_a_recipe_that_numbers_rows_has_rank(trained, ran, tmp_path, monkeypatch):
    """Unless it gives other logits than packed."""
    shutil.copy(trained("deepfm") / "rows.jsonl", tmp_path)
    (tmp_path / "mine.py").write_text(NUMBERING)
    text = SLOTS.replace("RECIPE", "mine.py").replace("POOLING", "pooling: mean")
    (tmp_path / "conf.yaml").write_text(text)
    ran("train", "conf=conf.yaml", "output=run", cwd=tmp_path)
    done = ran("split-graph", "output=run", cwd=tmp_path)
    assert "signature rank" in done.err
    assert document(tmp_path / "run" / "graph").signatures.rank
    monkeypatch.setattr("tnctl.serving.graph.ranking.TOLERANCE", -1.0)
    done = ran("split-graph", "output=run", cwd=tmp_path)
    assert "no signature rank" in done.err
    assert document(tmp_path / "run" / "graph").signatures.rank is None


def test_sides_may_change_after_training(trained, ran):
    """By a key of split-graph, and in the conf: its run is finished."""
    folder = trained("deepfm")
    ran("split-graph", "output=run", "slots.city.side=item", "to=other", cwd=folder)
    assert set(document(folder / "other").signatures.rank) == {"user", "history", "Age"}
    done = ran("train", "conf=conf.yaml", "output=run", "numeric.Age.side=item", cwd=folder)
    assert "finished" in done.err
