"""`tnctl init` as a command: what it writes, copies and refuses, and that its confs train."""

import dataclasses
import gzip
import json
import os
from pathlib import Path

import pytest
import yaml

import tnctl
from benchmarks import planted_tables
from tnctl import shipped
from tnctl.composing import compose
from tnctl.data import statistics
from tnctl.model import building
from tnctl.model.layout import plan


def test_init_then_train(cli, ran, tmp_path):
    planted_tables.log_with_semicolons(tmp_path / "clicks.csv", rows=1500)
    done = ran("init", "clicks.csv", cwd=tmp_path)
    assert "clicks.yaml written" in done.err
    text = (tmp_path / "clicks.yaml").read_text()
    assert "conf=clicks.yaml" in text
    ran("train", "conf=clicks.yaml", "train.epochs=1", "evaluation.ablate=false", cwd=tmp_path)
    report = json.loads((tmp_path / "runs" / "clicks" / "report.json").read_text())
    assert report["epochs"][0]["examples"] == 1200
    assert (report["split"], report["examples"]) == ("validation", 300)
    # A second time nothing is replaced, whoever wrote it.
    done = cli("init", "clicks.csv", cwd=tmp_path)
    assert (done.code, "is not replaced" in done.line) == (2, True)
    assert (tmp_path / "clicks.yaml").read_text() == text


SEQUENCE = ("recipe.behavior=tags", "recipe.target=item")
AS_SEQUENCE = (*SEQUENCE, "slots.tags.pooling=none", "slots.tags.max_length=3")
NEEDS = {
    "bst": AS_SEQUENCE,
    "din": AS_SEQUENCE,
    "pepnet": ("recipe.domain=[age]", "recipe.prior=[user_id,age_number]"),
    "esmm": ("+data.labels={ctr: {column: clicked}, ctcvr: {column: clicked}}",),
}


@pytest.fixture(scope="module")
def planted_conf(tmp_path_factory):
    """The conf that init writes for a log of clicks, and the statistics of the log."""
    folder = tmp_path_factory.mktemp("planted")
    planted_tables.log_with_semicolons(folder / "clicks.csv", rows=500)
    path = folder / "clicks.yaml"
    path.write_text(tnctl.first_conf(str(folder / "clicks.csv"), name=str(path)).text)
    return path, statistics.measure(compose.compose(path, []))


def network_of(planted_conf, recipe, *overrides):
    path, measured = planted_conf
    conf = compose.compose(path, [f"recipe={recipe}", *overrides])
    layout = plan(conf, measured)
    return conf, layout, building.build_network(conf, layout, "float32")


@pytest.mark.parametrize(
    "name",
    [
        name if name in ("bst", "dcn", "pepnet") else pytest.param(name, marks=pytest.mark.long)
        for name in shipped.recipes()
    ],
)
def test_each_recipe_takes_a_conf_of_init(planted_conf, name):
    conf, layout, (network, heads) = network_of(planted_conf, name, *NEEDS.get(name, ()))
    assert heads == (("ctr", "ctcvr", "cvr") if name == "esmm" else ("label",))
    assert conf.recipe.get("dropout", 0.3) == 0.3  # of the conf
    [listed] = [recipe for recipe in tnctl.shipped_recipes() if recipe.name == name]
    # The recipe has brought what its rows are of.
    assert layout.has_linear == ("linear weights" in listed.inputs)
    assert bool(layout.pooled) == ("embeddings" in listed.inputs)
    assert network.trainable_variables


@pytest.mark.parametrize(
    ("recipe", "overrides", "words"),
    [
        ("bst", (), "recipe.behavior is not given: recipe bst needs a slot with pooling=none (re"),
        ("din", SEQUENCE[:1], "recipe.target is not given: recipe din needs a slot with pooling="),
        ("din", SEQUENCE, "slots.tags is pooled, and this recipe needs a sequence. Give slots.tag"),
        ("pepnet", (), "recipe.domain is not given: recipe pepnet needs slots or numbers of a do"),
        ("pepnet", ("recipe.domain=[site]", "recipe.prior=[item]"),
         "the conf has no pooled slot or number 'site'. Did you mean 'item'?"),
        ("esmm", (), "recipe esmm has heads ctr, ctcvr, cvr; say which columns they are trained"),
        ("fm", ("slots.item.width=4",), "this recipe needs embeddings of one width, and slots.it"),
    ],
)  # fmt: skip
def test_what_a_recipe_lacks_is_said_in_a_line(planted_conf, recipe, overrides, words):
    with pytest.raises(tnctl.UserError) as caught:
        network_of(planted_conf, recipe, *overrides)
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_recipes_are_listed(cli, ran, tmp_path):
    listed = json.loads(ran("recipes", "--json", cwd=tmp_path).out)
    assert [recipe["name"] for recipe in listed] == shipped.recipes()
    assert listed == [dataclasses.asdict(recipe) for recipe in tnctl.shipped_recipes()]
    lines = ran("recipes", cwd=tmp_path).out.splitlines()
    for line, recipe in zip(lines[1:], listed, strict=True):
        assert [part.strip() for part in line.split("  ") if part.strip()] == [*recipe.values()]
        assert all(recipe.values())
    done = cli("recipes", "deepfm", cwd=tmp_path)
    assert (done.code, "takes --json only. Received: deepfm" in done.line) == (2, True)


def test_to_standard_output(ran, tmp_path):
    planted_tables.log_with_semicolons(tmp_path / "clicks.csv", rows=500)
    done = ran("init", "clicks.csv", "to=-", "label=clicked", cwd=tmp_path)
    assert yaml.safe_load(done.out)["data"]["label"] == {"column": "clicked"}
    assert os.listdir(tmp_path) == ["clicks.csv"]


@pytest.mark.parametrize(
    "name",
    [
        name if name == "adult" else pytest.param(name, marks=pytest.mark.long)
        for name in shipped.confs()
    ],
)
def test_a_copy_of_a_shipped_conf_is_the_same(ran, tmp_path, name):
    """Its groups are those of the shipped conf, and what is left open is given as there."""
    ran("init", f"conf={name}", "to=mine.yaml", cwd=tmp_path)
    original = shipped.folder("conf") / f"{name}.yaml"
    assert (tmp_path / "mine.yaml").read_bytes() == original.read_bytes()
    overrides = ["data.root=x", "output=x"]
    confs = [compose.compose(path, overrides) for path in (tmp_path / "mine.yaml", original)]
    assert dataclasses.replace(confs[0], paths=confs[1].paths) == confs[1]


def binary(path):
    path.write_bytes(b"\x00\x01\x02" * 1000)


REFUSED = {
    "empty": (lambda path: path.write_bytes(b""), "is empty", 1),
    "empty lines": (lambda path: path.write_text("\n\n \n"), "only empty lines", 1),
    "binary": (binary, "binary", 1),
    "half an ORC file": (lambda path: path.write_bytes(b"ORC" + bytes(100)), "whole ORC file", 1),
    "a huge line": (lambda path: path.write_bytes(b"a," * (3 << 20)), "longer than", 1),
    "one column": (lambda path: path.write_text("a\n" * 50), "no table", 1),
    "a constant label": (
        lambda path: path.write_text("user,label\n" + "".join(f"u{k % 9},0\n" for k in range(99))),
        "nothing can be learned", 1,
    ),
    "no label": (
        lambda path: path.write_text("a,b\n" + "".join(f"u{k % 9},v{k % 7}\n" for k in range(99))),
        "label=NAME", 2,
    ),
    "two labels": (
        lambda path: path.write_text(
            "a,b,c\n" + "".join(f"{k % 2},{k // 2 % 2},v{k % 7}\n" for k in range(99))
        ),
        "label=NAME", 2,
    ),
    "only a header": (lambda path: path.write_text("user,label\n"), "", 1),
    "cut gzip": (None, "", 1),
    "a JSON list": (lambda path: path.write_text('[{"a": 1}]'), "one object a line", 1),
    "a cut object": (
        lambda path: path.write_text('{"a": 1}\n{"a": 0, "b\n{"a": 1}\n'),
        """is no JSON lines: '{"a": 0, "b' is no object""", 1,
    ),
    "HTML": (lambda path: path.write_text("<html>\n<body>\n"), "HTML", 1),
    "half a Parquet file": (lambda path: path.write_bytes(b"PAR1" + b"x" * 100), "Parquet", 1),
    "UTF-16": (lambda path: path.write_bytes("a,b\n1,2\n".encode("utf-16")), "UTF-16", 1),
    "ragged lines": (
        lambda path: path.write_text("".join(f"{'a,' * (k % 7)}b\n" for k in range(99))),
        "no table", 1,
    ),
    "many lists of JSON": (lambda path: path.write_text('{"a":' * 500 + "\n"), "JSON", 1),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(cli, tmp_path, name):
    make, words, code = REFUSED[name]
    path = tmp_path / "data.csv"
    if name == "cut gzip":
        path = tmp_path / "data.csv.gz"
        path.write_bytes(gzip.compress(os.urandom(50_000))[:20_000])
    else:
        make(path)
    done = cli("init", path.name, cwd=tmp_path)
    assert done.code == code, done.err
    assert words in done.line
    assert os.listdir(tmp_path) == [path.name]


def test_places_that_are_refused(cli, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "own.yaml").write_text("defaults: [schema]\n")
    (tmp_path / "plain.gz").write_text("a,b\n1,2\n")
    (tmp_path / "squeezed.csv").write_bytes(gzip.compress(b"a,b\n1,2\n"))
    for arguments, words in (
        ([], "name the data"),
        (["nothing.csv"], "not found"),
        (["folder"], "folder"),
        (["plain.gz"], "not gzip as its name says"),
        (["squeezed.csv"], "compressed with gzip"),
        (["conf=criteo", "label=x"], "leave the data"),
        (["conf=nope"], "no conf"),
        (["conf=own.yaml", "to=a.yaml"], "copy your own file as any other"),
        (["lable=x"], "label"),
        (["--nope"], "takes no"),
        (["a.csv", "to=a.txt"], "ends in .yaml"),
        (["a.csv", "to=schema.yaml"], "schema"),
    ):
        done = cli("init", *arguments, cwd=tmp_path)
        assert done.code in (1, 2)
        assert words in done.line, arguments
    assert [path.name for path in tmp_path.glob("*.yaml")] == ["own.yaml"]


@pytest.mark.parametrize(
    ("label", "words"),
    [("nope", "no column 'nope'"), ("item", "positive="), ("site", "nothing can be learned")],
)
def test_labels_that_are_refused(cli, tmp_path, label, words):
    planted_tables.log_with_semicolons(tmp_path / "a.csv", rows=300)
    done = cli("init", "a.csv", f"label={label}", cwd=tmp_path)
    assert words in done.line
    assert not (tmp_path / "a.yaml").exists()


@pytest.fixture
def real_data():
    if not (root := os.environ.get("TNCTL_TEST_DATA")):
        pytest.skip("TNCTL_TEST_DATA is not set: the folder that has adult/ and bank/")
    return Path(root).resolve()


@pytest.mark.long
def test_adult_as_it_is(ran, real_data, tmp_path):
    """Without an edit, as good as the shipped conf: its AUC is 0.9225 over seeds."""
    ran("init", real_data / "adult", "to=first.yaml", cwd=tmp_path)
    data = f"data.root={real_data / 'adult'}"
    areas = {}
    for name, arguments in {"adult": ["conf=adult", data], "first": ["conf=first.yaml"]}.items():
        ran("train", *arguments, f"output={name}", cwd=tmp_path)
        report = json.loads((tmp_path / name / "report.json").read_text())
        assert (report["split"], report["examples"]) == ("test", 16_281)
        areas[name] = report["auc"]
    assert areas["first"] >= areas["adult"] - 0.005


@pytest.mark.long
def test_bank_as_it_is(ran, real_data, tmp_path):
    ran("init", real_data / "bank/bank-additional-full.csv", "to=bank.yaml", cwd=tmp_path)
    ran("train", "conf=bank.yaml", "train.epochs=1", "evaluation.ablate=false", cwd=tmp_path)
    report = json.loads((tmp_path / "runs/bank/report.json").read_text())
    assert report["split"] == "test" and report["auc"] > 0.85
