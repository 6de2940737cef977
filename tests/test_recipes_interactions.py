"""Recipes of interactions between fields against float64 numpy models of their papers."""

import dataclasses
import re

import numpy as np
import pytest
import tensorflow as tf
import test_warm_dense
from test_recipes import (
    SLOTS,
    arrays_of,
    assert_all_trained,
    logit,
    near,
    network_of,
    trains_and_is_served,
)

from tnctl.data.statistics_document import Statistics
from tnctl.errors import UserError
from tnctl.model import building, graph
from tnctl.schema import Conf, Data, Embedding, Label, Slot
from tnctl.serving.graph import splitting
from tnctl.serving.graph.serving_json import whole

TOWER = {"hidden": [5, 4], "activation": "tanh"}
# By the name of a model below: a recipe and its settings.
RECIPES = {
    "dlrm": {"bottom": [4], **TOWER},
    "fwfm": {},
    "xdeepfm": {"cin": [3, 2], **TOWER},
    "autoint": {"attention": [4, 6], "heads": 2},
    "autoint_plus": {"attention": [4], "heads": 1, **TOWER},
    "masknet": {"reduction": 1.5, **TOWER},
    "masknet_parallel": {"structure": "parallel", "blocks": 2, "block_width": 4, **TOWER},
    "finalmlp": {"second": [6], "gate": [8], "first_context": ["a", "b"], "heads": 2, **TOWER},
    "finalmlp_bare": {"second": [4], "gate": [], "heads": 1, **TOWER},
    "gdcn": {"layers": 2, **TOWER},
    "gdcn_stacked": {"layers": 2, "structure": "stacked", **TOWER},
    "fcn": {"heads": 2},
    "fcn_branches": {"branches": True},
    "wukong": {"depth": 2, "products": 3, "compressed": 2, "rank": 2, "fm_hidden": [4], **TOWER},
}


# ---- the papers ----


def mlp(w, name, x, activation=np.tanh):
    """The layers of a tower, which Keras numbers through a network."""
    starts = {key.rpartition("/")[0] for key in w if re.match(rf"{name}/dense(_\d+)?/kernel", key)}
    for at in sorted(starts, key=lambda at: int((re.findall(r"\d+$", at) or ["0"])[0])):
        x = activation(x @ w[f"{at}/kernel"] + w[f"{at}/bias"])
    return x


def relu(x):
    return np.maximum(x, 0)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def normed(w, name, x):
    x = x - x.mean(axis=-1, keepdims=True)
    x = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + 1e-5)
    return x * w[f"{name}/gamma"] + w[f"{name}/beta"]


def fields(w, given):
    """The vectors of slots and numbers, [B, F, d]."""
    embeddings, numbers = vectors_of(given)
    factors = w["factors/factors"]
    return np.concatenate([embeddings, numbers[:, :, None] * factors], axis=1)


def vectors_of(given):
    x, numbers = given["x"], 2
    return x[:, :-numbers].reshape(len(x), len(SLOTS), -1), x[:, -numbers:]


def flat(vectors):
    return vectors.reshape(len(vectors), -1)


def products(v):
    count = v.shape[1]
    of_pairs = [(v[:, i] * v[:, j]).sum(axis=1) for i in range(count) for j in range(i + 1, count)]
    return np.stack(of_pairs, axis=1)


def tower_logit(w, name, x):
    return logit(w, f"{name}_logit", mlp(w, name, x))


def dlrm(w, given):
    embeddings, numbers = vectors_of(given)
    z = mlp(w, "bottom", numbers)
    v = np.concatenate([z[:, None], embeddings], axis=1)
    return tower_logit(w, "top", np.hstack([z, products(v)]))


def fwfm(w, given):
    v = fields(w, given)
    return logit(w, "fields", flat(v)) + logit(w, "pairs", products(v))


def xdeepfm(w, given):
    start = x = fields(w, given)
    sums = []
    for layer in range(2):
        filters = w[f"cin/filters_{layer}"]
        new = np.zeros((len(x), filters.shape[2], x.shape[2]))
        for h, i, j in np.ndindex(filters.shape[2], x.shape[1], start.shape[1]):
            new[:, h] += filters[i, j, h] * x[:, i] * start[:, j]
        x = new
        sums.append(x.sum(axis=2))
    linear = given["linear"][:, 0] + logit(w, "numeric", vectors_of(given)[1])
    return linear + logit(w, "cin_logit", np.hstack(sums)) + tower_logit(w, "deep", given["x"])


def attended(w, given, widths, heads):
    e = fields(w, given)
    for layer, width in enumerate(widths):
        new = np.zeros((*e.shape[:2], width))
        for head in range(heads):
            of_head = slice(head * width // heads, (head + 1) * width // heads)
            query, key, value, residual = (
                e @ w[f"attention/{part}_{layer}"][:, of_head]
                for part in ("query", "key", "value", "residual")
            )
            for m in range(e.shape[1]):
                scores = np.exp((query[:, m : m + 1] * key).sum(axis=2))
                alpha = scores / scores.sum(axis=1, keepdims=True)
                summed = (alpha[:, :, None] * value).sum(axis=1)
                new[:, m, of_head] = relu(summed + residual[:, m])
        e = new
    return logit(w, "logit", flat(e))


def autoint(w, given):
    return attended(w, given, [4, 6], 2)


def autoint_plus(w, given):
    return attended(w, given, [4], 1) + tower_logit(w, "deep", given["x"])


def gate(w, name, context):
    hidden = mlp(w, f"{name}/hidden", context, relu)
    return hidden @ w[f"{name}/gate/kernel"] + w[f"{name}/gate/bias"]


def mask_block(w, name, v, h):
    masked = h * gate(w, f"{name}_mask", v)
    return np.tanh(normed(w, f"{name}_norm", masked @ w[f"{name}/kernel"]))


def masknet(w, given):
    v = fields(w, given)
    h = flat(normed(w, "norm", v))
    for number in range(2):
        h = mask_block(w, f"block_{number}", flat(v), h)
    return logit(w, "logit", h)


def masknet_parallel(w, given):
    v = fields(w, given)
    h = flat(normed(w, "norm", v))
    blocks = [mask_block(w, f"block_{number}", flat(v), h) for number in range(2)]
    return tower_logit(w, "deep", np.hstack(blocks))


def fused(w, h_1, h_2, heads):
    o_1, o_2 = mlp(w, "first", h_1), mlp(w, "second", h_2)
    y = logit(w, "first_logit", o_1) + logit(w, "second_logit", o_2)
    for head, (a, b) in enumerate(
        zip(np.split(o_1, heads, 1), np.split(o_2, heads, 1), strict=True)
    ):
        y = y + np.einsum("bp,pq,bq->b", a, w["fusion/kernel"][head], b)
    return y


def finalmlp(w, given):
    x, embeddings = given["x"], vectors_of(given)[0]
    first = 2 * sigmoid(gate(w, "first_gate", flat(embeddings[:, :2])))
    second = 2 * sigmoid(gate(w, "second_gate", w["second_gate/context"]))
    return fused(w, first * x, second * x, 2)


def finalmlp_bare(w, given):
    return fused(w, given["x"], given["x"], 1)


def gated_cross(w, c):
    start = c
    for layer in range(2):
        gate = sigmoid(c @ w[f"cross/gate_{layer}"])
        c = start * (c @ w[f"cross/kernel_{layer}"] + w[f"cross/bias_{layer}"]) * gate + c
    return c


def gdcn(w, given):
    x = given["x"]
    return logit(w, "cross_logit", gated_cross(w, x)) + tower_logit(w, "deep", x)


def gdcn_stacked(w, given):
    return logit(w, "logit", mlp(w, "deep", gated_cross(w, given["x"])))


def self_masked(w, name, v, count, exponential, heads):
    """The mean of the logits of all heads, each of its part of every vector."""
    y = 0
    for part in np.split(v, heads, axis=2):
        x = start = np.hstack([flat(half) for half in np.split(part, 2, axis=2)])
        for layer in range(count):
            h = x @ w[f"{name}/kernel_{layer}"]
            h = np.hstack([h, h * relu(normed(w, f"{name}/norm_{layer}", h))])
            x = (x if exponential else start) * (h + w[f"{name}/bias_{layer}"]) + x
        y = y + logit(w, f"{name}/logit", x) / heads
    return y


def fcn(w, given, heads=2):
    v = fields(w, given)
    deep = self_masked(w, "exponential_cross", v, 2, True, heads)
    return (deep + self_masked(w, "linear_cross", v, 3, False, heads)) / 2


def fcn_branches(w, given):
    return fcn(w, given, heads=1)


def wukong(w, given):
    x = fields(w, given)
    for layer in range(2):
        name = f"interaction_{layer}"
        fm = x @ np.swapaxes(x, 1, 2) @ w[f"{name}/y"]
        fm = mlp(w, f"{name}/fm", normed(w, f"{name}/fm_norm", flat(fm)), relu)
        lcb = np.einsum("bnd,nm->bmd", x, w[f"{name}/w"])
        added = np.einsum("bnd,nm->bmd", x, w[f"{name}/r"]) if layer == 0 else x
        new = np.concatenate([fm.reshape(len(x), 3, -1), lcb], axis=1)
        x = normed(w, f"{name}/norm", new + added)
    return tower_logit(w, "deep", flat(x))


# ---- what holds for all ----


def name_of(model):
    return model.partition("_")[0]


def recipe_of(model):
    return {"name": name_of(model), **RECIPES[model]}


def given_of(model):
    labels = dict.fromkeys(("label", "exponential", "linear"), Label("click"))
    return {
        "labels": labels if model == "fcn_branches" else {},
        "linear": model == "xdeepfm",
    }


@pytest.mark.parametrize("model", RECIPES)
def test_a_recipe_computes_its_paper(model):
    """Its main logit, and the gradient of its sum along one direction, by differences."""
    network, heads, weights = network_of(recipe_of(model), **given_of(model))
    arrays = arrays_of(network)
    exact = {key: array.astype(np.float64) for key, array in arrays.items()}
    variables = network.trainable_variables

    @tf.function(autograph=False)
    def computed(*inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs = network(list(inputs), training=False)
            total = tf.reduce_sum(outputs[heads[0]])
        values = [variable.value for variable in variables]
        return outputs, tape.gradient(total, [*values, *inputs])

    outputs, gradients = computed(*(tf.constant(arrays[x.name]) for x in network.inputs))
    near(outputs[heads[0]][:, 0], globals()[model](weights, exact))

    random = np.random.default_rng(2)
    names = [*(variable.path for variable in variables), *arrays]
    along = {key: random.normal(size=np.shape({**weights, **exact}[key])) for key in names}
    # Nothing trains the numbers, and no gradient reaches them.
    ours = dict(zip(names, gradients, strict=True))
    assert_all_trained(variables, gradients)
    along["x"][:, -2:] = 0

    def moved(step):
        w, given = (
            {key: array + step * along[key] for key, array in part.items()}
            for part in (weights, exact)
        )
        return globals()[model](w, given).sum()

    slope = (moved(1e-6) - moved(-1e-6)) / 2e-6
    np.testing.assert_allclose(
        sum(float(np.sum(along[key] * np.asarray(ours[key]))) for key in names),
        slope,
        rtol=1e-3,
        atol=1e-3,
    )


def some(*short, of=RECIPES):
    """All models; those that are not `short` are run by `make test-all` only."""
    return [
        model if model in short else pytest.param(model, marks=pytest.mark.long) for model in of
    ]


@pytest.mark.parametrize("model", some("autoint", "wukong"))
def test_the_graph_has_allowed_operations_and_computes_the_same(model, tmp_path):
    """`cut` loads no other graph than that, and compares the head that it cuts out."""
    given = given_of(model)
    conf = Conf(
        recipe=recipe_of(model),
        slots=SLOTS,
        embedding=Embedding(4, given["linear"]),
        data=Data(train="none", labels=given["labels"]),
    )
    built = building.build(conf, Statistics())
    graph.save(built, str(tmp_path / "whole"))
    described = whole(built.layout, built.heads)
    to = str(tmp_path / "head")
    made = splitting.cut(str(tmp_path / "whole"), to, described, built.heads[0], frozen=False)
    assert {output.of for output in made.outputs} == {built.heads[0]}


@pytest.mark.parametrize("model", some("dlrm", "autoint", "wukong"))
def test_a_warm_start_carries_its_weights(model, monkeypatch):
    """Inputs in another order and renamed: the logits stay the same."""
    monkeypatch.setitem(test_warm_dense.RECIPES, model, RECIPES[model])
    labels = given_of(model)["labels"]
    old, new = (
        dataclasses.replace(conf, recipe=recipe_of(model), data=Data(train="none", labels=labels))
        for conf in test_warm_dense.confs_of(model, 4)
    )
    if "first_context" in new.recipe:
        new = dataclasses.replace(new, recipe=new.recipe | {"first_context": ["a2", "b"]})
    built, other, carried = test_warm_dense.carried_over(old, new, monkeypatch)
    assert not carried.new
    assert not carried.dropped
    test_warm_dense.assert_same_logits(built, other)


@pytest.mark.parametrize("conf", some("dlrm", of=dict.fromkeys(map(name_of, RECIPES))))
def test_a_conf_trains_and_is_served(cli, ran, tmp_path, conf):
    trains_and_is_served(cli, ran, tmp_path, conf)


UNEQUAL = SLOTS | {"b": Slot(width=2)}
OTHERS = r"needs embeddings of one width, and slots\.b has 2"
REFUSED = [
    *(({"name": name}, UNEQUAL, OTHERS) for name in
      ("dlrm", "fwfm", "xdeepfm", "autoint", "masknet", "fcn", "wukong")),
    ({"name": "xdeepfm", "cin": []}, SLOTS, "cin needs layers of at least 1 vector"),
    ({"name": "autoint", "attention": [5], "heads": 2}, SLOTS,
     r"recipe autoint refused .*: heads must divide the width of each layer of attention"),
    ({"name": "masknet", "structure": "parallel", "blocks": 0}, SLOTS, "at least 1 block"),
    ({"name": "masknet", "reduction": 0.0}, SLOTS, "at least 1 wide. Received: 0"),
    ({"name": "finalmlp", "hidden": []}, SLOTS, "both towers need layers"),
    ({"name": "finalmlp", "heads": 3}, SLOTS, r"heads must divide .* last layers, \(512, 256\)"),
    ({"name": "finalmlp", "first_context": ["aa"]}, SLOTS, "Did you mean 'a'"),
    ({"name": "gdcn", "layers": 0}, SLOTS, "at least 1 layer"),
    ({"name": "fcn", "heads": 3}, SLOTS, "twice the heads must divide .* embedding, 4"),
    ({"name": "fcn", "branches": True}, SLOTS, "has heads label, exponential, linear; say which"),
    ({"name": "wukong", "rank": 0}, SLOTS, "products, compressed and rank are at least 1"),
]  # fmt: skip


@pytest.mark.parametrize(("recipe", "slots", "words"), REFUSED)
def test_settings_that_make_no_model(recipe, slots, words):
    with pytest.raises(UserError, match=words) as caught:
        network_of(recipe, slots)
    assert "\n" not in str(caught.value)
