"""Signature rank of split graphs: one user and N items have the scores of the whole graph."""

import json

import numpy as np
import pytest
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2
from test_split_graph import document

from tnctl.serving.golden_checks import rank_deviation
from tnctl.serving.graph.loaded_graph import load_graph, open_graph

SLOTS = """\
defaults: [schema, _self_]
recipe: {name: RECIPE}
embedding: {width: 4}
slots:
  user: {side: user}
  city: {side: user}
  history: {side: user, group: item, separator: "|", POOLING}
  item: {}
  kind: {}
  home_x_city: {cross: [user, city]}
  user_x_item: {cross: [user, item]}
numeric: {age: {side: user}, price: {}}
data: {format: jsonl, train: rows.jsonl, label: {column: clicked}}
train: {batch_size: 32}
"""
RECIPES = {
    "deepfm": "deepfm, hidden: [16, 8]",
    "dcn": "dcn, hidden: [16, 8]",
    "dlrm": "dlrm, bottom: [8], hidden: [16, 8]",
    "din": "din, behavior: history, target: item, attention: [8, 4], hidden: [16, 8]",
}
ROWS = 120
USERS = {"user", "city", "history", "home_x_city", "age"}


def train(ran, folder, recipe):
    random = np.random.default_rng(3)
    with (folder / "rows.jsonl").open("w") as file:
        for at in range(ROWS):
            row = {"user": f"u{at % 9}", "city": f"c{at % 3}", "item": f"i{at % 11}",
                   "history": "|".join(f"i{k}" for k in range(at % 4)), "kind": f"k{at % 2}",
                   "age": at % 50, "price": random.random(), "clicked": at % 2}  # fmt: skip
            file.write(f"{json.dumps(row)}\n")
    pooling = "pooling: none, max_length: 3" if recipe == "din" else "pooling: mean"
    text = SLOTS.replace("RECIPE", RECIPES[recipe]).replace("POOLING", pooling)
    (folder / "conf.yaml").write_text(text)
    ran("train", "conf=conf.yaml", "output=run", cwd=folder)


def random_inputs(by_slot, rows, most=3):
    random = np.random.default_rng(4)
    return {
        given.name: random.integers(0, most + 1, rows).astype(np.int32) if given.dtype == "int32"
        else random.normal(size=(rows, *given.shape)).astype(np.float32)
        for given in by_slot
    }  # fmt: skip


def products_of(folder, signature):
    """Of each product of a matrix the rows (None: N) and columns of its first factor."""
    graph = load_graph(str(folder))
    function = convert_variables_to_constants_v2(
        graph.signatures[signature], lower_control_flow=False
    )
    shapes = [op.inputs[0].shape for op in function.graph.get_operations() if op.type == "MatMul"]
    return [tuple(shape) for shape in shapes]


@pytest.mark.parametrize("recipe", RECIPES)
def test_one_user_and_items(ran, cli, tmp_path, recipe):
    train(ran, tmp_path, recipe)
    done = ran("split-graph", "output=run", cwd=tmp_path)
    assert "signature rank: " in done.err
    folder = tmp_path / "run" / "graph"
    content, graph = document(folder), open_graph(str(folder))
    lengths = {"history_length"} if recipe == "din" else set()
    assert set(content.signatures.rank) == USERS | lengths
    for rows in (1, 7):
        inputs = random_inputs(content.signatures.by_slot, rows)
        assert rank_deviation(graph.run, inputs, content.signatures.rank) <= 1e-6
    widths = {given.name: given.columns for given in content.signatures.by_slot}
    of_user = sum(widths[name] for name in USERS - {"history"})
    of_user += 0 if recipe == "din" else widths["history"]
    products = products_of(folder, "rank")
    if recipe in ("deepfm", "dcn"):
        assert (1, of_user) in products
        assert (None, sum(widths.values()) - of_user - 1) in products
    done = cli("verify-serving", "graph=run/graph", cwd=tmp_path)
    assert done.code == 0, done.err
    assert "golden rows: logits of rank" in done.err
