"""Recipes of several labels, sequences and domains against float64 numpy models of their papers."""

import dataclasses
import functools
import json
import re

import numpy as np
import pytest
import tensorflow as tf
import test_warm_dense
from test_recipes import (
    HISTORY,
    LONGEST,
    NUMBERS,
    ROWS,
    SLOTS,
    WIDTH,
    arrays_of,
    assert_all_trained,
    logit,
    near,
    network_of,
    run,
    trains_and_is_served,
)
from test_recipes import SMALL as FEW_ROWS
from test_warm_dense import some

from tnctl.data.statistics_document import Statistics
from tnctl.errors import UserError
from tnctl.model import building, graph
from tnctl.model.layers import at_step
from tnctl.schema import Conf, Data, Embedding, Label, Loss, Position, Slot, Train
from tnctl.serving.graph import splitting
from tnctl.serving.graph.serving_json import whole

LABELS = {"click": Label("label"), "buy": Label("purchase")}
TOWER = {"hidden": [4], "activation": "tanh"}
EXPERTS = {"expert_hidden": [5, 3], **TOWER}
RECIPES = {
    "shared_bottom": {"bottom": [5], **TOWER},
    "mmoe": {"experts": 3, **EXPERTS},
    "ple": {"shared_experts": 2, **EXPERTS},
    "pepnet": {"domain": ["a"], "prior": ["b", "n"], "gate_hidden": 2, **TOWER, "hidden": [4, 3]},
    "bst": {"behavior": "past", "target": "a", "heads": 2, "blocks": 2, "place_width": 2, **TOWER},
    "din": {
        "behavior": [["past"], ["past"]], "target": [["a"], ["a"]], "attention": [4],
        "attention_activation": "tanh", "position_weight": True, "time_weight": ["ages", "ages"],
        **TOWER,
    },
}  # fmt: skip
PAST = {
    **HISTORY,
    "ages": Slot(pooling="none", max_length=LONGEST, width=1),
}


# ---- the papers ----


def mlp(w, name, x, activation=np.tanh):
    """The layers of a tower, which Keras numbers through a network."""
    starts = {key.rpartition("/")[0] for key in w if re.match(rf"{name}/dense(_\d+)?/kernel", key)}
    for at in sorted(starts, key=lambda at: int((re.findall(r"\d+$", at) or ["0"])[0])):
        x = activation(x @ w[f"{at}/kernel"] + w[f"{at}/bias"])
    return x


def softmax(scores, axis=1):
    scores = np.exp(scores - scores.max(axis=axis, keepdims=True))
    return scores / scores.sum(axis=axis, keepdims=True)


def head(w, label, x):
    return logit(w, f"{label}_logit", mlp(w, label, x))


def mixed(w, name, x, experts):
    gate = softmax(x @ w[f"{name}/scores/kernel"] + w[f"{name}/scores/bias"])
    return sum(gate[:, i : i + 1] * expert for i, expert in enumerate(experts))


def shared_bottom(w, given):
    shared = mlp(w, "bottom", given["x"])
    return {label: head(w, label, shared) for label in LABELS}


def mmoe(w, given):
    x = given["x"]
    experts = [mlp(w, f"expert_{i}", x) for i in range(3)]
    return {label: head(w, label, mixed(w, f"{label}_gate", x, experts)) for label in LABELS}


def ple(w, given):
    x = dict.fromkeys((*LABELS, "shared"), given["x"])
    for layer in range(2):
        of = {label: [mlp(w, f"{label}_expert_{layer}_0", x[label])] for label in LABELS}
        shared = [mlp(w, f"shared_expert_{layer}_{i}", x["shared"]) for i in range(2)]
        seen = {label: of[label] + shared for label in LABELS}
        if layer == 0:
            seen["shared"] = [*of["click"], *of["buy"], *shared]
        x = {part: mixed(w, f"{part}_gate_{layer}", x[part], seen[part]) for part in seen}
    return {label: head(w, label, x[label]) for label in LABELS}


def gated(w, name, x, z):
    name = f"{name}/gated"
    h = mlp(w, f"{name}/hidden", z, lambda h: np.maximum(h, 0))
    return x * 2 / (1 + np.exp(-h @ w[f"{name}/gate/kernel"] - w[f"{name}/gate/bias"]))


def pepnet(w, given, still):
    """`still` are the inputs where the gates read them, and pass no gradient."""
    x = given["x"]
    embedded = gated(w, "domain_gate", x, np.hstack([x[:, :WIDTH], still["x"]]))
    frozen = gated(still, "domain_gate", still["x"], np.hstack([still["x"][:, :WIDTH], still["x"]]))
    z = np.hstack([x[:, WIDTH : 2 * WIDTH], still["x"][:, -1:], frozen])
    logits = {}
    for label in LABELS:
        h = embedded
        for layer in range(2):
            h = gated(w, f"{label}_gate_{layer}", mlp(w, f"{label}_{layer}", h), z)
        logits[label] = logit(w, f"{label}_logit", h)
    return logits


def behaviors_of(given, row):
    """The embeddings of a row's behaviors, then their ages where there are some."""
    length = int(given["lengths"][row, 0])
    past = given["sequences"][row, : LONGEST * WIDTH].reshape(LONGEST, WIDTH)
    return past[:length], given["sequences"][row, LONGEST * WIDTH :][:length]


def din(w, given):
    """Two sequences, which are the same one."""
    target, interests = given["x"][:, :WIDTH], []
    for name in ("attention", "attention_1"):
        interests.append(np.zeros((ROWS, WIDTH)))
        for row in range(ROWS):
            past, ages = behaviors_of(given, row)
            repeated = np.repeat(target[row : row + 1], len(past), axis=0)
            unit = mlp(w, f"{name}/unit", np.hstack([past, past * repeated, repeated]))
            of_place = w[f"{name}/positions"][: len(past)][::-1]
            scores = logit(w, f"{name}/score", unit) * np.exp(ages + of_place)
            interests[-1][row] = scores @ past
    deep = mlp(w, "deep", np.hstack([*interests, given["x"]]))
    return {"label": logit(w, "logit", deep)}


def normalized(w, name, x):
    x = (x - x.mean(axis=1, keepdims=True)) / np.sqrt(x.var(axis=1, keepdims=True) + 1e-5)
    return x * w[f"{name}/gamma"] + w[f"{name}/beta"]


def bst(w, given, heads=2, blocks=2):
    w = {key.removeprefix("transformer_0/"): value for key, value in w.items()}
    attended = []
    for row in range(ROWS):
        past, _ = behaviors_of(given, row)
        places = w["places"][[*range(len(past), 0, -1), 0]]
        e = np.hstack([np.vstack([past, given["x"][row, :WIDTH]]), places])
        for k in range(blocks):
            query, key, value = (
                np.split(e @ w[f"{name}_{k}"], heads, axis=1) for name in ("query", "key", "value")
            )
            of_heads = [
                softmax(q @ other.T / np.sqrt(q.shape[1])) @ v
                for q, other, v in zip(query, key, value, strict=True)
            ]
            s = normalized(w, f"norm_attention_{k}", e + np.hstack(of_heads) @ w[f"heads_{k}"])
            inner = s @ w[f"w1_{k}"] + w[f"b1_{k}"]
            inner = np.where(inner > 0, inner, 0.01 * inner) @ w[f"w2_{k}"] + w[f"b2_{k}"]
            e = normalized(w, f"norm_fed_{k}", s + inner)
        attended.append(e[-1])
    return {"label": logit(w, "logit", mlp(w, "deep", np.hstack([attended, given["x"]])))}


# ---- what holds for all ----


def given_of(name):
    """What network_of takes for a recipe: its slots, and its labels."""
    several = name in ("shared_bottom", "mmoe", "ple", "pepnet")
    return {
        "slots": {"din": PAST, "bst": HISTORY}.get(name, SLOTS),
        "labels": LABELS if several else {},
        "linear": False,
    }


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_computes_its_paper(name):
    """Its logits, and the gradient of their sum along one direction, by differences."""
    network, heads, weights = network_of({"name": name, **RECIPES[name]}, **given_of(name))
    arrays = arrays_of(network)
    exact = {key: array.astype(np.float64) for key, array in arrays.items()}
    variables = network.trainable_variables

    @tf.function(autograph=False)
    def computed(*inputs):
        floats = [tensor for tensor in inputs if tensor.dtype == tf.float32]
        with tf.GradientTape() as tape:
            tape.watch(floats)
            outputs = network(list(inputs), training=False)
            total = sum(tf.reduce_sum(outputs[head]) for head in heads)
        values = [variable.value for variable in variables]
        return outputs, tape.gradient(total, [*values, *floats])

    tensors = [tf.constant(arrays[tensor.name]) for tensor in network.inputs]
    outputs, gradients = computed(*tensors)
    model = globals()[name]
    if name == "pepnet":
        model = functools.partial(model, still={**weights, **exact})
    expected = model(weights, exact)
    assert set(heads) == set(expected)
    for label in heads:
        near(outputs[label][:, 0], expected[label])
    assert_all_trained(variables, gradients)

    random = np.random.default_rng(2)
    names = [variable.path for variable in variables]
    names += [tensor.name for tensor in network.inputs if tensor.name != "lengths"]
    along = {key: random.normal(size=np.shape({**weights, **exact}[key])) for key in names}

    def moved(step):
        w, given = (
            {key: array + step * along.get(key, 0.0) for key, array in part.items()}
            for part in (weights, exact)
        )
        return sum(values.sum() for values in model(w, given).values())

    slope = (moved(1e-6) - moved(-1e-6)) / 2e-6
    ours = sum(
        float(np.sum(along[key] * np.asarray(gradient)))
        for key, gradient in zip(names, gradients, strict=True)
        if gradient is not None
    )
    np.testing.assert_allclose(ours, slope, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", some([(name,) for name in RECIPES], ("bst",), ("pepnet",)))
def test_each_head_is_cut_out(name, tmp_path):
    """`cut` itself compares what it made with the whole graph."""
    given = given_of(name)
    conf = Conf(
        recipe={"name": name, **RECIPES[name]},
        slots=given["slots"],
        numeric=NUMBERS,
        embedding=Embedding(WIDTH, given["linear"]),
        data=Data(train="none", labels=given["labels"]),
    )
    model = building.build(conf, Statistics())
    graph.save(model, str(tmp_path / "whole"))
    everything = whole(model.layout, model.heads)
    for part in model.heads[:1]:
        to = str(tmp_path / part)
        made = splitting.cut(str(tmp_path / "whole"), to, everything, part, frozen=False)
        assert [output.of for output in made.outputs] == [part] * 2


# Where inputs of the confs of test_warm_dense have other names.
WARM = {
    "bst": {"behavior": "h", "target": "a", "place_width": 2},
    "din": {"behavior": "h", "target": "a", "time_weight": None},
    "pepnet": {"domain": ["c"], "prior": ["b", "n"]},
}


@pytest.mark.parametrize(
    ("name", "width"),
    some(
        [(name, width) for name in RECIPES for width in (4, 6)],
        ("ple", 4), ("bst", 4), ("pepnet", 4), ("mmoe", 6),
    ),
)  # fmt: skip
def test_a_warm_start_carries_its_weights(name, width, monkeypatch):
    settings = RECIPES[name] | WARM.get(name, {})
    monkeypatch.setitem(test_warm_dense.RECIPES, name, settings)
    old, new = test_warm_dense.confs_of(name, width)
    if name == "bst" and width > 4:
        # Heads are parts of the width, so with another one nothing corresponds.
        with pytest.raises(UserError, match=r"of other units"):
            test_warm_dense.carried_over(old, new, monkeypatch)
        return
    model, other, carried = test_warm_dense.carried_over(old, new, monkeypatch)
    assert not carried.new
    assert not carried.dropped
    test_warm_dense.assert_same_logits(model, other)


@pytest.mark.parametrize(
    "conf",
    some([(name,) for name in ("shared_bottom", "mmoe", "ple", "bst", "pepnet")]),
)
def test_a_conf_trains_and_is_served(cli, ran, tmp_path, conf):
    trains_and_is_served(cli, ran, tmp_path, conf)


SHOWN = {"b": Slot(), "place": Slot(), "a": Slot(), "m": Slot(group="a")}


def conf_shown(slots=SHOWN, **position):
    return Conf(
        recipe={"name": "deepfm", **TOWER},
        slots=dict(slots),
        embedding=Embedding(3),
        position=Position("place", **position),
        data=Data(train="none"),
    )


@pytest.mark.parametrize("combine", ["add", "multiply"])
def test_where_an_example_was_shown_is_trained_and_not_served(combine, tmp_path):
    model = building.build(conf_shown(combine=combine, dropout=0.5), Statistics())
    random = np.random.default_rng(3)
    x, places, linear = (random.normal(size=(400, width)).astype(np.float32) for width in (9, 3, 1))
    given = {"x": np.hstack([places, x]), "linear": linear}

    @tf.function(autograph=False)
    def logits(training):
        with at_step(tf.constant(1, tf.int64)):
            return model.network([given["x"], given["linear"]], training=training)["label"]

    served, trained = (logits(flag).numpy()[:, 0].astype(np.float64) for flag in (False, True))
    w = {
        path: variable.numpy()
        for path, variable in zip(model.variable_names, model.variables, strict=True)
    }
    v = places @ w["label_shown/logit/kernel"][:, 0]
    if combine == "add":
        shares = (trained - served) / v
        dropped = np.abs(shares) < 1e-3
        near(shares[~dropped], np.ones((~dropped).sum()))
        assert 150 < dropped.sum() < 250
    else:
        v = v + w["label_shown/logit/bias"]
        near(1 / (1 + np.exp(-trained)), 1 / (1 + np.exp(-served)) / (1 + np.exp(-v)))
    # What is served is the recipe without the slot.
    plain = building.build(
        dataclasses.replace(conf_shown(), slots={k: SHOWN[k] for k in "bam"}, position=Position()),
        Statistics(),
    )
    for variable, path in zip(plain.variables, plain.variable_names, strict=True):
        variable.assign(w[path])
    near(run(plain.network, {**given, "x": x})["label"][:, 0], served)
    graph.save(model, str(tmp_path / "whole"))
    made = splitting.cut(
        str(tmp_path / "whole"), str(tmp_path / "cut"), whole(model.layout, model.heads),
        None, frozen=True, unserved=model.layout.unserved,
    )  # fmt: skip
    assert sorted(part.name for part in made.by_slot) == ["a", "b", "linear", "m"]


@pytest.mark.parametrize(
    ("slots", "words"),
    [
        ({}, "position.slot: no slot is called place"),
        ({"place": Slot(linear=True)}, "position.slot=place needs a pooled embedding and no lin"),
        ({"place": Slot(width=0)}, "needs a pooled embedding"),
        ({"place": Slot(group="a")}, "but slots.a, m has its rows or crosses it"),
        ({"place": Slot(), "c": Slot(cross=["a", "place"])}, "but slots.c has its rows or crosses"),
    ],
)
def test_positions_that_would_be_served(slots, words):
    others = {name: slot for name, slot in SHOWN.items() if name != "place"}
    with pytest.raises(UserError, match=words):
        conf_shown({**others, **slots})
    with pytest.raises(UserError, match="multiplies probabilities"):
        dataclasses.replace(conf_shown(combine="multiply"), train=Train(loss=Loss("mse")))


def test_a_served_graph_does_not_ask_where_an_example_was_shown(cli, ran, tmp_path):
    ran(
        "train", "conf=deepfm", *FEW_ROWS, "output=run", "position.slot=position", cwd=tmp_path
    )  # fmt: skip
    for command in ("split-graph", "export-embeddings", "verify-serving", "evaluate"):
        done = cli(command, "output=run", cwd=tmp_path)
        assert done.code == 0, (command, done.err)
    assert json.loads(done.out)["served_without"] == "slots.position"
    served = json.loads((tmp_path / "run/graph/serving.json").read_text())
    assert "position" not in [*served["slots"], *served["columns"], *served["linear"]["adds"]]
    assert "position" not in [given["name"] for given in served["signatures"]["by_slot"]]


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        ({"name": "mmoe", "experts": 0}, "needs at least 1 expert, .* Received: 0 with layers"),
        ({"name": "mmoe", "expert_hidden": []}, r"an expert at least 1 layer\. .* layers \[\]"),
        ({"name": "ple", "experts": 0}, "a gate needs at least 1 expert"),
        ({"name": "bst", "behavior": "past", "target": "a"}, r"the width 12 \(4 of .* heads=8"),
        ({"name": "bst", "behavior": [["past"]], "target": []}, "each behavior has its target"),
        (
            {"name": "bst", **RECIPES["bst"], "heads": 0},
            "at least 1 head and block, .* heads=0",
        ),
        ({"name": "din", **RECIPES["din"], "time_weight": "ages"}, r"\[\[4, 1\], \[4, 1\]\]\. Rec"),
        ({"name": "din", **RECIPES["din"], "time_weight": ["past", "ages"]}, r"\[4, 4\]"),
        ({"name": "pepnet", "domain": [], "prior": ["a"]}, "domain and prior have at least 1"),
        ({"name": "pepnet", "domain": ["a"], "prior": ["z"]}, "no pooled slot or number 'z'"),
        ({"name": "ple", "layers": 0}, r"recipe ple refused {'layers': 0}: it has at least 1"),
    ],
)
def test_settings_that_make_no_model(recipe, words):
    with pytest.raises(UserError, match=words):
        network_of(recipe, **given_of(recipe["name"]))
