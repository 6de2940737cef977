"""The values of a search, from what the command line says; and its mistakes."""

import sys

import pytest
from test_sweeps import refused_before_training

from tnctl.api.search import command, parameters_of
from tnctl.composing.compose import conf_file
from tnctl.training.search.search_confs import Parameter

FORMS = [
    ("train.batch_size=256,1024", {"kind": "choice", "choices": ("256", "1024")}),
    ("recipe=choice(lr,deepfm)", {"kind": "choice", "choices": ("lr", "deepfm")}),
    ("recipe.hidden=[8],[16,8]", {"kind": "choice", "choices": ("[8]", "[16,8]")}),
    ("data.delimiter=',','\\t'", {"kind": "choice", "choices": ("','", "'\\t'")}),
    ("seed=1,1,2", {"kind": "choice", "choices": ("1", "2")}),
    ("recipe=glob(deep*)", {"kind": "choice", "choices": ("deepfm",)}),
    ("seed=range(1,10,3)", {"kind": "int", "low": 1, "high": 7, "step": 3}),
    ("seed=range(9,0,-3)", {"kind": "int", "low": 3, "high": 9, "step": 3}),
    ("recipe.dropout=range(0,1,0.3)", {"kind": "float", "low": 0.0, "high": 0.9, "step": 0.3}),
    ("seed=tag(log, range(1,100))", {"kind": "int", "low": 1, "high": 99, "step": 1, "log": True}),
    ("recipe.dropout=interval(0,0.5)", {"kind": "float", "low": 0.0, "high": 0.5}),
    (
        "optimizer.dense.learning_rate=tag(log, interval(1e-4,0.1))",
        {"kind": "float", "low": 1e-4, "high": 0.1, "log": True},
    ),
    ("seed=interval(1.5,9)", {"kind": "int", "low": 2, "high": 9, "step": 1}),
    ("recipe.a=int(interval(1,9))", {"kind": "int", "low": 1, "high": 9, "step": 1}),
    (
        "recipe.a=tag(int, log, interval(1,9))",
        {"kind": "int", "low": 1, "high": 9, "step": 1, "log": True},
    ),
    ("+slots.new.width=interval(1,8)", {"kind": "int", "low": 1, "high": 8, "step": 1}),
]


@pytest.mark.parametrize(("text", "expected"), FORMS, ids=lambda v: str(v)[:40])
def test_values_in_hydras_grammar(text, expected):
    mixed, [parameter] = parameters_of(conf_file("deepfm"), ["train.epochs=2", text])
    assert parameter == Parameter(key=text.partition("=")[0], **expected)
    assert mixed == ["train.epochs=2", parameter]


def test_values_become_texts_that_hydra_reads_as_the_same_values():
    from tnctl.composing.compose import parsed_overrides

    number = Parameter(key="seed", kind="float", low=0.0, high=1.0)
    for value in (1e-05, 0.1 + 0.2, 1e22, -0.0, 7, 123456789012345):
        [override] = parsed_overrides(conf_file("deepfm"), [f"seed={number.text_of(value)}"])
        assert override.value() == value and type(override.value()) is type(value)


def test_the_command_of_a_conf_is_one_that_a_shell_reads():
    line = command(
        "my conf.yaml",
        ["output='runs/a'", "data.root='/a b'", "recipe.hidden=[8,4]", "data.delimiter=';'"],
        "runs/a",
    )
    assert line == (
        "tnctl train 'conf=my conf.yaml' 'data.root=/a b' 'recipe.hidden=[8,4]' "
        "'data.delimiter='\"'\"';'\"'\"'' output=runs/a/best"
    )
    secret = command("deepfm", ["data.root='s3://user:secret@host/a'"], "runs/a")
    assert "secret" not in secret


SEARCH = ["-m", "sweep.trials=3"]
MISTAKES = [
    (["-m", "sweep.trials=0", "seed=1,2"], ["sweep.trials must be between 1", "sweep.trials=0"]),
    (["-m", "sweep.trials=many", "seed=1,2"], ["sweep.trials must be a whole number"]),
    (["sweep.trials=3", "seed=1,2"], ["sweep.trials= is for sweeps: add -m"]),
    (["-m", "sweep.seed=2", "seed=1,2"], ["sweep.seed= is for a search", "sweep.trials=N"]),
    (
        [*SEARCH, "sweep.workers=2", "seed=1,2"],
        ["no longer has sweep.workers=", "same command several times"],
    ),
    ([*SEARCH, "sweep.prune=no", "seed=1,2"], ["sweep.prune is true or false"]),
    ([*SEARCH, "sweep.trails=3", "seed=1,2"], ["no argument sweep.trails=", "'sweep.trials'"]),
    ([*SEARCH, "--cfg", "job", "seed=1,2"], ["leave -m out"]),
    ([*SEARCH, "accept=true", "seed=1,2"], ["accept= is for days"]),
    ([*SEARCH, "seed=tag(lag, interval(1,2))"], ["no tag 'lag'", "'log'"]),
    ([*SEARCH, "seed=interval(5,1)"], ["seed=interval(5,1) has no values"]),
    ([*SEARCH, "recipe.dropout=interval(0,inf)"], ["no finite numbers"]),
    ([*SEARCH, "recipe.dropout=tag(log, interval(0,1))"], ["logarithmic scale", "above 0"]),
    ([*SEARCH, "recipe.dropout=tag(log, range(0.1,1,0.1))"], ["no steps"]),
    ([*SEARCH, "seed=range(1,5,0)"], ["is no range"]),
    ([*SEARCH, "seed=range(5,1)"], ["matches nothing"]),
    ([*SEARCH, "seed=range(1,9,0.5)"], ["has fractions", "whole number"]),
    ([*SEARCH, "seed=range(0,1000000000)"], ["over 10,000 values"]),
    ([*SEARCH, "data.validation=[a],[b]"], ["data.validation must be the same for all trials"]),
    ([*SEARCH, "data.split.seed=1,2"], ["data.split.seed must be the same for all trials"]),
    ([*SEARCH, "evaluation.monitor=auc,logloss"], ["must be the same for all trials"]),
    ([*SEARCH, "seed=1,2", "seed=3"], ["seed is given twice"]),
    ([*SEARCH, "seed=1,2", "train.batch_size=8,0"], ["seed=1 train.batch_size=0", "between"]),
    ([*SEARCH, "seed=1,2", "recipe=lr,deepmf"], ["recipe=deepmf", "'deepfm'"]),
    ([*SEARCH, "seed=1,2", "data.validation=null"], ["chooses by data.validation"]),
    ([*SEARCH, "seed=1,2", "cluster=local"], ["same command given several times", "cluster=local"]),
    (
        [*SEARCH, "seed=1,2", "data.format=csv", "data.train=a-{day}.csv"],
        ["one set of data", "{day}"],
    ),
    (
        [*SEARCH, "seed=1,2", "sweep.refit=true", "optimizer.schedule.name=plateau"],
        ["plateau", "sweep.refit"],
    ),
    (
        [*SEARCH, "seed=1,2", "sweep.refit=true", "data.test=null", "data.split.test=0.1"],
        ["data.split.test=0.1 would then take rows too"],
    ),
    (
        [*SEARCH, "seed=1,2", "sweep.refit=true", "data.validation=0:5", "data.train=9:20"],
        ["ranges of generated rows that adjoin", "9:20"],
    ),
]


@pytest.mark.parametrize(
    ("recipe", "given", "keys"),
    [
        ("deepfm", [], ["recipe.dropout", "linear", "embedding", "lazy_l2", "dense"]),
        ("lr", [], ["linear", "dense"]),
        (
            "dcn",
            ["optimizer.embedding.name=adam", "optimizer.dense.learning_rate=0.01"],
            ["recipe.dropout", "linear", "embedding"],
        ),
        ("fm", ["optimizer.embedding.weight_decay=0.1"], ["linear", "embedding", "dense"]),
    ],
)
def test_without_a_space_there_is_a_default_one(recipe, given, keys):
    path, overrides = conf_file("deepfm"), [f"recipe={recipe}", *given]
    mixed, parameters = parameters_of(path, overrides)
    assert mixed == [*overrides, *parameters]
    for parameter, key in zip(parameters, keys, strict=True):
        assert key in parameter.key and parameter.low < parameter.high
    # What is named takes the place of all of it.
    assert [p.key for p in parameters_of(path, [*overrides, "seed=1,2"])[1]] == ["seed"]


@pytest.mark.parametrize(("arguments", "words"), MISTAKES, ids=lambda v: " ".join(v)[:60])
def test_a_mistake_is_refused_before_anything_is_trained(cli, tmp_path, arguments, words):
    refused_before_training(cli, tmp_path, arguments, words)


def test_only_train_has_a_search(cli, tmp_path):
    done = cli("evaluate", "conf=deepfm", "sweep.trials=3", cwd=tmp_path)
    assert done.code == 2 and "takes no sweep.trials=" in done.line


def test_without_optuna_one_line_says_what_to_install(cli, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    done = cli("train", "conf=deepfm", *SEARCH, "seed=1,2", cwd=tmp_path)
    assert done.code == 2
    assert done.line.endswith("pip install 'tnctl[sweep]'")
    assert not list(tmp_path.iterdir())
