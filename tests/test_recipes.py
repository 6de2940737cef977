"""The shipped recipes against float64 numpy models of their papers; recipes of one's own."""

import hashlib
import json
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import keras
import numpy as np
import pytest
import tensorflow as tf
import yaml

from tnctl import shipped
from tnctl.data.statistics_document import Statistics
from tnctl.errors import UserError
from tnctl.model import Tower, building, recipes
from tnctl.model.layout import plan
from tnctl.model.recipes import source_settings
from tnctl.schema import Conf, Data, Embedding, Label, Numeric, Slot

ROOT = Path(__file__).resolve().parent.parent
ROWS, WIDTH, LONGEST = 6, 4, 4
SLOTS = {"a": Slot(), "b": Slot(), "c": Slot()}
HISTORY = {
    "a": Slot(group="a"),
    "b": Slot(),
    "past": Slot(group="a", pooling="none", max_length=LONGEST),
}
NUMBERS = {"m": Numeric(), "n": Numeric()}


def network_of(recipe, slots=SLOTS, numeric=NUMBERS, precision="float32", **conf):
    """The dense network of a recipe, its heads, and its weights by path; none is at its start."""
    linear = conf.pop("linear", True)
    conf = Conf(
        recipe=recipe,
        slots=dict(slots),
        numeric=dict(numeric),
        embedding=Embedding(WIDTH, linear),
        data=Data(train="none", **conf),
    )
    layout = plan(conf, Statistics())
    network, heads = building.build_network(conf, layout, precision)
    random = np.random.default_rng(8)
    for variable in network.variables:
        value = random.normal(size=variable.shape) * 0.5
        variable.assign(np.abs(value) + 0.5 if "variance" in variable.name else value)
    weights = {
        variable.path: np.asarray(variable).astype(np.float64) for variable in network.variables
    }
    return network, heads, weights


def arrays_of(network):
    """Something for each input of a network, by name."""
    random = np.random.default_rng(4)
    arrays = {
        tensor.name: random.normal(size=(ROWS, *tensor.shape[1:])).astype(np.float32)
        for tensor in network.inputs
    }
    if "lengths" in arrays:
        arrays["lengths"] = np.array([[0], [1], [4], [3], [2], [4]], np.int32)
    return arrays


def assert_all_trained(variables, gradients):
    """Each trainable weight has a gradient on some row, above what rounding makes of 0."""
    for variable, gradient in zip(variables, gradients, strict=False):
        steepest = 0 if gradient is None else np.abs(gradient).max()
        assert steepest > 1e-5, f"the loss does not depend on {variable.path}"


def run(network, arrays):
    """The logits of a network by head, in a graph, where written-out gradients want to be."""
    function = tf.function(lambda *inputs: network(list(inputs), training=False), autograph=False)
    return function(*(tf.constant(arrays[tensor.name]) for tensor in network.inputs))


def logits_of(recipe, **conf):
    """What a recipe computes, [B, heads]; its weights; its inputs in float64."""
    network, heads, weights = network_of(recipe, **conf)
    arrays = arrays_of(network)
    outputs = run(network, arrays)
    logits = {head: np.asarray(outputs[head])[:, 0] for head in heads}
    return logits, weights, {name: array.astype(np.float64) for name, array in arrays.items()}


def tower(w, name, x, first=0, activation=np.tanh, batch_norm=False):
    """Two layers of a tower; Keras counts all Dense of a network, from `first` on."""
    for number in (first, first + 1):
        at = f"{name}/dense_{number}" if number else f"{name}/dense"
        x = x @ w[f"{at}/kernel"] + w[f"{at}/bias"]
        if batch_norm:
            at = f"{at}/batch_norm"
            x = (x - w[f"{at}/moving_mean"]) / np.sqrt(w[f"{at}/moving_variance"] + 1e-5)
            x = x * w[f"{at}/gamma"] + w[f"{at}/beta"]
        x = activation(x)
    return x


def logit(w, name, x):
    return (x @ w[f"{name}/kernel"] + w.get(f"{name}/bias", 0.0))[:, 0]


def pairs(vectors):
    count = vectors.shape[1]
    return sum(
        (vectors[:, i] * vectors[:, j]).sum(axis=1)
        for i in range(count)
        for j in range(i + 1, count)
    )


def parts(x, slots=3):
    """The embeddings [B, S, d] and the numbers [B, N] of x."""
    return x[:, : slots * WIDTH].reshape(len(x), slots, WIDTH), x[:, slots * WIDTH :]


TOWER = {"hidden": [5, 4], "activation": "tanh"}


def near(array, expected):
    np.testing.assert_allclose(array, expected, rtol=2e-5, atol=2e-5)


def test_lr():
    logits, w, given = logits_of({"name": "lr"})
    _, numbers = parts(given["x"])
    near(logits["label"], given["linear"][:, 0] + logit(w, "numeric", numbers) + w["bias/bias"])
    logits, w, given = logits_of({"name": "lr"}, numeric={})
    near(logits["label"], given["linear"][:, 0] + w["bias/bias"])


def test_fm():
    logits, w, given = logits_of({"name": "fm"})
    vectors, numbers = parts(given["x"])
    both = np.concatenate([vectors, numbers[:, :, None] * w["factors/factors"]], axis=1)
    first = given["linear"][:, 0] + logit(w, "numeric", numbers)
    near(logits["label"], w["bias/bias"] + first + pairs(both))
    logits, w, given = logits_of({"name": "fm"}, numeric={}, linear=False)
    near(logits["label"], w["bias/bias"] + pairs(parts(given["x"])[0]))


def test_wide_deep():
    """The wide part is what the rows' linear weights sum to, a cross's among them."""
    slots = {**SLOTS, "ab": Slot(cross=["a", "b"], width=0)}
    logits, w, given = logits_of({"name": "wide_deep", **TOWER}, slots=slots)
    wide = given["linear"][:, 0] + logit(w, "numeric", parts(given["x"])[1])
    near(logits["label"], wide + logit(w, "deep_logit", tower(w, "deep", given["x"])))


@pytest.mark.parametrize("batch_norm", [False, True])
def test_deepfm(batch_norm):
    recipe = {"name": "deepfm", **TOWER, "batch_norm": batch_norm, "dropout": 0.5}
    logits, w, given = logits_of(recipe)
    vectors, numbers = parts(given["x"])
    first = given["linear"][:, 0] + logit(w, "numeric", numbers)
    deep = tower(w, "deep", given["x"], batch_norm=batch_norm)
    near(logits["label"], first + pairs(vectors) + logit(w, "deep_logit", deep))


CROSSES = [
    {"version": 1},
    {"version": 2},
    {"version": 2, "low_rank": 2},
    {"version": 2, "low_rank": 2, "experts": 3},
]


def crossed(w, x, version, low_rank=0, experts=1, count=2):
    """The cross network, as the papers write it."""
    start = x
    for layer in range(count):
        bias = w["cross/bias"][layer] if version == 1 else w[f"cross/bias_{layer}"]
        if version == 1:
            x = start * (x @ w["cross/kernel"][:, layer : layer + 1]) + bias + x
        elif experts == 1:
            kernel = w[f"cross/v_{layer}"] @ w[f"cross/u_{layer}"] if low_rank else (
                w[f"cross/kernel_{layer}"]
            )  # fmt: skip
            x = start * (x @ kernel + bias) + x
        else:
            scores = np.exp(x @ w[f"cross/gates_{layer}"])
            gates = scores / scores.sum(axis=1, keepdims=True)
            mixed = np.zeros_like(x)
            for number in range(experts):
                of = slice(number * low_rank, (number + 1) * low_rank)
                h = np.tanh(x @ w[f"cross/v_{layer}"][:, of])
                h = np.tanh(h @ w[f"cross/c_{layer}"][number]) @ w[f"cross/u_{layer}"][of]
                mixed += gates[:, number : number + 1] * start * (h + bias)
            x = mixed + x
    return x


@pytest.mark.parametrize("cross", CROSSES, ids=str)
@pytest.mark.parametrize("structure", ["parallel", "stacked"])
def test_dcn(structure, cross):
    recipe = {"name": "dcn", "structure": structure, "layers": 2, **cross, **TOWER}
    logits, w, given = logits_of(recipe, linear=False)
    assert "linear" not in given
    x = given["x"]
    x_l = crossed(w, x, **cross)
    if structure == "stacked":
        expected = logit(w, "logit", tower(w, "deep", x_l))
    else:
        deep = logit(w, "deep_logit", tower(w, "deep", x))
        expected = logit(w, "cross_logit", x_l) + deep
    near(logits["label"], expected)


@pytest.mark.parametrize("softmax", [False, True])
def test_din(softmax):
    recipe = {"name": "din", "behavior": "past", "target": "a", "softmax": softmax,
              "attention": [5, 4], "attention_activation": "tanh", **TOWER}  # fmt: skip
    logits, w, given = logits_of(recipe, slots=HISTORY, linear=False)
    sequences = given["sequences"].reshape(ROWS, LONGEST, WIDTH)
    target = given["x"][:, :WIDTH]  # slot a is the first
    interest = np.zeros((ROWS, WIDTH))
    for row in range(ROWS):
        past = sequences[row, : int(given["lengths"][row, 0])]
        if len(past):
            repeated = np.repeat(target[row : row + 1], len(past), axis=0)
            unit = np.hstack([past, past * repeated, repeated])
            scores = logit(w, "attention/score", tower(w, "attention/unit", unit))
            weights = np.exp(scores) / np.exp(scores).sum() if softmax else scores
            interest[row] = weights @ past
    x = np.hstack([interest, given["x"]])
    near(logits["label"], logit(w, "logit", tower(w, "deep", x, first=2)))


LABELS = {"ctr": Label("click"), "ctcvr": Label("buy")}


def test_esmm():
    logits, w, given = logits_of({"name": "esmm", **TOWER}, labels=LABELS, linear=False)
    assert list(logits) == ["ctr", "ctcvr", "cvr"]
    ctr = logit(w, "ctr_logit", tower(w, "ctr", given["x"]))
    cvr = logit(w, "cvr_logit", tower(w, "cvr", given["x"], first=2))
    near(logits["ctr"], ctr)
    near(logits["cvr"], cvr)
    product = 1 / (1 + np.exp(-ctr)) / (1 + np.exp(-cvr))
    near(1 / (1 + np.exp(-logits["ctcvr"])), product)


EVERY = {
    "lr": {},
    "fm": {},
    "wide_deep": TOWER,
    "deepfm": TOWER,
    "dcn": TOWER,
    "din": {"behavior": "past", "target": "a", "position_weight": True, **TOWER},
    "esmm": TOWER,
    "dlrm": {"bottom": [4], **TOWER},
    "fwfm": {},
    "xdeepfm": {"cin": [3, 2], **TOWER},
    "autoint": {"attention": [4], **TOWER},
    "masknet": TOWER,
    "finalmlp": {"second": [6], "gate": [3], "heads": 2, **TOWER},
    "gdcn": TOWER,
    "fcn": {},
    "wukong": {"depth": 2, "products": 3, "compressed": 2, "fm_hidden": [4], **TOWER},
    "shared_bottom": TOWER,
    "mmoe": TOWER,
    "ple": TOWER,
    "pepnet": {"domain": ["a"], "prior": ["b"], **TOWER},
    "bst": {"behavior": "past", "target": "a", "heads": 1, **TOWER},
}


def test_every_shipped_recipe_is_here():
    assert sorted(EVERY) == shipped.recipes()
    code = "".join(path.read_text() for path in (ROOT / "tests").glob("test_recipes*.py"))
    for name in EVERY:
        assert re.search(rf"^def (test_)?{name}\(", code, re.M), f"no model of {name} in numpy"


@pytest.mark.parametrize("name", EVERY)
def test_bfloat16_trains_the_same_variables(name):
    slots = HISTORY if name in ("bst", "din") else SLOTS
    labels = LABELS if name == "esmm" else {}
    recipe = {"name": name, **EVERY[name]}
    exact, _, _ = network_of(recipe, slots, labels=labels)
    rough, _, _ = network_of(recipe, slots, precision="bfloat16", labels=labels)
    assert [variable.path for variable in rough.variables] == [
        variable.path for variable in exact.variables
    ]
    arrays = arrays_of(exact)
    ours, theirs = run(rough, arrays), run(exact, arrays)
    assert ours.keys() == theirs.keys()
    for head, values in ours.items():
        assert keras.backend.standardize_dtype(values.dtype) == "float32"
        np.testing.assert_allclose(values, theirs[head], rtol=0.1, atol=0.2)


def settings_of(name):
    """The parameters of a shipped recipe after its inputs."""
    return recipes.declared(recipes.load(name))


@pytest.mark.parametrize("name", shipped.recipes())
def test_the_conf_of_a_recipe_spells_all_its_settings(name):
    """The group's file has every setting of `build`, with its default; towers share a file."""
    path = shipped.folder("conf") / f"recipe/{name}.yaml"
    assert path.read_text().startswith("# @package _global_\n")
    values = yaml.safe_load(path.read_text())
    group = values["recipe"]
    if "defaults" in values:
        assert values["defaults"] == ["_self_", "/tower/settings"]
        shared = shipped.folder("conf") / "tower/settings.yaml"
        group |= yaml.safe_load(shared.read_text())["recipe"]
    assert group.pop("name") == name
    parameters = settings_of(name).values()
    assert list(group) == [parameter.name for parameter in parameters]
    for parameter in parameters:
        default = "???" if parameter.default is parameter.empty else parameter.default
        assert group[parameter.name] == (list(default) if isinstance(default, tuple) else default)
        assert parameter.kind is parameter.KEYWORD_ONLY


def declared(
    inputs,
    *,
    widths: Sequence[int] = (1,),
    rate: float = 0.1,
    kind: Literal["parallel", "stacked", 2] = "parallel",
    names: str | list[str] = "a",
    most: int | None = None,
    free=None,
    flag: bool = False,
): ...


@pytest.mark.parametrize(
    "setting",
    [
        {"widths": [3, 4]}, {"widths": []}, {"rate": 1}, {"rate": 0.5}, {"kind": "stacked"},
        {"kind": 2}, {"names": "x"}, {"names": ["x", "y"]}, {"most": None}, {"most": 3},
        {"free": {"a": 1}}, {"flag": True},
    ],
    ids=str,
)  # fmt: skip
def test_settings_that_fit(setting):
    assert recipes.settings_of({"name": "x", **setting}, declared) == setting


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"widths": 3}, "recipe.widths must be a list of int. Received: recipe.widths=3"),
        ({"widths": [True]}, "must be a list of int"),
        ({"rate": "x"}, "recipe.rate must be a number. Received: recipe.rate=x"),
        ({"kind": "paralel"}, "must be parallel or stacked or 2. Received: recipe.kind=paralel. "
                              "Did you mean 'parallel'"),
        ({"names": [1]}, "recipe.names must be a text or a list of str"),
        ({"most": "3"}, "recipe.most must be a whole number or null"),
        ({"flag": 1}, "recipe.flag must be true or false"),
        ({"wdths": [3]}, "recipe x has no setting 'wdths'. Did you mean 'widths'"),
    ],
    ids=str,
)  # fmt: skip
def test_settings_that_do_not_fit(setting, words):
    with pytest.raises(UserError) as caught:
        recipes.settings_of({"name": "x", **setting}, declared)
    assert words in str(caught.value)


def test_a_setting_without_a_default_must_be_given():
    with pytest.raises(UserError, match=r"recipe din needs recipe.target=a text or a list of str"):
        recipes.settings_of({"name": "din", "behavior": "x"}, recipes.load("din"))


def test_any_setting_goes_where_build_takes_any():
    def build(x, **settings): ...

    assert recipes.settings_of({"name": "x", "depth": 3}, build) == {"depth": 3}


def test_the_fields_of_a_tower_are_settings():
    def build(x, *, deep: Tower = Tower((2,), dropout=0.5), depth: int = 1): ...

    assert list(recipes.declared(build)) == [*vars(Tower()), "depth"]
    assert recipes.declared(build)["dropout"].default == 0.5
    assert recipes.settings_of({"name": "x"}, build) == {"deep": Tower((2,), dropout=0.5)}
    settings = recipes.settings_of({"name": "x", "hidden": [3], "l2": 1, "depth": 2}, build)
    assert settings == {"deep": Tower([3], dropout=0.5, l2=1), "depth": 2}
    with pytest.raises(UserError, match=r"recipe\.batch_norm must be true or false"):
        recipes.settings_of({"name": "x", "batch_norm": 1}, build)
    with pytest.raises(UserError, match=r"recipe x has no setting 'deep'"):
        recipes.settings_of({"name": "x", "deep": [3]}, build)


@pytest.mark.parametrize(
    "default", ["", " = Tower((2,), dropout=0.5)", " = model.Tower(hidden=(2,))"]
)
def test_settings_are_read_from_a_file_that_is_not_run(tmp_path, default):
    path = written(tmp_path, f"def build(inputs, *, tower: Tower{default}, depth=1): ...\n")
    settings = source_settings(str(path))
    assert list(settings) == [*vars(Tower()), "depth"]
    assert settings["hidden"] == ("(2,)" if default else "(400, 400, 400)")
    assert settings["dropout"] == ("0.5" if "dropout" in default else "0.0")


def written(folder, text, name="mine.py"):
    path = folder / name
    path.write_text(textwrap.dedent(text))
    return path


OWN = """\
    from tnctl.model import layers
    def build(inputs, *, hidden: list[int] = (8, 4), scale: float = 1.0):
        return inputs.linear + layers.Logit()(layers.Mlp(hidden)(inputs.x)) * scale
"""


def test_a_recipe_of_ones_own_is_the_path_of_a_file(tmp_path, monkeypatch):
    path = written(tmp_path, OWN)
    recipe = {"name": str(path), "hidden": [5]}
    logits, w, given = logits_of(recipe)
    h = np.maximum(given["x"] @ w["mlp/dense/kernel"] + w["mlp/dense/bias"], 0)
    near(logits["label"], given["linear"][:, 0] + logit(w, "logit", h))
    assert recipes.digest_of(str(path)) == hashlib.sha256(path.read_bytes()).hexdigest()
    monkeypatch.chdir(tmp_path)
    relative, _, _ = logits_of({"name": "mine.py", "hidden": [5]})
    np.testing.assert_array_equal(relative["label"], logits["label"])
    assert [path.name for path in tmp_path.iterdir()] == ["mine.py"]  # no __pycache__
    with pytest.raises(UserError, match=r"recipe\.scale must be a number"):
        logits_of({"name": "mine.py", "scale": "x"})
    with pytest.raises(UserError, match=r"no setting 'hiden'\. Did you mean 'hidden'"):
        logits_of({"name": "mine.py", "hiden": [3]})


def test_the_recipe_in_the_documentation(tmp_path):
    page = (ROOT / "docs/recipes.md").read_text()
    [code] = [
        part for part in re.findall(r"```python\n(.*?)```", page, re.S) if "def build" in part
    ]
    logits, w, _ = logits_of({"name": str(written(tmp_path, code)), "hidden": [4]})
    assert np.isfinite(logits["label"]).all()
    assert w["mlp/dense/kernel"].shape == (3 * WIDTH + 2, 4)
    for name in shipped.recipes():
        assert f"\n## {name}\n" in page
        assert f"\n| [`{name}`](#{name}) |" in page
        for setting in settings_of(name):
            assert f"`{setting}`" in page, (name, setting)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def build(inputs)\n    return 1\n", "mine.py, line 1: SyntaxError: expected ':'"),
        ("import nothing_of_this_name\n", "mine.py, line 1: ModuleNotFoundError: No module named"),
        ("x = 1\n", "has no function build(inputs, …)"),
        ("def build(inputs):\n    y = inputs.x\n    return y + undefined\n",
         "mine.py, line 3: NameError: name 'undefined' is not defined"),
        ("from tnctl.model import layers\n\ndef build(inputs):\n    return layers.Mlp([0])(2)\n",
         "mine.py, line 4: a layer must be at least 1 wide. Received: 0"),
        ("def build(inputs):\n    return inputs.slot('aa')\n", "mine.py, line 2: the conf has no"),
        ("import keras\n\ndef build(inputs):\n    return keras.layers.Dense(-1)(inputs.x)\n",
         "mine.py, line 4: ValueError: "),
    ],
)  # fmt: skip
def test_what_is_wrong_in_a_file_is_told_with_its_line(tmp_path, text, words):
    path = written(tmp_path, text)
    with pytest.raises(UserError) as caught:
        logits_of({"name": str(path)})
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "\x1b" not in str(caught.value)


def test_a_file_that_is_not_there():
    with pytest.raises(UserError, match=r"recipe.name=gone.py: cannot read .* \(No such file"):
        recipes.load("gone.py")
    with pytest.raises(UserError, match=r"no recipe 'deepmf'. Did you mean 'deepfm'\?"):
        recipes.load("deepmf")


def trains_and_is_served(cli, ran, folder, conf, *extra):
    """A shipped conf, by a few rows of its data, from training to verify-serving."""
    ran("train", f"conf={conf}", *SMALL, "output=run", *extra, cwd=folder)
    assert report_of(folder / "run")["auc"] > 0.6
    for command in ("split-graph", "export-embeddings", "verify-serving"):
        done = cli(command, "output=run", cwd=folder)
        assert done.code == 0, (command, done.err)


def report_of(folder):
    return json.loads((folder / "report.json").read_text())


SMALL = ["data.train=0:12000", "data.validation=12000:15000", "data.test=null",
         "train.batch_size=512"]  # fmt: skip


@pytest.mark.parametrize("conf", [
    "dcn", "esmm",
    *(pytest.param(conf, marks=pytest.mark.long) for conf in ("din", "fm", "wide_deep")),
])  # fmt: skip
def test_a_recipe_trains_and_is_served(cli, ran, tmp_path, conf):
    extra = []
    if conf == "dcn":
        extra = ["recipe.batch_norm=true", "recipe.dropout=0.1", "recipe.l2=1e-4",
                 "recipe.low_rank=8", "recipe.experts=2", "recipe.activation=dice",
                 "train.batch_size=128", "optimizer.dense.learning_rate=0.005"]  # fmt: skip
    trains_and_is_served(cli, ran, tmp_path, conf, *extra)


OWN_CONF = """\
    defaults: [schema, data: generated, _self_]
    recipe: {name: mine.py, hidden: [16]}
"""


def test_a_recipe_of_ones_own_from_training_to_serving(copied_process, cli, ran, tmp_path):
    source = written(tmp_path, OWN)
    written(tmp_path, OWN_CONF, "own.yaml")
    done = copied_process("train", "conf=own.yaml", *SMALL, "output=run", cwd=tmp_path)
    assert done.code == 0, done.err
    [manifest] = (tmp_path / "run/checkpoints").glob("*/manifest.json")
    recorded = json.loads(manifest.read_text())["recipe"]
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    assert recorded == {"name": "mine.py", "hidden": [16], "sha256": digest}
    # What only serves the model needs no code of the recipe, what builds it is given the file.
    for command in ("split-graph", "export-embeddings"):
        done = cli(command, "output=run", cwd=tmp_path)
        assert done.code == 0, (command, done.err)
    for command, given in (
        ("evaluate", ["output=run", "recipe.name=mine.py"]),
        ("evaluate", ["conf=own.yaml", *SMALL, "output=run"]),
        ("verify-serving", ["output=run", "recipe=mine.py"]),
    ):
        done = cli(command, *given, cwd=tmp_path)
        assert done.code == 0, (command, done.err)
        assert "has changed" not in done.err
    with source.open("a") as file:
        file.write("# another remark\n")
    done = ran("evaluate", "output=run", "recipe.name=mine.py", cwd=tmp_path)
    assert "mine.py has changed since run/checkpoints/" in done.err
    # The split graph needs the file no more; what builds the model says so.
    source.unlink()
    ran("split-graph", "output=run", "to=elsewhere", cwd=tmp_path)
    done = cli("evaluate", "output=run", "recipe.name=mine.py", cwd=tmp_path)
    assert done.code == 2
    assert "recipe.name=mine.py: cannot read" in done.last
