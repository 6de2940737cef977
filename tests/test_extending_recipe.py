"""docs/extending.md, "A recipe": its two files are all that a shipped recipe needs."""

import json
import re
import shutil
from pathlib import Path

import pytest
import tnctl.recipes
from test_warm_dense import assert_same_logits, carried_over, confs_of_expression

from tnctl import shipped
from tnctl.errors import UserError
from tnctl.model.recipes import source_settings

ROOT = Path(__file__).resolve().parent.parent


def blocks(section):
    """The code blocks of a section of the document: (what names them, language, code)."""
    page = (ROOT / "docs/extending.md").read_text()
    text = page.split(f"\n## {section}\n")[1].split("\n## ")[0]
    return re.findall(r"([^\n]*):\n\n```(\w+)\n(.*?)```", text, re.S)


def test_a_recipe_is_two_files(cli, ran, workspace, monkeypatch):
    home = workspace / "home"
    for folder in ("conf", "recipes"):
        shutil.copytree(shipped.folder(folder), home / folder)
    for name, _, code in blocks("A recipe"):
        if not (paths := re.findall(r"`((?:conf|recipes)/[\w/.]+)`", name)):
            continue  # the layer
        [path] = paths
        assert not (home / path).exists()
        (home / path).write_text(code)
    monkeypatch.setattr(shipped, "PACKAGE", home / "tnctl")
    monkeypatch.setattr(tnctl.recipes, "__path__", [str(home / "recipes")])
    assert "mlp" in shipped.recipes()
    assert source_settings("mlp")["hidden"] == "(64, 32)"
    listed = ran("recipes", cwd=workspace).out
    assert re.search(r"^mlp +A tower beside .+ +linear weights, embeddings, numbers", listed, re.M)

    ran(
        "train", "conf=small.yaml", "recipe=mlp", "recipe.hidden=[8]", "recipe.l2=0.001",
        "evaluation.ablate=false", "output=run", cwd=workspace,
    )  # fmt: skip
    report = json.loads((workspace / "run/report.json").read_text())
    assert report["auc"] > 0.5
    [saved] = (workspace / "run/checkpoints").glob("*/conf.json")
    recipe = json.loads(saved.read_text())["recipe"]
    assert recipe == {
        "name": "mlp", "hidden": [8], "activation": "relu", "batch_norm": False, "dropout": 0.0,
        "residual": False, "l2": 0.001,
    }  # fmt: skip
    done = cli("train", "conf=small.yaml", "recipe=mlp", "recipe.hiden=[8]", cwd=workspace)
    assert "Did you mean 'hidden'?" in done.last


@pytest.mark.parametrize("change", ["reordered", "one added"])
def test_a_layer_declares_what_its_weights_are_over(change, tmp_path, monkeypatch):
    [code] = [code for _, _, code in blocks("A recipe") if "class WeightedProducts" in code]
    expression = "layers.Logit()(WeightedProducts()(inputs.embeddings))"
    confs = confs_of_expression(expression, tmp_path, change, code)
    model, other, carried = carried_over(*confs, monkeypatch)
    assert not carried.new
    assert_same_logits(model, other)

    undeclared = code.split("    def weight_axes")[0]
    confs = confs_of_expression(expression, tmp_path, change, undeclared)
    with pytest.raises(UserError, match=r"weighted_products .* declares no weight_axes"):
        carried_over(*confs, monkeypatch)
    declared_short = code.replace("self.output_places(columns)", "columns[:1]")
    confs = confs_of_expression(expression, tmp_path, change, declared_short)
    with pytest.raises(UserError, match=r"weighted_products .* has weight_axes without it"):
        carried_over(*confs, monkeypatch)
