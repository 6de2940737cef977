"""Settings that cannot come to anything are refused before any work, in one line."""

import math

import pytest

from tnctl import schema
from tnctl.data.statistics_document import Statistics
from tnctl.errors import UserError
from tnctl.model import building

BASE = {"recipe": {"name": "lr"}, "output": "none", "slots": {"a": {}}}
FTRL = {"name": "ftrl", "learning_rate": 0.1}


def merged(values, changes):
    out = dict(values)
    for key, value in changes.items():
        both = isinstance(value, dict) and isinstance(out.get(key), dict)
        out[key] = merged(out[key], value) if both else value
    return out


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"optimizer": {"embedding": {**FTRL, "beta": 0.0}}}, "one of beta, l2"),
        ({"optimizer": {"linear": {**FTRL, "weight_decay": 0.1}}}, "take its l2"),
        ({"optimizer": {"dense": {"name": "tensornet_ftrl"}}}, "no ftrl for dense"),
        ({"compat": "tensornet", "optimizer": {"dense": FTRL}}, "no ftrl for dense"),
        (
            {"compat": "tensornet", "optimizer": {"dense": {"name": "adagrad"}}},
            "never moves with its default momentum_decay",
        ),
        ({"optimizer": {"dense": {"name": "adagrad", "gradient_decay": 0.9}}}, "compat=tensornet"),
        (
            {"compat": "tensornet", "optimizer": {"embedding": {"momentum_decay": 0.9}}},
            "optimizer.embedding.momentum_decay is a setting of dense",
        ),
        (
            {"optimizer": {"schedule": {"name": "step", "boundaries": [5], "factors": [-1.0]}}},
            "factors must be",
        ),
        (
            {"optimizer": {"embedding": {**FTRL, "beta1": 0.5}}},
            "beta1 is for name=adam or adamw. Received: name=ftrl$",
        ),
        (
            {"optimizer": {"schedule": {"name": "step", "boundaries": [-5], "factors": [1.0]}}},
            "boundaries must be at least 0. Received",
        ),
        (
            {"optimizer": {"schedule": {"name": "cosine", "decay_rate": 0.5}}},
            "decay_rate is for name=exponential. Received: name=cosine",
        ),
        ({"optimizer": {"schedule": {"name": "constant", "patience": 9}}}, "is for name=plateau"),
        ({"life": {"eviction": {"nonclick": 0.5}}}, "nonclick is a weight in score; give score"),
        ({"train": {"loss": {"gamma": 3.0}}}, "gamma is for name=focal. Received"),
        ({"train": {"xla": True, "precision": "bfloat16"}}, "xla=true needs"),
        ({"slots": {"b": {"cross": ["a", "c"], "column": "b"}}}, r"slots\.b\.cross makes ids"),
        ({"slots": {"self": {}}}, "self is not a name a graph can use"),
        ({"numeric": {"class": {}}}, "no keyword of Python"),
        ({"slots": {"_user": {}}}, "a letter first"),
        (
            {"cluster": {"start": "local"}, "optimizer": {"updates": "all"}},
            "updates=all is not for several workers",
        ),
        ({"cluster": {"start": "locl"}}, "Did you mean 'local'"),
        (
            {"cluster": {"start": "local", "workers": 2, "backup": 2}},
            "cluster.backup=2 leaves no worker for a step: it must be below cluster.workers=2",
        ),
        (
            {
                "cluster": {"start": "local", "workers": 3, "backup": 1},
                "train": {"deterministic": True},
            },
            "train.deterministic=true is for cluster.backup=0. With cluster.backup=1",
        ),
        (
            {"slots": {"b": {"pooling": "none", "max_length": 2}}, "numeric": {"b_length": {}}},
            "b_length is how the graph calls its length",
        ),
        ({"slots": {"b": {"group": "a", "width": 4}}}, "width=the default and width=4"),
    ],
)
def test_refused(changes, words):
    with pytest.raises(UserError, match=words) as caught:
        schema.from_values(merged(BASE, changes)).check_training()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"ids": "modulo"}, "ids=modulo needs size"),
        ({"ids": "boundaries"}, "ids=boundaries needs boundaries"),
        ({"ids": "boundaries", "boundaries": [2.0, 1.0]}, "boundaries must ascend"),
        ({"ids": "boundaries", "boundaries": [1.0, math.inf]}, "boundaries must be finite"),
        ({"ids": "vocabulary"}, "needs vocabulary .* or vocabulary_file, one of them"),
        ({"ids": "vocabulary", "vocabulary": ["a", "a"]}, "a value twice"),
        ({"ids": "vocabulary", "vocabulary": []}, "vocabulary is empty"),
        ({"size": 3}, "size is for ids=modulo or integer"),
        ({"buckets": 9}, "buckets is for ids=quantiles or row_quantiles"),
        ({"ids": "integer", "seed": 3}, "seed is for ids=hash or modulo or vocabulary"),
        ({"ids": "integer", "missing": "value"}, "missing=value needs"),
        ({"keep": "last"}, "give max_length"),
        ({"pooling": "none"}, "needs max_length"),
        ({"pooling": "none", "max_length": 3, "weights": "w"}, "weights are for pooling"),
        ({"cross": ["a"]}, "cross needs two names"),
        ({"indicator": True}, "indicator needs ids that are counted"),
        ({"indicator": True, "ids": "modulo", "size": 3, "frozen": True}, "makes no rows"),
        ({"indicator": True, "ids": "modulo", "size": 3, "group": "g"}, "leave group out"),
        ({"separator": ""}, "separator must not be empty"),
    ],
)
def test_keys_of_a_slot_that_do_not_go_together(keys, words):
    with pytest.raises(UserError, match=words):
        schema.Slot(**keys)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"clip": [2.0, 1.0]}, r"clip must be \[low, high\]"),
        ({"clip": [math.nan, 1.0]}, "clip must be"),
        ({"clip": [0.0, 1.0], "default": 2.0}, "default must be inside of clip"),
        ({"mean": 1.0, "transform": "standardize"}, "given together"),
        ({"mean": 1.0, "deviation": 1.0}, "mean is for transform=standardize"),
        ({"mean": 1.0, "deviation": 0.0, "transform": "standardize"}, "must be above 0"),
        ({"columns": ["a"], "width": 2}, "columns excludes column"),
        ({"columns": []}, "must name a column"),
        ({"default": math.nan}, "default must be finite"),
    ],
)
def test_keys_of_a_numeric_input_that_do_not_go_together(keys, words):
    with pytest.raises(UserError, match=words):
        schema.Numeric(**keys)


def test_a_clip_without_an_end_is_json():
    numeric = schema.Numeric(clip=[-float("inf"), 3.0])
    assert numeric.clip == [None, 3.0]
    assert schema.Numeric(clip=[None, 3.0]).clip == [None, 3.0]


RECIPES = {
    "wide": "import keras\n\ndef build(inputs):\n    return keras.layers.Dense(2)(inputs.x)\n",
    "x": "def build(inputs):\n    return inputs.x\n",
    "flat": "def build(inputs):\n    return inputs.x[:, 0]\n",
    "nothing": "def build(inputs):\n    return None\n",
    "empty": "def build(inputs):\n    return {}\n",
    "list": "def build(inputs):\n    return [inputs.linear]\n",
}


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_must_return_logits(tmp_path, recipe):
    (tmp_path / "own.py").write_text(RECIPES[recipe])
    conf = schema.from_values({**BASE, "recipe": {"name": str(tmp_path / "own.py")}})
    with pytest.raises(UserError, match=r"must return a logit \[B, 1\]"):
        building.build(conf, Statistics())


def test_one_label_of_any_name_is_the_only_heads():
    conf = schema.from_values({**BASE, "data": {"labels": {"click": {"column": "y"}}}})
    model = building.build(conf, Statistics())
    assert model.trained_heads == ["label"]
