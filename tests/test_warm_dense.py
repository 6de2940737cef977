"""Dense weights of a warm start: they follow their inputs through any recipe, or it is refused."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from test_warm_start import kernel

from tnctl.checkpoint.document import OptimizerEntry as SavedOptimizer
from tnctl.data.statistics_document import Statistics
from tnctl.errors import UserError
from tnctl.model import recipes
from tnctl.model.building import build
from tnctl.schema import Conf, Data, Embedding, Initial, Numeric, Slot, Warm
from tnctl.training.warm import dense_transfer
from tnctl.training.warm.pairing import pair

RECIPES = {
    "lr": {},
    "fm": {},
    "deepfm": {"hidden": [15, 8], "batch_norm": True},  # as wide as x: 3 * 4 + 3
    "wide_deep": {"hidden": [8], "activation": "prelu"},
    "dcn": {"hidden": [8], "layers": 2},
    "dcn version": {"version": 1, "hidden": [8], "structure": "stacked"},
    "dcn mixture": {"experts": 2, "low_rank": 3, "layers": 2, "hidden": [15]},
    "din": {"behavior": "h", "target": "a", "hidden": [8], "attention": [5]},
    "din lists": {"behavior": ["h", "i"], "target": ["a", "b"], "hidden": [8], "attention": [5]},
}


def some(cases, *short):
    """All cases as parameters; those that are not `short` are run by `make test-all` only."""
    return [pytest.param(*case, marks=[] if case in short else pytest.mark.long) for case in cases]


@pytest.mark.parametrize(
    ("recipe", "width"),
    some(
        [(name, width) for name in RECIPES for width in (4, 6)],
        ("fm", 6), ("deepfm", 6), ("dcn mixture", 6), ("din", 6), ("dcn version", 4),
    ),
)  # fmt: skip
def test_dense_weights_follow_their_inputs_in_every_recipe(recipe, width, monkeypatch):
    """Inputs in another order, renamed, more and wider: the logits stay the same."""
    old, new = confs_of(recipe, width)
    # The new coordinates of fm's numbers multiply each other.
    atol = 2e-3 if recipe == "fm" else 2e-5
    model, other, carried = carried_over(old, new, monkeypatch)
    assert not carried.new
    assert not carried.dropped
    assert_same_logits(model, other, atol)


def carried_over(old, new, monkeypatch):
    """A model of random dense weights, one that began with them, and what became of them."""
    model, other = build(old, Statistics()), build(new, Statistics())
    random = np.random.default_rng(3)
    for array in [*model.dense.weights, *model.moving]:
        array[:] = random.uniform(0.1, 1, len(array)) * 0.3
    for state in model.dense.states:
        for array in state:
            array[:] = random.uniform(0.1, 1, len(array))
    checkpoint = saved(model)
    monkeypatch.setattr(dense_transfer, "variables", lambda _: checkpoint.variables)
    pairing = pair("there", old, new)
    dense_transfer.check(pairing, checkpoint, other)
    return model, other, dense_transfer.fill(pairing, checkpoint, other)


def assert_same_logits(model, other, atol=2e-5):
    """Of inputs that say the same to both: what only one has is zeros."""
    x, linear, sequences, lengths = inputs_of(model, other, np.random.default_rng(4))
    outputs = []
    if not model.layout.has_linear:
        linear = linear[:, :0]
    for built, *inputs in (
        (model, x[0], linear, sequences[0]),
        (other, x[1], linear, sequences[1]),
    ):
        inputs.append(lengths)
        tensors = [array for array in inputs if array.shape[1]]
        # Some gradients are written out, which only a graph takes.
        outputs.append(tf.function(built.inference_network)(tensors)["label"].numpy())
    assert np.std(outputs[0]) > 1e-3
    np.testing.assert_allclose(outputs[1], outputs[0], rtol=2e-4, atol=atol)


@pytest.mark.parametrize(
    ("old_names", "new_names", "numbers", "width"),
    [
        (["n1", "n2"], ["n1"], 1, 6),
        (["n1"], ["n2", "n1"], 1, 6),
        (["n1"], ["n1"], 1, 6),
        (["n1"], ["n1"], 2, 5),
    ],
)
def test_a_number_that_is_alone_keeps_its_factors(
    old_names, new_names, numbers, width, monkeypatch
):
    """It multiplies all of the variable: then its axes vanish together, and silence tells none."""
    old = Conf(
        recipe={"name": "fm"},
        slots={"a": Slot(), "b": Slot()},
        numeric={name: Numeric(width=numbers) for name in old_names},
        embedding=Embedding(4, initial=Initial("normal", 0.5)),
        data=Data(train="none"),
    )
    new = dataclasses.replace(
        old,
        numeric={name: Numeric(width=numbers) for name in new_names},
        embedding=Embedding(width, initial=Initial("normal", 0.5)),
        warm=Warm(
            start="s",
            new=[name for name in new_names if name not in old_names],
            drop=[name for name in old_names if name not in new_names],
        ),
    )
    model, other, carried = carried_over(old, new, monkeypatch)
    assert carried.partly
    assert not carried.new
    now, was = new_names.index("n1") * numbers, old_names.index("n1") * numbers
    rows, were = (kernel(built, "factors/factors") for built in (other, model))
    np.testing.assert_array_equal(rows[now : now + numbers, :4], were[was : was + numbers])
    if old_names == ["n1"] == new_names:
        # The new coordinates of the numbers multiply each other, and there is one of them.
        assert_same_logits(model, other, 2e-5 if numbers == 1 else 2e-3)


OWN = {
    "one kernel": "layers.Logit()(both)",
    "a tower": "layers.Logit()(keras.layers.Dense(8, 'relu', name='tower')(both))",
    "normalized": "layers.Logit()(layers.BatchNorm()(both))",
    "a gate": "layers.Logit()(keras.layers.Dense(4)(both) * inputs.slot('a'))",
    "a kernel each": (
        "keras.layers.Dense(1)(inputs.slot('a')) + keras.layers.Dense(1)(inputs.slot('b'))"
    ),
}


@pytest.mark.parametrize(
    ("inputs", "outcome"),
    some(
        [
            (spelling, outcome)
            for spelling in OWN
            for outcome in ("swapped", "swapped with their places", "one new")
        ],
        ("one kernel", "swapped"), ("one kernel", "one new"), ("normalized", "swapped"),
        ("a tower", "swapped with their places"), ("a kernel each", "swapped"),
    ),
)  # fmt: skip
def test_a_recipe_that_names_its_inputs(inputs, outcome, tmp_path, monkeypatch):
    """Another input has a name that is in the recipe: weights move to it, or it is refused.

    Moved weights give the same logits only where nothing but a sum is over both.
    """
    path = tmp_path / "own.py"
    path.write_text(
        "import keras\nfrom tnctl.model import layers\ndef build(inputs):\n"
        "    both = layers.concatenated(inputs.slot('a'), inputs.slot('b'))\n"
        f"    return {OWN[inputs]}\n"
    )
    old = Conf(
        recipe={"name": str(path)},
        slots={"a": Slot(), "b": Slot()},
        embedding=Embedding(4, linear=False),
        data=Data(train="none"),
    )
    keys = {"rename": {"a": "b"}, "drop": ["a"], "new": ["b"]}
    if outcome != "one new":
        keys = {"rename": {"a": "b", "b": "a"}}
    slots = dict(reversed(old.slots.items())) if "places" in outcome else old.slots
    new = dataclasses.replace(old, slots=slots, warm=Warm(start="s", **keys))
    if inputs in ("a kernel each", "a gate"):
        message = (
            "would lose what was learned of" if inputs == "a kernel each" else "combines units"
        )
        with pytest.raises(UserError, match=f"{message} .*warm.dense=fresh"):
            carried_over(old, new, monkeypatch)
        return
    model, other, carried = carried_over(old, new, monkeypatch)
    name = {"one kernel": "logit/kernel", "a tower": "tower/kernel"}.get(inputs)
    if name is not None:
        np.testing.assert_array_equal(kernel(other, name)[:4], kernel(model, name)[4:])
    assert bool(carried.partly) == (outcome == "one new")
    if outcome != "one new":
        assert_same_logits(model, other)


EACH = "[keras.layers.Dense(3, 'tanh', name='of_' + name)(inputs.slot(name)) for name in {}]"
SHARED = (
    "(lambda each: layers.Logit()({}([each(inputs.slot(name)) for name in {}])))("
    "keras.layers.Dense(3, 'tanh', name='each'))"
)
SIDE_BY_SIDE = "keras.layers.Concatenate()"
TRACKED = {
    "stacked": "layers.Logit()(keras.layers.Flatten()(inputs.embeddings))",
    "x in slots": (
        "layers.Logit()(keras.layers.Flatten()(keras.layers.LayerNormalization()("
        "ops.reshape(inputs.x, (-1, len(inputs.slots), inputs.slots['a'])))))"
    ),
    "units in another shape": (
        "layers.Logit()(keras.layers.Flatten()(keras.layers.Reshape((2, 3))("
        "keras.layers.Dense(6, 'tanh')(inputs.x))))"
    ),
    "the same twice": "layers.Logit()(ops.tanh(inputs.slot('a') * inputs.slot('a')))",
    "a gate for all": "layers.Logit()(inputs.x * keras.layers.Dense(1, 'sigmoid')(inputs.x))",
    "a scalar of units": "layers.Logit()(inputs.x * ops.max(keras.layers.Dense(3)(inputs.x)))",
    "a tower of its own": (
        "layers.Logit()(layers.Mlp([4])(layers.concatenated(inputs.x, inputs.slot('c'))))"
    ),
    "behind others": "layers.Logit()(layers.Dropout(0.1)(layers.BatchNorm()(inputs.x)))",
    "a cross behind a cross": (
        "layers.Logit()(layers.Mlp([4])(layers.VectorCross(2)(ops.tanh("
        "layers.MatrixCross(2)(inputs.x)))))"
    ),
    "nested": (
        "keras.Sequential([keras.layers.LayerNormalization(), keras.layers.Dense(3, 'tanh'), "
        "keras.layers.Dense(1)])(inputs.x)"
    ),
    "called twice": (
        "(lambda dense: dense(inputs.slot('a')) - ops.square(dense(inputs.slot('b'))))("
        "keras.layers.Dense(1))"
    ),
    "a layer each, concatenated": f"layers.Logit()({SIDE_BY_SIDE}({EACH.format('inputs.slots')}))",
    "a layer each, stacked": (
        f"layers.Logit()(keras.layers.Flatten()(ops.stack({EACH.format('inputs.slots')}, axis=1)))"
    ),
    "a layer each, added": f"layers.Logit()(layers.total(*{EACH.format(repr('abc'))}))",
    "shared, concatenated": SHARED.format(SIDE_BY_SIDE, "inputs.slots"),
    "shared, named": SHARED.format(SIDE_BY_SIDE, "'ab'"),
    "shared, added": SHARED.format("sum", "inputs.slots"),
    "beside the wide part": (
        "layers.linear_model(inputs.linear, inputs.numeric) + layers.Logit()(inputs.slot('a'))"
    ),
    "factors of numbers": (
        "layers.Logit()(keras.layers.Flatten()(layers.NumericFactors(2)(inputs.numeric)))"
    ),
    "products of fields": "layers.Logit()(layers.InnerProducts()(inputs.embeddings))",
    "units alone": (
        "layers.Logit()(keras.layers.Lambda(lambda h: tf.sort(h, axis=1))("
        "keras.layers.Dense(3)(inputs.x)))"
    ),
}
ADDED = ("a scalar of units", "behind others", "shared, named", "a layer each, added")


@pytest.mark.parametrize(
    ("expression", "change"),
    some(
        [(name, "reordered") for name in TRACKED]
        + [(name, "wider") for name, text in TRACKED.items() if "LayerNorm" not in text]
        + [(name, "one added") for name in ADDED],
        ("units in another shape", "reordered"), ("a gate for all", "reordered"),
        ("units alone", "reordered"), ("shared, concatenated", "reordered"),
        ("shared, named", "one added"), ("a scalar of units", "one added"),
    ),
)  # fmt: skip
def test_weights_of_other_recipes_follow_the_graph(expression, change, tmp_path, monkeypatch):
    """With inputs in another order, wider or more of them, the logits are as before."""
    old, new = confs_of_expression(TRACKED[expression], tmp_path, change)
    model, other, carried = carried_over(old, new, monkeypatch)
    assert not carried.new
    assert_same_logits(model, other)


KERNEL = "dense weights logit/kernel"
UNTRACKED = {
    "an operation on inputs": (
        "layers.Logit()(keras.layers.Lambda(lambda x: tf.sort(x, axis=1))(inputs.x))",
        KERNEL + r" are \[12, 1\] here and were .* which inputs is not known: lambda \(Lambda\) of "
        "the recipe declares no weight_axes. Keep the inputs",
    ),
    "a layer on inputs": (
        "(lambda e: layers.Logit()(keras.layers.Flatten()("
        "keras.layers.MultiHeadAttention(1, 2, name='attend')(e, e))))(inputs.embeddings)",
        r"dense weights attend/.* not known: attend \(MultiHeadAttention\).* no weight_axes",
    ),
    "a gate for each number": (
        "layers.Logit()(inputs.x * keras.layers.Dense(inputs.x.shape[1], 'sigmoid')(inputs.x))",
        "multiply of the recipe combines units of a layer with inputs.*warm.dense=fresh",
    ),
    "a product of slots": (
        "layers.Logit()(inputs.slot('a') * inputs.slot('c'))",
        KERNEL + r".* not known: multiply.* \(Multiply\) of the recipe declares no weight_axes",
    ),
    "a layer over each slot": (
        "layers.Logit()(keras.layers.Flatten()(keras.layers.Dense(3)(inputs.embeddings)))",
        KERNEL + r".* not known: dense \(Dense\) of the recipe declares no output_places",
    ),
    "a mean of slots": ("layers.Logit()(ops.mean(inputs.embeddings, axis=1))", KERNEL),
    "a scalar of inputs": ("layers.Logit()(inputs.x * ops.max(inputs.x))", KERNEL),
    "units in another order": (f"layers.Logit()(sum({EACH.format('inputs.slots')}))", KERNEL),
}
OTHER_UNITS = ("a layer each, concatenated", "a layer each, stacked", "shared, concatenated")


@pytest.mark.parametrize(
    ("expression", "change"),
    some(
        [(name, "reordered") for name in UNTRACKED]
        + [(name, change) for name in OTHER_UNITS for change in ("one added", "one replaced")],
        ("an operation on inputs", "reordered"), ("shared, concatenated", "one replaced"),
    ),
)  # fmt: skip
def test_weights_over_what_is_not_known_are_refused(expression, change, tmp_path, monkeypatch):
    text, message = UNTRACKED.get(expression) or (TRACKED[expression], KERNEL)
    old, new = confs_of_expression(text, tmp_path, change)
    with pytest.raises(UserError, match=message):
        carried_over(old, new, monkeypatch)


def confs_of_expression(text, tmp_path, change, code=""):
    """Confs of a recipe that returns an expression, with inputs that differ by `change`."""
    path = tmp_path / "own.py"
    imports = (
        "import keras, tensorflow as tf\nfrom keras import ops\nfrom tnctl.model import layers\n"
    )
    path.write_text(f"{imports}{code}\ndef build(inputs):\n    return {text}\n")
    numeric = {"m": Numeric(), "n": Numeric(width=2)} if "numeric" in text else {}
    old = Conf(
        recipe={"name": str(path)},
        slots=dict.fromkeys("abc", Slot()),
        numeric=numeric,
        embedding=Embedding(4, linear="linear" in text),
        data=Data(train="none"),
    )
    names = {"one added": "dabc", "one replaced": "adc"}.get(change, "cba")
    return old, dataclasses.replace(
        old,
        slots=dict.fromkeys(names, Slot()),
        numeric=dict(reversed(numeric.items())),
        embedding=dataclasses.replace(old.embedding, width=6 if change == "wider" else 4),
        warm=Warm(start="s", new=["d"] * ("d" in names), drop=[] if "b" in names else ["b"]),
    )


def confs_of(recipe, width):
    """A conf, and the same with inputs renamed, in another order, and if wider more of them."""
    more = width > 4
    settings = {"name": recipe.split()[0], **RECIPES[recipe]}
    din = recipe.startswith(("din", "bst"))
    sequence = Slot(group="g", pooling="none", max_length=3, separator="|")
    apart = {"h": sequence, "i": sequence} if din else {}
    a = Slot(group="g") if din else Slot()
    target = ["a2", "b"] if recipe == "din lists" else "a2"
    old = Conf(
        recipe=settings,
        slots={"a": a, "b": Slot(), "c": Slot(), **apart},
        numeric={"m": Numeric(), "n": Numeric(width=2)},
        embedding=Embedding(4, initial=Initial("normal", 0.5)),
        data=Data(train="none"),
    )
    new = dataclasses.replace(
        old,
        recipe=settings | ({"target": target} if din else {}),
        slots={"c": Slot(), **({"y": Slot()} if more else {}), **apart, "a2": a, "b": Slot()},
        numeric={"n": Numeric(width=2), "m": Numeric(), **({"k": Numeric()} if more else {})},
        embedding=Embedding(width, initial=Initial("normal", 0.5)),
        warm=Warm(start="s", rename={"a2": "a"}, new=["y", "k"] if more else []),
    )
    return old, new


def saved(model):
    """What a warm start reads of a checkpoint of a model, without writing one."""
    names, shapes = model.variable_names, [tuple(variable.shape) for variable in model.variables]
    parts = {"weights": model.dense.weights}
    parts |= zip(model.dense.state_names, model.dense.states, strict=True)
    variables = {
        name: {part: arrays[index].reshape(shape).copy() for part, arrays in parts.items()}
        for index, (name, shape) in enumerate(zip(names, shapes, strict=True))
    }
    for memory, variable in zip(model.moving, model.network.non_trainable_variables, strict=True):
        moving = memory.reshape(tuple(variable.value.shape)).copy()
        variables[variable.path] = {"weights": moving}
    dense = SimpleNamespace(optimizer=SavedOptimizer.of(model.dense.optimizer), step=7)
    name = model.conf.recipe["name"]
    recipe = SimpleNamespace(sha256=recipes.digest_of(name) if name.endswith(".py") else "")
    manifest = SimpleNamespace(dense=dense, recipe=recipe)
    return SimpleNamespace(statistics=Statistics(), manifest=manifest, variables=variables)


def inputs_of(model, other, random, rows=6):
    """Random inputs of two models that say the same: zeros where only the other has columns."""
    x = [np.zeros((rows, built.layout.width), np.float32) for built in (model, other)]
    names = {old: name for name, old in other.conf.warm.rename.items()}
    for where in ("pooled", "numeric_columns"):
        for name, (at, width) in getattr(model.layout, where).items():
            to = getattr(other.layout, where)[names.get(name, name)][0]
            x[0][:, at : at + width] = random.normal(size=(rows, width))
            x[1][:, to : to + width] = x[0][:, at : at + width]
    sequences = [
        np.zeros((rows, built.layout.sequences_width), np.float32) for built in (model, other)
    ]
    for name, sequence in model.layout.sequences.items():
        values = random.normal(size=(rows, sequence.length, sequence.width))
        for array, layout in zip(sequences, (model.layout, other.layout), strict=True):
            place = layout.sequences[name]
            view = array[:, place.column : place.column + place.length * place.width]
            view.reshape(rows, place.length, place.width)[:, :, : sequence.width] = values
    lengths = random.integers(1, 4, (rows, len(model.layout.sequences))).astype(np.int32)
    return x, random.normal(size=(rows, 1)).astype(np.float32), sequences, lengths
