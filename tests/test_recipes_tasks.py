"""Recipes of several labels, sequences and domains against float64 numpy models of their papers."""

import re

import numpy as np
import pytest
import tensorflow as tf
import test_warm_dense
from test_recipes import HISTORY, ROWS, SLOTS, arrays_of, logit, near, network_of, report_of
from test_recipes import SMALL as FEW_ROWS

from tnctl.data.statistics_document import Statistics
from tnctl.errors import UserError
from tnctl.model import building, graph
from tnctl.schema import Conf, Data, Embedding, Label
from tnctl.serving.graph import splitting
from tnctl.serving.graph.serving_json import whole

LABELS = {"click": Label("label"), "buy": Label("purchase")}
TOWER = {"hidden": [4], "activation": "tanh"}
EXPERTS = {"expert_hidden": [5, 3], **TOWER}
RECIPES = {
    "shared_bottom": {"bottom": [5], **TOWER},
    "mmoe": {"experts": 3, **EXPERTS},
    "ple": {"shared_experts": 2, **EXPERTS},
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
    x = {part: given["x"] for part in (*LABELS, "shared")}
    for layer in range(2):
        of = {label: [mlp(w, f"{label}_expert_{layer}_0", x[label])] for label in LABELS}
        shared = [mlp(w, f"shared_expert_{layer}_{i}", x["shared"]) for i in range(2)]
        seen = {label: of[label] + shared for label in LABELS}
        if layer == 0:
            seen["shared"] = [*of["click"], *of["buy"], *shared]
        x = {part: mixed(w, f"{part}_gate_{layer}", x[part], seen[part]) for part in seen}
    return {label: head(w, label, x[label]) for label in LABELS}


# ---- what holds for all ----


def given_of(name):
    """What network_of takes for a recipe: its slots, and its labels."""
    several = name in ("shared_bottom", "mmoe", "ple", "pepnet")
    return {
        "slots": HISTORY if name in ("bst", "din") else SLOTS,
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
    expected = globals()[name](weights, exact)
    assert set(heads) == set(expected)
    for label in heads:
        near(outputs[label][:, 0], expected[label])

    random = np.random.default_rng(2)
    names = [variable.path for variable in variables]
    names += [tensor.name for tensor in network.inputs if tensor.name != "lengths"]
    along = {key: random.normal(size=np.shape({**weights, **exact}[key])) for key in names}

    def moved(step):
        w, given = (
            {key: array + step * along.get(key, 0.0) for key, array in part.items()}
            for part in (weights, exact)
        )
        return sum(values.sum() for values in globals()[name](w, given).values())

    slope = (moved(1e-6) - moved(-1e-6)) / 2e-6
    ours = sum(
        float(np.sum(along[key] * np.asarray(gradient)))
        for key, gradient in zip(names, gradients, strict=True)
        if gradient is not None
    )
    np.testing.assert_allclose(ours, slope, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", RECIPES)
def test_each_head_is_cut_out(name, tmp_path):
    """`cut` itself compares what it made with the whole graph."""
    given = given_of(name)
    conf = Conf(
        recipe={"name": name, **RECIPES[name]},
        slots=given["slots"],
        embedding=Embedding(3, given["linear"]),
        data=Data(train="none", labels=given["labels"]),
    )
    model = building.build(conf, Statistics())
    graph.save(model, str(tmp_path / "whole"))
    everything = whole(model.layout, model.heads)
    for part in model.heads[:1]:
        to = str(tmp_path / part)
        made = splitting.cut(str(tmp_path / "whole"), to, everything, part, frozen=False)
        assert [output.of for output in made.outputs] == [part] * 2


@pytest.mark.parametrize("width", [4, pytest.param(6, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", RECIPES)
def test_a_warm_start_carries_its_weights(name, width, monkeypatch):
    monkeypatch.setitem(test_warm_dense.RECIPES, name, RECIPES[name])
    old, new = test_warm_dense.confs_of(name, width)
    model, other, carried = test_warm_dense.carried_over(old, new, monkeypatch)
    assert not carried.new
    assert not carried.dropped
    test_warm_dense.assert_same_logits(model, other)


@pytest.mark.parametrize(
    "conf",
    ["ple", *(pytest.param(name, marks=pytest.mark.long) for name in ("shared_bottom", "mmoe"))],
)
def test_a_conf_trains_and_is_served(cli, ran, tmp_path, conf):
    ran("train", f"conf={conf}", *FEW_ROWS, "output=run", cwd=tmp_path)
    assert report_of(tmp_path / "run")["auc"] > 0.6
    for command in ("split-graph", "export-embeddings", "verify-serving"):
        done = cli(command, "output=run", cwd=tmp_path)
        assert done.code == 0, (command, done.err)


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        ({"name": "mmoe", "experts": 0}, "needs at least 1 expert, .* Received: 0 with layers"),
        ({"name": "mmoe", "expert_hidden": []}, r"an expert at least 1 layer\. .* layers \[\]"),
        ({"name": "ple", "experts": 0}, "a gate needs at least 1 expert"),
        ({"name": "ple", "layers": 0}, r"recipe ple refused {'layers': 0}: it has at least 1"),
    ],
)
def test_settings_that_make_no_model(recipe, words):
    with pytest.raises(UserError, match=words):
        network_of(recipe, **given_of(recipe["name"]))
